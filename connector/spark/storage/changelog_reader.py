"""Reads a changelog: the position of its stream, the progress, and the rows (TBL-4, WRS-19).

`connector.warehouse` has the slots. Recent changes of one table are in a few files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from connector import warehouse as paths
from connector.clock import now_us
from connector.engine.recent import RecentFiles
from connector.errors.changelog import frontier_missing
from connector.spark.storage.changelog_columns import ENTRIES, IS_STAGED, SLOT_OF_TABLE
from connector.spark.storage.delta_log import DeltaLog
from connector.spark.storage.files import Files, all_files, log_of, parsed
from connector.spark.storage.hadoop import read_text
from connector.spark.storage.logged_batch import LoggedBatch
from connector.state.commits import Commit
from connector.state.damage import check_owner, reading
from connector.state.stream_progress import Progress, with_freshness_file
from connector.state.truncations import SourceTruncations
from connector.stored import from_stored
from connector.warehouse import (
    CONTROL_SLOT,
    FRONTIER_SLOT,
    MIXED_SLOT,
    REJECTED_SLOT,
    RELEASED_SLOT,
    STAGED_SLOT,
    in_slot,
    table_slot,
)
from connector.watermarks.frontier import UNKNOWN, Frontier

_LONG_LIST: Final = 1000
_NO_BATCH: Final = 2**63 - 1
_RECENT_COMMITS: Final = 200
"""Up to this many commits are searched one by one for the files of batches."""
_RANGES: Final = (
    "release.ranges[0].stream AS _stream",
    "release.ranges[0].first AS _first",
    "release.ranges[0].upto AS _upto",
    "commit_timestamp AS _commit_timestamp",
    "released_from AS _since",
    "ingest_batch AS _batch",
    "stream_partition AS _stream_partition",
)

_REPLACED: Final = {
    "slot": SLOT_OF_TABLE,
    "stream_partition": "_stream_partition",
    "kind": "'change'",
    "ingest_batch": "_batch",
    "commit_timestamp": "_commit_timestamp",
    "transaction": """named_struct(
        'server_transaction_id', '', 'record_sequence', write_stream.offset,
        'is_last_record_in_transaction_in_partition', false,
        'number_of_records_in_transaction', 1, 'number_of_partitions_in_transaction', 1,
        'transaction_tag', '', 'is_system_transaction', false)""",
}


@dataclass(frozen=True, slots=True)
class Recent:
    """Recent changes. `files` are their files as actions of Delta. `held` has the changes in some
    of the files, by path, with the columns `OF_CHANGE`. `count` is the number of rows in the other
    files, which may be more than there are changes, and of the changes in `held`. `rows` returns
    the changes.
    """

    files: tuple[str, ...]
    held: Mapping[str, pa.Table]
    count: int
    rows: Callable[[], DataFrame]


class ChangelogReader:
    """The changelog of one stream at `path`."""

    def __init__(self, spark: SparkSession, path: str, stream: str) -> None:
        self.spark, self.path, self._stream = spark, path, stream
        self.log = DeltaLog(spark, path)
        self._frontier = (0, UNKNOWN)
        self._freshness_file: str | None = None
        self._recent = RecentFiles()

    @property
    def _freshness_path(self) -> str:
        return paths.freshness_beside(self.path)

    def newest(self) -> LoggedBatch | None:
        """The newest batch, if there is one. Raises `TableError` for another changelog."""
        stored = self._stored_in()
        with reading(self.path):
            return None if stored is None else LoggedBatch.from_json(stored)

    def trimmed_below(self) -> int:
        """The least commit timestamp (µs) from which no change was deleted. 0: none was."""
        newest = self.newest()
        return newest.trimmed_below if newest else 0

    def progress(self, *, with_frontier: bool = True) -> Progress:
        """The newest stored progress. It may lack the newest batch, if the progress commit of that
        batch is missing.

        Without its frontier, it has only the low watermark of the frontier, and no row is read.
        """
        stored = self._stored_in()
        if stored is None:
            return Progress()
        frontier = self._frontier_of(stored) if with_frontier else None
        with reading(self.path):
            progress = stored["progress"]
            if frontier is None:
                frontier = Frontier(low_watermark=progress["low_watermark"])
            # The process that writes the file knows it. Every other process reads it.
            file = self._freshness_file or read_text(self.spark, self._freshness_path)
            return with_freshness_file(Progress.from_json(progress, frontier), stored, file)

    def rows(self) -> DataFrame:
        """One row for each Kafka record that was read."""
        return self._rows_and_frontiers().where(F.col("slot") > FRONTIER_SLOT)

    def visible_rows(self) -> DataFrame:
        """`rows` of the present version, and the released rows as changes (WRS-22)."""
        rows = self._rows_and_frontiers(pinned=True)
        own = rows.where(F.col("slot") > FRONTIER_SLOT)
        if not self._has_released(0):
            return own
        newest = self.progress(with_frontier=False).ingest_batch
        return own.unionByName(_released_rows(rows, None, after=0, to=newest))

    def follow(self) -> DataFrame:
        """The rows as a stream: those of the present version, then those of each later batch.

        Compaction and trimming add no rows, and remove none that the stream has not read yet.
        """
        reader = self.spark.readStream.format("delta").option("skipChangeCommits", "true")
        return reader.load(self.path).where(F.col("slot") > FRONTIER_SLOT)

    def of_source(self, source: str) -> Column:
        """Whether a row is a change of a source table. Only the files of its slot are read."""
        is_change = F.expr(f"{in_slot(table_slot(source))} AND kind = 'change'")
        return is_change & (F.col("table") == source)

    def rejected(self, after: int, to: int) -> DataFrame:
        """The rejected rows of the ingest batches `(after, to]`."""
        is_rejected = F.expr(f"{in_slot(REJECTED_SLOT)} AND kind = 'rejected'")
        return self.rows().where(is_rejected & F.expr(_batches(after, to)))

    def staged(self, *, after: int, to: int) -> DataFrame:
        """The staged rows of the ingest batches `(after, to]`, with the erased ones (OPR-2)."""
        return self.rows().where(
            F.expr(f"{in_slot(STAGED_SLOT)} AND {IS_STAGED} AND kind <> 'expired'")
            & F.expr(_batches(after, to))
        )

    def changes(
        self, source: str | None, *, after: int, to: int, pinned: bool = False
    ) -> DataFrame:
        """The changes of one source table, or of all, in the ingest batches `(after, to]`, with the
        staged rows that these released. No other function decides which rows are visible (WRS-19).
        With `pinned`, deleted rows of the present version can still be read.
        """
        rows = self._rows_and_frontiers(pinned=pinned)
        which = F.col("slot") > FRONTIER_SLOT if source is None else self.of_source(source)
        changes = rows.where(which & (F.col("kind") == "change") & F.expr(_batches(after, to)))
        if not self._has_released(after):
            return changes
        return changes.unionByName(_released_rows(rows, source, after=after, to=to))

    def last_truncation(self, source: str) -> int:
        """The last batch that can have a truncation of a source table (EVO-13). 0: none has."""
        stored = self._stored_in()
        if stored is None:
            return 0
        with reading(self.path):
            truncations = stored["progress"].get("truncations", {})
            return from_stored(SourceTruncations, truncations).last_batch(source)

    def truncations(self, source: str, *, after: int, to: int) -> DataFrame:
        """The truncations of one source table in the ingest batches `(after, to]`: each copy is a
        row. Deleted rows of the present version can still be read.
        """
        rows = self._rows_and_frontiers(pinned=True)
        is_ours = F.expr(f"{in_slot(CONTROL_SLOT)} AND kind = 'truncate'")
        return rows.where(is_ours & (F.col("table") == source) & F.expr(_batches(after, to)))

    def recent_changes(self, source: str, *, after: int, to: int) -> Recent | None:
        """`changes`, read from the files that the commits of a few batches name, as with `pinned`,
        without Delta's state of the log. None: this is not possible, because files were merged or
        deleted since, or rows were released.
        """
        if self._has_released(after):
            return None
        newest = self.log.newest()
        added, kept_s = list[str](), _NO_BATCH
        for commit in islice(self.log.back_from(newest.version if newest else -1), _RECENT_COMMITS):
            metadata = commit.stored
            if metadata is not None and metadata["ingest_batch"] <= after:
                break
            kept_s = min(kept_s, int((metadata or {}).get("file_retention_s", 0)))
            if _is_fold(commit, kept_s):
                continue
            if metadata is None or commit.removed or (commit.added and not commit.is_own):
                return None
            if not commit.is_own:
                continue
            if metadata["commit"] != "batch" or metadata["ingest_batch"] > to:
                continue
            added += commit.added
        else:
            return None
        named, held, count = self._with_changes(added, source)

        def rows() -> DataFrame:
            log = log_of(self.spark, self.path)
            added = parsed(self.spark, named)
            rows = Files(self.spark, log, log.unsafeVolatileSnapshot(), added).rows()
            return rows.where((F.col("table") == source) & (F.col("kind") == "change"))

        return Recent(named, held, count, rows)

    def _with_changes(
        self, added: Iterable[str], source: str
    ) -> tuple[tuple[str, ...], Mapping[str, pa.Table], int]:
        """Those of the added files that may have changes of a source table, and what `Recent` says
        of them.
        """
        slots = {str(table_slot(source)), str(MIXED_SLOT)}
        named, held, count = list[str](), dict[str, pa.Table](), 0
        for action in added:
            add = json.loads(action)["add"]
            if add["partitionValues"]["slot"] not in slots:
                continue
            changes = self._recent.changes(add["path"], source)
            if changes is None:
                count += int(json.loads(add["stats"])["numRecords"])
            elif len(changes):
                held[add["path"]] = changes
                count += len(changes)
            if changes is None or len(changes):
                named.append(action)
        return tuple(named), held, count

    def batch_files(self, ingest_batch: int) -> tuple[str, ...]:
        """The files with the rows of the newest batch, as actions of Delta. They may have rows of
        other batches, too. No row of the newest batch is marked as deleted.
        """
        newest = self.log.newest()
        commits = self.log.back_from(newest.version if newest else -1)
        for commit in islice(commits, _RECENT_COMMITS):
            stored = commit.stored
            if stored is None or commit.removed or stored["ingest_batch"] != ingest_batch:
                break
            if not commit.is_own:
                if commit.added:
                    break
                continue
            if stored["commit"] in ("batch", "closed_partitions"):
                return commit.added
        actions = all_files(self.spark, self.path).actions()
        return tuple(action for action in actions if _may_have(action, ingest_batch))

    def _has_released(self, after: int) -> bool:
        """Whether a batch after this one released rows."""
        stored = self._stored_in()
        if stored is None:
            return False
        with reading(self.path):
            releases = stored["progress"].get("releases", {})
            return from_stored(int, releases.get("released_to", 0)) > after

    def _rows_and_frontiers(self, *, pinned: bool = False) -> DataFrame:
        self.log.list_files()
        reader = self.spark.read.format("delta")
        if pinned and (newest := self.log.newest()) is not None:
            reader = reader.option("versionAsOf", newest.version)
        return reader.load(self.path)

    def _frontier_of(self, stored: Mapping[str, Any]) -> Frontier:
        with reading(self.path):
            ingest_batch = int(stored["progress"]["ingest_batch"])
        # `_frontier` is read once, because another thread may change it.
        cached = self._frontier
        if cached[0] != ingest_batch:
            frontier = stored.get("frontier")
            row = self._frontier_row(ingest_batch) if frontier is None else ""
            with reading(self.path):
                frontier = json.loads(row) if frontier is None else frontier
                self._frontier = cached = (ingest_batch, Frontier.from_json(frontier))
        return cached[1]

    def _frontier_row(self, ingest_batch: int) -> str:
        of_batch = (F.col("slot") == FRONTIER_SLOT) & (F.col("ingest_batch") == ingest_batch)
        row = self._rows_and_frontiers().where(of_batch).select("frontier").first()
        if row is None:
            raise frontier_missing(self.path, self._stream, ingest_batch)
        return str(row["frontier"])

    def _stored_in(self) -> Mapping[str, Any] | None:
        commit = self.log.newest()
        if commit is None:
            self.log.check_missing()
            return None
        check_owner(self.path, "stream", self._stream, commit.stored, self.log.newest_foreign)
        return commit.stored


def _released_rows(rows: DataFrame, source: str | None, *, after: int, to: int) -> DataFrame:
    """The staged rows of one source table, or of all, that the batches `(after, to]` released, as
    changes of the batch that completed the release, with the offset as the record sequence.
    `lake.changelog_changes` does the same.
    """
    ranges = rows.where(
        f"slot = {RELEASED_SLOT} AND kind = 'released'"
        f" AND ingest_batch > {after}L AND ingest_batch <= {to}L"
    )
    # With the numbers, only the files of these batches are read.
    first, last = ranges.agg(F.min("released_from"), F.max("ingest_batch")).collect()[0]
    staged = rows.where(
        f"{in_slot(STAGED_SLOT)} AND kind = 'staged'"
        f" AND ingest_batch >= {first or 0}L AND ingest_batch <= {last or 0}L"
    )
    if source is not None:
        staged = staged.where(F.col("table") == source)
    is_in_range = F.expr(
        "write_stream.stream = _stream AND write_stream.offset >= _first"
        " AND write_stream.offset < _upto AND ingest_batch >= _since AND ingest_batch <= _batch"
    )
    released = staged.join(F.broadcast(ranges.selectExpr(*_RANGES)), is_in_range)
    return released.selectExpr(
        *(f"{_REPLACED[name]} AS {name}" if name in _REPLACED else name for name in rows.columns)
    )


def entries_of(changes: DataFrame) -> DataFrame:
    """One row for each entry of changes, with the columns of Bigtable's change log (TBL-4)."""
    exploded = changes.selectExpr("*", "posexplode(entries) AS (entry_index, entry)")
    return exploded.selectExpr(*ENTRIES)


def _is_fold(commit: Commit, kept_s: int) -> bool:
    """Whether a commit has only put rows into other files, so recently that the old ones are
    certainly there. `kept_s` is the shortest retention since.
    """
    if commit.stored is None or not commit.is_own or commit.stored["commit"] != "compacted":
        return False
    return now_us() - commit.committed_at < kept_s * 500_000


def _batches(after: int, to: int) -> str:
    """Whether a row belongs to the ingest batches `(after, to]`. The code of a set does not contain
    its numbers, so it is the same for all batches. Delta skips the files of older ones.
    """
    if to - after > _LONG_LIST:
        return f"ingest_batch > {after}L AND ingest_batch <= {to}L"
    return (
        "ingest_batch IN"
        f" ({', '.join(f'{batch}L' for batch in [*range(after + 1, to + 1), _NO_BATCH])})"
    )


def _may_have(action: str, ingest_batch: int) -> bool:
    """Whether the file that the action adds may have rows of the batch."""
    stats = json.loads(json.loads(action)["add"].get("stats") or "{}")
    least, most = (
        stats.get(name, {}).get("ingest_batch", ingest_batch) for name in ("minValues", "maxValues")
    )
    return bool(least <= ingest_batch <= most)
