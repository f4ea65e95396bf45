"""Records that Kafka deleted before ingest read them, and what operators decided about them
(RUN-7).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from connector.records.views import view_of_time
from connector.stored import from_text
from connector.text import offsets_text

Lost = Mapping[int, tuple[int, int]]
"""By Kafka partition: the first lost offset, and the next one that is left."""


@dataclass(frozen=True, slots=True)
class AcceptLoss:
    """The decision of a person about lost records. Without `table`, ingest goes on behind the
    `offsets`. With one, the table is a cut again, despite the losses before this decision.

    `offsets` is `Lost` as JSON. `made_at` is in microseconds. In a warehouse, numbers increase in
    the order in which they were made.
    """

    number: int
    stream: str
    table: str
    offsets: str
    reason: str
    made_at: int
    made_by: str

    @property
    def lost(self) -> Lost:
        return from_text(dict[int, tuple[int, int]], self.offsets)

    @property
    def text(self) -> str:
        about = f"table {self.table} confirmed" if self.table else f"{text_of(self.lost)} accepted"
        return f"{about} by {self.made_by} at {view_of_time(self.made_at)}: {self.reason}"

    def covers(self, lost: Lost) -> bool:
        """Whether it accepts the loss of all these offsets."""
        accepted = {} if self.table else self.lost
        return all(
            number in accepted and accepted[number][0] <= first and following <= accepted[number][1]
            for number, (first, following) in lost.items()
        )


NOTHING_LOST: Final[tuple[AcceptLoss, ...]] = ()


def lost_between(read_to: Mapping[int, int], first: Mapping[int, int]) -> Lost:
    """The offsets that were not read, and are before the first ones that Kafka has."""
    return {
        number: (read_to[number], offset)
        for number, offset in sorted(first.items())
        if read_to.get(number, offset) < offset
    }


def offsets_of(lost: Lost) -> str:
    """The `offsets` of an `AcceptLoss`."""
    return json.dumps({str(number): list(offsets) for number, offsets in lost.items()})


def text_of(lost: Lost) -> str:
    """For example "Kafka partition 0, offsets 3 to 9"."""
    return "; ".join(
        f"Kafka partition {number}, {offsets_text(first, following - 1)}"
        for number, (first, following) in lost.items()
    )


def times_of(lost: Lost, left: Mapping[int, int], read_to: int | None = None) -> str:
    """When lost records arrived, for example " before 2026-11-27 09:00:00Z". `left` has the arrival
    (µs) of the first record that is left, by Kafka partition, and `read_to` is that of the last one
    that was read. Empty: neither is known.
    """
    times = "" if read_to is None else f" after {view_of_time(read_to)}"
    if lost.keys() <= left.keys():
        times += f" before {view_of_time(max(left.values()))}"
    return times


def is_unconfirmed(losses: Iterable[AcceptLoss], table: str) -> bool:
    """Whether records of the stream were lost since the table was last confirmed. `losses` are in
    the order in which ingest took them.
    """
    is_lost = False
    for decision in losses:
        if decision.table in ("", table):
            is_lost = not decision.table
    return is_lost
