"""A database, Debezium and Kafka, for tests of sequencers.

A `Database` runs transactions and keeps the state after each. `SourceLog` numbers them as one kind
of database does. `Debezium` writes its events into topics: initial and incremental snapshots, ends,
heartbeats, partial rows, truncations. It dies, loses what was in flight, and sends any stretch
again. The log begins again at smaller positions. Topics get Kafka partitions while it runs, and may
have the rows of several tables. The events are those that a decoder returns, so no format is
involved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from connector.sources.model import (
    BINLOG,
    LSN,
    Commit,
    End,
    Event,
    ForeignRecord,
    LogPosition,
    Poison,
    Row,
    Skipped,
    TopicPartition,
    TruncatedTable,
)
from connector.sources.places import RESTART_US

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


class SourceLog:
    """The ids and positions of transactions.

    `kind` is one of `lsn` (PostgreSQL), `binlog` (MySQL), `uuid` and `domain` (GTIDs of MySQL and
    of MariaDB) and `none` (ids without an order). `is_in_order`: no replica commits GTIDs in
    another order.
    """

    def __init__(self, random: Random, kind: str, *, is_in_order: bool = False) -> None:
        self._random, self.kind, self._is_in_order = random, kind, is_in_order
        self._lsn, self._file, self._pos = 100, 1, 500
        self._server, self._number, self._spare = "A", 0, 0
        self._transactions = 0

    @property
    def has_truncations(self) -> bool:
        """Whether a truncation is in no transaction."""
        return self.kind not in (LSN, "none")

    def is_at_truncation(self) -> bool:
        """Whether a truncation that is in no transaction can follow. No replica moves it."""
        return self.has_truncations and not self._spare

    @property
    def newest_end(self) -> tuple[str, LogPosition]:
        """The log and the end of the newest transaction, as a row of an incremental snapshot has
        them. In a binary log without GTIDs, it has neither.
        """
        if self.kind == LSN:
            return LSN, (self._lsn,)
        log = {"domain": "0", "uuid": self._server}.get(self.kind, "")
        return (log, (self._number + 1,)) if log else ("", ())

    @property
    def newest_at(self) -> LogPosition:
        """The position of the newest event in a binary log."""
        return (self._file, self._pos - 1, 0) if self.has_truncations else ()

    def time(self, clock: int) -> int:
        return clock if self.kind in (LSN, "none") else clock // 1_000_000 * 1_000_000

    def begin_again(self) -> None:
        """Go on with smaller positions."""
        self._lsn = self._random.randrange(0, max(1, self._lsn))
        self._file, self._pos = 1, self._random.choice((4, 500))
        self._number = self._spare = 0
        self._server = self._random.choice("AB")

    def transaction(
        self, *, is_in_order: bool = False
    ) -> tuple[str, str, LogPosition, LogPosition, Callable[[int], LogPosition]]:
        """Return the id of the next transaction, its log, its begin and its end there, and the
        position of each event by its sequence.
        """
        random = self._random
        self._transactions += 1
        if self.kind == LSN:
            before, self._lsn = self._lsn, self._lsn + 10
            name = str(7000 + self._transactions * 3 % 1000 + self._transactions)
            return name, LSN, (before,), (self._lsn,), lambda sequence: (before + sequence,)
        if self.kind == "none":
            return (
                f"x{self._transactions}",
                "",
                (),
                (),
                lambda sequence: (),
            )
        if random.random() < 0.1:
            self._file, self._pos = self._file + 1, 4
        file, pos = self._file, self._pos
        self._pos += 20

        def at(sequence: int) -> LogPosition:
            return file, pos + sequence, 0

        if self.kind == BINLOG:
            return f"file=bin.{file},pos={pos}", BINLOG, (file, pos), (file, pos + 1), at
        number = self._next_number(is_in_order=is_in_order)
        if self.kind == "domain":
            return f"0-1-{number}", "0", (number,), (number + 1,), at
        return f"{self._server}:{number}", self._server, (number,), (number + 1,), at

    def _next_number(self, *, is_in_order: bool) -> int:
        """The number of a GTID. A replica of MySQL may commit two in the other order."""
        if self._spare:
            number, self._spare = self._spare, 0
            return number
        is_in_order |= self._is_in_order or self.kind != "uuid"
        if not is_in_order and self._random.random() < 0.1:
            self._spare, self._number = self._number + 1, self._number + 2
        else:
            self._number += 1
        return self._number


class Database:
    """Tables with rows of two columns, and what Debezium reads from its log.

    `parts` are what Debezium sends: the events of each log, and how many of the first ones are
    those of a snapshot.
    """

    def __init__(
        self,
        random: Random,
        kind: str = LSN,
        topics: Mapping[str, str] | None = None,
        *,
        is_in_order: bool = False,
    ) -> None:
        self._random, self.log = random, SourceLog(random, kind, is_in_order=is_in_order)
        self._topics = topics or {}
        self._tables: dict[str, dict[int, dict[str, bytes]]] = {table: {} for table in TABLES}
        self._clock, self._value = START, 0
        self.states: list[State] = []
        self.parts: list[tuple[list[Emit], int]] = []
        for table in TABLES[:2]:
            for key in KEYS:
                if random.random() < 0.7:
                    self._tables[table][key] = self._new_row()
        self._keep_state()
        self._begin(TABLES[:2])

    def _begin(self, tables: tuple[str, ...]) -> None:
        self.emits: list[Emit] = []
        self._read("initial", tables)
        self.parts.append((self.emits, len(self.emits)))

    def begin_again(self, *, is_clock_back: bool = False, goes_on: bool = False) -> None:
        """Debezium reads all tables. The log begins again at smaller positions, unless it goes on:
        then Debezium had only lost its own position.
        """
        self._clock += -5_000_000 if is_clock_back else 20_000_000
        if not goes_on:
            self.log.begin_again()
        self._begin(TABLES)

    def _topic(self, table: str) -> str:
        return self._topics.get(table, f"t.{table}")

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
        log, after = self.log.newest_end if kind == "incremental" else ("", ())
        commit = Commit(
            time=self._clock,
            log=log,
            after=after,
            at=self.log.newest_at if kind == "incremental" else (),
            log_position=kind,
        )
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
                self.emits.append(Emit(self._topic(table), key, event, not event.is_incremental))

    def read_table(self) -> None:
        """An incremental snapshot of a part of a table."""
        self._read("incremental", (self._random.choice(TABLES),))

    def transact(self) -> None:
        """A transaction, or one that only writes to the table of heartbeats."""
        random = self._random
        self._clock += random.choice((0, 0, 1, 500, -300, 300_000, 2_000_000))
        if self.log.is_at_truncation() and random.random() < 0.1:
            self._truncate()
            return
        name, log, begin, end, at = self.log.transaction()
        number, events = len(self.states), list[Emit]()
        counts, time = Counter[str](), self.log.time(self._clock)

        def commit(table: str) -> Commit:
            counts[table] += 1
            return Commit(
                time=time,
                transaction=name,
                sequence=counts.total(),
                log=log,
                after=begin,
                at=at(counts.total()),
                log_position=str(begin),
            )

        if 2 * number % 3 == 1:  # a table whose topic is not read counts, too
            commit("other")
        for write in range(random.choice((0, 1, 1, 2, 3, 5))):
            if write == 1 and number % 4 == 1:
                commit("other")
            events += self._write(random.choice(TABLES), commit)
        if random.random() < 0.2:
            events.append(Emit(f"t.{BEAT}", 1, Skipped("HEARTBEAT", commit(BEAT), BEAT)))
        if random.random() < 0.1:
            events.append(Emit(f"t.{KEYLESS}", None, Skipped("NO_KEY", commit(KEYLESS), KEYLESS)))
        committed = Commit(time=time, transaction=name, log=log, after=end)
        events.append(Emit(ENDS, None, End(committed, counts.total(), dict(counts))))
        self.emits += events
        self._keep_state()

    def _truncate(self) -> None:
        """A truncation of MySQL: it has a place in the log, and no end."""
        table = self._random.choice(TABLES)
        name, log, begin, _, at = self.log.transaction(is_in_order=True)
        commit = Commit(
            time=self.log.time(self._clock),
            transaction=name if self.log.kind == "domain" else "",
            sequence=int(self.log.kind == "domain"),
            log=log,
            after=begin,
            at=at(0),
            log_position=name,
        )
        self._tables[table].clear()
        self.emits.append(Emit(self._topic(table), None, TruncatedTable(table, commit)))
        self._keep_state()

    def _write(self, table: str, commit: Callable[[str], Commit]) -> Iterator[Emit]:
        random, rows, topic = self._random, self._tables[table], self._topic(table)
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

        if what < 0.08 and not self.log.has_truncations:
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
    """Writes what a database did into topics, and dies at times.

    `topics_of` has the topics of tables that are not named as their table. `is_old`: after a death
    within a transaction, it sends the rest of it with sequences and a count that begin again.
    """

    def __init__(
        self,
        random: Random,
        partitions: int = 2,
        *,
        delay: int = 6,
        topics_of: Mapping[str, str] | None = None,
        is_old: bool = False,
    ) -> None:
        self._random, self._delay, self._is_old = random, delay, is_old
        named = {(topics_of or {}).get(table, f"t.{table}") for table in (*TABLES, BEAT, KEYLESS)}
        self._partitions = dict.fromkeys(sorted(named), partitions)
        self.topics = Topics()
        for topic, number in self._partitions.items():
            self.topics.created_at |= {(topic, k): 0 for k in range(number)}
        self.topics.created_at[ENDS, 0] = 0
        self._time = START + 5_000

    def write(
        self, emits: list[Emit], *, deaths: int, added: int, snapshot_size: int = 0
    ) -> Topics:
        """Write the records of one log. A death loses some that were written last, and goes back.
        At the end, Kafka has all.
        """
        random = self._random
        if not emits:
            return self.topics
        self._time += 2 * RESTART_US  # it was started, and Kafka has all that was sent before
        for numbers in self.topics.visible_after.values():
            numbers[:] = [min(number, self.topics.written) for number in numbers]
        die_at = sorted(random.randrange(len(emits)) for _ in range(deaths))
        grow_at = {random.randrange(len(emits)) for _ in range(added)}
        at, sent = 0, emits
        while die_at:
            upto = min(len(emits), max(at, die_at.pop(0)))
            acknowledged = max(at, upto - random.randrange(8))
            if upto > snapshot_size:
                acknowledged = max(acknowledged, snapshot_size)
            lost_from = dict[TopicPartition, int]()
            for number in range(at, upto):
                partition = self._partition_of(sent[number], number in grow_at)
                if number >= acknowledged and random.random() < 0.3:
                    lost_from.setdefault(partition, number)
                if partition not in lost_from:
                    self._append(partition, sent[number])
            self._time += 2 * RESTART_US  # it is started again
            # What was acknowledged may come again, from any place. An initial snapshot that has
            # ended does not.
            is_snapshot = upto <= snapshot_size
            back = acknowledged - random.choice((random.randrange(12), random.randrange(upto + 1)))
            at = 0 if is_snapshot else max(snapshot_size, back)
            again = [e for e in emits[at:upto] if e.is_read_again]
            emits = [*emits[:at], *again, *emits[upto:]]
            sent = [*emits[:at], *_counted_again(emits[at:])] if self._is_old else emits
        for number in range(at, len(sent)):
            self._append(self._partition_of(sent[number], number in grow_at), sent[number])
        return self.topics

    def _partition_of(self, emit: Emit, grows: bool) -> TopicPartition:
        if grows:
            topic = self._random.choice(
                [t for t in self._partitions if t[2:] not in (BEAT, KEYLESS)]
            )
            self.topics.created_at[topic, self._partitions[topic]] = self.topics.written
            self._partitions[topic] += 1
        if emit.topic == ENDS:
            return ENDS, 0
        number = self._partitions[emit.topic]
        return emit.topic, self._random.randrange(number) if emit.key is None else (
            emit.key * 7 % number
        )

    def _append(self, partition: TopicPartition, emit: Emit) -> None:
        topics, event = self.topics, emit.event
        if self._is_old:
            event = replace(event, commit=replace(event.commit, counts_again=True))
        self._time = max(self._time + self._random.choice((0, 1, 40)), event.commit.time)
        records = topics.records.setdefault(partition, [])
        key = None if emit.key is None else b"%d" % emit.key
        records.append((ForeignRecord(*partition, len(records), self._time, key, b"value"), event))
        topics.written += 1
        numbers = topics.visible_after.setdefault(partition, [])
        # Kafka has a row of a snapshot, and a truncation of MySQL, before the end of a later
        # transaction.
        is_early = isinstance(event, Row) and event.is_snapshot
        is_early |= isinstance(event, TruncatedTable) and event.commit.log not in (LSN, "")
        shown = topics.written + (0 if is_early else self._random.randrange(self._delay))
        numbers.append(max([shown, *numbers[-1:]]))


def _counted_again(emits: list[Emit]) -> list[Emit]:
    """The events from the middle of a transaction on, as an old Debezium sends them: the rest of
    that transaction is counted from 1.
    """
    first = next((e.event.commit for e in emits if e.event.commit.transaction), Commit())
    before, rest, found = max(0, first.sequence - 1), Counter[str](), list[Emit]()
    for emit in emits:
        event = emit.event
        if before and event.commit.transaction == first.transaction:
            if isinstance(event, End):
                rest["other"] = event.count - before - rest.total()
                event = End(event.commit, event.count - before, dict(+rest))
            else:
                rest[event.table] += 1
                commit = replace(event.commit, sequence=event.commit.sequence - before)
                event = replace(event, commit=commit)
        found.append(replace(emit, event=event))
    return found


def make(
    random: Random,
    steps: int,
    *,
    kind: str = LSN,
    deaths: int = 0,
    added: int = 0,
    begins_again: tuple[bool, ...] = (),
    goes_on: bool = False,
    topics_of: Mapping[str, str] | None = None,
    is_old: bool = False,
    change: Callable[[list[Emit]], list[Emit]] = list,
    after_each: Callable[[Topics], None] = lambda topics: None,
) -> tuple[Database, Topics]:
    """A database that ran for some steps, and its topics.

    Args:
        random: Decides all.
        steps: How many transactions and incremental snapshots there are in each log.
        kind: The kind of its log.
        deaths: How often Debezium dies in each log.
        added: How many Kafka partitions are added in each log. Only in PostgreSQL, there are
            incremental snapshots meanwhile: elsewhere, their rows have no exact position.
        begins_again: The log begins again so often, with a clock that goes back or not.
        goes_on: It goes on instead, and Debezium only takes a snapshot again.
        topics_of: The topics of tables that are not named as their table.
        is_old: Debezium is older than 3.6.1.
        change: Changes what Debezium sends.
        after_each: Receives the topics when they have all of a log.
    """
    database = Database(random, kind, topics_of, is_in_order=bool(added))
    for number in range(len(begins_again) + 1):
        if number:
            database.begin_again(is_clock_back=begins_again[number - 1], goes_on=goes_on)
        for _ in range(steps):
            if random.random() < 0.15 and (kind == LSN or not added):
                database.read_table()
            else:
                database.transact()
    debezium = Debezium(random, topics_of=topics_of, is_old=is_old)
    for emits, snapshot_size in database.parts:
        debezium.write(change(emits), deaths=deaths, added=added, snapshot_size=snapshot_size)
        after_each(debezium.topics)
    return database, debezium.topics


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
