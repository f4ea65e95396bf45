"""The ingest of one stream, by one streaming query (OPS-4)."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connector import warehouse as paths
from connector.config.settings import ConnectorConfig, StreamConfig, UnknownTables
from connector.config.storage import is_local, look_every_s
from connector.errors import BrokerError, ConnectorError, TopicError
from connector.errors.tables import files_changed
from connector.events import Event, OnEvent, info, reached
from connector.records.views import view_of_time
from connector.spark.cluster import Losses, Pool, follow_cores, in_pool, repeated
from connector.spark.failures import ingesting
from connector.spark.ingest.ingest import Ingest
from connector.spark.ingest.ports import IngestPorts
from connector.spark.ingest.source import batch_range, forget_checkpoint, read_stream
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.logged_batch import BatchRange
from connector.spark.storage.maintenance import Work
from connector.state import maintenance_schedule as schedule
from connector.state.overrides import bounds_in_force
from connector.state.stream_progress import Progress
from connector.state.unapplied import BatchContents
from connector.text import counted

ASK_EVERY_S: Final = 60.0
"""How often Kafka is asked for new records, if there is nothing to read and no table declares a
bound.
"""
MIN_ASK_EVERY_S: Final = 1.0
_STOPS_SLOWLY: Final = "failed to stop within"
LOOK_EVERY_S: Final = 0.25
"""How often the query looks for records."""
REST: Final = 3
"""A batch begins so many lengths of the batch before after its begin, and at most the trigger."""
HEARTBEATS_EVERY_S: Final = 60.0
"""How long heartbeats wait for their batch, if they make no change visible (TBL-24)."""
_LOOK_EVERY_S: Final = 0.5
AWAY_AFTER_S: Final = 10.0
"""If Kafka gives no answer for so long, the query ends, and begins again when Kafka is back."""


class _StoppedError(Exception):
    """A batch began after the stop."""


OnBatch = Callable[[Progress, BatchRange | None, float, Mapping[int, BatchContents]], None]
"""Called after each batch with the progress, the offsets (None: it has no records), the seconds,
and the contents of all batches since the last call.
"""


class StreamIngest:
    """The streaming query of one stream."""

    def __init__(
        self,
        spark: SparkSession,
        config: ConnectorConfig,
        stream: StreamConfig,
        ports: IngestPorts,
        on_event: OnEvent,
        bounds: Callable[[], Mapping[str, int]] = dict,
        on_step: Callable[[str], None] = lambda step: None,
        on_batch: OnBatch = lambda progress, offsets, seconds, contents: None,
        lack_nothing_of: Callable[[int, bool], bool] = lambda batch, as_cut: False,
        turn: AbstractContextManager[object] = nullcontext(),  # noqa: B008, it has no state
    ) -> None:
        """`lack_nothing_of` says whether no table lacks a change up to an ingest batch. With the
        second argument, each table must be a consistent cut, too. Small batches are logged in the
        `turn` of small work.
        """
        self._spark, self._config, self._stream = spark, config, stream
        self._earliest = ports.earliest
        self._on_event = on_event
        self._bounds, self._on_batch = bounds, on_batch
        self._lack_nothing_of, self._changed_in, self._is_once = lack_nothing_of, 0, False
        self._checkpoint = f"{paths.stream_folder(config.warehouse, stream.name)}/checkpoint"
        if not is_local(config.warehouse):
            # In an object store, Spark's checkpoint would cost 150 requests a batch. A new one is
            # as good: ingest continues from the changelog.
            folder = tempfile.mkdtemp(prefix="lowmark-checkpoint-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._checkpoint = f"{Path(folder).as_uri()}/checkpoint"
        self.changelog = Changelog(
            spark,
            paths.changelog(config.warehouse, stream.name),
            stream.name,
            stream.retention,
            ports.write_rows,
            ports.fold_batches,
        )
        tables = [table for table in config.tables.values() if table.stream == stream.name]
        self._ingest = Ingest(
            stream,
            self.changelog,
            ports,
            known_tables=frozenset(table.source for table in tables),
            known_families=frozenset(column.family for table in tables for column in table.columns),
            reject_unknown_tables=stream.unknown_tables is UnknownTables.REJECT,
            on_step=on_step,
            turn=turn,
        )
        self._tables = tables
        self._in_flight = threading.Lock()
        self._stopping = False
        self._stopped = threading.Event()
        self._asking: threading.Thread | None = None
        self._on_step = on_step
        self._losses, self._begin_at = Losses(), 0.0
        self._failure: BaseException | None = None
        self._last: Progress | None = None
        self._read, self._to_read = 0, 0
        self._query: StreamingQuery | None = None

    def start(self, *, once: bool) -> None:
        """Start the query after the last record of the changelog, or where the checkpoint says.

        With `once`, the query reads up to the present end of the topic and stops.
        """
        self._begin_anew()
        self._is_once = once
        with ingesting(self._stream.name), in_pool(self._spark, Pool.INGEST):
            self._start(once=once)
        if not once:
            self._asking = threading.Thread(
                target=self._ask_regularly,
                args=(self._stopped,),
                name=f"ask {self._stream.name}",
                daemon=True,
            )
            self._asking.start()

    def is_at_end(self) -> bool:
        """Whether the changelog contains every record of the topic, so that `start(once=True)` has
        nothing to do.

        If a crash left the newest batch incomplete, this call completes it first.
        """
        self._begin_anew()
        with ingesting(self._stream.name):
            self._ingest.recover()
            return self._ingest.is_at_end()

    def _begin_anew(self) -> None:
        if self._asking is not None:
            self._asking.join()  # or it would write beside the batches of this start
        self._stopping, self._failure, self._begin_at = False, None, 0.0
        self._stopped = threading.Event()

    def _start(self, *, once: bool) -> None:
        self._ingest.recover()
        self._ingest.check_topic()
        self.changelog.declare()
        first = self._earliest()
        self._ingest.pass_lost_records(first)
        newest = self.changelog.newest()
        # The changelog records what was read. Without it, a checkpoint would make the query skip
        # records that were never logged. A batch that passed lost records is in no checkpoint.
        no_checkpoint = newest is None or bool(newest.losses)
        forget_checkpoint(self._spark, self._checkpoint, even_finished=no_checkpoint)
        start = {**first, **(newest.offsets.end if newest else {})}
        self._read, self._to_read = 0, self._ingest.offsets_after(start)
        self._report_read()
        writer = read_stream(
            self._spark, self._config.kafka, self._stream, start
        ).writeStream.foreachBatch(self._batch)
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if once
            else {"processingTime": f"{self._gap_s(LOOK_EVERY_S)} seconds"}
        )
        self._query = (
            writer.option("checkpointLocation", self._checkpoint)
            .queryName(f"ingest {self._stream.name}")
            .trigger(**trigger)
            .start()
        )

    def refresh(self) -> None:
        """Update the freshness of the stream's states, if every record was read (TBL-16)."""
        with self._in_flight, ingesting(self._stream.name):
            if not self._stopping:
                self._ingest.refresh()

    def take_requests(self) -> None:
        """Close the stream partitions that operators asked to close, and release the rows that they
        released, also if there is no new record (WMK-8, WRS-18).
        """
        with self._in_flight, ingesting(self._stream.name):
            if not self._stopping and self._ingest.take_requests():
                self._report_batch(self.changelog.progress(), None, 0.0)

    def check_transactions(self, *, is_last: bool = False) -> None:
        """Look for transactions that lack records, if a check is due (ING-2)."""
        with ingesting(self._stream.name):
            check = self._ingest.check_transactions(is_last=is_last)
            if check is None:
                return
            with self._in_flight:
                if not self._stopping and self._ingest.keep_check(check):
                    self._report_batch(self.changelog.progress(), None, 0.0)

    def compact(self) -> Work | None:
        """Merge small files of the changelog (TBL-15). None: it is not worth it.

        The new files are written while batches run. They are committed between two batches. Raises
        `WriterConflictError` if the pipeline stops meanwhile: the next one does it.
        """
        done, least = None, schedule.FOLD_BATCHES
        while (folded := self.changelog.fold(least)) is not None:
            commit_folded = partial(self.changelog.commit_folded, folded)
            done = self._between(commit_folded, folded.work) + (done or Work())
            least = schedule.FOLD_MORE_BATCHES
        if (rewritten := self.changelog.rewrite()) is not None:
            commit = partial(self.changelog.commit_rewritten, rewritten)
            done = self._between(commit, rewritten.work) + (done or Work())
        return done

    def _between(self, commit: Callable[[], None], work: Work) -> Work:
        """Commit between two batches. Returns the work."""
        with self._in_flight:
            if self._stopping:
                raise files_changed(self.changelog.path)
            commit()
        return work

    def remove_old_rows(self, covered: int | None, now: int) -> None:
        """Remove the payload of staged rows that expired (WRS-21), and the batches up to `covered`
        that are older than `changelog_retention` (TBL-15). This happens between two batches.
        """
        with self._in_flight:
            if self._stopping:
                return
            progress = self.changelog.progress(with_frontier=False)
            before = progress.expires_before(now, self._stream.staging_retention_s)
            self.changelog.expire(before=before)
            retention_s = self._stream.changelog_retention_s
            if covered is not None and retention_s is not None:
                self.changelog.trim(covered, before=now - retention_s * 1_000_000)

    def wait(self, stop: threading.Event | None = None) -> None:
        """Wait until the query ends or `stop` is set. If the query failed, raise its error."""
        assert self._query is not None
        try:
            while not self._query.awaitTermination(1):
                if stop is not None and stop.is_set():
                    self.stop()
        except StreamingQueryException as error:
            # The query only knows the text of the error that `_batch` raised. The error itself has
            # more details.
            if self._stopping and self._failure is None and _StoppedError.__name__ in str(error):
                return
            if self._failure is not None:
                self._failure.__suppress_context__ = True
                raise self._failure  # noqa: B904, its own cause says whether executors were lost
            with self._ingesting():
                raise

    def check(self, *, again: bool = True) -> None:
        """Raise the error that stopped the query, if there is one.

        If executors were lost, the query begins `again` after a pause, up to `REPEATS` times in a
        row (SCL-4). The caller calls again meanwhile.
        """
        if again and time.monotonic() < self._begin_at:
            return
        try:
            if again and self._begin_at:
                self.start(once=False)
            self._raise_failure()
        except ConnectorError as error:
            pause = self._losses.pause_after(error)
            if pause is None:
                raise
            if not again:
                return
            self._on_event(repeated(f"stream {self._stream.name}", error, pause))
            self.stop()
            self._begin_at = time.monotonic() + pause

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._query is not None and not self._query.isActive:
            self.wait()

    def stop(self) -> None:
        """Wait for the batch in flight, then stop. The next start continues after that batch."""
        self._stopped.set()
        if self._query is not None:
            with self._in_flight:
                self._stopping = True
            self._stop_query(self._query)

    @staticmethod
    def _stop_query(query: StreamingQuery) -> None:
        """Stop the query, however long Kafka's client waits for an answer."""
        while True:
            try:
                query.stop()
            except Py4JJavaError as error:
                if _STOPS_SLOWLY not in str(error):
                    raise
            else:
                return

    @contextmanager
    def _ingesting(self) -> Iterator[None]:
        """As `ingesting`, with the offsets of records that Kafka deleted unread (RUN-7)."""
        try:
            with ingesting(self._stream.name):
                yield
        except TopicError as error:
            if error.code == "RECORDS_DELETED" and (
                lost := self._ingest.lost_records(self._earliest())
            ):
                raise self._ingest.records_deleted(lost) from error
            raise

    def _ask_every_s(self) -> float:
        bounds = bounds_in_force(self._tables, self._bounds()).values()
        every_s = min(bounds) / 4 if bounds else ASK_EVERY_S
        # A stall is only sure if Kafka was asked since.
        return max(MIN_ASK_EVERY_S, min(every_s, self._stream.stall_after_s / 2))

    def _ask_regularly(self, stopped: threading.Event) -> None:
        """Take requests, check transactions and refresh the states, until `stopped` is set."""
        waited_s = pause_s = 0.0
        away_since: float | None = None
        with in_pool(self._spark, Pool.INGEST):
            while not stopped.wait(pause_s):
                waited_s += pause_s
                try:
                    self.take_requests()
                    self.check_transactions()
                    every_s = self._ask_every_s()
                    if waited_s >= every_s:
                        self.refresh()
                        waited_s, away_since = 0.0, None
                    # Operators may change the bound during the pause.
                    pause_s = min(every_s - waited_s, look_every_s(self._config.warehouse))
                except (BrokerError, TopicError) as error:
                    # Without an answer the states only grow older. The query itself would report
                    # the problem after minutes.
                    now, pause_s = time.monotonic(), MIN_ASK_EVERY_S
                    away_since = now if away_since is None else away_since
                    if isinstance(error, BrokerError) and now - away_since > AWAY_AFTER_S:
                        self._failure = self._failure or error
                        return
                except BaseException as error:  # noqa: BLE001, `check` raises it in another thread
                    if not stopped.is_set():
                        self._failure = self._failure or error
                    return

    def _batch(self, rows: DataFrame, batch_id: int) -> None:
        follow_cores(self._spark)
        with self._in_flight:
            if self._stopping:
                # The batch is neither processed nor acknowledged. The next start reads it again.
                raise _StoppedError
            self._on_step("batch begun")
            began, before = time.monotonic(), self._last or self.changelog.progress()
            try:
                with self._ingesting():
                    offsets = batch_range(
                        self._spark, self._checkpoint, batch_id, self._stream.topic
                    )
                    progress = self._ingest.batch(rows, offsets)
            except BaseException as error:
                self._failure = error
                raise
        self._losses.over()
        if self._last is None or progress.may_change_rows_after(before):
            self._changed_in = progress.ingest_batch
        seconds, self._last = time.monotonic() - began, progress
        self._report_batch(progress, offsets, seconds)
        self._on_event(_batch_event(self._stream.name, before, progress, offsets, seconds))
        self._read += offsets.records
        self._report_read()
        self._on_step("batch ended")
        if not self._is_once:
            self._stopped.wait(max(0.0, self._gap_s(REST * seconds) - seconds))
            self._await_news(progress, before, offsets)

    def _await_news(self, progress: Progress, before: Progress, offsets: BatchRange) -> None:
        """Wait while Kafka has only heartbeats, and no table needs them (TBL-24). A table that is
        no consistent cut needs them, unless those of this batch did not move the low watermark.
        """
        is_moving = progress.low_watermark != before.low_watermark
        as_cut = is_moving or self._changed_in == progress.ingest_batch
        within_s = min(HEARTBEATS_EVERY_S, self._stream.stall_after_s / 2)
        until = time.monotonic() + within_s
        with suppress(ConnectorError):  # the next batch, or the apply, raises it again
            if progress.needs_heartbeats or not self._lack_nothing_of(self._changed_in, as_cut):
                return
            while time.monotonic() < until and self._ingest.has_only_heartbeats(offsets.end):
                if self._stopped.wait(_LOOK_EVERY_S):
                    return

    def _gap_s(self, least_s: float) -> float:
        """The time between the starts of two batches, if it must be at least this long. In an
        object store, each batch costs requests: it is always the trigger.
        """
        trigger_s = self._stream.trigger_s
        return min(least_s, trigger_s) if is_local(self._config.warehouse) else trigger_s

    def _report_batch(self, progress: Progress, offsets: BatchRange | None, seconds: float) -> None:
        self._on_batch(progress, offsets, seconds, self._ingest.take_contents())

    def _report_read(self) -> None:
        total = max(self._read, self._to_read)
        self._on_event(reached("offsets logged", self._read, total, stream=self._stream.name))


def _batch_event(
    stream: str, before: Progress, progress: Progress, offsets: BatchRange, seconds: float
) -> Event:
    rejected = sum(progress.rejected.values())
    batch = f"batch {progress.ingest_batch} with {counted(offsets.records, 'offset')} logged"
    low = progress.low_watermark
    complete = "completeness unknown" if low is None else f"complete below {view_of_time(low)}"
    unknown = (
        f", {progress.unknown_tables} of source tables that no definition names"
        if progress.unknown_tables
        else ""
    )
    so_far = f"{counted(progress.changes, 'change')} so far{unknown}"
    return info(
        "BATCH_LOGGED",
        f"{batch}; {so_far}, {counted(rejected, 'rejected record')}; {complete}",
        stream=stream,
        batch=progress.ingest_batch,
        offsets=offsets.records,
        changes=progress.changes - before.changes,
        control=progress.control - before.control,
        rejected=rejected - sum(before.rejected.values()),
        late=progress.late - before.late,
        seconds=round(seconds, 3),
        lag=progress.freshness.behind,
        low_watermark=None if low is None else view_of_time(low),
    )
