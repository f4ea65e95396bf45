"""A warehouse in an object store that is slow, fails and cuts connections, and processes that die,
stand still, and write at the same time (STO-3, STO-6).

KILLS in the environment says how often the pipeline is killed, MINUTES how long two of them run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import ConnectorError
from connector.lake.plain_table import open_table
from connector.lake.state_reader import progress_of
from connector.services import audit, load_config
from connector.services.warehouses import warehouse_of
from tests.broker import NewTopic
from tests.faults.process import Folder, Process, ProcessFailedError, outcome, running
from tests.object_store import FAULTY, ObjectStore
from tests.spark.conftest import QUICK_PROCESS
from tests.spark.live import Live
from tests.spark.streams import account
from tests.store_proxy import Fault, StoreProxy, Weather

KILLS = int(os.environ.get("KILLS", "20"))
MINUTES = float(os.environ.get("MINUTES", "5"))
WITHIN_S = 300.0
ROUNDS = 20
STORM = {
    Fault.DELAY: 0.05,
    Fault.CUT: 0.02,
    Fault.CUT_ANSWER: 0.02,
    Fault.SLOW_DOWN: 0.03,
    Fault.FAILED: 0.02,
}
STORM_OF_COMMITS = {Fault.CUT_ANSWER: 0.4, Fault.CUT: 0.1, Fault.SLOW_DOWN: 0.1}
EXPECTED = {"STORE_UNREACHABLE", "CONCURRENT_WRITE"}
CONFIG = """
warehouse = "{warehouse}"
[kafka]
bootstrap_servers = "{servers}"
[streams.s]
topic = "{topic}"
trigger = "200ms"
[tables.accounts]
stream = "s"
source = "t"
max_staleness = "2s"
buckets = 2
key = {{ columns = [{{ name = "id", type = "STRING" }}] }}
columns = [
  {{ name = "name", family = "f", type = "STRING" }},
  {{ name = "amount", family = "f", type = "INT64" }},
]
"""


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[StoreProxy]:
    with StoreProxy(object_store.port) as proxy:
        yield proxy


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nothing_is_lost_in_a_store_that_fails(
    spark: SparkSession,
    store: ObjectStore,
    proxy: StoreProxy,
    kafka: KafkaConfig,
    new_topic: NewTopic,
    seed: int,
) -> None:
    """STO-3, STO-6, `nothing_lost`, `newest_wins`: also commits whose answer was cut. The next
    process finishes what the one before left undone, and each error says that the store failed.
    """
    settings = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    settings.set(f"fs.s3a.bucket.{FAULTY}.endpoint", f"http://127.0.0.1:{proxy.port}")
    spark._jvm.org.apache.hadoop.fs.FileSystem.closeAll()  # type: ignore[union-attr,operator]
    rng, failed = Random(seed), 0
    with ExitStack() as stack:
        live = Live(
            *(spark, kafka, new_topic(kafka_partitions=2).topic, store.warehouse(FAULTY), stack),
            storage=store.storage(port=proxy.port),
        )
        for number in range(ROUNDS):
            live.publish(*changes_of(rng, number))
            proxy.change(Weather(STORM, STORM_OF_COMMITS, seed=rng.randrange(2**32)))
            try:
                live.pipeline().run_once()
            except ConnectorError as error:
                assert error.code in EXPECTED, error
                failed += 1
        faults = proxy.look().faults
        proxy.change(Weather())
        live.pipeline().run_once()
        assert live.logged_offsets() == live.offsets()
        assert live.table() == live.truth()
        assert all(one.is_proved for one in audit(live.config))
    assert faults[Fault.CUT_ANSWER]
    print(f"seed {seed}: {failed} of {ROUNDS} lives failed, {dict(faults)}")


def changes_of(rng: Random, number: int) -> list:  # type: ignore[type-arg]
    """The changes of a round. No two have the same time."""
    return [
        account(f"row {rng.randrange(12)}", 1000 * number + at + 1, name=f"{number}.{at}")
        for at in range(rng.randint(3, 20))
    ]


@dataclass
class Rivals:
    """A warehouse with a configuration file, and the processes that tests start on it."""

    folder: Folder
    config: ConnectorConfig
    environment: dict[str, str]
    live: Live
    rng: Random
    started: int = 0
    ended: list[str] = field(default_factory=list)

    def publish(self) -> None:
        self.live.publish(*changes_of(self.rng, len(self.live.published)))

    @contextmanager
    def process(self, *arguments: str) -> Iterator[Process]:
        self.started += 1
        words = ("--cores", "1", "--memory", "1g", *arguments)
        settings = {**QUICK_PROCESS, **self.environment}
        with running(self.folder, self.started, *words, settings=settings) as process:
            yield process

    def batches(self) -> int:
        return progress_of(self.config.warehouse, "s").ingest_batch

    def judge(self) -> None:
        """All work is completed, nothing is lost, and the table is the truth."""
        self.publish()
        with self.process("--once") as process:
            process.finish()
        assert [one.is_proved for one in audit(self.config)] == [True]
        (table,) = self.config.tables
        found = open_table(f"{self.config.warehouse}/tables/{table}/data")
        rows = [dict(zip(found.types, row, strict=True)) for row in found.rows()]
        by_key = {row["id"]: row | {"_unmapped": dict(row["_unmapped"] or ())} for row in rows}
        assert len(by_key) == len(rows), "a key stands twice"
        assert by_key == self.live.truth()


@pytest.fixture
def rivals(
    object_store: ObjectStore, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path, seed: int
) -> Iterator[Rivals]:
    topic = new_topic(kafka_partitions=2).topic
    folder = Folder(tmp_path, object_store.warehouse())
    text = CONFIG.format(warehouse=folder.uri, servers=kafka.bootstrap_servers, topic=topic)
    folder.config.write_text(text)
    storage = object_store.storage()
    environment = {
        "CONNECTOR__STORAGE__ENDPOINT": storage.endpoint,
        "CONNECTOR__STORAGE__ACCESS_KEY": storage.access_key,
        "CONNECTOR__STORAGE__SECRET_KEY": storage.secret_key,
    }
    config = load_config(folder.config, environment)
    warehouse_of(config)
    with ExitStack() as stack:
        live = Live(None, kafka, topic, folder.uri, stack)  # type: ignore[arg-type]
        yield Rivals(folder, config, environment, live, Random(seed))


@pytest.mark.long
@pytest.mark.timeout(300 + 180 * KILLS)
def test_resumable_after_each_kill(rivals: Rivals) -> None:
    """STO-6, `resumable`, `nothing_lost`: SIGKILL, at any time after a commit."""
    for _ in range(KILLS):
        rivals.publish()
        before = rivals.batches()
        with rivals.process() as process:
            process.wait(lambda before=before: rivals.batches() > before)  # type: ignore[misc]
            rivals.publish()
            until = time.monotonic() + rivals.rng.uniform(0, 6)
            process.wait(lambda until=until: time.monotonic() > until)  # type: ignore[misc]
    rivals.judge()


@pytest.mark.long
@pytest.mark.timeout(900 + 60 * MINUTES)
def test_two_pipelines_lose_no_commit(rivals: Rivals) -> None:
    """STO-3, `nothing_lost`: two `connector run` on one warehouse, and a rebuild beside them. One
    pauses for a while, and continues with its old state. A process that meets another one ends
    with an error, and is started again.
    """
    until = time.monotonic() + 60 * MINUTES
    with ExitStack() as stack:
        going = [stack.enter_context(rivals.process()) for _ in range(2)]
        while time.monotonic() < until:
            rivals.publish()
            time.sleep(rivals.rng.uniform(0, 3))
            for place, process in enumerate(going):
                if process.process.poll() is not None:
                    rivals.ended.append(process.tail())
                    assert process.process.returncode == 1, process.tail()
                    going[place] = stack.enter_context(rivals.process())
            chosen = rivals.rng.choice(going)
            if rivals.rng.random() < 0.3 and chosen.process.poll() is None:
                os.killpg(chosen.process.pid, signal.SIGSTOP)
                time.sleep(rivals.rng.uniform(1, 8))
                os.killpg(chosen.process.pid, signal.SIGCONT)
            if rivals.rng.random() < 0.05:
                try_rebuild(rivals)
    print(f"{len(rivals.ended)} conflicts, {rivals.batches()} batches")
    rivals.judge()


def try_rebuild(rivals: Rivals) -> None:
    words = ("table", "rebuild", "accounts", "--memory", "1g")
    settings = {**QUICK_PROCESS, **rivals.environment}
    try:
        outcome(rivals.folder, *words, settings=settings)
    except ProcessFailedError as error:  # another process committed meanwhile
        rivals.ended.append(str(error))
