"""Writing and reading a record are inverse, and our encoder writes what fastavro writes."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.records.avro_encoder import version_of
from connector.records.codec import (
    READER_SCHEMA,
    SHIPPED,
    VERSIONS,
    ChangeRecord,
    Schemas,
    body_version,
    decode,
    encode,
    encode_with_fastavro,
    frame,
    framed,
    to_datum,
)
from connector.records.model import Record
from tests.property.strategies import (
    KAFKA_PARTITIONS,
    RECORDS,
    VERSION_1_RECORDS,
    VERSION_2_RECORDS,
)


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            name: without_logical_types(part)
            for name, part in schema.items()
            if name != "logicalType"
        }
    return [without_logical_types(part) for part in schema] if isinstance(schema, list) else schema


PLAIN_SCHEMA = fastavro.parse_schema(without_logical_types(json.loads(READER_SCHEMA)))
PLAIN_VERSIONS = {
    version: fastavro.parse_schema(without_logical_types(json.loads(schema)))
    for version, schema in VERSIONS.items()
}


@given(RECORDS, KAFKA_PARTITIONS, st.none() | st.integers(0, 2**32 - 1))
def test_decoding_what_was_encoded_gives_the_same_record(
    record: Record, kafka_partitions: int, registry_id: int | None
) -> None:
    """REC-3, REC-5, REC-11, REC-24, WRS-16."""
    schema = VERSIONS[version_of(record)]
    schemas = Schemas({} if registry_id is None else {registry_id: schema})
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
    writer = PLAIN_VERSIONS[version_of(record)]
    datum = fastavro.schemaless_reader(body, writer, PLAIN_SCHEMA)
    assert datum == to_datum(record, kafka_partitions)
    assert body.read() == b""


@given(VERSION_1_RECORDS, KAFKA_PARTITIONS)
def test_a_record_without_new_fields_is_written_in_version_1(
    record: Record, kafka_partitions: int
) -> None:
    """WRS-16: its bytes are a record of the schema of version 1, to the last byte."""
    assert version_of(record) == 1
    value = framed(record, kafka_partitions)
    assert SHIPPED[value[2:10]] == VERSIONS[1]
    body = BytesIO(value[10:])
    datum = fastavro.schemaless_reader(body, PLAIN_VERSIONS[1])
    assert body.read() == b""
    expected = to_datum(record, kafka_partitions)
    assert expected.pop("release") is None
    if expected["data_change"]:
        assert expected["data_change"].pop("write_stream") is None
    assert datum == expected


@given(VERSION_2_RECORDS, KAFKA_PARTITIONS)
def test_a_row_of_a_write_stream_and_a_release_are_written_in_version_2(
    record: Record, kafka_partitions: int
) -> None:
    """WRS-16."""
    assert version_of(record) == 2
    value = framed(record, kafka_partitions)
    assert SHIPPED[value[2:10]] == VERSIONS[2] == READER_SCHEMA
    assert body_version(value, Schemas()) == 2
    assert body_version(framed(record, 1, 7), Schemas({7: VERSIONS[2]})) == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_the_single_object_framing_names_a_shipped_schema(version: int) -> None:
    """REC-11."""
    head = frame(b"", None, version)
    assert head[:2] == b"\xc3\x01"
    assert SHIPPED[head[2:]] == VERSIONS[version]
