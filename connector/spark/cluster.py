"""The jobs of a session: its scheduler pools, and the differences of a cluster, where executors
come and go, and cores change (JOB-3, SCL-2, SCL-4, SCL-5).

Pools of a fair scheduler get free cores by weight. The pool of a job is a property of the thread
that starts it, and threads that Spark or Delta start for it inherit the pool.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from connector.config.spark_settings import is_local_master
from connector.errors import ConnectorError
from connector.errors.spark import executors_without_jars, spark_setting_missing
from connector.events import Event, OnEvent, fields_of, ignore, warning
from connector.spark.failures import NO_EXECUTORS, explained, lost_executor
from connector.spark.jvm import GONE

REPEATS: Final = 5
"""How often a step is repeated after the loss of executors."""
FIRST_PAUSE_S: Final = 1.0
"""The pause before the first repetition. Each later one is twice as long."""
NO_EXECUTOR_S: Final = 300.0
"""How long jobs wait for an executor. A cluster may need minutes to start a machine."""
LOOK_EVERY_S: Final = 2.0

CORES_PER_APPLY: Final = 4
"""An apply of a few changes has few tasks, and plans and commits without any."""

Done = TypeVar("Done")

_POOL: Final = "spark.scheduler.pool"
_EVENTS_WITHIN_MS: Final = 1_000
TAG: Final = "lowmark"
"""The tag of lowmark's jobs in Spark."""


class Pool(StrEnum):
    """The pools. `READ` is Spark's pool of all threads that name no pool, for example yours."""

    INGEST = "ingest"
    READ = "default"
    APPLY = "apply"


WEIGHTS: Final = {Pool.INGEST: 4, Pool.READ: 2, Pool.APPLY: 1}
"""The share of the cores that each pool gets. Ingest gets one core before other pools get a second
one.
"""


def fair_scheduling(folder: Path) -> dict[str, str]:
    """The settings of a session with these pools. A file in `folder` describes the pools."""
    file = folder / "pools.xml"
    pools = "".join(
        f'<pool name="{pool}"><schedulingMode>FIFO</schedulingMode><weight>{weight}</weight>'
        f"<minShare>{int(pool is Pool.INGEST)}</minShare></pool>"
        for pool, weight in WEIGHTS.items()
    )
    file.write_text(f'<?xml version="1.0"?><allocations>{pools}</allocations>')
    return {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": file.as_uri()}


@contextmanager
def in_pool(spark: SparkSession, pool: Pool) -> Iterator[None]:
    """Jobs that this thread starts inside the block belong to the pool, and have `TAG`."""
    context = spark.sparkContext
    before = context.getLocalProperty(_POOL)
    context.setLocalProperty(_POOL, pool.value)
    try:
        with tagged(spark):
            yield
    finally:
        with suppress(*GONE):  # a session that has ended has no pools
            context.setLocalProperty(_POOL, before)  # type: ignore[arg-type]


class Spent(NamedTuple):
    """The processor time (µs) of tasks of Spark, and the bytes that they read (JOB-1)."""

    cpu_us: int = 0
    bytes_read: int = 0


@contextmanager
def spending(spark: SparkSession) -> Iterator[Callable[[], Spent]]:
    """Return a function that returns the work of the jobs that this thread started inside the
    block, from the status of Spark. Call it inside the block. Zero: Spark does not answer.
    """
    context, tag = spark.sparkContext, f"{TAG}-{uuid4().hex}"
    context.addJobTag(tag)

    def spent() -> Spent:
        with suppress(*GONE, Py4JError):
            scala: Any = context._jsc.sc()
            jobs = list(scala.statusTracker().getJobIdsForTag(tag))
            if not jobs:
                return Spent()
            with suppress(Py4JError):  # others start jobs all the time
                scala.listenerBus().waitUntilEmpty(_EVENTS_WITHIN_MS)
            store = scala.statusStore()
            of_jobs = [store.job(job).stageIds() for job in jobs]
            stages = {ids.apply(number) for ids in of_jobs for number in range(ids.size())}
            data = [store.lastStageAttempt(stage) for stage in stages]
            return Spent(
                sum(int(stage.executorCpuTime()) for stage in data) // 1000,
                sum(int(stage.inputBytes()) for stage in data),
            )
        return Spent()

    try:
        yield spent
    finally:
        with suppress(*GONE, Py4JError):  # a session that has ended has no tags
            context.removeJobTag(tag)


@contextmanager
def tagged(spark: SparkSession) -> Iterator[None]:
    """Jobs that this thread starts inside the block, and queries that it starts, have `TAG`."""
    context = spark.sparkContext
    is_tagged = TAG in context.getJobTags()
    context.addJobTag(TAG)
    try:
        yield
    finally:
        if not is_tagged:
            with suppress(*GONE, Py4JError):  # a session that has ended has no tags
                context.removeJobTag(TAG)


class Losses:
    """The losses of executors in a row, in one step of the pipeline."""

    def __init__(self) -> None:
        self._count = 0

    def pause_after(self, error: BaseException) -> float | None:
        """How long to wait before the step is repeated. None: it is not repeated, because the error
        has another cause, or the step was repeated often enough.
        """
        if lost_executor(error) is None or self._count >= REPEATS:
            return None
        self._count += 1
        return FIRST_PAUSE_S * float(2 ** (self._count - 1))

    def over(self) -> None:
        """Note that the step succeeded."""
        self._count = 0


def repeating(
    act: Callable[[], Done],
    what: str,
    on_event: OnEvent = ignore,
    stop: threading.Event | None = None,
) -> Done:
    """Call `act`, and again if executors were lost meanwhile, up to `REPEATS` times (SCL-4).

    `act` must be able to begin again. `what` names it, for example "table orders". If `stop` is set
    during a pause, the error is raised.
    """
    losses = Losses()
    while True:
        try:
            return act()
        except (ConnectorError, PySparkException, Py4JError) as error:
            pause = losses.pause_after(error)
            if pause is None:
                raise
            on_event(repeated(what, error, pause))
            if (stop or threading.Event()).wait(pause):
                raise


def repeated(what: str, error: BaseException, pause: float) -> Event:
    """The event that announces a repetition."""
    text = f"executors were lost ({lost_executor(error)}); repeated in {pause:g} s"
    return warning("REPEATED", text, **fields_of(what), pause_s=pause)


def is_local(spark: SparkSession) -> bool:
    """Whether the driver is the only executor."""
    return is_local_master(spark.sparkContext.master or "")


def cores(spark: SparkSession) -> int:
    """The cores of the executors that are there now. A cluster that has not started has 2."""
    return spark.sparkContext.defaultParallelism


def applies_at_once(spark: SparkSession) -> int:
    """How many tables are applied at the same time (SCL-5)."""
    return max(2, cores(spark) // CORES_PER_APPLY)


_BY_CORES: Final[Mapping[str, Callable[[int], int]]] = {
    "spark.sql.shuffle.partitions": lambda cores: max(8, 2 * cores),
    "spark.databricks.delta.snapshotPartitions": lambda cores: max(1, cores // 8),
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": lambda cores: max(4, cores),
}
_FOLLOWED: Final = "spark.lowmark.cores"
_FOLLOWING: Final = threading.Lock()


def follow_cores(spark: SparkSession) -> None:
    """Set the parallelism of a session with lowmark's `SETTINGS` from the cores that are there now
    (SCL-5). Settings that the user changed stay. Several threads may call it: one that saw half of
    the settings of another would take the rest for the user's.
    """
    conf = spark.conf
    with _FOLLOWING:
        now, before = cores(spark), conf.get(_FOLLOWED, "")
        if before in ("", str(now)):
            return
        for name, by_cores in _BY_CORES.items():
            if conf.get(name, "") == str(by_cores(int(before or 0))):
                conf.set(name, str(by_cores(now)))
        conf.set(_FOLLOWED, str(now))


@contextmanager
def watching(spark: SparkSession) -> Iterator[None]:
    """Cancel lowmark's jobs that wait for an executor for `NO_EXECUTOR_S`. Otherwise they would
    wait for ever, for example after the master of a cluster lost its state (SCL-4).
    """
    if is_local(spark):
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, over), name="watch", daemon=True)
    watcher.start()
    try:
        with tagged(spark):
            yield
    finally:
        over.set()
        watcher.join()


def _watch(spark: SparkSession, over: threading.Event) -> None:
    context: Any = spark.sparkContext._jsc
    last_well = time.monotonic()
    while not over.wait(LOOK_EVERY_S):
        try:
            scala = context.sc()
            tracker = scala.statusTracker()
            # The driver is one of them.
            is_well = len(tracker.getExecutorInfos()) > 1 or not len(tracker.getActiveJobIds())
            if is_well:
                last_well = time.monotonic()
            elif time.monotonic() - last_well >= NO_EXECUTOR_S:
                scala.cancelJobsWithTag(TAG, NO_EXECUTORS)
        except GONE:
            return  # the session has ended, which its users notice
        except Py4JError:
            continue  # for example of a job that ended between two calls


_CLASSES: Final = {
    "io.delta.tables.DeltaTable": "Delta",
    "org.apache.spark.sql.kafka010.KafkaSourceProvider": "Kafka",
    "org.apache.spark.sql.avro.AvroDataToCatalyst": "Avro",
}
_UTILS: Final = "org.apache.spark.util.Utils"
_LIMIT: Final = "org.apache.avro.limits.bytes.maxLength"


def check_executors(spark: SparkSession, limits: str, *, for_writing: bool) -> None:
    """Raise `ConnectorError` if an executor lacks jars or, with `for_writing`, the Avro `limits`
    (SCL-2). One small job finds it, before the first batch does. A local master has no other
    executors.
    """
    if is_local(spark):
        return
    wanted = [*_CLASSES] if for_writing else [*_CLASSES][:1]
    has = [f"reflect('{_UTILS}', 'classIsLoadable', '{name}') = 'true'" for name in wanted]
    is_limited = f"reflect('java.lang.System', 'getProperty', '{_LIMIT}') <> 'null'"
    tests = [f"({test}) AS c{number}" for number, test in enumerate([*has, is_limited])]
    tasks = cores(spark)

    def ask() -> list[Row]:
        with explained("the check of the session"):
            return spark.range(0, tasks, 1, tasks).selectExpr(*tests).collect()

    with watching(spark):
        rows = repeating(ask, "the check of the session")
    # NULL is not true.
    *has_jars, limited = (all(row[number] for row in rows) for number in range(len(tests)))
    lacking = [_CLASSES[name] for name, has in zip(wanted, has_jars, strict=True) if not has]
    if lacking:
        raise executors_without_jars(" and ".join(lacking))
    if for_writing and not limited:
        raise spark_setting_missing(
            "Executors decode Avro without limits",
            "They run without the JVM options of lowmark. A damaged record could use all memory",
            f"{limits} in spark.executor.extraJavaOptions",
        )
