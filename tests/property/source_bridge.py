"""A bridge without Kafka: it reads topics in any order, sends what a sequencer releases, and dies.

What it sent is judged by lowmark's own rules: `tables.merge` says which rows are visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from connector.errors import ConnectorError
from connector.records.model import (
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    SetCell,
    Transaction,
    Truncate,
)
from connector.records.ordering import OrderBy, OrderPosition, commit_rank
from connector.sources.by_partition import ByPartition
from connector.sources.by_transaction import ByTransaction
from connector.sources.model import Released, Row, TopicPartition, TruncatedTable, Waiting
from connector.sources.position import SourcePosition, by_partition
from connector.tables.definition import Versions
from connector.tables.merge import EMPTY, RowState, greatest, join, lift, truncate, visible
from tests.property.source_world import START, State, Topics

MARK = b"\x01row"
Make = Callable[[SourcePosition | None], ByTransaction | ByPartition]


@dataclass
class Bridge:
    """`sent` is what is in the change topic, and `reached` are the published claims. `waiting` and
    `error` are what the last run ended with.
    """

    topics: Topics
    make: Make
    random: Random
    sent: list[Released] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    starts: int = 0
    skips: bool = False
    skipped: int = 0
    waiting: Waiting | None = None
    error: ConnectorError | None = None

    def __post_init__(self) -> None:
        self._token: bytes | None = None
        self._since: list[Released] = []
        self._shown = 0

    @property
    def position(self) -> dict[TopicPartition, int]:
        """Where it would begin after a death."""
        return {} if self._token is None else by_partition(SourcePosition.parse(self._token).starts)

    def run(self, deaths: int) -> None:
        """Run until all is read or an error stops it, with some deaths on the way."""
        try:
            for _ in range(deaths):
                self._run(self.random.randrange(1, 60))
                self._die()
            self._run(None)
        except ConnectorError as error:
            self.error = error

    def _die(self) -> None:
        """Lose some of what was sent since the newest heartbeat: what was not acknowledged."""
        for released in self._since:
            if self.random.random() < 0.3:
                self.sent.remove(released)
        self._since.clear()

    def _run(self, steps: int | None) -> None:
        self.starts += 1
        position = None if self._token is None else SourcePosition.parse(self._token)
        sequencer = self.make(position)
        read = by_partition(position.starts) if position else {}
        idle = 0
        while steps is None or steps > 0:
            steps = None if steps is None else steps - 1
            is_busy = self._step(sequencer, read)
            is_all = self._shown > self.topics.written + 100
            idle = 0 if is_busy or not is_all else idle + 1
            if (
                idle > 30
                and isinstance(sequencer, ByTransaction)
                and self.skips
                and sequencer.waiting is not None
            ):
                if sequencer.wants_ends:
                    sequencer.ends(self.topics.ends(self._shown))
                is_skipped = sequencer.skip(sequencer.waiting.transaction)
                self.skipped += is_skipped
                idle = 0 if is_skipped else idle
            self.waiting = sequencer.waiting
            if idle > 60:
                return

    def _step(
        self, sequencer: ByTransaction | ByPartition, read: dict[TopicPartition, int]
    ) -> bool:
        random, topics = self.random, self.topics
        # Time passes only when Kafka gets nothing any more.
        now = START if self._shown <= topics.written + 100 else 2 * START
        choice = random.random()
        if choice < 0.1:
            before = len(topics.ends(self._shown))
            self._shown += random.randrange(1, 40)
            if len(ends := topics.ends(self._shown)) > before:  # a topic has another partition
                sequencer.ends(ends)
        elif choice < 0.6:
            ends = topics.ends(self._shown)
            partitions = [p for p in ends if read.get(p, 0) < ends[p] and p not in sequencer.full]
            if not partitions:
                return self._send(sequencer, now)
            partition = random.choice(partitions)
            at = read.get(partition, 0)
            upto = min(ends[partition], at + random.choice((1, 1, 3, 20)))
            for record, event in topics.records[partition][at:upto]:
                sequencer.add(record, event)
                read[partition] = record.offset + 1
                if partition in sequencer.full:
                    break
            return True
        elif choice < 0.8:
            if sequencer.wants_ends or random.random() < 0.1:
                sequencer.ends(topics.ends(self._shown))
        else:
            return self._send(sequencer, now)
        return False

    def check_time(self, released: Released) -> None:
        """Refuse what a claim has passed."""
        is_late = bool(self.reached) and released.commit_timestamp <= self.reached[-1]
        assert not is_late, "the producer refuses"

    def check_order(self, released: Released) -> None:
        """An event without a transaction declares no count, and has the order of its record."""
        record, count, order = released.record, released.count, released.tie_breaker
        assert count >= 0, record
        assert not count or released.event.commit.transaction, record
        assert count or order == record.offset, record

    def _send(self, sequencer: ByTransaction | ByPartition, now: int) -> bool:
        released = list(sequencer.released(now))
        for one in released:
            self.check_time(one)
            self.check_order(one)
            self.sent.append(one)
            self._since.append(one)
        if sequencer.reached and (sequencer.has_claim or self.random.random() < 0.3):
            if not self.reached or self.reached[-1] != sequencer.reached:
                assert not self.reached or sequencer.reached > self.reached[-1], "it goes back"
                self.reached.append(sequencer.reached)
            self._token = sequencer.token({"t.a": "id"})
            assert len(self._token) < 64 * 1024
            self._since.clear()
            if sequencer.has_claim:
                sequencer.claim_acknowledged()
                return True
        return bool(released)


def change_of(released: Released) -> tuple[str, DataChange | Truncate] | None:
    """The change of an event, as an upsert of a whole row, of a part, or as a delete."""
    event = released.event
    if not isinstance(event, Row | TruncatedTable):
        return None
    transaction = None
    if released.count:
        transaction = Transaction(
            event.commit.transaction,
            event.commit.sequence,
            number_of_records_in_transaction=released.count,
        )
    order = {
        "commit_timestamp": released.commit_timestamp,
        "tie_breaker": released.tie_breaker,
        "transaction": transaction,
    }
    if isinstance(event, TruncatedTable):
        return event.table, Truncate("source", event.table, **order)
    entries: list[Entry] = []
    if event.whole or event.deleted:
        entries.append(DeleteFamily("f"))
    if not event.deleted:
        for name, value in event.cells.items():
            if value is not None:
                entries.append(SetCell("f", name.encode(), value))
            elif not event.whole:
                entries.append(DeleteCells("f", name.encode()))
        entries.append(SetCell("f", MARK, b""))
    key = b"=" + key_text(event).encode()
    return event.table, DataChange(
        stream_partition="source", table=event.table, row_key=key, entries=tuple(entries), **order
    )


def key_text(event: Row) -> str:
    return "/".join(map(str, event.key.values()))


def states_by_time(sent: list[Released]) -> dict[int, State]:
    """The state of the tables after each commit timestamp, by the rules of `tables.merge`."""
    rows: dict[tuple[str, bytes], RowState] = {}
    truncated: dict[str, tuple[int, ...] | None] = {}
    states: dict[int, State] = {}
    ordered = sorted(enumerate(sent), key=lambda item: item[1].commit_timestamp)
    for index, (arrival, released) in enumerate(ordered):
        mutation = change_of(released)
        if mutation is not None:
            table, change = mutation
            if isinstance(change, Truncate):
                truncated[table] = greatest(truncated.get(table), commit_rank(change))
            else:
                at = OrderPosition(1, 0, arrival)
                state = lift(change, at, OrderBy.COMMIT, Versions.LATEST)
                key = table, change.row_key
                rows[key] = join(rows.get(key, EMPTY), state)
        is_last = index + 1 == len(ordered)
        if is_last or ordered[index + 1][1].commit_timestamp > released.commit_timestamp:
            states[released.commit_timestamp] = _shown(rows, truncated)
    return states


def _shown(
    rows: Mapping[tuple[str, bytes], RowState], truncated: Mapping[str, tuple[int, ...] | None]
) -> State:
    state: dict[str, dict[str, dict[str, bytes]]] = {}
    for (table, key), row in rows.items():
        cells = visible(truncate(row, truncated.get(table)))
        if cells:
            columns = {name.decode(): value for (_, name), value in cells.items() if name != MARK}
            state.setdefault(table, {})[key[1:].decode()] = columns
    return state


def without_empty(state: State) -> State:
    return {
        table: {str(key): row for key, row in rows.items()} for table, rows in state.items() if rows
    }
