"""Records of other writer schemas: what Avro lets differ is read, and as fastavro would read it."""

from __future__ import annotations

import copy
import json
from io import BytesIO
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from connector.codec import READER_SCHEMA, Schemas, encode, frame, read, schema_fingerprint, to_datum
from connector.deadletter import Rejection
from connector.model import Record
from tests.property.strategies import RECORDS
from tests.property.test_codec_roundtrip import PLAIN_SCHEMA, without_logical_types

EXTRA_TYPES: list[tuple[Any, Any]] = [
    ("int", 5),
    ("double", 0.5),
    ("string", "é"),
    ({"type": "fixed", "name": "Digest", "size": 3}, b"abc"),
    ({"type": "map", "values": ["null", "long"]}, {"a": None, "b": 7}),
    ({"type": "array", "items": {"type": "record", "name": "Extra", "fields": [{"name": "x", "type": "float"}]}}, [{"x": 1.5}]),
    (["null", {"type": "enum", "name": "Colour", "symbols": ["RED"]}], "RED"),
]
SWAPPED = {"string": "bytes", "bytes": "string"}


def _records(schema: Any) -> list[dict[str, Any]]:
    """Every record type of a schema, outermost first."""
    if isinstance(schema, list):
        return [found for branch in schema for found in _records(branch)]
    if not isinstance(schema, dict):
        return []
    inner = [field["type"] for field in schema.get("fields", ())] + [schema[part] for part in ("type", "items") if part in schema]
    return ([schema] if schema["type"] == "record" else []) + [found for part in inner for found in _records(part)]


Writer = tuple[dict[str, Any], dict[str, Any], set[str]]
"""A schema, the values of the fields that it adds, by name, and the fields that have bytes for text or text for bytes."""


@st.composite
def writers(draw: st.DrawFn) -> Writer:
    """A schema that differs from ours by what Avro allows."""
    swapped = draw(st.sets(st.sampled_from(["resume_token", "source_cluster_id"])))
    schema = copy.deepcopy(without_logical_types(json.loads(READER_SCHEMA)))
    ours = _records(schema)
    added = {}
    for index, (extra_type, value) in enumerate(draw(st.lists(st.sampled_from(EXTRA_TYPES), max_size=3, unique_by=str))):
        fields = draw(st.sampled_from(ours))["fields"]
        fields.insert(draw(st.integers(0, len(fields))), {"name": f"extra{index}", "type": copy.deepcopy(extra_type)})
        added[f"extra{index}"] = value
    for record in ours:
        fields = record["fields"]
        droppable = [field for field in fields if "default" in field and field["name"] not in ("data_change", "heartbeat")]
        dropped = draw(st.sampled_from([None, *droppable])) if record["name"] in ("DataChange", "Transaction", "Heartbeat") else None
        record["fields"] = fields if dropped is None else [field for field in fields if field is not dropped]
        for field in record["fields"]:
            if field["name"] in swapped:
                field["type"] = SWAPPED[field["type"]]
    return schema, added, swapped


def _filled(datum: Any, added: dict[str, Any]) -> Any:
    if isinstance(datum, dict):
        return {name: _filled(value, added) for name, value in datum.items()} | added
    return [_filled(item, added) for item in datum] if isinstance(datum, list) else datum


def _branch(datum: dict[str, Any]) -> dict[str, Any]:
    branch: dict[str, Any] = datum["data_change"] or datum["heartbeat"] or datum["child_partitions"]
    return branch


def _as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@given(RECORDS, writers())
def test_a_record_of_another_schema_is_read_as_fastavro_reads_it(record: Record, writer: Writer) -> None:
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
    for place in (_branch(expected), *_branch(expected).get("entries", ())):  # fastavro gives a default of bytes as text
        place |= {name: _as_bytes(place[name]) for name in ("resume_token", "qualifier", "value") if name in place}
    assert read(frame(body.getvalue(), 7), Schemas({7: json.dumps(schema)})) == expected


@given(RECORDS)
def test_our_own_schema_under_a_registry_id_is_read_the_same(record: Record) -> None:
    """REC-11, REC-12: documentation and layout of the registry's copy do not matter."""
    body = encode(record, 4)
    copied = json.dumps(without_logical_types(json.loads(READER_SCHEMA)))
    assert schema_fingerprint(copied) == schema_fingerprint(READER_SCHEMA)
    same = read(frame(body, 7), Schemas({7: copied}))
    assert not isinstance(same, Rejection)
    assert same == read(frame(body, None), Schemas())
