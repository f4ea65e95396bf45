"""Run the pipeline: ingest streams and apply them to their tables (OPS-4)."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

from connector.clock import now_us
from connector.config.storage import is_local, look_every_s
from connector.dead_letters.envelope import dead_letter_topic
from connector.dead_letters.ledger import LetterState
from connector.errors import (
    BrokerError,
    ConfigError,
    ConnectorError,
    ErrorCode,
    TableError,
    TopicError,
)
from connector.reports.table_status import is_at_low_watermark, text_of_waiting
from connector.services.events import OnEvent, info, log_event, warning
from connector.services.in_use import only_use
from connector.services.local_spark import session_of
from connector.services.trace import Trace
from connector.services.warehouses import check_logs, naming_damage, warehouse_of
from connector.state.jobs import Job, JobKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.dead_letters.envelope import DeadLetter
    from connector.lake.overrides import Overrides
    from connector.spark.ingest.ingest import IngestPorts
    from connector.state.open_transactions import OpenTransaction


_TURN_S: Final = 0.0005


@dataclass(frozen=True, slots=True)
class RunReport:
    """The work of one `run`.

    Attributes:
        batches: The ingest batches that it added to changelogs, of all streams.
        applies: The applies that it finished, of all tables.
        dead_letters: The dead letters that it published.
    """

    batches: int
    applies: int
    dead_letters: int


class _Counts:
    """The work of a run, counted by its threads."""

    def __init__(self) -> None:
        self._lock, self._of = threading.Lock(), Counter[str]()

    def add(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._of[name] += number

    def report(self, batches: int) -> RunReport:
        return RunReport(batches, self._of["applies"], self._of["dead_letters"])


def run(
    config: ConnectorConfig,
    *,
    spark: SparkSession | None = None,
    once: bool = False,
    stop: threading.Event | None = None,
    on_event: OnEvent = log_event,
    cores: str | None = None,
    memory: str | None = None,
    trace: TextIO | None = None,
) -> RunReport:
    """Ingest all streams of a configuration and apply them to their tables.

    You can kill the process at any moment and call `run` again: it goes on where it was. For
    example, a nightly job calls `run(load_config(), once=True)`.

    Args:
        config: At least one stream.
        spark: Your own session, which is neither changed nor stopped. None: a local session on the
            locked jars, if this process has no session yet.
        once: Ingest to the end that each topic has now, apply, and return. Otherwise it runs until
            `stop` is set.
        stop: Set it from another thread or from a signal handler: the batch in flight ends first.
        on_event: Receives warnings and progress.
        cores: Threads of a local session; `*` for as many as there are processors. None: as
            configured in [spark].
        memory: Heap of the driver, for example `2g`. None: as configured in [spark].
        trace: Receives a line of JSON for each step of a batch and of an apply, with its seconds.

    Returns:
        The work that was done.

    Raises:
        ConfigError: No stream is configured, or Spark cannot be given a Kafka setting, or the
            warehouse is a folder that the hosts of a cluster may not share.
        WriterConflictError: Another process, or another call of this one, runs the same stream.
        ConnectorError: Kafka, the registry or the warehouse cannot be used; each error names its
        remedy. Nothing is lost.
    """
    if not config.streams:
        raise ConfigError(
            ErrorCode.STREAM_NOT_NAMED,
            "No stream is configured",
            "",
            'Add a section such as [streams.orders] with topic = "orders"',
        )
    stop, counts = stop or threading.Event(), _Counts()
    check_logs(config, config.streams, config.tables)
    with (
        only_use(config, config.streams),
        naming_damage(config, config.streams, config.tables),
        ExitStack() as stack,
    ):
        ports = {
            name: ports_of(config, stream, stack, on_event, counts)
            for name, stream in config.streams.items()
        }
        before, started = _ingest_batches(config), None
        try:
            started = session_of(
                *(config, spark, stack, on_event),
                cores=cores,
                memory=memory,
                for_writing=True,
                is_short=once,
            )
            _run_pipeline(config, started, ports, stop, on_event, Trace(trace), counts, once=once)
        except Exception as error:
            is_of_spark = started is not None or not isinstance(error, ConnectorError | OSError)
            if not (is_of_spark and _spark_has_ended()):
                raise
            if not stop.is_set():
                _raise_ended(error)
            on_event(
                info("STOPPED", "stopped: Spark ended before its work did; the next run does it")
            )
        return counts.report(_ingest_batches(config) - before)


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


def _ingest_batches(config: ConnectorConfig) -> int:
    """The ingest batches in the changelogs of all streams. It needs no Spark."""
    from connector.lake.state_reader import progress_of

    found = 0
    for stream in config.streams:
        with suppress(TableError):  # the stream has no changelog yet, or Spark finds the damage
            found += progress_of(warehouse_of(config), stream).ingest_batch
    return found


def _spark_has_ended() -> bool:
    """Whether the Java process has ended, for example with the stop of a whole service."""
    from connector.spark.jvm import is_any_live

    return not is_any_live()


def _raise_ended(error: Exception) -> NoReturn:
    from connector.errors.spark import session_ended

    problem = "The pipeline stopped, because Spark has ended"
    if isinstance(error, ConnectorError) and error.code == "SPARK_SESSION_ENDED":
        raise session_ended(problem, error.cause) from error
    raise session_ended(problem) from error


def _run_pipeline(
    config: ConnectorConfig,
    spark: SparkSession,
    ports: Mapping[str, IngestPorts],
    stop: threading.Event,
    on_event: OnEvent,
    trace: Trace,
    counts: _Counts,
    *,
    once: bool,
) -> None:
    from connector.lake.jobs import History
    from connector.lake.small_apply import merge_few
    from connector.spark.apply_loop import JobLog
    from connector.spark.cluster import repeating, watching
    from connector.spark.pipeline import Pipeline

    history, overrides = History(warehouse_of(config)), _overrides(config)

    def add_job(job: Job) -> None:
        history.add_job(job)
        if job.kind is JobKind.APPLY and not job.error:
            counts.add("applies")

    log = JobLog(
        *(add_job, history.add_cut, history.newest_cut, overrides.bounds, overrides.paces),
        last_clean_up=history.last_clean_up,
        forget_cuts=history.forget_cuts,
    )

    def say(text: str) -> None:
        on_event(info("PIPELINE", text))

    with watching(spark), _short_turns():
        begin = partial(Pipeline, spark, config, ports, log, merge_few, say, trace.step)
        pipeline = repeating(begin, "the tables", say, stop)
        if once:
            pipeline.run_once(stop)
        else:
            on_event(info("RUNNING", "running; stop with Ctrl-C or SIGTERM"))
            pipeline.run(stop)
    if once and not stop.is_set():
        _tell_what_is_hidden(config, on_event)
        tell_what_waits(config, on_event)
    if stop.is_set():
        on_event(info("STOPPED", "stopped: every batch that began has ended"))


def _tell_what_is_hidden(config: ConnectorConfig, on_event: OnEvent) -> None:
    """Send a warning for each Kafka partition whose last records are behind an open transaction. If
    Kafka does not answer any more, there is no warning: the work is done.
    """
    from connector.kafka import topics
    from connector.kafka.probe_offsets import open_transactions

    for name, stream in config.streams.items():
        hiding: list[OpenTransaction] = []
        with suppress(BrokerError, TopicError):
            facts = topics.describe(config.kafka, stream.topic)
            hiding = open_transactions(config.kafka, facts)
        for one in hiding:
            text = f"stream {name}: {one.describe(now_us())}"
            on_event(
                warning(
                    "OPEN_TRANSACTION", text, stream=name, stream_partition=one.stream_partition
                )
            )


def tell_what_waits(config: ConnectorConfig, on_event: OnEvent) -> None:
    """Send a warning for each table with changes that wait for a heartbeat (TBL-10). A table that
    cannot be read has none.
    """
    from connector.lake.changelog_changes import waiting_changes
    from connector.lake.state_reader import progress_of, table_state_of

    for name, definition in config.tables.items():
        with suppress(TableError):
            table = table_state_of(warehouse_of(config), name)
            waiting = waiting_changes(warehouse_of(config), definition, table)
            if not waiting:
                continue
            progress = progress_of(warehouse_of(config), definition.stream, with_frontier=True)
            late = progress.frontier.lagging_partition
            if late is not None and is_at_low_watermark(table, progress):
                text = f"table {name}: {text_of_waiting(waiting, late.stream_partition)}"
                on_event(
                    warning(
                        "CHANGES_WAIT", text, table=name, stream_partition=late.stream_partition
                    )
                )


def ports_of(
    config: ConnectorConfig,
    stream: StreamConfig,
    stack: ExitStack,
    on_event: OnEvent = log_event,
    counts: _Counts | None = None,
) -> IngestPorts:
    """Kafka, the registry and the clock of one stream, as functions; checked once before anything
    starts (REC-2).
    """
    from connector.kafka import topics
    from connector.kafka.bounded_read import records_between
    from connector.kafka.dead_letters.ledger_topic import read_ledger
    from connector.kafka.dead_letters.topic import DeadLetterPublisher, external_dead_letters
    from connector.kafka.probe_offsets import open_transactions
    from connector.lake.batch_counts import count_rows
    from connector.spark.ingest.ingest import IngestPorts

    facts = topics.describe(config.kafka, stream.topic)
    for problem in topics.check(facts):
        on_event(warning("TOPIC_SETTING", problem, stream=stream.name))
    topics.create_dead_letter_topics(config.kafka, facts)
    topics.check_dead_letters(facts, topics.describe(config.kafka, dead_letter_topic(stream.topic)))
    overrides = _overrides(config)
    publisher = stack.enter_context(DeadLetterPublisher(config.kafka, stream.topic))
    one_at_a_time = threading.Lock()

    def publish(letters: Iterable[DeadLetter]) -> int:
        with one_at_a_time:
            published = publisher.publish(letters)
        if counts is not None:
            counts.add("dead_letters", published)
        return published

    return IngestPorts(
        topic=lambda: topics.describe(config.kafka, stream.topic),
        publish=publish,
        now=now_us,
        high_watermarks=lambda: topics.high_watermarks(
            config.kafka, topics.describe(config.kafka, stream.topic)
        ),
        count_rows=count_rows,
        earliest=lambda: topics.beginning_offsets(
            config.kafka, topics.describe(config.kafka, stream.topic)
        ),
        schema_by_id=_registry(config, stack),
        closed_partitions=lambda taken_to: overrides.ends(stream.name, above=taken_to),
        releases=lambda taken_to: overrides.releases(stream.name, above=taken_to),
        row_releases=lambda taken_to: overrides.row_releases(stream.name, above=taken_to),
        discarded=lambda: read_ledger(config.kafka, stream.topic).ids(LetterState.DISCARDED),
        external_dead_letters=lambda known, published: external_dead_letters(
            config.kafka, stream.topic, known, published
        ),
        partition_of=topics.partition_of,
        open_transactions=lambda: open_transactions(
            config.kafka, topics.describe(config.kafka, stream.topic)
        ),
        read=lambda offsets: records_between(
            config.kafka,
            stream.topic,
            topics.describe(config.kafka, stream.topic).topic_id,
            {k: (offsets.start.get(k, 0), end) for k, end in offsets.end.items()},
        ),
    )


def _overrides(config: ConnectorConfig) -> Overrides:
    """The requests of operators. They are kept for less than the time between two looks, so that
    each look finds news.
    """
    from connector.lake.overrides import Overrides

    warehouse = warehouse_of(config)
    kept_for_s = 0.0 if is_local(warehouse) else look_every_s(warehouse) / 2
    return Overrides(warehouse, kept_for_s=kept_for_s)


def _registry(config: ConnectorConfig, stack: ExitStack) -> Callable[[int], str | None] | None:
    if config.registry is None:
        return None
    from connector.kafka.schema_registry import RegistryClient

    return stack.enter_context(RegistryClient(config.registry)).schema
