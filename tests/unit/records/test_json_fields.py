"""The fields of JSON objects (REC-22)."""

from __future__ import annotations

import pytest

from connector.errors import JsonViewError
from connector.records.json_fields import Fields, list_of, read_bytes, read_text


def test_fields_are_read_by_name_and_null_is_missing() -> None:
    """REC-22."""
    fields = Fields({"name": "a", "value": None}, "headers[0]", ("name", "value"))
    assert fields.get("name", read_text) == "a"
    assert fields.get("value", read_bytes, None) is None
    with pytest.raises(JsonViewError, match=r"headers\[0\]\.value is missing"):
        fields.get("value", read_bytes)
    with pytest.raises(JsonViewError, match=r"headers\[0\]\.nam is not a field.*Did you mean name"):
        Fields({"nam": "a"}, "headers[0]", ("name", "value"))


@pytest.mark.parametrize("value", [1, {"base64": 1}, {"base64": "x"}, {"base": ""}, "\udcff", None])
def test_bytes_are_text_or_base64(value: object) -> None:
    """REC-22: an error names the path."""
    assert list_of(read_bytes)(["\u00e9", {"base64": "/w=="}], "key") == (b"\xc3\xa9", b"\xff")
    with pytest.raises(JsonViewError, match=r"key\[1\]"):
        list_of(read_bytes)(["", value], "key")
