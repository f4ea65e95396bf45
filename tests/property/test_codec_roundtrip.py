"""Writing and reading a record are inverse, and our encoder writes what fastavro writes."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from connector.records.codec import (
    SCHEMA,
    SHIPPED,
    ChangeRecord,
    Schemas,
    decode,
    encode,
    frame,
    framed,
)
from connector.records.model import Record
from tests.fastavro_encoder import encode_with_fastavro, to_datum
from tests.property.strategies import KAFKA_PARTITIONS, RECORDS


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            name: without_logical_types(part)
            for name, part in schema.items()
            if name != "logicalType"
        }
    return [without_logical_types(part) for part in schema] if isinstance(schema, list) else schema


PLAIN_SCHEMA = fastavro.parse_schema(without_logical_types(json.loads(SCHEMA)))


@given(RECORDS, KAFKA_PARTITIONS, st.none() | st.integers(0, 2**32 - 1))
def test_decoding_what_was_encoded_gives_the_same_record(
    record: Record, kafka_partitions: int, registry_id: int | None
) -> None:
    """REC-3, REC-5, REC-11, REC-24, WRS-16."""
    schemas = Schemas({} if registry_id is None else {registry_id: SCHEMA})
    decoded = decode(framed(record, kafka_partitions, registry_id), schemas)
    assert decoded == ChangeRecord(record, kafka_partitions)


@given(RECORDS, KAFKA_PARTITIONS)
def test_our_encoder_writes_the_bytes_that_fastavro_writes(
    record: Record, kafka_partitions: int
) -> None:
    """REC-20."""
    assert encode(record, kafka_partitions) == encode_with_fastavro(record, kafka_partitions)


@given(RECORDS, KAFKA_PARTITIONS)
def test_fastavro_reads_what_our_encoder_writes(record: Record, kafka_partitions: int) -> None:
    """REC-20: readers that are not ours see the same record."""
    body = BytesIO(encode(record, kafka_partitions))
    datum = fastavro.schemaless_reader(body, PLAIN_SCHEMA)
    assert datum == to_datum(record, kafka_partitions)
    assert body.read() == b""


def test_the_single_object_framing_names_the_shipped_schema() -> None:
    """REC-11."""
    head = frame(b"", None)
    assert head[:2] == b"\xc3\x01"
    assert SHIPPED[head[2:]] == SCHEMA
