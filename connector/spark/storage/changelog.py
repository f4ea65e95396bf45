"""The changelog: one row for every Kafka record that was read. Rows are appended batch by batch
(TBL-4, TBL-5).

One Delta commit per batch has its rows and, as metadata, its offset range and the progress from its
rows: they are stored together or not at all. If rows were rejected, the progress is a second
commit, after their dead letters. The Spark checkpoint may be lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from connector.config.settings import VersionRetention
from connector.engine.schema import CHANGELOG, STATISTICS
from connector.errors import WriterConflictError
from connector.errors.changelog import checkpoint_foreign
from connector.errors.kafka import stream_topic_replaced
from connector.errors.tables import (
    batch_incomplete,
    changelog_removed,
    concurrent_write,
    files_changed,
)
from connector.spark.failures import explained
from connector.spark.storage.changelog_columns import (
    ERASED,
    IS_STAGED,
    OWN_SLOT,
    PAYLOAD,
)
from connector.spark.storage.changelog_reader import ChangelogReader
from connector.spark.storage.delta_log import metadata_session, quoted, set_properties
from connector.spark.storage.files import parsed, size_in_bytes
from connector.spark.storage.hadoop import bytes_on_disk, write_text
from connector.spark.storage.logged_batch import BatchRange, LoggedBatch, same
from connector.spark.storage.maintenance import (
    Rewritten,
    Work,
    clean,
    commit_marker,
    forget_versions,
    retention_properties,
    rewrite,
    with_rows_changed,
)
from connector.spark.storage.transaction import CHECKPOINTS, Transaction, create_table
from connector.state.commits import user_metadata
from connector.state.damage import reading
from connector.state.maintenance_schedule import DataFile, to_slots
from connector.state.stream_progress import FreshnessFile, Progress
from connector.stored import to_stored
from connector.warehouse import (
    FRONTIER_SLOT,
    MIXED_SLOT,
    REJECTED_SLOT,
    RELEASED_SLOT,
    STAGED_SLOT,
    in_slot,
)
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import UNKNOWN
from connector.write_streams.releases import ReleasedRange, StagedStream

_DECLARES: Final = (
    "kind IN ('change', 'truncate', 'erased') AND transaction.number_of_records_in_transaction > 1"
)
_IS_REJECTED: Final = f"slot = {REJECTED_SLOT} OR (slot = {MIXED_SLOT} AND kind = 'rejected')"
_COMMITTED: Final = "unix_micros(commit_timestamp)"
_FRONTIER_IN_METADATA: Final = 16_384
"""In bytes. Every commit has the metadata, also those that only refresh the progress or do
maintenance.
"""
_FORM: Final = 2
"""The form of a changelog: 2 has the column `_hash`, and the slot of small batches."""
_TRIES: Final = 5
_RENEWALS: Final = 2**32
"""More than the possible number of refreshes between two batches."""

WriteRows = Callable[[str, pa.Table, int], str]
"""Writes rows with the schema `CHANGELOG` to a file of the changelog at a path, in a slot. Returns
the action that adds it, as JSON. Raises `TableError`.
"""


FoldBatches = Callable[[str, Sequence[str]], tuple[str, ...] | None]
"""Writes the rows in files of the changelog at a path, as actions of Delta, to one file for each
slot. Returns the actions that replace the files. None: Spark must do it. Raises `TableError`.
"""


@dataclass(frozen=True, slots=True)
class Folded:
    """Files of small batches, as actions, and the actions that replace them."""

    old: tuple[str, ...]
    actions: tuple[str, ...]

    @property
    def work(self) -> Work:
        added = sum(action.startswith('{"add"') for action in self.actions)
        size = sum(DataFile.from_action(action).size for action in self.old)
        return Work(len(self.old) - added, size)


class Changelog(ChangelogReader):
    """The changelog of one stream at `path`. One process writes it. Another writer is detected."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        stream: str,
        retention: VersionRetention | None = None,
        write_rows: WriteRows | None = None,
        fold_batches: FoldBatches = lambda path, files: None,
    ) -> None:
        """`retention` is that of the configuration. None: the stored one stays. Without
        `write_rows`, no batch can be stored.
        """
        super().__init__(spark, path, stream)
        self._fold_batches = fold_batches
        self._write_rows = write_rows
        self._retention_s = (retention or VersionRetention()).file_s
        self._declares_retention = retention is not None

    def find(self, offsets: BatchRange, topic_id: str) -> LoggedBatch | None:
        """The newest batch, if its range is `offsets`. None: `offsets` continue after it.

        Raises `WriterConflictError` for any other range, as of an old checkpoint or a second
        driver. Delta would skip such a batch without an error. Raises `TopicError` for another
        topic (REC-4).
        """
        newest = self.newest()
        if newest is None:
            return None
        self._check_identity(newest, topic_id)
        if same(newest.offsets.end, offsets.start):
            return None
        if same(newest.offsets.start, offsets.start) and same(newest.offsets.end, offsets.end):
            return newest
        raise self._does_not_continue(offsets, newest)

    def check_topic(self, topic_id: str, kafka_partitions: int) -> None:
        """Raise `TopicError` if reading cannot continue in this topic: it is not the stored one, or
        has fewer Kafka partitions than were read. Spark would only say that offsets are missing.
        """
        newest = self.newest()
        if newest is None:
            return
        self._check_identity(newest, topic_id)
        read = 1 + max(newest.offsets.end, default=-1)
        if kafka_partitions < read:
            raise stream_topic_replaced(
                self._stream,
                f"has {kafka_partitions} Kafka partitions, but the changelog was written from"
                f" {read}",
                "Kafka never removes Kafka partitions. The topic was restored from an older copy",
            )

    def _check_identity(self, newest: LoggedBatch, topic_id: str) -> None:
        if newest.topic_id != topic_id:
            raise stream_topic_replaced(
                self._stream,
                f"has the ID {topic_id}, but the changelog was written from the topic with the ID"
                f" {newest.topic_id}",
                "The topic was deleted and created again. Its offsets now mean other records",
            )

    def prepare(self, batch: LoggedBatch) -> None:
        """Create the changelog unless there is one. Call it before a file is written for `append`.
        Raises `WriterConflictError` if the batch does not continue after the newest one.
        """
        self._before(batch)

    def append(
        self,
        batch: LoggedBatch,
        files: Sequence[str],
        settle: Callable[[tuple[str, ...]], Progress | None] = lambda files: None,
    ) -> None:
        """Commit a batch whose rows are in written files, and check the commit.

        `settle` gets the files, as actions of Delta, before any reader sees them. The progress that
        it returns is part of the commit. None: `append_progress` stores it later. Raises
        `WriterConflictError` if another writer took the batch's number. Then no row of this batch
        is visible.
        """
        before = self._before(batch)
        with self._explained():
            self._append_written(tuple(files), "batch", before, batch, settle)

    def append_few(
        self,
        batch: LoggedBatch,
        rows: pa.Table,
        settle: Callable[[tuple[str, ...]], Progress | None],
    ) -> None:
        """As `append`, with rows of the schema `CHANGELOG` in memory, by source table."""
        before = self._before(batch)
        with self._explained():
            files = (self._written(rows, MIXED_SLOT),) if len(rows) else ()
            for action in files:
                self._recent.keep(json.loads(action)["add"]["path"], rows)
            self._append_written(files, "batch", before, batch, settle)

    def _append_written(
        self,
        files: tuple[str, ...],
        commit: str,
        before: Mapping[str, Any],
        batch: LoggedBatch,
        settle: Callable[[tuple[str, ...]], Progress | None] = lambda files: None,
    ) -> None:
        stored, settled = self._metadata_of_batch(commit, before, batch), settle(files)
        frontier = list[str]()
        if settled is not None:
            metadata, frontier = self._metadata_of(settled)
            stored |= metadata
        number = batch.ingest_batch * _RENEWALS
        self._commit(before, "batches", number, stored, [*files, *frontier])
        self._check_logged(batch, settled)

    def _written(self, rows: pa.Table, slot: int) -> str:
        assert self._write_rows is not None
        return self._write_rows(self.path, rows, slot)

    def _before(self, batch: LoggedBatch) -> Mapping[str, Any]:
        """The metadata in force before a batch that continues after the newest one."""
        before = self._stored_in() or self._create(batch)
        with reading(self.path):
            newest = LoggedBatch.from_json(before)
        if newest is not None and not same(newest.offsets.end, batch.offsets.start):
            raise self._does_not_continue(batch.offsets, newest)
        return before

    def _commit(
        self,
        before: Mapping[str, Any],
        kind: str,
        number: int,
        stored: Mapping[str, Any],
        actions: Sequence[str] = (),
    ) -> None:
        """Commit `actions` with the metadata `stored`, which was made for `before`."""
        app_id = self._app_id(kind)
        for _ in range(_TRIES):
            newest = self.log.newest()
            assert newest is not None
            if newest.stored != before:
                raise concurrent_write(self.path)
            with suppress(WriterConflictError):  # its commit may keep the metadata in force
                if not self.log.commit_files(
                    newest.version, actions, stored, app_id=app_id, number=number, is_blind=True
                ):
                    self._begin(kind).commit(number, stored, actions=parsed(self.spark, actions))
                return
        raise concurrent_write(self.path)

    def append_nothing(self, batch: LoggedBatch) -> None:
        """Commit a batch without records after the newest one. Raises as `append`."""
        before = self._stored_in()
        assert before is not None
        with self._explained():
            self._append_written((), "closed_partitions", before, batch)

    def _metadata_of_batch(
        self, commit: str, before: Mapping[str, Any], batch: LoggedBatch
    ) -> dict[str, Any]:
        return {
            **before,
            "commit": commit,
            **batch.to_json(),
            # The offsets where the first batch, or the first one with a Kafka partition, began to
            # read.
            "first_offsets": {
                **to_stored(batch.offsets.start),
                **before.get("first_offsets", {}),
            },
            "refreshes": 0,
        }

    def _check_logged(self, batch: LoggedBatch, settled: Progress | None) -> None:
        """Raise `WriterConflictError` if the newest batch is one of another writer."""
        newest = self.newest()
        if newest is None:
            raise changelog_removed(self.path, batch.ingest_batch)
        if (newest.ingest_batch, newest.writer) != (batch.ingest_batch, batch.writer):
            raise self._written_by_another(batch.ingest_batch)
        if settled is not None:
            self._frontier = (batch.ingest_batch, settled.frontier)

    def progress_before(self, batch: LoggedBatch) -> Progress:
        """The newest stored progress: that of `batch`, the newest one, or of the batch before.
        Raises `WriterConflictError` if another process has logged a later batch. Then `batch` is
        complete.
        """
        self._check_newest(batch.ingest_batch, self._stored_in() or {})
        return self.progress()

    def append_progress(self, progress: Progress, released: Sequence[ReleasedRange] = ()) -> None:
        """Commit the progress of the newest batch, after its dead letters, and the ranges of staged
        rows that it makes visible (WRS-18). Raises `WriterConflictError` if another process has
        logged a later batch. That process has stored this progress before.
        """
        stored = self._stored_in()
        assert stored is not None
        self._check_newest(progress.ingest_batch, stored)
        with self._explained():
            metadata, actions = self._metadata_of(progress)
            if released:
                rows = _released_table(progress.ingest_batch, released)
                actions.append(self._written(rows, RELEASED_SLOT))
            metadata = {**stored, "commit": "progress", **metadata}
            self._commit(stored, "progress", progress.ingest_batch, metadata, actions)
        self._frontier = (progress.ingest_batch, progress.frontier)

    def _metadata_of(self, progress: Progress) -> tuple[dict[str, Any], list[str]]:
        """The commit metadata of a progress, and the actions that go with it: a large frontier
        becomes a row of the commit.
        """
        frontier = progress.frontier.to_json()
        text = json.dumps(frontier, separators=(",", ":"))
        if len(text) <= _FRONTIER_IN_METADATA:
            return {"progress": progress.to_json(), "frontier": frontier}, []
        written = self._written(_frontier_table(progress.ingest_batch, text), FRONTIER_SLOT)
        return {"progress": progress.to_json(), "frontier": None}, [written]

    def _explained(self) -> AbstractContextManager[None]:
        return explained(f"stream {self._stream}")

    def _begin(self, kind: str) -> Transaction:
        self.log.list_files()
        return Transaction(self.spark, self.path, self._app_id(kind))

    @property
    def _app_ids(self) -> list[str]:
        return [self._app_id(kind) for kind in ("batches", "progress")]

    def _app_id(self, kind: str) -> str:
        return f"lowmark/{self._stream}/{kind}"

    def write_freshness(self, asked: EndOffsets) -> None:
        """Store in the file beside the changelog that Kafka had these end offsets, and that all
        below them is read (TBL-24). It is no commit. There must be a batch.
        """
        stored = self._stored_in()
        assert stored is not None
        text = FreshnessFile(str(stored["topic_id"]), asked.at, asked.ends).to_text()
        with self._explained():
            write_text(self.spark, self._freshness_path, text)
        self._freshness_file = text

    def update_progress(self, progress: Progress) -> None:
        """Commit the progress of the newest batch again, and no rows. Its number is before that of
        the next batch. If another process has logged the next one, nothing is committed.
        """
        stored = self._stored_in()
        assert stored is not None
        number = stored["refreshes"] + 1
        renewed = {
            **stored,
            "commit": "renewed",
            "refreshes": number,
            "progress": progress.to_json(),
        }
        with self._explained():
            number += progress.ingest_batch * _RENEWALS
            self._commit(stored, "batches", number, renewed)

    def declare(self) -> None:
        """Store the retention of the configuration (TBL-23), and give a changelog of an older
        release the columns that it lacks. Call it while there is no ingest.
        """
        stored = self._stored_in()
        if stored is None:
            return
        if stored.get("form") != _FORM:
            stored = {**stored, "commit": "declared", "form": _FORM}
            with self._explained():
                session = metadata_session(self.spark, user_metadata(stored))
                session.sql(f"ALTER TABLE {quoted(self.path)} ADD COLUMNS (_hash int)")
        if not self._declares_retention or stored.get("file_retention_s") == self._retention_s:
            return
        stored = {**stored, "commit": "declared", "file_retention_s": self._retention_s}
        with self._explained():
            properties = retention_properties(self._retention_s)
            set_properties(self.spark, self.path, properties, user_metadata(stored))

    def fold(self, at_least: int) -> Folded | None:
        """Write the rows of small batches, of so many files at least, to files in their slots, for
        `commit_folded`, without Spark. None: they are too few, or Spark must do it. Ingest may run
        meanwhile.
        """
        files = self.log.newest_files()
        chosen = to_slots([*map(DataFile.from_action, files or ())], at_least)
        if files is None or not chosen:
            return None
        old = tuple(files[number] for number in chosen)
        actions = self._fold_batches(self.path, old)
        return None if actions is None else Folded(old, actions)

    def commit_folded(self, folded: Folded) -> None:
        """Replace old files by new ones, in one commit. Call it while there is no ingest. Raises
        `WriterConflictError` if an old file was replaced meanwhile.
        """
        with self._explained():
            newest = self.log.newest()
            assert newest is not None
            files = self.log.added(newest.version)
            if files is None or not {*folded.old} <= {*files} or newest.stored is None:
                raise files_changed(self.path)
            stored = {**newest.stored, "commit": "compacted"}
            if not self.log.commit_files(newest.version, folded.actions, stored):
                raise files_changed(self.path)

    def rewrite(self) -> Rewritten | None:
        """Write the rows of small files into larger ones, in the slot of each, for
        `commit_rewritten`, if it is worth it (TBL-15). Ingest may run meanwhile.
        """
        if self._stored_in() is None:
            return None
        with self._explained():
            return rewrite(self.spark, self.log, is_log=True, parts={"slot": OWN_SLOT})

    def commit_rewritten(self, rewritten: Rewritten) -> None:
        """Replace old files by new ones, in one commit. Call it while there is no ingest."""
        with self._explained():
            rewritten.commit(
                self.log, self._app_ids, lambda stored: {**stored, "commit": "compacted"}
            )

    def clean(self) -> Work:
        """Remove files that only versions older than the retention need (TBL-23)."""
        if self._stored_in() is None:
            return Work()
        before = bytes_on_disk(self.spark, self.path)
        with self._explained():
            removed = clean(self.spark, self.path)
        after = bytes_on_disk(self.spark, self.path)
        return Work(removed, max(0, before - after), size_in_bytes(self.spark, self.path), after)

    def trim(self, covered: int, *, before: int) -> int:
        """Delete changes and control records of batches up to `covered` that were ingested before
        `before` (microseconds). Returns the last such batch. Call it while there is no ingest.

        The newest batch stays, and so do batches whose transactions are to be checked (ING-2),
        rejected rows, because their dead letters may be open (TBL-15), and the rows of write
        streams that did not expire, or that a later batch released: a table may lack that batch
        (WRS-21).
        """
        newest, stored = self.newest(), self._stored_in()
        if newest is None or stored is None:
            return 0
        progress = self.progress(with_frontier=False)
        # The frontier of the newest progress may also be a row.
        last_batch = min(covered, stored["progress"]["ingest_batch"] - 1)
        old = self.rows().where(_after_and_to(newest.trimmed_to, last_batch))
        is_young = F.expr(f"unix_micros(ingest_time) >= {before}L OR {_to_check(progress)}")
        first_young = old.where(is_young).agg(F.min("ingest_batch")).collect()[0][0]
        last_old = old.agg(F.max("ingest_batch")).collect()[0][0]
        to = last_old if first_young is None else first_young - 1
        if to is None or to <= newest.trimmed_to:
            return newest.trimmed_to
        removed = (
            old.where(F.col("ingest_batch") <= to)
            .groupBy("kafka_partition")
            .agg(F.max("offset"), F.expr(f"max(CASE WHEN {_DECLARES} THEN {_COMMITTED} END)"))
            .collect()
        )
        checked_to = max((row[2] + 1 for row in removed if row[2] is not None), default=0)
        open_streams = {*progress.releases.streams, *self._released_after(int(to))}
        is_removed = f"NOT ({_IS_REJECTED}) AND NOT ({_of_streams(open_streams)})"
        changes = self._rows_and_frontiers().where(_after_and_to(newest.trimmed_to, to))
        greatest = changes.where(is_removed).agg(F.expr(f"max({_COMMITTED})")).collect()[0][0]
        after = replace(progress, transactions=progress.transactions.trimmed(checked_to))
        metadata = {
            **stored,
            "commit": "trimmed",
            "progress": after.to_json(),
            "trimmed_to": to,
            "trimmed_below": max(newest.trimmed_below, (greatest or 0) + 1),
            "first_offsets": {
                **stored.get("first_offsets", {}),
                **{str(row[0]): row[1] + 1 for row in removed},
            },
        }
        with self._explained():
            session = metadata_session(self.spark, user_metadata(metadata))
            DeltaTable.forPath(session, self.path).delete(f"ingest_batch <= {to}L AND {is_removed}")
        return int(to)

    def expire(self, *, before: int) -> int:
        """Remove the payload of staged rows that were not released and whose write stream got no
        row since `before` (µs). Their offsets stay, as kind `expired` (WRS-21).

        Call it while there is no ingest. Returns the number of these rows.
        """
        newest, progress = self.newest(), self.progress(with_frontier=False)
        expired = progress.releases.forgettable(before)
        if newest is None or progress.ingest_batch < newest.ingest_batch or not expired:
            return 0
        unreleased = " OR ".join(_unreleased(name, stream) for name, stream in expired.items())
        is_expired = f"{in_slot(STAGED_SLOT)} AND kind = 'staged' AND ({unreleased})"
        rows = self.rows()
        count = rows.where(is_expired).count()
        after = replace(progress, releases=progress.releases.without(expired, count))
        if not count:
            self.update_progress(after)
            return 0
        stored = {**(self._stored_in() or {}), "commit": "expired", "progress": after.to_json()}
        with self._explained():
            session = metadata_session(self.spark, user_metadata(stored))
            # A run that reads nothing does not `declare`, so a column may be missing.
            present = [name for name in rows.columns if name in PAYLOAD]
            payload = dict.fromkeys(present, F.lit(None))
            DeltaTable.forPath(session, self.path).update(
                is_expired, {**payload, "kind": F.lit("expired")}
            )
        return count

    def newest_change(self, where: str) -> int:
        """The greatest commit timestamp (µs) of the rows for which the SQL is true, or 0."""
        newest = self.rows().where(where).agg(F.expr(f"max({_COMMITTED})")).collect()[0][0]
        return int(newest or 0)

    def erase(
        self, where: str, key_hash: str, begun_at: int, on_step: Callable[[str], None]
    ) -> None:
        """Remove the content of the rows for which the SQL is true, and all older versions (OPR-2).
        The rows keep their offsets and times, and get the hash as their row key.

        There may be no ingest at `begun_at` (µs). It can be repeated.
        """
        newest, progress = self.newest(), self.progress(with_frontier=False)
        if newest is None:
            return
        if progress.ingest_batch < newest.ingest_batch:
            raise batch_incomplete(self._stream, "the erasure")
        # The example of a misplaced key may be this key.
        placement = replace(progress.checks.placement, example=None)
        after = replace(progress, checks=replace(progress.checks, placement=placement))
        stored = {**(self._stored_in() or {}), "commit": "erased", "progress": after.to_json()}
        with self._explained():
            self._erase_rows(where, f"X'{key_hash}'", stored, on_step)
            commit_marker(self.spark, self.log, stored, self._app_ids)
            on_step("changelog marked")
            forget_versions(self.spark, self.log, begun_at, on_step)

    def refuse(self, where: str, row_key: str) -> None:
        """Remove the content of rows of the newest batches for which the SQL is true, before they
        become visible (OPR-2). They get `row_key`, as SQL. It can be repeated.
        """
        with self._explained():
            self._erase_rows(where, row_key, {**(self._stored_in() or {}), "commit": "erased"})

    def _erase_rows(
        self,
        where: str,
        row_key: str,
        stored: Mapping[str, Any],
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        values = {**dict.fromkeys(ERASED, "NULL"), "row_key": row_key, "kind": "'erased'"}

        def changed(rows: DataFrame) -> DataFrame:
            return rows.selectExpr(
                *(
                    f"CASE WHEN {where} THEN {values[name]} ELSE `{name}` END AS `{name}`"
                    if name in values
                    else f"`{name}`"
                    for name in rows.columns
                )
            )

        rewritten = with_rows_changed(self.spark, self.path, where, changed)
        if rewritten is not None:
            on_step("changelog written")
            rewritten.commit(self.log, self._app_ids, lambda _: stored, is_alone=True)
            on_step("changelog committed")

    def _released_after(self, batch: int) -> set[str]:
        """The write streams with rows that later batches released. Ingest may forget them."""
        if not self._has_released(batch):
            return set()
        ranges = self._rows_and_frontiers().where(
            f"slot = {RELEASED_SLOT} AND kind = 'released' AND ingest_batch > {batch}L"
        )
        names = ranges.selectExpr("release.ranges[0].stream AS stream").distinct().collect()
        return {str(row["stream"]) for row in names}

    def _create(self, batch: LoggedBatch) -> Mapping[str, Any]:
        """Create the table, unless there is one meanwhile. The rows are written later: the next
        process would refuse files without a log as those of another program.
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
            "form": _FORM,
        }
        properties = {
            "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
            "delta.appendOnly": "false",
            **CHECKPOINTS,
            **retention_properties(self._retention_s),
        }
        with self._explained():
            create_table(
                self.spark,
                self.path,
                from_arrow_schema(CHANGELOG.append(pa.field("slot", pa.int32()))),
                properties,
                begun,
                partition_by=["slot"],
                app_id=self._app_id("batches"),
            )
        return self._stored_in() or begun

    def _check_newest(self, ingest_batch: int, stored: Mapping[str, Any]) -> None:
        newest = stored.get("ingest_batch", 0)
        assert newest >= ingest_batch, (newest, ingest_batch)
        if newest > ingest_batch:
            raise self._written_by_another(ingest_batch)

    def _written_by_another(self, ingest_batch: int) -> WriterConflictError:
        return concurrent_write(f"batch {ingest_batch} of stream {self._stream}")

    def _does_not_continue(self, offsets: BatchRange, newest: LoggedBatch) -> WriterConflictError:
        return checkpoint_foreign(
            f"A batch of stream {self._stream} begins at {dict(offsets.start)}, but the changelog"
            f" ends at {dict(newest.offsets.end)}",
            "An old checkpoint was restored, or another process ingests the same stream",
        )


def _frontier_table(batch: int, text: str) -> pa.Table:
    row = {"kind": "frontier", "ingest_batch": batch, "frontier": text}
    return pa.Table.from_pylist([row], CHANGELOG)


def _released_table(batch: int, released: Iterable[ReleasedRange]) -> pa.Table:
    """The rows that make ranges of staged rows visible with a batch (WRS-18)."""
    rows = [
        {
            "kind": "released",
            "ingest_batch": batch,
            "commit_timestamp": committed,
            "release": {
                "commit_timestamp": committed,
                "ranges": [{"stream": stream, "first": first, "upto": upto}],
            },
            "released_from": first_batch,
            "stream_partition": stream_partition,
        }
        for stream, first, upto, committed, first_batch, stream_partition in released
    ]
    return pa.Table.from_pylist(rows, CHANGELOG)


def _after_and_to(after: int, to: int) -> str:
    """Whether a row belongs to the ingest batches `(after, to]`."""
    return f"ingest_batch > {after}L AND ingest_batch <= {to}L"


def _of_streams(streams: Collection[str]) -> str:
    """Whether a row is a staged row, or a released range, of one of these write streams."""
    if not streams:
        return "false"
    names = ", ".join(f"'{name}'" for name in sorted(streams))
    return (
        f"{in_slot(STAGED_SLOT, RELEASED_SLOT)}"
        f" AND (kind = 'released' OR {IS_STAGED})"
        f" AND coalesce(write_stream.stream, release.ranges[0].stream) IN ({names})"
    )


def _unreleased(name: str, stream: StagedStream) -> str:
    """Whether a row belongs to a write stream and was not released. Rows before its first batch
    were released, or expired, before ingest forgot the write stream the last time.
    """
    parts = [f"write_stream.stream = '{name}'", f"ingest_batch >= {stream.first_batch}L"]
    parts += (
        f"NOT (write_stream.offset >= {first}L AND write_stream.offset < {upto}L)"
        for first, upto in stream.released
    )
    return f"({' AND '.join(parts)})"


def _to_check(progress: Progress) -> str:
    """Whether the next check of transactions needs a row: the low watermark has passed it since
    the last check, or its transaction is incomplete and was not released (ING-2).
    """
    check, low = progress.transactions, progress.low_watermark
    if not check.declared or low is None:
        return "false"
    incomplete = [transaction for transaction in check.incomplete if not transaction.is_released]
    times = {transaction.commit_timestamp for transaction in incomplete}
    is_new = f"{_DECLARES} AND {_COMMITTED} >= {check.checked_to}L AND {_COMMITTED} < {low}L"
    open_ = "".join(f" OR {_COMMITTED} = {time}L" for time in sorted(times))
    return f"({is_new}{open_})"
