"""The record that a running pipeline keeps of itself in the warehouse (RUN-1). Times are in
microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connector.records.views import Time, Viewed


@dataclass(frozen=True, slots=True)
class Failure(Viewed):
    """An error with its code. `text` ends with its remedy, and `at` is when it began."""

    code: str
    text: str
    at: Time


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A pipeline, and what it does.

    - Process ids of one `machine` can be compared: it is a boot of a host, and its namespace.
    - `heartbeat_at` is when the record was written, at least every `heartbeat_s`.
    - `ended_at` is its end. None: it runs, or was killed.
    - `waiting` is the error of what it waits for, such as Kafka.
    - `batches` has the beginning of the batch in flight by stream, and `applies` that of the apply
      by table. `tables` are all that it applies, and `stopped` has the stopped ones.
    - `last_error` may be of the process before. It ended this one if its time is `ended_at`.
    """

    host: str
    machine: str
    pid: int
    version: str
    since: int
    heartbeat_at: int
    heartbeat_s: int
    is_once: bool = False
    is_starting: bool = True
    ended_at: int | None = None
    waiting: Failure | None = None
    batches: Mapping[str, int] = field(default_factory=dict)
    applies: Mapping[str, int] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    stopped: Mapping[str, Failure] = field(default_factory=dict)
    last_error: Failure | None = None

    def is_at_work_beside(self, other: ProcessRecord) -> bool:
        """Whether it is another process, and has written since the other one began."""
        mine, others = (self.machine, self.pid, self.since), (other.machine, other.pid, other.since)
        return mine != others and self.ended_at is None and self.heartbeat_at > other.since
