"""A stream on the real broker, with the pipeline as `connector run` builds it, and what a reader of
its topic can see.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig, UnknownTables
from connector.config.storage import StorageConfig
from connector.events import OnEvent, ignore
from connector.kafka import topics
from connector.kafka.dead_letters.topic import read_letters
from connector.lake.jobs import History
from connector.records import codec
from connector.records.model import DataChange, kafka_key
from connector.records.ordering import OrderPosition
from connector.services.run import ports_of
from connector.services.warehouses import warehouse_of
from connector.spark.job_log import JobLog
from connector.spark.pipeline import Pipeline
from connector.spark.storage.changelog import Changelog
from connector.tables.column_names import BOOKKEEPING
from connector.tables.definition import TableDefinition
from connector.tables.merge import join, lift, visible
from connector.tables.row import read_change, row_of
from connector.warehouse import table as table_path
from tests.spark.streams import definition, merge_every_other, plain


@dataclass
class Live:
    """One stream "s" on a topic of its own, and the table "accounts"."""

    spark: SparkSession
    kafka: KafkaConfig
    topic: str
    warehouse: Path | str
    stack: ExitStack
    published: list[DataChange] = field(default_factory=list)
    tables: tuple[TableDefinition, ...] = (definition(max_staleness_s=2),)
    storage: StorageConfig = field(default_factory=StorageConfig)

    @property
    def stream(self) -> StreamConfig:
        return StreamConfig(name="s", topic=self.topic, trigger_s=0.2)

    @property
    def config(self) -> ConnectorConfig:
        tables = {table.name: table for table in self.tables}
        return ConnectorConfig(
            *(str(self.warehouse), self.kafka),
            streams={"s": self.stream},
            tables=tables,
            storage=self.storage,
        )

    def pipeline(
        self, on_step: Callable[[str], None] = lambda step: None, on_event: OnEvent = ignore
    ) -> Pipeline:
        """A new one, as after a restart."""
        ports = {"s": ports_of(self.config, self.stream, self.stack)}
        history = History(warehouse_of(self.config))
        job_log = JobLog(
            *(history.add_jobs, history.add_cut, history.newest_cut, history.cuts),
            last_clean_up=history.last_clean_up,
            failed_maintenance=history.failed_maintenance,
            forget_cuts=history.forget_cuts,
        )
        return Pipeline(
            self.spark,
            self.config,
            ports,
            job_log,
            merge_every_other,
            on_event=on_event,
            on_step=on_step,
        )

    def publish(self, *changes: DataChange, at: int | None = None) -> None:
        """To the Kafka partition of the key, or to the one given."""
        count = topics.describe(self.kafka, self.topic).kafka_partitions
        number = {change: sum(change.row_key) % count if at is None else at for change in changes}
        self.send(
            (number[c], kafka_key(c), codec.frame(codec.encode(c, count), None)) for c in changes
        )
        self.published.extend(changes)

    def send(self, records: Iterable[tuple[int, bytes, bytes]]) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for number, key, value in records:
            producer.produce(self.topic, value, key, number)
        assert producer.flush(30) == 0

    def abort(self, *changes: DataChange) -> None:
        """Publish in a transaction that is given up: records with offsets that no reader of
        committed ones sees.
        """
        producer = Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "transactional.id": f"{self.topic}-test",
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for change in changes:
            producer.produce(
                self.topic, codec.frame(codec.encode(change, 1), None), kafka_key(change), 0
            )
        producer.flush(30)
        producer.abort_transaction(30)

    @contextmanager
    def holding(self, kafka_partition: int) -> Iterator[None]:
        """With an open transaction: readers of committed records read nothing of the Kafka
        partition that comes after it.
        """
        settings = {"transactional.id": f"{self.topic}-hold", "transaction.timeout.ms": 600_000}
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, **settings})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(self.topic, b"never committed", b"k", kafka_partition)
        assert producer.flush(30) == 0
        yield
        producer.abort_transaction(30)

    def changelog(self) -> Changelog:
        return Changelog(self.spark, f"{self.warehouse}/streams/s/changelog", "s")

    def logged_offsets(self) -> list[tuple[int, int]]:
        return sorted(
            (row["kafka_partition"], row["offset"])
            for row in self.changelog().rows().select("kafka_partition", "offset").collect()
        )

    def offsets(self) -> list[tuple[int, int]]:
        return offsets(self.kafka, self.topic)

    def letters(self) -> list[str]:
        """The ids of the letters, each once."""
        return [letter.id for letter, _ in read_letters(self.kafka, self.topic)]

    def table(self) -> dict[object, dict[str, object]]:
        """As the last apply left it."""
        found = (
            self.spark.read.format("delta")
            .load(table_path(str(self.warehouse), "accounts"))
            .drop(*BOOKKEEPING)
        )
        rows = [row.asDict() for row in found.collect()]
        by_key = {
            row["id"]: (
                {name: plain(value) for name, value in row.items()}
                | {"_unmapped": row["_unmapped"] or {}}
            )
            for row in rows
        }
        assert len(by_key) == len(rows), "a key stands twice"
        return by_key

    def truth(self) -> dict[object, dict[str, object]]:
        return {row["id"]: row for row in truth(definition(), self.published)}


@contextmanager
def beside(act: Callable[[threading.Event], object], within_s: float = 120) -> Iterator[None]:
    """Run `act` in a thread beside the block. At its end, the event is set. An error of `act` is
    raised then.
    """
    stop, failures = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            act(stop)
        except BaseException as error:  # noqa: BLE001, it is raised in the other thread
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(within_s)
    assert not thread.is_alive()
    for failure in failures:
        raise failure


class Strict(Live):
    """Rows of other tables are rejected."""

    @property
    def stream(self) -> StreamConfig:
        return replace(super().stream, unknown_tables=UnknownTables.REJECT)


def records(kafka: KafkaConfig, topic: str) -> Iterator[tuple[int, int, Message]]:
    """Kafka partition, offset and message of every record that a reader of committed transactions
    can see now.
    """
    facts = topics.describe(kafka, topic)
    left = {number for number, end in topics.end_offsets(kafka, facts).items() if end > 0}
    settings = {
        "group.id": "test",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    deadline = time.monotonic() + 60
    while left:
        assert time.monotonic() < deadline
        message = consumer.poll(0.5)
        if message is None:
            continue
        number, offset = message.partition(), message.offset()
        assert number is not None
        assert offset is not None
        if message.error():
            left.discard(number)
        else:
            yield number, offset, message
    consumer.close()


def offsets(kafka: KafkaConfig, topic: str) -> list[tuple[int, int]]:
    """Kafka partition and offset of every such record."""
    return sorted((number, offset) for number, offset, _ in records(kafka, topic))


def truth(wanted: TableDefinition, changes: Iterable[DataChange]) -> list[dict[str, object]]:
    """The rows that `connector.tables.merge` makes of changes that differ in rank, so that their
    order of arrival does not matter.
    """
    states: dict[bytes, list[object]] = {}
    for number, change in enumerate(
        change for change in changes if read_change(wanted, change) is None
    ):
        state = lift(change, OrderPosition(1, 0, number, 0), wanted.order, wanted.versions)
        states.setdefault(change.row_key, []).append(state)
    rows = (row_of(wanted, key, visible(reduce(join, known))) for key, known in states.items())  # type: ignore[arg-type]
    return [row for row in rows if row is not None]
