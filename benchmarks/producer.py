"""How many changes a producer sends on one core, with our encoder and with fastavro's in its place (REC-17, REC-20).

    python -m benchmarks producer [--quick]

Changes of five cells go through `ChangeProducer` to a local broker. Counted is the processor time of this process, the
client library's threads included: a rate per core. Both encoders take turns, and the best round of each counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from benchmarks import machine
from benchmarks.encoder import SEED, changes
from benchmarks.report import Figure, finish, spread
from connector import codec
from connector.config import KafkaConfig
from connector.jars import JarStore
from connector.kafka import ChangeProducer, LocalBroker, topics
from connector.model import DataChange, Record

ROUNDS = 3


def rate(kafka: KafkaConfig, topic: str, records: list[DataChange], encode: Callable[[Record, int], bytes]) -> float:
    """Changes a second of processor time, until all are acknowledged."""
    with mock.patch("connector.kafka.producer.encode", encode), ChangeProducer(kafka, topic) as producer:
        began = time.process_time()
        for record in records:
            producer.send(record)
        producer.flush()
        return len(records) / (time.process_time() - began)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks producer")
    parser.add_argument("--quick", action="store_true", help="a tenth of the changes, no judgement")
    quick = parser.parse_args().quick
    records = changes(10_000 if quick else 100_000, SEED)
    ways = {"with our encoder": codec.encode, "with fastavro's": codec.encode_with_fastavro}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lowmark-bench-"))
        broker = stack.enter_context(LocalBroker.start(Path(folder), JarStore.from_environment(os.environ)))
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "bench", kafka_partitions=4)
        for _ in range(ROUNDS):
            for way, encode in ways.items():
                rates[way].append(rate(kafka, "bench", records, encode))
    print(*machine.facts(), sep="\n")
    print(f"{len(records)} changes a round")
    for way, found in rates.items():
        print(spread(way, found, "changes/s and core"))
    ours, fastavro = (max(found) for found in rates.values())
    return finish(
        [
            Figure("producer_changes_per_s_and_core", ours),
            Figure("producer_with_fastavro_changes_per_s_and_core", fastavro),
            Figure("producer_gain_of_the_encoder", ours / fastavro),
        ],
        judge=not quick,
    )


if __name__ == "__main__":
    raise SystemExit(main())
