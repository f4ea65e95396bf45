"""The changelog: one row for every Kafka record read, appended batch by batch, never changed (TBL-4, TBL-5).

One Delta commit per batch carries the batch's rows and, in its metadata, its offset range and the progress that was derived from the
rows: data, position and progress are one atomic fact. Where rows were rejected, the progress is a second commit, behind the letters.
The newest commit always says where the stream stands; the Spark checkpoint is a convenience that may be lost.

    slot    -3 frontiers that are too large for metadata, -2 rejected, -1 control, 0 to 15 by a hash of the source table's name: recent
            changes of one table are a few files
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from connector.config.retention import VersionRetention
from connector.errors import TableError, TopicError, WriterConflictError
from connector.spark.failures import explained
from connector.spark.sql import constant
from connector.spark.storage.delta_log import Commit, DeltaLog, session_saying, set_properties, user_metadata
from connector.spark.storage.files import Files, delta, log_of, scala_list, size_in_bytes
from connector.spark.storage.maintenance import Rewritten, Work, bytes_on_disk, clean, retention_properties, rewrite
from connector.spark.storage.offsets import BatchRange, Offsets, same
from connector.spark.storage.transaction import Transaction
from connector.state.maintenance_schedule import CommitCount
from connector.state.overrides import ClosePartition
from connector.state.stream_progress import Progress
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import UNKNOWN, Frontier

TABLE_SLOTS: Final = 16
CONTROL_SLOT: Final = -1
REJECTED_SLOT: Final = -2
FRONTIER_SLOT: Final = -3
_STATISTICS: Final = "ingest_batch,kafka_partition,offset,table,commit_timestamp"

_COLUMNS: Final = """
    CASE WHEN reason IS NOT NULL THEN 'rejected' WHEN data_change IS NOT NULL THEN 'change' ELSE 'control' END AS kind,
    {ingest_batch} AS ingest_batch,
    partition AS kafka_partition,
    offset,
    data_change.table AS table,
    timestamp_micros(data_change.commit_timestamp) AS commit_timestamp,
    data_change.row_key AS row_key,
    named_struct('ingest_batch', coalesce(first.ingest_batch, {ingest_batch}), 'kafka_partition',
        coalesce(first.kafka_partition, partition), 'offset', coalesce(first.offset, offset), 'attempt', attempt) AS order_position,
    topic,
    '{topic_id}' AS topic_id,
    timestamp AS record_timestamp,
    timestamp_micros({ingest_time}) AS ingest_time,
    headers,
    stream_partition,
    kafka_partitions,
    data_change.change_type AS change_type,
    data_change.source_cluster_id AS source_cluster_id,
    data_change.tie_breaker AS tie_breaker,
    data_change.resume_token AS resume_token,
    data_change.estimated_low_watermark AS estimated_low_watermark,
    data_change.entries AS entries,
    data_change.transaction AS transaction,
    data_change.change_sequence_number AS change_sequence_number,
    data_change.row_image AS row_image,
    heartbeat,
    child_partitions,
    reason,
    rule,
    CASE WHEN reason IS NOT NULL THEN concat('{topic_id}-', partition, '-', offset) END AS letter_id,
    CASE WHEN reason IS NOT NULL THEN key END AS key,
    CASE WHEN reason IS NOT NULL THEN value END AS value,
    cast(null AS string) AS frontier,
    CASE WHEN reason IS NOT NULL THEN {rejected} WHEN data_change IS NULL THEN {control}
         ELSE {table_slot} END AS slot
"""

_ALL_DIFFERENT: Final = (
    "row_key",
    "offset",
    "order_position.offset",
    "commit_timestamp",
    "estimated_low_watermark",
    "resume_token",
    "entries.list.element.cell_timestamp",
    "entries.list.element.value",
)
"""Columns that a dictionary would only slow down."""

_NEVER_SEARCHED: Final = (
    *(f"entries.list.element.{name}" for name in ("kind", "family", "qualifier", "cell_timestamp", "range_start", "range_end", "value")),
    *(f"order_position.{name}" for name in ("ingest_batch", "kafka_partition", "offset", "attempt")),
    *("topic_id", "record_timestamp", "ingest_time", "stream_partition", "kafka_partitions", "change_type", "source_cluster_id"),
    *("tie_breaker", "resume_token", "estimated_low_watermark"),
)
"""Columns whose bounds nobody asks for."""

PARQUET_SETTINGS: Final = {
    **{f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _ALL_DIFFERENT},
    **{f"spark.hadoop.parquet.column.statistics.enabled#{column}": "false" for column in _NEVER_SEARCHED},
}
"""What a session needs to write a changelog a sixth faster. Delta hands a writer's own options to Parquet in part only."""

_ENTRIES_VIEW: Final = """
    row_key, entry.kind AS mod_type, entry.family AS column_family, entry.qualifier AS column, entry.cell_timestamp,
    entry.range_start, entry.range_end, entry.value, commit_timestamp, tie_breaker, change_type = 'GARBAGE_COLLECTION' AS is_gc,
    source_cluster_id, table, ingest_batch, kafka_partition, offset, entry_index
"""


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A committed batch: its number in the changelog, which is not Spark's (MRG-3), its offsets, and the topic and its ends as they were.

    A batch that reads nothing keeps the offsets of the one before, so that Spark's next one goes on where that ended, and Spark's
    last one, should it run again, is found to be done. `ends` are the stream partitions that operators have end with it (WMK-8).
    `changelog_id` tells a changelog from one that was begun anew in its place: batch numbers mean nothing across the two. Of batches up
    to `trimmed_to` only the rejected rows are left (TBL-15).
    """

    ingest_batch: int
    offsets: BatchRange
    topic_id: str
    kafka_partitions: int
    asked: EndOffsets
    changelog_id: str
    writer: str
    ends: tuple[ClosePartition, ...] = ()
    trimmed_to: int = 0


@dataclass(frozen=True, slots=True)
class Recent:
    """Changes, and how many rows their files have: as many or more."""

    rows: DataFrame
    count: int


_LONG_LIST: Final = 1000
_NO_BATCH: Final = 2**63 - 1
_FRONTIER_IN_METADATA: Final = 16_384
"""Bytes: every commit has the metadata, those of moments and maintenance too."""
_RECENT_COMMITS: Final = 200
"""So far back the files of batches are looked for one commit after the other."""
_RENEWALS: Final = 2**32
"""More than there can be between two batches."""


class Changelog:
    """The changelog of one stream at `path`. One process writes it; whoever else does is noticed, and nothing is interleaved."""

    def __init__(self, spark: SparkSession, path: str, stream: str, retention: VersionRetention | None = None) -> None:
        """`retention` is declared today, for `declare`, and for a changelog that is begun; None leaves what it says of itself."""
        self._retention_s = (retention or VersionRetention()).file_s
        self._declares_retention = retention is not None
        self._spark = spark
        self._path = path
        self._stream = stream
        self._log = DeltaLog(spark, path)
        self._frontier = (0, UNKNOWN)
        self._slots: dict[str, int] = {}

    def newest(self) -> LoggedBatch | None:
        """The newest batch, or None for a changelog without any. Raises `TableError` if the table is not ours."""
        table_state = self._stored_in()
        return None if table_state is None else _logged_batch(table_state)

    def progress(self, *, with_frontier: bool = True) -> Progress:
        """The newest progress on record; it may lack the newest batch, if that one's progress commit is missing.

        Without its frontier, of which only the low watermark is known then, no row is read.
        """
        table_state = self._stored_in()
        if table_state is None:
            return Progress()
        stored = table_state["progress"]
        known = self._frontier_of(table_state) if with_frontier else Frontier(low_watermark=stored["low_watermark"])
        return Progress.from_json(stored, known)

    def find(self, offsets: BatchRange, topic_id: str) -> LoggedBatch | None:
        """The newest batch if its range is `offsets`, None if `offsets` go on where it ends.

        Anything else raises `WriterConflictError`: an old checkpoint was restored, or a second driver is at work. Delta would
        skip such a batch without a word. A topic other than the remembered one raises `TopicError` (REC-4).
        """
        newest = self.newest()
        if newest is None:
            return None
        if newest.topic_id != topic_id:
            raise TopicError(
                f"The topic of stream {self._stream} has the id {topic_id}, the changelog was written from {newest.topic_id}",
                "The topic was deleted and created again: its offsets mean other records now",
                "Name a new stream and new tables for the new topic, or move the stream's folder and those of its tables away",
            )
        if same(newest.offsets.end, offsets.start):
            return None
        if same(newest.offsets.start, offsets.start) and same(newest.offsets.end, offsets.end):
            return newest
        raise self._does_not_continue(offsets, newest)

    def append(
        self, rows: DataFrame, batch: LoggedBatch, *, ingest_time: int, settle: Callable[[DataFrame], Progress | None] = lambda rows: None
    ) -> None:
        """Commit a batch of rows, judged (`spark.decode`) and placed (`spark.replays`), and read back that it was ours.

        `ingest_time` in microseconds. `settle` gets the rows as they were written, before anybody else sees them; the progress that it
        returns is part of the commit, None leaves it to `append_progress`.

        Raises `WriterConflictError` if another writer took the batch's number; then nothing of ours is visible.
        """
        slots = {"rejected": REJECTED_SLOT, "control": CONTROL_SLOT, "table_slot": _table_slot("data_change.table")}
        columns = _COLUMNS.format(
            ingest_batch=constant(batch.ingest_batch, "partition"),
            topic_id=batch.topic_id,
            ingest_time=constant(ingest_time, "partition"),
            **slots,
        )
        selected = rows.selectExpr(*_split(columns))
        before = self._stored_in() or self._create(selected, batch)
        newest = _logged_batch(before)
        if newest is not None and not same(newest.offsets.end, batch.offsets.start):
            raise self._does_not_continue(batch.offsets, newest)
        self._append(selected, "batch", before, batch, settle)

    def append_nothing(self, batch: LoggedBatch) -> None:
        """Commit a batch that reads nothing, behind the newest one, and read back that it was ours. Raises as `append` does."""
        before = self._stored_in()
        assert before is not None
        self._append(None, "closed_partitions", before, batch)

    def _append(
        self,
        rows: DataFrame | None,
        commit: str,
        before: Mapping[str, Any],
        batch: LoggedBatch,
        settle: Callable[[DataFrame], Progress | None] = lambda rows: None,
    ) -> None:
        table_state = {
            **before,
            "commit": commit,
            "writer": batch.writer,
            "topic_id": batch.topic_id,
            "kafka_partitions": batch.kafka_partitions,
            "changelog_id": batch.changelog_id,
            "topic_read_at": batch.asked.at,
            "topic_end_offsets": _with_text_keys(batch.asked.ends),
            "ingest_batch": batch.ingest_batch,
            # Where the first batch, or the first with a Kafka partition, began to read it.
            "first_offsets": {**_with_text_keys(batch.offsets.start), **before.get("first_offsets", {})},
            "start_offsets": _with_text_keys(batch.offsets.start),
            "end_offsets": _with_text_keys(batch.offsets.end),
            "closed_partitions": [asdict(override) for override in batch.ends],
            "refreshes": 0,
        }
        with explained(f"stream {self._stream}"):
            transaction = self._begin("batches")
            settled = None
            if rows is not None:
                transaction.write(rows)
                settled = settle(transaction.written.rows())
            said = table_state if settled is None else {**table_state, **self._said_of(settled, transaction)}
            transaction.commit(batch.ingest_batch * _RENEWALS, said)
        if (newest := self.newest()) is None or (newest.ingest_batch, newest.writer) != (batch.ingest_batch, batch.writer):
            raise WriterConflictError(
                f"Batch {batch.ingest_batch} of stream {self._stream} was written by another process",
                "Two processes ingest the same stream",
                "Stop one of them; this one has written nothing",
            )
        if settled is not None:
            self._frontier = (batch.ingest_batch, settled.frontier)

    def progress_before(self, batch: LoggedBatch) -> Progress:
        """The newest progress on record: that of `batch`, the newest one, or of the batch before it.

        Raises `WriterConflictError` if another process has logged a further batch: then all of `batch` is done.
        """
        self._check_newest(batch.ingest_batch, self._stored_in() or {})
        return self.progress()

    def append_progress(self, progress: Progress) -> None:
        """Commit the progress up to the newest batch, of which rows were rejected: their letters are published.

        Raises `WriterConflictError` if another process has logged a further batch, which it did behind this progress.
        """
        table_state = self._stored_in()
        assert table_state is not None
        self._check_newest(progress.ingest_batch, table_state)
        with explained(f"stream {self._stream}"):
            transaction = self._begin("progress")
            said = self._said_of(progress, transaction)
            transaction.commit(progress.ingest_batch, {**table_state, "commit": "progress", **said})
        self._frontier = (progress.ingest_batch, progress.frontier)

    def _said_of(self, progress: Progress, transaction: Transaction) -> dict[str, Any]:
        """What a commit says of a progress. A frontier that is too large for that becomes a row of the commit."""
        frontier = progress.frontier.to_json()
        stored = json.dumps(frontier, separators=(",", ":"))
        if len(stored) <= _FRONTIER_IN_METADATA:
            return {"progress": progress.to_json(), "frontier": frontier}
        row = self._spark.range(1).select(
            F.lit("frontier").alias("kind"),
            F.expr(f"{constant(progress.ingest_batch, 'int(id)')}").alias("ingest_batch"),
            F.lit(stored).alias("frontier"),
            F.lit(FRONTIER_SLOT).alias("slot"),
        )
        transaction.write(row)
        return {"progress": progress.to_json(), "frontier": None}

    def _begin(self, kind: str) -> Transaction:
        return Transaction(self._spark, self._path, f"lowmark/{self._stream}/{kind}")

    def renew(self, progress: Progress) -> None:
        """Commit the progress of the newest batch again, with a newer moment and no rows (TBL-16).

        Its number lies between those of the batch and of the next one: where another process has logged that, nothing is committed.
        """
        table_state = self._stored_in()
        assert table_state is not None
        number = table_state["refreshes"] + 1
        renewed = {**table_state, "commit": "freshness", "refreshes": number, "progress": progress.to_json()}
        with explained(f"stream {self._stream}"):
            self._begin("batches").commit(progress.ingest_batch * _RENEWALS + number, renewed)

    def declare(self) -> None:
        """Have the table keep files of old versions as long as is declared today (TBL-23). While nothing is ingested."""
        table_state = self._stored_in()
        if table_state is None or not self._declares_retention or table_state.get("file_retention_s") == self._retention_s:
            return
        said = user_metadata({**table_state, "commit": "declared", "file_retention_s": self._retention_s})
        with explained(f"stream {self._stream}"):
            set_properties(self._spark, self._path, retention_properties(self._retention_s), said)

    def passed(self) -> list[CommitCount]:
        """What commits did to the files of the changelog since the last call."""
        return self._log.passed()

    def begun_at(self) -> int:
        """When the oldest commit was made that is still known, in microseconds."""
        return self._log.oldest_at()

    def rewrite(self) -> Rewritten | None:
        """Write small files together, if it is worth it, for `put_together`; no row changes (TBL-15). Ingest may go on meanwhile."""
        if self._stored_in() is None:
            return None
        with explained(f"stream {self._stream}"):
            return rewrite(self._spark, self._path)

    def put_together(self, rewritten: Rewritten) -> None:
        """Have new files take the place of the old ones, in one commit that says what the newest one does. While nothing is ingested."""
        with explained(f"stream {self._stream}"):
            app_ids = [f"lowmark/{self._stream}/{kind}" for kind in ("batches", "progress")]
            rewritten.commit(self._log, app_ids, lambda said: {**said, "commit": "compacted"})

    def clean(self) -> Work:
        """Remove files that no version needs which the retention keeps (TBL-23). Ingest may go on meanwhile."""
        if self._stored_in() is None:
            return Work()
        before = bytes_on_disk(self._spark, self._path)
        with explained(f"stream {self._stream}"):
            removed = clean(self._spark, self._path)
        after = bytes_on_disk(self._spark, self._path)
        return Work(removed, max(0, before - after), size_in_bytes(self._spark, self._path), after)

    def clean_log(self, before: int) -> None:
        """Remove what no version needs of the log that was the newest one at `before` (microseconds) or later."""
        self._log.clean(before)

    def trim(self, covered: int, *, before: int) -> int:
        """Let changes and control records go of the oldest batches that were ingested before `before` (microseconds), none above `covered`.

        The newest batch stays, and rejected rows do, whose letters are open (TBL-15). What is left begins, for an audit, behind the last
        row that went. While nothing is ingested. Returns the batch up to which they are gone.
        """
        newest, table_state = self.newest(), self._stored_in()
        if newest is None or table_state is None:
            return 0
        # The frontier of the newest progress is a row, too.
        last_batch = min(covered, table_state["progress"]["ingest_batch"] - 1)
        of_batches = F.expr(f"ingest_batch > {newest.trimmed_to}L AND ingest_batch <= {last_batch}L")
        old = self.rows().where(of_batches)
        young = old.where(F.expr(f"unix_micros(ingest_time) >= {before}L")).agg(F.min("ingest_batch")).first()
        last = old.agg(F.max("ingest_batch")).first()
        assert young is not None
        assert last is not None
        to = last[0] if young[0] is None else young[0] - 1
        if to is None or to <= newest.trimmed_to:
            return newest.trimmed_to
        gone = old.where(F.col("ingest_batch") <= to).groupBy("kafka_partition").agg(F.max("offset")).collect()
        begin = {**table_state.get("first_offsets", {}), **{str(row[0]): row[1] + 1 for row in gone}}
        said = user_metadata({**table_state, "commit": "trimmed", "trimmed_to": to, "first_offsets": begin})
        with explained(f"stream {self._stream}"):
            DeltaTable.forPath(session_saying(self._spark, said), self._path).delete(f"ingest_batch <= {to}L AND slot <> {REJECTED_SLOT}")
        return int(to)

    def rows(self) -> DataFrame:
        """One row for each Kafka record read."""
        return self._rows_and_frontiers().where(F.col("slot") > FRONTIER_SLOT)

    def batch_rows(self, ingest_batch: int) -> DataFrame:
        """The rows of one batch."""
        return self.rows().where(F.col("ingest_batch") == ingest_batch)

    def rejected(self, ingest_batch: int) -> DataFrame:
        """The rejected rows of one batch."""
        return self.batch_rows(ingest_batch).where(F.col("slot") == REJECTED_SLOT)

    def rejected_between(self, after: int, to: int) -> DataFrame:
        """The rejected rows of the ingest batches `(after, to]`."""
        return self.rows().where((F.col("slot") == REJECTED_SLOT) & F.expr(_batches(after, to)))

    def changes(self, source: str, *, after: int, to: int, pinned: bool = False) -> DataFrame:
        """The changes of one source table in the ingest batches `(after, to]`.

        `pinned`: as they are now, whatever of them is let go before they are asked for.
        """
        in_slot = F.col("slot") == F.expr(_table_slot(f"'{source}'"))
        return self._changes(in_slot & (F.col("table") == source), after=after, to=to, pinned=pinned)

    def recent_changes(self, source: str, *, after: int, to: int) -> Recent | None:
        """`changes`, from the files that the commits of these batches name; else None.

        It is for a few batches that nobody has put together since, or let go: Delta's state of the log is not asked. They stay readable as
        `pinned` ones do.
        """
        newest, slot, added = self._log.newest(), str(self._slot_of(source)), list[Any]()
        from_json = delta(self._spark).actions.Action.fromJson
        for commit in islice(self._log.back_from(newest.version if newest else -1), _RECENT_COMMITS):
            said = commit.table_state
            if said is not None and said["ingest_batch"] <= after:
                break
            if said is None or commit.removed:
                return None
            if said["commit"] == "batch" and said["ingest_batch"] <= to:
                added += (file for file in map(from_json, commit.added) if file.partitionValues().apply("slot") == slot)
        else:
            return None
        log = log_of(self._spark, self._path)
        rows = Files(self._spark, log, log.unsafeVolatileSnapshot(), scala_list(self._spark, added)).rows()
        count = sum(int(file.numPhysicalRecords().get()) for file in added)
        return Recent(rows.where((F.col("table") == source) & (F.col("kind") == "change")), count)

    def _slot_of(self, source: str) -> int:
        if source not in self._slots:
            slot = _table_slot(f"'{source}'")
            self._slots[source] = self._spark.sql(f"SELECT {slot}").collect()[0][0]
        return self._slots[source]

    def all_changes(self, *, after: int, to: int) -> DataFrame:
        """The changes of all source tables in the ingest batches `(after, to]`."""
        return self._changes(F.col("slot") > FRONTIER_SLOT, after=after, to=to)

    def _changes(self, which: Column, *, after: int, to: int, pinned: bool = False) -> DataFrame:
        return self._rows_and_frontiers(pinned=pinned).where(which & (F.col("kind") == "change") & F.expr(_batches(after, to)))

    def entries(self) -> DataFrame:
        """One row per entry of every change, in the shape of Bigtable's change log (TBL-4)."""
        exploded = self.rows().where("kind = 'change'").selectExpr("*", "posexplode(entries) AS (entry_index, entry)")
        return exploded.selectExpr(*_split(_ENTRIES_VIEW))

    def _rows_and_frontiers(self, *, pinned: bool = False) -> DataFrame:
        reader = self._spark.read.format("delta")
        if pinned and (newest := self._log.newest()) is not None:
            reader = reader.option("versionAsOf", newest.version)
        return reader.load(self._path)

    def _frontier_of(self, table_state: Mapping[str, Any]) -> Frontier:
        known, ingest_batch = self._frontier, int(table_state["progress"]["ingest_batch"])  # one look: another thread may go on meanwhile
        if known[0] == ingest_batch:
            return known[1]
        if (stored := table_state.get("frontier")) is not None:
            self._frontier = known = (ingest_batch, Frontier.from_json(stored))
        else:
            of_batch = (F.col("slot") == FRONTIER_SLOT) & (F.col("ingest_batch") == ingest_batch)
            row = self._rows_and_frontiers().where(of_batch).select("frontier").first()
            if row is None:
                raise TableError(
                    f"The changelog {self._path} has no frontier of batch {ingest_batch}",
                    "Somebody else removed rows, or files of it",
                    "Restore the table to our last version (RESTORE TABLE … TO VERSION AS OF)",
                )
            self._frontier = known = (ingest_batch, Frontier.from_json(json.loads(row["frontier"])))
        return known[1]

    def _stored_in(self) -> Mapping[str, Any] | None:
        commit = self._log.newest()
        if commit is None:
            if self._log.has_other_files():
                raise TableError(
                    f"{self._path} is not empty, and holds no Delta table",
                    "Something else was put where the changelog belongs",
                    "Move it away, or name another warehouse",
                )
            return None
        return _ours(commit, self._path, self._stream)

    def _create(self, rows: DataFrame, batch: LoggedBatch) -> Mapping[str, Any]:
        """Make the table before the first rows are written: files without a log would be somebody else's to the next process."""
        begun = {
            "commit": "created",
            "stream": self._stream,
            "writer": batch.writer,
            "topic_id": batch.topic_id,
            "kafka_partitions": batch.kafka_partitions,
            "changelog_id": batch.changelog_id,
            "ingest_batch": 0,
            "start_offsets": {},
            "end_offsets": {},
            "progress": Progress().to_json(),
            "frontier": UNKNOWN.to_json(),
            "file_retention_s": self._retention_s,
        }
        self._make(rows.limit(0), begun)
        return self._stored_in() or begun

    def _check_newest(self, ingest_batch: int, table_state: Mapping[str, Any]) -> None:
        newest = table_state.get("ingest_batch", 0)
        assert newest >= ingest_batch, (newest, ingest_batch)
        if newest > ingest_batch:
            raise WriterConflictError(
                f"Batch {ingest_batch} of stream {self._stream} was brought to its end by another process, which has gone on to {newest}",
                "Two processes ingest the same stream",
                "Stop one of them; this one has written nothing that the other did not",
            )

    def _does_not_continue(self, offsets: BatchRange, newest: LoggedBatch) -> WriterConflictError:
        return WriterConflictError(
            f"A batch of stream {self._stream} begins at {dict(offsets.start)}, but the changelog ends at {dict(newest.offsets.end)}",
            "An old checkpoint was restored, or another process ingests the same stream",
            "Stop the other process; if there is none, remove the stream's checkpoint folder: ingest goes on from the changelog",
        )

    def _make(self, no_rows: DataFrame, table_state: Mapping[str, Any]) -> None:
        writer = no_rows.write.format("delta").mode("append").partitionBy("slot")
        writer.option("delta.dataSkippingStatsColumns", _STATISTICS).option("delta.appendOnly", "false").option(
            "delta.checkpointInterval", "50"
        ).option("txnAppId", f"lowmark/{self._stream}/batches").option("txnVersion", "0").option("userMetadata", user_metadata(table_state))
        writer.options(**retention_properties(self._retention_s))
        with explained(f"stream {self._stream}"):
            writer.save(self._path)


def _table_slot(table: str) -> str:
    """Where the changes of a source table lie. `table` is an expression of its name."""
    return f"int(pmod(xxhash64({table}), {TABLE_SLOTS}))"


def _batches(after: int, to: int) -> str:
    """Whether a row is of the ingest batches `(after, to]`, as code that is the same for all of them, as `constant` is.

    A set is, bounds and a single number are not; Delta skips the files of older batches all the same.
    """
    if to - after > _LONG_LIST:
        return f"ingest_batch > {after}L AND ingest_batch <= {to}L"
    return f"ingest_batch IN ({', '.join(f'{batch}L' for batch in [*range(after + 1, to + 1), _NO_BATCH])})"


def _logged_batch(table_state: Mapping[str, Any]) -> LoggedBatch | None:
    if not table_state["ingest_batch"]:
        return None

    def offsets(name: str) -> Offsets:
        return {int(k): int(offset) for k, offset in table_state[name].items()}

    batch_range = BatchRange(offsets("start_offsets"), offsets("end_offsets"))
    names = {name: str(table_state[name]) for name in ("topic_id", "changelog_id", "writer")}
    asked = EndOffsets(int(table_state["topic_read_at"]), offsets("topic_end_offsets"))
    ends = tuple(ClosePartition(**override) for override in table_state.get("closed_partitions", ()))
    number, kafka_partitions = int(table_state["ingest_batch"]), int(table_state["kafka_partitions"])
    trimmed_to = int(table_state.get("trimmed_to", 0))
    return LoggedBatch(number, batch_range, kafka_partitions=kafka_partitions, asked=asked, ends=ends, trimmed_to=trimmed_to, **names)


def _with_text_keys(offsets: Offsets) -> dict[str, int]:
    return {str(k): offset for k, offset in offsets.items()}


def _ours(commit: Commit, path: str, stream: str) -> Mapping[str, Any]:
    if commit.table_state is None or commit.table_state.get("stream") != stream:
        raise TableError(
            f"The newest commit of {path} (version {commit.version}, {commit.operation}) is not of stream {stream}",
            "Another table lies there, or somebody else wrote to the changelog",
            "Restore the table to our last version (RESTORE TABLE … TO VERSION AS OF), or name another warehouse",
        )
    return commit.table_state


def _split(columns: str) -> list[str]:
    """The expressions of a select list: split at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(columns):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(columns[start:place].strip())
            start = place + 1
    return [*parts, columns[start:].strip()]
