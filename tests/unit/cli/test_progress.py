"""The progress of a long command between its events: on a terminal, and elsewhere (RUN-4)."""

from __future__ import annotations

import json
import sys
import threading
from io import StringIO

import pytest

from connector.cli import progress as module
from connector.cli.log_lines import LogLines
from connector.cli.progress import Progress
from connector.cli.terminal import show_event
from connector.events import Event, OnEvent, begun, info, reached


class Terminal(StringIO):
    """Keeps what a terminal would show of one line at a time."""

    def isatty(self) -> bool:
        return True

    @property
    def last_line(self) -> str:
        return self.getvalue().rpartition("\n")[2].rpartition("\r\x1b[K")[2]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def _from_the_beginning() -> None:
    CLOCK.now = 100.0


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The terminal of standard error, which pytest replaces between a fixture and its test."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    return terminal


def step(text: str, table: str = "orders") -> Event:
    return Event("debug", "STEP", text, {"table": table})


def progress_after(*events: Event, show: OnEvent = show_event, ends_with: str = "") -> Progress:
    """The progress five seconds after these events, which came a second apart."""
    progress = Progress(show, ends_with=ends_with, clock=CLOCK)
    for event in events:
        CLOCK.now += 1
        progress.on_event(event)
    CLOCK.now += 5
    return progress


def test_a_terminal_has_what_how_much_of_how_much_rate_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RUN-4: the rate counts from the first count, which may be of an earlier call."""
    terminal = a_terminal(monkeypatch)
    counts = [reached("offsets logged", n, 9000, stream="s") for n in (1000, 7000)]
    progress = progress_after(*counts)
    progress.tick()
    assert terminal.last_line == "stream s: 7,000 of 9,000 offsets logged, 1,000/s, 2s left"
    progress.on_event(reached("offsets logged", 9000, 9000, stream="s"))
    progress.tick()
    assert terminal.last_line == ""


def test_a_count_without_a_total_and_one_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    progress = progress_after(reached("rows", 0), reached("rows", 21))
    progress.tick()
    assert terminal.last_line == "21 rows, 3.5/s"
    progress.on_event(reached("tables applied", 3, 40))
    progress.tick()
    assert terminal.last_line == "3 of 40 tables applied"


def test_the_newest_step_is_shown_until_its_batch_or_apply_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RUN-4: no event arrives during one long job of Spark."""
    terminal = a_terminal(monkeypatch)
    steps = [step("apply begun"), step("changes chosen"), step("apply begun", "b")]
    progress = progress_after(begun("start of Spark"), reached("tables applied", 0, 2), *steps)
    progress.tick()
    assert terminal.last_line == "0 of 2 tables applied; table b: apply begun 5s ago"
    progress.on_event(step("job recorded", "b"))
    progress.on_event(reached("tables applied", 1, 2))
    progress.tick()
    assert (
        terminal.last_line
        == "1 of 2 tables applied, 0.1/s, 8s left; table orders: changes chosen 6s ago"
    )
    progress.on_event(step("nothing to apply"))
    progress.tick()
    assert terminal.last_line == "1 of 2 tables applied, 0.1/s, 8s left"


@pytest.mark.parametrize("code", ["RUNNING", "WAITING", "STOPPED"])
def test_nothing_is_under_way_after_some_events(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    progress_after(begun("start of Spark"), reached("rows", 1), info(code, "text")).tick()
    assert terminal.getvalue() == "text\n"


def test_events_are_whole_lines_and_the_progress_is_below_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = a_terminal(monkeypatch)
    progress = progress_after(begun("start of Spark"))
    progress.tick()
    assert terminal.last_line == "start of Spark begun 5s ago"
    progress.on_event(info("X", "an event"))
    progress.tick()
    with progress.cleared():
        terminal.write("data\n")
    lines = [line.rpartition("\r\x1b[K")[2] for line in terminal.getvalue().split("\n")]
    assert lines == ["an event", "data", ""]


def test_a_line_never_breaks_nor_rewrites_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """DLQ-9"""
    terminal = a_terminal(monkeypatch)
    progress_after(begun("\x1b[2J" + "x" * 200)).tick()
    assert len(terminal.last_line) == 79
    assert terminal.last_line.startswith("\\x1b[2J")


def test_a_log_has_a_line_for_people_or_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """RUN-4, LOG-1: an event of progress alone is no line, also with the level debug."""
    counts = [reached("offsets logged", n, 9000, stream="s") for n in (1000, 7000)]
    progress_after(*counts, show=LogLines("text", "debug").show).tick()
    shown = capsys.readouterr().err
    line = "stream s: 7,000 of 9,000 offsets logged, 1,000/s, 2s left\n"
    assert shown.split(" ", 1)[1] == f"info PROGRESS {line}"
    CLOCK.now = 100.0
    progress_after(*counts, show=LogLines("json", "info").show).tick()
    written = json.loads(capsys.readouterr().err)
    assert {name: written[name] for name in ("code", "stream", "done", "total", "per_s")} == {
        "code": "PROGRESS",
        "stream": "s",
        "done": 7000,
        "total": 9000,
        "per_s": 1000.0,
    }
    progress_after(*counts).tick()
    assert capsys.readouterr().err == line


def test_nothing_is_written_where_nothing_is_under_way(capsys: pytest.CaptureFixture[str]) -> None:
    progress_after().tick()
    progress_after(step("apply begun"), step("job recorded")).tick()
    assert capsys.readouterr().err == ""


def test_progress_ends_with_an_event_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """RUN-4: `run` shows it until its first batch."""
    terminal = a_terminal(monkeypatch)
    logged = info("BATCH_LOGGED", "batch 1", stream="s")
    progress = progress_after(begun("start of Spark"), logged, ends_with="BATCH_LOGGED")
    progress.on_event(step("apply begun"))
    progress.tick()
    assert terminal.getvalue() == "stream s: batch 1\n"


def test_lines_come_by_themselves_until_the_end_of_the_block(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_EVERY_S", 0.01)
    shown = threading.Event()
    with pytest.raises(KeyboardInterrupt), Progress(lambda event: shown.set()) as progress:
        progress.count("rows", 5)
        assert shown.wait(30)
        raise KeyboardInterrupt
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]
