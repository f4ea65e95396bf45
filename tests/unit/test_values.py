"""The public functions for values of columns (EVO-6)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from connector.errors import ConfigError, InvalidChangeError
from connector.values import DataType, Encoding, RangeType, cell_bytes, type_of


def test_cells_in_binary_encoding() -> None:
    """TBL-7."""
    assert cell_bytes(DataType.INT64, "1", Encoding.BINARY) == bytes(7) + b"\x01"
    with pytest.raises(ConfigError, match="'INT' is not a type"):
        cell_bytes("INT", 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [(Decimal("0E-9"), b"0"), (Decimal("1E+3"), b"1000"), (1e22, b"1" + b"0" * 22)],
)
def test_the_text_of_a_number_is_not_that_of_python(value: object, text: bytes) -> None:
    """EVO-6: a NUMERIC column does not read what `str` makes of these."""
    assert cell_bytes("NUMERIC", value) == text
    assert str(value).encode() != text


def test_a_type_has_parts() -> None:
    """EVO-6."""
    assert type_of("range<date>") == RangeType(DataType.DATE)
    with pytest.raises(InvalidChangeError, match="start before its end"):
        cell_bytes("RANGE<DATE>", {"start": 1, "end": 1})
