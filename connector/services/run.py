"""Run the pipeline: ingest streams and apply them to their tables (OPS-4)."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from connector.clock import now_us
from connector.config.storage import is_local, look_every_s
from connector.dead_letters.envelope import dead_letter_topic
from connector.dead_letters.ledger import LetterState
from connector.errors import (
    BrokerError,
    ConfigError,
    ConnectorError,
    TableError,
    TopicError,
    WriterConflictError,
)
from connector.errors.settings import setting_missing
from connector.events import OnEvent, Steps, info, log_event, warning
from connector.reports.table_status import is_at_low_watermark, text_of_waiting
from connector.services.load_config import who
from connector.services.local_spark import check_is_shared, interrupted_by, session_of
from connector.services.metrics import Metrics
from connector.services.process import check_no_erasure, recorded
from connector.services.reload import READ_EVERY_S, ConfigFile, Reloads, with_sources
from connector.services.source_tables import SourceTables, follows_sources
from connector.services.stopped_tables import StoppedTables, error_of
from connector.services.surroundings import Surroundings, is_away
from connector.services.warehouses import check_logs, naming_damage, only_use, warehouse_of
from connector.state.accepted_losses import AcceptLoss
from connector.state.incomplete_transactions import ReleaseTransaction
from connector.state.jobs import Job, JobKind
from connector.state.overrides import ClosePartition
from connector.write_streams.releases import ReleaseRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.dead_letters.envelope import DeadLetter
    from connector.lake.overrides import Overrides
    from connector.spark.ingest.ports import IngestPorts
    from connector.spark.job_log import JobLog
    from connector.spark.pipeline import Pipeline
    from connector.tables.published import PublishedTable


_TURN_S: Final = 0.0005
_STOP_WITHIN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class RunReport:
    """The work of one `run`, of all streams and tables."""

    batches: int
    applies: int
    dead_letters: int


class _Counter:
    """The work of a run, counted by its threads."""

    def __init__(self) -> None:
        self._lock, self._counts = threading.Lock(), Counter[str]()

    def add(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._counts[name] += number

    def report(self, batches: int) -> RunReport:
        return RunReport(batches, self._counts["applies"], self._counts["dead_letters"])


def run(
    config: ConnectorConfig | ConfigFile,
    *,
    spark: SparkSession | None = None,
    once: bool = False,
    stop: threading.Event | None = None,
    on_event: OnEvent = log_event,
    cores: str | None = None,
    memory: str | None = None,
    metrics: Metrics | None = None,
) -> RunReport:
    """Ingest all streams of a configuration and apply them to their tables.

    You can kill the process at any moment and call `run` again: it goes on where it was. For
    example, a nightly job calls `run(load_config(), once=True)`.

    Args:
        config: At least one stream. A `ConfigFile` is read again when it changes (EVO-8).
        spark: Your own session, which is neither changed nor stopped. None: a local session.
        once: Ingest to the end that each topic has now, apply, and return. Otherwise it runs until
            `stop` is set.
        stop: Set it from another thread or from a signal handler: the batch in flight ends first.
        on_event: Receives warnings and progress, and each step with the level `debug`.
        cores: Threads of a local session, or `*` for all processors. None: as in [spark].
        memory: Heap of the driver, for example `2g`. None: as in [spark].
        metrics: Receives what the pipeline knows about itself, for a scrape (MET-1).

    Returns:
        The numbers of `batches` that were added to changelogs, of finished `applies`, and of
        `dead_letters` that were published.

    Raises:
        ConfigError: No stream is configured, or Spark cannot be given a Kafka setting, or the
            warehouse is a folder that the hosts of a cluster may not share.
        WriterConflictError: Another process, or another call of this one, runs the same stream. Or,
            with `once`, an erasure runs in it. Without `once`, the call waits for its end.
        ConnectorError: Kafka, the registry or the warehouse cannot be used. Nothing is lost.
    """
    file, config = (config, config.config) if isinstance(config, ConfigFile) else (None, config)
    _check_has_streams(config)
    check_is_shared(config, spark)
    until, noted = stop or threading.Event(), metrics or Metrics()
    with ExitStack() as stack:
        stack.enter_context(only_use(config, config.streams))
        on_event = stack.enter_context(recorded(config, noted.noting(on_event), once=once))
        surroundings = Surroundings("the pipeline", until, on_event, fails_fast=once)
        begun = surroundings.wait_for(partial(_begin, file, config, stack, on_event))
        if begun is None:
            on_event(info("STOPPED", "stopped: it had not begun"))
            return RunReport(0, 0, 0)
        file, sources = begun
        if file is not None:
            config = file.config
        check_logs(config, config.streams, [])
        stack.enter_context(naming_damage(config, config.streams, []))
        pipeline_run = _Run(config, file, once, until, on_event, surroundings, sources, noted)
        pipeline_run.is_measured = metrics is not None
        before = surroundings.wait_for(partial(_ingest_batches, config)) or 0
        start = partial(session_of, config, spark, stack, on_event, cores=cores, memory=memory)

        def start_session() -> SparkSession:
            with interrupted_by(until):
                return start(for_writing=True, is_short=once)

        pipeline_run.run(start_session)
        return pipeline_run.counter.report(_ingest_batches(config) - before)


def _begin(
    file: ConfigFile | None, config: ConnectorConfig, stack: ExitStack, on_event: OnEvent
) -> tuple[ConfigFile | None, SourceTables | None]:
    """The configuration with the tables of its sources, if it follows some. Raises
    `WriterConflictError` if an erasure runs.
    """
    check_no_erasure(config)
    return with_sources(file, config, stack, on_event) if follows_sources(config) else (file, None)


def _check_has_streams(config: ConnectorConfig) -> None:
    if not config.streams:
        remedy = 'Add a section such as [streams.orders] with topic = "orders"'
        raise setting_missing("A section [streams.NAME]", "the topic of a stream", remedy)


@dataclass(slots=True)
class _Run:
    """One call of `run`."""

    config: ConnectorConfig
    file: ConfigFile | None
    once: bool
    stop: threading.Event
    on_event: OnEvent
    surroundings: Surroundings
    sources: SourceTables | None = None
    metrics: Metrics = field(default_factory=Metrics)
    is_measured: bool = False
    counter: _Counter = field(default_factory=_Counter)
    reloads: Reloads | None = None
    stopped: dict[str, ConnectorError] = field(default_factory=dict)
    has_run: bool = False

    def run(self, start_session: Callable[[], SparkSession]) -> None:
        """Run pipelines in one session, until `stop` is set or a person must decide something. A
        pipeline begins again when Kafka, the registry or the store is back (RUN-2).
        """
        session, stopped = None, StoppedTables(self.on_event)
        try:
            while True:
                try:
                    with ExitStack() as stack:
                        ports = self._ports(stack)
                        session = session or start_session()
                        self._run_pipeline(session, ports, stopped)
                    break
                except ConnectorError as error:
                    if self.stop.is_set() or not self.surroundings.outlived(error):
                        raise
                if self.stop.is_set():
                    break
        except KeyboardInterrupt:
            if session is not None or not self.stop.is_set():
                raise
            self.on_event(info("STOPPED", "stopped: Spark had not started"))
            return
        except Exception as error:
            is_of_spark = session is not None or not isinstance(error, ConnectorError | OSError)
            if not (is_of_spark and _spark_has_ended()):
                raise
            self._end_without_spark(error)
            return
        if self.stop.is_set():
            self.on_event(info("STOPPED", "stopped: every batch that began has ended"))
        if (error_at_end := error_of(self.stopped)) is not None:
            raise error_at_end

    def _ports(self, stack: ExitStack) -> dict[str, IngestPorts]:
        """Kafka and the registry of each stream. Raises `BrokerError` if one does not answer."""
        ports = {
            name: ports_of(self.config, stream, stack, self.on_event, self.counter)
            for name, stream in self.config.streams.items()
        }
        self.surroundings.ask_registry(self.config.registry)
        return ports

    def _run_pipeline(
        self, spark: SparkSession, ports: Mapping[str, IngestPorts], stopped: StoppedTables
    ) -> None:
        from connector.lake.small_apply import merge_few
        from connector.spark.cluster import repeating, watching
        from connector.spark.pipeline import Pipeline

        with watching(spark), _short_turns():
            job_log, on_step = self._job_log(), Steps(self.on_event).step
            wanted: ConnectorConfig | None = self.config
            while wanted is not None:
                self.config, wanted = wanted, None
                self.metrics.begin(self.config)
                table_ports = stopped.ports(self.config, self._is_refused)
                start = partial(
                    Pipeline,
                    *(spark, self.config, ports, job_log, merge_few, self.on_event),
                    *(on_step, table_ports),
                )
                try:
                    pipeline = repeating(start, "the tables", self.on_event, self.stop)
                except (ConfigError, TableError, WriterConflictError) as error:
                    if self.reloads is None or is_away(error):
                        raise
                    wanted = self.reloads.go_back(error)
                    continue
                with self._measuring(spark, pipeline):
                    wanted, self.stopped = self._run_one(pipeline), pipeline.stopped
        if self.once and not self.stop.is_set():
            _report_open_transactions(self.config, self.on_event)
            report_waiting_changes(self.config, self.on_event)

    def _is_refused(self, name: str) -> bool:
        """Whether a table may not stop: a new configuration would stop it, and the old one did
        not.
        """
        return self.reloads is not None and self.reloads.is_new and name not in self.stopped

    def _run_one(self, pipeline: Pipeline) -> ConnectorConfig | None:
        """Run a pipeline. Returns the configuration that replaces its own, if there is one."""
        if self.reloads is not None:
            self.reloads.began()
        is_new = not self.has_run or self.surroundings.away is None
        self.has_run = True
        self.surroundings.are_there()
        if self.once:
            pipeline.run_once(self.stop)
            return None
        if is_new:
            self.on_event(info("RUNNING", "running; stop with Ctrl-C or SIGTERM"))
        return self._run_until_replaced(pipeline)

    @contextmanager
    def _measuring(self, spark: SparkSession, pipeline: Pipeline) -> Iterator[None]:
        """Ask for what is not in memory during the block, and warn of a low headroom."""
        from connector.spark.jvm import jvm_usage

        usage = partial(jvm_usage, spark) if self.is_measured else None
        asked = (self.config, usage, self.on_event, lambda: list(pipeline.stopped))
        with self.metrics.running(), self.metrics.refreshing(*asked):
            yield

    def _run_until_replaced(self, pipeline: Pipeline) -> ConnectorConfig | None:
        """Run the pipeline until `stop` is set, or until there is a new configuration, which is
        returned.
        """
        if self.file is None:
            pipeline.run(self.stop)
            return None
        overrides, until = _overrides(self.config), threading.Event()
        if self.reloads is None:
            self.reloads = Reloads(self.file, overrides, self.on_event, self.sources)
        watch = _Watch(self.reloads, self.stop, until)
        thread = threading.Thread(target=watch.run, name="configuration", daemon=True)
        thread.start()
        try:
            pipeline.run(until, lambda: watch.config is not None)
        finally:
            until.set()
            thread.join()
        if watch.failure is not None:
            raise watch.failure
        return watch.config

    def _end_without_spark(self, error: Exception) -> None:
        """Raise `ConnectorError` if Spark ended before `stop` was set."""
        from connector.errors.spark import session_ended

        if self.stop.is_set():
            text = "stopped: Spark ended before its work did; the next run does it"
            self.on_event(info("STOPPED", text))
            return
        problem = "The pipeline stopped, because Spark has ended"
        if isinstance(error, ConnectorError) and error.code == "SPARK_SESSION_ENDED":
            raise session_ended(problem, error.cause) from error
        raise session_ended(problem) from error

    def _job_log(self) -> JobLog:
        from connector.lake.jobs import History
        from connector.spark.apply.follow import DefinitionPorts
        from connector.spark.job_log import JobLog

        history, overrides = History(warehouse_of(self.config)), _overrides(self.config)

        def add_jobs(jobs: Sequence[Job]) -> None:
            history.add_jobs(jobs)
            for job in jobs:
                self.metrics.on_job(job)
                if job.kind is JobKind.APPLY and not job.error:
                    self.counter.add("applies")

        return JobLog(
            add_jobs,
            history.add_cut,
            history.newest_cut,
            history.cuts,
            overrides.bounds,
            overrides.paces,
            definitions=DefinitionPorts(
                overrides.columns,
                lambda settled: overrides.settle(settled, now_us(), who()),
                partial(_publish, self.config, self.on_event, set()),
            ),
            last_clean_up=history.last_clean_up,
            failed_maintenance=history.failed_maintenance,
            forget_cuts=history.forget_cuts,
            on_batch=self.metrics.on_batch,
            on_table=self.metrics.on_table,
        )


class _Watch:
    """Sets `until` when `stop` is set or there is a new configuration."""

    def __init__(self, reloads: Reloads, stop: threading.Event, until: threading.Event) -> None:
        self._reloads, self._stop, self._until = reloads, stop, until
        self.config: ConnectorConfig | None = None
        self.failure: ConnectorError | None = None

    def run(self) -> None:
        """Look until `until` is set."""
        look_at = 0.0
        while not self._until.wait(_STOP_WITHIN_S):
            if self._stop.is_set():
                self._until.set()
                continue
            try:
                self._reloads.look_at_sources()
                if self._reloads.is_asked or time.monotonic() >= look_at:
                    look_at = time.monotonic() + READ_EVERY_S
                    self.config = self._reloads.next_config()
            except ConnectorError as error:
                self.failure = error
            if self.config is not None or self.failure is not None:
                self._until.set()


@contextmanager
def _short_turns() -> Iterator[None]:
    """Let threads take turns more often than every 5 ms.

    A small apply computes in Python without a pause. Meanwhile a batch calls the JVM a thousand
    times, and would wait for its turn after each call.
    """
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)


def _publish(
    config: ConnectorConfig, on_event: OnEvent, warned: set[str], tables: Sequence[PublishedTable]
) -> Mapping[str, ConnectorError]:
    """Publish the definitions of tables on the topics of their streams (EVO-1). `warned` has the
    problems of records that were reported.
    """
    from connector.kafka.tables import publish_tables

    def on_unreadable(error: TopicError) -> None:
        if error.problem not in warned:
            warned.add(error.problem)
            on_event(warning(error.code, str(error)))

    refused = dict[str, ConnectorError]()
    for name, stream in config.streams.items():
        of_stream = [table for table in tables if table.definition.stream == name]
        if of_stream:
            refused |= publish_tables(
                config.kafka, stream.topic, of_stream, on_unreadable=on_unreadable
            )
    return refused


def _ingest_batches(config: ConnectorConfig) -> int:
    from connector.lake.state_reader import progress_of

    batches = 0
    for stream in config.streams:
        with suppress(TableError):  # the stream has no changelog yet, or Spark finds the damage
            batches += progress_of(warehouse_of(config), stream).ingest_batch
    return batches


def _spark_has_ended() -> bool:
    """Whether the Java process has ended, for example with the stop of a whole service."""
    from connector.spark.jvm import is_any_live

    return not is_any_live()


def _report_open_transactions(config: ConnectorConfig, on_event: OnEvent) -> None:
    """Send a warning for each Kafka partition whose last records are behind an open transaction.
    If Kafka does not answer, no warning is sent: the work is done.
    """
    from connector.kafka import topics
    from connector.kafka.probe_offsets import open_transactions

    for name, stream in config.streams.items():
        with suppress(BrokerError, TopicError):
            facts = topics.describe(config.kafka, stream.topic)
            for transaction in open_transactions(config.kafka, facts):
                text = transaction.describe(now_us())
                partition = transaction.stream_partition
                on_event(warning("OPEN_TRANSACTION", text, stream=name, stream_partition=partition))


def report_waiting_changes(config: ConnectorConfig, on_event: OnEvent) -> None:
    """Send a warning for each table with changes that wait for a heartbeat (TBL-10)."""
    from connector.lake.changelog_changes import waiting_changes
    from connector.lake.state_reader import progress_of, table_state_of

    warehouse = warehouse_of(config)
    for name, definition in config.tables.items():
        with suppress(TableError):
            table = table_state_of(warehouse, definition.stream, name)
            if not (waiting := waiting_changes(warehouse, definition, table)):
                continue
            progress = progress_of(warehouse, definition.stream, with_frontier=True)
            lagging = progress.frontier.lagging_partition
            if lagging is not None and is_at_low_watermark(table, progress):
                partition = lagging.stream_partition
                text = text_of_waiting(waiting, partition)
                on_event(warning("CHANGES_WAIT", text, table=name, stream_partition=partition))


def ports_of(
    config: ConnectorConfig,
    stream: StreamConfig,
    stack: ExitStack,
    on_event: OnEvent = log_event,
    counter: _Counter | None = None,
) -> IngestPorts:
    """Kafka, the registry and the clock of one stream, checked before anything starts (REC-2)."""
    from connector.kafka import topics
    from connector.kafka.client import records_between
    from connector.kafka.dead_letters.ledger_topic import published_letters, read_ledger
    from connector.kafka.dead_letters.topic import external_dead_letters
    from connector.kafka.probe_offsets import first_arrivals, open_transactions
    from connector.kafka.ranges import RangeReader
    from connector.lake.batch_counts import count_rows, count_table
    from connector.lake.changelog_folds import fold_batches
    from connector.lake.letter_positions import logged_positions
    from connector.lake.small_files import row_writer
    from connector.spark.ingest.ports import IngestPorts

    kafka, name, topic = config.kafka, stream.name, stream.topic
    describe, looks = partial(topics.describe, kafka, topic), topics.TopicLooks(kafka, topic)
    facts = describe()
    for problem in topics.check(facts):
        on_event(warning("TOPIC_SETTING", problem, stream=name))
    topics.create_dead_letter_topics(kafka, facts)
    topics.check_dead_letters(facts, topics.describe(kafka, dead_letter_topic(topic)))
    overrides, ranges = _overrides(config), RangeReader(kafka, topic)
    stack.callback(ranges.close)
    return IngestPorts(
        topic=looks.topic,
        publish=_publisher(config, topic, stack, counter or _Counter()),
        now=now_us,
        high_watermarks=looks.high_watermarks,
        committed_ends=looks.committed_ends,
        count_rows=count_rows,
        count_table=count_table,
        logged_positions=logged_positions,
        read_few=lambda offsets, asked_at: ranges.read(offsets.by_partition, asked_at),
        write_rows=row_writer(warehouse_of(config)),
        fold_batches=fold_batches,
        earliest=lambda: topics.beginning_offsets(kafka, describe()),
        schema_by_id=_registry(config, stack),
        closed_partitions=lambda after: overrides.requests(ClosePartition, name, above=after),
        releases=lambda after: overrides.requests(ReleaseTransaction, name, above=after),
        row_releases=lambda after: overrides.requests(ReleaseRows, name, above=after),
        accepted_losses=lambda after: overrides.requests(AcceptLoss, name, above=after),
        first_arrivals=lambda offsets: first_arrivals(kafka, describe(), offsets),
        discarded=lambda: read_ledger(kafka, topic).ids(LetterState.DISCARDED),
        published_letters=partial(published_letters, kafka, topic),
        external_dead_letters=lambda counts, published: external_dead_letters(
            kafka, topic, counts, published
        ),
        partition_of=topics.partition_of,
        erased=lambda: overrides.erased(name),
        open_transactions=lambda: open_transactions(kafka, describe()),
        read=lambda offsets: records_between(
            *(kafka, topic, looks.topic().topic_id),
            offsets.by_partition,
        ),
    )


def _publisher(
    config: ConnectorConfig, topic: str, stack: ExitStack, counter: _Counter
) -> Callable[[Iterable[DeadLetter]], int]:
    from connector.kafka.dead_letters.topic import DeadLetterPublisher

    publisher = stack.enter_context(DeadLetterPublisher(config.kafka, topic))
    lock = threading.Lock()

    def publish(letters: Iterable[DeadLetter]) -> int:
        with lock:
            published = publisher.publish(letters)
        counter.add("dead_letters", published)
        return published

    return publish


def _overrides(config: ConnectorConfig) -> Overrides:
    """The requests of operators, cached for less than the time between two reads."""
    from connector.lake.overrides import Overrides

    warehouse = warehouse_of(config)
    kept_for_s = 0.0 if is_local(warehouse) else look_every_s(warehouse) / 2
    return Overrides(warehouse, kept_for_s=kept_for_s)


def _registry(config: ConnectorConfig, stack: ExitStack) -> Callable[[int], str | None] | None:
    if config.registry is None:
        return None
    from connector.kafka.schema_registry import RegistryClient

    return stack.enter_context(RegistryClient(config.registry)).schema
