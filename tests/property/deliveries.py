"""A source whose change stream splits, merges and sends heartbeats, Kafka partitions that fill at
different speeds, and a reader.

The source follows REC-18, and the simulation knows the records in flight. All random choices come
from a `random.Random`. Times come from a clock that moves only now and then, so that many are
equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import count, pairwise
from random import Random

from connector.records.model import ChildPartition, ChildPartitions
from connector.watermarks.frontier import BatchClaims, LineageRecord
from connector.watermarks.lineage import Announcements
from connector.watermarks.stream_partition import KeyRange

RETENTION = 20


@dataclass(frozen=True)
class Sent:
    """A record in flight or in Kafka: a change at `commit_timestamp`, a heartbeat (0), or lineage.
    `again`: it was delivered before.
    """

    stream_partition: str
    kafka_partitions: int
    commit_timestamp: int = 0
    claim: int = 0
    lineage: ChildPartitions | None = None
    again: bool = False


@dataclass
class Producer:
    """One stream partition at the source. Its new changes are not older than `floor`."""

    name: str
    roots: frozenset[str]
    keys: KeyRange
    floor: int
    kafka_partitions: int
    unacknowledged: dict[int, deque[Sent]] = field(default_factory=dict)
    announcements: Announcements = field(default_factory=lambda: Announcements(RETENTION))
    has_ended: bool = False

    def send(self, record: Sent, kafka_partition: int) -> None:
        self.unacknowledged.setdefault(kafka_partition, deque()).append(record)

    def send_everywhere(self, record: Sent) -> None:
        for k in range(self.kafka_partitions):
            self.send(record, k)

    @property
    def is_over(self) -> bool:
        return self.has_ended and not any(self.unacknowledged.values())

    def oldest_change_in_flight(self) -> int:
        flying = [
            record.commit_timestamp
            for queue in self.unacknowledged.values()
            for record in queue
            if record.commit_timestamp
        ]
        return min(flying, default=2**63)


def _control(root: str, kafka_partitions: int) -> Producer:
    return Producer(root, frozenset([root]), KeyRange(b"", None), 0, kafka_partitions)


class Simulation:
    """`logs` are the Kafka partitions. `step` makes one event. `finish` brings all records to
    Kafka, with a last heartbeat of each stream partition.

    An announcement has several parts, in any order and some of them twice. Between two parts, there
    may be other records. But Kafka's client gives up after minutes, so no part comes after the
    retention. Some roots are announced once, write one change, and end; others are not
    announced any more after others announce their stream partitions. All this is not so in a
    `steady` simulation, because who reads from the middle may not learn of it.
    """

    def __init__(self, rng: Random, *, roots: int = 1, steady: bool = False) -> None:
        self.rng = rng
        self._steady = steady
        self._ranged = rng.random() < 0.5
        self.loads: list[Producer] = []
        self.clock = rng.randint(1, 5)
        self.logs: list[list[Sent]] = [[] for _ in range(rng.randint(1, 3))]
        self._sequence = count()
        self._names = (f"p{n}" for n in count())
        self.producers: list[Producer] = []
        self.controls = [_control(f"root{n}", len(self.logs)) for n in range(roots)]
        for control in self.controls:
            edges = [
                b"",
                *sorted({bytes([rng.randrange(1, 255)]) for _ in range(rng.randint(0, 2))}),
                None,
            ]
            for start, end in pairwise(edges):
                assert start is not None
                self.producers.append(self._begin(control.roots, KeyRange(start, end), 1))
            self._announce_first(control)

    def step(self) -> None:
        what = self.rng.choices(
            [
                self._change,
                self._deliver,
                self._beat,
                self._split,
                self._merge,
                self._move,
                self._tick,
                self._grow,
                self._learn,
                self._announce_again,
                self._load,
                self._retire,
            ],
            [8, 12, 4, 1, 1, 0.5, 4, 0.3, 1, 1, 0.3, 0.5],
        )[0]
        what()
        for control in self.controls:
            if self._oldest_part(control) < self.clock - RETENTION:
                self._flush(control)

    def finish(self) -> None:
        self.clock += 1
        for producer in [*self.producers, *self.controls, *self.loads]:
            self._flush(producer)
            producer.kafka_partitions = len(self.logs)
        # Of those that a reader knows from an announcement only, the first one after their end may
        # have parts that are still to come. So their end is certain with the second one, which the
        # producer sends by itself. Who reads from the middle may not know their root, and waits for
        # the repetitions of all roots.
        for control in self.controls * (2 if self._steady else 1):
            self._announce_first(control)
            if control.announcements.complete(self.clock):
                for lineage in control.announcements.repeated(self.clock):
                    control.send_everywhere(
                        Sent(control.name, control.kafka_partitions, lineage=lineage)
                    )
            self._flush(control)
        for producer in self._live():
            producer.send_everywhere(
                Sent(producer.name, producer.kafka_partitions, claim=self.clock + 1)
            )
            self._flush(producer)

    def _begin(self, roots: frozenset[str], keys: KeyRange, floor: int) -> Producer:
        return Producer(next(self._names), roots, keys, floor, len(self.logs))

    def _live(self) -> list[Producer]:
        return [producer for producer in self.producers if not producer.has_ended]

    def _change(self) -> None:
        producer = self.rng.choice(self._live())
        if producer.floor > self.clock:
            return
        timestamp = self.rng.randint(producer.floor, self.clock)
        claim = 0
        if self.rng.random() < 0.5:
            estimate = self.rng.randint(producer.floor, self.clock)
            producer.floor = estimate
            claim = min(estimate, timestamp, producer.oldest_change_in_flight())
        k = self.rng.randrange(producer.kafka_partitions)
        producer.send(Sent(producer.name, producer.kafka_partitions, timestamp, claim), k)

    def _beat(self) -> None:
        producer = self.rng.choice(self._live())
        before = min(self.clock + 1, producer.oldest_change_in_flight())
        if producer.floor < before:
            producer.floor = self.rng.randint(producer.floor + 1, before)
            producer.send_everywhere(
                Sent(producer.name, producer.kafka_partitions, claim=producer.floor)
            )

    def _deliver(self) -> None:
        waiting = [
            (producer, k)
            for producer in [*self.producers, *self.controls, *self.loads]
            for k, queue in producer.unacknowledged.items()
            if queue
        ]
        if waiting:
            producer, k = self.rng.choice(waiting)
            if producer in self.controls and self.rng.random() < 0.7:
                return  # a part waits longer than what is sent beside it
            self.logs[k].append(producer.unacknowledged[k].popleft())

    def _flush(self, producer: Producer) -> None:
        for k, queue in producer.unacknowledged.items():
            self.logs[k].extend(queue)
            queue.clear()

    def _oldest_part(self, control: Producer) -> int:
        queues = control.unacknowledged.values()
        parts = [one.lineage.start_timestamp for queue in queues for one in queue if one.lineage]
        return min(parts, default=self.clock)

    def _tick(self) -> None:
        self.clock += self.rng.randint(1, 3)

    def _grow(self) -> None:
        if len(self.logs) < 5:
            self.logs.append([])

    def _learn(self) -> None:
        self.rng.choice([*self.producers, *self.controls]).kafka_partitions = len(self.logs)

    def _split(self) -> None:
        parent = self.rng.choice(self._live())
        start = parent.keys.start + b"\x80"
        if parent.keys.end is None or start < parent.keys.end:
            self._continue(
                [parent], [KeyRange(parent.keys.start, start), KeyRange(start, parent.keys.end)]
            )

    def _merge(self) -> None:
        pairs = [
            (one, other)
            for one in self._live()
            for other in self._live()
            if one.roots == other.roots and one.keys.end == other.keys.start
        ]
        if pairs:
            one, other = self.rng.choice(pairs)
            self._continue([one, other], [KeyRange(one.keys.start, other.keys.end)])

    def _move(self) -> None:
        parent = self.rng.choice(self._live())
        self._continue([parent], [parent.keys])

    def _continue(self, parents: list[Producer], ranges: list[KeyRange]) -> None:
        self.clock += 1
        tokens = tuple(parent.name for parent in parents)
        children = [self._begin(parents[0].roots, keys, self.clock) for keys in ranges]
        said = tuple(self._child(child, tokens) for child in children)
        parts = self._parts(said)
        for parent in parents:
            for part in parts:
                lineage = ChildPartitions(parent.name, self.clock, next(self._sequence), part)
                parent.send_everywhere(Sent(parent.name, parent.kafka_partitions, lineage=lineage))
            parent.has_ended = True
            if len(parts) > 1:
                # The children send nothing before all parts are acknowledged.
                self._flush(parent)
        self.producers += children
        if self.rng.random() < 0.3:
            self._hand_over(children[0])

    def _hand_over(self, child: Producer) -> None:
        """Another process continues with a child, and announces the stream partitions that it
        knows.
        """
        control = _control(child.name, len(self.logs))
        child.roots |= control.roots
        self.controls.append(control)
        self._announce_first(control)

    def _load(self) -> None:
        """A stream partition begins, sends one change, and ends, as that of a commit does."""
        if self._steady:
            return
        self.clock += 2
        load = _control(next(self._names), len(self.logs))
        self.loads.append(load)
        begin = ChildPartitions(load.name, self.clock - 1, 0, (ChildPartition(load.name),))
        load.send_everywhere(Sent(load.name, load.kafka_partitions, lineage=begin))
        self._flush(load)
        k = self.rng.randrange(load.kafka_partitions)
        load.send(self._loaded(load), k)
        end = ChildPartitions(load.name, self.clock + 1, 0, ())
        load.send_everywhere(Sent(load.name, load.kafka_partitions, lineage=end))

    def _loaded(self, load: Producer) -> Sent:
        return Sent(load.name, load.kafka_partitions, self.clock)

    def _retire(self) -> None:
        """A root is not announced any more. Others announce its live stream partitions."""
        control = self.rng.choice(self.controls)
        others = {one.name for one in self.controls} - {control.name}
        below = [one for one in self.producers if control.name in one.roots and not one.is_over]
        if others and not self._steady and all(one.roots & others for one in below):
            self._flush(control)
            self.controls.remove(control)

    def _announce_first(self, control: Producer) -> None:
        """Announce. The announcement is acknowledged before other records are sent."""
        self._announce(control)
        self._flush(control)

    def _announce_again(self) -> None:
        self._announce(self.rng.choice(self.controls))

    def _announce(self, control: Producer) -> None:
        self.clock += 1
        live = [
            producer
            for producer in self.producers
            if control.name in producer.roots and not producer.is_over
        ]
        # It counts for the Kafka partitions that its descendants write to.
        control.kafka_partitions = max(
            control.kafka_partitions,
            *(one.kafka_partitions for one in self.producers if control.name in one.roots),
        )
        said = tuple(self._child(one) for one in live)
        for part in self._parts(said):
            lineage = ChildPartitions(control.name, self.clock, next(self._sequence), part)
            control.send_everywhere(Sent(control.name, control.kafka_partitions, lineage=lineage))
            control.announcements.sent(lineage, self.clock)
        if self._steady:
            self._flush(control)

    def _child(self, one: Producer, parents: tuple[str, ...] = ()) -> ChildPartition:
        keys = (one.keys.start, one.keys.end) if self._ranged else (None, None)
        return ChildPartition(one.name, parents, *keys)

    def _parts(self, children: tuple[ChildPartition, ...]) -> list[tuple[ChildPartition, ...]]:
        """Divide what a record says into several, in any order and some of them twice."""
        parts: list[list[ChildPartition]] = [[] for _ in range(self.rng.randint(1, 3))]
        for child in children:
            self.rng.choice(parts).append(child)
        said = [tuple(part) for part in parts if part]
        again = [part for part in said if self.rng.random() < 0.2]
        return self.rng.sample([*said, *again], len(said) + len(again)) or [()]


@dataclass
class Reader:
    """Reads a few records of some Kafka partitions at a time, from `positions` on.

    `keeps_parts`: it never stops between the parts of an announcement.
    """

    simulation: Simulation
    positions: dict[int, int] = field(default_factory=dict)
    keeps_parts: bool = False

    def begin_in_the_middle(self) -> None:
        self.keeps_parts = True
        self.positions = {
            k: self._end(log, self.simulation.rng.randint(0, len(log)))
            for k, log in enumerate(self.simulation.logs)
        }

    def _end(self, log: list[Sent], end: int) -> int:
        while self.keeps_parts and 0 < end < len(log) and _are_parts(log[end - 1], log[end]):
            end += 1
        return end

    def batch(self, *, everything: bool = False) -> tuple[list[Sent], BatchClaims]:
        """The new changes of a batch, and its claims about watermarks."""
        read: list[tuple[int, Sent]] = []
        for k, log in enumerate(self.simulation.logs):
            start = self.positions.get(k, 0)
            most = self.simulation.rng.choice((0, 1, 5, 20))
            end = (
                len(log)
                if everything
                else self._end(log, self.simulation.rng.randint(start, min(len(log), start + most)))
            )
            read += [(k, record) for record in log[start:end]]
            self.positions[k] = end
        new = [record for _, record in read if record.commit_timestamp and not record.again]
        return new, heard(read, len(self.simulation.logs))


def _are_parts(one: Sent, other: Sent) -> bool:
    return (
        one.lineage is not None
        and other.lineage is not None
        and one.stream_partition == other.stream_partition
        and one.lineage.start_timestamp == other.lineage.start_timestamp
    )


def heard(read: list[tuple[int, Sent]], kafka_partitions: int) -> BatchClaims:
    claims: dict[str, dict[int, int]] = {}
    for k, record in read:
        if record.lineage is None:
            of_one = claims.setdefault(record.stream_partition, {})
            of_one[k] = max(of_one.get(k, 0), record.claim)
    lineage = tuple(
        LineageRecord(k, record.kafka_partitions, record.lineage)
        for k, record in read
        if record.lineage is not None
    )
    return BatchClaims(
        max([kafka_partitions, *(record.kafka_partitions for _, record in read)]), claims, lineage
    )


class Begin(Enum):
    """Where a reader begins: `GROWN` is at the beginning, after Kafka partitions were added."""

    FIRST = "with the first record"
    GROWN = "from the beginning, later"
    MIDDLE = "from the middle"


def batches(
    rng: Random, simulation: Simulation, *, steps: int = 300, begin: Begin = Begin.FIRST
) -> Iterator[tuple[list[Sent], BatchClaims]]:
    """The life of a simulation, batch by batch. The last batch has read everything."""
    reader = Reader(simulation)
    if begin is not Begin.FIRST:
        for _ in range(steps):
            simulation.step()
    if begin is Begin.MIDDLE:
        reader.begin_in_the_middle()
    for _ in range(steps):
        simulation.step()
        if rng.random() < 0.3:
            yield reader.batch()
    simulation.finish()
    yield reader.batch(everything=True)
