"""A source whose transactions have parts in several stream partitions and Kafka partitions, and a
program that reads them whole, acknowledges, stores its state, and dies. Beside them, a write stream
whose rows are staged and released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

from connector.records.model import (
    DataChange,
    Heartbeat,
    OffsetRange,
    Release,
    SetCell,
    Transaction,
    WriteStreamOffset,
)
from connector.records.rejection import Position, Reason, Rejection
from connector.watermarks.reader_state import ReaderState
from connector.watermarks.tracker import WatermarkTracker
from connector.watermarks.transactions import (
    Item,
    Late,
    Rejected,
    Released,
    Staged,
    TransactionAssembler,
    WholeTransaction,
)
from tests.property.deliveries import Producer, Sent, Simulation

ARRIVAL = 2**50
_BAD = Rejection(Reason.UNDECODABLE, "bad")


@dataclass(frozen=True)
class SentChange(Sent):
    """A change in flight. A bad one cannot be read."""

    change: DataChange | None = None
    is_bad: bool = False


@dataclass(frozen=True)
class SentRow(Sent):
    """A staged row. It is never in flight, because its release is sent when it is in Kafka."""

    row: DataChange | None = None


@dataclass(frozen=True)
class SentRelease(Sent):
    """One copy of a release."""

    release: Release | None = None


class TransactionSimulation(Simulation):
    """Changes are parts of transactions, or have none. Some are sent again, and some are bad. With
    `write_streams`, the rows of one write stream are released at a time of any producer.
    """

    def __init__(self, rng: Random, *, roots: int = 1, write_streams: bool = False) -> None:
        super().__init__(rng, roots=roots)
        self._has_write_streams = write_streams
        self._count = self._rows = self._flushed = 0

    def step(self) -> None:
        super().step()
        if self.rng.random() < 0.03:
            self._send_again()
        if self._has_write_streams and self.rng.random() < 0.2:
            self._stage()
        if self._has_write_streams and self.rng.random() < 0.08:
            self._release()

    def _stage(self) -> None:
        row = DataChange(
            stream_partition="session",
            table="t",
            row_key=b"row",
            commit_timestamp=0,
            entries=(SetCell("f", b"q", b"v", 1),),
            write_stream=WriteStreamOffset("s/w", self._rows),
        )
        self._rows += 1
        self.rng.choice(self.logs).append(SentRow("session", len(self.logs), row=row))

    def _release(self) -> None:
        ready = [producer for producer in self._live() if producer.floor <= self.clock]
        if not ready or self._flushed == self._rows:
            return
        producer = self.rng.choice(ready)
        timestamp = self.rng.randint(producer.floor, self.clock)
        upto = self.rng.randint(self._flushed + 1, self._rows)
        release = Release(producer.name, timestamp, (OffsetRange("s/w", self._flushed, upto),))
        self._flushed = upto
        producer.send_everywhere(
            SentRelease(producer.name, producer.kafka_partitions, timestamp, release=release)
        )

    def _change(self) -> None:
        live = self._live()
        ready = [producer for producer in live if producer.floor <= self.clock]
        if not ready:
            return
        self._count += 1
        number = self._count
        parts = self.rng.choice((0, 0, 1, 2, 3, 5))
        writers = [self.rng.choice(ready) for _ in range(max(1, parts))]
        timestamp = self.rng.randint(max(one.floor for one in writers), self.clock)
        sequences = sorted(self.rng.sample(range(20), max(1, parts)))
        for producer, sequence in zip(writers, sequences, strict=True):
            claim = 0
            if self.rng.random() < 0.3:
                estimate = self.rng.randint(producer.floor, timestamp)
                producer.floor = estimate
                claim = min(estimate, producer.oldest_change_in_flight())
            change = DataChange(
                stream_partition=producer.name,
                table="t",
                row_key=b"%d/%d" % (number, sequence),
                commit_timestamp=timestamp,
                entries=(SetCell("f", b"q", b"v"),),
                estimated_low_watermark=claim,
                transaction=(
                    Transaction(
                        f"t{number % 7}/{number}",
                        sequence,
                        number_of_records_in_transaction=parts,
                    )
                    if parts
                    else None
                ),
            )
            sent = SentChange(
                producer.name,
                producer.kafka_partitions,
                timestamp,
                claim,
                change=change,
                is_bad=self.rng.random() < 0.03,
            )
            producer.send(sent, self.rng.randrange(producer.kafka_partitions))

    def _loaded(self, load: Producer) -> Sent:
        self._count += 1
        change = DataChange(
            stream_partition=load.name,
            table="t",
            row_key=b"%d" % self._count,
            commit_timestamp=self.clock,
            entries=(SetCell("f", b"q", b"v"),),
        )
        return SentChange(load.name, load.kafka_partitions, self.clock, change=change)

    def _send_again(self) -> None:
        k = self.rng.randrange(len(self.logs))
        sent = [one for one in self.logs[k] if isinstance(one, SentChange) and not one.is_bad]
        if sent:
            one = self.rng.choice(sent)
            where = self.rng.choice((k, k, self.rng.randrange(len(self.logs))))
            self.logs[where].append(replace(one, claim=0, again=True))


MakeAssembler = Callable[[WatermarkTracker, ReaderState | None], TransactionAssembler]


def new_assembler(
    tracker: WatermarkTracker, state: ReaderState | None = None
) -> TransactionAssembler:
    return TransactionAssembler(tracker, "t", "id", state=state)


@dataclass
class Program:
    """Reads a simulation, and keeps what it acknowledged. Its store has a state and what it had
    then.
    """

    simulation: TransactionSimulation
    make: MakeAssembler = new_assembler
    staged: bool = True
    kept: list[Item] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._store: tuple[bytes | None, list[Item]] = None, []
        self._begin()

    def step(self) -> None:
        rng = self.simulation.rng
        what = rng.choices(
            [self._read, self._advance, self._take, self._acknowledge, self._keep, self._die],
            [10, 4, 6, 3, 0.5, 0.3],
        )[0]
        what()

    def step_without_restart(self) -> None:
        what = self.simulation.rng.choices(
            [self._read, self._advance, self._take, self._acknowledge], [10, 4, 6, 3]
        )[0]
        what()

    def finish(self) -> None:
        while self._read_one(range(len(self.simulation.logs))):
            pass
        self._advance()
        while (item := self._pop()) is not None:
            self._pending.append(item)
        if self._pending:
            self._acknowledge_to(len(self._pending))

    def _begin(self) -> None:
        stored, self.kept = self._store[0], list(self._store[1])
        state = None if stored is None else ReaderState.from_bytes(stored)
        self._tracker = (
            WatermarkTracker() if state is None else WatermarkTracker(frontier=state.frontier)
        )
        self._assembler = self.make(self._tracker, state)
        self._at = {} if state is None else {k: at[0] for k, at in state.offsets.items()}
        self._pending: list[Item] = []

    def _read(self) -> None:
        k = self.simulation.rng.randrange(len(self.simulation.logs))
        for _ in range(self.simulation.rng.choice((1, 3, 10))):
            self._read_one([k])

    def _read_one(self, places: range | list[int]) -> bool:
        for k in places:
            offset, log = self._at.get(k, 0), self.simulation.logs[k]
            if offset < len(log):
                self._hear(log[offset], k, offset)
                self._at[k] = offset + 1
                return True
        return False

    def _hear(self, sent: Sent, k: int, offset: int) -> None:
        position = Position("t", "id", k, offset)
        if isinstance(sent, SentChange):
            assert sent.change is not None
            if sent.is_bad:
                self._assembler.reject(_BAD, position)
                return
            claimed = replace(sent.change, estimated_low_watermark=sent.claim)
            self._tracker.add(claimed, k, sent.kafka_partitions, ARRIVAL)
            self._assembler.add(sent.change, position, 10)
            return
        if isinstance(sent, SentRow | SentRelease):
            self._hear_write_stream(sent, position)
            return
        record = sent.lineage or Heartbeat(sent.stream_partition, sent.claim - 1)
        self._tracker.add(record, k, sent.kafka_partitions, ARRIVAL)
        self._assembler.reached(k, offset + 1)

    def _hear_write_stream(self, sent: SentRow | SentRelease, position: Position) -> None:
        record = sent.row if isinstance(sent, SentRow) else sent.release
        assert record is not None
        self._tracker.add(record, position.kafka_partition, sent.kafka_partitions, ARRIVAL)
        if isinstance(record, Release) and position.kafka_partition == 0:
            self._assembler.add(record, position, 10)
        elif isinstance(record, DataChange) and self.staged:
            self._assembler.add_staged(record, position)
        else:
            self._assembler.reached(position.kafka_partition, position.offset + 1)

    def _advance(self) -> None:
        self._tracker.advance(0, len(self.simulation.logs))
        self._assembler.release()

    def _pop(self) -> Item | None:
        item = self._assembler.pop()
        if isinstance(item, WholeTransaction | Released):
            low = self._tracker.low_watermark
            assert low is not None
            assert item.commit_timestamp < low, f"{item} is above the low watermark {low}"
        return item

    def _take(self) -> None:
        if (item := self._pop()) is not None:
            self._pending.append(item)

    def _acknowledge(self) -> None:
        if self._pending:
            self._acknowledge_to(self.simulation.rng.randint(1, len(self._pending)))

    def _acknowledge_to(self, count: int) -> None:
        self._assembler.acknowledge(self._pending[count - 1])
        self.kept += self._pending[:count]
        del self._pending[:count]

    def _keep(self) -> None:
        self._advance()
        self._store = self._assembler.state(), list(self.kept)

    def _die(self) -> None:
        if self.simulation.rng.random() < 0.7:
            self._keep()
        self._begin()


def check(simulation: TransactionSimulation, kept: list[Item], *, staged: bool = True) -> None:
    """Every transaction is there once, whole and in order, and every record is in one item."""
    whole = [item for item in kept if isinstance(item, WholeTransaction)]
    order = [
        (one.commit_timestamp, *place_of(one))
        for one in kept
        if isinstance(one, WholeTransaction | Released)
    ]
    assert all(a < b for a, b in pairwise(order)), "not in order, or twice"

    wanted: dict[object, dict[int, bytes]] = {}
    bad: Counter[object] = Counter()
    at = [
        (k, offset, sent)
        for k, log in enumerate(simulation.logs)
        for offset, sent in enumerate(log)
        if isinstance(sent, SentChange)
    ]
    check_write_stream(simulation, kept, staged=staged)
    kept = [one for one in kept if not isinstance(one, Staged | Released)]
    for _, _, sent in at:
        assert sent.change is not None
        of = sent.change.transaction
        name = of.server_transaction_id if of else sent.change.row_key
        if sent.is_bad:
            bad[name] += 1
        else:
            wanted.setdefault(name, {})[of.record_sequence if of else 0] = sent.change.row_key
    found = {
        one.server_transaction_id or one.changes[0].row_key: [c.row_key for c in one.changes]
        for one in whole
    }
    assert found == {
        name: [parts[sequence] for sequence in sorted(parts)] for name, parts in wanted.items()
    }, "a transaction is missing or not whole"
    assert all(
        one.missing == bad[one.server_transaction_id] for one in whole if one.server_transaction_id
    ), "missing records are not counted"

    places: Counter[tuple[int, int]] = Counter()
    for item in kept:
        positions = item.positions if isinstance(item, WholeTransaction) else (item.position,)
        places.update((p.kafka_partition, p.offset) for p in positions)
    assert places == Counter((k, offset) for k, offset, _ in at), "a record is lost or twice"
    again = sum(sent.again for _, _, sent in at)
    assert sum(isinstance(item, Late) for item in kept) == again, "a change is late"
    assert sum(isinstance(item, Rejected) for item in kept) == sum(s.is_bad for _, _, s in at)


def place_of(item: WholeTransaction | Released) -> tuple[str, tuple[int, int]]:
    if isinstance(item, Released):
        return "", (item.position.kafka_partition, item.position.offset)
    return (
        item.server_transaction_id,
        min((p.kafka_partition, p.offset) for p in item.positions),
    )


def check_write_stream(
    simulation: TransactionSimulation, kept: list[Item], *, staged: bool
) -> None:
    """WRS-22: every release is there once, on time, and after its rows. Every row is there once. A
    row in a Kafka partition that the producer of its release does not know may come later.
    """
    sent = [
        (k, offset, one)
        for k, log in enumerate(simulation.logs)
        for offset, one in enumerate(log)
        if isinstance(one, SentRow | SentRelease)
    ]
    released = [one for one in kept if isinstance(one, Released)]
    assert not any(one.is_late for one in released), "a release is late"
    assert Counter((one.record, one.position.offset) for one in released) == Counter(
        (one.release, offset) for k, offset, one in sent if isinstance(one, SentRelease) and k == 0
    ), "a release is lost or twice"
    rows = [one for one in kept if isinstance(one, Staged)]
    wanted = [(k, n, one.row) for k, n, one in sent if isinstance(one, SentRow) and staged]
    assert Counter((r.position.kafka_partition, r.position.offset) for r in rows) == Counter(
        (k, n) for k, n, _ in wanted
    ), "a row is lost or twice"
    known = {
        one.release: one.kafka_partitions for _, _, one in sent if isinstance(one, SentRelease)
    }
    missing = {row.write_stream.offset: k for k, _, row in wanted if row and row.write_stream}
    for item in kept:
        if isinstance(item, Staged) and item.change.write_stream:
            missing.pop(item.change.write_stream.offset)
        elif isinstance(item, Released):
            (of,) = item.ranges
            late = [n for n, k in missing.items() if of.first <= n < of.upto]
            assert all(missing[n] >= known[item.record] for n in late), "a row is after its release"


def run(rng: Random, make: MakeAssembler = new_assembler, *, steps: int = 150) -> None:
    """The life of a simulation and of a program that reads it."""
    simulation = TransactionSimulation(rng, write_streams=True)
    program = Program(simulation, make, staged=rng.random() < 0.7)
    for _ in range(steps):
        simulation.step()
        for _ in range(rng.choice((0, 1, 3))):
            program.step()
    simulation.finish()
    program.finish()
    check(simulation, program.kept, staged=program.staged)


def read_range(simulation: TransactionSimulation, start: int, end: int) -> list[WholeTransaction]:
    """The transactions of a range of commit time, read from the beginning."""

    def make(tracker: WatermarkTracker, _: ReaderState | None) -> TransactionAssembler:
        return TransactionAssembler(tracker, "t", "id", start_commit=start, end_commit=end)

    program = Program(simulation, make)
    for _ in range(100):
        program.step_without_restart()
    program.finish()
    return [item for item in program.kept if isinstance(item, WholeTransaction)]
