"""The scenes of a demo, what they found, and how it is printed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

DIFFERENCES_SHOWN: Final = 20
WIDTH: Final = 100


@dataclass(kw_only=True)
class Scenes:
    """Statements that are true, differences, and the seconds of each scene."""

    equal: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def scene(self, name: str) -> Iterator[None]:
        """Print the name of a scene, and measure it."""
        heading(name)
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began

    def check(self, statement: str, differences: Sequence[str]) -> None:
        """Print a statement if there are no differences, and else their number."""
        wrong = f"it is not true that {statement}: {len(differences):,} differences"
        say(wrong if differences else statement)
        self.differences += differences
        self.equal += [] if differences else [statement]

    def print_result(self) -> None:
        """Print the seconds, and the statements or the differences."""
        times = ", ".join(f"{name} {seconds:.0f}" for name, seconds in self.seconds.items())
        say(f"seconds   {times}")
        if not self.differences:
            say(f"EQUAL: {self.equal[0]};")
            say(";\n".join(f"       {what}" for what in self.equal[1:]))
        for difference in self.differences[:DIFFERENCES_SHOWN]:
            say(f"DIFFERENT: {difference}")
        if more := len(self.differences[DIFFERENCES_SHOWN:]):
            say(f"and {more:,} more differences")


def say(line: str) -> None:
    print(line, flush=True)


def heading(name: str) -> None:
    say(f" {name} ".center(WIDTH, "─"))
