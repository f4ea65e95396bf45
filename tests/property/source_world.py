"""A database, Debezium and Kafka, for tests of sequencers.

A `Database` runs transactions and keeps the state after each. `Debezium` writes its events into
topics: initial and incremental snapshots, ends, heartbeats, partial rows. It dies, loses what was
in flight, and sends again. Topics get Kafka partitions while it runs. The events are those that a
decoder returns, so no format is involved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from connector.sources.model import (
    Commit,
    End,
    Event,
    ForeignRecord,
    Poison,
    Row,
    Skipped,
    TopicPartition,
    TruncatedTable,
)

ENDS = "t.transaction"
TABLES = ("a", "b", "c")
BEAT, KEYLESS = "beat", "log"
KEYS = range(4)
START = 1_700_000_000_000_000
State = Mapping[str, Mapping[Hashable, Mapping[str, bytes]]]
"""The columns of each row, by table and key."""


@dataclass(frozen=True)
class Emit:
    """A record that Debezium writes: its topic, its key (None: any partition) and its event."""

    topic: str
    key: int | None
    event: Event
    is_read_again: bool = True


class Database:
    """Tables with rows of two columns, and what Debezium reads from its log."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._tables: dict[str, dict[int, dict[str, bytes]]] = {table: {} for table in TABLES}
        self._clock, self._lsn, self._value = START, 100, 0
        self.states: list[State] = []
        self.emits: list[Emit] = []
        for table in TABLES[:2]:
            for key in KEYS:
                if random.random() < 0.7:
                    self._tables[table][key] = self._new_row()
        self._keep_state()
        self._read("initial", TABLES[:2])
        self.snapshot_size = len(self.emits)

    def _new_row(self) -> dict[str, bytes]:
        self._value += 1
        return {"v": b"%d" % self._value, "big": b"B%d" % self._value}

    def _keep_state(self) -> None:
        self.states.append(
            {
                table: {k: dict(row) for k, row in rows.items()}
                for table, rows in self._tables.items()
            }
        )

    def _read(self, kind: str, tables: tuple[str, ...]) -> None:
        """Rows of a snapshot."""
        after = (self._lsn,) if kind == "incremental" else ()
        commit = Commit(time=self._clock, after=after, log_position=kind)
        for table in tables:
            for key, row in self._tables[table].items():
                event = Row(
                    table=table,
                    commit=commit,
                    key={"id": key},
                    cells=dict(row),
                    is_snapshot=True,
                    is_incremental=kind == "incremental",
                )
                self.emits.append(Emit(f"t.{table}", key, event, not event.is_incremental))

    def read_table(self) -> None:
        """An incremental snapshot of a part of a table."""
        self._read("incremental", (self._random.choice(TABLES),))

    def transact(self) -> None:
        """A transaction, or one that only writes to the table of heartbeats."""
        random = self._random
        self._clock += random.choice((0, 0, 1, 500, -300))
        before, number = self._lsn, len(self.states)
        identity, events = str(7000 + number * 3 % 1000 + number), list[Emit]()
        counts = Counter[str]()

        def commit(table: str) -> Commit:
            counts[table] += 1
            sequence = counts.total() + 2 * number % 3  # tables that are not read count, too
            return Commit(
                time=self._clock,
                transaction=identity,
                sequence=sequence,
                after=(before,),
                log_position=str(before),
            )

        for _ in range(random.choice((0, 1, 1, 2, 3, 5))):
            events += self._write(random.choice(TABLES), commit)
        if random.random() < 0.2:
            events.append(Emit(f"t.{BEAT}", 1, Skipped("HEARTBEAT", commit(BEAT), BEAT)))
        if random.random() < 0.1:
            events.append(Emit(f"t.{KEYLESS}", None, Skipped("NO_KEY", commit(KEYLESS), KEYLESS)))
        self._lsn += 10
        end = Commit(time=self._clock, transaction=identity, after=(self._lsn,))
        events.append(Emit(ENDS, None, End(end, counts.total(), dict(counts))))
        self.emits += events
        self._keep_state()

    def _write(self, table: str, commit: Callable[[str], Commit]) -> Iterator[Emit]:
        random, rows, topic = self._random, self._tables[table], f"t.{table}"
        key, what = random.choice(KEYS), random.random()

        def emit(key: int, row: dict[str, bytes] | None, *, whole: bool = True) -> Emit:
            cells = {} if row is None else row if whole else {"v": row["v"]}
            event = Row(
                table=table,
                commit=commit(table),
                key={"id": key},
                cells=dict(cells),
                deleted=row is None,
                whole=whole,
            )
            return Emit(topic, key, event)

        if what < 0.08:
            rows.clear()
            yield Emit(topic, None, TruncatedTable(table, commit(table)))
        elif key not in rows:
            rows[key] = self._new_row()
            yield emit(key, rows[key])
        elif what < 0.3:
            del rows[key]
            yield emit(key, None)
        elif what < 0.45:
            new = random.choice(KEYS)  # the key changes: a delete and an insert
            if new != key and new not in rows:
                rows[new] = rows.pop(key)
                yield emit(key, None)
                yield emit(new, rows[new])
        elif what < 0.75:
            rows[key] = {**rows[key], "v": self._new_row()["v"]}
            yield emit(key, rows[key], whole=False)  # the other value is not in the event
        else:
            rows[key] = self._new_row()
            yield emit(key, rows[key])


Record = tuple[ForeignRecord, Event]


@dataclass
class Topics:
    """What is in Kafka: the records of each partition, and how many of them can be read now."""

    records: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    visible_after: dict[TopicPartition, list[int]] = field(default_factory=dict)
    created_at: dict[TopicPartition, int] = field(default_factory=dict)
    written: int = 0

    def ends(self, now: int) -> dict[TopicPartition, int]:
        """The end offsets, as they are when so many records were written."""
        return {
            partition: sum(number <= now for number in self.visible_after.get(partition, ()))
            for partition, created_at in self.created_at.items()
            if created_at <= now
        }


class Debezium:
    """Writes what a database did into topics, and dies at times."""

    def __init__(self, random: Random, partitions: int = 2, *, delay: int = 6) -> None:
        self._random, self._delay = random, delay
        self._partitions = dict.fromkeys((*TABLES, BEAT, KEYLESS), partitions)
        self.topics = Topics()
        for table, number in self._partitions.items():
            self.topics.created_at |= {(f"t.{table}", k): 0 for k in range(number)}
        self.topics.created_at[ENDS, 0] = 0
        self._time = START + 5_000

    def write(
        self, emits: list[Emit], *, deaths: int, added: int, snapshot_size: int = 0
    ) -> Topics:
        """Write records. A death loses some that were written last, and goes back."""
        random = self._random
        die_at = sorted(random.randrange(1, len(emits)) for _ in range(deaths))
        grow_at = {random.randrange(1, len(emits)) for _ in range(added)}
        at = 0
        while die_at:
            upto = min(len(emits), max(at, die_at.pop(0)))
            acknowledged = max(at, upto - random.randrange(8))
            if upto > snapshot_size:
                acknowledged = max(acknowledged, snapshot_size)
            lost_from = dict[TopicPartition, int]()
            for number in range(at, upto):
                partition = self._partition_of(emits[number], number in grow_at)
                if number >= acknowledged and random.random() < 0.3:
                    lost_from.setdefault(partition, number)
                if partition not in lost_from:
                    self._append(partition, emits[number].event)
            # What was acknowledged may come again. An initial snapshot that has ended does not.
            is_snapshot = upto <= snapshot_size
            back = acknowledged - random.randrange(12)
            at = 0 if is_snapshot else max(snapshot_size, back)
            emits = [*emits[:at], *(e for e in emits[at:upto] if e.is_read_again), *emits[upto:]]
        for number in range(at, len(emits)):
            self._append(self._partition_of(emits[number], number in grow_at), emits[number].event)
        return self.topics

    def _partition_of(self, emit: Emit, grows: bool) -> TopicPartition:
        if grows:
            table = self._random.choice(TABLES)
            self.topics.created_at[f"t.{table}", self._partitions[table]] = self.topics.written
            self._partitions[table] += 1
        if emit.topic == ENDS:
            return ENDS, 0
        number = self._partitions[emit.topic.removeprefix("t.")]
        return emit.topic, self._random.randrange(number) if emit.key is None else (
            emit.key * 7 % number
        )

    def _append(self, partition: TopicPartition, event: Event) -> None:
        topics = self.topics
        self._time += self._random.choice((0, 1, 40))
        records = topics.records.setdefault(partition, [])
        record = ForeignRecord(*partition, len(records), self._time, None, b"value")
        records.append((record, event))
        topics.written += 1
        numbers = topics.visible_after.setdefault(partition, [])
        # Kafka has a row of a snapshot before the end of a later transaction.
        is_snapshot = isinstance(event, Row) and event.is_snapshot
        shown = topics.written + (0 if is_snapshot else self._random.randrange(self._delay))
        numbers.append(max([shown, *numbers[-1:]]))


def make(random: Random, steps: int, *, deaths: int = 0, added: int = 0) -> tuple[Database, Topics]:
    """A database that ran for some steps, and its topics."""
    database = Database(random)
    for _ in range(steps):
        if random.random() < 0.15:
            database.read_table()
        else:
            database.transact()
    debezium = Debezium(random)
    topics = debezium.write(
        database.emits, deaths=deaths, added=added, snapshot_size=database.snapshot_size
    )
    return database, topics


def poison(topics: Topics, random: Random, *, is_readable: bool) -> dict[tuple[str, int, int], Row]:
    """Make some rows unreadable, also their commit or not, and return them by their place."""
    spoiled = {}
    for partition, records in topics.records.items():
        for index, (record, event) in enumerate(records):
            if isinstance(event, Row) and not event.is_snapshot and random.random() < 0.1:
                commit = event.commit if is_readable else Commit()
                records[index] = record, Poison("BROKEN", "broken", commit, event.table)
                spoiled[(*partition, record.offset)] = replace(event)
    return spoiled
