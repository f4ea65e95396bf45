"""The changelog: one row for every Kafka record that was read. Rows are appended batch by batch and
never changed (TBL-4, TBL-5).

One Delta commit per batch has the batch's rows. Its metadata has the offset range and the progress
that was computed from the rows. So rows, position and progress are stored together or not at all.
If rows were rejected, the progress is a second commit, after their dead letters. The newest commit
always has the position of the stream. The Spark checkpoint may be lost.

`connector.state.changelog_slots` has the slots. Recent changes of one table are in a few files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from connector.config.retention import VersionRetention
from connector.errors import ErrorCode, TableError, TopicError, WriterConflictError
from connector.spark.failures import explained
from connector.spark.sql import constant
from connector.spark.storage.delta_log import (
    Commit,
    DeltaLog,
    session_saying,
    set_properties,
    user_metadata,
)
from connector.spark.storage.files import Files, delta, log_of, scala_list, size_in_bytes
from connector.spark.storage.maintenance import (
    Rewritten,
    Work,
    bytes_on_disk,
    clean,
    retention_properties,
    rewrite,
)
from connector.spark.storage.offsets import BatchRange, Offsets, same
from connector.spark.storage.transaction import Transaction
from connector.state.changelog_slots import (
    CONTROL_SLOT,
    FRONTIER_SLOT,
    REJECTED_SLOT,
    TABLE_SLOTS,
)
from connector.state.maintenance_schedule import CommitCount
from connector.state.overrides import ClosePartition
from connector.state.reading import reading
from connector.state.stream_progress import Progress
from connector.stored import from_stored, to_stored
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import UNKNOWN, Frontier

_STATISTICS: Final = "ingest_batch,kafka_partition,offset,table,commit_timestamp"

_COLUMNS: Final = """
    CASE WHEN reason IS NOT NULL THEN 'rejected' WHEN data_change IS NOT NULL
        THEN 'change' ELSE 'control' END AS kind,
    {ingest_batch} AS ingest_batch,
    partition AS kafka_partition,
    offset,
    data_change.table AS table,
    timestamp_micros(data_change.commit_timestamp) AS commit_timestamp,
    data_change.row_key AS row_key,
    named_struct('ingest_batch', coalesce(first.ingest_batch, {ingest_batch}), 'kafka_partition',
        coalesce(first.kafka_partition, partition), 'offset', coalesce(first.offset, offset),
        'attempt', attempt) AS order_position,
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
    CASE WHEN reason IS NOT NULL THEN concat('{topic_id}-', partition, '-',
    offset) END AS letter_id,
    CASE WHEN reason IS NOT NULL THEN key END AS key,
    CASE WHEN reason IS NOT NULL OR keeps_value THEN value END AS value,
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
"""Columns that a dictionary would only make slower."""

_NEVER_SEARCHED: Final = (
    *(
        f"entries.list.element.{name}"
        for name in (
            "kind",
            "family",
            "qualifier",
            "cell_timestamp",
            "range_start",
            "range_end",
            "value",
        )
    ),
    *(
        f"order_position.{name}"
        for name in ("ingest_batch", "kafka_partition", "offset", "attempt")
    ),
    *(
        "topic_id",
        "record_timestamp",
        "ingest_time",
        "stream_partition",
        "kafka_partitions",
        "change_type",
        "source_cluster_id",
    ),
    *("tie_breaker", "resume_token", "estimated_low_watermark"),
)
"""Columns whose minimum and maximum are never used."""

PARQUET_SETTINGS: Final = {
    **{f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _ALL_DIFFERENT},
    **{
        f"spark.hadoop.parquet.column.statistics.enabled#{column}": "false"
        for column in _NEVER_SEARCHED
    },
}
"""Settings of the session with which a changelog is written a sixth faster. Delta passes only a
part of a writer's options to Parquet.
"""

_ENTRIES_VIEW: Final = """
    row_key, entry.kind AS mod_type, entry.family AS column_family, entry.qualifier AS column,
    entry.cell_timestamp,
    entry.range_start, entry.range_end, entry.value, commit_timestamp, tie_breaker,
    change_type = 'GARBAGE_COLLECTION' AS is_gc,
    source_cluster_id, table, ingest_batch, kafka_partition, offset, entry_index
"""


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A committed batch: its number in the changelog, its offsets, and the state of the topic at
    that time.

    The number is not Spark's batch id (MRG-3). A batch without records keeps the offsets of the
    batch before. So Spark's next batch continues there, and Spark's last batch is detected if it
    runs again. `asked` has the end offsets of the topic. `ends` are the stream partitions that
    operators close with this batch (WMK-8). `changelog_id` identifies the changelog. If a new
    changelog replaces it, batch numbers have another meaning. The batches up to `trimmed_to` have
    only their rejected rows left (TBL-15).
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
    """Changes, and the number of rows in their files. The files may have more rows than there are
    changes.
    """

    rows: DataFrame
    count: int


_LONG_LIST: Final = 1000
_NO_BATCH: Final = 2**63 - 1
_FRONTIER_IN_METADATA: Final = 16_384
"""In bytes. Every commit has the metadata, also those that only refresh the progress or do
maintenance.
"""
_RECENT_COMMITS: Final = 200
"""Up to this many commits are searched one by one for the files of batches."""
_RENEWALS: Final = 2**32
"""More than the possible number of refreshes between two batches."""


class Changelog:
    """The changelog of one stream at `path`. One process writes it. Another writer is detected, and
    commits are not mixed.
    """

    def __init__(
        self, spark: SparkSession, path: str, stream: str, retention: VersionRetention | None = None
    ) -> None:
        """`retention` is that of the configuration, for `declare` and for a new changelog. None:
        the stored one stays.
        """
        self._retention_s = (retention or VersionRetention()).file_s
        self._declares_retention = retention is not None
        self._spark = spark
        self._path = path
        self._stream = stream
        self._log = DeltaLog(spark, path)
        self._frontier = (0, UNKNOWN)
        self._slots: dict[str, int] = {}

    def newest(self) -> LoggedBatch | None:
        """The newest batch. None: the changelog has no batch. Raises `TableError` if it is not a
        changelog of this stream.
        """
        stored = self._stored_in()
        return None if stored is None else _logged_batch(stored)

    def progress(self, *, with_frontier: bool = True) -> Progress:
        """The newest stored progress. It may lack the newest batch, if the progress commit of that
        batch is missing.

        Without its frontier, it has only the low watermark of the frontier, and no row is read.
        """
        stored = self._stored_in()
        if stored is None:
            return Progress()
        with reading(self._path):
            progress = stored["progress"]
            known = (
                self._frontier_of(stored)
                if with_frontier
                else Frontier(low_watermark=progress["low_watermark"])
            )
            return Progress.from_json(progress, known)

    def find(self, offsets: BatchRange, topic_id: str) -> LoggedBatch | None:
        """The newest batch, if its range is `offsets`. None: `offsets` continue after it.

        Raises `WriterConflictError` for any other range: an old checkpoint was restored, or a
        second driver is running. Delta would skip such a batch without an error. Raises
        `TopicError` if the topic is not the stored one (REC-4).
        """
        newest = self.newest()
        if newest is None:
            return None
        if newest.topic_id != topic_id:
            raise TopicError(
                ErrorCode.TOPIC_REPLACED,
                f"The topic of stream {self._stream} has the ID {topic_id}, but the changelog was"
                f" written from the topic with the ID {newest.topic_id}",
                "The topic was deleted and created again. Its offsets now mean other records",
                "Configure a new stream and new tables for the new topic, or move the folders of"
                " the stream and of its tables away",
                stream=self._stream,
            )
        if same(newest.offsets.end, offsets.start):
            return None
        if same(newest.offsets.start, offsets.start) and same(newest.offsets.end, offsets.end):
            return newest
        raise self._does_not_continue(offsets, newest)

    def append(
        self,
        rows: DataFrame,
        batch: LoggedBatch,
        *,
        ingest_time: int,
        settle: Callable[[DataFrame], Progress | None] = lambda rows: None,
    ) -> None:
        """Commit a batch of rows, validated (`connector.spark.ingest.validate`) and placed
        (`connector.spark.ingest.replays`), and check the commit.

        `ingest_time` is in microseconds. `settle` gets the written rows before any reader sees
        them. The progress that it returns is part of the commit. None: `append_progress` stores it
        later.

        Raises `WriterConflictError` if another writer took the batch's number. Then no row of this
        batch is visible.
        """
        slots = {
            "rejected": REJECTED_SLOT,
            "control": CONTROL_SLOT,
            "table_slot": _table_slot("data_change.table"),
        }
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
        """Commit a batch without records, after the newest one, and check the commit. Raises as
        `append`.
        """
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
        stored = {
            **before,
            "commit": commit,
            "writer": batch.writer,
            "topic_id": batch.topic_id,
            "kafka_partitions": batch.kafka_partitions,
            "changelog_id": batch.changelog_id,
            "topic_read_at": batch.asked.at,
            "topic_end_offsets": to_stored(batch.asked.ends),
            "ingest_batch": batch.ingest_batch,
            # The offsets where the first batch, or the first one with a Kafka partition, began to
            # read.
            "first_offsets": {
                **to_stored(batch.offsets.start),
                **before.get("first_offsets", {}),
            },
            "start_offsets": to_stored(batch.offsets.start),
            "end_offsets": to_stored(batch.offsets.end),
            "closed_partitions": to_stored(batch.ends),
            "refreshes": 0,
        }
        with explained(f"stream {self._stream}"):
            transaction = self._begin("batches")
            settled = None
            if rows is not None:
                transaction.write(rows)
                settled = settle(transaction.written.rows())
            said = (
                stored if settled is None else {**stored, **self._metadata_of(settled, transaction)}
            )
            transaction.commit(batch.ingest_batch * _RENEWALS, said)
        if (newest := self.newest()) is None or (newest.ingest_batch, newest.writer) != (
            batch.ingest_batch,
            batch.writer,
        ):
            raise WriterConflictError(
                ErrorCode.BATCH_OF_ANOTHER_PROCESS,
                f"Another process wrote batch {batch.ingest_batch} of stream {self._stream}",
                "Two processes ingest the same stream",
                "Stop one of the two processes. This one has written nothing",
                stream=self._stream,
                ingest_batch=batch.ingest_batch,
            )
        if settled is not None:
            self._frontier = (batch.ingest_batch, settled.frontier)

    def progress_before(self, batch: LoggedBatch) -> Progress:
        """The newest stored progress: that of `batch`, which must be the newest batch, or that of
        the batch before.

        Raises `WriterConflictError` if another process has logged a later batch. Then `batch` is
        complete.
        """
        self._check_newest(batch.ingest_batch, self._stored_in() or {})
        return self.progress()

    def append_progress(self, progress: Progress) -> None:
        """Commit the progress of the newest batch, whose rejected rows were published as dead
        letters.

        Raises `WriterConflictError` if another process has logged a later batch. That process has
        stored this progress before.
        """
        stored = self._stored_in()
        assert stored is not None
        self._check_newest(progress.ingest_batch, stored)
        with explained(f"stream {self._stream}"):
            transaction = self._begin("progress")
            said = self._metadata_of(progress, transaction)
            transaction.commit(progress.ingest_batch, {**stored, "commit": "progress", **said})
        self._frontier = (progress.ingest_batch, progress.frontier)

    def _metadata_of(self, progress: Progress, transaction: Transaction) -> dict[str, Any]:
        """The commit metadata of a progress. A frontier that is too large for metadata becomes a
        row of the commit.
        """
        frontier = progress.frontier.to_json()
        text = json.dumps(frontier, separators=(",", ":"))
        if len(text) <= _FRONTIER_IN_METADATA:
            return {"progress": progress.to_json(), "frontier": frontier}
        row = self._spark.range(1).select(
            F.lit("frontier").alias("kind"),
            F.expr(f"{constant(progress.ingest_batch, 'int(id)')}").alias("ingest_batch"),
            F.lit(text).alias("frontier"),
            F.lit(FRONTIER_SLOT).alias("slot"),
        )
        transaction.write(row)
        return {"progress": progress.to_json(), "frontier": None}

    def _begin(self, kind: str) -> Transaction:
        return Transaction(self._spark, self._path, f"lowmark/{self._stream}/{kind}")

    def renew(self, progress: Progress) -> None:
        """Commit the progress of the newest batch again, with a newer freshness and no rows
        (TBL-16).

        Its number is between those of the batch and of the next one. If another process has logged
        the next batch, nothing is committed.
        """
        stored = self._stored_in()
        assert stored is not None
        number = stored["refreshes"] + 1
        renewed = {
            **stored,
            "commit": "freshness",
            "refreshes": number,
            "progress": progress.to_json(),
        }
        with explained(f"stream {self._stream}"):
            self._begin("batches").commit(progress.ingest_batch * _RENEWALS + number, renewed)

    def declare(self) -> None:
        """Store the retention of the configuration in the changelog's properties (TBL-23). Call it
        while there is no ingest.
        """
        stored = self._stored_in()
        if (
            stored is None
            or not self._declares_retention
            or stored.get("file_retention_s") == self._retention_s
        ):
            return
        said = user_metadata(
            {**stored, "commit": "declared", "file_retention_s": self._retention_s}
        )
        with explained(f"stream {self._stream}"):
            set_properties(self._spark, self._path, retention_properties(self._retention_s), said)

    def passed(self) -> list[CommitCount]:
        """The number of files that commits added to and removed from the changelog since the last
        call.
        """
        return self._log.passed()

    def begun_at(self) -> int:
        """When the oldest known commit was made, in microseconds."""
        return self._log.oldest_at()

    def rewrite(self) -> Rewritten | None:
        """Write the rows of small files into larger ones, for `put_together`, if it is worth it. No
        row changes (TBL-15). Ingest may run meanwhile.
        """
        if self._stored_in() is None:
            return None
        with explained(f"stream {self._stream}"):
            return rewrite(self._spark, self._path)

    def put_together(self, rewritten: Rewritten) -> None:
        """Replace old files by new ones, in one commit with the metadata of the newest one. Call it
        while there is no ingest.
        """
        with explained(f"stream {self._stream}"):
            app_ids = [f"lowmark/{self._stream}/{kind}" for kind in ("batches", "progress")]
            rewritten.commit(self._log, app_ids, lambda said: {**said, "commit": "compacted"})

    def clean(self) -> Work:
        """Remove files that are only needed for versions older than the retention (TBL-23). Ingest
        may run meanwhile.
        """
        if self._stored_in() is None:
            return Work()
        before = bytes_on_disk(self._spark, self._path)
        with explained(f"stream {self._stream}"):
            removed = clean(self._spark, self._path)
        after = bytes_on_disk(self._spark, self._path)
        return Work(removed, max(0, before - after), size_in_bytes(self._spark, self._path), after)

    def clean_log(self, before: int) -> None:
        """Remove log files that are only needed for versions before `before` (microseconds)."""
        self._log.clean(before)

    def trim(self, covered: int, *, before: int) -> int:
        """Delete changes and control records of old batches, up to the batch `covered`.

        A batch is old if it was ingested before `before` (microseconds). The newest batch stays.
        Rejected rows stay too, because their dead letters may be open (TBL-15). For an audit, the
        changelog then begins after the last deleted row. Call it while there is no ingest. Returns
        the last batch whose rows are deleted.
        """
        newest, stored = self.newest(), self._stored_in()
        if newest is None or stored is None:
            return 0
        # The frontier of the newest progress may also be a row.
        last_batch = min(covered, stored["progress"]["ingest_batch"] - 1)
        of_batches = F.expr(
            f"ingest_batch > {newest.trimmed_to}L AND ingest_batch <= {last_batch}L"
        )
        old = self.rows().where(of_batches)
        young = (
            old.where(F.expr(f"unix_micros(ingest_time) >= {before}L"))
            .agg(F.min("ingest_batch"))
            .first()
        )
        last = old.agg(F.max("ingest_batch")).first()
        assert young is not None
        assert last is not None
        to = last[0] if young[0] is None else young[0] - 1
        if to is None or to <= newest.trimmed_to:
            return newest.trimmed_to
        gone = (
            old.where(F.col("ingest_batch") <= to)
            .groupBy("kafka_partition")
            .agg(F.max("offset"))
            .collect()
        )
        begin = {
            **stored.get("first_offsets", {}),
            **{str(row[0]): row[1] + 1 for row in gone},
        }
        said = user_metadata(
            {**stored, "commit": "trimmed", "trimmed_to": to, "first_offsets": begin}
        )
        with explained(f"stream {self._stream}"):
            DeltaTable.forPath(session_saying(self._spark, said), self._path).delete(
                f"ingest_batch <= {to}L AND slot <> {REJECTED_SLOT}"
            )
        return int(to)

    def rows(self) -> DataFrame:
        """One row for each Kafka record that was read."""
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

        `pinned`: the rows are those of the present version, even if some are deleted before they
        are read.
        """
        in_slot = F.col("slot") == F.expr(_table_slot(f"'{source}'"))
        return self._changes(
            in_slot & (F.col("table") == source), after=after, to=to, pinned=pinned
        )

    def recent_changes(self, source: str, *, after: int, to: int) -> Recent | None:
        """`changes`, read from the files that the commits of these batches name. None: this is not
        possible.

        It is for a few batches whose files were not merged or deleted since. It does not read
        Delta's state of the log. The rows stay readable, as with `pinned`.
        """
        newest, slot, added = self._log.newest(), str(self._slot_of(source)), list[Any]()
        from_json = delta(self._spark).actions.Action.fromJson
        for commit in islice(
            self._log.back_from(newest.version if newest else -1), _RECENT_COMMITS
        ):
            said = commit.stored
            if said is not None and said["ingest_batch"] <= after:
                break
            if said is None or commit.removed:
                return None
            if said["commit"] == "batch" and said["ingest_batch"] <= to:
                added += (
                    file
                    for file in map(from_json, commit.added)
                    if file.partitionValues().apply("slot") == slot
                )
        else:
            return None
        log = log_of(self._spark, self._path)
        rows = Files(
            self._spark, log, log.unsafeVolatileSnapshot(), scala_list(self._spark, added)
        ).rows()
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
        return self._rows_and_frontiers(pinned=pinned).where(
            which & (F.col("kind") == "change") & F.expr(_batches(after, to))
        )

    def entries(self) -> DataFrame:
        """One row per entry of every change, with the columns of Bigtable's change log (TBL-4)."""
        exploded = (
            self.rows()
            .where("kind = 'change'")
            .selectExpr("*", "posexplode(entries) AS (entry_index, entry)")
        )
        return exploded.selectExpr(*_split(_ENTRIES_VIEW))

    def _rows_and_frontiers(self, *, pinned: bool = False) -> DataFrame:
        reader = self._spark.read.format("delta")
        if pinned and (newest := self._log.newest()) is not None:
            reader = reader.option("versionAsOf", newest.version)
        return reader.load(self._path)

    def _frontier_of(self, stored: Mapping[str, Any]) -> Frontier:
        # `_frontier` is read once, because another thread may change it.
        known, ingest_batch = self._frontier, int(stored["progress"]["ingest_batch"])
        if known[0] == ingest_batch:
            return known[1]
        if (frontier := stored.get("frontier")) is not None:
            self._frontier = known = (ingest_batch, Frontier.from_json(frontier))
        else:
            of_batch = (F.col("slot") == FRONTIER_SLOT) & (F.col("ingest_batch") == ingest_batch)
            row = self._rows_and_frontiers().where(of_batch).select("frontier").first()
            if row is None:
                raise TableError(
                    ErrorCode.FRONTIER_MISSING,
                    f"The changelog {self._path} has no frontier of batch {ingest_batch}",
                    "Another program deleted rows or files of the changelog",
                    "Restore the changelog to the last version that lowmark committed (RESTORE"
                    " TABLE … TO VERSION AS OF)",
                    stream=self._stream,
                    path=self._path,
                )
            self._frontier = known = (ingest_batch, Frontier.from_json(json.loads(row["frontier"])))
        return known[1]

    def _stored_in(self) -> Mapping[str, Any] | None:
        commit = self._log.newest()
        if commit is None:
            if self._log.has_other_files():
                raise TableError(
                    ErrorCode.FOLDER_NOT_A_TABLE,
                    f"{self._path} is not empty, and is not a Delta table",
                    "The folder of the changelog contains other files",
                    "Move the files away, or use another warehouse",
                    stream=self._stream,
                    path=self._path,
                )
            return None
        return _check_stream(commit, self._path, self._stream)

    def _create(self, rows: DataFrame, batch: LoggedBatch) -> Mapping[str, Any]:
        """Create the table before the first rows are written. The next process would refuse files
        without a log as those of another program.
        """
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

    def _check_newest(self, ingest_batch: int, stored: Mapping[str, Any]) -> None:
        newest = stored.get("ingest_batch", 0)
        assert newest >= ingest_batch, (newest, ingest_batch)
        if newest > ingest_batch:
            raise WriterConflictError(
                ErrorCode.BATCH_OF_ANOTHER_PROCESS,
                f"Another process completed batch {ingest_batch} of stream {self._stream}, and"
                f" continued to batch {newest}",
                "Two processes ingest the same stream",
                "Stop one of the two processes. This one has written only the same rows as the"
                " other",
                stream=self._stream,
                ingest_batch=ingest_batch,
            )

    def _does_not_continue(self, offsets: BatchRange, newest: LoggedBatch) -> WriterConflictError:
        return WriterConflictError(
            ErrorCode.BATCH_NOT_ADJACENT,
            f"A batch of stream {self._stream} begins at {dict(offsets.start)}, but the changelog"
            f" ends at {dict(newest.offsets.end)}",
            "An old checkpoint was restored, or another process ingests the same stream",
            "Stop the other process. If only one process runs, delete the checkpoint folder of the"
            " stream: ingest continues from the changelog",
            stream=self._stream,
        )

    def _make(self, no_rows: DataFrame, stored: Mapping[str, Any]) -> None:
        writer = no_rows.write.format("delta").mode("append").partitionBy("slot")
        writer.option("delta.dataSkippingStatsColumns", _STATISTICS).option(
            "delta.appendOnly", "false"
        ).option("delta.checkpointInterval", "50").option(
            "txnAppId", f"lowmark/{self._stream}/batches"
        ).option("txnVersion", "0").option("userMetadata", user_metadata(stored))
        writer.options(**retention_properties(self._retention_s))
        with explained(f"stream {self._stream}"):
            writer.save(self._path)


def _table_slot(table: str) -> str:
    """The slot with the changes of a source table. `table` is an SQL expression of its name."""
    return f"int(pmod(xxhash64({table}), {TABLE_SLOTS}))"


def _batches(after: int, to: int) -> str:
    """Whether a row belongs to the ingest batches `(after, to]`, as code that is the same for all
    batches.

    The code of a set does not contain its numbers. The code of bounds, or of a single number, does.
    Delta skips the files of older batches in both cases.
    """
    if to - after > _LONG_LIST:
        return f"ingest_batch > {after}L AND ingest_batch <= {to}L"
    return (
        "ingest_batch IN"
        f" ({', '.join(f'{batch}L' for batch in [*range(after + 1, to + 1), _NO_BATCH])})"
    )


def _logged_batch(stored: Mapping[str, Any]) -> LoggedBatch | None:
    if not stored["ingest_batch"]:
        return None

    def offsets(name: str) -> Offsets:
        return from_stored(dict[int, int], stored[name])

    batch_range = BatchRange(offsets("start_offsets"), offsets("end_offsets"))
    names = {name: str(stored[name]) for name in ("topic_id", "changelog_id", "writer")}
    asked = EndOffsets(int(stored["topic_read_at"]), offsets("topic_end_offsets"))
    ends = from_stored(tuple[ClosePartition, ...], stored.get("closed_partitions", ()))
    number, kafka_partitions = (
        int(stored["ingest_batch"]),
        int(stored["kafka_partitions"]),
    )
    trimmed_to = int(stored.get("trimmed_to", 0))
    return LoggedBatch(
        number,
        batch_range,
        kafka_partitions=kafka_partitions,
        asked=asked,
        ends=ends,
        trimmed_to=trimmed_to,
        **names,
    )


def _check_stream(commit: Commit, path: str, stream: str) -> Mapping[str, Any]:
    if commit.stored is None or commit.stored.get("stream") != stream:
        raise TableError(
            ErrorCode.COMMIT_FOREIGN,
            f"The newest commit of {path} (version {commit.version}, {commit.operation}) does not"
            f" belong to stream {stream}",
            "Another table is in this folder, or another program committed to the changelog",
            "Restore the changelog to the last version that lowmark committed (RESTORE TABLE … TO"
            " VERSION AS OF), or use another warehouse",
            stream=stream,
            path=path,
        )
    return commit.stored


def _split(columns: str) -> list[str]:
    """The expressions of a select list, split at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(columns):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(columns[start:place].strip())
            start = place + 1
    return [*parts, columns[start:].strip()]
