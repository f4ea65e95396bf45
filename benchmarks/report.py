"""The output of a benchmark: the rounds, then one line `name value bar` for each figure.

A bar is the value to reach: `0.4` at least, `<0.3` below, `-` none. If it is not reached, `missed`
follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

MISSED = " missed"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value, and the bar that it should reach."""

    name: str
    value: float
    bar: str = "-"

    @property
    def holds(self) -> bool:
        if self.bar == "-":
            return True
        return (
            self.value < float(self.bar[1:])
            if self.bar.startswith("<")
            else self.value >= float(self.bar)
        )

    def __str__(self) -> str:
        return f"{self.name} {number(self.value)} {self.bar}{'' if self.holds else MISSED}"


def number(value: float) -> str:
    """A number with three significant digits and no exponent."""
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def spread(name: str, values: Sequence[float], unit: str = "") -> str:
    """The rounds of one measurement in a line: min / median / max of how many."""
    shown = " / ".join(number(value) for value in (min(values), median(values), max(values)))
    return f"{name}: {shown}{' ' + unit if unit else ''} (min / median / max of {len(values)})"


def finish(figures: Iterable[Figure], *, validate_record: bool) -> int:
    """Print the figures as the last lines. Returns the exit code: 1 if a bar is missed and bars
    count.
    """
    shown = list(figures)
    for figure in shown:
        print(figure, flush=True)
    return int(validate_record and not all(figure.holds for figure in shown))


def figures(output: str) -> list[Figure]:
    """The figures at the end of a benchmark's output."""
    found: list[Figure] = []
    for line in reversed(output.splitlines()):
        words = line.removesuffix(MISSED).split()
        if (
            len(words) != 3
            or not _is_number(words[1])
            or not (words[2] == "-" or _is_number(words[2].removeprefix("<")))
        ):
            break
        found.append(Figure(words[0], float(words[1]), words[2]))
    return found[::-1]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
