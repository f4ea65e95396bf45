"""What the encoder makes of a row at an offset: the record, and the bytes that tell two appends
apart.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connector.records.avro_encoder import encode_body, encode_row
from connector.records.codec import ChangeRecord, Schemas, decode, frame
from connector.records.model import (
    SERVER_TIME,
    ChangeType,
    DataChange,
    SetCell,
    WriteStreamOffset,
)
from tests.property.strategies import (
    BYTES,
    ENTRIES,
    KAFKA_PARTITIONS,
    LONG,
    NATURAL,
    ROW_IMAGE,
    ROW_KEY,
    ROWS_TO_APPEND,
    SEQUENCE_NUMBER,
    STREAM_PARTITION,
    TABLE,
    TIMESTAMP,
    TRANSACTION,
    WRITE_STREAM,
)


def appended(row: DataChange, offset: int, now: int) -> DataChange:
    """The change that the topic has after an append at `now`."""
    assert row.write_stream is not None
    entries = tuple(
        replace(entry, cell_timestamp=now)
        if isinstance(entry, SetCell) and entry.cell_timestamp == SERVER_TIME
        else entry
        for entry in row.entries
    )
    stream = row.write_stream.stream
    return replace(row, entries=entries, write_stream=WriteStreamOffset(stream, offset))


@given(ROWS_TO_APPEND, NATURAL, TIMESTAMP, KAFKA_PARTITIONS)
def test_a_row_is_the_change_at_its_offset_with_the_time_of_the_append(
    row: DataChange, offset: int, now: int, kafka_partitions: int
) -> None:
    """WRS-11, WRS-16: and every reader takes it."""
    body, _ = encode_row(row, offset, now, kafka_partitions)
    expected = appended(row, offset, now)
    assert body == encode_body(expected, kafka_partitions)
    decoded = decode(frame(body, None), Schemas())
    assert decoded == ChangeRecord(expected, kafka_partitions)


OTHER: dict[str, st.SearchStrategy[Any]] = {
    "table": TABLE,
    "row_key": ROW_KEY,
    "commit_timestamp": TIMESTAMP,
    "entries": ENTRIES,
    "change_type": st.sampled_from(ChangeType),
    "source_cluster_id": st.text(min_size=1, max_size=8),
    "tie_breaker": LONG,
    "resume_token": BYTES,
    "estimated_low_watermark": NATURAL,
    "transaction": st.none() | TRANSACTION,
    "change_sequence_number": st.none() | SEQUENCE_NUMBER,
    "row_image": st.none() | ROW_IMAGE,
    "write_stream": st.builds(WriteStreamOffset, WRITE_STREAM, st.just(0)),
}
OF_THE_SESSION = {"stream_partition"}


@given(
    ROWS_TO_APPEND,
    *(st.tuples(TIMESTAMP, KAFKA_PARTITIONS, STREAM_PARTITION, NATURAL) for _ in range(2)),
    NATURAL,
)
def test_a_row_that_is_appended_twice_has_equal_bytes(
    row: DataChange,
    first: tuple[int, int, str, int],
    second: tuple[int, int, str, int],
    offset: int,
) -> None:
    """WRS-7: the time of the append, the Kafka partitions and the stream partition of the session
    may differ. The offset that the row had before does not count.
    """
    stream = row.write_stream.stream  # type: ignore[union-attr]
    found = [
        encode_row(
            replace(row, stream_partition=name, write_stream=WriteStreamOffset(stream, before)),
            offset,
            now,
            count,
        )[1]
        for now, count, name, before in (first, second)
    ]
    assert found[0] == found[1]


def _of_row(row: DataChange) -> dict[str, Any]:
    assert row.write_stream is not None
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return values | {"write_stream": row.write_stream.stream, "stream_partition": ""}


@given(ROWS_TO_APPEND, st.sampled_from(sorted(OTHER)), st.data())
def test_rows_that_differ_have_different_bytes(
    row: DataChange, name: str, data: st.DataObject
) -> None:
    """WRS-7: in any field, and in the offset."""
    changed: dict[str, Any] = {name: data.draw(OTHER[name])}
    if row.is_staged and name in (
        "commit_timestamp",
        "estimated_low_watermark",
        "resume_token",
        "transaction",
    ):
        changed |= {"commit_timestamp": data.draw(TIMESTAMP)}
    if name in ("change_type", "source_cluster_id"):
        is_user = changed.get("change_type", ChangeType.USER) is ChangeType.USER
        changed |= {
            "change_type": ChangeType.USER if is_user else ChangeType.GARBAGE_COLLECTION,
            "source_cluster_id": (
                changed.get("source_cluster_id", row.source_cluster_id or "c") if is_user else ""
            ),
        }
    other = replace(row, **changed)
    is_same = _of_row(other) == _of_row(row)
    assert (encode_row(other, 5, 1, 1)[1] == encode_row(row, 5, 1, 1)[1]) == is_same
    assert encode_row(row, 6, 1, 1)[1] != encode_row(row, 5, 1, 1)[1]


def test_every_field_of_a_change_is_varied() -> None:
    assert {field.name for field in fields(DataChange)} == OTHER.keys() | OF_THE_SESSION
