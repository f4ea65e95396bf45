"""Converts change records to bytes and back: an Avro body behind one of two framings (REC-11).

    C3 01 <8 bytes: CRC-64-AVRO fingerprint, little-endian> <body>   without a registry
    00 <4 bytes: schema id, big-endian> <body>                       Confluent, with a registry

Encoding takes a valid record, whose values have the declared types. Decoding takes any bytes. It
returns a `ChangeRecord`, or a `Rejection` with the reason. It never raises. Its work grows in
proportion to the number of bytes (`connector.records.avro_decoder`).

The schemas are in the folder `schemas/`, one file for each released version. Records are read with
the newest one. Each record is written with the oldest one that has its fields (WRS-16).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import fastavro
from fastavro.schema import (
    fingerprint,
    parse_schema,
    to_parsing_canonical_form,
)

from connector.records import avro_plan
from connector.records.avro_decoder import DamagedError
from connector.records.avro_encoder import encode_body, version_of
from connector.records.avro_plan import Plan, UnreadableSchemaError, compile_plan
from connector.records.checks import to_record
from connector.records.model import (
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Heartbeat,
    Record,
    Release,
    Rule,
    SetCell,
    check_types,
)
from connector.records.rejection import Reason, Rejection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SINGLE_OBJECT: Final = b"\xc3\x01"
CONFLUENT: Final = b"\x00"
SINGLE_OBJECT_BYTES: Final = 10
CONFLUENT_BYTES: Final = 5


def _shipped_schemas() -> list[str]:
    """The text of every released schema, oldest first.

    In a wheel, the folder is inside the package. In a checkout, it is beside the package.
    """
    folder = resources.files("connector") / "schemas"
    if not folder.is_dir():
        folder = resources.files("connector") / ".." / "schemas"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".avsc"))
    assert names, f"no schema in {folder}"
    return [(folder / name).read_text(encoding="utf-8") for name in names]


def schema_fingerprint(schema: str) -> bytes:
    """Return the 8 bytes that identify a schema in the single-object framing."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO"))


_schemas: Final = _shipped_schemas()

READER_SCHEMA: Final = _schemas[-1]
"""JSON text of the newest schema. Every record is resolved to it."""

VERSIONS: Final[Mapping[int, str]] = dict(enumerate(_schemas, start=1))
"""JSON text of every released schema, by its version. `version_of` tells which one a record is
written with.
"""

SHIPPED: Final[Mapping[bytes, str]] = {schema_fingerprint(schema): schema for schema in _schemas}
"""JSON text of every released schema, by its fingerprint in the single-object framing."""

_SINGLE_OBJECT_HEADS: Final = {
    version: SINGLE_OBJECT + schema_fingerprint(schema) for version, schema in VERSIONS.items()
}


def _form(schema: str) -> Any:
    """A schema without logical types, so only the parts that decide how bytes are read."""
    return avro_plan.without_logical_types(avro_plan.parse_schema(json.loads(schema)))


_FORMS: Final = {version: _form(schema) for version, schema in VERSIONS.items()}
_PARSED: Final = parse_schema(json.loads(READER_SCHEMA))
_PARSED_VERSIONS: Final = {
    version: parse_schema(json.loads(schema)) for version, schema in VERSIONS.items()
}


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A record, and the number of Kafka partitions that its producer used when it wrote the record
    (REC-24).
    """

    record: Record
    kafka_partitions: int


class Schemas:
    """The writer schemas that can be read: the shipped ones, and those that were read from a
    registry.

    `by_id` has the text of a schema by its registry id. The value is `None` if the registry has no
    such schema. A missing id counts as unknown. Therefore a reader must ask the registry first
    (`confluent_id`). If the registry cannot be reached, the record must not be read (DLQ-4).
    """

    __slots__ = ("by_id",)

    def __init__(self, by_id: Mapping[int, str | None] | None = None) -> None:
        self.by_id: Mapping[int, str | None] = {} if by_id is None else by_id

    def writer(self, value: bytes | None) -> str | Rejection:
        """Return the text of the writer schema of a framed value, or the `Rejection`."""
        if not value:
            return Rejection(
                Reason.UNKNOWN_FRAMING,
                "there is no value" if value is None else "the value is empty",
            )
        if value.startswith(SINGLE_OBJECT):
            name = value[len(SINGLE_OBJECT) : SINGLE_OBJECT_BYTES]
            if len(name) < SINGLE_OBJECT_BYTES - len(SINGLE_OBJECT):
                return Rejection(
                    Reason.UNDECODABLE,
                    f"the value of {len(value)} bytes ends within the fingerprint of its schema",
                )
            schema = SHIPPED.get(name)
            return schema or Rejection(
                Reason.UNKNOWN_SCHEMA, f"no released schema has the fingerprint {name.hex()}"
            )
        if value.startswith(CONFLUENT):
            number = confluent_id(value)
            if number is None:
                return Rejection(
                    Reason.UNDECODABLE,
                    f"the value of {len(value)} bytes ends within the id of its schema",
                )
            return self.by_id.get(number) or Rejection(
                Reason.UNKNOWN_SCHEMA,
                f"no schema with the id {number} is known: the registry has none, or no registry is"
                " configured",
            )
        return Rejection(
            Reason.UNKNOWN_FRAMING,
            f"the value begins with {value[:2].hex(' ')}, neither with 00 nor with c3 01",
        )


def confluent_id(value: bytes | None) -> int | None:
    """Return the registry id of a value with the Confluent framing, or None."""
    if value is None or not value.startswith(CONFLUENT) or len(value) < CONFLUENT_BYTES:
        return None
    return int.from_bytes(value[1:CONFLUENT_BYTES], "big")


def schema_id(value: bytes | None) -> str | None:
    """Return the id of the writer schema as text: a registry id in decimal, or a fingerprint in
    hex.

    It is `None` if the value has neither.
    """
    if value is not None and value.startswith(SINGLE_OBJECT) and len(value) >= SINGLE_OBJECT_BYTES:
        return value[len(SINGLE_OBJECT) : SINGLE_OBJECT_BYTES].hex()
    number = confluent_id(value)
    return None if number is None else str(number)


def body_version(value: bytes, schemas: Schemas) -> int | None:
    """Return the version of the released schema that the body of a value was written with, or None
    for another schema.

    If no framing tells it, it is the version in which the whole body is a record. A valid record
    has one such version only: after the same fields, a body of version 2 has more of them.
    """
    schema = schemas.writer(value)
    if isinstance(schema, str) and not isinstance(plan_of(schema), str):
        form = _form(schema)
        return next((n for n, known in _FORMS.items() if known == form), None)
    framings = {version: frame(body_of(value), None, version) for version in VERSIONS}
    for is_record in (decode, read):
        for version, framing in framings.items():
            if not isinstance(is_record(framing, schemas), Rejection):
                return version
    return None


def frame(body: bytes, schema_id: int | None, version: int = 1) -> bytes:
    """Put the framing before a body (REC-11). With a registry id it is Confluent's, with None the
    single-object framing. `version` is that of the schema of the body.
    """
    if schema_id is None:
        return _SINGLE_OBJECT_HEADS[version] + body
    return CONFLUENT + schema_id.to_bytes(4, "big") + body


def body_of(value: bytes) -> bytes:
    """Return the body of a value. If there is no framing, this is the whole value.

    No body starts with the bytes of a framing.
    """
    if value.startswith(SINGLE_OBJECT) and len(value) >= SINGLE_OBJECT_BYTES:
        return value[SINGLE_OBJECT_BYTES:]
    return value if confluent_id(value) is None else value[CONFLUENT_BYTES:]


def encode(record: Record, kafka_partitions: int) -> bytes:
    """Return the Avro body of a record, without framing. `version_of` is its schema. Raises
    `InvalidChangeError` if a value does not have the type of its field.
    """
    assert 1 <= kafka_partitions < 2**31, kafka_partitions
    try:
        return encode_body(record, kafka_partitions)
    except (TypeError, AttributeError, KeyError, AssertionError):
        check_types(record)
        raise


def framed(record: Record, kafka_partitions: int, schema_id: int | None = None) -> bytes:
    """Encode a record and put the framing before it. `schema_id` is that of its version."""
    return frame(encode(record, kafka_partitions), schema_id, version_of(record))


def encode_with_fastavro(record: Record, kafka_partitions: int) -> bytes:
    """Encode with fastavro. A test compares the bytes of `encode` with it (REC-20)."""
    body = BytesIO()
    version, datum = version_of(record), to_datum(record, kafka_partitions)
    if version == 1:
        del datum["release"]
        if datum["data_change"] is not None:
            del datum["data_change"]["write_stream"]
    fastavro.schemaless_writer(body, _PARSED_VERSIONS[version], datum, strict=True)
    return body.getvalue()


def decode(
    value: bytes | None, schemas: Schemas, *, kafka_partitions: int | None = None
) -> ChangeRecord | Rejection:
    """Decode a framed value, or return the reason why it cannot be decoded. Never raises.

    The steps are framing, schema, bytes, logical types, and the rules of
    `connector.records.checks`. If the bytes are damaged, `detail` names the byte, counted from the
    start of the value. `kafka_partitions` is the number of Kafka partitions of the topic. With
    None, this limit of REC-14 is not checked.
    """
    found = _read(value, schemas)
    if isinstance(found, Rejection):
        return found
    datum, plan = found
    if plan.inconvertible:
        return _inconvertible(plan, schema_id(value))
    record = to_record(datum, kafka_partitions)
    return (
        record if isinstance(record, Rejection) else ChangeRecord(record, datum["kafka_partitions"])
    )


def read(value: bytes | None, schemas: Schemas) -> dict[str, Any] | Rejection:
    """Decode a framed value to a dict with the Avro field names, in the newest schema. It is not
    validated. A number whose logical type cannot be converted stays as it is.
    """
    found = _read(value, schemas)
    return found if isinstance(found, Rejection) else found[0]


def _read(value: bytes | None, schemas: Schemas) -> tuple[dict[str, Any], Plan] | Rejection:
    schema = schemas.writer(value)
    if isinstance(schema, Rejection):
        return schema
    assert value is not None
    plan = plan_of(schema)
    if isinstance(plan, str):
        return Rejection(Reason.UNKNOWN_SCHEMA, f"the schema {schema_id(value)} {plan}")
    start = CONFLUENT_BYTES if value.startswith(CONFLUENT) else SINGLE_OBJECT_BYTES
    try:
        datum, end = plan.read(value, start)
    except DamagedError as error:
        field = ".".join(reversed(error.path)).replace(".[", "[")
        return Rejection(
            Reason.UNDECODABLE, f"at byte {error.offset} of {len(value)}, in {field}: {error.what}"
        )
    if end < len(value):
        return Rejection(
            Reason.UNDECODABLE,
            f"at byte {end} of {len(value)}: the record ends, but {len(value) - end} bytes follow",
        )
    return datum, plan


LOGICAL_TYPE_RULE: Final = (
    Rule.LOGICAL_TYPE,
    "",
    (
        "the writer schema has only logical types that lowmark converts: a time is"
        " timestamp-micros or timestamp-millis, a cell timestamp and a range may be"
        " timestamp-micros, and text may be uuid"
    ),
)
"""The rule of the schema of a record (REC-26), its field and what must be true, for documents."""


def _inconvertible(plan: Plan, schema: str | None) -> Rejection:
    fields = ", ".join(f"{types} for {path}" for path, types in plan.inconvertible.items())
    return Rejection(
        Reason.INVALID,
        f"the schema {schema} has the logical type {fields}, which cannot be converted",
        Rule.LOGICAL_TYPE.value,
    )


@lru_cache(maxsize=256)
def plan_of(schema: str) -> Plan | str:
    """Return how records of a writer schema are read, or a text that says why it cannot be used."""
    try:
        return compile_plan(avro_plan.parse_schema(json.loads(schema)), _PARSED)
    except UnreadableSchemaError as error:
        return str(error)
    except _SCHEMA_FAULTS as error:
        return f"is not an Avro schema: {error}"


def with_references(schema: str, referenced: Iterable[str]) -> str:
    """Return the text of a schema with the types of the schemas that it refers to. If it cannot be
    used, it is returned unchanged.
    """
    try:
        others = [json.loads(text) for text in referenced]
        return json.dumps(avro_plan.parse_schema(json.loads(schema), others))
    except (UnreadableSchemaError, *_SCHEMA_FAULTS):
        return schema


_SCHEMA_FAULTS: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""The exceptions of parsing a text that is not a schema."""


def to_datum(record: Record, kafka_partitions: int) -> dict[str, Any]:
    """Convert a record to a datum of the newest schema for an Avro library. Times are integers."""
    datum: dict[str, Any] = {
        "stream_partition": record.stream_partition,
        "kafka_partitions": kafka_partitions,
        "data_change": None,
        "heartbeat": None,
        "child_partitions": None,
        "release": None,
    }
    if isinstance(record, DataChange):
        datum["data_change"] = _change_datum(record)
    elif isinstance(record, Release):
        ranges = [_fields(one) for one in record.ranges]
        datum["release"] = {"commit_timestamp": record.commit_timestamp, "ranges": ranges}
    elif isinstance(record, Heartbeat):
        datum["heartbeat"] = {"timestamp": record.timestamp, "resume_token": record.resume_token}
    else:
        datum["child_partitions"] = {
            "start_timestamp": record.start_timestamp,
            "record_sequence": record.record_sequence,
            "children": [
                {
                    "token": child.token,
                    "parent_partition_tokens": list(child.parent_partition_tokens),
                    "start_key": child.start_key,
                    "end_key": child.end_key,
                }
                for child in record.children
            ],
        }
    return datum


def _change_datum(change: DataChange) -> dict[str, Any]:
    image, row = change.row_image, change.write_stream
    return {
        "table": change.table,
        "row_key": change.row_key,
        "change_type": change.change_type.value,
        "source_cluster_id": change.source_cluster_id,
        "commit_timestamp": change.commit_timestamp,
        "tie_breaker": change.tie_breaker,
        "resume_token": change.resume_token,
        "estimated_low_watermark": change.estimated_low_watermark,
        "entries": [_entry_datum(entry) for entry in change.entries],
        "transaction": None if change.transaction is None else _fields(change.transaction),
        "change_sequence_number": change.change_sequence_number,
        "row_image": (
            None
            if image is None
            else {
                "mod_type": image.mod_type.value,
                "value_capture_type": image.value_capture_type,
                "column_types": [_fields(column) for column in image.column_types],
                "old_cells": [_fields(cell) for cell in image.old_cells],
            }
        ),
        "write_stream": None if row is None else _fields(row),
    }


def _entry_datum(entry: Entry) -> dict[str, Any]:
    datum: dict[str, Any] = {"kind": "DELETE_FAMILY", "family": entry.family}
    datum |= {"qualifier": b"", "cell_timestamp": 0, "range_start": 0, "range_end": 0, "value": b""}
    match entry:
        case SetCell():
            datum |= {
                "kind": "SET_CELL",
                "qualifier": entry.qualifier,
                "cell_timestamp": entry.cell_timestamp,
                "value": entry.value,
            }
        case DeleteCells():
            datum |= {
                "kind": "DELETE_CELLS",
                "qualifier": entry.qualifier,
                "range_start": entry.range_start,
                "range_end": entry.range_end,
            }
        case DeleteFamily():
            pass
    return datum


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a flat dataclass. Its attributes have the names of the Avro fields."""
    return {name: getattr(value, name) for name in value.__slots__}
