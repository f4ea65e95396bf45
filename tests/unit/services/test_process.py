"""RUN-1: a pipeline says in the warehouse what it does, and `status` whether it lives."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from connector import ConnectorConfig, KafkaConfig, StreamConfig
from connector.cli import invoke
from connector.clock import now_us
from connector.errors import ConnectorError, WriterConflictError
from connector.errors.kafka import broker_unreachable
from connector.errors.spark import ingest_failed
from connector.events import Event, ignore, info, warning
from connector.reports.pipeline_status import PipelineStatus
from connector.services import drop_table, process
from connector.services.process import (
    after_event,
    check_no_erasure,
    recorded,
    status_of_bridge,
    status_of_pipeline,
)
from connector.services.run import run
from connector.services.status import status
from connector.services.surroundings import Surroundings
from connector.state.process import Failure, ProcessRecord
from connector.stored import from_text, to_stored

SECOND = 1_000_000
RECORD = ProcessRecord("h", "m", 7, "1", 100 * SECOND, 200 * SECOND, 10)

RUNNING = """
import sys, time
from connector import ConnectorConfig, KafkaConfig, StreamConfig
from connector.events import Event, ignore
from connector.services.process import recorded
streams = {name: StreamConfig(name=name, topic=name) for name in sys.argv[2:]}
config = ConnectorConfig(sys.argv[1], KafkaConfig("127.0.0.1:1"), streams=streams)
with recorded(config, ignore, once=False) as on_event:
    on_event(Event("debug", "STEP", "batch begun", {"stream": sys.argv[2]}))
    print("begun", flush=True)
    time.sleep(60)
"""


def config(warehouse: Path, *streams: str) -> ConnectorConfig:
    names = streams or ("s",)
    return ConnectorConfig(
        str(warehouse),
        KafkaConfig("127.0.0.1:1"),
        streams={name: StreamConfig(name=name, topic=name) for name in names},
    )


def pipeline(warehouse: Path, stream: str = "s", after_s: float = 0) -> PipelineStatus:
    at = now_us() + int(after_s * SECOND)
    return status_of_pipeline(config(warehouse), stream, at)


def wait_for(is_there: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not is_there():
        assert time.monotonic() < until
        time.sleep(0.01)


def store(warehouse: Path, record: ProcessRecord | str, stream: str = "s") -> None:
    path = warehouse / f"streams/{stream}/process.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record if isinstance(record, str) else json.dumps(to_stored(record)))


def stored(warehouse: Path, stream: str = "s") -> ProcessRecord:
    return from_text(
        ProcessRecord, (warehouse / f"streams/{stream}/process.json").read_text("utf-8")
    )


def here(**values: Any) -> ProcessRecord:
    """The record of a process of this machine that lives."""
    mine = {"machine": process._machine(), "pid": os.getpid(), "heartbeat_at": now_us()}
    return replace(RECORD, **{**mine, **values})


def test_a_process_that_is_killed_does_not_run(tmp_path: Path) -> None:
    """RUN-1: at once on its own machine, for each of its streams. Before, it runs."""
    command = [sys.executable, "-c", RUNNING, str(tmp_path), "a", "b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        wait_for(lambda: bool(pipeline(tmp_path, "b").batches))
        for name in ("a", "b"):
            runs = pipeline(tmp_path, name)
            assert (runs.is_running, runs.pid) == (True, child.pid)
            assert "ingest batch of a since" in runs.text
        assert pipeline(tmp_path, "c").is_running is False, "another stream"
        child.send_signal(signal.SIGKILL)
        child.wait()
        killed = pipeline(tmp_path, "a")
    assert (killed.is_running, killed.is_done) == (False, False)
    assert f"pid {child.pid}" in killed.problem
    assert "kill -9" in killed.text


def test_a_clean_stop_is_written_at_once(tmp_path: Path) -> None:
    with recorded(config(tmp_path), ignore, once=False):
        wait_for(lambda: pipeline(tmp_path).is_running is True)
        assert "starting" in pipeline(tmp_path).text
    ended = pipeline(tmp_path)
    assert (ended.is_running, ended.problem, ended.last_error) == (False, "", None)
    assert ended.text.startswith("not running since 20")
    assert not ended.is_done, "a person stopped it"
    with recorded(config(tmp_path), ignore, once=True):
        pass
    assert pipeline(tmp_path).is_done, "a nightly job is done, and needs no person"


def test_the_next_process_shows_the_error_that_ended_the_one_before(tmp_path: Path) -> None:
    error = broker_unreachable("h:1", "refused")
    with pytest.raises(type(error)), recorded(config(tmp_path), ignore, once=True):
        raise error
    ended = pipeline(tmp_path)
    assert (ended.is_running, ended.is_done) == (False, False)
    assert f"last error {error.code}: {error.problem}" in ended.text
    assert error.remedy
    assert ended.text.endswith(error.remedy)
    with pytest.raises(KeyboardInterrupt), recorded(config(tmp_path), ignore, once=False):
        raise KeyboardInterrupt
    assert "last error KeyboardInterrupt" in pipeline(tmp_path).text
    with recorded(config(tmp_path), ignore, once=False):
        wait_for(lambda: pipeline(tmp_path).is_running is True)
        before = pipeline(tmp_path).last_error
        assert before is not None, "of the process before"
        assert "KeyboardInterrupt" in before.code
    assert pipeline(tmp_path).problem == "", "it did not end this one"


def test_a_bridge_has_a_record_of_its_own_where_the_warehouse_is(tmp_path: Path) -> None:
    """RUN-1: beside that of the pipeline. On a machine without the warehouse, it makes none."""
    begun = Event("debug", "STEP", "bridge begun", {"stream": "s"})

    def bridge() -> PipelineStatus:
        return status_of_bridge(config(tmp_path / "wh"), "s", now_us())

    with recorded(config(tmp_path / "wh"), ignore, once=True, bridge="s"):
        pass
    assert not (tmp_path / "wh").exists()
    assert bridge().problem == "no process has left a record"
    with recorded(config(tmp_path / "wh"), ignore, once=False):
        wait_for(lambda: pipeline(tmp_path / "wh").is_running is True)
        with recorded(config(tmp_path / "wh"), ignore, once=False, bridge="s") as on_event:
            on_event(begun)
            wait_for(lambda: bridge().is_running is True and not bridge().is_starting)
        assert bridge().is_running is False
        assert pipeline(tmp_path / "wh").is_running is True
        error = broker_unreachable("h:1", "refused")
        wh = config(tmp_path / "wh")
        with pytest.raises(type(error)), recorded(wh, ignore, once=True, bridge="s"):
            raise error
        assert f"last error {error.code}" in bridge().text


def test_run_does_not_start_beside_an_erasure(tmp_path: Path) -> None:
    """OPR-2: it says so and waits. With `once`, it ends with problem, cause and remedy. An erasure
    that was killed, or of another stream, hinders no pipeline.
    """
    wh, other = config(tmp_path), config(tmp_path, "other")
    (tmp_path / "streams/s").mkdir(parents=True)
    with recorded(wh, ignore, once=True, erasure="s"):
        wait_for((tmp_path / "streams/s/erasure.json").exists)
        check_no_erasure(other)
        with pytest.raises(WriterConflictError, match="cannot start beside an erasure") as refused:
            run(wh, once=True)
        error = refused.value
        assert (error.code, error.fields) == ("ERASURE_RUNNING", {"stream": "s"})
        assert f"pid {os.getpid()}" in error.cause
        assert "erases a row. If it was killed, it counts as ended 30s after" in error.cause
        assert error.remedy
        stop, events = threading.Event(), list[Event]()
        options = {"stop": stop, "on_event": events.append}
        waits = threading.Thread(target=run, args=(wh,), kwargs=options)
        waits.start()
        wait_for(lambda: pipeline(tmp_path).waiting is not None)
        assert "waits for an erasure" in pipeline(tmp_path).text
        stop.set()
        waits.join(60)
        assert [event.code for event in events] == ["WAITING", "STOPPED"]
        goes_on = Surroundings("the pipeline", threading.Event(), events.append)
        waits = threading.Thread(target=goes_on.wait_for, args=(partial(check_no_erasure, wh),))
        waits.start()
        wait_for(lambda: goes_on.away is not None)
    waits.join(60)
    assert [event.code for event in events[2:]] == ["WAITING", "GOES_ON"]
    record = here(pid=2**22, heartbeat_at=now_us())  # no such process
    (tmp_path / "streams/s/erasure.json").write_text(json.dumps(to_stored(record)))
    check_no_erasure(wh)


def test_events_go_on_to_the_next_receiver_and_say_what_is_done(tmp_path: Path) -> None:
    events: list[Event] = []
    begun = Event("debug", "STEP", "apply begun", {"table": "t"})
    with recorded(config(tmp_path), events.append, once=False) as on_event:
        on_event(begun)
        wait_for(lambda: "t" in pipeline(tmp_path).applies)
    assert events == [begun]
    assert pipeline(tmp_path).applies == {}


def test_a_record_is_written_seldom_and_the_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand steps are one write or two: the pipeline does not wait for a disk."""
    writes: list[str] = []
    monkeypatch.setattr(
        "connector.lake.stores.write_at", lambda path, text, **_: writes.append(text)
    )
    with recorded(config(tmp_path), ignore, once=False) as on_event:
        for number in range(1000):
            on_event(Event("debug", "STEP", "apply begun", {"table": f"t{number % 7}"}))
        began = time.monotonic()
    assert time.monotonic() - began < 0.9
    assert 1 <= len(writes) <= 3
    assert json.loads(writes[-1])["ended_at"] is not None


def test_a_store_gets_no_request_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-5: only for what a person should know."""
    monkeypatch.setattr(process, "_read", lambda path: None)
    recorder = process._Recorder(replace(config(Path("x")), warehouse="s3://bucket/wh"), once=False)
    recorder.change(info("RUNNING", "running"))
    recorder._is_changed = False
    recorder.change(Event("debug", "STEP", "batch begun", {"stream": "s"}))
    assert not recorder._is_changed
    recorder.change(warning("WAITING", "waits", error="BROKER_UNREACHABLE"))
    assert recorder._is_changed


def test_a_pipeline_goes_on_if_its_record_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "streams").write_text("a file, so no folder can be made")
    with recorded(config(tmp_path), ignore, once=False) as on_event:
        on_event(info("RUNNING", "running"))
    unknown = pipeline(tmp_path)
    assert unknown.is_running is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "seven"}', "\x00\xff"])
def test_a_damaged_record_is_reported_and_replaced(tmp_path: Path, content: str) -> None:
    """Also one of a later version with another form. The next process writes a good one."""
    store(tmp_path, content)
    report = status(config(tmp_path))
    assert report.pipelines["s"].is_running is None
    assert "cannot be found out: its record cannot be read" in report.pipelines["s"].text
    assert "s" in report.streams
    assert [reason.code for reason in report.reasons] == ["PIPELINE_UNKNOWN"]
    with recorded(config(tmp_path), ignore, once=False):
        wait_for(lambda: pipeline(tmp_path).is_running is True)


def test_a_record_of_a_later_version_is_read(tmp_path: Path) -> None:
    later = to_stored(here(version="99.0")) | {"mood": {"good": True}}
    store(tmp_path, json.dumps(later))
    assert "version 99.0" in pipeline(tmp_path).text


def test_on_another_machine_only_the_age_of_the_record_tells(tmp_path: Path) -> None:
    """A minute of difference between two clocks is no sign. Neither is a pid that this host has."""
    record = here(machine="another boot")
    store(tmp_path, record)
    assert pipeline(tmp_path).is_running is True
    assert pipeline(tmp_path, after_s=85).is_running is True
    silent = pipeline(tmp_path, after_s=95)
    assert (silent.is_running, silent.since) == (False, record.heartbeat_at)
    assert "gives no sign of life" in silent.text
    assert pipeline(tmp_path, after_s=-55).is_running is True
    ahead = pipeline(tmp_path, after_s=-600.5)
    assert ahead.is_running is None
    assert "the clock of h is 10m ahead" in ahead.text


def test_a_pid_that_was_given_again_is_no_sign_of_life(tmp_path: Path) -> None:
    """The process is there, but writes no record: it hangs, or it is another one."""
    store(tmp_path, here())
    assert pipeline(tmp_path, after_s=25).is_running is True
    assert pipeline(tmp_path, after_s=35).is_running is False


def test_an_older_process_does_not_end_the_record_of_a_newer_one(tmp_path: Path) -> None:
    """Of two pipelines of a stream, one is shut out. The other goes on, and says so."""
    with recorded(config(tmp_path), ignore, once=False):
        wait_for(lambda: pipeline(tmp_path).is_running is True)
        newer = here(since=now_us() + 1)
        store(tmp_path, newer)
    assert stored(tmp_path) == newer


@pytest.mark.parametrize("writes_last", [False, True])
def test_an_error_that_another_process_may_have_caused_names_it(
    tmp_path: Path, *, writes_last: bool
) -> None:
    """RUN-1: whichever of the two wrote its record last."""
    error, other = ingest_failed("s", "no such file"), os.getppid()
    with (
        pytest.raises(ConnectorError, match=f"Another process worked there, too: pid {other} on h"),
        recorded(config(tmp_path), ignore, once=False) as on_event,
    ):
        wait_for(lambda: pipeline(tmp_path).is_running is True)
        store(tmp_path, here(pid=other, since=now_us(), heartbeat_at=now_us() + 1))
        if not writes_last:
            on_event(info("RUNNING", "running"))
            wait_for(lambda: pipeline(tmp_path).pid == os.getpid())
        raise error


@pytest.mark.parametrize(
    ("error", "other_wrote_s"),
    [(ingest_failed("s", "x"), -1), (broker_unreachable("h:1", "refused"), 60)],
)
def test_other_errors_name_no_process(
    tmp_path: Path, error: ConnectorError, other_wrote_s: int
) -> None:
    """The one before has ended, or the error has another cause."""
    cause, heartbeat_at = error.cause, now_us() + other_wrote_s * SECOND
    store(tmp_path, here(pid=os.getppid(), heartbeat_at=heartbeat_at))
    with pytest.raises(ConnectorError), recorded(config(tmp_path), ignore, once=False):
        raise error
    assert error.cause == cause


def test_a_second_pipeline_gets_a_warning(tmp_path: Path) -> None:
    """RUN-1: before they end each other, but not of one that has ended, nor of this process."""
    events: list[Event] = []
    for before in (here(pid=os.getppid(), host="h", ended_at=1), here(host=platform.node())):
        store(tmp_path, before)
        with recorded(config(tmp_path), events.append, once=True):
            pass
    assert events == []
    store(tmp_path, here(pid=os.getppid()))
    with recorded(config(tmp_path), events.append, once=True):
        pass
    (event,) = events
    assert (event.level, event.code) == ("warning", "ALREADY_RUNNING")
    assert f"stream s: another pipeline runs on h, pid {os.getppid()}" in event.line
    assert "If it was killed, it counts as ended 30s after its last sign of life" in event.text


def test_two_pipelines_of_one_warehouse_have_a_record_each(tmp_path: Path) -> None:
    with recorded(config(tmp_path, "a"), ignore, once=False) as on_a:
        with recorded(config(tmp_path, "b"), ignore, once=False):
            on_a(info("RUNNING", "running"))
            wait_for(lambda: "waits for changes" in pipeline(tmp_path, "a").text)
        assert pipeline(tmp_path, "a").is_running is True
        assert pipeline(tmp_path, "b").is_running is False


def step(text: str, **fields: str) -> Event:
    return Event("debug", "STEP", text, fields)


def test_the_record_follows_the_events() -> None:
    """Starting, waiting, batches, applies, and tables that stop and go on."""
    waits = warning("WAITING", "waits", error="BROKER_UNREACHABLE")
    record = after_event(RECORD, waits, 1)
    record = after_event(record, waits, 9)
    assert record.waiting == Failure("BROKER_UNREACHABLE", "waits", 1), "since the first one"
    assert record.last_error == Failure("BROKER_UNREACHABLE", "waits", 9)
    record = after_event(record, info("GOES_ON", ""), 10)
    assert (record.waiting, record.is_starting) == (None, True)
    record = after_event(record, info("RUNNING", ""), 11)
    assert not record.is_starting
    record = after_event(record, step("batch begun", stream="s"), 12)
    record = after_event(record, step("rows written", stream="s"), 13)
    record = after_event(record, step("apply begun", table="t"), 14)
    assert (record.batches, record.applies) == ({"s": 12}, {"t": 14})
    record = after_event(record, step("batch ended", stream="s"), 15)
    assert after_event(record, step("job recorded", table="t"), 16).applies == {}
    assert after_event(record, step("nothing to apply", table="t"), 16).applies == {}
    stop = warning("TABLE_STOPPED", "stopped", table="t", error="TABLE_DAMAGED")
    record = after_event(record, stop, 17)
    assert (record.batches, record.applies) == ({}, {})
    assert record.stopped == {"t": Failure("TABLE_DAMAGED", "stopped", 17)}
    again = after_event(record, step("apply begun", table="t"), 18)
    assert again.applies == {}, "a stopped table that is tried again has no end"
    assert after_event(again, step("nothing to apply", table="t"), 19).stopped == {}
    assert after_event(record, info("TABLE_GOES_ON", "", table="t"), 19).stopped == {}
    assert after_event(record, waits, 20).applies == {}


def test_tables_that_are_not_configured_any_more_are_not_stopped(tmp_path: Path) -> None:
    store(tmp_path, here(stopped={"gone": Failure("TABLE_DAMAGED", "x", 1)}))
    assert pipeline(tmp_path).stopped == {}


def test_the_command_shows_the_process_first_and_never_to_start_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(
        'warehouse = "wh"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[streams.s]\n'
    )
    assert invoke(["status"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("pipeline  not running: no process has left a record\nPIPELINE_DOWN ")
    assert "run: connector run\n" in shown
    assert invoke(["status", "--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "PIPELINE_DOWN stream s: not running: no process has left a record"
    ]
    store(tmp_path / "wh", here(host="host\x1b[2J", is_starting=False))
    assert invoke(["status"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("pipeline  runs on host\\x1b[2J, pid ")
    assert "connector run" not in shown
    assert invoke(["status", "--check"]) == 0
    assert capsys.readouterr().out == "nothing needs a person\n"
    assert invoke(["status", "--check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["pipelines"]["s"]["is_running"] is True
    assert report["reasons"] == []
    store(tmp_path / "wh", "{")
    assert invoke(["status", "--check"]) == 2
    assert invoke(["status", "--check", "--watch"]) == 2
    (tmp_path / "connector.toml").write_text("no settings")
    assert invoke(["status", "--check"]) == 2
    assert "error:" in capsys.readouterr().err


def test_events_of_several_threads_are_all_noted(tmp_path: Path) -> None:
    recorder = process._Recorder(config(tmp_path), once=False)

    def begin(number: int) -> None:
        for table in range(50):
            recorder.change(step("apply begun", table=f"t{number}-{table}"))

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recorder._record.applies) == 400


def test_a_table_that_a_pipeline_applies_is_not_dropped(tmp_path: Path) -> None:
    """OPR-3: the pipeline would make it again, also one that came with a reload."""
    (tmp_path / "tables/old/data").mkdir(parents=True)
    (tmp_path / "tables/old/data/0.parquet").write_text("12345")
    began = here(tables=("t",))
    for record in (here(tables=("old",)), after_event(began, step("apply begun", table="old"), 1)):
        store(tmp_path, record)
        with pytest.raises(WriterConflictError, match="drop of table old cannot start"):
            drop_table(config(tmp_path), "old")
    store(tmp_path, began)
    assert drop_table(config(tmp_path), "old").files == 1


def test_only_a_pipeline_that_runs_refuses_a_configuration(tmp_path: Path) -> None:
    """EVO-8, RUN-1: the next process reads the new one."""
    refused = {"refused_at": 150 * SECOND, "faults": ["no"]}
    (tmp_path / "_connector").mkdir()
    (tmp_path / "_connector/refused_reload.json").write_text(json.dumps(refused))
    for record, faults in (
        (here(), ["no"]),
        (here(since=160 * SECOND), []),
        (here(ended_at=now_us()), []),
    ):
        store(tmp_path, record)
        assert status(config(tmp_path)).reload_refused == faults


def test_no_row_is_erased_beside_a_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPR-2: it would write what the erasure removes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(
        'warehouse = "wh"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[streams.s]\n'
        '[tables.t]\nstream = "s"\n'
    )
    store(tmp_path / "wh", here())
    assert invoke(["erase", "t", "key", "--why", "ticket 12"]) == 1
    message = capsys.readouterr().err
    assert "code:   ALREADY_RUNNING" in message
    assert "Stop the pipeline" in message
