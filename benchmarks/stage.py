"""The environment of a benchmark: a broker, a Spark session as `connector run` starts it, and a
temporary folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks import workload
from benchmarks.workload import Shape, Workload
from connector import jars
from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.dead_letters.envelope import DeadLetter
from connector.kafka import topics
from connector.kafka.dead_letters.topic import external_dead_letters
from connector.kafka.local.broker import LocalBroker
from connector.kafka.ranges import RangeReader
from connector.kafka.topics import TopicFacts, TopicIdentity
from connector.lake.batch_counts import count_rows, count_table
from connector.lake.changelog_folds import fold_batches
from connector.lake.letter_positions import logged_positions
from connector.lake.small_files import write_rows
from connector.spark.ingest.ports import IngestPorts
from connector.spark.session import start_session
from connector.spark.stream_ingest import StreamIngest

KAFKA_PARTITIONS = 4
MEMORY = "2g"
"""The default heap of the driver in `connector run`."""


@dataclass(slots=True)
class Stage:
    """The environment of one benchmark. `pid` is the process id of Spark's JVM."""

    spark: SparkSession
    kafka: KafkaConfig
    folder: Path
    _topics: int = field(default=0)

    @property
    def pid(self) -> int:
        jvm: Any = self.spark._jvm
        return int(jvm.java.lang.ProcessHandle.current().pid())

    def new_topic(self) -> TopicFacts:
        """An empty change topic, as `connector topic create` makes it."""
        self._topics += 1
        return topics.create_topic(
            self.kafka, f"bench-{os.getpid()}-{self._topics}", kafka_partitions=KAFKA_PARTITIONS
        )

    def decoded(self, work: Workload, *, files: int = 8) -> DataFrame:
        """The changes of a workload as files of plain columns. The files are in the order of their
        commits.
        """
        changes = f"{work.shape}-{work.first}-{work.count}-{work.keys}-{work.deletes_percent}"
        path = self.folder / f"decoded-{changes}-{files}"
        if not path.exists():
            rows = workload.decoded(self.spark, work)
            rows.repartitionByRange(files, "number").sortWithinPartitions("number").write.parquet(
                str(path)
            )
        return self.spark.read.parquet(str(path))

    def produce(self, topic: TopicFacts, rows: DataFrame, shape: Shape) -> None:
        """Write the changes to a topic with Spark, whose key hash is Kafka's."""
        records = workload.kafka_records(rows, shape, topic.kafka_partitions)
        options = {"kafka.bootstrap.servers": self.kafka.bootstrap_servers, "topic": topic.topic}
        tuned = {
            "kafka.compression.type": "lz4",
            "kafka.linger.ms": "20",
            "kafka.batch.size": "262144",
        }
        records.write.format("kafka").options(**options, **tuned).save()

    def ingest(
        self,
        topic: TopicFacts,
        warehouse: Path,
        *,
        max_offsets: int = 1_000_000,
        publish: Callable[[Iterable[DeadLetter]], int] | None = None,
    ) -> None:
        """Ingest a topic into a warehouse, up to the topic's present end. Without `publish`, there
        must be no bad record.
        """
        query = self.stream_ingest(
            topic, warehouse, max_offsets=max_offsets, publish=publish or refuse
        )
        query.start(once=True)
        query.wait()

    def stream_ingest(
        self,
        topic: TopicFacts,
        warehouse: Path,
        *,
        max_offsets: int = 1_000_000,
        trigger_s: float = 5.0,
        publish: Callable[[Iterable[DeadLetter]], int],
        on_step: Callable[[str], None] = lambda step: None,
    ) -> StreamIngest:
        """The ingest of a topic into a warehouse, not started. `on_step` is called with "begun" for
        each batch, and then with its steps.
        """
        stream = StreamConfig(
            name=workload.STREAM,
            topic=topic.topic,
            max_offsets_per_trigger=max_offsets,
            trigger_s=trigger_s,
        )
        table = workload.definition()
        config = ConnectorConfig(
            str(warehouse), self.kafka, None, {stream.name: stream}, {table.name: table}
        )

        looks = topics.TopicLooks(self.kafka, topic.topic)
        ranges = RangeReader(self.kafka, topic.topic)

        def described() -> TopicIdentity:
            on_step("begun")  # a batch asks for its topic before all else
            return looks.topic()

        world = IngestPorts(
            topic=described,
            publish=publish,
            now=lambda: time.time_ns() // 1000,
            high_watermarks=looks.high_watermarks,
            read_few=lambda offsets, asked_at: ranges.read(offsets.by_partition, asked_at),
            count_rows=count_rows,
            count_table=count_table,
            logged_positions=logged_positions,
            write_rows=write_rows,
            fold_batches=fold_batches,
            earliest=partial(topics.beginning_offsets, self.kafka, topic),
            external_dead_letters=lambda known, published: external_dead_letters(
                self.kafka, topic.topic, known, published
            ),
            partition_of=topics.partition_of,
        )
        return StreamIngest(self.spark, config, stream, world, lambda _: None, on_step=on_step)


def refuse(letters: Iterable[DeadLetter]) -> int:
    """Raise an error for a dead letter, because benchmarks send no bad records."""
    found = list(letters)
    assert not found, found[0]
    return 0


@contextmanager
def stage(settings: Mapping[str, str] | None = None) -> Iterator[Stage]:
    """A broker, a session and a folder for the `with` block."""
    store = jars.JarStore.from_environment(os.environ)
    paths = jars.fetch("spark", store)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="lowmark-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        broker = stack.enter_context(LocalBroker.start(folder / "broker", store))
        spark = start_session(
            paths,
            scratch=folder / "scratch",
            settings={"spark.driver.memory": MEMORY, **(settings or {})},
        )
        stack.callback(spark.stop)
        yield Stage(spark, KafkaConfig(broker.bootstrap_servers), folder)
