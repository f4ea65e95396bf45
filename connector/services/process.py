"""The record of a running pipeline, which `run` keeps for each stream, and that of a bridge, for
`status` (RUN-1). That of an erasure is for `run` (OPR-2).
"""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from connector import warehouse as paths
from connector.clock import now_us
from connector.config.storage import is_local, look_every_s
from connector.errors import ConnectorError
from connector.errors.changelog import erasure_running
from connector.events import APPLY_ENDS, Event, OnEvent, warning
from connector.reports.pipeline_status import PipelineStatus, pipeline_status
from connector.services.warehouses import warehouse_of
from connector.state.process import Failure, ProcessRecord
from connector.stored import from_text, to_stored

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig

Value = TypeVar("Value")
_AT_MOST_EVERY_S: Final = 1.0
_END_WITHIN_S: Final = 10.0
_OF_TWO: Final = frozenset(
    {"SPARK_FAILED", "CONCURRENT_WRITE", "CHECKPOINT_FOREIGN", "BRIDGE_TAKEN_OVER"}
)
"""The codes of errors that a second process may have caused."""


@contextmanager
def recorded(
    config: ConnectorConfig,
    on_event: OnEvent,
    *,
    once: bool,
    bridge: str | None = None,
    erasure: str | None = None,
) -> Iterator[OnEvent]:
    """Keep the record of this process during the block. Send its events to the function that is
    returned, which passes them on. A record that cannot be written stops nothing.

    The process is the pipeline of all streams, or the `bridge` of this one, or an `erasure` in it.
    A bridge may be on a machine without the warehouse, so it makes no folder there. Another
    pipeline that runs is a warning.
    """
    recorder = _Recorder(config, once=once, bridge=bridge, erasure=erasure)
    is_pipeline = bridge is None and erasure is None

    def work() -> None:
        with suppress(OSError):
            if is_pipeline:
                _warn_of_others(config, on_event)
        recorder.work()

    thread = threading.Thread(target=work, name="process record", daemon=True)
    thread.start()

    def note(event: Event) -> None:
        recorder.change(event)
        on_event(event)

    try:
        yield note
    except BaseException as error:
        recorder.end(error)
        raise
    else:
        recorder.end(None)
    finally:
        thread.join(_END_WITHIN_S)


def _warn_of_others(config: ConnectorConfig, on_event: OnEvent) -> None:
    for stream in config.streams:
        other = status_of_pipeline(config, stream, now_us())
        if other.is_running and (other.host, other.pid) != (platform.node(), os.getpid()):
            rival = other.text_of_rival()
            text = f"another pipeline {rival}. Stop one of the two: they end each other"
            on_event(warning("ALREADY_RUNNING", text, stream=stream))


class _Recorder:
    """Writes the record in a thread of its own: soon after it has changed, and every few seconds.
    In an object store, the beginning and the end of a batch or of an apply are no reason to write.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        *,
        once: bool,
        bridge: str | None = None,
        erasure: str | None = None,
    ) -> None:
        warehouse, now = warehouse_of(config), now_us()
        if bridge is not None:
            self._paths = [paths.bridge(warehouse, bridge)]
        elif erasure is not None:
            self._paths = [paths.erasure(warehouse, erasure)]
        else:
            self._paths = [paths.process(warehouse, stream) for stream in config.streams]
        self._makes_folder = bridge is None
        self._is_local, self._every_s = is_local(warehouse), look_every_s(warehouse)
        self._changed, self._is_changed = threading.Condition(), True
        self._rival: ProcessRecord | None = None
        self._record = ProcessRecord(
            *(platform.node(), _machine(), os.getpid(), version("lowmark"), now, now),
            heartbeat_s=int(self._every_s),
            is_once=once,
            is_starting=erasure is None,
            tables=tuple(config.tables) if bridge is None and erasure is None else (),
        )

    def change(self, event: Event) -> None:
        """Note an event. Any thread may call it."""
        with self._changed:
            before, self._record = self._record, after_event(self._record, event, now_us())
            self._is_changed |= self._written(before) != self._written(self._record)
            self._changed.notify()

    def end(self, error: BaseException | None) -> None:
        """Note the end of the process, and the error that ended it. If another process may be the
        cause, the error names it from now on.
        """
        now = now_us()
        if isinstance(error, ConnectorError) and error.code in _OF_TWO:
            with suppress(OSError, ImportError):
                for path in self._paths:
                    self._is_mine(path)
            if (rival := self._rival) is not None:
                other = f"Another process worked there, too: pid {rival.pid} on {rival.host}"
                error.cause = f"{error.cause}. {other}"
        with self._changed:
            self._record = replace(self._record, ended_at=now, batches={}, applies={}, waiting=None)
            if error is not None:
                self._record = replace(self._record, last_error=_failure(error, now))
            self._changed.notify()

    def work(self) -> None:
        """Write until the end is written."""
        self._take_over()
        while True:
            with self._changed:
                self._is_changed = False
                record = self._record = replace(self._record, heartbeat_at=now_us())
            self._write(record)
            if record.ended_at is not None:
                return
            with self._changed:
                self._changed.wait_for(self._has_ended, _AT_MOST_EVERY_S)
                rest_s = self._every_s - _AT_MOST_EVERY_S
                self._changed.wait_for(lambda: self._is_changed or self._has_ended(), rest_s)

    def _take_over(self) -> None:
        """Show the last error of the process before until there is another."""
        for path in self._paths:
            with suppress(OSError, ValueError, ImportError):
                before = _read(path)
                if before is not None and before.last_error is not None:
                    with self._changed:
                        last_error = self._record.last_error or before.last_error
                        self._record = replace(self._record, last_error=last_error)

    def _write(self, record: ProcessRecord) -> None:
        from connector.lake.stores import write_at

        text = json.dumps(to_stored(record))
        for path in self._paths:
            with suppress(OSError, ImportError):  # a bridge needs no library of a store
                if self._is_mine(path) or record.ended_at is None:
                    write_at(path, text, makes_folder=self._makes_folder)

    def _is_mine(self, path: str) -> bool:
        """Whether no other process is at work. Of two that write one stream, one is shut out."""
        try:
            there = _read(path)
        except ValueError:
            return True
        if there is None or not there.is_at_work_beside(self._record):
            return True
        self._rival = there
        return False

    def _has_ended(self) -> bool:
        return self._record.ended_at is not None

    def _written(self, record: ProcessRecord) -> ProcessRecord:
        return record if self._is_local else replace(record, batches={}, applies={})


def after_event(record: ProcessRecord, event: Event, at: int) -> ProcessRecord:
    """Return the record after an event of the pipeline at the time `at`."""
    error = str(event.fields.get("error") or (event.code if event.level == "error" else ""))
    failure = Failure(error, event.text, at)
    if error:
        record = replace(record, last_error=failure)
    table = str(event.fields.get("table", ""))
    if table and table not in record.tables:
        record = replace(record, tables=(*record.tables, table))
    match event.code:
        case "WAITING":
            waiting = record.waiting or failure
            waiting = replace(failure, at=waiting.at)
            return replace(record, waiting=waiting, batches={}, applies={})
        case "GOES_ON":
            return replace(record, waiting=None)
        case "RUNNING" | "RELOADED":
            return replace(record, is_starting=False, batches={}, applies={})
        case "TABLE_STOPPED":
            stopped, applies = {**record.stopped, table: failure}, _without(record.applies, table)
            return replace(record, stopped=stopped, applies=applies)
        case "TABLE_GOES_ON":
            return replace(record, stopped=_without(record.stopped, table))
        case "STEP":
            return _after_step(record, event, at)
    return record


def _after_step(record: ProcessRecord, event: Event, at: int) -> ProcessRecord:
    stream, table = str(event.fields.get("stream", "")), str(event.fields.get("table", ""))
    record = replace(record, is_starting=False)
    if event.text == "batch begun":
        return replace(record, batches={**record.batches, stream: at})
    if event.text == "batch ended":
        return replace(record, batches=_without(record.batches, stream))
    if event.text == "apply begun" and table not in record.stopped:
        return replace(record, applies={**record.applies, table: at})
    if event.text in APPLY_ENDS:  # a table that was stopped and could be applied goes on
        applies = _without(record.applies, table)
        return replace(record, applies=applies, stopped=_without(record.stopped, table))
    return record


def _without(values: Mapping[str, Value], name: str) -> dict[str, Value]:
    return {other: value for other, value in values.items() if other != name}


def _failure(error: BaseException, at: int) -> Failure:
    """`text` has the remedy, too, as that of an event."""
    code = error.code if isinstance(error, ConnectorError) else type(error).__name__
    return Failure(code, str(error), at)


def status_of_pipeline(config: ConnectorConfig, stream: str, now: int) -> PipelineStatus:
    """Return whether a pipeline runs for a stream, and what it does at the time `now` (µs)."""
    return _status_of(config, paths.process(warehouse_of(config), stream), now)


def status_of_bridge(config: ConnectorConfig, stream: str, now: int) -> PipelineStatus:
    """As `status_of_pipeline`, for the bridge of a stream."""
    return _status_of(config, paths.bridge(warehouse_of(config), stream), now)


def check_no_erasure(config: ConnectorConfig) -> None:
    """Raise `WriterConflictError` if an erasure runs in one of the streams (OPR-2): it would refuse
    to commit beside a pipeline.
    """
    for stream in config.streams:
        erasure = _status_of(config, paths.erasure(warehouse_of(config), stream), now_us())
        if erasure.is_running:
            raise erasure_running(stream, erasure.text_of_rival("erases a row"))


def _status_of(config: ConnectorConfig, path: str, now: int) -> PipelineStatus:
    try:
        record = _read(path)
    except (OSError, ValueError) as error:
        return pipeline_status(None, now, unreadable=str(error))
    is_alive = None
    if record is not None:
        is_alive = _is_alive(record.pid) if record.machine == _machine() else None
        stopped = {name: why for name, why in record.stopped.items() if name in config.tables}
        record = replace(record, stopped=stopped)
    return pipeline_status(record, now, is_alive=is_alive)


def _read(path: str) -> ProcessRecord | None:
    """The record, or None if there is no file. Raises `OSError`, or `ValueError` if it is damaged
    or of a version with another form.
    """
    from connector.lake.stores import reader_of

    folder, _, name = path.rpartition("/")
    content = reader_of(folder)(name)
    return None if content is None else from_text(ProcessRecord, content.decode())


def _machine() -> str:
    """Where a process id names one process: a boot of a host, and a namespace of processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it belongs to another user
        return True
    return True
