"""What goes into the topic: changes out of order, some of them twice, and bad records.

Networks, retries and several producers mix the order of a stream. Here a random number generator
does it, and keeps the rule of a correct producer: after `reached`, no change at or below the
reported time follows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connector import DataChange, KafkaConfig, Reason
from connector.kafka import ChangeConsumer, ChangeProducer, ConsumerRecord
from examples.demo.history import STREAM_PARTITIONS, Commit

WINDOW: Final = 500
"""About this many changes are shuffled together."""
REPEATED: Final = 0.05
"""The share of changes that is sent twice."""
COPIES: Final = 10
"""How many records are damaged, each in every way."""


@dataclass(frozen=True, slots=True)
class Published:
    """What `publish_commits` has sent. `last` is the newest commit, or None if there was none."""

    commits: int = 0
    changes: int = 0
    repeated: int = 0
    last: Commit | None = None

    def __str__(self) -> str:
        return (
            f"{self.commits:,} commits: {self.changes:,} changes out of order, {self.repeated:,} of"
            " them twice"
        )


def publish_commits(
    producer: ChangeProducer, commits: Iterable[Commit], rng: random.Random
) -> Published:
    """Publish commits in windows. After each window, the stream partitions are reported as complete
    up to its last commit, and the producer sends heartbeats.
    """
    done = Published()
    for window in _windows(commits):
        changes = [change for commit in window for change in commit.changes]
        again = [change for change in changes if rng.random() < REPEATED]
        deliveries = changes + again
        rng.shuffle(deliveries)
        for change in deliveries:
            producer.send(change)
        report_complete(producer, window[-1].timestamp)
        done = Published(
            done.commits + len(window),
            done.changes + len(changes),
            done.repeated + len(again),
            window[-1],
        )
    producer.flush()
    return done


def report_complete(producer: ChangeProducer, timestamp: int) -> None:
    """Say that every change up to `timestamp` (microseconds) was sent."""
    for stream_partition in STREAM_PARTITIONS:
        producer.reached(stream_partition, timestamp)


def _windows(commits: Iterable[Commit]) -> Iterator[list[Commit]]:
    window: list[Commit] = []
    for commit in commits:
        window.append(commit)
        if sum(len(each.changes) for each in window) >= WINDOW:
            yield window
            window = []
    if window:
        yield window


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A bad record at its coordinates in the topic, and the reason for which it must be
    rejected.
    """

    kafka_partition: int
    offset: int
    reason: Reason
    key: bytes | None
    value: bytes | None


_Damage = Callable[[bytes, bytes], tuple[bytes, bytes | None]]

KINDS: Final[dict[str, tuple[Reason, _Damage]]] = {
    "JSON": (Reason.UNKNOWN_FRAMING, lambda key, _: (key, b'{"delete": "everything"}')),
    "no value": (Reason.UNKNOWN_FRAMING, lambda key, _: (key, None)),
    "an unknown schema": (
        Reason.UNKNOWN_SCHEMA,
        lambda key, value: (key, value[:2] + bytes(8) + value[10:]),
    ),
    "a truncated record": (Reason.UNDECODABLE, lambda key, value: (key, value[:-1])),
    "the key of another row": (Reason.KEY_MISMATCH, lambda _, value: (b"another row", value)),
}
"""Ways to damage the key and the value of a record. Each has its own reason of rejection."""


def send_bad_records(kafka: KafkaConfig, topic: str) -> list[BadRecord]:
    """Damage records of the topic in every way, and send the results.

    `ChangeProducer` sends no bad record, so this uses a plain Kafka client, as a program without
    lowmark does.
    """
    with ChangeConsumer(kafka, topic, bounded=True) as consumer:
        changes = (
            each.source
            for each in consumer
            if isinstance(each, ConsumerRecord) and isinstance(each.record, DataChange)
        )
        originals = list(islice(changes, COPIES))
    sent: list[BadRecord] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for reason, damage in KINDS.values():
        for original in originals:
            assert original.key is not None
            assert original.value is not None
            key, value = damage(original.key, original.value)

            def acknowledged(
                error: KafkaError | None, message: Message, reason: Reason = reason
            ) -> None:
                partition, offset = message.partition(), message.offset()
                if error is not None or partition is None or offset is None:
                    raise KafkaException(error)
                sent.append(BadRecord(partition, offset, reason, message.key(), message.value()))

            producer.produce(topic, value, key, on_delivery=acknowledged)
    if undelivered := producer.flush(60):
        raise TimeoutError(f"{undelivered} bad records were not delivered")
    return sent
