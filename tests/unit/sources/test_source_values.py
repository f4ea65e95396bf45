"""Types of decimals, and texts of floats, of foreign records (SRC-3, SRC-5)."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connector.sources.schemas import Field
from connector.sources.values import kind_of


@pytest.mark.parametrize(
    ("base", "named", "type_", "cell"),
    [
        ("string", "NUMERIC 12 2", "NUMERIC", b"12.5"),
        ("string", "DECIMAL 12 2", "NUMERIC", b"12.5"),
        ("string", "DECIMAL 65 30", "BIGNUMERIC", b"12.5"),
        ("string", "DECIMAL 65 2", "STRING", b"12.5"),
        ("string", "DECIMAL", "BIGNUMERIC", b"12.5"),
        ("string", "VARCHAR 12 2", "STRING", None),
        ("string", "", "STRING", None),
        ("float64", "DECIMAL 12 2", "FLOAT64", b"12.5"),
    ],
)
def test_a_decimal_as_text_has_the_type_that_debezium_names(
    base: str, named: str, type_: str, cell: bytes | None
) -> None:
    """SRC-5: NUMERIC of PostgreSQL and DECIMAL of MySQL, and no other text. None: the value is the
    cell.
    """
    names = (f"__debezium.source.column.{name}" for name in ("type", "length", "scale"))
    parameters = dict(zip(names, named.split(), strict=False))
    kind = kind_of(Field("credit", base, "", parameters), has_zone=False)
    assert str(kind.type) == type_
    assert (kind.of_text and kind.of_text(b"012.50")) == cell


def _of_four_bytes(number: float) -> bytes:
    return struct.pack("<f", number)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(1.100000023841858)
@example(16777216.0)
@example(9876540416.0)  # 9876540000: seven digits of it are not its shortest text
@example(-9876540416.0)
@example(0.10000000894069672)  # nine digits
@example(2.0**-126)
@example(-(2.0**-149))
@example(2.0**-149 * 7)
@example(0.0)
def test_a_float_of_four_bytes_has_its_shortest_text(number: float) -> None:
    """SRC-3, nothing_invented: read back, it is the same number, and no text has fewer digits."""
    convert = kind_of(Field("f", "float32"), has_zone=False).of_value
    assert convert is not None
    read = float(convert(number))
    texts = (float(f"{number:.{digits}g}") for digits in range(1, 10))
    shortest = next(text for text in texts if _of_four_bytes(text) == _of_four_bytes(number))
    assert (read, math.copysign(1, read)) == (shortest, math.copysign(1, number))


@pytest.mark.parametrize(
    ("number", "cell"), [(math.nan, b"NaN"), (math.inf, b"Infinity"), (-math.inf, b"-Infinity")]
)
@pytest.mark.parametrize("base", ["float32", "float64"])
def test_a_float_that_is_no_number_has_its_name(base: str, number: float, cell: bytes) -> None:
    """SRC-3."""
    convert = kind_of(Field("f", base), has_zone=False).of_value
    assert convert is not None
    assert convert(number) == cell
