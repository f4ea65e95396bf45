"""Schema resolution: compiles a writer schema and the reader schema to one function that reads a
body (REC-12).

Avro's resolution ignores logical types. Here they count, because they say the unit of a number
(REC-26). A field that is `timestamp-micros` in the reader schema may be `timestamp-millis` in the
writer schema: it is converted. A logical type that says nothing new is ignored, for example `uuid`
of text. Every other one is `Plan.inconvertible`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from connector.records.avro_decoder import (
    PRIMITIVE_READERS,
    PRIMITIVE_SKIPPERS,
    PRIMITIVES,
    Datum,
    Reader,
    array_reader,
    blocks_skipper,
    enum_reader,
    fixed_reader,
    map_reader,
    read_int,
    record_reader,
    refusing_reader,
    scaled_reader,
    skip_bytes,
    union_reader,
)

MAX_SCHEMA_NODES: Final = 1_000
"""A ChangeRecord has about 80 types. The limit bounds the work that a schema can cause."""

MAX_SCHEMA_DEPTH: Final = 64
_is_protobuf = re.compile(
    r"\s*(//|/\*|(syntax|edition|package|import|option|message|enum)\b)"
).match
_NAMED: Final = ("record", "error", "enum", "fixed")
_COMPLEX: Final = (*_NAMED, "array", "map")
_PROMOTIONS: Final = frozenset({("int", "long"), ("string", "bytes"), ("bytes", "string")})
_PARTS: Final = ("type", "name", "items", "values", "symbols", "size")
_MICROS: Final = "timestamp-micros"
_IN_MICROS: Final[Mapping[str, int]] = {_MICROS: 1, "timestamp-millis": 1_000}
"""The logical types of a time, and the microseconds of one unit."""
_CELL_TIMES: Final = frozenset({"cell_timestamp", "range_start", "range_end"})
"""Times in the unit of the source, which is microseconds by custom."""


class Plan(NamedTuple):
    """How records of a writer schema are read.

    - `read` reads a body as the reader schema.
    - `unknown_fields`: the fields that the records of the writer schema have and those of the
      reader schema lack, sorted. Their values are skipped (EVO-10). Each one is named by its record
      and its name, for example `DataChange.colour`.
    - `factors`: the fields that `read` multiplies, by their path in the reader schema, for example
      `heartbeat.timestamp`.
    - `inconvertible`: for each field whose numbers or bytes mean something else than in the reader
      schema, its logical types in the writer schema.
    - `is_ours`: bodies of the writer schema are bodies of the reader schema. Their numbers may have
      another unit.
    """

    read: Reader
    unknown_fields: tuple[str, ...]
    factors: Mapping[str, int]
    inconvertible: Mapping[str, str]
    is_ours: bool


class UnreadableSchemaError(Exception):
    """A writer schema is incompatible, recursive or too large."""


class _RefusedSchemaError(UnreadableSchemaError):
    """The whole schema is refused, not only the branch of a union with the mistake."""


def parse_schema(schema: Datum, referenced: Iterable[Datum] = ()) -> Datum:
    """Return a writer schema in the form of `compile_reader`: with full names, and with each named
    type where it is used first.

    It has only the parts that decide how bytes are read, and logical types. So a default that does
    not fit, a decimal without a precision, an alias or a property is no reason to refuse a schema.
    A name of a type can be used before its definition, and the definition can be in one of the
    `referenced` schemas. Raises `UnreadableSchemaError`.
    """
    parser = _Parser()
    for given in (*referenced, schema):
        parser.find(given, "")
    return parser.parsed(schema, "")


class _Parser:
    def __init__(self) -> None:
        self.types: dict[str, dict[str, Datum]] = {}
        self.used: set[str] = set()

    def find(self, schema: Datum, namespace: str) -> None:
        """Find the named types in a schema."""
        if isinstance(schema, list):
            for branch in schema:
                self.find(branch, namespace)
        if not isinstance(schema, dict):
            return
        if schema.get("type") in _NAMED:
            name = _full_name(schema, namespace)
            if self.types.setdefault(name, schema) != schema:
                raise _RefusedSchemaError(f"has two types with the name {name}")
            for field in _fields(schema):
                self.find(field["type"], name.rpartition(".")[0])
        else:
            for part in ("type", "items", "values"):
                self.find(schema.get(part), namespace)

    def parsed(self, schema: Datum, namespace: str) -> Datum:
        if isinstance(schema, list):
            return [self.parsed(branch, namespace) for branch in schema]
        if isinstance(schema, str):
            return schema if schema in PRIMITIVES else self._named(self._meant(schema, namespace))
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind is None:
            raise UnreadableSchemaError(_why_no_schema(schema))
        if isinstance(kind, dict | list):
            return self._wrapped(schema, namespace)
        if kind in _NAMED:
            return self._named(_full_name(schema, namespace))
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            items = self.parsed(schema.get(part), namespace)
            return {"type": kind, part: items} | _logical_type(schema)
        if kind in PRIMITIVES:
            return {"type": kind} | _logical_type(schema)
        return self._wrapped(schema, namespace)

    def _wrapped(self, schema: dict[str, Datum], namespace: str) -> Datum:
        """The type in a wrapper. Only its logical type is a reason to keep the wrapper."""
        within, logical_type = self.parsed(schema["type"], namespace), _logical_type(schema)
        return {"type": within} | logical_type if logical_type else within

    def _meant(self, name: str, namespace: str) -> str:
        """The full name of a type. A name without a namespace can be one of no namespace."""
        full = _full_name({"name": name}, namespace)
        return name if full not in self.types and name in self.types else full

    def _named(self, name: str) -> Datum:
        if name in self.used:
            return name
        schema = self.types.get(name)
        if schema is None:
            raise UnreadableSchemaError(f"uses the type {name} without its definition")
        self.used.add(name)
        kind = "record" if schema["type"] == "error" else schema["type"]
        made: Datum = {"type": kind, "name": name} | _logical_type(schema)
        if kind == "record":
            namespace = name.rpartition(".")[0]
            made["fields"] = [
                {"name": field["name"], "type": self.parsed(field["type"], namespace)}
                | _logical_type(field)
                for field in _fields(schema)
            ]
            return made
        part = "symbols" if kind == "enum" else "size"
        if part not in schema or (kind == "enum" and not _are_texts(schema[part])):
            raise UnreadableSchemaError(_why_no_schema(schema))
        return made | {part: schema[part]}


def _logical_type(schema: Datum) -> Datum:
    name = schema.get("logicalType")
    return {} if name is None else {"logicalType": name}


def _form(schema: Datum) -> Datum:
    """The parts of a parsed schema that decide how bytes are read."""
    if isinstance(schema, list):
        return [_form(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if "name" not in schema and schema["type"] not in ("array", "map"):
        return _form(schema["type"])
    parts = {part: _form(schema[part]) for part in _PARTS if part in schema}
    if "fields" in schema:
        parts["fields"] = [(field["name"], _form(field["type"])) for field in schema["fields"]]
    return parts


def _full_name(schema: Datum, namespace: str) -> str:
    name = schema.get("name")
    if not isinstance(name, str):
        raise UnreadableSchemaError(_why_no_schema(schema))
    if "." not in name:
        given = schema.get("namespace")
        name = f"{given if isinstance(given, str) else namespace}.{name}"
    return name.removeprefix(".")


def _fields(schema: Datum) -> list[Datum]:
    if schema["type"] not in ("record", "error"):
        return []
    fields = schema.get("fields")
    if isinstance(fields, list) and all(
        isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field
        for field in fields
    ):
        return fields
    raise UnreadableSchemaError(_why_no_schema(schema))


def _are_texts(symbols: Datum) -> bool:
    return isinstance(symbols, list) and all(isinstance(symbol, str) for symbol in symbols)


def _why_no_schema(schema: Datum) -> str:
    return f"is not an Avro schema: {json.dumps(schema):.80} is no type"


def schema_of_text(text: str) -> Datum:
    """Return the schema that a text of a registry has, decoded. Raises `UnreadableSchemaError` if
    it is not JSON, or of another kind than Avro. Not every registry names the kind.
    """
    kind = "PROTOBUF" if _is_protobuf(text) else None
    try:
        schema = None if kind else json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableSchemaError("is not an Avro schema: it is not JSON") from None
    if isinstance(schema, dict):
        is_json_schema = schema.get("type") == "object" or (
            "$schema" in schema and schema.get("type") not in _NAMED
        )
        named = schema.get("schemaType", "JSON" if is_json_schema else None)
        kind = named if isinstance(named, str) else None
    if kind is not None:
        raise UnreadableSchemaError(
            f"is of the kind {kind}, and is not an Avro schema: let the program that writes the"
            " records write Avro"
        )
    return schema


def compile_plan(writer: Datum, reader: Datum) -> Plan:
    """Return how data of the schema `writer` is read as the schema `reader`.

    Both schemas must be results of `parse_schema`, or of `fastavro.parse_schema`. Raises
    `UnreadableSchemaError`.
    """
    compiler = _Compiler(_names(writer), _names(reader))
    read = compiler.resolving(writer, reader)
    factors: dict[str, int] = {}
    inconvertible: dict[str, str] = {}
    for path, by_type in compiler.factors.items():
        # All branches of a union must have the same unit: the JVM does not say which one it read.
        factor, *others = set(by_type.values())
        if others or factor is None:
            inconvertible[path] = " or ".join(sorted(filter(None, by_type)))
        elif factor != 1:
            factors[path] = factor
    unknown_fields = tuple(sorted(compiler.unknown_fields))
    return Plan(read, unknown_fields, factors, inconvertible, _form(writer) == _form(reader))


def _names(schema: Datum) -> dict[str, Datum]:
    named: dict[str, Datum] = {}
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict):
            if node.get("type") in ("record", "error", "enum", "fixed"):
                named[node["name"]] = node
            waiting.extend(field["type"] for field in node.get("fields", ()))
            waiting.extend(
                node[part]
                for part in ("type", "items", "values")
                if isinstance(node.get(part), (dict, list))
            )
    return named


class _Compiler:
    """Makes readers for the types of two schemas. A reader schema of None means: skip the value."""

    def __init__(
        self, writer_names: Mapping[str, Datum], reader_names: Mapping[str, Datum]
    ) -> None:
        self.writer_names = writer_names
        self.reader_names = reader_names
        self.open_records: list[str] = []
        self.unknown_fields: set[str] = set()
        self.path: list[str] = []
        self.factors: dict[str, dict[str, int | None]] = {}
        """By field, the factor of each logical type (empty: none). None: no conversion."""
        self.nodes = 0
        self.depth = 0

    def resolving(
        self, writer: Datum, reader: Datum | None, logical_types: tuple[str, ...] = ()
    ) -> Reader:
        """Compile a type. `logical_types` has those of the field or union that it is in."""
        self.nodes += 1
        if self.nodes > MAX_SCHEMA_NODES or self.depth >= MAX_SCHEMA_DEPTH:
            raise _RefusedSchemaError(
                f"has more than {MAX_SCHEMA_NODES} types, or more than {MAX_SCHEMA_DEPTH} of them"
                " within each other"
            )
        self.depth += 1
        try:
            return self._resolving(writer, reader, logical_types)
        finally:
            self.depth -= 1

    def _resolving(
        self, typed: Datum, wanted: Datum | None, logical_types: tuple[str, ...]
    ) -> Reader:
        logical_types += tuple(_logical_types(typed, self.writer_names))
        writer = _plain(typed, self.writer_names)
        _check_legal(writer)
        if isinstance(writer, list):
            return union_reader([self._branch(branch, wanted, logical_types) for branch in writer])
        kind = writer if isinstance(writer, str) else writer["type"]
        if wanted is None:
            return PRIMITIVE_SKIPPERS[kind] if kind in PRIMITIVES else self._skipping(writer, kind)
        reader = _plain(wanted, self.reader_names)
        if isinstance(reader, list):
            wanted = self._matching_branch(writer, reader)
            reader = _plain(wanted, self.reader_names)
        if not self._matches(writer, reader):
            raise UnreadableSchemaError(f"has {_shown(writer)} where {_shown(reader)} is needed")
        factor = self._factor(kind, wanted, tuple(dict.fromkeys(logical_types)))
        if kind not in PRIMITIVES:
            return self._reading(writer, kind, reader)
        read = PRIMITIVE_READERS[_promoted(kind, reader)]
        return read if factor is None or factor == 1 else scaled_reader(read, factor)

    def _factor(self, kind: str, wanted: Datum, logical_types: tuple[str, ...]) -> int | None:
        """The factor of a type of the writer schema, which is noted for the field."""
        name = " and ".join(logical_types)
        factor: int | None = None
        if not name or (kind == "string" and name == "uuid"):
            factor = 1
        elif _MICROS in _logical_types(wanted, self.reader_names):
            factor = _IN_MICROS.get(name)
        elif name == _MICROS and self.path and self.path[-1] in _CELL_TIMES:
            factor = 1
        self.factors.setdefault(".".join(self.path), {})[name] = factor
        return factor

    def _skipping(self, writer: Datum, kind: str) -> Reader:
        match kind:
            case "record" | "error":
                return self._record(writer, None)
            case "enum":
                return read_int
            case "array":
                return blocks_skipper([self._item(writer["items"], None)])
            case "map":
                return blocks_skipper([skip_bytes, self._item(writer["values"], None)])
            case "fixed":
                return fixed_reader(_size(writer))
        raise UnreadableSchemaError(f"has the type {kind}, which Avro does not have")

    def _reading(self, writer: Datum, kind: str, reader: Datum) -> Reader:
        match kind:
            case "record" | "error":
                return self._record(writer, reader)
            case "enum":
                return enum_reader(_translated(writer["symbols"], reader))
            case "array":
                return array_reader(self._item(writer["items"], reader["items"]))
            case "map":
                return map_reader(self._item(writer["values"], reader["values"]))
            case "fixed":
                return fixed_reader(_size(writer))
        raise UnreadableSchemaError(f"has the type {kind}, which Avro does not have")

    def _branch(
        self, writer: Datum, reader: Datum | None, logical_types: tuple[str, ...]
    ) -> Reader:
        """Compile a branch. One that does not fit is an error only when a record uses it."""
        try:
            return self.resolving(writer, reader, logical_types)
        except _RefusedSchemaError:
            raise
        except UnreadableSchemaError as error:
            return refusing_reader(f"the writer's schema {error}")

    def _matching_branch(self, writer: Datum, reader: list[Datum]) -> Datum:
        plain = [(branch, _plain(branch, self.reader_names)) for branch in reader]
        fitting = [(branch, reader) for branch, reader in plain if self._matches(writer, reader)]
        if not fitting:
            raise UnreadableSchemaError(
                f"has {_shown(writer)} where one of"
                f" {', '.join(_shown(expected) for _, expected in plain)} is needed"
            )
        # One of the same kind comes before those that the value can be promoted to.
        return min(fitting, key=lambda pair: _kind(pair[1]) != _kind(writer))[0]

    def _matches(self, writer: Datum, reader: Datum) -> bool:
        """Compare two types without their content.

        The kinds must be equal or promotable. Named types must have the same name without
        namespace, or an alias.
        """
        kinds = _kind(writer), _kind(reader)
        if kinds[0] != kinds[1]:
            return kinds in _PROMOTIONS
        if kinds[0] in _NAMED:
            name = _last_part(writer["name"])
            return name == _last_part(reader["name"]) or name in map(
                _last_part, reader.get("aliases", ())
            )
        return True

    def _item(self, writer: Datum, reader: Datum | None) -> Reader:
        item = self.resolving(writer, reader)
        if not self._has_bytes(writer):
            raise _RefusedSchemaError("has a list whose items have no bytes")
        return item

    def _has_bytes(self, writer: Datum) -> bool:
        """Return whether every value of the type has at least one byte.

        The type is already compiled, so it is small and not recursive.
        """
        writer = _plain(writer, self.writer_names)
        match _kind(writer):
            case "null":
                return False
            case "fixed":
                return bool(writer["size"] > 0)
            case "record" | "error":
                return any(self._has_bytes(field["type"]) for field in writer["fields"])
        return True

    def _record(self, writer: Datum, reader: Datum | None) -> Reader:
        if writer["name"] in self.open_records:
            raise _RefusedSchemaError(f"has the type {writer['name']}, which contains itself")
        self.open_records.append(writer["name"])
        try:
            return self._open_record(writer, reader)
        finally:
            self.open_records.pop()

    def _open_record(self, writer: Datum, reader: Datum | None) -> Reader:
        wanted = {} if reader is None else {field["name"]: field for field in reader["fields"]}
        aliases = {
            alias: name for name, field in wanted.items() for alias in field.get("aliases", ())
        }
        steps: list[tuple[str, Reader, bool]] = []
        for field in writer["fields"]:
            target = field["name"] if field["name"] in wanted else aliases.get(field["name"], "")
            reader_field = wanted.pop(target, None)
            if reader_field is None:
                if reader is not None:
                    self.unknown_fields.add(f"{_last_part(writer['name'])}.{field['name']}")
                steps.append((str(field["name"]), self.resolving(field["type"], None), False))
            else:
                beside = field.get("logicalType")  # a frequent mistake, which says a unit, too
                logical_types = () if beside is None else (str(beside),)
                self.path.append(target)
                try:
                    read = self.resolving(field["type"], reader_field["type"], logical_types)
                finally:
                    self.path.pop()
                steps.append((target, read, True))
        defaults = {}
        for name, field in wanted.items():
            if "default" not in field:
                raise UnreadableSchemaError(f"does not have the field {name} of {_shown(reader)}")
            defaults[name] = _default(_plain(field["type"], self.reader_names), field["default"])
        return record_reader(steps, defaults)


def _plain(schema: Datum, names: Mapping[str, Datum]) -> Datum:
    """Resolve names and wrappers to a primitive name, a list, or a complex type."""
    while True:
        if isinstance(schema, str) and schema not in PRIMITIVES:
            if schema not in names:
                raise UnreadableSchemaError(f"uses the type {schema} without its definition")
            schema = names[schema]
        elif isinstance(schema, dict) and schema["type"] not in _COMPLEX:
            schema = schema["type"]
        else:
            return schema


def _logical_types(schema: Datum, names: Mapping[str, Datum]) -> Iterator[str]:
    """Yield the logical types of a type, of its wrappers and of the type that it names."""
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    while isinstance(schema, dict):
        if schema.get("logicalType") is not None:
            yield str(schema["logicalType"])
        schema = None if schema["type"] in _COMPLEX else schema["type"]


_is_name = re.compile(r"[^\W\d]\w*").fullmatch


def _check_legal(writer: Datum) -> None:
    """Refuse a schema that Avro for Java refuses as a whole, but fastavro accepts."""
    if isinstance(writer, str):
        return
    names = [_last_part(writer["name"])] if "name" in writer else []
    if isinstance(writer, list):
        unnamed = [
            _kind(branch)
            for branch in writer
            if isinstance(branch, list) or _kind(branch) not in _NAMED
        ]
        if "union" in unnamed or len(set(unnamed)) < len(unnamed):
            raise _RefusedSchemaError(
                "has a union within a union, or of two types that cannot be distinguished"
            )
    elif "fields" in writer:
        fields = [field["name"] for field in writer["fields"]]
        if len(set(fields)) < len(fields):
            raise _RefusedSchemaError(f"has two fields with the same name in {_shown(writer)}")
        names += fields
    elif "symbols" in writer:
        symbols = writer["symbols"]
        if len(set(symbols)) < len(symbols):
            raise _RefusedSchemaError(f"has a symbol twice in {_shown(writer)}")
        names += symbols
    for name in names:
        if not _is_name(name) or name == writer.get("name") in PRIMITIVES:
            raise _RefusedSchemaError(f"has the name {name!r}, which Avro does not allow")


def _promoted(kind: str, reader: Datum) -> str:
    return str(reader) if (kind, reader) in _PROMOTIONS else kind


def _size(fixed: Datum) -> int:
    size = fixed["size"]
    if not isinstance(size, int) or size < 0:
        raise _RefusedSchemaError(f"has the size {size!r}")
    return size


def _kind(schema: Datum) -> str:
    if isinstance(schema, list):
        return "union"
    return str(schema if isinstance(schema, str) else schema["type"])


def _shown(schema: Datum) -> str:
    return str(schema.get("name", schema["type"])) if isinstance(schema, dict) else _kind(schema)


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _default(schema: Datum, default: Datum) -> Datum:
    """Convert a default of the reader schema to a datum.

    In JSON, Avro writes bytes as Latin-1 text. The default of a union has the type of its first
    branch.
    """
    return default.encode("iso-8859-1") if schema == "bytes" else default


def _translated(symbols: list[str], reader: Datum) -> list[str | None]:
    """Return the reader's symbol for each of the writer, or its default, or None."""
    names = frozenset(reader["symbols"])
    return [symbol if symbol in names else reader.get("default") for symbol in symbols]
