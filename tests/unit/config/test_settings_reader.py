"""Reading settings: durations, faults that say everything, environment variables over a document
(OPS-1).
"""

from __future__ import annotations

import tomllib
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.config.settings_reader import (
    Form,
    Section,
    all_in_one,
    apply_environment,
    parse_duration_ms,
    parse_time_us,
)
from connector.errors import ConfigError
from connector.records.field_types import Between
from connector.text import is_secret, nearest


class Colour(StrEnum):
    LIGHT_RED = "light_red"
    BLUE = "BLUE"


@dataclass(frozen=True)
class Settings:
    """One setting of each type."""

    password: str = ""
    memory: Annotated[str, Form("[0-9]+g", "a number with g", "2g")] = ""
    flag: bool = True
    count: Annotated[int, Between(2, 9)] = 5
    cores: Annotated[int, Between(1, 1024)] | None = None
    ratio: Annotated[float, Between(0, 1)] = 0.5
    names: tuple[str, ...] = ()
    whole_s: Annotated[int, Between(7)] = 9
    wait_s: int | None = None
    trigger_s: Annotated[float, Between(0)] = 5.0
    least_timestamp: int = 0
    colour: Colour = Colour.BLUE


def section(**content: object) -> Section:
    return Section("here", content, [])


def read(**content: object) -> tuple[Settings, list[ConfigError]]:
    here = section(**content)
    settings = here.read(Settings)
    here.finish()
    return settings, here.faults


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
def test_an_invalid_duration_is_refused(text: str) -> None:
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


def test_settings_that_are_not_given_have_the_defaults_of_their_fields() -> None:
    assert read() == (Settings(), [])


def test_a_fault_names_setting_value_what_is_allowed_and_what_to_do() -> None:
    """OPS-1."""
    settings, (fault,) = read(trigger=10)
    assert settings.trigger_s == 5
    assert fault.problem == "here.trigger is 10"
    assert "500ms, 30s, 10m" in fault.cause
    assert fault.remedy == 'write trigger = "10s"'


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("password", 1),
        ("memory", "much"),
        ("flag", "yes"),
        ("flag", 1),
        ("count", 1),
        ("count", 10),
        ("count", True),
        ("count", "5"),
        ("cores", 0),
        ("ratio", 1.01),
        ("ratio", float("nan")),
        ("ratio", True),
        ("names", ["a", "a"]),
        ("names", "a"),
        ("names", [""]),
        ("whole", "7500ms"),
        ("whole", "0"),
        ("whole", "6999ms"),
        ("whole", "6s"),
        ("whole", True),
        ("wait", "-1s"),
        ("trigger", 1),
        ("least_timestamp", 1),
        ("colour", "green"),
        ("colour", 1),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_fault_and_reading_goes_on(key: str, value: Any) -> None:
    """OPS-1: the default is in its place, and the remedy names the setting."""
    settings, (fault,) = read(**{key: value})
    assert settings == Settings()
    assert f"here.{key} is " in fault.problem
    assert (
        f"write {key} = " in fault.remedy or "quotes" in fault.remedy or "did you" in fault.remedy
    )


def test_each_remedy_that_names_a_value_is_allowed() -> None:
    """OPS-1: what the remedies say to write has no fault."""
    for field in fields(Settings):
        key = field.name.removesuffix("_s")
        _, faults = read(**{key: [[]]})
        for remedy in (fault.remedy for fault in faults if "write" in fault.remedy):
            assert read(**tomllib.loads(remedy.removeprefix("write ")))[1] == [], remedy


@pytest.mark.parametrize(
    "read_it",
    [
        lambda here: here.section("k"),
        lambda here: here.sections("k", "write it"),
        lambda here: list(here.named("k", "[a-z]+")),
        lambda here: here.text("k", None),
    ],
)
@pytest.mark.parametrize("value", [1, [{}, 1]])
def test_a_section_of_the_wrong_kind_is_one_fault(read_it: Any, value: object) -> None:
    here = section(k=value)
    read_it(here)
    assert len(here.faults) == 1
    assert "here.k" in here.faults[0].problem


def test_a_name_that_is_not_allowed_is_a_fault() -> None:
    here = section(k={"A/b": {}})
    assert list(here.named("k", "[a-z]+")) == []
    assert "here.k.A/b" in here.faults[0].problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("password", ""),
        ("memory", "1g"),
        ("memory", ""),
        ("count", 2),
        ("count", 9),
        ("ratio", 0),
        ("ratio", 1),
        ("wait", 0),
        ("trigger", 0),
        ("whole", "7s"),
        ("colour", "blue"),
    ],
)
def test_values_at_their_bounds_are_allowed(key: str, value: object) -> None:
    """OPS-1: an empty text where that is the default; 0 is a duration without a unit."""
    settings, faults = read(**{key: value})
    assert faults == []
    if key not in ("whole", "colour"):
        assert value in (getattr(settings, key, None), getattr(settings, f"{key}_s", None))


def test_values_have_the_type_of_their_field() -> None:
    """OPS-1."""
    given = {
        "whole": "1m10s",
        "trigger": "2500ms",
        "least_timestamp": date(2000, 1, 1),
        "ratio": 1,
        "colour": "Light-Red",
        "names": ["a", "b"],
    }
    settings, faults = read(**given)
    assert faults == []
    assert settings == replace(
        Settings(),
        whole_s=70,
        trigger_s=2.5,
        least_timestamp=946_684_800_000_000,
        ratio=1.0,
        colour=Colour.LIGHT_RED,
        names=("a", "b"),
    )
    assert isinstance(settings.ratio, float)


@pytest.mark.parametrize(
    ("content", "read_it", "remedy"),
    [
        (
            {"k": "ligth_red"},
            lambda s: s.choice("k", Colour, Colour.BLUE),
            "did you mean light_red?",
        ),
        ({"k": "zzz"}, lambda s: s.choice("k", Colour, Colour.BLUE), 'write k = "BLUE"'),
        (
            {"k": "RED(2)"},
            lambda s: s.choice("k", Colour, Colour.BLUE, {"RED": Colour.LIGHT_RED}),
            "did you mean light_red?",
        ),
        ({"k": 1}, lambda s: s.section("k"), "write [here.k] and its settings below"),
        ({"k": 1}, lambda s: s.section("k", remedy="write it"), "write it"),
        ({}, lambda s: s.section("k", remedy="write it"), "write it"),
        ({}, lambda s: s.text("k", None, Form(allowed="a name", example="x")), 'write k = "x"'),
        ({"k": "a\0"}, lambda s: s.text("k", None), "remove the character"),
    ],
)
def test_every_fault_says_what_to_write(
    content: dict[str, object], read_it: Any, remedy: str
) -> None:
    """OPS-1."""
    here = section(**content)
    read_it(here)
    assert [fault.remedy for fault in here.faults] == [remedy]


def test_an_unknown_key_is_a_fault_with_the_nearest_known_one() -> None:
    """OPS-1."""
    _, faults = read(triger="1s", xyzzy={})
    assert [fault.problem for fault in faults] == [
        "The setting here.triger is not known",
        "The section here.xyzzy is not known",
    ]
    assert faults[0].remedy == "did you mean trigger?"
    assert faults[1].remedy.startswith("remove it, or use one of: colour, cores, count, flag")


def test_names_that_differ_in_case_only_are_refused() -> None:
    """OPS-7: they would be one folder where the file system does not tell case."""
    here = section(tables={"Orders": {}, "orders": {}})
    assert [name for name, _ in here.named("tables", "[A-Za-z]+")] == ["Orders"]
    assert "not only in case" in here.faults[0].cause
    assert "keeps its name at the source with source" in here.faults[0].remedy


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
    _, (fault,) = read(password=12345)
    assert "12345" not in str(fault)
    assert "***" in fault.problem


def test_credentials_in_a_url_are_not_shown() -> None:
    _, (fault,) = read(memory="http://me:hun/ter2@host/x")
    assert fault.problem == 'here.memory is "http://***@host/x"'


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
        "CONNECTOR__COUNT": "6",
        "CONNECTOR__FLAG": "False",
        "CONNECTOR__RATIO": "0.25",
        "CONNECTOR__NAMES": "a, b",
        "CONNECTOR__WHOLE": "10m",
        "CONNECTOR__LEAST_TIMESTAMP": "1970-01-01T00:00:01Z",
    }
    settings, faults = read(**apply_environment({}, given, []))
    assert faults == []
    assert settings == replace(
        Settings(),
        count=6,
        flag=False,
        ratio=0.25,
        names=("a", "b"),
        whole_s=600,
        least_timestamp=1_000_000,
    )


@pytest.mark.parametrize("text", ["many", "5.5", "", "9" * 40])
def test_a_fault_of_the_environment_names_the_variable(text: str) -> None:
    _, (fault,) = read(**apply_environment({}, {"CONNECTOR__COUNT": text}, []))
    assert fault.problem == f'here.count (from CONNECTOR__COUNT) is "{text}"'


def test_the_rest_has_dotted_names() -> None:
    here = section(security={"protocol": "SSL"}, **{"client.id": "x", "known": 1})
    assert here.has("known")
    assert dict(here.rest()) == {"security.protocol": "SSL", "client.id": "x"}
    here.finish()
    assert here.faults == []


def test_one_fault_is_itself_and_several_are_listed() -> None:
    one, two = (
        ConfigError("SETTING_INVALID", "a is 1", "allowed: 2", "write 2"),
        ConfigError("SETTING_INVALID", "b is 1", "allowed: 2", "write 2"),
    )
    assert all_in_one([one]) is one
    assert (
        "2 settings are wrong:\n  - a is 1. allowed: 2. Write 2\n  - b is 1"
        in all_in_one([one, two]).problem
    )


def test_nothing_near_is_no_suggestion() -> None:
    assert nearest("zzz", ["topic"]) == ""
