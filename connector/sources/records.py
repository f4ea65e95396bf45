"""Reads keys and values of foreign records: JSON with and without a schema, and Avro in Confluent's
framing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from connector.records.avro_decoder import DamagedError
from connector.records.avro_plan import UnreadableSchemaError
from connector.records.codec import CONFLUENT, CONFLUENT_BYTES
from connector.sources.columns import Shown
from connector.sources.model import Commit, Poison
from connector.sources.schemas import AvroType, Field, avro_type, connect_field
from connector.sources.values import (
    MISFITS,
    NULL,
    QUOTE,
    Convert,
    DecimalText,
    kind_of,
    natural_of_json,
    natural_text,
)
from connector.tables.values import DataType

SchemaOf = Callable[[int], str | None]
"""Returns the text of the schema with this id, or None if the registry has none."""

Cells = dict[str, bytes | None]

UNREADABLE: Final = (*MISFITS, DamagedError, UnreadableSchemaError)
"""What reading raises for a record that cannot be read."""

_S = TypeVar("_S", bound=Struct)


class Target(NamedTuple):
    """The cell of a field, and how its value becomes one. None: it is the cell."""

    cell: str
    convert: Convert | None


class Targets(dict[str, Target | None]):
    """The targets of the fields of a row. None: the field is left out, for example one of the key.
    A field that is not in the schema is its own cell.
    """

    def __missing__(self, field: str) -> Target:
        return Target(field, None)


class Schema:
    """A schema that records have: of a key, a row or an event. It is equal only to itself."""

    def __init__(self, field: Field, avro: AvroType | None = None) -> None:
        self.field, self.avro = field, avro


class Fields(NamedTuple):
    """The fields of a key or a row, not read yet, and their schema, or None."""

    values: Mapping[str, Any]
    schema: Schema | None


class Format(Protocol):
    """How records are written. Its methods raise one of `UNREADABLE`."""

    def key(self, key: bytes) -> Fields | None:
        """Return the fields of a key. None: it is null."""

    def any_key(self, key: bytes) -> Fields | None:
        """Return the fields of a key that may be text, or a value without fields: the field `key`.
        None: it is null.
        """

    def row(self, value: bytes) -> Fields | None:
        """Return the fields of a row. A value without fields is the field `value`. None: it is
        null.
        """

    def event(self, value: bytes, shape: type[_S]) -> tuple[_S, Schema | None]:
        """Return an event of this shape, whose fields `after` is not read yet, and its schema."""

    def cells(self, values: Mapping[str, Any], targets: Targets) -> Cells:
        """Return the cells of fields. A value that does not fit is its natural text."""

    def convert(self, field: Field, *, has_zone: bool) -> Convert | None:
        """Return how a value of a field becomes a cell."""

    def shown(self, field: str, value: Any) -> Shown | None:
        """Return what a value without a schema shows of its field. None: it is null."""


class _Framed(Struct):
    """A record of Connect's JSON converter with its schema."""

    schema: Raw | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET


class JsonFormat:
    """JSON. A record may have its schema, as Connect's JSON converter writes it."""

    def __init__(self) -> None:
        self._schemas: dict[bytes, Schema] = {}
        self._decoders: dict[type, msgspec.json.Decoder[Any]] = {}

    def key(self, key: bytes) -> Fields | None:
        return self._fields(key, "")

    def any_key(self, key: bytes) -> Fields | None:
        try:
            return self._fields(key, KEY)
        except msgspec.DecodeError:
            return Fields({KEY: msgspec.json.encode(key.decode())}, None)

    def row(self, value: bytes) -> Fields | None:
        return self._fields(value, VALUE)

    def event(self, value: bytes, shape: type[_S]) -> tuple[_S, Schema | None]:
        decoder = self._decoders.get(shape)
        if decoder is None:
            decoder = self._decoders[shape] = msgspec.json.Decoder(shape)
        payload, schema = self._unframed(value)
        return decoder.decode(payload), schema

    def _fields(self, text: bytes, name: str) -> Fields | None:
        payload, schema = self._unframed(text)
        text = bytes(payload)
        if text.lstrip()[:1] == b"{":
            return Fields(_objects.decode(text), schema)
        value = bytes(_any.decode(text))
        if value == b"null":
            return None
        if not name:
            raise ValueError("the key has no fields")
        return Fields({name: value}, None)

    def _unframed(self, text: bytes) -> tuple[bytes | Raw, Schema | None]:
        """The record without its schema, and the schema. A row may have such columns, too: a schema
        is an object, or null.
        """
        if not _may_have_schema(text):
            return text, None
        framed = _framed.decode(text)
        if framed.schema is UNSET or framed.payload is UNSET:
            return text, None
        schema = bytes(framed.schema)
        if schema[:1] == b"{":
            return framed.payload, self._schema(schema)
        return (framed.payload if schema == b"null" else text), None

    def _schema(self, text: bytes) -> Schema:
        schema = self._schemas.get(text)
        if schema is None:
            declared = msgspec.json.decode(text)
            if len(self._schemas) >= MAX_SCHEMAS:
                self._schemas.clear()
            schema = self._schemas[text] = Schema(connect_field(declared))
        return schema

    def cells(self, values: Mapping[str, Any], targets: Targets) -> Cells:
        cells: Cells = {}
        for field, raw in values.items():
            target = targets[field]
            if target is None:
                continue
            cell, convert = target
            text = bytes(raw)
            first = text[0]
            if first == NULL:
                cells[cell] = None
                continue
            if first == QUOTE:
                text = text[1:-1] if b"\\" not in text else natural_of_json(text)
            elif isinstance(convert, DecimalText):
                convert = convert.of_number
            if convert is not None:
                try:
                    text = convert(text)
                except MISFITS:
                    cells[cell] = text
                    continue
            cells[cell] = text
        return cells

    def convert(self, field: Field, *, has_zone: bool) -> Convert | None:
        return kind_of(field, has_zone=has_zone).of_text

    def shown(self, field: str, value: Any) -> Shown | None:
        text = bytes(value)
        if text == b"null":
            return None
        if text[:1] in b"-0123456789":
            is_whole = len(text) < 20 and _is_whole(text) is not None
            type_ = DataType.INT64 if is_whole else DataType.FLOAT64
        else:
            type_ = _SHOWN.get(text[:1], DataType.STRING)
        return Shown(field, type_, is_guess=True)


class AvroFormat:
    """Avro in Confluent's framing.

    Args:
        schema_of: Returns the schema of an id. Its errors are not caught.
    """

    def __init__(self, schema_of: SchemaOf) -> None:
        self._schema_of = schema_of
        self._schemas: dict[int, Schema] = {}
        self._readers: dict[tuple[int, type | None], Any] = {}

    def key(self, key: bytes) -> Fields | None:
        return self._fields(key, "")

    def any_key(self, key: bytes) -> Fields | None:
        return self._fields(key, KEY) if key[:1] == CONFLUENT else Fields({KEY: key}, None)

    def row(self, value: bytes) -> Fields | None:
        return self._fields(value, VALUE)

    def event(self, value: bytes, shape: type[_S]) -> tuple[_S, Schema | None]:
        schema_id, schema = self._schema(value)
        read = self._readers.get((schema_id, shape))
        if read is None:
            assert schema.avro is not None
            read = self._readers[schema_id, shape] = schema.avro.reader(
                _readers(schema.avro, shape)
            )
        return msgspec.convert(_read(read, value), shape), schema

    def _fields(self, value: bytes, name: str) -> Fields | None:
        schema_id, schema = self._schema(value)
        read = self._readers.get((schema_id, None))
        if read is None:
            assert schema.avro is not None
            read = self._readers[schema_id, None] = schema.avro.rows()
        datum = _read(read, value)
        if isinstance(datum, dict):
            return Fields(datum, schema)
        if datum is not None and not name:
            raise ValueError("the key has no fields")
        return None if datum is None else Fields({name: datum}, None)

    def _schema(self, value: bytes) -> tuple[int, Schema]:
        if value[:1] != CONFLUENT or len(value) < CONFLUENT_BYTES:
            raise ValueError("the record has no schema id: it is not in Confluent's framing")
        schema_id = int.from_bytes(value[1:CONFLUENT_BYTES], "big")
        schema = self._schemas.get(schema_id)
        if schema is None:
            text = self._schema_of(schema_id)
            if text is None:
                raise UnreadableSchemaError(f"with the id {schema_id} is not in the registry")
            compiled = avro_type(text)
            schema = self._schemas[schema_id] = Schema(compiled.field, compiled)
        return schema_id, schema

    def cells(self, values: Mapping[str, Any], targets: Targets) -> Cells:
        cells: Cells = {}
        for field, value in values.items():
            target = targets[field]
            if target is None:
                continue
            cell, convert = target
            if value is None:
                cells[cell] = None
            elif convert is None:
                cells[cell] = value if value.__class__ is bytes else natural_text(value)
            else:
                try:
                    cells[cell] = convert(value)
                except MISFITS:
                    cells[cell] = natural_text(value)
        return cells

    def convert(self, field: Field, *, has_zone: bool) -> Convert | None:
        return kind_of(field, has_zone=has_zone).of_value

    def shown(self, field: str, value: Any) -> Shown | None:
        return None if value is None else Shown(field, DataType.STRING, is_guess=True)


KEY: Final = "key"
VALUE: Final = "value"
"""The names of a key and of a row without fields."""

MAX_SCHEMAS: Final = 10_000
"""The most schemas in records that are kept."""

_SHOWN: Final = {
    b"t": DataType.BOOL,
    b"f": DataType.BOOL,
    b"{": DataType.JSON,
    b"[": DataType.JSON,
}
_framed: Final = msgspec.json.Decoder(_Framed)
_objects: Final = msgspec.json.Decoder(dict[str, Raw])
_any: Final = msgspec.json.Decoder(Raw)
_is_whole = re.compile(rb"-?[0-9]+").fullmatch


def _may_have_schema(text: bytes) -> bool:
    """Whether a record may have a schema. The converter writes it first."""
    return text[:10] == b'{"schema":' or b'"schema"' in text[:20] or text[:10] == b'{"payload"'


def _read(read: Any, value: bytes) -> Any:
    datum, end = read(value, CONFLUENT_BYTES)
    if end != len(value):
        raise DamagedError(end, f"{len(value) - end} bytes behind the record")
    return datum


def _readers(avro: AvroType, shape: type[Struct]) -> dict[str, Any]:
    """The readers of the fields of an event that a shape has. Rows keep their texts as bytes."""
    readers = {}
    hints = get_type_hints(shape)
    for name in shape.__struct_fields__:
        part = avro.part(name)
        if part is None:
            continue
        kinds = (hints[name], *get_args(hints[name]))
        inner = next((k for k in kinds if isinstance(k, type) and issubclass(k, Struct)), None)
        if name == "after":
            readers[name] = part.rows()
        else:
            readers[name] = part.read if inner is None else part.reader(_readers(part, inner))
    return readers


def poison_of(error: BaseException, commit: Commit, table: str) -> Poison:
    """Return the event of a record whose reading raised an error of `UNREADABLE`."""
    rule = "UNKNOWN_SCHEMA" if isinstance(error, UnreadableSchemaError) else "UNREADABLE"
    return Poison(rule, _detail_of(error), commit, table)


def _detail_of(error: BaseException) -> str:
    if isinstance(error, DamagedError):
        path = ".".join(reversed(error.path))
        return f"byte {error.offset}{f' in {path}' if path else ''}: {error.what}"
    if isinstance(error, UnreadableSchemaError):
        return f"the schema {error}"
    return str(error) or type(error).__name__
