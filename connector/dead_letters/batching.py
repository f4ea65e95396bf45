"""Groups consecutive items into lists of limited size, and the limits of a rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

LEAST_RATE: Final = 0.001
MOST_RATE: Final = 1_000_000.0
"""The limits of the number of dead letters that a replay sends in a second."""

_Item = TypeVar("_Item")


def in_batches(
    items: Iterable[_Item], size: Callable[[_Item], int], *, at_most: int, at_most_bytes: int
) -> Iterator[list[_Item]]:
    """Yield the items in order, in lists of at most `at_most` items and `at_most_bytes` bytes.

    A larger item is alone in its list. Before a list is yielded, at most one item after it is read
    from `items`.
    """
    found: list[_Item] = []
    total = 0
    for item in items:
        its = size(item)
        if found and total + its > at_most_bytes:
            yield found
            found, total = [], 0
        found.append(item)
        total += its
        if len(found) == at_most:
            yield found
            found, total = [], 0
    if found:
        yield found
