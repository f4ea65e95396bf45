"""A system of one stream and two tables, on its own broker behind a proxy, and the faults that
tests make in it.

- A death is the named point at which the process that ingests and applies ends, or SIGKILL at any
  time.
- A trouble is another fault during that life.

A life in this process is a new `Pipeline`. It represents a process: it shares only the JVM with the
next one. A life that ends by SIGKILL is a separate process with `connector run`.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

from connector.config import java_settings
from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.dead_letters.envelope import DeadLetter
from connector.errors import ConnectorError, WriterConflictError
from connector.kafka import topics
from connector.kafka.local.broker import LocalBroker
from connector.kafka.local.folder import free_port
from connector.lake.jobs import History as Jobs
from connector.services.load_config import load_config
from connector.services.run import ports_of
from connector.spark.apply.apply import apply
from connector.spark.ingest.ingest import Ingest
from connector.spark.ingest.ports import IngestPorts
from connector.spark.job_log import JobLog
from connector.spark.pipeline import Pipeline
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.logged_batch import BatchRange
from connector.spark.storage.table import Table
from connector.state.jobs import CutRecord, Job
from tests.broker import jar_store
from tests.faults.history import History
from tests.faults.process import Folder, Process, ProcessFailedError, running
from tests.faults.proxy import HOST, Proxy
from tests.faults.traffic import Traffic
from tests.spark.conftest import QUICK_PROCESS
from tests.spark.streams import CrashError, merge_every_other

CONFIG = """
warehouse = "warehouse"
[kafka]
bootstrap_servers = "{servers}"
[streams.s]
topic = "t"
trigger = "200ms"
max_offsets_per_trigger = 150
delete_retention = "60s"
[tables.rows]
stream = "s"
source = "t"
max_staleness = "2s"
keep_unmapped = false
key = {{ columns = [{{ name = "id" }}] }}
columns = [
  {{ name = "c0", family = "f", qualifier = "q", type = "STRING" }},
  {{ name = "c1", family = "g", qualifier = "q", type = "STRING" }},
]
[tables.accounts]
stream = "s"
source = "accounts"
max_staleness = "2s"
keep_unmapped = false
key = {{ columns = [{{ name = "id", type = "STRING" }}] }}
columns = [{{ name = "amount", family = "f", qualifier = "amount", type = "INT64" }}]
"""
KAFKA_PARTITIONS = 3

INGEST_POINTS = (
    "Kafka asked",
    "ends asked",
    "stream s: rows written",
    "stream s: logged",
    "letters: none sent",
    "letters: half of them sent",
    "letters: all sent",
    "stream s: letters published",
    "stream s: progress committed",
)
APPLY_POINTS = tuple(
    f"table {name}: {step}"
    for name in ("rows", "accounts")
    for step in ("letters published", "tombstones written", "table committed")
)
JOURNAL_POINTS = ("job: not kept yet", "job: kept", "cut: not kept yet", "cut: kept")
POINTS = INGEST_POINTS + APPLY_POINTS + JOURNAL_POINTS
RIVAL_POINTS = (
    "ends asked",
    "stream s: rows written",
    "stream s: logged",
    "stream s: letters published",
    *APPLY_POINTS,
)


class Trouble(Enum):
    """A fault during a life. The value describes it."""

    NONE = "an uneventful life"
    PRODUCER = "the producer's process dies half way through a round"
    CUT = "all connections are reset, and none can be made for a while"
    DELAY = "every packet takes long"
    PAUSE = "the broker stands still, and goes on: a long collection, a stolen processor"
    RESTART = "the broker is killed, and started again"
    DISK = (
        "files cannot grow any more in the middle of a write: RLIMIT_FSIZE stands for a full disk"
        " or a quota"
    )
    NO_CHECKPOINT = "the checkpoint is lost"
    OLD_CHECKPOINT = "an old checkpoint is restored"
    RIVAL = "a second process ingests and applies at the same time"


POSSIBLE = [
    trouble for trouble in Trouble if trouble is not Trouble.DISK or hasattr(resource, "prlimit")
]
OF_THE_NETWORK = (Trouble.CUT, Trouble.DELAY, Trouble.PAUSE, Trouble.RESTART)


@dataclass
class Failpoints:
    """Named points of a life. It ends at the `nth` arrival at `death`. At the first arrival at
    `visit`, the visitor is called.
    """

    death: str = ""
    nth: int = 1
    visit: str = ""
    visitor: Callable[[str], None] = lambda point: None
    fired: bool = False
    reached: list[str] = field(default_factory=list)

    def reach(self, point: str) -> None:
        self.reached.append(point)
        if point == self.visit:
            self.visit = ""
            self.visitor(point)
        if point == self.death and self.reached.count(point) == self.nth:
            self.fired = True
        if self.fired:
            # After its death, a life does nothing more, even if code catches the first error.
            raise CrashError(point)


@dataclass
class System:
    """Made by `system`. `rng` draws the events. `crashes` and `kills` count deaths, by point and by
    SIGKILL. `conflicts` counts how often a second writer or an old checkpoint was detected.
    """

    spark: SparkSession
    rng: Random
    history: History
    broker: LocalBroker
    proxy: Proxy
    traffic: Traffic
    folder: Folder
    crashes: int = 0
    kills: int = 0
    lives: int = 0
    conflicts: int = 0
    _deck: list[Trouble] = field(default_factory=list)
    _points: list[str] = field(default_factory=list)
    _processes: int = 0
    _suspects_checkpoint: bool = False
    """Whether the checkpoint was restored or damaged by a full disk, and no life has detected it
    yet.
    """

    @property
    def config(self) -> ConnectorConfig:
        return load_config(self.folder.config, {})

    @property
    def stream(self) -> StreamConfig:
        return self.config.streams["s"]

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder.warehouse) / "streams" / "s" / "checkpoint"

    def __str__(self) -> str:
        deaths = (
            f"{self.crashes} crashes, {self.kills} kills, {self.traffic.deaths} deaths of producers"
        )
        return (
            f"{self.lives} lives, {deaths}, {self.conflicts} conflicts,"
            f" {len(self.traffic.source.changes)} changes"
        )

    # Lives.

    def crash(self) -> None:
        """A life that ends at a named point, or completes all work before."""
        # Every point and every trouble is used once before one is used again.
        self._points = self._points or self.rng.sample(POINTS, len(POINTS))
        death = self._points.pop()
        points = Failpoints(
            death=death, nth=self.rng.choice((1, 1, 2)) if death in INGEST_POINTS else 1
        )
        trouble = self._draw(POSSIBLE)
        if trouble is Trouble.RIVAL:
            points = Failpoints(visit=self.rng.choice(RIVAL_POINTS), visitor=self._rival)
        with self._life(points.death or points.visit, trouble, self._own_pid()):
            self._live(points, trouble)
        self.crashes += points.fired
        self.history.note("life ended", died=points.fired, reached=points.reached)

    def kill(self) -> None:
        """A life as a separate process, which SIGKILL ends."""
        trouble = self._draw([trouble for trouble in Trouble if trouble is not Trouble.DISK])
        self._processes += 1
        with (
            self._life("SIGKILL", trouble, None),
            running(
                self.folder,
                self._processes,
                "--cores",
                "2",
                "--memory",
                "1g",
                settings=QUICK_PROCESS,
            ) as process,
        ):
            self._watch(process, trouble)
            self.kills += process.process.poll() is None
        self.history.note("life ended", code=process.process.returncode)

    def calm(self) -> None:
        """A last round, then a life without faults. It must complete all work, whatever was broken
        before.
        """
        assert any(self.traffic.round() for _ in range(3)), "the producer does not resume"
        # An old checkpoint that was not detected yet is detected now.
        assert any(
            self._live(Failpoints(), Trouble.NONE) for _ in range(1 + self._suspects_checkpoint)
        )

    def _draw(self, among: list[Trouble]) -> Trouble:
        self._deck = self._deck or self.rng.sample(list(Trouble), len(Trouble))
        drawn = self._deck.pop()
        return drawn if drawn in among else Trouble.NONE

    def _live(self, points: Failpoints, trouble: Trouble) -> bool:
        """Whether the life completes all work."""
        try:
            with ExitStack() as life:
                self._pipeline(points, life).run_once()
        except Exception as error:
            self.history.note("stopped", by=f"{type(error).__name__}: {error}"[:500])
            if not points.fired and not self._explains(
                trouble, error, isinstance(error, WriterConflictError)
            ):
                raise
            return False
        self._suspects_checkpoint = False
        return True

    def _watch(self, process: Process, trouble: Trouble) -> None:
        commits, for_s = self._commits(), self.rng.uniform(0, 6)
        try:
            # Not before its first commit, because an earlier death tests little.
            process.wait(lambda: self._commits() > commits)
            if trouble is Trouble.RIVAL:
                self._live(Failpoints(), trouble)
            until = time.monotonic() + for_s
            process.wait(lambda: time.monotonic() > until)
        except ProcessFailedError as error:
            self.history.note("stopped", by=str(error)[:500])
            if not self._explains(trouble, error, "checkpoint" in str(error)):
                raise

    def _commits(self) -> int:
        return sum(1 for _ in Path(self.folder.changelog("s")).glob("_delta_log/*.json"))

    def _explains(self, trouble: Trouble, error: Exception, is_conflict: bool) -> bool:
        """Whether a life may end with this error: the error explains a problem, and the problem
        exists.
        """
        if is_conflict:
            self.conflicts += 1
            # The action that its remedy names.
            shutil.rmtree(self.checkpoint, ignore_errors=True)
            was_suspect, self._suspects_checkpoint = self._suspects_checkpoint, False
            return was_suspect or trouble is Trouble.RIVAL
        return isinstance(error, ConnectorError | ProcessFailedError) and trouble in (
            *OF_THE_NETWORK,
            Trouble.DISK,
            Trouble.RIVAL,
        )

    @contextmanager
    def _life(self, death: str, trouble: Trouble, pid: int | None) -> Iterator[None]:
        """The traffic and the trouble of a life."""
        self.lives += 1
        self.history.note("life", number=self.lives, death=death, trouble=trouble.name)
        kept = self.folder.root / "old-checkpoint"
        if trouble is Trouble.NO_CHECKPOINT:
            shutil.rmtree(self.checkpoint, ignore_errors=True)
            self._suspects_checkpoint = False
        elif trouble is Trouble.OLD_CHECKPOINT and kept.exists():
            shutil.rmtree(self.checkpoint, ignore_errors=True)
            shutil.copytree(kept, self.checkpoint)
            self._suspects_checkpoint = True
        elif self.checkpoint.exists() and self.rng.random() < 0.3:
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.checkpoint, kept)
        self._suspects_checkpoint |= trouble is Trouble.DISK
        after_s, for_s = self.rng.uniform(0, 4), self.rng.uniform(0.2, 3)
        troubling = threading.Thread(
            target=self._befall, args=(trouble, after_s, for_s, self.rng.randint(100, 5000), pid)
        )
        troubling.start()
        try:
            with self.traffic.flowing(dies=trouble is Trouble.PRODUCER):
                yield
        finally:
            troubling.join()

    def _befall(
        self, trouble: Trouble, after_s: float, for_s: float, file_bytes: int, pid: int | None
    ) -> None:
        time.sleep(after_s)
        if trouble is Trouble.CUT:
            self.proxy.refuses = True
            self.proxy.cut()
            time.sleep(for_s)
            self.proxy.refuses = False
        elif trouble is Trouble.DELAY:
            self.proxy.delay_s = for_s / 30
            time.sleep(2 * for_s)
            self.proxy.delay_s = 0
        elif trouble is Trouble.PAUSE:
            os.kill(self.broker.pid, signal.SIGSTOP)
            time.sleep(for_s)
            os.kill(self.broker.pid, signal.SIGCONT)
        elif trouble is Trouble.RESTART:
            self.broker.kill()
            self.broker.restart()
        elif trouble is Trouble.DISK and pid is not None:
            soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (file_bytes, hard))
            time.sleep(for_s)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))

    def _own_pid(self) -> int:
        """The process id of this JVM."""
        return int(self.spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr,operator]

    # The pipeline with its points.

    def _pipeline(self, points: Failpoints, life: ExitStack) -> Pipeline:
        """A new pipeline, as `connector run` makes it."""
        jobs = Jobs(self.config.warehouse)

        def add_jobs(ended: Sequence[Job]) -> None:
            points.reach("job: not kept yet")
            jobs.add_jobs(ended)
            points.reach("job: kept")

        def add_cut(cut: CutRecord) -> None:
            points.reach("cut: not kept yet")
            jobs.add_cut(cut)
            points.reach("cut: kept")

        job_log = JobLog(
            add_jobs,
            add_cut,
            jobs.newest_cut,
            jobs.cuts,
            last_clean_up=jobs.last_clean_up,
            failed_maintenance=jobs.failed_maintenance,
            forget_cuts=jobs.forget_cuts,
        )
        return Pipeline(
            self.spark,
            self.config,
            {"s": self._ports(points, life)},
            job_log,
            merge_every_other,
            on_step=points.reach,
        )

    def _ports(self, points: Failpoints, life: ExitStack) -> IngestPorts:
        world = ports_of(self.config, self.stream, life)

        def topic() -> topics.TopicFacts:
            points.reach("Kafka asked")
            return world.topic()  # type: ignore[return-value]

        def high_watermarks() -> Mapping[int, int]:
            points.reach("ends asked")
            return world.high_watermarks()

        def publish(letters: Iterable[DeadLetter]) -> int:
            known = list(letters)
            half = len(known) // 2
            points.reach("letters: none sent")
            world.publish(known[:half])
            points.reach("letters: half of them sent")
            world.publish(known[half:])
            points.reach("letters: all sent")
            return len(known)

        return replace(world, topic=topic, high_watermarks=high_watermarks, publish=publish)

    def _rival(self, point: str) -> None:
        """Another process does what this one is about to do, or has just done: it ingests a batch,
        or applies a table.
        """
        self.history.note("rival", at=point)
        with ExitStack() as life:
            self._do_the_same(point, self._ports(Failpoints(), life))

    def _do_the_same(self, point: str, world: IngestPorts) -> None:
        changelog = Changelog(self.spark, self.folder.changelog("s"), "s")
        if point.startswith("table"):
            wanted = self.config.tables[point.split()[1].rstrip(":")]
            table = Table(self.spark, f"{self.folder.warehouse}/tables/{wanted.name}", wanted)
            cut = changelog.progress().cut(world.now(), self.stream.stall_after_s)
            apply(table, changelog, wanted.source, cut, publish=world.publish)
            return
        ingest = Ingest(
            self.stream,
            changelog,
            world,
            known_tables=frozenset({"t", "accounts"}),
            reject_unknown_tables=False,
        )
        ingest.recover()
        newest = changelog.newest()
        start = newest.offsets.end if newest else dict.fromkeys(range(KAFKA_PARTITIONS), 0)
        end = topics.end_offsets(self.config.kafka, topics.describe(self.config.kafka, "t"))
        offsets = BatchRange(
            start, {k: self.rng.randint(start.get(k, 0), last) for k, last in end.items()}
        )
        ingest.batch(self._rows(offsets), offsets)

    def _rows(self, offsets: BatchRange):  # type: ignore[no-untyped-def]
        def as_json(places: Mapping[int, int]) -> str:
            return '{"t": {' + ", ".join(f'"{k}": {place}' for k, place in places.items()) + "}}"

        reader = self.spark.read.format("kafka").options(
            **java_settings.options(self.config.kafka, Path.read_text)
        )
        wanted = {
            "startingOffsets": as_json(offsets.start),
            "endingOffsets": as_json(offsets.end),
            "includeHeaders": "true",
        }
        return reader.options(subscribe="t", **wanted).load()


@contextmanager
def system(spark: SparkSession, rng: Random, history: History) -> Iterator[System]:
    """A system before its first life. At the end of the block its broker has ended."""
    port = free_port()
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(port))
        # The broker makes clients connect through the proxy.
        advertised = {"advertised.listeners": f"PLAINTEXT://{HOST}:{proxy.port}"}
        broker = stack.enter_context(
            LocalBroker.start(
                history.folder / "broker", jar_store(), port=port, settings=advertised
            )
        )
        kafka = KafkaConfig(f"{HOST}:{proxy.port}")
        topics.create_topic(kafka, "t", kafka_partitions=KAFKA_PARTITIONS)
        folder = Folder(history.folder)
        folder.config.write_text(CONFIG.format(servers=kafka.bootstrap_servers))
        traffic = Traffic(kafka, "t", Random(rng.random()), history)
        stack.callback(traffic.close)
        yield System(spark, rng, history, broker, proxy, traffic, folder)
