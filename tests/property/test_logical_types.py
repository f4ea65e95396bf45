"""A logical type in a writer schema is converted exactly, or its records are dead letters
(REC-26).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from typing import Any

import fastavro
import pytest
from fastavro._schema_common import PRIMITIVES
from hypothesis import given
from hypothesis import strategies as st

from connector.records.codec import (
    SCHEMA,
    ChangeRecord,
    Schemas,
    decode,
    encode,
    frame,
    framed,
    plan_of,
    read,
    schema_fingerprint,
)
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    ColumnType,
    Heartbeat,
    ModType,
    OffsetRange,
    OldCell,
    Record,
    Release,
    RowImage,
    Rule,
    Transaction,
    Truncate,
    WriteStreamOffset,
)
from connector.records.rejection import Reason, Rejection
from tests.changes import change, put
from tests.fastavro_encoder import to_datum
from tests.property.strategies import RECORDS
from tests.property.test_codec_roundtrip import without_logical_types

AT = 1_714_475_984_123_000
"""A time in microseconds, which is a whole number of milliseconds."""

RECORDS_OF_EACH_BRANCH: dict[str, Record] = {
    "data_change": replace(
        change(put("v", cell_timestamp=AT), at=AT, estimated_low_watermark=AT),
        transaction=Transaction("tx", transaction_tag="tag"),
        change_sequence_number="A/1",
        row_image=RowImage(
            ModType.UPDATE, "NEW", (ColumnType("a", "INT64"),), (OldCell("f", b"q", b"v", AT),)
        ),
        write_stream=WriteStreamOffset("job/a", 7),
    ),
    "heartbeat": Heartbeat("p", AT),
    "child_partitions": ChildPartitions("p", AT, 1, (ChildPartition("c", ("p",), b"a", b"b"),)),
    "release": Release("p", AT, (OffsetRange("job/a", 0, 8),)),
    "truncate": Truncate("p", "t", AT, 1, Transaction("tx"), "A/1"),
}
TIMES = {
    "data_change.commit_timestamp",
    "data_change.estimated_low_watermark",
    "heartbeat.timestamp",
    "child_partitions.start_timestamp",
    "release.commit_timestamp",
    "truncate.commit_timestamp",
}
CELL_TIMES = {
    f"data_change.{name}"
    for name in (
        "entries.cell_timestamp",
        "entries.range_start",
        "entries.range_end",
        "row_image.old_cells.cell_timestamp",
    )
}
LOGICAL_TYPES = (
    *(
        f"{kind}-{unit}"
        for kind in ("timestamp", "local-timestamp")
        for unit in ("millis", "micros", "nanos")
    ),
    *("date", "time-millis", "time-micros", "decimal", "big-decimal", "uuid", "duration"),
    *("com.example.money", "timestamp-seconds", "Timestamp-Millis"),
)
WHERE = ("type", "field", "union")


def fields_of(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every field of a schema by its path, with the type that has its values: no union."""
    if isinstance(schema, list):
        schema = next(branch for branch in schema if branch != "null")
    if isinstance(schema, str) and schema not in PRIMITIVES:
        return  # the name of a type, which has its logical types where it is defined
    if path:
        yield ".".join(path), schema
    if isinstance(schema, dict) and schema["type"] == "array":
        schema = schema["items"]
    if isinstance(schema, dict) and schema["type"] == "record":
        for field in schema["fields"]:
            yield from fields_of(field["type"], (*path, field["name"]))


PLAIN = without_logical_types(json.loads(SCHEMA))
FIELDS = dict(fields_of(PLAIN))


def with_logical_type(path: str, logical_type: object, where: str) -> dict[str, Any]:
    """Our schema with a logical type for one field, in one of the places where writers put it."""
    schema = json.loads(SCHEMA)
    node: Any = schema
    for name in path.split("."):
        if isinstance(node, list):
            (node,) = [branch for branch in node if branch != "null"]
        node = node["items"] if node["type"] == "array" else node
        (field,) = [one for one in node["fields"] if one["name"] == name]
        node = field["type"]
    said = {"logicalType": logical_type} | {"precision": 20, "scale": 2}
    plain = without_logical_types(field["type"])
    if isinstance(plain, list):
        node = next(one for one in plain if one != "null")
        typed = node | said if isinstance(node, dict) else {"type": node} | said
        field["type"] = [one if one == "null" else typed for one in plain]
        if where == "field":
            field |= {"type": plain} | said
        return schema
    typed = plain | said if isinstance(plain, dict) else {"type": plain} | said
    match where:
        case "type":
            field["type"] = typed
        case "field":
            field |= {"type": plain} | said
        case "union":
            field["type"] = [typed]
    return schema


def written(datum: Any, schema: Any) -> bytes:
    """The Avro body of a datum. Numbers are written as they are."""
    body = BytesIO()
    parsed = fastavro.parse_schema(copy.deepcopy(without_logical_types(schema)))
    fastavro.schemaless_writer(body, parsed, datum)
    return body.getvalue()


def in_milliseconds(datum: Any, path: str) -> Any:
    """The datum with the time at a path in milliseconds."""
    branch, field = path.split(".")
    return datum | {branch: datum[branch] | {field: datum[branch][field] // 1_000}}


def is_converted(path: str, logical_type: str) -> bool:
    """The logical types that say nothing else than the field means, or can be converted."""
    if path in TIMES:
        return logical_type in ("timestamp-micros", "timestamp-millis")
    if path in CELL_TIMES:
        return logical_type == "timestamp-micros"
    return FIELDS[path] == "string" and logical_type == "uuid"


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("path", FIELDS)
def test_a_logical_type_is_converted_exactly_or_makes_a_dead_letter(path: str, where: str) -> None:
    """REC-26: every field of the schema with every logical type, at the type, in a union, and
    beside the type of the field, where Avro ignores it.
    """
    record = RECORDS_OF_EACH_BRANCH.get(path.split(".")[0], Heartbeat("p", AT))
    some = LOGICAL_TYPES if where == "type" else ("timestamp-millis", "timestamp-nanos", "uuid")
    for logical_type in some:
        schema = with_logical_type(path, logical_type, where)
        datum = to_datum(record, 4)
        if path in TIMES and logical_type == "timestamp-millis":
            datum = in_milliseconds(datum, path)
        body = written(datum, schema)
        found = decode(frame(body, 7), Schemas({7: json.dumps(schema)}))
        if is_converted(path, logical_type):
            assert found == ChangeRecord(record, 4), logical_type
        else:
            assert isinstance(found, Rejection), logical_type
            assert (found.reason, found.rule) == (Reason.INVALID, Rule.LOGICAL_TYPE), found
            assert f"{logical_type} for {path}" in found.detail


@pytest.mark.parametrize("path", sorted(TIMES))
@pytest.mark.parametrize("number", [0, 1, -1, 2**63 - 1, -(2**63), (2**63 - 1) // 1000 + 1])
def test_a_number_that_cannot_be_multiplied_keeps_its_verdict(path: str, number: int) -> None:
    """REC-26, REC-14: the greatest long is far ahead in every unit."""
    branch, field = path.split(".")
    datum = to_datum(RECORDS_OF_EACH_BRANCH[branch], 4)
    datum[branch][field] = number
    schema = with_logical_type(path, "timestamp-millis", "type")
    found = read(frame(written(datum, schema), 7), Schemas({7: json.dumps(schema)}))
    assert not isinstance(found, Rejection)
    exact = number * 1000
    assert (
        found[branch][field] == exact
        or abs(exact) > 2**63 > found[branch][field] > 2**62
        or (exact < -(2**63) <= found[branch][field] < -(2**62))
    )


def test_branches_of_a_union_with_different_units_are_refused() -> None:
    """REC-26: Avro for Java does not say which branch it has read."""
    schema = with_logical_type("heartbeat.timestamp", "timestamp-millis", "union")
    for branch in ("int", {"type": "int", "logicalType": "date"}):
        union = copy.deepcopy(schema)
        fields = union["fields"][3]["type"][1]["fields"]
        fields[0]["type"].append(branch)
        body = written(to_datum(Heartbeat("p", AT), 4), union)
        found = decode(frame(body, 7), Schemas({7: json.dumps(union)}))
        assert isinstance(found, Rejection)
        assert found.rule == Rule.LOGICAL_TYPE
        assert "timestamp-millis for heartbeat.timestamp" in found.detail


def test_a_branch_that_cannot_be_read_does_not_hide_the_units_of_others() -> None:
    """REC-12, REC-26: a record that does not use it is read."""
    schema = with_logical_type("heartbeat.timestamp", "timestamp-millis", "type")
    change_fields = schema["fields"][2]["type"][1]["fields"]
    change_fields[0]["type"] = "long"  # the table
    body = written(in_milliseconds(to_datum(Heartbeat("p", AT), 4), "heartbeat.timestamp"), schema)
    found = decode(frame(body, 7), Schemas({7: json.dumps(schema)}))
    assert found == ChangeRecord(Heartbeat("p", AT), 4)
    plan = plan_of(json.dumps(schema))
    assert not isinstance(plan, str)
    assert (plan.factors, plan.inconvertible) == ({"heartbeat.timestamp": 1_000}, {})


def test_a_field_that_is_not_read_may_have_any_logical_type() -> None:
    """REC-12, REC-26."""
    schema = json.loads(SCHEMA)
    extra = {"type": "long", "logicalType": "timestamp-nanos"}
    schema["fields"].append({"name": "extra", "type": extra})
    body = written(to_datum(Heartbeat("p", AT), 4) | {"extra": 1}, schema)
    found = decode(frame(body, 7), Schemas({7: json.dumps(schema)}))
    assert found == ChangeRecord(Heartbeat("p", AT), 4)


@given(RECORDS, st.sampled_from(sorted(TIMES)))
def test_a_fingerprint_does_not_know_logical_types(record: Record, path: str) -> None:
    """REC-11, REC-26: without a registry, times are microseconds. The schema of another unit has
    the fingerprint of ours.
    """
    ours = json.loads(SCHEMA)
    assert path in dict(fields_of(ours))
    millis = json.dumps(ours).replace("timestamp-micros", "timestamp-millis")
    assert schema_fingerprint(millis) == schema_fingerprint(SCHEMA)
    assert decode(framed(record, 4), Schemas()) == ChangeRecord(record, 4)
    assert encode(record, 4) == framed(record, 4)[10:]
