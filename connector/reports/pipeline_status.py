"""The status of the pipeline of a stream: whether it runs, and what it does (RUN-1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from connector.records.views import Hidden, Shown, Time, Viewed, view_of_time
from connector.state.process import Failure, ProcessRecord
from connector.text import duration, summarize_names

_SECOND: Final = 1_000_000
_MISSED: Final = 3
"""After so many heartbeats that are missing, a process does not run."""
CLOCKS_DIFFER_US: Final = 60 * _SECOND
"""The clocks of two hosts may differ by so much."""


@dataclass(frozen=True, slots=True)
class PipelineStatus(Viewed):
    """The pipeline of a stream, or its bridge.

    is_running     None: it cannot be found out, and `problem` says why
    problem        why it does not run, if it has not ended by itself
    since          since when it runs, or when it ended. None: unknown
    heartbeat_at   when it last said that it lives
    is_once        whether it ends by itself when its work is done
    is_starting    whether it has not begun to ingest or apply
    waiting        the error of what it waits for, for example of Kafka
    batches        by stream, when the batch in flight began; `applies` the same by table
    tables         those that it applies; `stopped` those that it does not, and why
    last_error     also one of the process before; it may be over
    silent_s       without a sign of life for so long, it counts as ended
    """

    now: Hidden[int]
    is_running: bool | None
    problem: str = ""
    host: str = ""
    pid: int | None = None
    version: str = ""
    since: Time | None = None
    heartbeat_at: Time | None = None
    is_once: bool = False
    is_starting: bool = False
    waiting: Failure | None = None
    batches: Mapping[str, Time] = field(default_factory=dict)
    applies: Mapping[str, Time] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    stopped: Mapping[str, Failure] = field(default_factory=dict)
    last_error: Failure | None = None
    silent_s: Hidden[float] = 0

    @property
    def is_done(self) -> Shown[bool]:
        """Whether it was to end by itself, and did so without an error."""
        return self.is_once and self.is_running is False and not self.problem

    @property
    def text(self) -> Shown[str]:
        """Whether it runs, in one line."""
        return self.text_with("waits for changes")

    def text_with(self, idle: str) -> str:
        """Return whether it runs, in one line. `idle`: what it does if it has nothing special to
        do.
        """
        if self.is_running is None:
            return f"cannot be found out: {self.problem}"
        since = "" if self.since is None else f" since {_to_the_second(self.since)}"
        if not self.is_running:
            return f"not running{since}{f': {self.problem}' if self.problem else ''}"
        doing = ", ".join(self._activities()) or idle
        return f"runs on {self.host}, pid {self.pid},{since}, version {self.version}: {doing}"

    def text_of_rival(self, idle: str = "waits for changes") -> str:
        """Return the same for an error of a process that must not run beside it."""
        silent = duration(self.silent_s)
        return (
            f"{self.text_with(idle)}. If it was killed, it counts as ended {silent} after its last"
            " sign of life"
        )

    def _activities(self) -> Iterator[str]:
        if self.waiting is not None:
            yield _text_of_waiting(self.waiting, self.now)
        elif self.is_starting:
            yield "starting"
        if self.batches:
            yield f"ingest batch of {self._since(self.batches)}"
        if self.applies:
            yield f"apply of {self._since(self.applies)}"

    def _since(self, begun: Mapping[str, int]) -> str:
        """The names, and for how long the first of them has been under way."""
        names = sorted(begun, key=lambda name: begun[name])
        since = duration(max(0, self.now - begun[names[0]]) / _SECOND)
        return f"{summarize_names(names)} since {since}"


def _text_of_waiting(waiting: Failure, now: int) -> str:
    """Return what a pipeline waits for, and since when."""
    kind = waiting.code.partition("_")[0]
    since = duration(max(0, now - waiting.at) / _SECOND)
    return f"waits for {_SYSTEMS.get(kind, 'Kafka')} since {since} ({waiting.code})"


_SYSTEMS: Final = {"REGISTRY": "the registry", "STORE": "the object store", "ERASURE": "an erasure"}


def pipeline_status(
    record: ProcessRecord | None,
    now: int,
    *,
    is_alive: bool | None = None,
    unreadable: str = "",
) -> PipelineStatus:
    """Return the status of the pipeline with this record. None: there is no record.

    Args:
        record: The record.
        now: The time of the reader's clock (µs).
        is_alive: Whether its process is there. None: it is on another machine, so only the age of
            the record tells.
        unreadable: Why the record cannot be read.
    """
    if unreadable:
        return PipelineStatus(now, None, f"its record cannot be read: {unreadable}")
    if record is None:
        return PipelineStatus(now, False, "no process has left a record")
    # It may hang, or another process may have its pid.
    tolerated = 0 if is_alive else CLOCKS_DIFFER_US
    silent = _MISSED * record.heartbeat_s * _SECOND + tolerated
    is_running, problem = _is_running(record, now, is_alive, silent)
    since = record.since
    if is_running is False:
        since = record.heartbeat_at if record.ended_at is None else record.ended_at
        record = replace(record, is_starting=False, waiting=None, batches={}, applies={})
    return PipelineStatus(
        *(now, is_running, problem),
        host=record.host,
        pid=record.pid,
        version=record.version,
        since=since,
        heartbeat_at=record.heartbeat_at,
        is_once=record.is_once,
        is_starting=record.is_starting,
        waiting=record.waiting,
        batches=record.batches,
        applies=record.applies,
        tables=record.tables,
        stopped=record.stopped,
        last_error=record.last_error,
        silent_s=silent / _SECOND,
    )


def _is_running(
    record: ProcessRecord, now: int, is_alive: bool | None, silent: int
) -> tuple[bool | None, str]:
    """Whether it runs, and why not. Without a sign of life for `silent` (µs), it does not."""
    error = record.last_error
    if record.ended_at is not None:
        is_failed = error is not None and error.at == record.ended_at
        return False, f"last error {error.code}: {error.text}" if error and is_failed else ""
    where = f"pid {record.pid} on {record.host}"
    if is_alive is False:
        return False, f"{where} ended without a word, for example by kill -9"
    age = now - record.heartbeat_at
    if age > silent:
        return False, f"{where} gives no sign of life"
    if is_alive is None and age < -CLOCKS_DIFFER_US:
        return None, f"the clock of {record.host} is {duration(-age / _SECOND)} ahead of this one"
    return True, ""


def _to_the_second(timestamp: int) -> str:
    return str(view_of_time(timestamp - timestamp % _SECOND)).replace(".000000", "")
