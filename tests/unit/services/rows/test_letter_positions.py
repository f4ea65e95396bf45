"""The order positions of dead letters, in the files of a changelog (DLQ-10)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from connector.dead_letters.envelope import ClaimedLetter
from connector.engine.schema import POSITION
from connector.lake.letter_positions import logged_positions
from connector.records.ordering import OrderPosition

ROWS = [
    ("rejected", 0, 7, 0),
    ("rejected", 0, 8, 2),
    ("change", 0, 9, 0),
    ("staged", 1, 9, 0),
    ("control", 1, 10, 0),
    ("rejected", 2**31 - 1, 10**18 - 1, 0),
]


def test_positions_of_letters_that_the_changelog_has(tmp_path: Path) -> None:
    """A table letter names a change or a staged row, and any other one a rejected record."""
    rows = [
        {
            "kind": kind,
            "kafka_partition": number,
            "offset": offset,
            "order_position": OrderPosition(3, number, offset, attempt)._asdict(),
        }
        for kind, number, offset, attempt in ROWS
    ]
    types = {"kind": pa.string(), "kafka_partition": pa.int32(), "offset": pa.int64()}
    schema = pa.schema({**types, "order_position": POSITION})
    write_deltalake(str(tmp_path), pa.Table.from_pylist(rows, schema))
    letters = {
        ClaimedLetter(number, offset, of_table=of_table)
        for _, number, offset, _ in ROWS
        for of_table in (False, True)
    }
    unknown = {ClaimedLetter(0, 10, of_table=False), ClaimedLetter(5, 7, of_table=True)}
    of_kind = {"rejected": False, "change": True, "staged": True}
    assert logged_positions(str(tmp_path), letters | unknown) == {
        ClaimedLetter(number, offset, of_table=of_kind[kind]): OrderPosition(
            3, number, offset, attempt
        )
        for kind, number, offset, attempt in ROWS
        if kind in of_kind
    }
    assert logged_positions(str(tmp_path), ()) == {}


def test_without_a_changelog_there_are_none(tmp_path: Path) -> None:
    letter = ClaimedLetter(0, 7, of_table=False)
    assert logged_positions(str(tmp_path / "none"), [letter]) == {}
