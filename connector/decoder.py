"""Avro bytes to values, for bytes from anywhere.

`compile_reader` turns a writer schema and our reader schema into one function that reads a body and resolves it (REC-12).
Fields are matched by name, missing ones get the reader's default, unknown ones are dropped, an enum symbol that the reader
lacks becomes its default, `string` and `bytes` may stand for each other and `int` for `long`.

What such a function does on *any* bytes is bounded, and is what Avro for Java does (the JVM decodes first, and both must agree):

- a number has at most 10 bytes (`int` 5), surplus high bits are dropped; a boolean is true if its byte is 1;
- a length is neither negative nor above 16 MiB, nor more than the bytes that are left;
- an array or map comes in any number of blocks, with their sizes or without, and has at most 1,000,000 items; a size is not
  looked at;
- a string is valid UTF-8 (stricter than Java, which replaces what is not);
- what is dropped is skipped, not judged: a length below 0 counts as 0, blocks with a size are skipped by it, text may be
  anything, and the number of items has no limit;
- no item is without bytes and no schema is recursive or huge: such schemas are refused, so work is linear in the bytes.

Whatever breaks this raises `DamagedError`, which knows the byte and the field. It never leaves `connector.codec`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

MAX_LENGTH_BYTES: Final = 16 * 1024 * 1024
MAX_ITEMS: Final = 1_000_000
MAX_SCHEMA_NODES: Final = 1_000
"""A ChangeRecord has about 80 types, each use counted; this bounds the work that a schema can ask for."""

MAX_SCHEMA_DEPTH: Final = 64

Datum = Any
"""What a schema describes, as Python values: dict, list, str, bytes, int, float, bool, None; an enum is its symbol."""

Reader = Callable[[bytes, int], tuple[Datum, int]]
"""`reader(data, start)` gives the datum that begins at `start` and where it ends. Raises `DamagedError`."""

_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED: Final = ("record", "error", "enum", "fixed")
_COMPLEX: Final = (*_NAMED, "array", "map")
_PROMOTIONS: Final = frozenset({("int", "long"), ("string", "bytes"), ("bytes", "string")})
_LONG_MASK: Final = 2**64 - 1
_INT_MASK: Final = 2**32 - 1


class DamagedError(Exception):
    """The bytes are no datum of the schema. `offset` counts from the start of the data that was handed in."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(offset, what)
        self.offset = offset
        self.what = what
        self.path: list[str] = []


class UnreadableSchemaError(Exception):
    """A writer schema that no reader can be made for: not compatible, recursive, or too large."""


class _RefusedSchemaError(UnreadableSchemaError):
    """What is wrong is not a matter of the one branch of a union that it was found in: nothing is read with such a schema."""


def compile_reader(writer: Datum, reader: Datum) -> Reader:
    """The function that reads what `writer` wrote as what `reader` describes. Raises `UnreadableSchemaError`.

    Both are schemas as `fastavro.parse_schema` returns them: names are full, references are names.
    """
    return _Compiler(_names(writer), _names(reader)).resolving(writer, reader)


def _names(schema: Datum) -> dict[str, Datum]:
    """Every named type of a parsed schema, by its full name."""
    found: dict[str, Datum] = {}
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict):
            if node.get("type") in ("record", "error", "enum", "fixed"):
                found[node["name"]] = node
            waiting.extend(field["type"] for field in node.get("fields", ()))
            waiting.extend(node[part] for part in ("type", "items", "values") if isinstance(node.get(part), (dict, list)))
    return found


class _Compiler:
    """Makes readers for the types of one pair of schemas. A reader schema of None means: read it, and drop it."""

    def __init__(self, writer_names: Mapping[str, Datum], reader_names: Mapping[str, Datum]) -> None:
        self.writer_names = writer_names
        self.reader_names = reader_names
        self.open_records: list[str] = []
        self.nodes = 0
        self.depth = 0

    def resolving(self, writer: Datum, reader: Datum | None) -> Reader:
        self.nodes += 1
        if self.nodes > MAX_SCHEMA_NODES or self.depth >= MAX_SCHEMA_DEPTH:
            raise _RefusedSchemaError(f"has more than {MAX_SCHEMA_NODES} types, or more than {MAX_SCHEMA_DEPTH} of them within each other")
        self.depth += 1
        try:
            return self._resolving(writer, reader)
        finally:
            self.depth -= 1

    def _resolving(self, writer: Datum, reader: Datum | None) -> Reader:
        writer = _plain(writer, self.writer_names)
        reader = None if reader is None else _plain(reader, self.reader_names)
        _check_legal(writer)
        if isinstance(writer, list):
            return _union_reader([self._branch(branch, reader) for branch in writer])
        if isinstance(reader, list):
            reader = self._matching_branch(writer, reader)
        kind = writer if isinstance(writer, str) else writer["type"]
        if reader is not None and not self._matches(writer, reader):
            raise UnreadableSchemaError(f"has {_shown(writer)} where {_shown(reader)} is needed")
        if kind in _PRIMITIVES:
            return _PRIMITIVE_SKIPPERS[kind] if reader is None else _PRIMITIVE_READERS[_promoted(kind, reader)]
        return self._skipping(writer, kind) if reader is None else self._reading(writer, kind, reader)

    def _skipping(self, writer: Datum, kind: str) -> Reader:
        match kind:
            case "record" | "error":
                return self._record(writer, None)
            case "enum":
                return _read_int
            case "array":
                return _blocks_skipper([self._item(writer["items"], None)])
            case "map":
                return _blocks_skipper([_skip_bytes, self._item(writer["values"], None)])
            case "fixed":
                return _fixed_reader(_size(writer))
        raise UnreadableSchemaError(f"has a type {kind} that is none of Avro's")

    def _reading(self, writer: Datum, kind: str, reader: Datum) -> Reader:
        match kind:
            case "record" | "error":
                return self._record(writer, reader)
            case "enum":
                return _enum_reader(_translated(writer["symbols"], reader))
            case "array":
                return _array_reader(self._item(writer["items"], reader["items"]))
            case "map":
                return _map_reader(self._item(writer["values"], reader["values"]))
            case "fixed":
                return _fixed_reader(_size(writer))
        raise UnreadableSchemaError(f"has a type {kind} that is none of Avro's")

    def _branch(self, writer: Datum, reader: Datum | None) -> Reader:
        """A branch of a union that does not fit is an error only where it is used."""
        try:
            return self.resolving(writer, reader)
        except _RefusedSchemaError:
            raise
        except UnreadableSchemaError as error:
            return _refusing_reader(f"the writer's schema {error}")

    def _matching_branch(self, writer: Datum, reader: list[Datum]) -> Datum:
        branches = [_plain(branch, self.reader_names) for branch in reader]
        exact = [branch for branch in branches if _kind(branch) == _kind(writer) and self._matches(writer, branch)]
        for branch in exact or branches:
            if self._matches(writer, branch):
                return branch
        raise UnreadableSchemaError(f"has {_shown(writer)} where none of {', '.join(_shown(branch) for branch in branches)} is")

    def _matches(self, writer: Datum, reader: Datum) -> bool:
        """As far as can be said without looking inside: the same kind, and for named types the same name without namespace."""
        kinds = _kind(writer), _kind(reader)
        if kinds[0] != kinds[1]:
            return kinds in _PROMOTIONS
        if kinds[0] in _NAMED:
            name = _last_part(writer["name"])
            return name == _last_part(reader["name"]) or name in map(_last_part, reader.get("aliases", ()))
        return True

    def _item(self, writer: Datum, reader: Datum | None) -> Reader:
        item = self.resolving(writer, reader)
        if not self._has_bytes(writer):
            raise _RefusedSchemaError("has a list of items that take no bytes")
        return item

    def _has_bytes(self, writer: Datum) -> bool:
        """Whether every value of the type takes at least one byte. The type has been compiled, so it is small and not recursive."""
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
            raise _RefusedSchemaError(f"has the type {writer['name']} within itself")
        self.open_records.append(writer["name"])
        try:
            return self._open_record(writer, reader)
        finally:
            self.open_records.pop()

    def _open_record(self, writer: Datum, reader: Datum | None) -> Reader:
        wanted = {} if reader is None else {field["name"]: field for field in reader["fields"]}
        aliases = {alias: name for name, field in wanted.items() for alias in field.get("aliases", ())}
        steps: list[tuple[str, Reader, bool]] = []
        for field in writer["fields"]:
            target = field["name"] if field["name"] in wanted else aliases.get(field["name"], "")
            found = wanted.pop(target, None)
            if found is None:
                steps.append((str(field["name"]), self.resolving(field["type"], None), False))
            else:
                steps.append((target, self.resolving(field["type"], found["type"]), True))
        defaults = {}
        for name, field in wanted.items():
            if "default" not in field:
                raise UnreadableSchemaError(f"lacks the field {name} of {_shown(reader)}")
            defaults[name] = _default(_plain(field["type"], self.reader_names), field["default"])
        return _record_reader(steps, defaults)


def _plain(schema: Datum, names: Mapping[str, Datum]) -> Datum:
    """A schema without wrapping: a primitive's name, a list, or the dict of a complex type."""
    while True:
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            if schema not in names:
                raise UnreadableSchemaError(f"uses the type {schema} without saying what it is")
            schema = names[schema]
        elif isinstance(schema, dict) and schema["type"] not in _COMPLEX:
            schema = schema["type"]
        else:
            return schema


_is_name = re.compile(r"[^\W\d]\w*").fullmatch


def _check_legal(writer: Datum) -> None:
    """What the library that parses schemas lets pass although Avro forbids it. Java refuses such a schema as a whole."""
    if isinstance(writer, str):
        return
    names = [_last_part(writer["name"])] if "name" in writer else []
    if isinstance(writer, list):
        unnamed = [_kind(branch) for branch in writer if isinstance(branch, list) or _kind(branch) not in _NAMED]
        if "union" in unnamed or len(set(unnamed)) < len(unnamed):
            raise _RefusedSchemaError("has a union within a union, or of two types that cannot be told apart")
    elif "fields" in writer:
        fields = [field["name"] for field in writer["fields"]]
        if len(set(fields)) < len(fields):
            raise _RefusedSchemaError(f"has two fields of one name in {_shown(writer)}")
        names += fields
    for name in names:
        if not _is_name(name) or name in _PRIMITIVES:
            raise _RefusedSchemaError(f"has the name {name!r}, which is not legal")


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
    """A default of the reader schema as a datum: JSON has no bytes, Avro writes them there as Latin-1. A union's is of its first branch."""
    return default.encode("iso-8859-1") if schema == "bytes" else default


def _translated(symbols: list[str], reader: Datum) -> list[str | None]:
    """The reader's symbol for each of the writer's; None where the reader has neither it nor a default."""
    known = frozenset(reader["symbols"])
    return [symbol if symbol in known else reader.get("default") for symbol in symbols]


def _read_long(data: bytes, start: int) -> tuple[int, int]:
    byte = data[start]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), start + 1
    return _read_number(data, start, 70, _LONG_MASK)


def _read_int(data: bytes, start: int) -> tuple[int, int]:
    byte = data[start]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), start + 1
    return _read_number(data, start, 35, _INT_MASK)


def _read_number(data: bytes, start: int, max_bits: int, mask: int) -> tuple[int, int]:
    number = 0
    end = start
    for shift in range(0, max_bits, 7):
        byte = data[end]
        end += 1
        number |= (byte & 127) << shift
        if byte < 128:
            number &= mask
            return (number >> 1) ^ -(number & 1), end
    raise DamagedError(start, f"a number of more than {max_bits // 7} bytes")


def _read_bytes(data: bytes, start: int) -> tuple[bytes, int]:
    length = data[start]
    if length < 128 and not length & 1:
        begin = start + 1
        end = begin + (length >> 1)
    else:
        length, begin = _read_number(data, start, 70, _LONG_MASK)
        if length < 0:
            raise DamagedError(start, f"a negative length, {length}")
        if length > MAX_LENGTH_BYTES:
            raise DamagedError(start, f"a length of {length} bytes, above the limit of {MAX_LENGTH_BYTES}")
        end = begin + length
    if end > len(data):
        raise DamagedError(start, f"{end - begin} bytes announced, {len(data) - begin} left")
    return data[begin:end], end


def _read_string(data: bytes, start: int) -> tuple[str, int]:
    text, end = _read_bytes(data, start)
    try:
        return text.decode(), end
    except UnicodeDecodeError as error:
        raise DamagedError(end - len(text) + error.start, "text that is not UTF-8") from None


def _read_null(_data: bytes, start: int) -> tuple[None, int]:
    return None, start


def _read_boolean(data: bytes, start: int) -> tuple[bool, int]:
    return data[start] == 1, start + 1


def _fixed_reader(size: int) -> Reader:
    def read(data: bytes, start: int) -> tuple[bytes, int]:
        if start + size > len(data):
            raise DamagedError(start, f"{size} bytes needed, {len(data) - start} left")
        return data[start : start + size], start + size

    return read


_PRIMITIVE_READERS: Final[Mapping[str, Reader]] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": _read_long,
    "float": _fixed_reader(4),  # nothing of ours is a floating point number: read only to be dropped
    "double": _fixed_reader(8),
    "bytes": _read_bytes,
    "string": _read_string,
}


def _skip_bytes(data: bytes, start: int) -> tuple[None, int]:
    length, begin = _read_long(data, start)
    end = begin + max(0, length)
    if end > len(data):
        raise DamagedError(start, f"{length} bytes announced, {len(data) - begin} left")
    return None, end


_PRIMITIVE_SKIPPERS: Final[Mapping[str, Reader]] = {**_PRIMITIVE_READERS, "bytes": _skip_bytes, "string": _skip_bytes}


def _refusing_reader(what: str) -> Reader:
    def read(_data: bytes, start: int) -> tuple[Datum, int]:
        raise DamagedError(start, what)

    return read


def _record_reader(steps: list[tuple[str, Reader, bool]], defaults: Mapping[str, Datum]) -> Reader:
    def read(data: bytes, start: int) -> tuple[dict[str, Datum], int]:
        record: dict[str, Datum] = {}
        end = start
        name = ""
        try:
            for name, reader, kept in steps:
                if kept:
                    record[name], end = reader(data, end)
                else:
                    _, end = reader(data, end)
        except IndexError:
            error = DamagedError(len(data), "the end of the bytes")
            error.path.append(name)
            raise error from None
        except DamagedError as error:
            error.path.append(name)
            raise
        for missing, default in defaults.items():
            record[missing] = [] if default == [] else default
        return record, end

    return read


def _enum_reader(symbols: list[str | None]) -> Reader:
    def read(data: bytes, start: int) -> tuple[str, int]:
        index, end = _read_int(data, start)
        if not 0 <= index < len(symbols):
            raise DamagedError(start, f"symbol {index} of an enum with {len(symbols)}")
        symbol = symbols[index]
        if symbol is None:
            raise DamagedError(start, f"symbol {index} of an enum, which this release does not know")
        return symbol, end

    return read


def _union_reader(branches: list[Reader]) -> Reader:
    def read(data: bytes, start: int) -> tuple[Datum, int]:
        try:
            index, end = _read_int(data, start)
        except IndexError:  # a union may be the whole schema: no record around it would catch this
            raise DamagedError(len(data), "the end of the bytes") from None
        if not 0 <= index < len(branches):
            raise DamagedError(start, f"branch {index} of a union with {len(branches)}")
        return branches[index](data, end)

    return read


def _read_block_start(data: bytes, start: int, items_so_far: int) -> tuple[int, int]:
    """How many items follow, and where they begin."""
    count, begin = _read_long(data, start)
    if count < 0:
        # Java has no 2^63, and takes its negative for an empty array if it comes first.
        count = -count if items_so_far or count > -(2**63) else 0
        _, begin = _read_long(data, begin)
    if items_so_far + count > MAX_ITEMS:
        raise DamagedError(start, f"{items_so_far + count} items, above the limit of {MAX_ITEMS}")
    return count, begin


def _array_reader(item: Reader) -> Reader:
    def read(data: bytes, start: int) -> tuple[list[Datum], int]:
        items: list[Datum] = []
        end = start
        while True:
            count, end = _read_block_start(data, end, len(items))
            if count == 0:
                return items, end
            try:
                for _ in range(count):
                    datum, end = item(data, end)
                    items.append(datum)
            except DamagedError as error:
                error.path.append(f"[{len(items)}]")
                raise

    return read


def _map_reader(value: Reader) -> Reader:
    def read(data: bytes, start: int) -> tuple[dict[str, Datum], int]:
        values: dict[str, Datum] = {}
        read_so_far = 0
        end = start
        while True:
            count, end = _read_block_start(data, end, read_so_far)
            if count == 0:
                return values, end
            for _ in range(count):
                key, end = _read_string(data, end)
                values[key], end = value(data, end)
            read_so_far += count

    return read


def _blocks_skipper(parts: list[Reader]) -> Reader:
    """Skips an array or a map whose items consist of these parts."""

    def read(data: bytes, start: int) -> tuple[None, int]:
        end = start
        while True:
            count, end = _read_long(data, end)
            if count == 0:
                return None, end
            if count < 0:
                _, end = _skip_bytes(data, end)
            for _ in range(count):
                for part in parts:
                    _, end = part(data, end)

    return read
