"""A stream without Kafka: records by offset, batches shaped like those of Spark's Kafka source, and
letters as they were published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import cycle
from pathlib import Path
from shutil import copytree
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from connector.config.settings import StreamConfig, VersionRetention
from connector.dead_letters.envelope import DeadLetter, replay_header
from connector.engine.schema import KAFKA
from connector.lake.batch_counts import count_rows, count_table
from connector.lake.changelog_folds import fold_batches
from connector.lake.letter_positions import logged_positions
from connector.lake.plain_table import batches, open_table, rows_in
from connector.lake.small_apply import merge_few
from connector.lake.small_files import write_rows
from connector.records import codec
from connector.records.model import DataChange, Record, Truncate, kafka_key
from connector.records.ordering import OrderPosition, rank_of
from connector.records.rejection import Headers
from connector.spark.apply.apply import Applied, apply
from connector.spark.apply.select import LetterRules
from connector.spark.ingest.ingest import Ingest
from connector.spark.ingest.ports import IngestPorts
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.logged_batch import BatchRange
from connector.spark.storage.table import Table
from connector.state.apply_level import Merged, SmallApply
from connector.state.incomplete_transactions import ReleaseTransaction
from connector.state.overrides import ClosePartition
from connector.state.stream_progress import Progress
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.merge import RowState, greatest, join, lift, truncate, visible
from connector.tables.row import read_change, row_of
from connector.tables.values import DataType
from connector.validation import arrival
from connector.watermarks.producer_epoch import EPOCH_HEADER
from connector.write_streams.releases import ReleaseRows
from tests.changes import change, put

ROWS = """key binary, value binary, topic string, partition int, offset bigint,
timestamp timestamp, timestampType int,
    headers array<struct<key: string, value: binary>>"""
ARRIVAL = datetime(2024, 4, 30, 12, tzinfo=UTC)
HEADERS = [("trace", b"\x00\xff"), ("empty", None)]

KEY = Key((KeyPart("id", DataType.STRING),), KeyForm.ROW_KEY)
COLUMNS = (
    Column("name", "f", b"name", DataType.STRING),
    Column("amount", "f", b"amount", DataType.INT64),
)
STREAM = StreamConfig(name="s", topic="orders")
WITHOUT_SPARK: Iterator[bool] = cycle((True, False))
"""Whether `merge_few` may do the next apply."""


def merge_every_other(task: SmallApply) -> Merged | None:
    """`merge_few` for every other apply. Spark does the others, so that both ways are tested."""
    return merge_few(task) if next(WITHOUT_SPARK) else None


class CrashError(Exception):
    """The process is gone, as far as the step that raises it can tell."""


def crash_at(step: str) -> Callable[[str], None]:
    def on_step(reached: str) -> None:
        if reached == step:
            raise CrashError(step)

    return on_step


def definition(name: str = "accounts", **others: Any) -> TableDefinition:
    return TableDefinition(
        **{
            "name": name,
            "stream": "s",
            "source": "t",
            "key": KEY,
            "columns": COLUMNS,
            "buckets": 2,
            **others,
        }
    )


def account(row: str, at: int, **cells: str) -> DataChange:
    """A change of table t at `at`: the cells it sets in family f."""
    return change(
        *(put(value, qualifier=name.encode()) for name, value in cells.items()),
        at=at,
        row_key=row.encode(),
    )


@dataclass(frozen=True)
class Facts:
    """The topic, as Kafka would describe it."""

    topic_id: str
    kafka_partitions: int


@dataclass
class Topic:
    """Records by Kafka partition; `raw` takes any bytes. `None` in their place is an offset that no
    reader sees (a marker).

    `headers` has those of a record at a Kafka partition and an offset, where they are not
    `HEADERS`.
    """

    records: list[list[tuple[bytes | None, bytes | None] | None]] = field(
        default_factory=lambda: [[], []]
    )
    topic_id: str = "id-1"
    read: dict[int, int] = field(default_factory=dict)
    headers: dict[tuple[int, int], Headers] = field(default_factory=dict)

    @property
    def facts(self) -> Facts:
        return Facts(self.topic_id, len(self.records))

    def send(self, *records: Record, schema_id: int | None = None) -> None:
        for record in records:
            value = codec.framed(record, len(self.records), schema_id)
            self.raw((kafka_key(record), value), at=sum(kafka_key(record)) % len(self.records))

    def send_everywhere(self, *records: Record, epoch: int = 0) -> None:
        """Control records go to every Kafka partition (REC-3), with the epoch of their producer, if
        it has one (PUB-4).
        """
        for record in records:
            for kafka_partition in range(len(self.records)):
                if epoch:
                    place = kafka_partition, len(self.records[kafka_partition])
                    self.headers[place] = (*HEADERS, (EPOCH_HEADER, b"%d" % epoch))
                self.raw(
                    (kafka_key(record), codec.framed(record, len(self.records))),
                    at=kafka_partition,
                )

    def raw(self, *records: tuple[bytes | None, bytes | None] | None, at: int = 0) -> None:
        self.records[at].extend(records)

    def replay(
        self, letter: str, attempt: int, key: bytes | None, value: bytes | None, *, at: int = 0
    ) -> None:
        """The record of a letter, or what has been made of it, as the tool sends it again
        (DLQ-10).
        """
        self.headers[at, len(self.records[at])] = (*HEADERS, replay_header(letter, attempt))
        self.raw((key, value), at=at)

    def rest(self) -> BatchRange:
        """From where reading stands to the end."""
        end = {number: len(records) for number, records in enumerate(self.records)}
        return BatchRange({number: self.read.get(number, 0) for number in end}, end)

    def rows(self, spark: SparkSession, offsets: BatchRange) -> DataFrame:
        rows = [
            (
                *record,
                STREAM.topic,
                number,
                offset,
                ARRIVAL + timedelta(seconds=offset),
                1,
                self.headers.get((number, offset), HEADERS),
            )
            for number, end in offsets.end.items()
            for offset in range(offsets.start.get(number, 0), end)
            if (record := self.records[number][offset]) is not None
        ]
        return spark.createDataFrame(rows, ROWS)

    def columns(self, offsets: BatchRange, asked_at: int) -> dict[str, list[Any]]:
        """The same as columns of `engine.schema.KAFKA`."""
        columns: dict[str, list[Any]] = {name: [] for name in KAFKA.names}
        for number, (begin, end) in offsets.by_partition.items():
            for offset in range(begin, end):
                if (record := self.records[number][offset]) is not None:
                    milliseconds = int((ARRIVAL + timedelta(seconds=offset)).timestamp() * 1000)
                    arrived = arrival(milliseconds, by_broker=True, read_at=asked_at)
                    headers = self.headers.get((number, offset), HEADERS)
                    values = (
                        *(number, offset, asked_at if arrived is None else arrived, *record),
                        [{"key": name, "value": text} for name, text in headers] or None,
                    )
                    for column, value in zip(columns.values(), values, strict=True):
                        column.append(value)
        return columns

    def offsets(self) -> list[tuple[int, int]]:
        """All that a reader can see."""
        return [
            (number, offset)
            for number, records in enumerate(self.records)
            for offset, record in enumerate(records)
            if record
        ]


def with_retention(stream: StreamConfig, seconds: int, log_s: int | None = None) -> StreamConfig:
    """The stream with a shorter retention of old versions than users may set."""
    stream = replace(stream)
    log_s = seconds if log_s is None else log_s
    kept = {"file_retention_s": seconds, "snapshot_retention_s": seconds, "log_retention_s": log_s}
    for name, value in kept.items():
        object.__setattr__(stream, name, value)
    return stream


@dataclass
class Stream:
    """One stream in a warehouse of its own.

    `without_jobs` says for each batch whether it is read without a Spark job, and `without_spark`
    for each apply whether `merge_few` may do it; None: `WITHOUT_SPARK`. Each
    `process`, `changelog` and `table` is a new one, as after a restart: it remembers nothing.
    Batches and applies that are not given one are those of a process that goes on.
    """

    spark: SparkSession
    folder: Path
    config: StreamConfig = STREAM
    known_tables: frozenset[str] = frozenset({"t"})
    reject_unknown_tables: bool = False
    schema_by_id: Callable[[int], str | None] | None = None
    partition_of: Callable[[bytes, int], int] | None = None
    overrides: list[ClosePartition] = field(default_factory=list)
    releases: list[ReleaseTransaction] = field(default_factory=list)
    row_releases: list[ReleaseRows] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    topic: Topic = field(default_factory=Topic)
    clock: int = 1_714_475_984_000_000
    without_spark: Iterator[bool] | None = None
    without_jobs: Iterator[bool] = field(default_factory=lambda: cycle((True, False, True)))
    _going_on: Changelog | None = None

    @property
    def path(self) -> str:
        return f"{self.folder}/streams/{self.config.name}/changelog"

    def changelog(self, retention: VersionRetention | None = None) -> Changelog:
        return Changelog(
            self.spark, self.path, self.config.name, retention, write_rows, fold_batches
        )

    def publish(self, letters: Iterable[DeadLetter]) -> int:
        before = len(self.letters)
        self.letters.extend(letters)
        return len(self.letters) - before

    def now(self) -> int:
        self.clock += 1_000_000
        return self.clock

    def _changelog(self) -> Changelog:
        self._going_on = self._going_on or self.changelog()
        return self._going_on

    def process(
        self, on_step: Callable[[str], None] = lambda step: None, changelog: Changelog | None = None
    ) -> Ingest:
        world = IngestPorts(
            topic=lambda: self.topic.facts,
            publish=self.publish,
            now=self.now,
            high_watermarks=lambda: self.topic.rest().end,
            count_rows=count_rows,
            count_table=count_table,
            logged_positions=logged_positions,
            write_rows=write_rows,
            fold_batches=fold_batches,
            read_few=self._columns,
            earliest=dict,
            schema_by_id=self.schema_by_id,
            releases=lambda taken_to: [
                release for release in self.releases if release.number > taken_to
            ],
            row_releases=lambda taken_to: [
                release for release in self.row_releases if release.number > taken_to
            ],
            closed_partitions=lambda taken_to: [
                override for override in self.overrides if override.number > taken_to
            ],
            partition_of=self.partition_of,
        )
        return Ingest(
            self.config,
            changelog or self.changelog(),
            world,
            known_tables=self.known_tables,
            reject_unknown_tables=self.reject_unknown_tables,
            on_step=on_step,
        )

    def _columns(self, offsets: BatchRange, asked_at: int) -> dict[str, list[Any]] | None:
        is_small = next(self.without_jobs)
        return self.topic.columns(offsets, asked_at) if is_small else None

    def ingest(self, process: Ingest | None = None, offsets: BatchRange | None = None) -> Progress:
        """Take what is new in the topic as one batch."""
        offsets = offsets or self.topic.rest()
        progress = (process or self.process(changelog=self._changelog())).batch(
            self.topic.rows(self.spark, offsets), offsets
        )
        self.topic.read = dict(offsets.end)
        return progress

    def table(
        self, wanted: TableDefinition | None = None, retention: VersionRetention | None = None
    ) -> Table:
        wanted = wanted or definition()
        return Table(self.spark, f"{self.folder}/tables/{wanted.name}", wanted, retention=retention)

    def apply(
        self,
        table: Table,
        on_step: Callable[[str], None] = lambda step: None,
        *,
        now: int | None = None,
    ) -> Applied | None:
        """To the cut of the newest batch; `now` later than the last batch by the stall of the
        configuration goes past it.
        """
        changelog = self._changelog()
        cut = changelog.progress().cut(
            self.clock if now is None else now, self.config.stall_after_s, self.config.wait_s
        )
        return apply(
            table,
            changelog,
            table.layout.definition.source,
            cut,
            publish=self.publish,
            on_step=on_step,
            rules=LetterRules(are_too_many=self.config.rejects_too_many),
            merge_few=merge_few if next(self.without_spark or WITHOUT_SPARK) else None,
        )

    def logged_offsets(self) -> list[tuple[int, int]]:
        return sorted((kafka_partition, offset) for kafka_partition, offset, _ in self._logged())

    def _logged(self) -> Iterator[tuple[int, int, int]]:
        """Kafka partition, offset and ingest batch of every row."""
        for batch in batches(
            DeltaTable(self.path),
            'SELECT kafka_partition, "offset", ingest_batch FROM t'
            " WHERE kind NOT IN ('frontier', 'released')",
        ):
            yield from rows_in(batch)

    def one_letter_each(self) -> dict[str, DeadLetter]:
        """The letters by id. Two under one id must be the same, to the last byte."""
        by_id: dict[str, DeadLetter] = {}
        for letter in self.letters:
            assert by_id.setdefault(letter.id, letter) == letter
        return by_id

    def truth(
        self, wanted: TableDefinition | None = None, *, judged_after: int = 0
    ) -> dict[object, dict[str, object]]:
        """The table that the model makes of the whole topic, by key. Up to batch `judged_after`
        nothing is set aside.
        """
        wanted = wanted or definition()
        rows = (
            row_of(wanted, key, visible(state))
            for key, state in self.states(wanted, judged_after=judged_after).items()
        )
        return {_key_of(row, wanted): row for row in rows if row is not None}

    def states(
        self,
        wanted: TableDefinition,
        *,
        judged_after: int = 0,
        in_force: Callable[[int], TableDefinition] | None = None,
    ) -> dict[bytes, RowState]:
        """What `connector.tables.merge` knows of each row, of everything in the topic. `in_force`
        is the definition that judged the changes of a batch.
        """
        batch_of = {
            (kafka_partition, offset): batch for kafka_partition, offset, batch in self._logged()
        }
        states: dict[bytes, list[Any]] = {}
        rank = None
        for number, offset in self.topic.offsets():
            record = self.topic.records[number][offset]
            assert record is not None
            decoded = codec.decode(record[1], codec.Schemas())
            found = decoded.record if isinstance(decoded, codec.ChangeRecord) else None
            if isinstance(found, Truncate) and found.table == wanted.source:
                rank = greatest(rank, rank_of(found, wanted.order))
            if not isinstance(found, DataChange) or found.table != wanted.source:
                continue
            batch = batch_of[number, offset]
            judge = wanted if in_force is None else in_force(batch)
            if batch <= judged_after or read_change(judge, found) is None:
                position = OrderPosition(batch, number, offset, 0)
                states.setdefault(found.row_key, []).append(
                    lift(found, position, wanted.order, wanted.versions)
                )
        return {key: truncate(reduce(join, known), rank) for key, known in states.items()}


def shown(table: Table) -> dict[object, dict[str, object]]:
    """The rows of a table by key, in the form of `row_of`, as a reader without a JVM finds them."""
    wanted = table.layout.definition
    found = open_table(table.path)
    return _by_key([dict(zip(found.types, row, strict=True)) for row in found.rows()], wanted)


def rows_by_key(
    rows: DataFrame, wanted: TableDefinition | None = None
) -> dict[object, dict[str, object]]:
    """Rows that readers see, by key, in the form of `row_of`."""
    return _by_key(
        [{name: plain(value) for name, value in row.asDict().items()} for row in rows.collect()],
        wanted or definition(),
    )


def _by_key(
    found: list[dict[str, Any]], wanted: TableDefinition
) -> dict[object, dict[str, object]]:
    if wanted.keep_unmapped:
        for row in found:
            row["_unmapped"] = {
                name: plain(value) for name, value in dict(row["_unmapped"] or {}).items()
            }
    by_key = {_key_of(row, wanted): row for row in found}
    assert len(by_key) == len(found), "a key stands twice"
    return by_key


def _key_of(row: dict[str, Any], wanted: TableDefinition) -> object:
    first, *others = (row[part.name] for part in wanted.key.parts)
    return (first, *others) if others else first


def plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def versions(spark: SparkSession, path: str) -> int:
    """How many commits the Delta table has."""
    found = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").selectExpr("max(version)").first()
    assert found is not None
    return int(found[0])


def job_count(spark: SparkSession) -> int:
    """How many Spark jobs there were so far."""
    jvm_context: Any = spark.sparkContext._jsc
    return int(jvm_context.sc().dagScheduler().numTotalJobs())


def copied(stream: Stream, folder: Path) -> Stream:
    """The same stream in another place, with the same topic and letters: what becomes of the one
    leaves the other as it is.
    """
    copytree(stream.folder, folder)
    topic = replace(
        stream.topic,
        records=[list(records) for records in stream.topic.records],
        read=dict(stream.topic.read),
    )
    return replace(stream, folder=folder, letters=list(stream.letters), topic=topic, _going_on=None)
