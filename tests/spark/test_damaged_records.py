"""Bytes that are no record, framings, and writer schemas from elsewhere: the JVM survives all, and
says what `validate_record` says.
"""

from __future__ import annotations

import copy
import itertools
import json

import fastavro
import pytest
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from connector.engine.rules import RecordRules
from connector.records.codec import SCHEMA, Schemas, frame
from connector.records.model import (
    Rule,
    kafka_key,
)
from connector.records.rejection import Reason
from connector.spark.ingest.validate import UNSEEN_SCHEMA, schema_ids, validated
from connector.validation import Limits
from tests.damaged_cases import (
    block_cases,
    case,
    damaged_cases,
    length_cases,
    schema_cases,
    text_cases,
)
from tests.fastavro_encoder import to_datum
from tests.property import test_logical_types as logical_types
from tests.property.strategies import RECORDS, slots
from tests.property.test_logical_types import RECORDS_OF_EACH_BRANCH, TIMES
from tests.property.test_schema_resolution import _filled, writers
from tests.record_cases import CHANGE, STAGED, Case, drawn, raw
from tests.spark.test_validation_agrees import assert_agreement, rows

MILLIS = "timestamp-millis"


def test_damaged_bodies_are_validated_the_same_with_bounded_memory(
    spark: SparkSession, seed: int
) -> None:
    """TBL-3, REC-13, REC-16: flips, cuts, rubbish and numbers that lie."""
    cases = damaged_cases(seed)
    said = assert_agreement(spark, cases, schemas=Schemas())
    assert {"GOOD", Reason.UNDECODABLE} <= said


def test_text_that_is_not_utf8_is_undecodable_in_every_field(spark: SparkSession) -> None:
    """REC-13: each field of text in turn, with bytes that decoders treat differently."""
    cases = text_cases()
    said = assert_agreement(spark, cases, schemas=Schemas())
    rules = {Rule.FAMILY, Rule.TABLE, Rule.WRITE_STREAM, Rule.RELEASE}
    assert {"GOOD", Reason.UNDECODABLE, *rules} <= said


def test_entries_may_come_in_blocks_of_any_kind(spark: SparkSession) -> None:
    """REC-12, REC-13: several blocks, blocks with sizes, true and false ones, and impossible
    counts.
    """
    cases = block_cases()
    assert assert_agreement(spark, cases, schemas=Schemas()) >= {"GOOD", Reason.UNDECODABLE}


def test_lengths_up_to_16_mib_are_read(spark: SparkSession) -> None:
    """REC-13: one byte more, and both refuse; a length that is not there costs no memory."""
    cases = length_cases()
    said = assert_agreement(spark, cases, schemas=Schemas(), limits=Limits(max_record_bytes=2**26))
    assert said == {"GOOD", Reason.UNDECODABLE}


def test_other_writer_schemas_are_read_or_unknown_alike(spark: SparkSession, seed: int) -> None:
    """REC-11, REC-12, REC-16: whatever a registry has under an id, it never stops the stream."""
    schemas, cases = schema_cases(seed)
    said = assert_agreement(spark, cases, schemas=schemas)
    assert said >= {
        "GOOD",
        Reason.UNKNOWN_FRAMING,
        Reason.UNKNOWN_SCHEMA,
        Reason.UNDECODABLE,
        Reason.UNKNOWN_ENTRY,
    }


def test_logical_types_are_converted_or_refused_alike(spark: SparkSession) -> None:
    """REC-26: times in milliseconds and in other units, types of bytes and of lists, unions; and
    numbers that no long has a thousand times.
    """
    times = {path: logical_types.with_logical_type(path, MILLIS, "type") for path in TIMES}
    everywhere = json.loads(SCHEMA.replace("timestamp-micros", MILLIS))
    union = copy.deepcopy(times["heartbeat.timestamp"])
    union["fields"][3]["type"][1]["fields"][0]["type"] = [{"type": "long", "logicalType": MILLIS}]
    two_units = copy.deepcopy(union)
    two_units["fields"][3]["type"][1]["fields"][0]["type"].append("int")
    refused = {
        "heartbeat.timestamp": "timestamp-nanos",
        "data_change.commit_timestamp": "local-timestamp-micros",
        "data_change.entries": "map",
        "data_change.entries.value": "decimal",
        "data_change.entries.cell_timestamp": MILLIS,
        "data_change.row_key": "com.example.money",
    }
    schemas = [
        *times.values(),
        *(everywhere, union, two_units),
        logical_types.with_logical_type("stream_partition", "uuid", "type"),
        logical_types.with_logical_type("release.commit_timestamp", MILLIS, "field"),
        *(logical_types.with_logical_type(path, type_, "type") for path, type_ in refused.items()),
    ]
    texts: dict[int, str | None] = {id_: json.dumps(one) for id_, one in enumerate(schemas)}
    cases = []
    for (id_, schema), record in itertools.product(
        enumerate(schemas), (*RECORDS_OF_EACH_BRANCH.values(), STAGED)
    ):
        datum = to_datum(record, 4)
        fitting = datum
        for path in TIMES:
            branch, field = path.split(".")
            if datum[branch] is not None:
                fitting = logical_types.in_milliseconds(fitting, path)
                for number in (0, -1, 2**63 - 1, -(2**63), (2**63 - 1) // 1000 + 1):
                    one = datum | {branch: datum[branch] | {field: number}}
                    value = frame(logical_types.written(one, schema), id_)
                    cases.append(case(f"{number} in {id_}", record, value))
        for one in (datum, fitting):
            value = frame(logical_types.written(one, schema), id_)
            cases += [case(f"schema {id_}", record, value), case("cut", record, value[:-1])]
            cases.append(Case("early", kafka_key(record), value, 1_714_475_000_000))
    said = assert_agreement(spark, cases, schemas=Schemas(texts))
    future = {Reason.COMMIT_TIMESTAMP_IN_FUTURE, Reason.WATERMARK_IN_FUTURE}
    assert said >= {"GOOD", Reason.UNDECODABLE, Rule.LOGICAL_TYPE, Rule.COMMIT_TIMESTAMP} | future


def test_schemas_that_differ_by_what_avro_allows_are_resolved_alike(
    spark: SparkSession, seed: int
) -> None:
    """REC-12: generated writer schemas, each with records that it wrote."""
    texts: dict[int, str | None] = {}
    cases = []
    for id_, ((schema, added, swapped), record) in enumerate(
        drawn(st.tuples(writers(), RECORDS), 25, seed)
    ):
        datum = to_datum(record, 4)
        for container, name in [slot for slot in slots(datum, str, bytes) if slot[1] in swapped]:
            blocked_rows = container[name]
            container[name] = (
                blocked_rows.encode() if isinstance(blocked_rows, str) else blocked_rows.hex()
            )
        texts[id_] = json.dumps(schema)
        body = raw(_filled(datum, added), fastavro.parse_schema(copy.deepcopy(schema)))
        cases.append(case("resolved", record, frame(body, id_)))
    assert "GOOD" in assert_agreement(spark, cases, schemas=Schemas(texts))


@pytest.mark.long
def test_an_id_that_the_registry_was_not_asked_about_stops_the_query(spark: SparkSession) -> None:
    """REC-11, DLQ-4: an id that it said it has not does not; nor does one in a record that is too
    large to be looked at. By default, `test_ingest_steps.py` in `make test-systems` shows it.
    """
    limits = Limits(max_record_bytes=1000)
    cases = [
        case("absent", CHANGE, frame(b"body", 8)),
        case("short", CHANGE, b"\x00\x00\x00\x01"),
        case("large", CHANGE, frame(bytes(1000), 9)),
    ]
    for texts in ({8: None}, {7: SCHEMA, 8: None, 2**32 - 1: "not a schema"}):
        assert_agreement(spark, cases, schemas=Schemas(texts), ask_registry=True, limits=limits)
    for id_ in (0, 9, 2**31, 2**32 - 2):
        unseen = rows(spark, [*cases, case("unseen", CHANGE, frame(b"", id_))])
        assert {row["id"] for row in schema_ids(unseen).collect()} == {8, 9, id_}
        rules = RecordRules(limits, kafka_partitions=4)
        query = validated(unseen, Schemas({8: None}), rules, ask_registry=True)
        with pytest.raises(PySparkException, match=UNSEEN_SCHEMA):
            query.write.format("noop").mode("overwrite").save()
