from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from connector.records import avro_plan
from connector.records.avro_plan import Plan, UnreadableSchemaError
from connector.records.codec import (
    SCHEMA,
    SHIPPED,
    ChangeRecord,
    Schemas,
    body_of,
    confluent_id,
    decode,
    encode,
    frame,
    names_other_schema,
    plan_of,
    schema_fingerprint,
    schema_id,
)
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteFamily,
    Heartbeat,
    ModType,
    OldCell,
    RowImage,
    SetCell,
)
from connector.records.rejection import Reason, Rejection
from connector.sources.schemas import avro_type
from tests.changes import NEWER_SCHEMA

HEARTBEAT = Heartbeat("p", 7)
CHANGE = DataChange(
    stream_partition="p",
    table="t",
    row_key=b"k",
    commit_timestamp=7,
    entries=(DeleteFamily("f"), SetCell("f", b"q", b"v")),
)
BODY = encode(HEARTBEAT, 4)
SINGLE = frame(BODY, None)


def rejected(value: bytes | None, schemas: Schemas | None = None) -> Rejection:
    verdict = decode(value, schemas or Schemas())
    assert isinstance(verdict, Rejection)
    return verdict


def test_a_registry_id_makes_the_confluent_framing() -> None:
    """REC-11."""
    assert frame(b"body", 258) == b"\x00\x00\x00\x01\x02body"
    assert decode(frame(BODY, 258), Schemas({258: SCHEMA})) == ChangeRecord(HEARTBEAT, 4)


def test_without_a_registry_it_is_the_single_object_framing() -> None:
    """REC-11."""
    assert frame(b"body", None) == b"\xc3\x01" + schema_fingerprint(SCHEMA) + b"body"
    assert decode(SINGLE, Schemas()) == ChangeRecord(HEARTBEAT, 4)


@pytest.mark.parametrize("value", [None, b"", BODY, b"{}", b"\xc3", b"\xc3\x02" + BODY, b"Obj\x01"])
def test_every_other_beginning_is_an_unknown_framing(value: bytes | None) -> None:
    """REC-11, REC-16."""
    assert rejected(value).reason is Reason.UNKNOWN_FRAMING


def test_a_bare_body_that_begins_with_a_zero_counts_as_a_schema_id() -> None:
    """REC-11: why a bare body is never written."""
    assert rejected(b"\x00\x00\x00\x01\x2cbody").reason is Reason.UNKNOWN_SCHEMA


@pytest.mark.parametrize(
    "value",
    [SINGLE[:length] for length in range(2, 10)]
    + [b"\x00\x00\x00\x00\x07"[:length] for length in range(1, 5)],
)
def test_a_framing_that_ends_too_early_is_undecodable(value: bytes) -> None:
    """REC-13."""
    assert rejected(value, Schemas({7: SCHEMA})).reason is Reason.UNDECODABLE


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        (b"\xc3\x01ABCDEFGH" + BODY, "no released schema has the fingerprint 4142434445464748"),
        (
            frame(BODY, 7),
            "no schema with the id 7 is known: the registry has none, or no registry is configured",
        ),
        (
            frame(BODY, 8),
            "no schema with the id 8 is known: the registry has none, or no registry is configured",
        ),
        (frame(BODY, 9), "the schema 9 is not an Avro schema"),
        (frame(BODY, 10), "the schema 10 has Other where lowmark.ChangeRecord is needed"),
        (frame(BODY, 11), "the schema 11 does not have the field stream_partition"),
        (frame(BODY, 12), "the schema 12 is not an Avro schema"),
        (frame(BODY, 13), "the schema 13 has string where"),
        (frame(BODY, 14), "the schema 14 is not an Avro schema"),
        (frame(BODY, 15), "the schema 15 is not an Avro schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_unknown(value: bytes, detail: str) -> None:
    """REC-11, REC-12."""
    texts = {
        8: None,
        9: "no json",
        12: '{"type": "record"}',
        13: '"string"',
        14: "[" * 100_000,
        15: '{"type": "record", "name": ["."]}',
    }
    texts |= {
        10: '{"type": "record", "name": "Other", "fields": []}',
        11: '{"type": "record", "name": "ChangeRecord", "fields": []}',
    }
    verdict = rejected(value, Schemas(texts))
    assert verdict.reason is Reason.UNKNOWN_SCHEMA
    assert detail in verdict.detail


def field(type_: Any, **others: Any) -> dict[str, Any]:
    return {"name": "colour", "type": type_} | others


NODE = {"type": "record", "name": "Node", "fields": [{"name": "n", "type": "int"}]}
DIGITS = {"type": "bytes", "logicalType": "decimal"}
SERVED: dict[str, list[dict[str, Any]]] = {
    "a default of another type": [field("int", default="none")],
    "the default of the second branch": [field(["null", "string"], default="none")],
    "an enum with a default that is no symbol": [
        field({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"})
    ],
    "a decimal of precision 0": [field(DIGITS | {"precision": 0})],
    "a decimal with text as precision": [field(DIGITS | {"precision": "4"})],
    "a decimal with a scale above its precision": [field(DIGITS | {"precision": 4, "scale": 5})],
    "a decimal too large for its bytes": [
        field(DIGITS | {"type": "fixed", "name": "F", "size": 1, "precision": 50})
    ],
    "a logical type that is none": [field({"type": "int", "logicalType": 5})],
    "an unknown logical type": [field({"type": "int", "logicalType": "colour"})],
    "an alias that is text": [field("int", aliases="hue")],
    "an alias of null": [field("int", aliases=None)],
    "a type in a type": [field({"type": {"type": "int"}})],
    "a type before its definition": [field("Node"), field(NODE) | {"name": "other"}],
    "a type twice, in the same way": [field(NODE), field(NODE) | {"name": "other"}],
    "a type without namespace": [
        field(NODE | {"namespace": ""}),
        field("Node") | {"name": "other"},
    ],
    "a field with the name of a type": [field("int") | {"name": "string"}],
    "a symbol with the name of a type": [
        field({"type": "enum", "name": "E", "symbols": ["int", "B"]})
    ],
    "an error": [field(NODE | {"type": "error"})],
}


@pytest.mark.parametrize("name", SERVED)
def test_a_schema_is_accepted_with_attributes_that_do_not_change_decoding(name: str) -> None:
    """REC-12, EVO-10: a registry serves such schemas, and other clients read with them."""
    schema = json.loads(SCHEMA)
    schema["fields"] += SERVED[name]
    text = json.dumps(schema)
    result = rejected(frame(BODY, 7), Schemas({7: text}))
    assert result.reason is Reason.UNDECODABLE, result  # only the bytes of the fields are missing
    unknown = {f"ChangeRecord.{one['name']}" for one in SERVED[name]}
    assert set(unknown_fields(text)) == unknown
    assert names_other_schema(frame(BODY, 7), Schemas({7: text}))
    fastavro.parse_schema(avro_plan.parse_schema(schema))  # Spark's parser is strict, too


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([field("Nowhere")], "uses the type lowmark.Nowhere without its definition"),
        (
            [field(NODE), field(NODE | {"type": "error"})],
            "has two types with the name lowmark.Node",
        ),
        ([field({"type": "enum", "name": "E", "symbols": ["A", "A"]})], "has a symbol twice"),
        ([field({"type": "enum", "name": "E", "symbols": ["A-B"]})], "has the name 'A-B'"),
        ([field({"type": "record", "name": "R"})], "is not an Avro schema"),
        ([field({"type": "array"})], "is not an Avro schema"),
        ([field(None)], "is not an Avro schema: null is no type"),
    ],
)
def test_a_schema_that_no_client_can_read_with_says_why(
    fields: list[dict[str, Any]], why: str
) -> None:
    """REC-12."""
    schema = json.loads(SCHEMA)
    schema["fields"] += fields
    result = rejected(frame(BODY, 7), Schemas({7: json.dumps(schema)}))
    assert result.reason is Reason.UNKNOWN_SCHEMA
    assert why in result.detail


OTHER_KINDS = {
    '{"schemaType": "PROTOBUF"}': "PROTOBUF",
    'syntax = "proto3";\nmessage A { int32 b = 1; }': "PROTOBUF",
    "  // A comment.\nmessage A {}": "PROTOBUF",
    '{"schemaType": "JSON"}': "JSON",
    '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}': "JSON",
    '{"type": "object", "properties": {"a": {"type": "integer"}}}': "JSON",
}


@pytest.mark.parametrize("schema", OTHER_KINDS)
def test_a_schema_of_another_kind_is_named_by_its_kind(schema: str) -> None:
    """REC-11: registries have schemas of Protobuf and JSON, too, and some do not say so. Ingest and
    the bridge say the same, with what helps.
    """
    detail = (
        f"is of the kind {OTHER_KINDS[schema]}, and is not an Avro schema: let the program that"
        " writes the records write Avro"
    )
    result = rejected(frame(BODY, 7), Schemas({7: schema}))
    assert result == Rejection(Reason.UNKNOWN_SCHEMA, f"the schema 7 {detail}")
    with pytest.raises(UnreadableSchemaError) as refused:
        avro_type(schema)
    assert str(refused.value) == detail


def test_an_avro_schema_may_name_its_own_schema() -> None:
    """REC-12: an attribute that Avro does not know."""
    schema = json.dumps(json.loads(SCHEMA) | {"$schema": "http://acme/avro"})
    assert isinstance(plan_of(schema), Plan)


def test_damage_says_byte_and_field() -> None:
    """REC-13, DLQ-9."""
    value = frame(encode(CHANGE, 4), None)
    assert value.count(b"\x02q") == 1
    place = value.index(b"\x02q")
    assert rejected(value[:place] + b"\x03q" + value[place + 2 :]) == Rejection(
        Reason.UNDECODABLE,
        f"at byte {place} of {len(value)}, in data_change.entries[1].qualifier: a negative"
        " length, -2",
    )


def newer(change: Any) -> str:
    schema = json.loads(SCHEMA)
    change(schema)
    return json.dumps(schema)


def entry_kind(schema: Any) -> Any:
    data_change = schema["fields"][2]["type"][1]
    entries = next(field for field in data_change["fields"] if field["name"] == "entries")
    return entries["type"]["items"]["fields"][0]["type"]


@pytest.mark.parametrize("count", range(1, 11))
def test_a_number_without_an_end_at_the_end_of_a_record_is_undecodable(count: int) -> None:
    """REC-13: in a schema whose last field is a number."""
    schema = json.loads(SCHEMA)
    schema["fields"].append({"name": "extra", "type": "long"})
    verdict = decode(frame(BODY + b"\xff" * count, 9), Schemas({9: json.dumps(schema)}))
    assert isinstance(verdict, Rejection)
    assert verdict.reason is Reason.UNDECODABLE


def test_an_entry_of_a_newer_kind_is_an_unknown_entry() -> None:
    """REC-12, REC-16: the enum's default."""
    schema = newer(lambda result: entry_kind(result)["symbols"].append("TRUNCATE_ROW"))
    body = encode(CHANGE, 4).replace(b"\x06\x02f", b"\x08\x02f")
    assert rejected(frame(body, 7), Schemas({7: schema})).reason is Reason.UNKNOWN_ENTRY
    assert rejected(frame(body, None)).reason is Reason.UNDECODABLE


def test_a_branch_of_a_newer_schema_is_undecodable_and_the_others_stay_readable() -> None:
    """REC-12."""
    new = {"type": "record", "name": "SchemaChange", "fields": [{"name": "text", "type": "string"}]}
    schema = newer(lambda result: result["fields"][4]["type"].append(new))
    assert decode(frame(BODY, 7), Schemas({7: schema})) == ChangeRecord(HEARTBEAT, 4)
    unknown = rejected(frame(b"\x02p\x08\x00\x00\x04\x02a", 7), Schemas({7: schema}))
    assert unknown.reason is Reason.UNDECODABLE
    assert "lowmark.SchemaChange" in unknown.detail


def test_the_schema_id_of_a_value_is_known_before_it_is_decoded() -> None:
    """DLQ-4: asked before decoding, so that an unreachable registry makes no letters."""
    assert [
        confluent_id(value) for value in (None, b"", b"\x00\x01", SINGLE, frame(BODY, 2**32 - 1))
    ] == [
        None,
        None,
        None,
        None,
        2**32 - 1,
    ]


def test_the_schema_id_is_text_for_a_letter() -> None:
    """DLQ-1."""
    ours = next(iter(SHIPPED)).hex()
    for value, named in (
        *((None, None), (b"", None), (BODY, None)),
        *((SINGLE, ours), (frame(b"", None), ours), (frame(b"", None)[:-1], None)),
        *((frame(BODY, 12), "12"), (frame(b"", 12), "12"), (frame(b"", 12)[:-1], None)),
    ):
        assert schema_id(value) == named


def test_a_body_begins_after_a_complete_framing() -> None:
    """DLQ-12: a repair keeps every byte of a value with an incomplete framing."""
    for schema in (None, 12):
        assert body_of(frame(BODY, schema)) == BODY
        assert body_of(frame(b"", schema)) == b""
        begun = frame(b"", schema)[:-1]
        assert body_of(begun) == begun


def test_schemas_are_found_beside_the_package_or_inside_it() -> None:
    assert SCHEMA in SHIPPED.values()
    assert all(schema_fingerprint(text) == fingerprint for fingerprint, text in SHIPPED.items())


def test_the_number_of_kafka_partitions_travels_with_the_record() -> None:
    """REC-24."""
    assert decode(frame(encode(HEARTBEAT, 2**31 - 1), None), Schemas()) == ChangeRecord(
        HEARTBEAT, 2**31 - 1
    )
    with pytest.raises(AssertionError):
        encode(HEARTBEAT, 0)


def test_lengths_that_would_exhaust_the_memory_are_refused_at_once() -> None:
    """REC-13: a corrupt length must not be believed."""
    gigabytes = b"\xc3\x01" + next(iter(SHIPPED)) + b"\xfe\xff\xff\xff\xff\x7f"
    assert "above the limit" in rejected(gigabytes).detail


def test_entries_keep_their_order_also_where_they_repeat_or_contradict_each_other() -> None:
    """REC-6: an upsert of a whole row is a deletion of each family, then its cells."""
    entries = (
        SetCell("f", b"q", b"1"),
        DeleteFamily("f"),
        SetCell("f", b"q", b"2"),
        DeleteFamily("g"),
        SetCell("f", b"q", b"2"),
    )
    upsert = DataChange(
        stream_partition="p", table="t", row_key=b"k", commit_timestamp=7, entries=entries
    )
    decoded = decode(frame(encode(upsert, 1), None), Schemas())
    assert decoded == ChangeRecord(upsert, 1)


def test_old_values_are_encoded_apart_from_the_entries() -> None:
    """REC-8."""
    image = RowImage(ModType.UPDATE, "OLD_AND_NEW", (), (OldCell("f", b"q", b"old", 3),))
    change = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=7,
        entries=(SetCell("f", b"q", b"new"),),
        row_image=image,
    )
    decoded = decode(frame(encode(change, 1), None), Schemas())
    assert isinstance(decoded, ChangeRecord)
    assert isinstance(decoded.record, DataChange)
    assert (decoded.record.row_image, decoded.record.entries) == (
        image,
        (SetCell("f", b"q", b"new", 7),),
    )


def test_a_list_with_an_impossible_second_block_is_undecodable() -> None:
    """REC-13, DLQ-9: a second block of -2^63 items."""
    value = frame(encode(ChildPartitions("p", 7, 0, (ChildPartition("c"),)), 4), None)
    assert value.endswith(b"\x00\x00\x00")  # the end of the children, and no other branch
    rejection = rejected(value[:-3] + b"\xff" * 9 + b"\x01\x00\x00\x00")
    assert rejection.reason is Reason.UNDECODABLE
    assert f"at byte {len(value) - 3} of {len(value) + 10}" in rejection.detail
    assert f"{2**63 + 1} items, above the limit" in rejection.detail


def test_a_negative_length_in_a_field_that_this_release_lacks_is_passed_over() -> None:
    """REC-12, REC-13: as Avro for Java has it; the fields around it are read."""
    schema = json.loads(SCHEMA)
    schema["fields"].insert(0, {"name": "newer", "type": "bytes"})
    newer = Schemas({7: json.dumps(schema)})
    assert decode(frame(b"\x01" + BODY, 7), newer) == ChangeRecord(HEARTBEAT, 4)
    assert decode(frame(b"\xff" * 9 + b"\x01" + BODY, 7), newer) == ChangeRecord(HEARTBEAT, 4)
    assert rejected(frame(b"\x01" + BODY[:-1], 7), newer).reason is Reason.UNDECODABLE


def unknown_fields(schema: str) -> tuple[str, ...]:
    plan = plan_of(schema)
    assert not isinstance(plan, str), plan
    return plan.unknown_fields


def test_unknown_fields_are_named_by_their_record() -> None:
    """EVO-10: fields within an unknown field are not named, nor those of a schema that cannot be
    read.
    """
    schema = json.loads(NEWER_SCHEMA)
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "int"}]}
    schema["fields"].append({"name": "inner", "type": inner, "default": {"a": 1}})
    assert unknown_fields(json.dumps(schema)) == (
        "ChangeRecord.inner",
        "ChangeRecord.note",
        "DataChange.colour",
    )
    assert unknown_fields(SCHEMA) == ()
    assert isinstance(plan_of('"string"'), str)
    assert isinstance(plan_of("no schema"), str)
