"""Topics of another program, below a prefix of their own, with Debezium's records in them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.cimpl import NewTopic

from connector.config.settings import KafkaConfig, SourceConfig
from connector.sources.model import SourceFormat

Row = Mapping[str, Any]
START_US = 1_700_000_000_000_000


def until(holds: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class ForeignTopics:
    """Topics of a source, and a database whose transactions are written to them.

    - `prefix` begins the names of the topics. `config` reads those of the tables of `public`.
    - `tables` has the rows that the database has, by table and id.
    """

    def __init__(self, kafka: KafkaConfig, admin: AdminClient) -> None:
        self.kafka, self._admin, self.prefix = kafka, admin, f"src{uuid.uuid4().hex[:8]}"
        self.config = SourceConfig(
            format=SourceFormat.DEBEZIUM_JSON,
            topics=(f"{self.prefix}.public.*",),
            transactions=f"{self.prefix}.transaction",
            heartbeats="public.beat",
        )
        self.tables: dict[str, dict[int, dict[str, Any]]] = {}
        self._transactions, self._lsn = 0, 1000
        self._last: list[tuple[str, str, str]] = []

    def create(self, name: str, kafka_partitions: int = 1, **settings: str) -> str:
        topic = f"{self.prefix}.{name}"
        new = NewTopic(topic, num_partitions=kafka_partitions, config=settings)
        self._admin.create_topics([new])[topic].result(30)
        until(lambda: topic in self._admin.list_topics(timeout=10).topics)
        return topic

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(30)
        until(lambda: topic not in self._admin.list_topics(timeout=10).topics)

    def add_partitions(self, topic: str, total: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)

    def send(
        self, topic: str, *values: str | None, key: str | None = "k", kafka_partition: int = -1
    ) -> None:
        # An older client would not know new topics and Kafka partitions yet.
        producer = Producer(
            {"bootstrap.servers": self.kafka.bootstrap_servers, "message.max.bytes": 10_000_000}
        )
        for value in values:
            sent = None if value is None else value.encode()
            sent_key = None if key is None else key.encode()
            producer.produce(topic, sent, sent_key, kafka_partition)
        assert producer.flush(30) == 0

    def commit(self, *rows: tuple[str, int, Row | None], ends: bool = True) -> str:
        """Write a transaction: the tables, ids and new rows of its events. None: a delete. Return
        its id. Without `ends`, its end is not written.
        """
        self._transactions += 1
        number, before = self._transactions, self._lsn
        self._lsn += 100
        at = START_US + number * 1_000_000
        counts: dict[str, int] = {}
        for order, (table, id_, row) in enumerate(rows, 1):
            name = f"public.{table}"
            counts[name] = counts.get(name, 0) + 1
            rows_of = self.tables.setdefault(table, {})
            op = "d" if row is None else ("u" if id_ in rows_of else "c")
            if row is None:
                rows_of.pop(id_, None)
            else:
                rows_of[id_] = {"id": id_, **row}
            source = self._source(table, at, before, before + order)
            transaction = {"id": f"{number}:{before + order}", "total_order": order}
            event = {"op": op, "before": None, "after": rows_of.get(id_), "source": source}
            value = json.dumps({**event, "transaction": transaction})
            self._last = [(f"{self.prefix}.{name}", value, json.dumps({"id": id_}))]
            self.send(*self._last[0][:2], key=self._last[0][2])
        if ends:
            self.end(number, counts)
        return str(number)

    def end(self, number: int, counts: Mapping[str, int]) -> None:
        """Write the end of the newest transaction."""
        collections = [{"data_collection": t, "event_count": n} for t, n in counts.items()]
        end = {
            "status": "END",
            "id": f"{number}:{self._lsn}",
            "event_count": sum(counts.values()),
            "data_collections": collections,
            "ts_ms": (START_US + number * 1_000_000) // 1000,
        }
        self._last.append((f"{self.prefix}.transaction", json.dumps(end), "end"))
        self.send(*self._last[-1][:2], key="end")

    def repeat_last(self) -> None:
        """Write the last event and the last end again, as Debezium does after a restart."""
        for topic, value, key in self._last:
            self.send(topic, value, key=key)

    def snapshot(self, table: str, rows: Sequence[Row]) -> None:
        """Write rows of the initial snapshot."""
        for row in rows:
            self.tables.setdefault(table, {})[row["id"]] = dict(row)
            source = self._source(table, START_US, self._lsn, self._lsn) | {"snapshot": "true"}
            value = json.dumps({"op": "r", "before": None, "after": row, "source": source})
            key = json.dumps({"id": row["id"]})
            self.send(f"{self.prefix}.public.{table}", value, key=key)

    @staticmethod
    def _source(table: str, at: int, end_before: int, lsn: int) -> dict[str, Any]:
        return {
            "connector": "postgresql",
            "db": "shop",
            "schema": "public",
            "table": table,
            "ts_us": at,
            "ts_ms": at // 1000,
            "snapshot": "false",
            "lsn": lsn,
            "sequence": json.dumps([str(end_before), str(lsn)]),
        }


@contextmanager
def foreign_topics(kafka: KafkaConfig, admin: AdminClient) -> Iterator[ForeignTopics]:
    made = ForeignTopics(kafka, admin)
    yield made
    names = [n for n in admin.list_topics(timeout=30).topics if n.startswith(made.prefix)]
    for deleted in admin.delete_topics(names).values() if names else ():
        deleted.exception(30)
