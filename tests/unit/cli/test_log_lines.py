"""The lines of a log: what each has, for people and for programs (LOG-1)."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import datetime
from io import StringIO

import click
import pytest

from connector.cli.log_lines import LEVELS, LogLines
from connector.errors import ConnectorError
from connector.events import Event, Level, fields_of, info, warning
from connector.spark import jvm
from connector.spark.jvm import event_of_line

APPLIED = info("APPLIED", "3 changes applied", table="orders", changes=3, seconds=0.25)
STEP = Event("debug", "STEP", "table committed", {"table": "orders", "seconds": 0.1})


class FullDisk(StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_line_for_people_has_time_level_code_and_subject(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """LOG-1"""
    LogLines("text", "info").show(APPLIED)
    time, rest = capsys.readouterr().err.split(" ", 1)
    assert datetime.fromisoformat(time).tzinfo is not None
    assert rest == "info APPLIED table orders: 3 changes applied\n"


def test_a_line_for_programs_is_an_object_with_the_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """LOG-1: a text with line breaks and control characters is one line, too."""
    LogLines("json", "info").show(APPLIED)
    LogLines("json", "info").show(warning("TOPIC_SETTING", "a\nb\x1b[2J\u2028", stream="s"))
    first, second = capsys.readouterr().err.splitlines()
    shown = json.loads(first)
    assert datetime.fromisoformat(shown.pop("time"))
    assert shown == {
        "level": "info",
        "code": "APPLIED",
        "table": "orders",
        "changes": 3,
        "seconds": 0.25,
        "text": "3 changes applied",
    }
    assert json.loads(second)["text"] == "a\nb\x1b[2J\u2028"


def test_a_text_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """LOG-1, DLQ-9"""
    LogLines("text", "info").show(info("X", "a\nb\x1b[2J"))
    assert capsys.readouterr().err.endswith("info X a\\nb\\x1b[2J\n")


@pytest.mark.parametrize("lowest", LEVELS)
def test_lower_levels_are_not_shown(lowest: Level, capsys: pytest.CaptureFixture[str]) -> None:
    """LOG-1"""
    for level in LEVELS:
        LogLines("text", lowest).show(Event(level, "X", "text"))
    shown = [line.split()[1] for line in capsys.readouterr().err.splitlines()]
    assert shown == list(LEVELS[LEVELS.index(lowest) :])


def test_steps_go_to_the_trace_at_any_level(capsys: pytest.CaptureFixture[str]) -> None:
    """OPS-4: only steps do, and a full disk stops nothing."""
    trace = StringIO()
    log = LogLines("text", "error", trace)
    log.show(STEP)
    log.show(APPLIED)
    assert capsys.readouterr().err == ""
    line = json.loads(trace.getvalue())
    assert (line["table"], line["text"], line["seconds"]) == ("orders", "table committed", 0.1)
    LogLines("text", "error", FullDisk()).show(STEP)


def test_an_error_is_one_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    """LOG-1, OPS-10: the exit code stays."""
    error = ConnectorError("TOPIC_MISSING", "There is no topic t", "It was deleted", "Create it")
    for raised, code in ((error, "TOPIC_MISSING"), (OSError(28, "full"), "SYSTEM_ERROR")):
        with (
            pytest.raises(click.exceptions.Exit) as ended,
            LogLines("json", "info").showing_error(),
        ):
            raise raised
        assert ended.value.exit_code == 1
        shown = json.loads(capsys.readouterr().err)
        assert (shown["level"], shown["code"]) == ("error", code)
        assert shown["remedy"]


def test_the_fields_of_a_subject() -> None:
    assert fields_of("table orders") == {"table": "orders"}
    assert fields_of("stream s") == {"stream": "s"}
    assert fields_of("the tables") == {}


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("12:00:01 ERROR SparkContext: it failed", "error", "SparkContext: it failed"),
        ("12:00:01 FATAL X: gone", "error", "X: gone"),
        ("12:00:01 WARN Hdfs: slow", "warning", "Hdfs: slow"),
        ("12:00:01 INFO DAGScheduler: job 3", "info", "DAGScheduler: job 3"),
        ("java.lang.OutOfMemoryError: Java heap space", "warning", None),
    ],
)
def test_a_line_of_the_jvm_is_an_event(line: str, level: str, text: str | None) -> None:
    """LOG-1: an unknown line is shown."""
    event = event_of_line(line)
    assert (event.level, event.code, event.text) == (level, "SPARK", text or line)


def test_lines_of_a_start_are_shown_if_it_fails() -> None:
    """RUN-4: and only then, or with the level debug."""
    line, shown = "WARNING: Using incubator modules: jdk.incubator.vector", list[Event]()

    def start(*, fails: bool) -> list[tuple[str, str]]:
        """Run a start that prints a line, and return the events of its lines."""
        shown.clear()
        lines, output = os.pipe()
        jvm._on_line = shown.append
        with suppress(OSError), jvm.quiet_start():
            os.write(output, f"{line}\n".encode())
            os.close(output)
            jvm._forward(lines)
            if fails:
                raise OSError
        return [(event.level, event.text) for event in shown]

    assert start(fails=False) == [("debug", line)]
    assert start(fails=True) == [("debug", line), ("warning", line)]
