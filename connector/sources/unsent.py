"""Values that Debezium does not send (SRC-3).

PostgreSQL does not log a large value (TOAST) that an UPDATE does not touch. Debezium 3.6 sends this
for it:

    type of the column                                                    sent
    a text: also JSON, XML, ranges, hstore, tsvector; bytea               a placeholder
    text[], varchar[], char[], json[], jsonb[], uuid[], int[], bigint[]   a placeholder
    other arrays, and arrays of a domain                                  null
    bit and varbit, geometry                                              null, or no bits

Null is sent for NULL, too. With `REPLICA IDENTITY FULL`, an update has the row before, and all
values. A number is never large: PostgreSQL keeps it in its row.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from connector.sources.schemas import SOURCE_TYPE, Field

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""Debezium's `unavailable.value.placeholder`."""


def _avro_long(number: int) -> bytes:
    number <<= 1
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


_RAW: Final = PLACEHOLDER.encode()
_IN_BASE64: Final = b64encode(_RAW)
_NUMBERS: Final = b",".join(b"%d" % byte for byte in _RAW)
_UUID: Final = b"b68a35a7-17ad-35b3-af2a-ae46edb4545a"
"""The UUID of the name, of version 3, as Java has it."""
_TEXTS: Final = (_RAW, _IN_BASE64, _UUID)
PLACEHOLDERS: Final = frozenset(
    {
        *_TEXTS,
        *(b'["' + text + b'"]' for text in _TEXTS),
        b"[" + _NUMBERS + b"]",
        b'{"' + _RAW + b'":"' + _RAW + b'"}',
    }
)
"""The natural texts of a value that PostgreSQL did not send, by the type of its column."""
_IN_AVRO: Final = b"".join(map(_avro_long, _RAW))
_OF_UNIONS: Final = tuple(
    b"".join(branch + _avro_long(byte) for byte in _RAW) for branch in (b"\x00", b"\x02")
)
"""Numbers in Avro, where an item can be NULL: each is behind the number of its branch."""


def may_lack_values(record: bytes) -> bool:
    """Whether a record may have a placeholder."""
    texts = _RAW in record or _IN_BASE64 in record or _UUID in record
    numbers = _NUMBERS in record or _IN_AVRO in record
    return texts or numbers or _OF_UNIONS[0] in record or _OF_UNIONS[1] in record


def hides_values(field: Field) -> bool:
    """Whether null may stand for a value of the field that was not sent."""
    if field.base == "array":
        return field.parameters.get(SOURCE_TYPE, "") not in _ARRAYS_WITH_PLACEHOLDER
    if field.logical == "io.debezium.data.Bits":
        length = field.parameters.get("length", "")
        return not length.isdecimal() or int(length) > _SHORT_BITS
    return field.base == "struct" and field.logical not in _SMALL_STRUCTS


_ARRAYS_WITH_PLACEHOLDER: Final = frozenset(
    ("_TEXT", "_VARCHAR", "_BPCHAR", "_JSON", "_JSONB", "_UUID", "_INT4", "_INT8")
)
_SHORT_BITS: Final = 128
"""PostgreSQL keeps so many bits in their row."""
_SMALL_STRUCTS: Final = ("io.debezium.data.VariableScaleDecimal", "io.debezium.data.geometry.Point")
