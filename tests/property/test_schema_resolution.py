"""Records of other writer schemas: what Avro lets differ is read, and as fastavro would read it."""

from __future__ import annotations

import copy
import json
from io import BytesIO
from typing import Any

import fastavro
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
    read,
    schema_fingerprint,
)
from connector.records.model import BRANCHES, Record
from connector.records.rejection import Reason, Rejection
from tests.fastavro_encoder import to_datum
from tests.property.strategies import RECORDS
from tests.property.test_codec_roundtrip import PLAIN_SCHEMA, without_logical_types

EXTRA_TYPES: list[tuple[Any, Any]] = [
    ("int", 5),
    ("double", 0.5),
    ("string", "é"),
    ({"type": "fixed", "name": "Digest", "size": 3}, b"abc"),
    ({"type": "map", "values": ["null", "long"]}, {"a": None, "b": 7}),
    (
        {
            "type": "array",
            "items": {
                "type": "record",
                "name": "Extra",
                "fields": [{"name": "x", "type": "float"}],
            },
        },
        [{"x": 1.5}],
    ),
    (["null", {"type": "enum", "name": "Colour", "symbols": ["RED"]}], "RED"),
]
SWAPPED = {"string": "bytes", "bytes": "string"}


def _records(schema: Any) -> list[dict[str, Any]]:
    """Every record type of a schema, outermost first."""
    if isinstance(schema, list):
        return [found for branch in schema for found in _records(branch)]
    if not isinstance(schema, dict):
        return []
    inner = [field["type"] for field in schema.get("fields", ())] + [
        schema[part] for part in ("type", "items") if part in schema
    ]
    return ([schema] if schema["type"] == "record" else []) + [
        found for part in inner for found in _records(part)
    ]


Writer = tuple[dict[str, Any], dict[str, Any], set[str]]
"""A schema, the values of the fields that it adds, by name, and the fields that have bytes for text
or text for bytes.
"""


@st.composite
def writers(draw: st.DrawFn) -> Writer:
    """A schema that differs from ours by what Avro allows."""
    swapped = draw(st.sets(st.sampled_from(["resume_token", "source_cluster_id"])))
    schema = copy.deepcopy(without_logical_types(json.loads(SCHEMA)))
    ours = _records(schema)
    added = {}
    for index, (extra_type, value) in enumerate(
        draw(st.lists(st.sampled_from(EXTRA_TYPES), max_size=3, unique_by=str))
    ):
        fields = draw(st.sampled_from(ours))["fields"]
        fields.insert(
            draw(st.integers(0, len(fields))),
            {"name": f"extra{index}", "type": copy.deepcopy(extra_type)},
        )
        added[f"extra{index}"] = value
    for record in ours:
        fields = record["fields"]
        droppable = [
            field
            for field in fields
            if "default" in field and field["name"] not in ("data_change", "heartbeat")
        ]
        dropped = (
            draw(st.sampled_from([None, *droppable]))
            if record["name"] in ("DataChange", "Transaction", "Heartbeat")
            else None
        )
        record["fields"] = (
            fields if dropped is None else [field for field in fields if field is not dropped]
        )
        if dropped is not None and dropped["name"] == "transaction":
            # A truncation names the type, which must be defined somewhere.
            (truncate,) = (one for one in ours if one["name"] == "Truncate")
            (named,) = (one for one in truncate["fields"] if one["name"] == "transaction")
            named["type"] = dropped["type"]
        for field in record["fields"]:
            if field["name"] in swapped:
                field["type"] = SWAPPED[field["type"]]
    return schema, added, swapped


def _filled(datum: Any, added: dict[str, Any]) -> Any:
    if isinstance(datum, dict):
        return {name: _filled(value, added) for name, value in datum.items()} | added
    return [_filled(item, added) for item in datum] if isinstance(datum, list) else datum


def _branch(datum: dict[str, Any]) -> dict[str, Any]:
    (branch,) = [datum[name] for name in BRANCHES if datum[name] is not None]
    return branch  # type: ignore[no-any-return]


def _as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@given(RECORDS, writers())
def test_a_record_of_another_schema_is_read_as_fastavro_reads_it(
    record: Record, writer: Writer
) -> None:
    """REC-12."""
    schema, added, swapped = writer
    datum = to_datum(record, 4)
    written = _branch(datum)
    if "resume_token" in written:
        token = written["resume_token"].hex()  # text that also is bytes
        written["resume_token"] = token if "resume_token" in swapped else token.encode()
    if "source_cluster_id" in written and "source_cluster_id" in swapped:
        written["source_cluster_id"] = written["source_cluster_id"].encode()
    parsed = fastavro.parse_schema(copy.deepcopy(schema))
    body = BytesIO()
    fastavro.schemaless_writer(body, parsed, _filled(datum, added))
    expected: Any = fastavro.schemaless_reader(BytesIO(body.getvalue()), parsed, PLAIN_SCHEMA)
    for place in (
        _branch(expected),
        *_branch(expected).get("entries", ()),
    ):  # fastavro gives a default of bytes as text
        place |= {
            name: _as_bytes(place[name])
            for name in ("resume_token", "qualifier", "value")
            if name in place
        }
    assert read(frame(body.getvalue(), 7), Schemas({7: json.dumps(schema)})) == expected


@given(RECORDS)
def test_our_own_schema_under_a_registry_id_is_read_the_same(record: Record) -> None:
    """REC-11, REC-12: documentation and layout of the registry's copy do not matter."""
    copied = json.dumps(without_logical_types(json.loads(SCHEMA)))
    assert schema_fingerprint(copied) == schema_fingerprint(SCHEMA)
    same = read(framed(record, 4, 7), Schemas({7: copied}))
    assert not isinstance(same, Rejection)
    assert same == read(framed(record, 4), Schemas())


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON document, as (container, name or index)."""
    pairs = list(
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    return [(node, name) for name, _ in pairs] + [
        place for _, value in pairs for place in _places(value)
    ]


REPLACEMENTS = st.one_of(
    st.none() | st.booleans() | st.integers(-3, 3),
    st.sampled_from(
        [
            "",
            "null",
            "long",
            "fixed",
            "array",
            "union",
            "record",
            "Entry",
            "lowmark.ChangeRecord",
            "data_change",
        ]
    ),
    st.sampled_from(
        [
            [],
            {},
            ["null"],
            ["null", "null"],
            [["null"]],
            {"type": {"type": {"type": "long"}}},
            {"type": "array"},
        ]
    ),
    st.sampled_from(
        [
            {"type": "fixed", "name": "F", "size": -1},
            {"type": "enum", "name": "E", "symbols": []},
            {"type": "map", "values": "null"},
        ]
    ),
)


@given(RECORDS, st.data())
def test_a_damaged_schema_gives_a_datum_or_a_rejection(record: Record, data: st.DataObject) -> None:
    """REC-12: a registry may hold anything."""
    schema = json.loads(SCHEMA)
    for _ in range(data.draw(st.integers(1, 3))):
        container, name = data.draw(st.sampled_from(_places(schema)))
        if data.draw(st.booleans()):
            container[name] = copy.deepcopy(data.draw(REPLACEMENTS))
        else:
            del container[name]
    found = decode(frame(encode(record, 4), 7), Schemas({7: json.dumps(schema)}))
    assert isinstance(found, (ChangeRecord, Rejection))


def test_schemas_of_any_depth_are_refused_without_a_crash() -> None:
    """REC-12."""
    for depth in (10, 70, 300, 900):
        text = '{"type": "array", "items": ' * depth + '"long"' + "}" * depth
        field = f'{{"name": "x", "type": {text}}}'
        found = read(
            b"\x00\x00\x00\x00\x07",
            Schemas({7: f'{{"type": "record", "name": "ChangeRecord", "fields": [{field}]}}'}),
        )
        assert isinstance(found, Rejection)
        assert found.reason is Reason.UNKNOWN_SCHEMA
