"""The simulation of `deliveries.py` with a process that announces as `ChangeProducer` does, dies,
and is started again.

One process at a time writes all stream partitions. When it dies, its records in flight are lost.
The next one knows no lineage. It repeats the records of the source from some time on, which is not
later than the first lost record.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from random import Random

from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteFamily,
    Heartbeat,
    Record,
)
from connector.watermarks.lineage import Announcements
from connector.watermarks.stream_partition import KeyRange
from tests.property.deliveries import Producer, Sent, Simulation

RETENTION = 20
AHEAD = 1_000_000
"""How far the source is behind the process's clock."""

RESUMES_WITHIN = 10
ROOT = "root0"


@dataclass(eq=False)
class Told:
    """A record of the source, in order: for one Kafka partition or all, its time, and the stream
    partitions that were live before.
    """

    record: Sent
    kafka_partition: int | None
    clock: int
    live: tuple[Producer, ...]
    is_delivered: bool = False


class Speaker(Producer):
    """A stream partition whose records go through the process."""

    def __init__(
        self,
        simulation: ProcessSimulation,
        name: str,
        roots: frozenset[str],
        keys: KeyRange,
        floor: int,
    ) -> None:
        super().__init__(name, roots, keys, floor, len(simulation.logs))
        self._simulation = simulation

    def send(self, record: Sent, kafka_partition: int) -> None:
        self._simulation.tell(record, kafka_partition)

    def send_everywhere(self, record: Sent) -> None:
        self._simulation.tell(record, None)

    def oldest_change_in_flight(self) -> int:
        flying = [
            sent
            for queue in self._simulation.queues.values()
            for sent, _ in queue
            if sent.stream_partition == self.name
        ]
        return min(
            (sent.commit_timestamp for sent in flying if sent.commit_timestamp), default=2**63
        )


class ProcessSimulation(Simulation):
    """`is_told`: when a process begins, its caller announces one root, and all live stream
    partitions with their keys. Otherwise the process gets no announcement.
    """

    def __init__(self, rng: Random, *, is_told: bool, dies: bool) -> None:
        self.is_told, self.dies = is_told, dies
        self.told: list[Told] = []
        self.queues: dict[int, deque[tuple[Sent, Told | None]]] = {}
        self._begin_to_announce()
        super().__init__(rng)
        self._ranged = True

    @property
    def named(self) -> frozenset[str]:
        """The roots, as a configuration would name them."""
        return frozenset([ROOT]) if self.is_told else frozenset(self._first_names)

    def _begin_to_announce(self) -> None:
        """`announced` are the roots that this process has announced."""
        self.announcements, self.announced = Announcements(RETENTION), set[str]()

    def finish(self) -> None:
        self.clock += 1
        for producer in self._live():
            producer.kafka_partitions = len(self.logs)
            producer.send_everywhere(
                Sent(producer.name, producer.kafka_partitions, claim=self.clock + 1)
            )
        self.announcements.complete(self._now)
        self._announce(
            self.announcements.due(as_record(self.told[-1].record), self._now + RETENTION)
        )
        self._deliver_all()

    def tell(self, record: Sent, kafka_partition: int | None) -> None:
        told = Told(self._as_told(record), kafka_partition, self.clock, tuple(self._live()))
        self.told.append(told)
        self._send(told)

    def _as_told(self, record: Sent) -> Sent:
        if record.lineage is None or self.is_told:
            return record
        # If a root was announced without keys, the keys cannot cover the key space.
        children = tuple(
            ChildPartition(child.token, child.parent_partition_tokens)
            for child in record.lineage.children
        )
        return replace(record, lineage=replace(record.lineage, children=children))

    @property
    def _now(self) -> int:
        return self.clock + AHEAD

    def _send(self, told: Told) -> None:
        record = as_record(told.record)
        self._announce(self.announcements.due(record, self._now))
        if isinstance(record, ChildPartitions):
            self.announcements.sent(record, self._now)
        places = (
            range(told.record.kafka_partitions)
            if told.kafka_partition is None
            else [told.kafka_partition]
        )
        for k in places:
            self.queues.setdefault(k, deque()).append(
                (replace(told.record, again=told.is_delivered), told)
            )

    def _announce(self, announcements: list[ChildPartitions]) -> None:
        for announcement in announcements:
            self.announced.add(announcement.stream_partition)
            for k in range(len(self.logs)):
                sent = Sent(announcement.stream_partition, len(self.logs), lineage=announcement)
                self.queues.setdefault(k, deque()).append((sent, None))

    def _begin(self, roots: frozenset[str], keys: KeyRange, floor: int) -> Producer:
        return Speaker(self, next(self._names), roots, keys, floor)

    def _announce_first(self, control: Producer) -> None:
        """All stream partitions send records before a reader starts. A reader cannot wait for one
        that is announced later.
        """
        self._first_names = [producer.name for producer in self.producers]
        self.clock += 1
        if self.is_told:
            self._tell_who_lives(self.clock - 1, tuple(self.producers), 0)
        for producer in self.producers:
            producer.floor = self.clock
            producer.send_everywhere(
                Sent(producer.name, producer.kafka_partitions, claim=producer.floor)
            )
        self._deliver_all()

    def _tell_who_lives(self, clock: int, live: tuple[Producer, ...], sequence: int) -> None:
        """The timer may tick between the parts. The process goes on when all are acknowledged."""
        children = tuple(ChildPartition(one.name, (), one.keys.start, one.keys.end) for one in live)
        for part in self._parts(children):
            announcement = ChildPartitions(ROOT, clock, sequence, part)
            self.announcements.sent(announcement, self._now)
            self._announce([announcement])
            sequence += 1
            if ticks := [one for one in live if self.announcements.knows(one.name)]:
                heartbeat = Heartbeat(self.rng.choice(ticks).name, clock)
                self._announce(self.announcements.due(heartbeat, self._now, is_automatic=True))
        self.announcements.complete(self._now)
        self._deliver_all()

    def _announce_again(self) -> None:
        """The process dies instead. Announcements are repeated by default."""
        if not self.dies:
            if self.is_told:
                self.clock += 1
                self._tell_who_lives(self.clock, tuple(self._live()), 0)
            return
        lost = {told for queue in self.queues.values() for _, told in queue if told is not None}
        first_lost = min(
            (number for number, told in enumerate(self.told) if told in lost),
            default=len(self.told),
        )
        # Records that readers have forgotten are not repeated. The horizon of readers is earlier.
        first = next(
            (
                number
                for number in range(first_lost)
                if self.told[number].clock > self.clock - RESUMES_WITHIN
            ),
            first_lost,
        )
        since = self.rng.randint(max(first, first_lost - 15), first_lost)
        self.queues.clear()
        self._begin_to_announce()
        again = self.told[since:]
        if self.is_told:
            self._tell_who_lives(
                again[0].clock - 1 if again else self.clock,
                again[0].live if again else tuple(self._live()),
                since,
            )
        for told in again:
            if told.kafka_partition is None:
                told.record = replace(
                    told.record,
                    kafka_partitions=max(
                        told.record.kafka_partitions, self.producers[0].kafka_partitions
                    ),
                )
            self._send(told)

    def _hand_over(self, child: Producer) -> None:
        pass

    def _load(self) -> None:
        pass

    def _retire(self) -> None:
        pass

    def _deliver(self) -> None:
        waiting = [k for k, queue in self.queues.items() if queue]
        if waiting:
            self._deliver_one(self.rng.choice(waiting))

    def _deliver_all(self) -> None:
        for k, queue in self.queues.items():
            while queue:
                self._deliver_one(k)

    def _deliver_one(self, k: int) -> None:
        sent, told = self.queues[k].popleft()
        self.logs[k].append(sent)
        if told is not None:
            told.is_delivered = True


def as_record(sent: Sent) -> Record:
    if sent.lineage is not None:
        return sent.lineage
    if not sent.commit_timestamp:
        return Heartbeat(sent.stream_partition, sent.claim - 1)
    return DataChange(
        stream_partition=sent.stream_partition,
        table="t",
        row_key=b"k",
        commit_timestamp=sent.commit_timestamp,
        entries=(DeleteFamily("f"),),
    )
