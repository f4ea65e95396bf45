"""Histories of a few rows, as nasty as sources and Kafka can make them: what the merge laws are tried on.

Everything is drawn from a `random.Random`. Given a plain one, a thousand histories take a second; given Hypothesis' own
(`histories`), a failing history is shrunk. Names and times come from very small sets, so that things meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from hypothesis import strategies as st

from connector.model import ChangeType, DataChange, DeleteCells, DeleteFamily, Entry, SetCell, Transaction
from connector.ordering import OrderPosition

ROWS = (b"r1", b"r2")
FAMILIES = ("f", "g")
QUALIFIERS = (b"", b"q", b"\xff")
CELL_TIMESTAMPS = (0, 1, 2, 3, 5, 2**63 - 1)
RANGES = ((0, 0), (0, 0), (2, 0), (1, 0), (5, 0), (0, 2), (1, 3), (2, 3), (2, 6), (0, 6), (0, 2**63 - 1))
# Several spellings of few numbers: equal ones meet, unsigned ones beat signed ones, text order would be wrong.
SEQUENCE_NUMBERS = (
    "0",
    "7",
    "07/0",
    "B",
    "b/0/0",
    "ABC",
    "BA/FFFFFFFF",
    "FFF/B",
    "fff/ABC",
    "7FFFFFFFFFFFFFFF",
    "8000000000000000",
    "8/0/0/1",
)

T = TypeVar("T")


@dataclass(frozen=True)
class Delivery:
    """One arrival of a change, at its place in the ingest."""

    change: DataChange
    position: OrderPosition


def history(rng: Random, *, changes: int = 7, distinct_ranks: bool = False, rows: Sequence[bytes] = ROWS) -> list[Delivery]:
    """Up to `changes` changes, each delivered once or more often, in no order. They serve tables of both orders.

    With `distinct_ranks` no two different changes of a row are equal up to their ingest position, as MRG-4 asks of sources.
    """
    drawn = [_change(rng, number, rows) for number in range(rng.randint(1, changes))]
    if distinct_ranks:
        drawn = [
            replace(change, tie_breaker=number, change_sequence_number=f"{rng.randint(0, 2):X}/{number:X}")
            for number, change in enumerate(drawn)
        ]
    deliveries = []
    taken: set[OrderPosition] = set()
    for change in drawn:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            position = _position(rng, taken)
            taken.add(position)
            deliveries.append(Delivery(change, position))
    rng.shuffle(deliveries)
    return deliveries


def histories(**how: object) -> st.SearchStrategy[list[Delivery]]:
    """The same, for `@given`."""
    return st.randoms(use_true_random=False).map(lambda rng: history(rng, **how))  # type: ignore[arg-type]


def batches(rng: Random, things: Sequence[T]) -> list[list[T]]:
    """The same things, shuffled, some of them repeated, split at random."""
    shuffled = [*things, *(thing for thing in things if rng.random() < 0.3)]
    rng.shuffle(shuffled)
    split: list[list[T]] = [[]]
    for thing in shuffled:
        if rng.random() < 0.4:
            split.append([])
        split[-1].append(thing)
    return [batch for batch in split if batch]


def _change(rng: Random, number: int, rows: Sequence[bytes]) -> DataChange:
    collected = rng.random() < 0.1
    entries = _deletes(rng) if collected else _entries(rng, number)
    return DataChange(
        stream_partition="p",
        table="t",
        row_key=rng.choice(rows),
        commit_timestamp=rng.randint(1, 6),
        tie_breaker=rng.choice((-(2**31), 0, 0, 1, 2, 2**31 - 1)),
        entries=tuple(entries),
        change_type=ChangeType.GARBAGE_COLLECTION if collected else ChangeType.USER,
        source_cluster_id="" if collected else rng.choice(("c1", "c2")),
        transaction=Transaction("tx", record_sequence=rng.randint(0, 2)) if rng.random() < 0.4 else None,
        change_sequence_number=rng.choice(SEQUENCE_NUMBERS),
    )


def _entries(rng: Random, number: int) -> list[Entry]:
    kind = rng.random()
    if kind < 0.15:  # the deletion of a row
        return [DeleteFamily(family) for family in FAMILIES]
    if kind < 0.35:  # the upsert of a whole row
        return [*(DeleteFamily(family) for family in FAMILIES), *(_set_cell(rng, number, place) for place in range(rng.randint(1, 4)))]
    return [_entry(rng, number, place) for place in range(rng.randint(1, 6))]


def _entry(rng: Random, number: int, place: int) -> Entry:
    return _set_cell(rng, number, place) if rng.random() < 0.6 else _deletes(rng)[0]


def _deletes(rng: Random) -> list[Entry]:
    if rng.random() < 0.25:
        return [DeleteFamily(rng.choice(FAMILIES))]
    return [DeleteCells(rng.choice(FAMILIES), rng.choice(QUALIFIERS), *rng.choice(RANGES)) for _ in range(rng.randint(1, 3))]


def _set_cell(rng: Random, number: int, place: int) -> SetCell:
    # The value says where it came from, so that a mix-up shows; an empty one is a value too.
    value = b"" if rng.random() < 0.1 else b"%d.%d" % (number, place)
    return SetCell(rng.choice(FAMILIES), rng.choice(QUALIFIERS), value, rng.choice(CELL_TIMESTAMPS))


def _position(rng: Random, taken: set[OrderPosition]) -> OrderPosition:
    while True:
        position = OrderPosition(rng.randint(0, 3), rng.randint(0, 2), rng.randint(0, 15), rng.choice((0, 0, 0, 1, 2)))
        if position not in taken:
            return position
