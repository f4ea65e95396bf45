from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from connector.errors import InvalidChangeError
from connector.tables.ordered_key import (
    NUMBER_RANGE,
    join_parts,
    read_number,
    read_part,
    split_parts,
    write_number,
    write_part,
)
from connector.tables.values import TIMESTAMP_MAX, DataType, Unreadable

PUBLISHED_NUMBERS = {
    0: "80",
    1: "81",
    63: "bf",
    64: "c040",
    255: "c0ff",
    256: "c100",
    8388608: "f0800000",
    134217727: "f7ffffff",
    134217728: "f808000000",
    2**55 - 1: "ff7fffffffffffff",
    2**55: "ff8080000000000000",
    2**62 - 1: "ffbfffffffffffffff",
    2**62: "ffc04000000000000000",
    2**63 - 1: "ffc07fffffffffffffff",
    -1: "7f",
    -64: "40",
    -65: "3fbf",
    -256: "3f00",
    -8193: "1fdfff",
    -(2**48) - 1: "00feffffffffffff",
    1 - 2**63: "003f8000000000000001",
}
"""From the tests of Google's OrderedCode."""


@pytest.mark.parametrize("number", PUBLISHED_NUMBERS)
def test_numbers_are_those_of_ordered_code(number: int) -> None:
    """TBL-7."""
    piece = bytes.fromhex(PUBLISHED_NUMBERS[number])
    assert write_number(number) == piece
    assert read_number(piece) == number


@pytest.mark.parametrize(
    "piece",
    ["", "00", "ff", "c000", "c03f", "3fff", "80ff", "c0", "e000", "fffc", "00ff00", "f8000000ff"],
)
def test_an_invalid_number_is_not_read(piece: str) -> None:
    """TBL-7: nothing, too few bytes, too many."""
    assert read_number(bytes.fromhex(piece)) is None


@pytest.mark.parametrize(
    ("parts", "row_key"),
    [
        ((b"",), b"\x00\x00"),
        ((b"", b""), b"\x00\x00"),
        ((b"", b"B"), b"\x00\x00\x00\x01B"),
        ((b"A", b""), b"A"),
        ((b"", b"B", b""), b"\x00\x00\x00\x01B"),
        ((b"A", b"", b"C"), b"A\x00\x01\x00\x00\x00\x01C"),
        ((b"A\x00B", b"C"), b"A\x00\xffB\x00\x01C"),
        ((b"\x00", b"\x00\x01\xff"), b"\x00\xff\x00\x01\x00\xff\x01\xff"),
    ],
)
def test_parts_are_joined_as_bigtable_joins_them(parts: tuple[bytes, ...], row_key: bytes) -> None:
    """TBL-7: the examples of Bigtable's reference, and 00 inside a part."""
    assert join_parts(parts) == row_key
    assert split_parts(row_key, len(parts)) == list(parts)


@pytest.mark.parametrize(
    "row_key",
    [
        b"",
        b"A\x00\x01B\x00\x01C",
        b"A\x00\x01",
        b"\x00\x01A",
        b"A\x00\x01\x00\x00",
        b"\x00\x00\x00\x01\x00\x00",
        b"A\x00",
        b"\x00A\x00\x01B",
        b"\x00\x00A",
        b"A\x00\x00\x00\x01B",
        b"\x00\x00\xff",
    ],
)
def test_a_key_that_would_not_be_joined_the_same_has_no_parts(row_key: bytes) -> None:
    """TBL-7: parts too many, without bytes, empty at the end, with 00 not escaped."""
    assert split_parts(row_key, 2) == []


@pytest.mark.parametrize(
    ("type_", "value", "piece"),
    [
        (DataType.STRING, "ä\x00", "c3a400"),
        (DataType.BYTES, b"\xff", "ff"),
        (DataType.BOOL, False, "80"),
        (DataType.BOOL, True, "81"),
        (DataType.INT64, -65, "3fbf"),
        (DataType.NUMERIC, Decimal("-0.0"), "80"),
        (DataType.NUMERIC, Decimal("0.000000001"), "81"),
        (DataType.NUMERIC, Decimal("1.50"), "f859682f00"),
        (DataType.NUMERIC, Decimal(-1), "07c4653600"),
        (DataType.DATE, date(1969, 12, 31), "7f"),
        (DataType.DATE, date(2024, 2, 29), "e04d46"),
        (DataType.TIMESTAMP, 1_700_000_000_000_000, "ff060a24181e4000"),
    ],
)
def test_parts_read_and_write(type_: DataType, value: object, piece: str) -> None:
    """TBL-7."""
    assert write_part(type_, value).hex() == piece
    assert read_part(type_, bytes.fromhex(piece)) == value
    assert type(read_part(type_, bytes.fromhex(piece))) is type(value)


@pytest.mark.parametrize("type_", NUMBER_RANGE)
def test_numbers_beyond_the_values_of_a_type_are_unreadable(type_: DataType) -> None:
    """TBL-7: the least and the greatest are values, and nothing beyond."""
    least, greatest = NUMBER_RANGE[type_]
    for number in (least, greatest):
        assert write_part(type_, read_part(type_, write_number(number))) == write_number(number)
    for number in (least - 1, greatest + 1):
        assert read_part(type_, write_number(number)) == Unreadable(
            f"{type_} in order-preserving form", write_number(number)
        )


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (DataType.BOOL, 1),
        (DataType.INT64, 2**63),
        (DataType.TIMESTAMP, TIMESTAMP_MAX + 1),
        (DataType.STRING, "\ud800"),
    ],
)
def test_a_value_that_the_type_does_not_have_is_not_written(type_: DataType, value: object) -> None:
    with pytest.raises(InvalidChangeError):
        write_part(type_, value)
