"""How many records a consumer reads on one core, beside a bare consumer of confluent_kafka
over the same topic in the same run (SUB-1 to SUB-3).

    python -m benchmarks reader [--quick]

The topic has changes of whole rows of five columns (six entries) in four Kafka partitions, three
changes in each transaction, and a heartbeat after each thousandth change. All readers read it from
its beginning to its end and take turns:

- bare: `Consumer.poll`, and the key, the value and the headers of each message.
- bare and decode: the same, and each value becomes a record with lowmark's decoder, without checks.
- plain: `ChangeConsumer`.
- watermarks: `WatermarkConsumer`.
- transactions: `TransactionConsumer`, each item is acknowledged. Its rate counts records, too, not
  transactions.

The processor time of this process is measured, including the threads of the client library, so the
result is a rate per core. The best round of each counts. Ratios are those of the best rounds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from benchmarks import machine
from benchmarks.producer import change, rows
from benchmarks.report import Figure, finish, spread
from connector.config.settings import KafkaConfig
from connector.jars import JarStore
from connector.kafka import (
    ChangeConsumer,
    ChangeProducer,
    LocalBroker,
    TransactionConsumer,
    WatermarkConsumer,
    WholeTransaction,
    topics,
)
from connector.records.codec import Schemas, decode
from connector.records.model import Heartbeat, Transaction

ROUNDS = 5
TOPIC = "bench"
IN_TRANSACTION, HEARTBEAT_EVERY = 3, 999
PLAIN_RATE = 40_000
"""Records a second and core: the rate to reach."""
Read = Callable[[KafkaConfig, int], int]
"""Reads the topic, which has so many records. Returns the number of changes."""


def fill(kafka: KafkaConfig, count: int) -> None:
    """Send changes in transactions of the source, in the order of their commits."""
    with ChangeProducer(kafka, TOPIC) as producer:
        ordered = sorted(map(change, rows(count)), key=lambda one: one.commit_timestamp)
        for number, one in enumerate(ordered):
            first = ordered[number - number % IN_TRANSACTION]
            size = min(IN_TRANSACTION, count - (number - number % IN_TRANSACTION))
            of = Transaction(
                f"t{number // IN_TRANSACTION:08d}", number % IN_TRANSACTION, False, size
            )
            producer.send(replace(one, commit_timestamp=first.commit_timestamp, transaction=of))
            if number % HEARTBEAT_EVERY == HEARTBEAT_EVERY - 1 or number == count - 1:
                producer.flush()
                producer.send(Heartbeat("shard-0", first.commit_timestamp))


def bare(kafka: KafkaConfig, records: int, *, decodes: bool = False) -> int:
    schemas, left, found = Schemas(), records, 0
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "bench",
        "enable.auto.commit": False,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(4)])
        while left:
            message = consumer.poll(1)
            if message is None or message.error() is not None:
                continue
            left -= 1
            key, value, _ = message.key(), message.value(), message.headers()
            if decodes:
                decode(value, schemas)
            found += key != b"\x00connector.control"
    return found


def bare_and_decode(kafka: KafkaConfig, records: int) -> int:
    return bare(kafka, records, decodes=True)


def plain(kafka: KafkaConfig, _records: int) -> int:
    found = 0
    with ChangeConsumer(kafka, TOPIC, bounded=True) as consumer:
        for received in consumer:
            found += not isinstance(received.record, Heartbeat)
    return found


def watermarks(kafka: KafkaConfig, _records: int) -> int:
    found = 0
    with WatermarkConsumer(kafka, TOPIC, bounded=True) as consumer:
        for _ in consumer:
            found += 1
    return found


def transactions(kafka: KafkaConfig, _records: int) -> int:
    found = 0
    with TransactionConsumer(kafka, TOPIC, bounded=True) as consumer:
        for item in consumer:
            if isinstance(item, WholeTransaction):
                found += len(item.changes)
            consumer.acknowledge(item)
    return found


WAYS: dict[str, Read] = {
    "bare": bare,
    "bare and decode": bare_and_decode,
    "plain": plain,
    "watermarks": watermarks,
    "transactions": transactions,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks reader")
    parser.add_argument("--quick", action="store_true", help="a tenth of the changes, no judgement")
    quick = parser.parse_args().quick
    count = 10_000 if quick else 100_000
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lowmark-bench-"))
        broker = stack.enter_context(
            LocalBroker.start(Path(folder), JarStore.from_environment(os.environ))
        )
        kafka = KafkaConfig(broker.bootstrap_servers)
        facts = topics.create_topic(kafka, TOPIC, kafka_partitions=4)
        fill(kafka, count)
        records = sum(topics.end_offsets(kafka, facts).values())
        for _ in range(ROUNDS):
            for way, read in WAYS.items():
                began = time.process_time()
                found = read(kafka, records)
                rates[way].append(records / (time.process_time() - began))
                if found < count:
                    raise SystemExit(f"{way} has read {found} of {count} changes")
    print(*machine.facts(), sep="\n")
    print(f"{records} records a round, {count} of them changes")
    for way, values in rates.items():
        print(spread(way, values, "records/s and core"))
    best = {way: max(values) for way, values in rates.items()}
    named = {way: way.replace(" ", "_") for way in WAYS}
    return finish(
        [
            *(
                Figure(
                    f"reader_{named[way]}_records_per_s_and_core",
                    value,
                    str(PLAIN_RATE) if way == "plain" else "-",
                )
                for way, value in best.items()
            ),
            *(
                Figure(f"reader_{named[way]}_to_bare", best[way] / best["bare"])
                for way in ("bare and decode", "plain", "watermarks", "transactions")
            ),
            *(
                Figure(f"reader_{way}_to_bare_and_decode", best[way] / best["bare and decode"])
                for way in ("plain", "watermarks", "transactions")
            ),
        ],
        validate_record=not quick,
    )


if __name__ == "__main__":
    raise SystemExit(main())
