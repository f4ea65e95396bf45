"""The pipeline in the process of a test, one life after another. A life ends at a named point."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig
from connector.errors import ConnectorError
from connector.lake.jobs import History as Jobs
from connector.services.run import ports_of
from connector.spark.job_log import JobLog
from connector.spark.pipeline import Pipeline
from connector.spark.reader import read_table
from tests.faults.history import History
from tests.faults.system import Failpoints
from tests.spark.streams import merge_every_other

PATIENCE_S = 300.0
TABLE_POINTS = (
    "table rows: letters published",
    "table rows: tombstones written",
    "table rows: table committed",
)
POINTS = (
    "stream s: rows written",
    "stream s: logged",
    "stream s: progress committed",
    *TABLE_POINTS,
)
COMPLETES = "stream s: letters published"
"""Without rejected records, only a batch that may complete a release comes here."""
RELEASE_POINTS = (COMPLETES, "stream s: progress committed", *TABLE_POINTS)


@dataclass
class Applying:
    """Runs the pipeline in a thread, one life after another. `crashes` are the points at which a
    life ended, and `seen` is how many loaded rows each fresh read had.
    """

    spark: SparkSession
    config: ConnectorConfig
    history: History
    rows: int
    crashes: list[str] = field(default_factory=list)
    rounds: int = 0
    seen: list[int] = field(default_factory=list)
    broker_is_down: bool = False
    failure: BaseException | None = None
    death: str = ""
    _is_armed: bool = False
    _ends: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="pipeline")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def wait(self, until: Callable[[], object], wanted: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            self.check()
            assert time.monotonic() < deadline, wanted
            time.sleep(0.05)

    def arm(self, point: str, *, at_release: bool = False) -> None:
        """Let the present life, or a later one, end at a point. `at_release`: not before a batch
        that may complete a release.
        """
        self.history.note("pipeline dies", at=point, at_release=at_release)
        self._is_armed, self.death = not at_release, point

    def wait_for_crash(self) -> None:
        self.wait(lambda: not self.death, f"no crash at {self.death}")

    def rounds_done(self, more: int = 2) -> None:
        """Wait until the pipeline has read what the topic has now, and applied it."""
        wanted = self.rounds + more
        self.wait(lambda: self.rounds >= wanted, "the pipeline does not go on")

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self._live()
        except BaseException as error:  # noqa: BLE001, `check` raises it in the thread of the test
            self.failure = error

    def _live(self) -> None:
        points = Failpoints()

        def reach(point: str) -> None:
            self._is_armed |= point == COMPLETES
            if self._is_armed and point == self.death:
                points.death, points.nth, self.death = point, 1 + points.reached.count(point), ""
            points.reach(point)

        was_down = self.broker_is_down
        try:
            with ExitStack() as life:
                pipeline = self._pipeline(reach, life)
                while not self._ends.is_set():
                    was_down = self.broker_is_down
                    pipeline.run_once()
                    self._read()
                    self.rounds += 1
        except Exception as error:
            self.history.note("pipeline stopped", by=f"{type(error).__name__}: {error}"[:500])
            if points.fired:
                self.crashes.append(points.death)
                return
            is_of_broker = was_down or self.broker_is_down
            if not (is_of_broker and isinstance(error, ConnectorError)):
                raise

    def _pipeline(self, reach: Callable[[str], None], life: ExitStack) -> Pipeline:
        stream, jobs = self.config.streams["s"], Jobs(self.config.warehouse)
        job_log = JobLog(
            *(jobs.add_jobs, jobs.add_cut, jobs.newest_cut, jobs.cuts),
            last_clean_up=jobs.last_clean_up,
            failed_maintenance=jobs.failed_maintenance,
            forget_cuts=jobs.forget_cuts,
        )
        ports = {"s": ports_of(self.config, stream, life)}
        return Pipeline(
            *(self.spark, self.config, ports, job_log, merge_every_other), on_step=reach
        )

    def _read(self) -> None:
        """A fresh read has all rows of the load, or none."""
        found = read_table(self.spark, self.config.warehouse, "rows", max_staleness_s=0).rows
        count = found.where("loaded IS NOT NULL").count()
        self.history.note("fresh read", rows=count)
        assert count in (0, self.rows), f"a fresh read has {count} of {self.rows} rows"
        self.seen.append(count)
