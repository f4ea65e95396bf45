"""DLQ-6: the bytes of a record's contents."""

from __future__ import annotations

import pytest

from connector.validation import size_of


@pytest.mark.parametrize(
    ("key", "value", "headers", "size"),
    [
        (None, None, (), 0),
        (b"key", None, (), 3),
        (b"key", b"value", (), 8),
        (None, None, (("\ud800", b"1"),), 3 + 1),
        (None, b"v", (("name", b"text"), ("näme", None)), 1 + 8 + 5),
    ],
)
def test_keys_values_and_headers_count(
    key: bytes | None, value: bytes | None, headers: tuple, size: int
) -> None:
    assert size_of(key, value, headers) == size
