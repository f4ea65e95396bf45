"""Reads keys and values of foreign records: JSON with and without a schema, and Avro in Confluent's
framing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from connector.records.avro_decoder import DamagedError, Reader
from connector.records.avro_plan import UnreadableSchemaError
from connector.records.codec import CONFLUENT, CONFLUENT_BYTES
from connector.sources.model import Commit, Poison
from connector.sources.schemas import AvroType, Field, avro_type, connect_field
from connector.sources.values import (
    MISFITS,
    NULL,
    QUOTE,
    Convert,
    DecimalText,
    Kind,
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

    def __init__(self, field: Field) -> None:
        self.field = field


class Fields(NamedTuple):
    """The fields of a key or a row, not read yet, and their schema, or None.

    `form` is `value` for a value without fields, and `text` for a key that is only text: it is no
    JSON, or not in Confluent's framing.
    """

    values: Mapping[str, Any]
    schema: Schema | None
    form: Literal["fields", "value", "text"] = "fields"


class _Framed(Struct):
    """A record of Connect's JSON converter with its schema."""

    schema: Raw | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET


class JsonFormat:
    """JSON. A record may have its schema, as Connect's JSON converter writes it.

    The methods of a format raise one of `UNREADABLE` for a record that cannot be read.
    """

    def __init__(self) -> None:
        self._schemas: dict[bytes, Schema] = {}
        self._decoders: dict[type, msgspec.json.Decoder[Any]] = {}

    def fields(self, data: bytes, name: str = "") -> Fields | None:
        """Return the fields of a key or a row. None: it is null. A value without fields is the
        field `name`: `KEY`, which any text can be, or `VALUE`. Without a name, it is a fault.
        """
        try:
            payload, schema = self._unframed(data)
            text = bytes(payload)
            if text.lstrip()[:1] == b"{":
                return Fields(_objects.decode(text), schema)
            value = bytes(_any.decode(text))
        except msgspec.DecodeError:
            if name != KEY:
                raise
            return Fields({KEY: msgspec.json.encode(data.decode())}, None, "text")
        return None if value == b"null" else _only_field(name, value)

    def event(self, value: bytes, shape: type[_S]) -> tuple[_S, Schema | None]:
        """Return an event of this shape, whose field `after` is not read yet, and its schema."""
        decoder = self._decoders.get(shape)
        if decoder is None:
            decoder = self._decoders[shape] = msgspec.json.Decoder(shape)
        payload, schema = self._unframed(value)
        return decoder.decode(payload), schema

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
        """Return the cells of fields. A value that does not fit is its natural text."""
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

    def convert(self, kind: Kind) -> Convert | None:
        """Return how a value of this kind becomes a cell."""
        return kind.of_text

    def guess(self, value: Any) -> DataType | None:
        """Return the type that a value without a schema shows. None: it is null."""
        text = bytes(value)
        if text == b"null":
            return None
        if text[:1] in b"-0123456789":
            return DataType.INT64 if _is_int64(text) else DataType.FLOAT64
        return _GUESSES.get(text[:1], DataType.STRING)


class AvroFormat:
    """Avro in Confluent's framing. It has the methods of `JsonFormat`.

    Args:
        schema_of: Returns the schema of an id. Its errors are not caught.
    """

    def __init__(self, schema_of: SchemaOf) -> None:
        self._schema_of = schema_of
        self._readings: dict[tuple[int, type | None], tuple[Reader, Schema]] = {}

    def fields(self, data: bytes, name: str = "") -> Fields | None:
        if name == KEY and data[:1] != CONFLUENT:
            return Fields({KEY: data}, None, "text")
        datum, schema = self._datum(data, None)
        if isinstance(datum, dict):
            return Fields(datum, schema)
        return None if datum is None else _only_field(name, datum)

    def event(self, value: bytes, shape: type[_S]) -> tuple[_S, Schema | None]:
        datum, schema = self._datum(value, shape)
        return msgspec.convert(datum, shape), schema

    def _datum(self, data: bytes, shape: type[Struct] | None) -> tuple[Any, Schema]:
        """The datum of a record, as far as it has this shape, and its schema."""
        if data[:1] != CONFLUENT or len(data) < CONFLUENT_BYTES:
            raise ValueError("the record has no schema id: it is not in Confluent's framing")
        schema_id = int.from_bytes(data[1:CONFLUENT_BYTES], "big")
        reading = self._readings.get((schema_id, shape))
        if reading is None:
            reading = self._readings[schema_id, shape] = self._reading(schema_id, shape)
        read, schema = reading
        datum, end = read(data, CONFLUENT_BYTES)
        if end != len(data):
            raise DamagedError(end, f"{len(data) - end} bytes behind the record")
        return datum, schema

    def _reading(self, schema_id: int, shape: type[Struct] | None) -> tuple[Reader, Schema]:
        text = self._schema_of(schema_id)
        if text is None:
            raise UnreadableSchemaError(f"with the id {schema_id} is not in the registry")
        avro = avro_type(text)
        return avro.rows() if shape is None else avro.reader(_readers(avro, shape)), Schema(
            avro.field
        )

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

    def convert(self, kind: Kind) -> Convert | None:
        return kind.of_value

    def guess(self, value: Any) -> DataType | None:
        return None if value is None else DataType.STRING


Format = JsonFormat | AvroFormat

KEY: Final = "key"
VALUE: Final = "value"
"""The names of a key and of a row without fields."""

MAX_SCHEMAS: Final = 10_000
"""The most schemas in records that are kept."""

_GUESSES: Final = {
    b"t": DataType.BOOL,
    b"f": DataType.BOOL,
    b"{": DataType.JSON,
    b"[": DataType.JSON,
}
_framed: Final = msgspec.json.Decoder(_Framed)
_objects: Final = msgspec.json.Decoder(dict[str, Raw])
_any: Final = msgspec.json.Decoder(Raw)
_is_int64 = re.compile(rb"-?[0-9]{1,18}|[0-9]{19}").fullmatch


def _only_field(name: str, value: Any) -> Fields:
    if not name:
        raise ValueError("the key has no fields")
    return Fields({name: value}, None, "value")


def _may_have_schema(text: bytes) -> bool:
    """Whether a record may have a schema. The converter writes it first."""
    return text[:10] == b'{"schema":' or b'"schema"' in text[:20] or text[:10] == b'{"payload"'


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
            readers[name] = part.read() if inner is None else part.reader(_readers(part, inner))
    return readers


def poison_of(error: BaseException, commit: Commit, table: str) -> Poison:
    """Return the event of a record whose reading raised an error of `UNREADABLE`."""
    if isinstance(error, UnreadableSchemaError):
        return Poison("UNKNOWN_SCHEMA", f"the schema {error}", commit, table)
    detail = str(error) or type(error).__name__
    if isinstance(error, DamagedError):
        path = ".".join(reversed(error.path))
        detail = f"byte {error.offset}{f' in {path}' if path else ''}: {error.what}"
    return Poison("UNREADABLE", detail, commit, table)
