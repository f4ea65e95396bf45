"""What a forced replay sends for each of several letters of one row (DLQ-13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector.dead_letters.envelope import DeadLetter
from connector.records.codec import framed
from connector.records.model import DataChange
from connector.records.rejection import Position, Reason
from connector.services.dead_letters.effects import Effects
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.values import DataType
from tests.changes import change, put

TABLE = TableDefinition(
    name="t",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.STRING),)),
    columns=(Column("q", "f", b"q", DataType.NUMERIC),),
)
TODAY = 1_000


def letter(one: DataChange, offset: int, order_position: str) -> DeadLetter:
    return DeadLetter(
        position=Position("s", "id", 0, offset),
        key=one.row_key,
        value=framed(one, 1),
        headers=(),
        reason=Reason.TOO_LATE,
        rule="",
        detail="",
        attempt=0,
        first_failed_at=1,
        record_timestamp=1,
        schema_id=None,
        ingest_batch=0,
        order_position=order_position,
    )


@pytest.mark.parametrize("places", [("1/0/0/0", "1/0/1/0"), ("", "")])
def test_of_two_letters_of_one_time_the_later_one_wins(
    places: tuple[str, str], tmp_path: Path
) -> None:
    """DLQ-13: also of letters that another program wrote, which have no place in the order. The
    same value in other bytes would change nothing.
    """
    effects = Effects(str(tmp_path), {"t": TABLE}, TODAY)
    for offset, (text, place) in enumerate(zip(("63.50", "7.0"), places, strict=True)):
        one = change(put(text), at=5)
        today = effects.forced(letter(one, offset, place), one)
        assert isinstance(today, DataChange), today
        assert (today.entries, today.commit_timestamp) == (one.entries, TODAY)
    same = change(put("07"), at=5)
    why = effects.forced(letter(same, 2, "1/0/2/0"), same)
    assert isinstance(why, str)
    assert "would change nothing" in why
