"""Decodes Avro. The input may be any bytes.

`connector.records.avro_plan.compile_plan` compiles a writer schema and the reader schema to one
function, which reads a body and resolves it (REC-12). Fields are matched by name. Missing fields
get the default of the reader, and unknown fields are dropped. An enum symbol that the reader does
not have becomes its default. `string` and `bytes` can replace each other. An `int` can be read as a
`long`.

The JVM decodes first, and both must agree. Therefore the function behaves as Avro for Java, with
these limits for *any* bytes:

- A number has at most 10 bytes (`int`: 5). Extra high bits are dropped. A boolean is true if its
  byte is 1.
- A length is not negative, is at most 16 MiB, and is at most the number of bytes that are left.
- An array or map may have any number of blocks, with or without block sizes. It has at most
  1,000,000 items. Block sizes are ignored.
- A string is valid UTF-8. Java is less strict: it replaces invalid bytes.
- A dropped value is skipped, not checked. A negative length counts as 0, a block with a size is
  skipped by its size, text may be any bytes, and the number of items has no limit.
- Schemas with items of zero bytes, recursive schemas and very large schemas are refused. So the
  work is linear in the number of bytes.

Bytes that break a limit raise `DamagedError`, with the byte and the field.
`connector.records.codec` catches it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

MAX_LENGTH_BYTES: Final = 16 * 1024 * 1024
MAX_ITEMS: Final = 1_000_000

Datum = Any
"""A dict, list, str, bytes, int, float, bool or None. An enum is its symbol."""

Reader = Callable[[bytes, int], tuple[Datum, int]]
"""Returns the datum at `start`, and the offset of its end. Raises `DamagedError`."""

PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
_LONG_MASK: Final = 2**64 - 1
_ENDS_OF_8: Final = 0x8080808080808080
_END_OF_EIGHTH: Final = 0x0080808080808080
_SEVEN_BYTES: Final = 2**56 - 1
_INT_MASK: Final = 2**32 - 1


class DamagedError(Exception):
    """The bytes are not a datum of the schema. `offset` counts from the start of the given data."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(offset, what)
        self.offset = offset
        self.what = what
        self.path: list[str] = []


def read_long(data: bytes, start: int) -> tuple[int, int]:
    byte = data[start]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), start + 1
    # Times in microseconds have eight bytes today. Their bits are joined in pairs. If the data ends
    # before the eighth byte, it counts as 0.
    number = int.from_bytes(data[start : start + 8], "little")
    if number & _ENDS_OF_8 == _END_OF_EIGHTH and number > _SEVEN_BYTES:
        number = (number & 0x007F007F007F007F) | (number & 0x7F007F007F007F00) >> 1
        number = (number & 0x00003FFF00003FFF) | (number & 0x3FFF00003FFF0000) >> 2
        number = (number & 0x0FFFFFFF) | (number & 0x0FFFFFFF00000000) >> 4
        return (number >> 1) ^ -(number & 1), start + 8
    return _read_number(data, start, 70, _LONG_MASK)


def read_int(data: bytes, start: int) -> tuple[int, int]:
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


def read_bytes(data: bytes, start: int) -> tuple[bytes, int]:
    length = data[start]
    if length < 128 and not length & 1:
        begin = start + 1
        end = begin + (length >> 1)
    else:
        length, begin = _read_number(data, start, 70, _LONG_MASK)
        if length < 0:
            raise DamagedError(start, f"a negative length, {length}")
        if length > MAX_LENGTH_BYTES:
            raise DamagedError(
                start, f"a length of {length} bytes, above the limit of {MAX_LENGTH_BYTES}"
            )
        end = begin + length
    if end > len(data):
        raise DamagedError(start, f"{end - begin} bytes announced, {len(data) - begin} left")
    return data[begin:end], end


def read_string(data: bytes, start: int) -> tuple[str, int]:
    text, end = read_bytes(data, start)
    try:
        return text.decode(), end
    except UnicodeDecodeError as error:
        raise DamagedError(end - len(text) + error.start, "text that is not UTF-8") from None


def _read_null(_data: bytes, start: int) -> tuple[None, int]:
    return None, start


def _read_boolean(data: bytes, start: int) -> tuple[bool, int]:
    return data[start] == 1, start + 1


def fixed_reader(size: int) -> Reader:
    def read(data: bytes, start: int) -> tuple[bytes, int]:
        if start + size > len(data):
            raise DamagedError(start, f"{size} bytes needed, {len(data) - start} left")
        return data[start : start + size], start + size

    return read


PRIMITIVE_READERS: Final[Mapping[str, Reader]] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": read_int,
    "long": read_long,
    "float": fixed_reader(
        4
    ),  # our schema has no floating point numbers: these are read only to be dropped
    "double": fixed_reader(8),
    "bytes": read_bytes,
    "string": read_string,
}


def skip_bytes(data: bytes, start: int) -> tuple[None, int]:
    length, begin = read_long(data, start)
    end = begin + max(0, length)
    if end > len(data):
        raise DamagedError(start, f"{length} bytes announced, {len(data) - begin} left")
    return None, end


PRIMITIVE_SKIPPERS: Final[Mapping[str, Reader]] = {
    **PRIMITIVE_READERS,
    "bytes": skip_bytes,
    "string": skip_bytes,
}


def refusing_reader(what: str) -> Reader:
    def read(_data: bytes, start: int) -> tuple[Datum, int]:
        raise DamagedError(start, what)

    return read


def scaled_reader(reader: Reader, factor: int) -> Reader:
    """Return a reader that multiplies a number, up to the last multiple that is a long."""
    most = (2**63 - 1) // factor

    def read(data: bytes, start: int) -> tuple[int, int]:
        number, end = reader(data, start)
        return max(-most, min(most, number)) * factor, end

    return read


def record_reader(steps: list[tuple[str, Reader, bool]], defaults: Mapping[str, Datum]) -> Reader:
    def read(data: bytes, start: int) -> tuple[dict[str, Datum], int]:
        record: dict[str, Datum] = {}
        end = start
        name = ""
        try:
            for name, reader, is_read in steps:
                if is_read:
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


def enum_reader(symbols: list[str | None]) -> Reader:
    def read(data: bytes, start: int) -> tuple[str, int]:
        index, end = read_int(data, start)
        if not 0 <= index < len(symbols):
            raise DamagedError(start, f"symbol {index} of an enum with {len(symbols)}")
        symbol = symbols[index]
        if symbol is None:
            raise DamagedError(
                start, f"symbol {index} of an enum, which this release does not know"
            )
        return symbol, end

    return read


def union_reader(branches: list[Reader]) -> Reader:
    def read(data: bytes, start: int) -> tuple[Datum, int]:
        try:
            index, end = read_int(data, start)
        except IndexError:  # a union may be the whole schema, without a record that catches this
            raise DamagedError(len(data), "the end of the bytes") from None
        if not 0 <= index < len(branches):
            raise DamagedError(start, f"branch {index} of a union with {len(branches)}")
        return branches[index](data, end)

    return read


def _read_block_start(data: bytes, start: int, items_so_far: int) -> tuple[int, int]:
    """Return the number of items in the block, and the offset of the first one."""
    count, begin = read_long(data, start)
    if count < 0:
        # Java has no 2^63. In the first block, it takes -2^63 for an empty array.
        count = -count if items_so_far or count > -(2**63) else 0
        _, begin = read_long(data, begin)
    if items_so_far + count > MAX_ITEMS:
        raise DamagedError(start, f"{items_so_far + count} items, above the limit of {MAX_ITEMS}")
    return count, begin


def array_reader(item: Reader) -> Reader:
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


def map_reader(value: Reader) -> Reader:
    def read(data: bytes, start: int) -> tuple[dict[str, Datum], int]:
        values: dict[str, Datum] = {}
        read_so_far = 0
        end = start
        while True:
            count, end = _read_block_start(data, end, read_so_far)
            if count == 0:
                return values, end
            for _ in range(count):
                key, end = read_string(data, end)
                values[key], end = value(data, end)
            read_so_far += count

    return read


def blocks_skipper(parts: list[Reader]) -> Reader:
    """Return a reader that skips an array or a map. Each item has these parts."""

    def read(data: bytes, start: int) -> tuple[None, int]:
        end = start
        while True:
            count, end = read_long(data, end)
            if count == 0:
                return None, end
            if count < 0:
                _, end = skip_bytes(data, end)
            for _ in range(count):
                for part in parts:
                    _, end = part(data, end)

    return read
