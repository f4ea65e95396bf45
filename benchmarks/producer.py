"""How many changes a producer makes and sends on one core, with lowmark's encoder and with fastavro
instead (REC-17, REC-20, PUB-5).

    python -m benchmarks producer [--quick]

Changes that replace a row of five columns (six entries) go through `ChangeProducer` to a local
broker. Some are ready before, and some are made while they are sent. For the encoders, some have an
estimated low watermark. The processor time of this process is measured, including the threads of
the client library, so the result is a rate per core. All ways take turns, and the best round of
each counts.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from benchmarks import encoder, machine
from benchmarks.report import Figure, finish, spread
from connector.config.settings import KafkaConfig
from connector.jars import JarStore
from connector.kafka import ChangeProducer, LocalBroker, topics
from connector.records import codec
from connector.records.model import DataChange, DeleteFamily, Record, SetCell

ROUNDS = 5
COLUMNS = tuple(b"column_%d" % column for column in range(5))
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


def rate(
    kafka: KafkaConfig,
    topic: str,
    count: int,
    changes: Iterable[DataChange],
    encode: Callable[[Record, int], bytes],
) -> float:
    """Changes a second of processor time, until all are acknowledged. If changes are made while
    they are sent, that counts too.
    """
    with (
        mock.patch("connector.kafka.produce.record_bytes.encode", encode),
        ChangeProducer(kafka, topic) as producer,
    ):
        began = time.process_time()
        for each in changes:
            producer.send(each)
        producer.flush()
        return count / (time.process_time() - began)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks producer")
    parser.add_argument("--quick", action="store_true", help="a tenth of the changes, no judgement")
    quick = parser.parse_args().quick
    count = 10_000 if quick else 100_000
    sources = rows(count)
    ready, estimating = [change(row) for row in sources], encoder.changes(count, encoder.SEED)
    ways: dict[str, tuple[Callable[[], Iterable[DataChange]], Callable[[Record, int], bytes]]] = {
        "send": (lambda: ready, codec.encode),
        "make and send": (lambda: map(change, sources), codec.encode),
        "send with estimates": (lambda: estimating, codec.encode),
        "send with estimates, fastavro's encoder": (lambda: estimating, codec.encode_with_fastavro),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lowmark-bench-"))
        broker = stack.enter_context(
            LocalBroker.start(Path(folder), JarStore.from_environment(os.environ))
        )
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "bench", kafka_partitions=4)
        for _ in range(ROUNDS):
            for way, (changes, encode) in ways.items():
                rates[way].append(rate(kafka, "bench", count, changes(), encode))
    print(*machine.facts(), sep="\n")
    print(f"{count} changes a round")
    for way, found in rates.items():
        print(spread(way, found, "changes/s and core"))
    send, make_and_send, ours, fastavro = (max(found) for found in rates.values())
    return finish(
        [
            Figure("producer_send_changes_per_s_and_core", send, "105000"),
            Figure("producer_make_and_send_changes_per_s_and_core", make_and_send, "45000"),
            Figure("producer_changes_per_s_and_core", ours),
            Figure("producer_with_fastavro_changes_per_s_and_core", fastavro),
            Figure("producer_gain_of_the_encoder", ours / fastavro),
        ],
        validate_record=not quick,
    )


if __name__ == "__main__":
    raise SystemExit(main())
