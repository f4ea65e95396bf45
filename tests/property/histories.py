"""Difficult histories of a few rows, for tests of the merge laws.

All random choices come from a `random.Random`. With a plain one, a thousand histories take a
second. With Hypothesis' own (`histories`), a failing history is made smaller. Names and times come
from very small sets, so that they often collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from hypothesis import strategies as st

from connector.records.model import (
    ChangeType,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    SetCell,
    Transaction,
)
from connector.records.ordering import OrderBy, OrderPosition
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.presence import PRESENCE_QUALIFIER
from connector.tables.values import DataType

ROWS = (b"r1", b"r2")
FAMILIES = ("f", "g")
QUALIFIERS = (b"", b"q", PRESENCE_QUALIFIER, b"\xff")
MAPPED = (("f", b""), ("f", b"q"), ("g", b"q"))
COLUMNS = tuple(
    Column(f"c{n}", family, qualifier, DataType.BYTES)
    for n, (family, qualifier) in enumerate(MAPPED)
)
"""The columns of a table of such changes. Cells that are not `MAPPED` have no column."""
MARK = ("f", PRESENCE_QUALIFIER)
"""The presence mark of such a table."""
CELL_TIMESTAMPS = (0, 1, 2, 3, 5, 2**63 - 1)
RANGES = ((2, 0), (1, 0), (5, 0), (0, 2), (1, 3), (2, 3), (2, 6), (0, 6), (0, 2**63 - 1))
# Several spellings of a few numbers. Equal ones collide, unsigned ones win over signed ones, and
# text order would be wrong.
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


def table(order_by: OrderBy, versions: Versions) -> TableDefinition:
    """A table without columns: the bytes of its cells are their values."""
    key = Key((KeyPart("id", DataType.BYTES),), form=KeyForm.DELIMITED)
    return TableDefinition(
        name="t", stream="s", source="t", key=key, columns=(), order=order_by, versions=versions
    )


@dataclass(frozen=True)
class Delivery:
    """One arrival of a change, at its order position."""

    change: DataChange
    position: OrderPosition


def history(
    rng: Random, *, changes: int = 7, distinct_ranks: bool = False, rows: Sequence[bytes] = ROWS
) -> list[Delivery]:
    """Up to `changes` changes, each delivered once or more often, in random order. They suit tables
    of both orders.

    With `distinct_ranks`, no two different changes of a row are equal except in their order
    position, as MRG-4 requires.
    """
    taste = _taste(rng)
    drawn = [_change(rng, taste, number, rows) for number in range(rng.randint(1, changes))]
    if distinct_ranks:
        drawn = [
            replace(
                change,
                tie_breaker=number,
                change_sequence_number=f"{rng.randint(0, 2):X}/{number:X}",
            )
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


def plain_entries(change: DataChange, *, whole: bool) -> tuple[Entry, ...]:
    """The entries of the change without those that are not plain in a table of `COLUMNS`.

    `whole` puts deletions of all families before the others, or after them.
    """
    entries = [entry for entry in change.entries if not isinstance(entry, DeleteCells)]
    if whole:
        deletions = [DeleteFamily(family) for family in FAMILIES]
        entries = [*entries, *deletions] if change.tie_breaker % 4 == 0 else [*deletions, *entries]
    by_name = {
        (entry.family, getattr(entry, "qualifier", None)): entry for entry in reversed(entries)
    }
    kept = [
        entry
        for (family, qualifier), entry in by_name.items()
        if qualifier is None or (family, qualifier) in (*MAPPED, MARK)
    ]
    return tuple(reversed(kept))


def batches(rng: Random, things: Sequence[T]) -> list[list[T]]:
    """The same items in random order, some of them repeated, in random batches."""
    shuffled = [*things, *(thing for thing in things if rng.random() < 0.3)]
    rng.shuffle(shuffled)
    split: list[list[T]] = [[]]
    for thing in shuffled:
        if rng.random() < 0.4:
            split.append([])
        split[-1].append(thing)
    return [batch for batch in split if batch]


@dataclass(frozen=True)
class _Taste:
    """The probabilities of a history. Each history has its own, so that rare cases are frequent in
    some.
    """

    families: Sequence[str]
    qualifiers: Sequence[bytes]
    wide: float
    """The share of deletes that are of a family or a column, instead of a range."""
    deletes: float
    """The share of entries that are deletes."""


def _taste(rng: Random) -> _Taste:
    return _Taste(
        FAMILIES[: rng.randint(1, len(FAMILIES))],
        QUALIFIERS[: rng.randint(1, len(QUALIFIERS))],
        rng.choice((0.0, 0.1, 0.5)),
        rng.choice((0.2, 0.5)),
    )


def _change(rng: Random, taste: _Taste, number: int, rows: Sequence[bytes]) -> DataChange:
    collected = rng.random() < 0.1
    entries = _deletes(rng, taste) if collected else _entries(rng, taste, number)
    return DataChange(
        stream_partition="p",
        table="t",
        row_key=rng.choice(rows),
        commit_timestamp=rng.randint(1, 6),
        tie_breaker=rng.choice((-(2**31), 0, 0, 1, 2, 2**31 - 1)),
        entries=tuple(entries),
        change_type=ChangeType.GARBAGE_COLLECTION if collected else ChangeType.USER,
        source_cluster_id="" if collected else rng.choice(("c1", "c2")),
        transaction=(
            Transaction("tx", record_sequence=rng.randint(0, 2)) if rng.random() < 0.4 else None
        ),
        change_sequence_number=rng.choice(SEQUENCE_NUMBERS),
    )


def _entries(rng: Random, taste: _Taste, number: int) -> list[Entry]:
    if rng.random() < taste.wide / 2:
        deletes: list[Entry] = [DeleteFamily(family) for family in FAMILIES]
        # The deletion of a row, or the upsert of a whole row.
        return (
            deletes
            if rng.random() < 0.4
            else [
                *deletes,
                *(_set_cell(rng, taste, number, place) for place in range(rng.randint(1, 4))),
            ]
        )
    return [_entry(rng, taste, number, place) for place in range(rng.choice((1, 1, 2, 4, 6)))]


def _entry(rng: Random, taste: _Taste, number: int, place: int) -> Entry:
    return (
        _delete(rng, taste)
        if rng.random() < taste.deletes
        else _set_cell(rng, taste, number, place)
    )


def _deletes(rng: Random, taste: _Taste) -> list[Entry]:
    return [_delete(rng, taste) for _ in range(rng.randint(1, 3))]


def _delete(rng: Random, taste: _Taste) -> Entry:
    family = rng.choice(taste.families)
    if rng.random() >= taste.wide:
        return DeleteCells(family, rng.choice(taste.qualifiers), *rng.choice(RANGES))
    return (
        DeleteFamily(family)
        if rng.random() < 0.5
        else DeleteCells(family, rng.choice(taste.qualifiers))
    )


def _set_cell(rng: Random, taste: _Taste, number: int, place: int) -> SetCell:
    # The value names its origin, so that a wrong one is visible. An empty value is possible too.
    value = b"" if rng.random() < 0.1 else b"%d.%d" % (number, place)
    return SetCell(
        rng.choice(taste.families), rng.choice(taste.qualifiers), value, rng.choice(CELL_TIMESTAMPS)
    )


def _position(rng: Random, taken: set[OrderPosition]) -> OrderPosition:
    while True:
        position = OrderPosition(
            rng.randint(0, 3), rng.randint(0, 2), rng.randint(0, 15), rng.choice((0, 0, 0, 1, 2))
        )
        if position not in taken:
            return position
