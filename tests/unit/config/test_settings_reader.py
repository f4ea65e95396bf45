"""Reading settings: durations, faults that say everything, environment variables over a document
(OPS-1).
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.config.settings_reader import (
    Section,
    all_in_one,
    apply_environment,
    flat,
    parse_duration_ms,
    parse_time_us,
)
from connector.errors import ConfigError, ErrorCode
from connector.text import is_secret, nearest


class Colour(StrEnum):
    LIGHT_RED = "light_red"
    BLUE = "BLUE"


def section(**content: object) -> Section:
    return Section("here", content, [])


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("10m", 600_000),
        ("2d", 172_800_000),
        ("1h30m", 5_400_000),
        ("500ms", 500),
        ("1.5s", 1_500),
        ("1w", 604_800_000),
        ("36500d", 3_153_600_000_000),
        ("0", 0),
        ("0s", 0),
        (" 7s ", 7_000),
        ("0-0 0 0:10:0", 600_000),
        ("0-0 2 1:0:30", 176_430_000),
    ],
)
def test_durations_and_intervals_are_understood(text: str, expected_ms: int) -> None:
    """OPS-1: `10m`, `2d`; TBL-20: `0-0 0 0:10:0` is the same as `10m`."""
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "-1s",
        "10 minutes",
        "1 h",
        "1e3s",
        "m",
        "1m1",
        "٣s",
        "1-0 0 0:0:0",
        "0-1 0 0:0:0",
        "0.0001s",
        "36500d1ms",
        "9" * 400 + "w",
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration_ms(text)


@given(st.text(max_size=40))
def test_a_duration_is_a_number_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert parse_duration_ms(text) >= 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2000-01-01", 946_684_800_000_000),
        (date(2000, 1, 1), 946_684_800_000_000),
        ("1970-01-01", 0),
        ("2000-01-01T01:00:00.000001+01:00", 946_684_800_000_001),
        (datetime(2000, 1, 1, tzinfo=UTC), 946_684_800_000_000),
    ],
)
def test_a_day_or_a_time_is_microseconds(value: object, expected: int) -> None:
    """ING-6, OPS-1: of TOML, or as text of the environment."""
    assert parse_time_us(value) == expected


@pytest.mark.parametrize(
    "value",
    ["1969-12-31", "2000", "2000-01-01T00:00:00", 946_684_800, "now", True, "2000-01-01 10:00"],
)
def test_other_values_are_no_time(value: object) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_time_us(value)


def test_a_fault_names_setting_value_what_is_allowed_and_what_to_do() -> None:
    """OPS-1."""
    here = section(trigger=10)
    assert here.duration_ms("trigger", 5_000) == 5_000
    (fault,) = here.faults
    assert fault.problem == "here.trigger is 10"
    assert "500ms, 30s, 10m" in fault.cause
    assert fault.remedy == 'write trigger = "10s"'


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda s: s.text("k", "default"), 1),
        (lambda s: s.flag("k", True), "yes"),
        (lambda s: s.flag("k", True), 1),
        (lambda s: s.number("k", 1, 0, 9), 10),
        (lambda s: s.number("k", 1, 0, 9), True),
        (lambda s: s.number("k", 1, 0, 9), "5"),
        (lambda s: s.ratio("k", 0.5), 1.01),
        (lambda s: s.ratio("k", 0.5), float("nan")),
        (lambda s: s.texts("k"), ["a", "a"]),
        (lambda s: s.texts("k"), "a"),
        (lambda s: s.texts("k"), [""]),
        (lambda s: s.duration_s("k", 1), "1500ms"),
        (lambda s: s.duration_s("k", 1, least_s=1), "0"),
        (lambda s: s.duration_s("k", 1), True),
        (lambda s: s.choice("k", Colour, Colour.BLUE), "green"),
        (lambda s: s.choice("k", Colour, Colour.BLUE), 1),
        (lambda s: s.section("k"), 1),
        (lambda s: s.sections("k", "write it"), {}),
        (lambda s: list(s.named("k", "[a-z]+")), {"A/b": {}}),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_fault_and_reading_goes_on(read, value) -> None:
    here = section(k=value)
    read(here)
    assert len(here.faults) == 1
    assert "here.k" in here.faults[0].problem


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda s: s.text("k", "default"), ""),
        (lambda s: s.number("k", 5, 2, 9), 2),
        (lambda s: s.number("k", 5, 2, 9), 9),
        (lambda s: s.ratio("k", 0.5), 0),
        (lambda s: s.ratio("k", 0.5), 1),
        (lambda s: s.duration_s("k", 5), 0),
        (lambda s: s.duration_ms("k", 5), 0),
    ],
)
def test_what_is_allowed_reaches_its_bounds(read, value) -> None:
    """OPS-1: an empty text where there is a default; 0 is a duration without a unit."""
    here = section(k=value)
    assert (read(here), here.faults) == (value, [])


def test_choices_are_read_in_any_case_and_with_hyphens() -> None:
    assert section(k="Light-Red").choice("k", Colour, Colour.BLUE) is Colour.LIGHT_RED
    assert section(k="blue").choice("k", Colour, Colour.LIGHT_RED) is Colour.BLUE


def test_a_duration_may_be_as_short_as_is_allowed() -> None:
    """OPS-1."""
    assert section(k="7s").duration_s("k", 9, least_s=7) == 7
    assert section(k="7ms").duration_ms("k", 9, least_ms=7) == 7
    here = section(k="6999ms")
    assert (here.duration_s("k", 9, least_s=7), len(here.faults)) == (9, 1)


@pytest.mark.parametrize(
    ("content", "read", "remedy"),
    [
        ({"k": "blu"}, lambda s: s.choice("k", Colour, Colour.LIGHT_RED), "did you mean BLUE?"),
        ({"k": "zzz"}, lambda s: s.choice("k", Colour, Colour.BLUE), 'write k = "BLUE"'),
        (
            {"k": "RED(2)"},
            lambda s: s.choice("k", Colour, Colour.BLUE, {"RED": Colour.LIGHT_RED}),
            "did you mean light_red?",
        ),
        ({"k": 1}, lambda s: s.section("k"), "write [here.k] and its settings below"),
        ({"k": 1}, lambda s: s.section("k", remedy="write it"), "write it"),
        ({}, lambda s: s.section("k", remedy="write it"), "write it"),
    ],
)
def test_every_fault_says_what_to_write(content, read, remedy) -> None:
    """OPS-1."""
    here = section(**content)
    read(here)
    assert [fault.remedy for fault in here.faults] == [remedy]


def test_an_unknown_key_is_a_fault_with_the_nearest_known_one() -> None:
    """OPS-1."""
    here = section(triger="1s", colour="red")
    here.duration_ms("trigger", 1)
    here.finish()
    assert [fault.problem for fault in here.faults] == [
        "here.triger is not a known setting",
        "here.colour is not a known setting",
    ]
    assert here.faults[0].remedy == "did you mean trigger?"
    assert here.faults[1].remedy == "remove it, or use one of: trigger"


def test_names_that_differ_in_case_only_are_refused() -> None:
    """OPS-7: they would be one folder where the file system does not tell case."""
    here = section(tables={"Orders": {}, "orders": {}})
    assert [name for name, _ in here.named("tables", "[A-Za-z]+")] == ["Orders"]
    assert "not only in case" in here.faults[0].cause


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "bearer_token",
        "sasl.oauthbearer.client.secret",
        "sasl.jaas.config",
        "ssl.key.pem",
    ],
)
def test_secrets_are_known_by_their_names(name: str) -> None:
    """OPS-1: secrets are never printed."""
    assert is_secret(name)


def test_a_secret_of_the_wrong_kind_is_not_shown() -> None:
    here = section(password=12345)
    here.text("password", "")
    assert "12345" not in str(here.faults[0])
    assert "***" in here.faults[0].problem


def test_the_environment_outranks_the_document() -> None:
    """OPS-1."""
    document = {"warehouse": "a", "streams": {"my-stream": {"topic": "t", "trigger": "1s"}}}
    faults: list[ConfigError] = []
    merged = apply_environment(
        document,
        {"CONNECTOR__WAREHOUSE": "b", "CONNECTOR__STREAMS__MY_STREAM__TOPIC": "u", "OTHER": "x"},
        faults,
    )
    assert merged == {"warehouse": "b", "streams": {"my-stream": {"topic": "u", "trigger": "1s"}}}
    assert document["warehouse"] == "a"
    assert faults == []


@pytest.mark.parametrize(
    "variable", ["CONNECTOR__", "CONNECTOR____A", "CONNECTOR__A__", "CONNECTOR__WAREHOUSE__X"]
)
def test_a_variable_that_names_no_setting_is_a_fault(variable: str) -> None:
    faults: list[ConfigError] = []
    apply_environment({"warehouse": "a"}, {variable: "x"}, faults)
    assert variable in faults[0].problem


def test_values_from_the_environment_are_text_and_read_as_the_setting_needs() -> None:
    given = {
        "CONNECTOR__N": "5",
        "CONNECTOR__F": "True",
        "CONNECTOR__R": "0.25",
        "CONNECTOR__L": "a, b",
        "CONNECTOR__D": "10m",
    }
    here = Section("", apply_environment({}, given, []), [])
    assert (here.number("n", 1, 0, 9), here.flag("f", False), here.ratio("r", 0.5)) == (
        5,
        True,
        0.25,
    )
    assert (here.texts("l"), here.duration_s("d", 1)) == (("a", "b"), 600)
    assert here.faults == []


def test_a_fault_of_the_environment_names_the_variable() -> None:
    here = Section("", apply_environment({}, {"CONNECTOR__N": "many"}, []), [])
    here.number("n", 1, 0, 9)
    assert here.faults[0].problem == 'n (from CONNECTOR__N) is "many"'


def test_nested_tables_are_dotted_names() -> None:
    assert flat({"security": {"protocol": "SSL"}, "client.id": "x"}) == {
        "security.protocol": "SSL",
        "client.id": "x",
    }


def test_one_fault_is_itself_and_several_are_listed() -> None:
    one, two = (
        ConfigError(ErrorCode.SETTING_INVALID, "a is 1", "allowed: 2", "write 2"),
        ConfigError(ErrorCode.SETTING_INVALID, "b is 1", "allowed: 2", "write 2"),
    )
    assert all_in_one([one]) is one
    assert (
        "2 settings are wrong:\n  - a is 1. allowed: 2. write 2\n  - b is 1"
        in all_in_one([one, two]).problem
    )


def test_nothing_near_is_no_suggestion() -> None:
    assert nearest("zzz", ["topic"]) == ""
