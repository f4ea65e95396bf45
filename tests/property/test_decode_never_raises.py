"""Bytes from anywhere are a record or a rejection: decoding never raises, never hangs, never asks
for much memory.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any
from unittest.mock import patch

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from connector.records import codec
from connector.records.body_decoder import decode_body
from connector.records.codec import (
    SCHEMA,
    SINGLE_OBJECT_BYTES,
    ChangeRecord,
    Schemas,
    decode,
    encode,
    frame,
    framed,
)
from connector.records.model import ChildPartitions, Record, Release, Rule, Truncate
from connector.records.rejection import Position, Reason, Rejection
from connector.validation import KafkaRecord, Limits, validate_record
from tests.property.strategies import KAFKA_PARTITIONS, RECORDS, edge_data
from tests.property.test_codec_roundtrip import PLAIN_SCHEMA

SCHEMAS = Schemas({7: SCHEMA, 8: None, 9: "not a schema"})
BEFORE = st.sampled_from(
    [
        b"",
        b"\x00\x00\x00\x00\x07",
        b"\x00\x00\x00\x00\x08",
        b"\x00\x00\x00\x00\x09",
        frame(b"", None),
        b"\xc3\x01",
    ]
)


@given(BEFORE, st.binary(max_size=300))
def test_arbitrary_bytes_give_a_record_or_a_rejection(before: bytes, body: bytes) -> None:
    """REC-13, REC-16, nothing_lost: the verdict is a value."""
    assert isinstance(decode(before + body, SCHEMAS), (ChangeRecord, Rejection))


@given(RECORDS, KAFKA_PARTITIONS, st.data())
def test_damaged_records_give_a_record_or_a_rejection(
    record: Record, kafka_partitions: int, data: st.DataObject
) -> None:
    """REC-13."""
    value = bytearray(framed(record, kafka_partitions))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(value)))
        end = data.draw(st.integers(start, min(len(value), start + 4)))
        value[start:end] = data.draw(
            st.binary(max_size=4)
            | st.sampled_from(
                [b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f", b"\x01", b"\x80\x00"]
            )
        )
    assert isinstance(decode(bytes(value), SCHEMAS), (ChangeRecord, Rejection))


def in_general(value: bytes) -> ChangeRecord | Rejection:
    """What the general decoder says of a value: `decode` without the decoder for our own schema."""
    with patch.object(codec, "decode_body", lambda _data, _start: None):
        return decode(value, SCHEMAS)


@given(RECORDS, KAFKA_PARTITIONS, st.data())
def test_both_decoders_agree_on_damaged_records(
    record: Record, kafka_partitions: int, data: st.DataObject
) -> None:
    """REC-13, REC-20: a byte changed, left out or put in where the encoding has a meaning."""
    value = framed(record, kafka_partitions)
    body = decode_body(value, SINGLE_OBJECT_BYTES)
    is_rare = isinstance(record, (ChildPartitions, Release, Truncate))
    assert body == (None if is_rare else (record, kafka_partitions))
    damaged = bytearray(value)
    for _ in range(data.draw(st.integers(1, 2))):
        start = data.draw(st.integers(SINGLE_OBJECT_BYTES, len(damaged)))
        end = data.draw(st.integers(start, min(len(damaged), start + 2)))
        damaged[start:end] = data.draw(
            st.binary(max_size=2)
            | st.sampled_from([b"\x80\x00", b"\xff" * 9 + b"\x01", b"\x01", b"\x02", b"\x03"])
        )
    assert decode(bytes(damaged), SCHEMAS) == in_general(bytes(damaged))


@given(edge_data(st.integers(1, 3)))
def test_both_decoders_agree_on_values_at_a_limit(datum: dict[str, Any]) -> None:
    """REC-14, REC-20."""
    assert decode(written(datum), SCHEMAS) == in_general(written(datum))


@given(RECORDS, KAFKA_PARTITIONS, st.data())
def test_every_truncation_is_undecodable_and_says_where(
    record: Record, kafka_partitions: int, data: st.DataObject
) -> None:
    """REC-13, DLQ-9."""
    value = framed(record, kafka_partitions)
    length = data.draw(st.integers(SINGLE_OBJECT_BYTES, len(value) - 1))
    verdict = decode(value[:length], SCHEMAS)
    assert isinstance(verdict, Rejection)
    assert verdict.reason is Reason.UNDECODABLE
    assert verdict.detail.startswith("at byte ")
    assert f" of {length}" in verdict.detail


@given(RECORDS, st.binary(min_size=1, max_size=10))
def test_trailing_bytes_are_undecodable(record: Record, rest: bytes) -> None:
    """REC-13."""
    value = framed(record, 1)
    verdict = decode(value + rest, SCHEMAS)
    assert isinstance(verdict, Rejection)
    assert (verdict.reason, verdict.detail.split(":")[0]) == (
        Reason.UNDECODABLE,
        f"at byte {len(value)} of {len(value) + len(rest)}",
    )


def written(datum: dict[str, Any]) -> bytes:
    body = BytesIO()
    fastavro.schemaless_writer(body, PLAIN_SCHEMA, datum)
    return frame(body.getvalue(), None)


@given(edge_data(st.integers(1, 4)), st.none() | st.sampled_from([1, 4]))
def test_an_invalid_record_names_one_rule_and_a_valid_one_can_be_built(
    datum: dict[str, Any], topic_partitions: int | None
) -> None:
    """REC-14, REC-16: the list of rules is closed."""
    verdict = decode(written(datum), SCHEMAS, kafka_partitions=topic_partitions)
    if isinstance(verdict, Rejection):
        assert verdict.reason in (
            Reason.INVALID,
            Reason.UNKNOWN_ENTRY,
            Reason.INVALID_SEQUENCE_NUMBER,
        )
        assert verdict.reason is not Reason.INVALID or verdict.rule in list(Rule)
    else:
        assert encode(verdict.record, verdict.kafka_partitions)


@given(
    st.none() | st.binary(max_size=50),
    st.none() | BEFORE,
    st.binary(max_size=100),
    st.integers(0, 2**62),
    st.integers(0, 200),
)
def test_judging_never_raises(
    key: bytes | None, before: bytes | None, body: bytes, arrival: int, limit: int
) -> None:
    """DLQ-2: whatever is in Kafka has a verdict."""
    value = None if before is None else before + body
    record = KafkaRecord(Position("t", "id", 0, 0), arrival, key, value)
    verdict = validate_record(
        record,
        schemas=SCHEMAS,
        limits=Limits(max_record_bytes=limit + 1),
        kafka_partitions=4,
        tables=frozenset(),
    )
    assert isinstance(verdict, (ChangeRecord, Rejection))
