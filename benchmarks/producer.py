"""How many changes a producer makes and sends on one core, with lowmark's encoder and with fastavro
instead, and beside the bare client (REC-17, REC-20, PUB-1, PUB-3, PUB-5).

    python -m benchmarks producer [--quick]

Changes that replace a row of five columns (six entries) go through `ChangeProducer` to a local
broker. Some are ready before, and some are made while they are sent. For the encoders, some have an
estimated low watermark. `TableWriter` makes the same cells, and the presence mark, from dicts of
these rows. The bare client sends the same bytes, encoded before, with a function for
each acknowledgement. `reached` is called after every hundred changes. With an outbox,
each change is on disk when `send` returns. The processor time of this process is measured,
including the threads of the client library, so the result is a rate per core. All ways take turns,
and the best round of each counts.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from unittest import mock

from confluent_kafka import Producer

from benchmarks import encoder, machine
from benchmarks.report import Figure, finish, spread
from connector.config.settings import KafkaConfig
from connector.jars import JarStore
from connector.kafka import ChangeProducer, LocalBroker, TableWriter, topics
from connector.kafka.topics import partition_of
from connector.records import codec
from connector.records.model import DataChange, DeleteFamily, Record, SetCell
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.values import DataType
from tests.fastavro_encoder import encode_with_fastavro

ROUNDS = 5
COLUMNS = tuple(b"column_%d" % column for column in range(5))
NAMES = tuple(column.decode() for column in COLUMNS)
ITEMS = TableDefinition(
    name="items",
    stream="bench",
    source="items",
    key=Key((KeyPart("key", DataType.BYTES),)),
    columns=tuple(Column(name, "f", name.encode(), DataType.BYTES) for name in NAMES),
)
Row = tuple[bytes, int, tuple[bytes, ...]]


def rows(count: int) -> list[Row]:
    """Key, commit timestamp and values of rows, as a source has them."""
    chance = random.Random(encoder.SEED)
    return [
        (
            b"item%08d" % chance.randrange(200_000),
            encoder.START + index * 37,
            tuple(chance.randbytes(16) for _ in COLUMNS),
        )
        for index in range(count)
    ]


def change(row: Row) -> DataChange:
    key, commit_timestamp, values = row
    cells = [SetCell("f", column, value) for column, value in zip(COLUMNS, values, strict=True)]
    return DataChange(
        stream_partition="shard-0",
        table="items",
        row_key=key,
        commit_timestamp=commit_timestamp,
        entries=(DeleteFamily("f"), *cells),
    )


@dataclass(frozen=True)
class Way:
    """How changes are made, encoded and sent. `many` is the number of changes in a `send_many`."""

    changes: Callable[[], Iterable[DataChange]]
    encode: Callable[[Record, int, int | None], bytes] = codec.encode
    many: int = 0
    reports: bool = False
    outbox: bool = False


def rate(kafka: KafkaConfig, topic: str, count: int, way: Way, folder: Path) -> float:
    """Changes a second of processor time, until all are acknowledged. If changes are made while
    they are sent, that counts too.
    """
    outbox = folder / "outbox.db" if way.outbox else None
    with (
        mock.patch("connector.records.codec.encode", way.encode),
        ChangeProducer(kafka, topic, outbox=outbox, heartbeat_s=1) as producer,
    ):
        began = time.process_time()
        if way.many:
            for some in batched(way.changes(), way.many):
                producer.send_many(some)
        else:
            for number, each in enumerate(way.changes()):
                producer.send(each)
                if way.reports and number % 100 == 99:
                    producer.reached(each.stream_partition, each.commit_timestamp - 1)
        producer.flush()
        return count / (time.process_time() - began)


def rate_of_writer(kafka: KafkaConfig, topic: str, sources: Sequence[Row]) -> float:
    """The rate of a `TableWriter`, which makes the changes from dicts."""
    dicts = [
        ({"key": key, **dict(zip(NAMES, values, strict=True))}, commit_timestamp)
        for key, commit_timestamp, values in sources
    ]
    with ChangeProducer(kafka, topic, heartbeat_s=1) as producer:
        writer = TableWriter(producer, ITEMS, stream_partition="shard-0", missing="null")
        began = time.process_time()
        for row, commit_timestamp in dicts:
            writer.upsert(row, commit_timestamp=commit_timestamp)
        producer.flush()
        return len(sources) / (time.process_time() - began)


def batched(changes: Iterable[DataChange], size: int) -> Iterator[list[DataChange]]:
    iterator = iter(changes)
    while some := list(islice(iterator, size)):
        yield some


def rate_of_bare_client(kafka: KafkaConfig, topic: str, ready: list[DataChange]) -> float:
    """The same of a loop over prepared bytes with the client library alone."""
    partitions = 4
    prepared = [
        (
            one.row_key,
            codec.frame(codec.encode(one, partitions), None),
            partition_of(one.row_key, partitions),
        )
        for one in ready
    ]
    failed: list[object] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    client = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 20,
        }
    )
    began = time.process_time()
    for number, (key, value, partition) in enumerate(prepared):
        while True:
            try:
                client.produce(topic, value, key, partition, on_delivery)
                break
            except BufferError:
                client.poll(0.05)
        if number % 100 == 0:
            client.poll(0)
    client.flush(60)
    assert not failed
    return len(prepared) / (time.process_time() - began)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks producer")
    parser.add_argument("--quick", action="store_true", help="a tenth of the changes, no judgement")
    quick = parser.parse_args().quick
    count = 10_000 if quick else 100_000
    sources = rows(count)
    ready, estimating = [change(row) for row in sources], encoder.changes(count, encoder.SEED)
    ways = {
        "send": Way(lambda: ready),
        "send, reached": Way(lambda: ready, reports=True),
        "send, outbox": Way(lambda: ready, outbox=True),
        "send_many": Way(lambda: ready, many=1000),
        "make and send": Way(lambda: map(change, sources)),
        "send with estimates": Way(lambda: estimating),
        "send with estimates, fastavro's encoder": Way(lambda: estimating, encode_with_fastavro),
    }
    rates: dict[str, list[float]] = {way: [] for way in ("bare client", *ways, "TableWriter")}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lowmark-bench-"))
        broker = stack.enter_context(
            LocalBroker.start(Path(folder), JarStore.from_environment(os.environ))
        )
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "bench", kafka_partitions=4)
        for _ in range(ROUNDS):
            rates["bare client"].append(rate_of_bare_client(kafka, "bench", ready))
            for name, way in ways.items():
                rates[name].append(rate(kafka, "bench", count, way, Path(folder)))
            rates["TableWriter"].append(rate_of_writer(kafka, "bench", sources))
    print(*machine.facts(), sep="\n")
    print(f"{count} changes a round")
    for name, found in rates.items():
        print(spread(name, found, "changes/s and core"))
    best = [max(found) for found in rates.values()]
    bare, send, with_heartbeats, with_outbox, many, make_and_send, ours, fastavro, writer = best
    return finish(
        [
            Figure("producer_send_changes_per_s_and_core", send, "105000"),
            Figure("producer_make_and_send_changes_per_s_and_core", make_and_send, "45000"),
            Figure("producer_changes_per_s_and_core", ours),
            Figure("producer_with_fastavro_changes_per_s_and_core", fastavro),
            Figure("producer_gain_of_the_encoder", ours / fastavro),
            Figure("producer_send_to_bare_client", send / bare),
            Figure("producer_send_many_to_bare_client", many / bare),
            Figure("producer_heartbeats_to_none", with_heartbeats / send, "0.95"),
            Figure("producer_outbox_to_none", with_outbox / send, "0.35"),
            Figure("producer_table_writer_to_make_and_send", writer / make_and_send, "0.7"),
        ],
        validate_record=not quick,
    )


if __name__ == "__main__":
    raise SystemExit(main())
