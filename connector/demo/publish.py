"""Publishes all records of the demo: changes out of order and some twice, heartbeats, and bad
records between them.

It announces the stream partitions with their key ranges, and reports when one ends, as a source
does that knows this (WMK-6, WMK-7). While it publishes window by window, it sends a heartbeat for
each window itself. After that, it only reports how far it is, and the producer sends heartbeats
(PUB-1).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from connector.clock import now_us
from connector.demo.compare import SentPoison
from connector.demo.delivery import Disorder, Mark, steps
from connector.demo.poison import Poison, poison
from connector.demo.raw_records import RawRecord, send_raw_records
from connector.records.codec import framed
from connector.records.model import ChildPartition, ChildPartitions, DataChange, Heartbeat
from connector.records.rejection import Position, Reason
from connector.watermarks.stream_partition import KeyRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from connector.config.settings import KafkaConfig
    from connector.demo.source import Source
    from connector.kafka.produce.producer import ChangeProducer
    from connector.kafka.topics import TopicFacts

POISON_ROUNDS: Final = 5
_TARGETS: Final = 200


@dataclass(slots=True)
class Published:
    """The records that were published.

    `changes` and `deliveries` count, by table, the changes and how often one was sent. `commits`
    has, by table, the commit timestamp and id of every transaction so far, in order. `replayed`
    counts the records that a replay sends to the topic.
    """

    changes: Counter[str] = field(default_factory=Counter)
    deliveries: Counter[str] = field(default_factory=Counter)
    commits: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    control_records: int = 0
    replayed: int = 0
    poison: list[SentPoison] = field(default_factory=list)

    @property
    def transactions(self) -> int:
        return sum(map(len, self.commits.values()))

    @property
    def records(self) -> int:
        """All Kafka records."""
        return self.deliveries.total() + self.control_records + len(self.poison) + self.replayed


@dataclass(slots=True)
class Silence:
    """A stream partition that sends no record for a while, and the changes that it has not sent."""

    stream_partition: str
    kept: list[DataChange] = field(default_factory=list)


@dataclass(slots=True)
class Mistake:
    """A change of a table that is sent once, with the key of another row, and not sent
    otherwise.
    """

    table: str
    change: DataChange | None = None
    sent: SentPoison | None = None


@dataclass(slots=True)
class Delivery:
    """The state of the publication of a source: the remaining steps, and the stream partitions that
    are live now.
    """

    source: Source
    steps: Iterator[DataChange | ChildPartitions | Mark]
    live: set[str]
    sent: Counter[str] = field(default_factory=Counter)
    mark: int = 0


class Publisher:
    """Publishes sources step by step. `done` has all that was published so far.

    The source `told` is divided into `parts`, counted in transactions, and into windows of `window`
    transactions. Changes of different parts are not mixed. `say` is called when a stream partition
    ends. Bad records are sent after the first window of changes, then each time the number of
    windows has doubled, and at the end.
    """

    def __init__(
        self,
        producer: ChangeProducer,
        kafka: KafkaConfig,
        topic: TopicFacts,
        sources: Sequence[Source],
        *,
        seed: int,
        told: Source,
        parts: tuple[int, ...],
        window: int,
        say: Callable[[str], None],
    ) -> None:
        self._producer, self._kafka, self._topic, self._sources = producer, kafka, topic, sources
        self._seed = seed
        self._say = say
        self._watch: Callable[[int], None] = lambda count: None
        self._targets: list[DataChange] = []
        self._mistake: Mistake | None = None
        self._windows = 0
        self._by_itself = 0
        self._reports = False
        self.done = Published()
        self.deliveries: dict[str, Delivery] = {}
        for source in sources:
            transactions = self._counted(source)
            if source is told:
                going = steps(
                    transactions, source.layouts, Disorder(transactions=window), seed, parts
                )
            else:
                going = steps(transactions, source.layouts, Disorder(), seed)
            self.deliveries[source.table] = Delivery(
                source, going, {one.token for one in source.layouts[0]}
            )

    def begin(self) -> None:
        """Announce the live stream partitions. If a source begins later, also say that it has no
        earlier change.
        """
        for delivery in self.deliveries.values():
            source = delivery.source
            self._control(
                ChildPartitions(source.root, max(1, source.begins - 1), 0, source.layouts[0])
            )
            if source.begins > 1:
                self._beat(delivery, source.begins - 1)

    def windows(self, table: str, silence: Silence | None = None) -> Iterator[Mark]:
        """Publish the source of a table window by window, with heartbeats. Yields the time up to
        which they are complete.

        All records are acknowledged then, except those that `silence` keeps.
        """
        while (step := self._take(self.deliveries[table], silence)) is not None:
            if isinstance(step, Mark):
                self._producer.flush()
                yield step

    def fall_silent(self, table: str) -> Silence:
        """Choose the stream partition that sends no records in the next windows: the live one with
        the fewest changes.
        """
        delivery = self.deliveries[table]
        while isinstance(step := next(delivery.steps, None), ChildPartitions):
            self._end(delivery, step)
        if step is not None:
            delivery.steps = chain([step], delivery.steps)
        return Silence(min(delivery.live, key=lambda name: (delivery.sent[name], name)))

    def speak_again(self, table: str, silence: Silence) -> None:
        """Send the changes that `silence` kept, and a heartbeat up to the last window of the
        others.
        """
        delivery = self.deliveries[table]
        for change in silence.kept:
            self._change(delivery, change)
        self._heartbeat(silence.stream_partition, delivery.mark)
        self._producer.flush()

    def misdirect(self, table: str) -> Mistake:
        """Send the next change of a table with the key of another row, as a wrong producer might
        do.
        """
        self._mistake = Mistake(table)
        return self._mistake

    def rest(self, watch: Callable[[int], None]) -> None:
        """Publish the rest of all sources side by side, bad records, and a last heartbeat of every
        stream partition.

        `watch` gets the number of changes sent so far, after every hundred. The last heartbeats are
        sent when the producer is closed. Call `finish` after that.
        """
        self._watch, self._reports = watch, True
        going = list(self.deliveries.values())
        while going:
            going = [delivery for delivery in going if self._take(delivery) is not None]
        self._poison(self._seed)
        # Everything is sent. So the stream is complete up to now, also for a source whose history
        # ended years ago.
        now = now_us()
        for delivery in self.deliveries.values():
            self._beat(delivery, now)
        self._producer.flush()
        self._count_announced()

    def finish(self) -> None:
        """Count what the producer has sent by itself until it was closed."""
        self._count_announced()

    def _take(
        self, delivery: Delivery, silence: Silence | None = None
    ) -> DataChange | ChildPartitions | Mark | None:
        """Publish the next step of a source and return it. None: there are no more steps."""
        step = next(delivery.steps, None)
        match step:
            case DataChange() if (
                silence is not None and step.stream_partition == silence.stream_partition
            ):
                silence.kept.append(step)
            case DataChange():
                self._change(delivery, step)
            case ChildPartitions() if silence is not None:
                delivery.steps = chain(
                    [step], delivery.steps
                )  # it may end the silent stream partition, which has more changes to send
                return None
            case ChildPartitions():
                self._end(delivery, step)
            case Mark():
                delivery.mark = step.timestamp
                self._beat(delivery, step.timestamp, silence)
                self._windows += 1
                if self._windows in {2**exponent for exponent in range(POISON_ROUNDS - 1)}:
                    self._poison(self._seed + self._windows)
                self._count_announced()
        return step

    def _change(self, delivery: Delivery, change: DataChange) -> None:
        mistake = self._mistake
        if (
            mistake is not None
            and mistake.table == delivery.source.table
            and mistake.change in (None, change)
        ):
            self._misdirect(mistake, change)
            return
        self._producer.send(change)
        delivery.sent[change.stream_partition] += 1
        self.done.deliveries[delivery.source.table] += 1
        if self.done.deliveries.total() % 100 == 1:
            self._targets = [*self._targets[1 - _TARGETS :], change]
            self._watch(self.done.deliveries.total())

    def _misdirect(self, mistake: Mistake, change: DataChange) -> None:
        if mistake.change is None:
            value = framed(change, self._topic.kafka_partitions)
            poison = Poison(
                "an honest change under the key of another row",
                b"another row",
                value,
                (),
                Reason.KEY_MISMATCH,
            )
            mistake.change, (mistake.sent,) = change, self._send([poison])

    def _end(self, delivery: Delivery, report: ChildPartitions) -> None:
        self._say(
            f"stream partition {report.stream_partition} ends;"
            f" {' and '.join(map(_shown, report.children))} follow"
        )
        self._control(report)
        delivery.live = delivery.live - {report.stream_partition} | {
            child.token for child in report.children
        }

    def _beat(self, delivery: Delivery, timestamp: int, silence: Silence | None = None) -> None:
        for name in sorted(delivery.live):
            if silence is None or name != silence.stream_partition:
                self._heartbeat(name, timestamp)

    def _heartbeat(self, stream_partition: str, timestamp: int) -> None:
        token = str(timestamp).encode()
        if self._reports:
            self._producer.reached(stream_partition, timestamp, token)
        else:
            self._control(Heartbeat(stream_partition, timestamp, token))

    def _control(self, record: Heartbeat | ChildPartitions) -> None:
        self._producer.send(record)
        self.done.control_records += self._producer.kafka_partitions

    def _count_announced(self) -> None:
        """Count the control records that the producer has sent by itself."""
        by_itself = self._producer.announced + self._producer.heartbeats
        self.done.control_records += (by_itself - self._by_itself) * self._producer.kafka_partitions
        self._by_itself = by_itself

    def _counted(self, source: Source) -> Iterable[tuple[DataChange, ...]]:
        commits = self.done.commits.setdefault(source.table, [])
        for transaction in source.transactions:
            facts = transaction[0].transaction
            assert facts is not None, transaction[0]
            commits.append((transaction[0].commit_timestamp, facts.server_transaction_id))
            self.done.changes[source.table] += len(transaction)
            yield transaction

    def _poison(self, seed: int) -> None:
        if not self._targets:
            return
        made = poison(
            self._targets,
            kafka_partitions=self._topic.kafka_partitions,
            now=now_us(),
            seed=seed,
            unreadable={source.table: source.unreadable for source in self._sources},
        )
        self._send(made)

    def _send(self, made: list[Poison]) -> list[SentPoison]:
        places = send_raw_records(
            self._kafka,
            self._topic.topic,
            [RawRecord(one.key, one.value, one.headers) for one in made],
        )
        sent = [
            SentPoison(
                one, Position(self._topic.topic, self._topic.topic_id, kafka_partition, offset)
            )
            for one, (kafka_partition, offset) in zip(made, places, strict=True)
        ]
        self.done.poison += sent
        return sent


def _shown(child: ChildPartition) -> str:
    return f"{child.token} {KeyRange(child.start_key or b'', child.end_key)}"
