"""The metrics of this process: what a running pipeline has told, and what Kafka is asked for every
30 seconds (MET-1).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from connector.clock import now_us
from connector.errors import BrokerError, TableError, TopicError
from connector.events import Event, OnEvent, warning
from connector.reports.headroom import least
from connector.reports.metrics import (
    BROKER_FREE_BYTES,
    FREE_BYTES,
    ProcessFigures,
    StreamFigures,
    TableFigures,
)
from connector.reports.series import Sample, Series
from connector.services.status import (
    ASK_TIMEOUT_S,
    open_letters_of,
    warehouse_free_bytes,
)
from connector.services.warehouses import warehouse_of
from connector.state.jobs import Job, JobKind
from connector.state.overrides import bound_in_force
from connector.state.stream_progress import Progress
from connector.state.unapplied import BatchContents
from connector.watermarks.freshness import EndOffsets

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.state.table_state import TableState

REFRESH_EVERY_S: Final = 30.0
Usage = Callable[[], Mapping[Series, float]]


class Metrics:
    """The figures that a pipeline has about itself. Give it to `run`, and read `samples` from any
    thread.

    For example, `connector run --metrics 127.0.0.1:9464` serves the samples over HTTP.
    """

    def __init__(self) -> None:
        self._lock, self._process = threading.Lock(), ProcessFigures()
        self._streams = dict[str, StreamFigures]()
        self._tables = dict[str, TableFigures]()

    def samples(self, now: int | None = None) -> list[Sample]:
        """Return all samples at the time `now` (µs; None: the clock). Only memory is read."""
        at = now_us() if now is None else now
        with self._lock:
            process, streams, tables = self._process, dict(self._streams), dict(self._tables)
        samples = list(process.samples(at))
        for figures in streams.values():
            samples += figures.samples(at)
        for name, table in tables.items():
            samples += table.samples(name, streams[table.stream].progress, at)
        return samples

    def begin(self, config: ConnectorConfig) -> None:
        """Forget the streams and tables that this configuration does not have."""
        with self._lock:
            self._streams = {
                name: replace(self._streams.get(name, StreamFigures(stream)), config=stream)
                for name, stream in config.streams.items()
            }
            self._tables = {
                name: replace(
                    self._tables.get(name, TableFigures(table.stream, table.source)),
                    stream=table.stream,
                    source=table.source,
                    bound_s=table.max_staleness_s,
                )
                for name, table in config.tables.items()
            }

    @contextmanager
    def running(self) -> Iterator[None]:
        """The pipeline runs during the block."""
        self._change(lambda process: replace(process, is_running=True))
        try:
            yield
        finally:
            self._change(lambda process: replace(process, is_running=False))

    def noting(self, on_event: OnEvent) -> OnEvent:
        """Return a function that counts warnings and errors, and passes all events on."""

        def note(event: Event) -> None:
            if event.level == "error":
                self.failed(event.code)
            elif event.level == "warning":
                self._change(lambda process: process.with_warning(event.code))
            on_event(event)

        return note

    def failed(self, code: str) -> None:
        """Note an error with this code."""
        self._change(lambda process: process.with_error(code, now_us()))

    def on_batch(
        self,
        stream: str,
        progress: Progress,
        ends: Mapping[int, int] | None,
        seconds: float | None,
        contents: Mapping[int, BatchContents],
    ) -> None:
        """Note the progress of a stream. The arguments are those of `JobLog.on_batch`."""
        with self._lock:
            before = self._streams[stream]
            written = before.written + sum(batch.written for batch in contents.values())
            figures = replace(before, progress=progress, written=written)
            if ends is not None:
                figures = replace(figures, read_to={**figures.read_to, **ends})
            if ends is not None and seconds is not None:
                figures = replace(figures, batches=figures.batches.with_value(seconds))
            self._streams[stream] = figures
            for name, table in self._tables.items():
                if table.stream == stream:
                    self._tables[name] = table.with_batches(progress, contents, now_us())

    def on_table(self, name: str, state: TableState) -> None:
        """Note the newest state of a table."""
        with self._lock:
            self._tables[name] = self._tables[name].with_state(state)

    def on_job(self, job: Job) -> None:
        """Note a job of the history."""
        self._change(lambda process: process.with_job(job))
        if job.table:
            with self._lock:
                self._tables[job.table] = self._tables[job.table].with_job(job)

    @contextmanager
    def refreshing(
        self,
        config: ConnectorConfig,
        usage: Usage | None,
        on_event: OnEvent,
        stopped: Callable[[], Collection[str]] = tuple,
    ) -> Iterator[None]:
        """Ask Kafka, the disk, `usage`, which returns what the JVM uses, and `stopped`, which
        returns the stopped tables, every 30 seconds during the block. While one does not answer,
        its values stay. Without `usage`, the metrics have no reader: then only the headroom is
        asked for, to warn of it (RUN-7).
        """
        stop = threading.Event()

        def work() -> None:
            while True:
                if usage is not None:
                    self._refresh(config, usage, stopped())
                for stream in config.streams.values():
                    if stop.is_set():
                        return
                    with suppress(BrokerError, TopicError, TableError):
                        self._ask(config, stream, on_event, is_measured=usage is not None)
                if stop.wait(REFRESH_EVERY_S):
                    return

        thread = threading.Thread(target=work, name="metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _refresh(self, config: ConnectorConfig, usage: Usage, stopped: Collection[str]) -> None:
        from connector.kafka.local.folder import free_bytes
        from connector.lake.jobs import History
        from connector.lake.overrides import Overrides

        used, warehouse = dict(usage()), warehouse_of(config)
        if (free := warehouse_free_bytes(config)) is not None:
            used[FREE_BYTES] = free
        with suppress(BrokerError):
            if (free := free_bytes(config.kafka, ASK_TIMEOUT_S)) is not None:
                used[BROKER_FREE_BYTES] = free
        self._change(lambda process: replace(process, usage={**process.usage, **used}))
        bounds: Mapping[str, int] = {}
        with suppress(TableError):
            bounds = Overrides(warehouse).bounds()
        with self._lock:
            for name, table in config.tables.items():
                bound_s = bound_in_force(table, bounds)
                self._tables[name] = replace(
                    self._tables[name], bound_s=bound_s, is_stopped=name in stopped
                )
        for name in config.streams:
            with suppress(TableError):
                newest = History(warehouse).newest((JobKind.AUDIT,), stream=name)
                with self._lock:
                    audit = newest.get(JobKind.AUDIT)
                    self._streams[name] = replace(self._streams[name], audit=audit)

    def _ask(
        self, config: ConnectorConfig, stream: StreamConfig, on_event: OnEvent, *, is_measured: bool
    ) -> None:
        from connector.kafka import client, topics
        from connector.kafka.bridge.status import bridge_status
        from connector.kafka.probe_offsets import headrooms

        at, name = now_us(), stream.name
        admin = client.admin(config.kafka, ASK_TIMEOUT_S)
        facts = topics.describe(config.kafka, stream.topic, admin)
        asked = EndOffsets(at, topics.high_watermarks(config.kafka, facts))
        with self._lock:
            read_to = self._streams[name].read_to
        headroom = headrooms(config.kafka, facts, read_to, asked.ends)
        with self._lock:
            before = self._streams[name]
            self._streams[name] = after = before.with_headroom(headroom, facts.retention_ms, at)
        if (lowest := least(headroom)) and after.is_low and not before.is_low:
            on_event(warning("HEADROOM", lowest.describe(at), stream=name))
        if not is_measured:
            return
        with self._lock:
            progress = self._streams[name].progress or Progress()
            states = {
                table: figures.state
                for table, figures in self._tables.items()
                if figures.stream == name and figures.state is not None
            }
        letters, of_tables = open_letters_of(config, stream, progress, states)
        bridge = None
        if stream.source is not None:
            bridge = bridge_status(config, stream, at, timeout_s=ASK_TIMEOUT_S)
        with self._lock:
            self._streams[name] = self._streams[name].answered(asked, letters, bridge)
            if letters.is_known:
                for table, of_table in of_tables.items():
                    self._tables[table] = replace(self._tables[table], letters=of_table)

    def _change(self, act: Callable[[ProcessFigures], ProcessFigures]) -> None:
        with self._lock:
            self._process = act(self._process)
