"""REC-22: values as JSON shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, NamedTuple

import pytest

from connector.records.json_view import view_of_datum
from connector.records.model import MAX_TIMESTAMP, SERVER_TIME, DeleteCells, OldCell, SetCell
from connector.records.views import (
    YEAR_2000,
    YEAR_2100,
    AsList,
    AsText,
    Flat,
    Hidden,
    Listed,
    Named,
    OrNull,
    Shown,
    Time,
    TimeOrNull,
    Viewed,
    fitting_unit,
    unit_hint,
    view,
    view_of_bytes,
    view_of_time,
)


@pytest.mark.parametrize(
    ("value", "view"),
    [
        (b"Ada", "Ada"),
        (b"", ""),
        (b"\n", {"base64": "Cg=="}),
        (b"\xff", {"base64": "/w=="}),
        (b"base64:QQ==", {"base64": "YmFzZTY0OlFRPT0="}),
    ],
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


class Colour(StrEnum):
    NONE = ""
    RED = "red"


class Bounds(NamedTuple):
    start: int
    stop: int


class Point(NamedTuple):
    at: Time
    colour: OrNull[Colour]


@dataclass(frozen=True)
class Report(Viewed):
    name: Annotated[str, Named("title")]
    secret: Hidden[str]
    place: Flat[Point]
    seen_at: TimeOrNull
    low: Time | None
    points: tuple[Point, ...]
    ranges: tuple[AsList[Bounds], ...]
    by_key: Annotated[Mapping[int, Point], Listed("number")]
    counts: Mapping[Colour, int]
    key: AsText[Bounds] | None
    error: ValueError

    @property
    def size(self) -> Shown[int]:
        return len(self.points)

    @property
    def not_shown(self) -> int:
        raise AssertionError


def test_annotations_say_how_the_fields_of_a_report_are_shown() -> None:
    """OPS-5, REC-22: each kind of annotation, and properties that are shown."""
    point, shown = Point(1, Colour.RED), "1970-01-01T00:00:00.000001Z"
    report = Report(
        name="r",
        secret="s",
        place=Point(0, Colour.NONE),
        seen_at=0,
        low=1,
        points=(point,),
        ranges=(Bounds(1, 2),),
        by_key={7: point, 3: point},
        counts={Colour.RED: 2},
        key=Bounds(1, 2),
        error=ValueError("no"),
    )
    red = {"at": shown, "colour": "red"}
    assert report.to_json() == {
        "title": "r",
        "at": "1970-01-01T00:00:00.000000Z",
        "colour": None,
        "seen_at": None,
        "low": shown,
        "points": [red],
        "ranges": [[1, 2]],
        "by_key": [{"number": 3, **red}, {"number": 7, **red}],
        "counts": {"red": 2},
        "key": "Bounds(start=1, stop=2)",
        "error": "no",
        "size": 1,
    }
    empty = replace(report, low=None, points=(), ranges=(), by_key={}, counts={}, key=None)
    nothing = {"low": None, "points": [], "ranges": [], "by_key": [], "counts": {}, "key": None}
    assert empty.to_json() == {**report.to_json(), **nothing, "size": 0}


def test_defaults_are_left_out_on_request() -> None:
    """REC-22: those of a record are, except where the annotation says that they are shown."""
    assert view(DeleteCells("f", b"q"), omits_defaults=True) == {"family": "f", "qualifier": "q"}
    cell = SetCell("f", b"q", b"v")
    assert view(cell, omits_defaults=True)["cell_timestamp"] == SERVER_TIME
    assert view(OldCell("f", b"q", b"v"))["cell_timestamp"] == "1970-01-01T00:00:00.000000Z"


NOW = 1_714_475_984_123_456


@pytest.mark.parametrize(
    ("number", "unit", "timestamp"),
    [
        (1_714_475_984, "seconds", 1_714_475_984_000_000),
        (1_714_475_984_123, "milliseconds", 1_714_475_984_123_000),
        (NOW * 10 + 7, "units of 100 nanoseconds", NOW),
        (NOW * 1_000 + 789, "nanoseconds", NOW),
    ],
)
def test_a_unit_is_named(number: int, unit: str, timestamp: int) -> None:
    assert fitting_unit(number) == (unit, timestamp)
    assert f"; it fits {unit}: 2024-04-30T11:19:44" in unit_hint(number)


@pytest.mark.parametrize("number", [0, 1, -5, NOW, YEAR_2000, YEAR_2100 - 1, MAX_TIMESTAMP, 2**63])
def test_no_unit_is_named_for_microseconds_and_for_numbers_that_are_no_time(number: int) -> None:
    assert fitting_unit(number) is None
    assert unit_hint(number) == ""


def test_units_do_not_overlap() -> None:
    """Each bound belongs to one unit, or to none."""
    for parts, unit in ((1_000_000, "seconds"), (1_000, "milliseconds")):
        assert fitting_unit(YEAR_2000 // parts) == (unit, YEAR_2000)
        assert fitting_unit(YEAR_2000 // parts - 1) is None
        assert fitting_unit(YEAR_2100 // parts) is None
    for times, unit in ((10, "units of 100 nanoseconds"), (1_000, "nanoseconds")):
        assert fitting_unit(YEAR_2000 * times) == (unit, YEAR_2000)
        assert fitting_unit(YEAR_2000 * times - 1) is None
        assert fitting_unit(YEAR_2100 * times) is None
