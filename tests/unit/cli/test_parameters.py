"""Arguments that several commands take."""

from __future__ import annotations

import time

import click
import pytest

from connector import cli
from connector.cli.parameters import BYTES, CORES, DURATION_S, MEMORY, SPAN, START, STEP


@pytest.mark.parametrize(("text", "expected_s"), [("7d", 604_800), ("1500ms", 2), (5, 5)])
def test_durations_are_whole_seconds(text: object, expected_s: int) -> None:
    assert DURATION_S.convert(text, None, None) == expected_s


def test_a_start_in_a_topic_is_a_word_or_a_time() -> None:
    """REC-21: from the beginning, the end, a timestamp."""
    assert START.convert("beginning", None, None) == "beginning"
    assert START.convert("end", None, None) == "end"
    assert START.convert("1714475984000000", None, None) == 1_714_475_984_000_000
    assert START.convert("2024-04-30T11:19:44Z", None, None) == 1_714_475_984_000_000
    assert START.convert("2024-04-30T13:19:44.000001+02:00", None, None) == 1_714_475_984_000_001
    assert START.convert("1960-01-01T00:00:00Z", None, None) == 0


def test_a_duration_is_how_long_ago() -> None:
    found = START.convert("10m", None, None)
    assert isinstance(found, int)
    assert abs(time.time_ns() // 1000 - 600_000_000 - found) < 60_000_000


@pytest.mark.parametrize(
    "text", ["", "now", "2024", "1714475984", "2024-04-30T11:19:44", "٣", "9" * 25]
)
def test_anything_else_is_a_wrong_call(text: str) -> None:
    """OPS-10: exit code 2. Few digits are rather a year or seconds than microseconds."""
    with pytest.raises(click.BadParameter):
        START.convert(text, None, None)


def test_a_wrong_duration_is_a_wrong_call() -> None:
    with pytest.raises(click.BadParameter):
        DURATION_S.convert("10", None, None)


@pytest.mark.parametrize(
    ("text", "span"),
    [("7", (7, 7)), ("3..9", (3, 9)), ("3..", (3, 2**63 - 1)), ("..9", (0, 9)), ("0", (0, 0))],
)
def test_a_span_has_both_its_ends(text: str, span: tuple[int, int]) -> None:
    """DLQ-8."""
    assert SPAN.convert(text, None, None) == span


@pytest.mark.parametrize("text", ["", "..", "9..3", "a", "-1", "1..2..3", "١"])
def test_an_invalid_span_is_a_wrong_call(text: str) -> None:
    with pytest.raises(click.UsageError, match="not a range"):
        SPAN.convert(text, None, None)


def test_bytes_are_text_or_base_64() -> None:
    assert (BYTES.convert("u#1", None, None), BYTES.convert("base64:/w==", None, None)) == (
        b"u#1",
        b"\xff",
    )
    with pytest.raises(click.UsageError, match="valid base64"):
        BYTES.convert("base64:?", None, None)
    with pytest.raises(click.UsageError, match="not UTF-8"):
        BYTES.convert("\udcff", None, None)


def test_an_invalid_step_is_a_wrong_call() -> None:
    """DLQ-12."""
    assert STEP.convert("reframe 3", None, None).verb == "reframe"
    with pytest.raises(click.UsageError, match="is not a step"):
        STEP.convert("guess", None, None)
    with pytest.raises(click.UsageError, match="is not UTF-8") as caught:
        STEP.convert("set headers.\udcff=1", None, None)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["*", "1", "16"])
def test_a_number_of_threads_is_passed_to_spark(text: str) -> None:
    assert CORES.convert(text, None, None) == text


@pytest.mark.parametrize("text", ["512m", "2g", "64G", "4096m"])
def test_a_size_of_a_heap_is_passed_to_spark(text: str) -> None:
    assert MEMORY.convert(text, None, None) == text


MEMORY_COMMANDS = (["run"], ["read", "t"], ["table", "rebuild", "t"])
BAD_CORES = ["", "0", "-1", "x", "1.5", "2]", "**", "\u0663", "9" * 5000, "\udc80"]
BAD_MEMORY = ["", "2", "x", "2gb", "1k", "511m", "0g", "-2g", "1.5g", "2g\n", "9" * 5000 + "g"]


@pytest.mark.parametrize(
    "words",
    [
        *(["run", "--cores", text] for text in BAD_CORES),
        *(["table", "rebuild", "t", "--cores", text] for text in BAD_CORES),
        *([*command, "--memory", text] for text in BAD_MEMORY for command in MEMORY_COMMANDS),
    ],
)
def test_cores_and_memory_that_spark_refuses_are_a_wrong_call(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-10: exit code 2, before a file is read or a JVM is started."""
    assert cli.invoke(words) == 2
    assert "write" in capsys.readouterr().err
