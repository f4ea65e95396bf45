"""REC-22: bytes and times as JSON shows them."""

from __future__ import annotations

import pytest

from connector.records.json_view import view_of_datum
from connector.records.model import MAX_TIMESTAMP
from connector.records.views import view_of_bytes, view_of_time


@pytest.mark.parametrize(
    ("value", "view"),
    [(b"Ada", "Ada"), (b"", ""), (b"\n", {"base64": "Cg=="}), (b"\xff", {"base64": "/w=="})],
)
def test_bytes_are_text_where_all_of_it_can_be_printed(value: bytes, view: object) -> None:
    assert view_of_bytes(value) == view


@pytest.mark.parametrize(
    ("timestamp", "view"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (MAX_TIMESTAMP, "9999-12-31T23:59:59.999999Z"),
        (-1, -1),
        (MAX_TIMESTAMP + 1, MAX_TIMESTAMP + 1),
    ],
)
def test_times_outside_of_iso_8601_stay_numbers(timestamp: int, view: object) -> None:
    assert view_of_time(timestamp) == view


def test_a_decoded_datum_is_shown_without_nulls() -> None:
    datum = {
        "commit_timestamp": 1,
        "tie_breaker": 1,
        "row_image": None,
        "entries": [{"value": b"\0"}],
    }
    shown = {
        "commit_timestamp": "1970-01-01T00:00:00.000001Z",
        "tie_breaker": 1,
        "entries": [{"value": {"base64": "AA=="}}],
    }
    assert view_of_datum(datum) == shown
