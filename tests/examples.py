"""How many examples a law is tried with. `make test` tries a tenth of what `make test-long` and
`make mutants` try.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hypothesis import settings

DEEP = 100
QUICK = 10


def examples(count: int, quick: int | None = None) -> settings:
    """The settings of a law with `count` examples in a deep run, and a tenth of them in a quick
    run, or `quick` if one example is expensive.
    """
    return settings(max_examples=_number(count, quick, least=5))


def tries(count: int, quick: int | None = None) -> range:
    """The numbers of `count` examples that are drawn from a seed, and fewer in a quick run."""
    return range(_number(count, quick, least=2))


def draws(seed: int, numbers: Iterable[int], *found: str) -> Iterator[str]:
    """What each example is drawn from, for `random.Random`: from the seed of the run and a number.
    First come those that were `found` once, in every run. They are examples as long as the
    simulation draws the same; when you change it, look for the fault again.

        for drawn in draws(seed, tries(100), "2828602826/124"):
            assert_law(Simulation(Random(drawn))), drawn
    """
    yield from found
    for number in numbers:
        yield f"{seed}/{number}"


def _number(count: int, quick: int | None, *, least: int) -> int:
    is_deep = settings().max_examples >= DEEP
    if quick is not None and not is_deep:
        return quick
    return max(least, count * settings().max_examples // DEEP)
