"""The fields of foreign records, as their schemas declare them: Kafka Connect's JSON, and Avro
(SRC-5).

Both become a tree of `Field`. Its words are Connect's. A schema of Avro is compiled to readers,
too. They take any bytes, within the limits of `connector.records.avro_decoder`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from connector.records.avro_decoder import (
    PRIMITIVE_READERS,
    PRIMITIVE_SKIPPERS,
    PRIMITIVES,
    Reader,
    array_reader,
    blocks_skipper,
    enum_reader,
    fixed_reader,
    map_reader,
    read_bytes,
    read_int,
    record_reader,
    skip_bytes,
    union_reader,
)
from connector.records.avro_plan import UnreadableSchemaError, schema_of_text

MAX_DEPTH: Final = 32
MAX_TYPES: Final = 20_000
SOURCE_TYPE: Final = "__debezium.source.column.type"
"""The parameter with the type of the column in the source. Debezium writes it for the columns of
`column.propagate.source.type`.
"""


class Field(NamedTuple):
    """A field and its type.

    - `base` is the type in Connect: `int8` to `int64`, `float32`, `float64`, `boolean`, `string`,
      `bytes`, `array`, `map` or `struct`. A union of several types of Avro is `union`.
    - `logical` is the name of the logical type, for example `io.debezium.time.Date`, or empty.
    - `parts` has the fields of a struct, or the element of an array.
    - `default` is the default in the source. None: it has no default.
    - `is_optional`: it can be NULL.
    """

    name: str
    base: str
    logical: str = ""
    parameters: Mapping[str, str] = {}
    parts: tuple[Field, ...] = ()
    default: object = None
    is_optional: bool = False

    def part(self, name: str) -> Field | None:
        """Return the field of a struct with this name."""
        return next((field for field in self.parts if field.name == name), None)


def connect_field(schema: object, name: str = "", depth: int = 0) -> Field:
    """Return the type of a schema of Connect's JSON. Raises `UnreadableSchemaError`."""
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
        raise UnreadableSchemaError(f"is not a schema of Connect: {schema!s:.80}")
    if depth > MAX_DEPTH:
        raise UnreadableSchemaError(f"has more than {MAX_DEPTH} types within each other")
    parts: tuple[Field, ...] = ()
    if schema["type"] == "struct":
        parts = tuple(
            connect_field(field, _text_of(field, "field"), depth + 1) for field in _fields(schema)
        )
    elif schema["type"] == "array":
        parts = (connect_field(schema.get("items"), "", depth + 1),)
    logical = schema.get("name")
    return Field(
        name,
        str(_BASES.get(schema["type"], schema["type"])),
        logical if isinstance(logical, str) else "",
        _texts(schema.get("parameters")),
        parts,
        schema.get("default"),
        schema.get("optional") is True,
    )


class AvroType(NamedTuple):
    """A type of Avro.

    - `kind` is its word in Avro.
    - `parts` are the fields of a record, the branches of a union, or the item of a list or map.
    - `detail` has the symbols of an enum, or the size of a fixed.
    - `has_bytes`: each value has a byte.
    """

    field: Field
    kind: str
    parts: tuple[AvroType, ...] = ()
    detail: Any = None
    has_bytes: bool = True

    def part(self, name: str) -> AvroType | None:
        """Return the type of a field of the record. A record in a union counts, too."""
        for part in self.parts:
            if self.kind == "union" and (inner := part.part(name)) is not None:
                return inner
            if self.kind != "union" and part.field.name == name:
                return part
        return None

    def read(self, how: Literal["text", "bytes", "skip"] = "text") -> Reader:
        """Return a reader that reads texts or their bytes, or skips a value. Texts in a list, a map
        or a record are read as texts.
        """
        is_skip = how == "skip"
        match self.kind:
            case "union":
                return _union_reader(self.parts, [part.read(how) for part in self.parts])
            case "record":
                read = () if is_skip else self.parts
                return self.reader({part.field.name: part.read() for part in read})
            case "array" | "map" as kind if is_skip:
                skip = self.parts[0].read("skip")
                return blocks_skipper([skip] if kind == "array" else [skip_bytes, skip])
            case "array" | "map" as kind:
                make = array_reader if kind == "array" else map_reader
                return make(self.parts[0].read())
            case "enum":
                texts: list[Any] = self.detail
                symbols = [s.encode("utf-8", "replace") for s in texts] if how == "bytes" else texts
                return read_int if is_skip else enum_reader(symbols)
            case "fixed":
                return fixed_reader(self.detail)
            case "string" if how == "bytes":
                return read_bytes
        return (PRIMITIVE_SKIPPERS if is_skip else _READERS)[self.kind]

    def reader(self, readers: Mapping[str, Reader]) -> Reader:
        """Return a reader of a record that reads only these fields, each with its reader."""
        if self.kind == "union":
            return _union_reader(self.parts, [branch.reader(readers) for branch in self.parts])
        if self.kind != "record":
            return self.read()
        fields = [(part.field.name, part) for part in self.parts]
        steps = [(n, readers.get(n) or part.read("skip"), n in readers) for n, part in fields]
        return record_reader(steps, {})

    def rows(self) -> Reader:
        """Return a reader of a record whose texts are read as bytes."""
        if self.kind == "union":
            return _union_reader(self.parts, [branch.rows() for branch in self.parts])
        return self.reader({part.field.name: part.read("bytes") for part in self.parts})


def avro_type(text: str) -> AvroType:
    """Compile a schema of Avro. Raises `UnreadableSchemaError`."""
    return _AvroCompiler().type(schema_of_text(text), "", "", ())


class _AvroCompiler:
    def __init__(self) -> None:
        self.named: dict[str, tuple[dict[str, Any], str]] = {}
        self.types = 0

    def type(self, schema: Any, name: str, namespace: str, within: Collection[str]) -> AvroType:
        """Compile a type, as that of the field `name`. `within` has the types around it."""
        self.types += 1
        if self.types > MAX_TYPES or len(within) > MAX_DEPTH:
            raise UnreadableSchemaError("has too many types")
        if isinstance(schema, list):
            return self._union(schema, name, namespace, within)
        if isinstance(schema, str):
            if schema not in PRIMITIVES:
                return self._by_name(schema, name, namespace, within)
            schema = {"type": schema}
        kind = schema.get("type") if isinstance(schema, dict) else None
        if isinstance(kind, dict | list):
            return self.type(kind, name, namespace, within)
        if not isinstance(kind, str):
            raise UnreadableSchemaError(f"is not an Avro schema: {schema!s:.80} is no type")
        field = Field(name, _BASES.get(kind, kind), *_logical(schema))
        if kind in PRIMITIVES:
            return AvroType(field, kind, has_bytes=kind != "null")
        within = (*within, _full_name(schema, namespace))
        if kind in ("array", "map"):
            given = schema.get("items" if kind == "array" else "values")
            item = self.type(given, "", namespace, within)
            if not item.has_bytes:
                raise UnreadableSchemaError("has a list whose items have no bytes")
            return AvroType(field._replace(parts=(item.field,)), kind, (item,))
        if kind in ("record", "error", "enum", "fixed"):
            self.named.setdefault(within[-1], (schema, namespace))
            return self._named(schema, kind, field, within)
        return self._by_name(kind, name, namespace, within)

    def _union(
        self, schema: list[Any], name: str, namespace: str, within: Collection[str]
    ) -> AvroType:
        branches = tuple(self.type(branch, name, namespace, (*within, "")) for branch in schema)
        values = [branch.field for branch in branches if branch.kind != "null"]
        field = values[0] if len(values) == 1 else Field(name, "union")
        field = field._replace(is_optional=len(values) < len(branches))
        return AvroType(field, "union", branches)

    def _by_name(self, given: str, name: str, namespace: str, within: Collection[str]) -> AvroType:
        full = _full_name({"name": given}, namespace)
        if full not in self.named:
            full = given
        if full not in self.named or full in within:
            problem = "which contains itself" if full in within else "without its definition"
            raise UnreadableSchemaError(f"uses the type {given}, {problem}")
        schema, defined_in = self.named[full]
        return self.type(schema, name, defined_in, within)

    def _named(
        self, schema: dict[str, Any], kind: str, field: Field, within: tuple[str, ...]
    ) -> AvroType:
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list):
                raise UnreadableSchemaError("has an enum without symbols")
            return AvroType(field, kind, detail=[str(symbol) for symbol in symbols])
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or size < 0:
                raise UnreadableSchemaError(f"has the size {size!r}")
            return AvroType(field, kind, detail=size, has_bytes=size > 0)
        namespace = within[-1].rpartition(".")[0]
        parts = []
        for declared in _fields(schema):
            part = self.type(declared.get("type"), _text_of(declared, "name"), namespace, within)
            made = part.field._replace(default=_default(declared))
            parts.append(part._replace(field=made))
        field = field._replace(parts=tuple(part.field for part in parts))
        has_bytes = any(part.has_bytes for part in parts)
        return AvroType(field, "record", tuple(parts), has_bytes=has_bytes)


def _union_reader(branches: Sequence[AvroType], readers: Sequence[Reader]) -> Reader:
    """A reader of a union. That of NULL and one type is the most frequent, and has a quick way."""
    read = union_reader([*readers])
    if [branch.field.base == "null" for branch in branches] != [True, False]:
        return read
    read_value = readers[1]

    def read_optional(data: bytes, start: int) -> tuple[Any, int]:
        branch = data[start : start + 1]
        if branch == b"\x02":
            return read_value(data, start + 1)
        return (None, start + 1) if branch == b"\x00" else read(data, start)

    return read_optional


def _float_reader(layout: str) -> Reader:
    unpack, read_bytes = struct.Struct(layout).unpack, fixed_reader(struct.calcsize(layout))

    def read(data: bytes, start: int) -> tuple[float, int]:
        value, end = read_bytes(data, start)
        return unpack(value)[0], end

    return read


_READERS: Final[Mapping[str, Reader]] = {
    **PRIMITIVE_READERS,
    "float": _float_reader("<f"),
    "double": _float_reader("<d"),
}

_BASES: Final = {
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "enum": "string",
    "fixed": "bytes",
    "record": "struct",
    "error": "struct",
}
"""The types of Avro in Connect. The others have the same name."""

_CONNECT: Final = "org.apache.kafka.connect.data."
_LOGICAL_TYPES: Final = {
    "decimal": _CONNECT + "Decimal",
    "date": _CONNECT + "Date",
    "time-millis": _CONNECT + "Time",
    "time-micros": "io.debezium.time.MicroTime",
    "timestamp-millis": _CONNECT + "Timestamp",
    "timestamp-micros": "timestamp-micros",
    "timestamp-nanos": "timestamp-nanos",
    "local-timestamp-millis": "io.debezium.time.Timestamp",
    "local-timestamp-micros": "io.debezium.time.MicroTimestamp",
    "local-timestamp-nanos": "io.debezium.time.NanoTimestamp",
}
"""The logical types of Avro, and the types of Connect or Debezium with the same values."""


def _logical(schema: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    parameters = _texts(schema.get("connect.parameters"))
    for part in ("scale", "precision"):
        if isinstance(schema.get(part), int):
            parameters = {part: str(schema[part]), **parameters}
    if isinstance(name := schema.get("connect.name"), str) and "." in name:
        return name, parameters
    return _LOGICAL_TYPES.get(str(schema.get("logicalType")), ""), parameters


def _default(field: Mapping[str, Any]) -> object:
    """The default of the source. That of a field that can be NULL is a rule of Avro, if it is
    NULL.
    """
    declared = field.get("type")
    branches = declared if isinstance(declared, list) else [declared]
    for branch in branches:
        if isinstance(branch, dict) and branch.get("connect.default") is not None:
            return branch["connect.default"]
    return field.get("default")


def _full_name(schema: Mapping[str, Any], namespace: str) -> str:
    name, given = schema.get("name"), schema.get("namespace")
    if not isinstance(name, str) or "." in name:
        return name if isinstance(name, str) else ""
    return f"{given if isinstance(given, str) else namespace}.{name}".removeprefix(".")


def _fields(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise UnreadableSchemaError("has a record without fields")
    return fields


def _text_of(field: Mapping[str, Any], what: str) -> str:
    text = field.get(what)
    if not isinstance(text, str):
        raise UnreadableSchemaError(f"has a field without {what}")
    return text


def _texts(parameters: object) -> Mapping[str, str]:
    if not isinstance(parameters, dict):
        return {}
    return {str(name): str(value) for name, value in parameters.items()}
