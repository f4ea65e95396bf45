"""Everything goes out: changes in disorder and some twice, heartbeats as far as they are true, and poison in between.

The producer announces the stream partitions by itself.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from connector.cli.demo.compare import SentPoison
from connector.cli.demo.delivery import Disorder, disordered
from connector.cli.demo.poison import poison
from connector.deadletter import Position
from connector.kafka.producer import ChangeProducer
from connector.kafka.raw import RawRecord, send_raw_records
from connector.model import DataChange, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from connector.cli.demo.delivery import Mark
    from connector.cli.demo.source import Source
    from connector.config import KafkaConfig
    from connector.kafka.topics import TopicFacts

POISON_ROUNDS: Final = 5
_TARGETS: Final = 200


@dataclass(slots=True)
class Published:
    """What went in: by table, the changes there are and how often one was sent; the control records; and the poison."""

    changes: Counter[str] = field(default_factory=Counter)
    deliveries: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    control_records: int = 0
    poison: list[SentPoison] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def records(self) -> int:
        """All Kafka records."""
        return self.deliveries.total() + self.control_records + len(self.poison)


def publish(kafka: KafkaConfig, topic: TopicFacts, sources: Sequence[Source], *, seed: int, watch: Callable[[int], None]) -> Published:
    """Publish all of `sources`, side by side. `watch` gets the number of changes sent so far, every hundred.

    A round of poison goes out after the first window of changes, then whenever the windows have doubled, and at the end, before a
    last heartbeat of every stream partition.
    """
    done = Published()
    began = time.monotonic()
    targets: list[DataChange] = []
    windows = 0
    with ChangeProducer(kafka, topic) as producer:
        for source, step in _side_by_side(sources, done, seed):
            if isinstance(step, DataChange):
                producer.send(step)
                done.deliveries[source.table] += 1
                if done.deliveries.total() % 100 == 1:
                    targets = [*targets[1 - _TARGETS :], step]
                    watch(done.deliveries.total())
                continue
            for stream_partition in source.stream_partitions:
                producer.send(Heartbeat(stream_partition, step.timestamp, str(step.timestamp).encode()))
                done.control_records += producer.kafka_partitions
            windows += 1
            if windows in {2**exponent for exponent in range(POISON_ROUNDS - 1)}:
                done.poison += _send_poison(kafka, topic, sources, targets, seed + windows)
        done.poison += _send_poison(kafka, topic, sources, targets, seed)
        # All is sent: the stream is complete up to now, for the source whose history ended years ago, too.
        now = time.time_ns() // 1000
        for stream_partition in (name for source in sources for name in source.stream_partitions):
            producer.send(Heartbeat(stream_partition, now, str(now).encode()))
            done.control_records += producer.kafka_partitions
        done.control_records += producer.announced * producer.kafka_partitions
    done.seconds = time.monotonic() - began
    return done


def _side_by_side(sources: Sequence[Source], done: Published, seed: int) -> Iterator[tuple[Source, DataChange | Mark]]:
    """The steps of all sources in turn, until the last has ended."""
    plans = [(source, disordered(_counted(source, done), Disorder(), seed)) for source in sources]
    while plans:
        for plan in list(plans):
            source, steps = plan
            step = next(steps, None)
            if step is None:
                plans.remove(plan)
            else:
                yield source, step


def _counted(source: Source, done: Published) -> Iterable[tuple[DataChange, ...]]:
    for transaction in source.transactions:
        done.transactions += 1
        done.changes[source.table] += len(transaction)
        yield transaction


def _send_poison(
    kafka: KafkaConfig, topic: TopicFacts, sources: Sequence[Source], targets: Sequence[DataChange], seed: int
) -> list[SentPoison]:
    if not targets:
        return []
    made = poison(
        targets,
        kafka_partitions=topic.kafka_partitions,
        now=time.time_ns() // 1000,
        seed=seed,
        unreadable={source.table: source.unreadable for source in sources},
    )
    places = send_raw_records(kafka, topic.topic, [RawRecord(one.key, one.value, one.headers) for one in made])
    return [
        SentPoison(one, Position(topic.topic, topic.topic_id, kafka_partition, offset))
        for one, (kafka_partition, offset) in zip(made, places, strict=True)
    ]
