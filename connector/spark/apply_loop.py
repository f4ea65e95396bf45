"""The applies of a pipeline: which table is next (`connector.state.pace`), and the threads that
apply (JOB-2, JOB-3, TBL-10). An apply does not delay ingest, nor other tables while a thread is
free.

Tables that are brought to one cut together are a *round*. It remembers the version in which each
table reached the cut, and ends when the last one did, even if others have moved on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.config.settings import ConnectorConfig
from connector.config.spark_settings import MAX_PARALLEL_APPLIES
from connector.config.storage import look_every_s
from connector.errors import BrokerError, ConnectorError, TableError, TopicError
from connector.events import Event, OnEvent, info, reached, warning
from connector.records.views import view_of_time
from connector.spark.apply.apply import LEFT_TO_SPARK, Applied, apply
from connector.spark.apply.follow import Definitions
from connector.spark.apply.select import LetterRules
from connector.spark.cluster import (
    Pool,
    Spent,
    applies_at_once,
    follow_cores,
    in_pool,
    repeating,
    spending,
)
from connector.spark.failures import applying, explained
from connector.spark.ingest.ports import IngestPorts
from connector.spark.job_log import JobLog, WaitingJobs
from connector.spark.open_tables import OpenTables, TablePorts
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.hadoop import write_text
from connector.spark.storage.table import AtVersion
from connector.spark.turns import Entry, MaintenanceThread, Turn
from connector.state.apply_level import MergeFew
from connector.state.jobs import Job, JobKind, text_of_misfits
from connector.state.overrides import pace_in_force
from connector.state.pace import ApplySchedule
from connector.state.positions import Position, to_text
from connector.state.stream_progress import Cut
from connector.text import counted

CHECK_EVERY_S: Final = 1.0
"""How soon a failure of ingest is noticed."""
_STOP_WITHIN_S: Final = 0.2

Done = TypeVar("Done")
_Brought = tuple[bool, AtVersion, float]
"""Whether a table changed, its newest version, and how long the apply took, in seconds."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Functions that are called while tables are applied: `record` when a round ends, with the
    version of each table at its cut; `on_event` with an event of each apply; `on_step` after each
    step of an apply. `table_ports` are called when a table stops.
    """

    record: Callable[[str, Cut, Mapping[str, AtVersion]], None]
    on_event: OnEvent
    on_step: Callable[[str], None]
    table_ports: TablePorts


@dataclass(slots=True)
class _Round:
    """Tables on their way to one cut, and the versions in which they `reached` it.

    `turns` chose the tables. None: all tables of the stream are applied.
    """

    stream: str
    cut: Cut
    turns: ApplySchedule | None
    under_way: set[str]
    reached: dict[str, AtVersion] = field(default_factory=dict)


class Applies:
    """The applies of all tables of a configuration. Use it from one thread only, except
    `batch_logged`,
    `between` and `add_job`.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: ConnectorConfig,
        tables: OpenTables,
        changelogs: Mapping[str, Changelog],
        ports: Mapping[str, IngestPorts],
        job_log: JobLog,
        merge_few: MergeFew | None,
        listener: Listener,
        turn: Turn,
    ) -> None:
        """Small applies are made in the `turn` of small work."""
        self._spark, self._config, self._tables = spark, config, tables
        self._changelogs, self._ports = changelogs, ports
        self._job_log, self._record = job_log, listener.record
        self._positions = dict[str, Mapping[str, Position]]()
        self._on_event, self._on_step = listener.on_event, listener.on_step
        self._merge_few, self._turn = merge_few, turn
        on_stopped = listener.table_ports.on_stopped
        self._definitions = Definitions(
            config.tables, job_log.definitions, listener.on_event, on_stopped
        )
        self._names = {
            stream: [name for name, table in config.tables.items() if table.stream == stream]
            for stream in config.streams
        }
        # The settings of operators are read so often, and unapplied changes are looked for so
        # often without a new batch.
        self._look_every_s = look_every_s(config.warehouse)
        self._alone = {name: threading.Lock() for name in config.tables}
        self._at_once = config.spark.max_parallel_applies or applies_at_once(spark)
        self._entry = Entry(lambda: self._at_once)
        self._jobs = WaitingJobs(job_log.add_jobs)
        self._large = set[str]()
        self._left_to_delta = dict[str, str]()
        self._wake = threading.Event()
        self._news = dict.fromkeys(config.streams, True)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._entry.open()
        self._turns = {stream: ApplySchedule() for stream in self._names}
        self._looked = dict.fromkeys(self._names, float("-inf"))
        self._cuts: dict[str, tuple[Hashable, int]] = {}
        self._paces: Mapping[str, Mapping[str, float]] = {}
        self._asked = float("-inf")
        self._under_way: dict[Future[_Brought | None], tuple[_Round, str]] = {}
        self._publishing: Future[None] | None = None

    def batch_logged(self, stream: str) -> None:
        """Note that a batch of the stream was logged. Any thread may call it."""
        self._news[stream] = True
        self._wake.set()

    def between(self, name: str, act: Callable[[], Done]) -> Done:
        """Call `act` between two applies of a table. Any thread may call it."""
        with self._alone[name]:
            return act()

    def add_job(self, job: Job) -> None:
        """Add the job to the history. Any thread may call it."""
        self._jobs.add(job)

    def all(self, stop: threading.Event | None = None) -> None:
        """Bring all tables of a stream to one cut (TBL-10).

        A table that fails does not stop the others. It is then in `stopped`. After `stop` is set,
        no apply begins.
        """
        self._begin_anew()
        with self._jobs, ThreadPoolExecutor(MAX_PARALLEL_APPLIES) as threads:
            for stream, names in self._names.items():
                cut, _ = self._cut(stream)
                self._begin(threads, _Round(stream, cut, None, set(names)), stop)
            self._settle_all(threads)
        self._definitions.publish(self._definitions.unpublished(self._tables.going_on()))

    @property
    def stopped(self) -> dict[str, ConnectorError]:
        """The tables that are stopped, each with its error."""
        return {**self._tables.stopped, **self._definitions.refused}

    def run(
        self, stop: threading.Event, check: Callable[[], None], maintain: Callable[[str], None]
    ) -> None:
        """Apply what is due until `stop` is set, then wait for the applies in flight. `check`
        raises an error if the run must end sooner. `maintain` is called for a stream after its
        rounds, in a thread of its own. A table that fails stops alone. Every other error ends the
        run after the applies in flight.
        """
        self._begin_anew()
        with (
            self._jobs,
            ThreadPoolExecutor(MAX_PARALLEL_APPLIES) as threads,
            MaintenanceThread(
                self._spark, self._names, maintain, self._look_every_s
            ) as maintenance,
        ):
            try:
                checked = float("-inf")
                while not stop.is_set():
                    if time.monotonic() >= checked + CHECK_EVERY_S:
                        check()
                        checked, most = time.monotonic(), self._config.spark.max_parallel_applies
                        self._at_once = most or applies_at_once(self._spark)
                    self._jobs.write_due()
                    for stream in self._settle():
                        maintenance.ask(stream)
                    maintenance.begin_due()
                    self._begin_due(threads)
                    self._pause(stop)
            except TableError:
                with suppress(TableError):
                    self._settle_all(threads)
                raise
            except BaseException:
                self._cancel(threads)
                raise
            self._settle_all(threads)

    def _begin_due(self, threads: ThreadPoolExecutor) -> None:
        now = time.monotonic()
        if now >= self._asked + self._look_every_s:
            bounds, set_paces, self._asked = self._job_log.bounds(), self._job_log.paces(), now
            self._paces = {
                stream: {
                    name: pace_in_force(self._config.tables[name], bounds, set_paces)
                    for name in names
                }
                for stream, names in self._names.items()
            }
            self._publish(threads)
            under_way = {name for _, name in self._under_way.values()}
            changed = set(self._definitions.changed(self._tables.going_on()))
            for name in (changed | self._tables.due()) - under_way:
                stream = self._config.tables[name].stream
                self._begin(threads, _Round(stream, self._cut(stream)[0], None, {name}))
        busy = {
            round_.stream for round_, name in self._under_way.values() if name not in self._large
        }
        for stream, turns in self._turns.items():
            if stream in busy:
                continue
            paces, last_cut = self._paces_of(stream), self._cuts.get(stream, (None, 0))
            has_news = self._news[stream] or now >= self._looked[stream] + self._look_every_s
            if now >= turns.ready_at(paces) and (has_news or turns.due(paces, now, *last_cut)):
                self._news[stream], self._looked[stream] = False, now
                cut, this_cut = self._cut(stream)
                self._cuts[stream] = this_cut, cut.batch
                names = set(turns.take(paces, now, this_cut, cut.batch))
                self._begin(threads, _Round(stream, cut, turns, names))

    def _paces_of(self, stream: str) -> dict[str, float]:
        """The paces of the tables that are not stopped."""
        stopped = self._tables.stopped
        return {name: pace for name, pace in self._paces[stream].items() if name not in stopped}

    def _publish(self, threads: ThreadPoolExecutor) -> None:
        """Begin to publish changed definitions. Applies do not wait for it."""
        if self._publishing is not None:
            if not self._publishing.done():
                return
            self._publishing.result()
        definitions = self._definitions.unpublished(self._tables.going_on())
        self._publishing = (
            threads.submit(self._definitions.publish, definitions) if definitions else None
        )

    def _pause(self, stop: threading.Event) -> None:
        now = time.monotonic()
        ready = [
            at
            for stream, turns in self._turns.items()
            if (at := turns.ready_at(self._paces_of(stream))) > now
        ]
        until = min([now + CHECK_EVERY_S, *ready])
        while (
            not stop.is_set()
            and (left := until - time.monotonic()) > 0
            and not self._wake.wait(min(left, _STOP_WITHIN_S))
        ):
            pass
        self._wake.clear()

    def _cut(self, stream: str) -> tuple[Cut, Hashable]:
        """The newest cut, and all of it that gives a table something to apply: a batch alone does
        not, unless the low watermark is ignored.
        """
        config = self._config.streams[stream]
        progress = repeating(self._changelogs[stream].progress, f"stream {stream}", self._on_event)
        cut = progress.cut(self._ports[stream].now(), config.stall_after_s, config.wait_s)
        batch = cut.batch if cut.ignores_watermark else 0
        return cut, (batch, cut.low_watermark, progress.late, progress.losses)

    def _begin(
        self, threads: ThreadPoolExecutor, round_: _Round, stop: threading.Event | None = None
    ) -> None:
        for name in self._names[round_.stream]:
            if name in round_.under_way:
                future = threads.submit(self._bring, name, round_.cut, stop)
                self._under_way[future] = (round_, name)
                future.add_done_callback(lambda _: self._wake.set())

    def _settle_all(self, threads: ThreadPoolExecutor) -> None:
        """Wait for all applies in flight and record the results. Then the first error is raised."""
        failed: TableError | None = None
        total = len(self._under_way)
        while self._under_way:
            self._on_event(reached("tables applied", total - len(self._under_way), total))
            wait(self._under_way, return_when="FIRST_COMPLETED")
            try:
                self._settle()
            except TableError as error:
                failed = failed or error
            except BaseException:
                self._cancel(threads)
                raise
        if failed is not None:
            raise failed
        self._on_event(reached("tables applied", total, total))

    def _cancel(self, threads: ThreadPoolExecutor) -> None:
        """Let no apply begin any more, also none that has a thread. Wait for those in flight."""
        self._entry.close()
        threads.shutdown(cancel_futures=True)

    def _settle(self) -> set[str]:
        """Record the rounds that have ended, and return their streams. Raises the error of a failed
        apply.
        """
        ended = set[str]()
        for future in [future for future in self._under_way if future.done()]:
            round_, name = self._under_way.pop(future)
            round_.under_way.discard(name)
            applied, lasted = False, 0.0
            if (brought := future.result()) is not None:
                applied, round_.reached[name], lasted = brought
            if name in self._large:
                self._large.discard(name)
                lasted = 0.0
            if round_.turns is not None:
                round_.turns.ended(name, applied=applied, lasted=lasted)
            if not round_.under_way:
                self._write_positions(round_.stream)
                self._record(round_.stream, round_.cut, round_.reached)
                ended.add(round_.stream)
        return ended

    def _write_positions(self, stream: str) -> None:
        """Write how far the tables of the stream are without a commit, if it is new (ENG-7)."""
        going_on = self._tables.going_on()
        positions = {
            name: position
            for name in self._names[stream]
            if name in going_on and (position := going_on[name].position) is not None
        }
        if positions == self._positions.get(stream, {}):
            return
        self._positions[stream] = positions
        path = paths.positions(self._config.warehouse, stream)
        with explained(f"stream {stream}"):
            write_text(self._spark, path, to_text(positions))

    def _bring(self, name: str, cut: Cut, stop: threading.Event | None) -> _Brought | None:
        """Bring a table to a cut. None: it is stopped, or was opened again."""
        alone = self._alone[name]
        if not alone.acquire(blocking=False):  # maintenance commits, which may take long
            self._leave_round(name)
            alone.acquire()
        try:
            return self._bring_alone(name, cut, stop)
        finally:
            alone.release()

    def _bring_alone(self, name: str, cut: Cut, stop: threading.Event | None) -> _Brought | None:
        with self._entry:

            def bring() -> _Brought:
                is_going_on, began = stop is None or not stop.is_set(), time.monotonic()
                applied = is_going_on and self._follow(name) and self._apply(name, cut)
                return applied, self._tables[name].newest(), time.monotonic() - began

            if name in self._tables.stopped:  # it is opened first
                with self._in_spark(name):
                    return self._tables.use(name, bring)
            return self._tables.use(name, bring)

    def _leave_round(self, name: str) -> None:
        """Let the next round of other tables begin before this table has ended."""
        self._large.add(name)
        self._wake.set()

    @contextmanager
    def _in_spark(self, name: str) -> Iterator[None]:
        """Work of a table in Spark, for which a round of other tables need not wait."""
        self._leave_round(name)
        follow_cores(self._spark)
        with in_pool(self._spark, Pool.APPLY):
            yield

    def _follow(self, name: str) -> bool:
        """Give a table the wanted columns. Returns whether it may be applied."""
        changelog = self._changelogs[self._config.tables[name].stream]

        def newest_batch() -> int:
            newest = changelog.newest()
            return 0 if newest is None else newest.ingest_batch

        with applying(name):
            return self._definitions.follow(
                *(name, self._tables[name], newest_batch),
                on_step=lambda step: self._on_step(f"table {name}: altered: {step}"),
                at_work=partial(self._in_spark, name),
            )

    def _apply(self, name: str, cut: Cut) -> bool:
        table, definition = self._tables[name], self._config.tables[name]
        ports, changelog = self._ports[definition.stream], self._changelogs[definition.stream]
        of_stream = self._config.streams[definition.stream]
        rules = LetterRules(
            *(partial(_discarded, ports), of_stream.rejects_too_many, partial(_published, ports))
        )
        started_at, before = ports.now(), table.table_state()
        job = Job(
            JobKind.APPLY,
            name,
            started_at,
            started_at,
            before.complete_to_batch,
            cut.batch,
            watermark_before=before.apply_watermark,
        )

        tries, in_spark = 0, ExitStack()
        spent_by_tasks: Callable[[], Spent] | None = None

        def on_step(step: str) -> None:
            nonlocal spent_by_tasks
            if step == LEFT_TO_SPARK and spent_by_tasks is None:
                in_spark.enter_context(self._in_spark(name))
                spent_by_tasks = in_spark.enter_context(spending(self._spark))
            self._on_step(f"table {name}: {step}")

        def once() -> Applied | None:
            nonlocal tries
            tries += 1
            with applying(name):
                return apply(
                    *(table, changelog, definition.source, cut),
                    publish=ports.publish,
                    on_step=on_step,
                    rules=rules,
                    merge_few=self._merge_few,
                    turn=self._turn,
                )

        began = time.thread_time()
        with in_spark:
            try:
                applied = repeating(once, f"table {name}", self._on_event)
            except ConnectorError as error:
                self.add_job(replace(job, ended_at=ports.now(), error=error.problem))
                raise
            ended_at, spent = ports.now(), Spent()
            if applied is not None and spent_by_tasks is not None:
                spent = spent_by_tasks()
        if applied is None and tries > 1 and (after := table.table_state()) != before:
            # The try that lost executors had committed. How many changes it had is not known.
            applied = Applied(after, 0, after.letters - before.letters)
        if applied is None:
            self._on_step(f"table {name}: nothing to apply")
            return False
        if not applied.has_commit:
            self._job_log.on_table(name, applied.table_state)
            return True
        self.add_job(
            replace(
                job,
                ended_at=ended_at,
                changes=applied.changes,
                letters=applied.letters,
                misfits=text_of_misfits(before.misfits, applied.table_state.misfits),
                watermark_after=applied.table_state.apply_watermark,
                bytes_read=applied.bytes_read + spent.bytes_read,
                cpu_us=spent.cpu_us + round((time.thread_time() - began) * 1_000_000),
                **table.written_by(applied.table_state.apply_number),
            )
        )
        self._on_step(f"table {name}: job recorded")
        self._job_log.on_table(name, applied.table_state)
        self._tell_writer(name, table.log.left_to_delta)
        if applied.changes or applied.letters:
            self._on_event(_applied_event(name, applied, (ports.now() - started_at) / 1_000_000))
        return True

    def _tell_writer(self, name: str, reason: str) -> None:
        """Tell once why the commits of a table are made by Delta."""
        if reason and self._left_to_delta.get(name) != reason:
            self._on_event(
                warning(
                    "COMMITTED_BY_DELTA",
                    f"the table has {reason}, which lowmark's own writer does not know. Delta"
                    " commits its applies, which takes longer",
                    table=name,
                )
            )
        self._left_to_delta[name] = reason


def _applied_event(name: str, applied: Applied, seconds: float) -> Event:
    state, low = applied.table_state, applied.table_state.apply_watermark
    letters = f"; {counted(applied.letters, 'table letter')}" if applied.letters else ""
    changes = f"{counted(applied.changes, 'change')} applied, up to batch {state.to_batch}"
    return info(
        "APPLIED",
        f"{changes}{letters}",
        table=name,
        batch=state.to_batch,
        changes=applied.changes,
        letters=applied.letters,
        seconds=round(seconds, 3),
        low_watermark=None if low is None else view_of_time(low),
        is_consistent_cut=state.is_consistent_cut,
    )


def _discarded(ports: IngestPorts) -> frozenset[str]:
    """The ids of discarded dead letters.

    The set is empty while the ledger cannot be read. The blocked rows then wait a little longer.
    """
    try:
        return ports.discarded()
    except (BrokerError, TopicError):
        return frozenset()


def _published(ports: IngestPorts, table: str, above: int) -> Mapping[str, str] | None:
    """The dead letters of a table, as `LetterRules.published`. None, too, while the ledger cannot
    be read: then each new letter counts as one more.
    """
    try:
        return ports.published_letters(table, above)
    except (BrokerError, TopicError):
        return None
