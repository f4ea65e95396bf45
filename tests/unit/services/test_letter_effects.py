"""The new change with the effect of a late one (DLQ-13)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.dead_letters.envelope import DeadLetter
from connector.records.codec import framed
from connector.records.json_view import from_json, to_json
from connector.records.model import DataChange, WriteStreamOffset
from connector.records.rejection import Position, Reason
from connector.services.letter_effects import Effects
from connector.state.stream_progress import Progress
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.values import DataType
from connector.watermarks.frontier import UNKNOWN
from tests.changes import change, delete_family, put
from tests.unit.warehouses import log_progress

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


@pytest.mark.parametrize("place", ["1/0/0/0", ""])
def test_the_new_change_has_the_effect_of_the_late_one_now(place: str, tmp_path: Path) -> None:
    """DLQ-13: also for a letter of another program, which has no place in the order."""
    late = replace(change(put("63.50"), at=5), write_stream=WriteStreamOffset("job/a", 7))
    new = Effects(str(tmp_path), {"t": TABLE}, TODAY).new_change(letter(late, 0, place), late)
    assert new == replace(late, commit_timestamp=TODAY, write_stream=None)
    assert isinstance(new, DataChange)
    assert from_json(to_json(new, None)).record == new


def test_the_reason_why_there_is_no_new_change_is_returned(tmp_path: Path) -> None:
    """DLQ-13."""
    late = change(put("7"), at=5)

    def why(low_watermark: int | None = TODAY, change_: DataChange = late) -> DataChange | str:
        effects = Effects(str(tmp_path), {"t": TABLE}, low_watermark)
        return effects.new_change(letter(change_, 0, ""), change_)

    assert "low watermark" in str(why(None))
    assert why(change_=replace(late, table="other")) == "no table of its stream can read it"
    assert why(change_=change(delete_family(), at=5)) == (
        "it would change nothing: the row has newer values"
    )
    assert isinstance(why(), DataChange)


def test_the_low_watermark_is_that_of_the_stream(tmp_path: Path) -> None:
    """DLQ-13: without it, there is no new change."""
    stream = StreamConfig(name="s", topic="s")
    config = ConnectorConfig(
        str(tmp_path), KafkaConfig("127.0.0.1:1"), streams={"s": stream}, tables={"t": TABLE}
    )
    frontier = replace(UNKNOWN, low_watermark=TODAY)
    progress = Progress(ingest_batch=1, frontier=frontier)
    log_progress(tmp_path, "s", progress, changelog_id="id")
    effects = Effects.open(config, stream)
    assert effects is not None
    assert effects._low_watermark == TODAY
