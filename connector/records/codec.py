"""Converts change records to bytes and back: an Avro body behind one of two framings (REC-11).

    C3 01 <8 bytes: CRC-64-AVRO fingerprint, little-endian> <body>   without a registry
    00 <4 bytes: schema id, big-endian> <body>                       Confluent, with a registry

Encoding takes a valid record, whose values have the declared types. Decoding takes any bytes. It
returns a `ChangeRecord`, or a `Rejection` with the reason. It never raises. Its work grows in
proportion to the number of bytes (`connector.records.avro_decoder`).

The schemas are in the folder `schemas/`, one file for each released version. Records are written
with the newest one, and read with any of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from connector.errors import InvalidChangeError
from connector.records import avro_plan
from connector.records.avro_decoder import DamagedError
from connector.records.avro_encoder import encode_body
from connector.records.avro_plan import Plan, UnreadableSchemaError, compile_plan, schema_of_text
from connector.records.body_decoder import decode_body
from connector.records.datum import build
from connector.records.field_types import check_types
from connector.records.model import Record, Rule
from connector.records.rejection import Reason, Rejection
from connector.records.views import unit_hint

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

SCHEMA: Final = _schemas[-1]
"""JSON text of the newest schema. Every record is written with it, and resolved to it."""

SHIPPED: Final[Mapping[bytes, str]] = {schema_fingerprint(schema): schema for schema in _schemas}
"""JSON text of every released schema, by its fingerprint in the single-object framing."""

_SINGLE_OBJECT_HEAD: Final = SINGLE_OBJECT + schema_fingerprint(SCHEMA)
_PARSED: Final = parse_schema(json.loads(SCHEMA))


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A record, and the number of Kafka partitions that its producer used (REC-24)."""

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


def frame(body: bytes, schema_id: int | None) -> bytes:
    """Put the framing before a body (REC-11). With a registry id it is Confluent's, with None the
    single-object framing, with the newest schema.
    """
    if schema_id is None:
        return _SINGLE_OBJECT_HEAD + body
    return CONFLUENT + schema_id.to_bytes(4, "big") + body


def body_of(value: bytes) -> bytes:
    """Return the body of a value. If there is no framing, this is the whole value.

    No body starts with the bytes of a framing.
    """
    if value.startswith(SINGLE_OBJECT) and len(value) >= SINGLE_OBJECT_BYTES:
        return value[SINGLE_OBJECT_BYTES:]
    return value if confluent_id(value) is None else value[CONFLUENT_BYTES:]


def _body_start(value: bytes) -> int:
    """The index of the body of a value with a complete framing."""
    return CONFLUENT_BYTES if value.startswith(CONFLUENT) else SINGLE_OBJECT_BYTES


def names_other_schema(value: bytes, schemas: Schemas) -> bool:
    """Return whether a value names a readable schema with other bodies than the newest one."""
    schema = schemas.writer(value)
    plan = plan_of(schema) if isinstance(schema, str) else None
    return isinstance(plan, Plan) and not plan.is_ours


def encode(record: Record, kafka_partitions: int, claim: int | None = None) -> bytes:
    """Return the Avro body of a record: `encode_body`. Raises `InvalidChangeError` if a type is
    wrong.
    """
    assert 1 <= kafka_partitions < 2**31, kafka_partitions
    try:
        return encode_body(record, kafka_partitions, claim)
    except (TypeError, AttributeError, KeyError, AssertionError):
        check_types(record)
        raise


def framed(
    record: Record, kafka_partitions: int, schema_id: int | None = None, claim: int | None = None
) -> bytes:
    return frame(encode(record, kafka_partitions, claim), schema_id)


def decode(
    value: bytes | None, schemas: Schemas, *, kafka_partitions: int | None = None
) -> ChangeRecord | Rejection:
    """Decode a framed value, or return the reason why it cannot be decoded. Never raises.

    The steps are framing, schema, bytes, logical types, and the limits of the model. If the bytes
    are damaged, `detail` names the byte, counted from the start of the value. `kafka_partitions` is
    the number of Kafka partitions of the topic. With None, this limit of REC-14 is not checked.
    """
    plan = _plan(value, schemas)
    if isinstance(plan, Rejection):
        return plan
    assert value is not None
    decoded = None
    if plan.is_ours and not plan.factors and not plan.inconvertible:
        decoded = decode_body(value, _body_start(value))
    if decoded is None:
        datum = _datum(value, plan)
        if isinstance(datum, Rejection):
            return datum
        if plan.inconvertible:
            return _inconvertible(plan, schema_id(value))
        try:
            decoded = build(datum), datum["kafka_partitions"]
        except InvalidChangeError as error:
            return _rejection(error)
    record, count = decoded
    if count < 1 or (kafka_partitions is not None and count > kafka_partitions):
        limit = "at least 1" if count < 1 else f"at most {kafka_partitions}, which the topic has"
        return _rejection(Rule.KAFKA_PARTITIONS.broken(count, limit=limit))
    return ChangeRecord(record, count)


def _rejection(error: InvalidChangeError) -> Rejection:
    if error.rule in Reason.__members__:
        return Rejection(Reason(error.rule), error.problem)
    hint = unit_hint(int(error.value)) if error.field.endswith("timestamp") else ""
    return Rejection(Reason.INVALID, error.problem + hint, error.rule)


def read(value: bytes | None, schemas: Schemas) -> dict[str, Any] | Rejection:
    """Decode a framed value to a dict with the Avro field names, in the newest schema. It is not
    validated. A number whose logical type cannot be converted stays as it is.
    """
    plan = _plan(value, schemas)
    if isinstance(plan, Rejection):
        return plan
    assert value is not None
    return _datum(value, plan)


def _plan(value: bytes | None, schemas: Schemas) -> Plan | Rejection:
    """Return how a framed value is read, or the reason why it cannot be decoded."""
    schema = schemas.writer(value)
    if isinstance(schema, Rejection):
        return schema
    plan = plan_of(schema)
    if isinstance(plan, str):
        return Rejection(Reason.UNKNOWN_SCHEMA, f"the schema {schema_id(value)} {plan}")
    return plan


def _datum(value: bytes, plan: Plan) -> dict[str, Any] | Rejection:
    datum: dict[str, Any]
    try:
        datum, end = plan.read(value, _body_start(value))
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
    return datum


def _inconvertible(plan: Plan, schema: str | None) -> Rejection:
    fields = ", ".join(f"{types} for {path}" for path, types in plan.inconvertible.items())
    return Rejection(
        Reason.INVALID,
        f"the schema {schema} has the logical type {fields}, which cannot be converted",
        Rule.LOGICAL_TYPE,
    )


@lru_cache(maxsize=256)
def plan_of(schema: str) -> Plan | str:
    """Return how records of a writer schema are read, or a text that says why it cannot be used."""
    try:
        return compile_plan(avro_plan.parse_schema(schema_of_text(schema)), _PARSED)
    except UnreadableSchemaError as error:
        return str(error)
    except _SCHEMA_FAULTS as error:
        return f"is not an Avro schema: {error}"


def plans_of(schemas: Schemas) -> dict[int, Plan]:
    """Return how records of the readable schemas of the registry are read, by schema id."""
    plans = {id_: plan_of(writer) for id_, writer in schemas.by_id.items() if writer is not None}
    return {id_: plan for id_, plan in plans.items() if not isinstance(plan, str)}


def unknown_fields(schemas: Schemas) -> dict[int, tuple[str, ...]]:
    """Return the fields that readable schemas of the registry have and records here lack, by schema
    id.
    """
    plans = plans_of(schemas).items()
    return {id_: plan.unknown_fields for id_, plan in plans if plan.unknown_fields}


def with_references(schema: str, referenced: Iterable[str]) -> str:
    """Return a schema with the types that it refers to, or unchanged if it cannot be used."""
    try:
        others = [json.loads(text) for text in referenced]
        return json.dumps(avro_plan.parse_schema(json.loads(schema), others))
    except (UnreadableSchemaError, *_SCHEMA_FAULTS):
        return schema


_SCHEMA_FAULTS: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""The exceptions of parsing a text that is not a schema."""
