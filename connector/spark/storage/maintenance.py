"""Maintenance of Delta tables: merges small files, and removes files that no version needs (TBL-15,
TBL-23).

Small files are merged in two steps. New files are written first. No reader sees them, and they
delay no writer. Then a commit replaces the old files. Delta's OPTIMIZE does the same. But it takes
its commit metadata from the session, which others share, and before it has written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from connector.errors import ConnectorError, ErrorCode, WriterConflictError
from connector.spark.failures import cause_of
from connector.spark.storage.delta_log import DeltaLog, quoted
from connector.spark.storage.files import Files, all_files, delta, each, log_of, none, scala_list
from connector.spark.storage.transaction import Transaction
from connector.state.jobs import Job, JobKind
from connector.state.maintenance_schedule import (
    HOUR_US,
    LOG_BEYOND_S,
    LOG_EVERY,
    LOOK_EVERY,
    CommitCount,
    DataFile,
    cleans,
    to_compact,
)

LOG_RETENTION: Final = "delta.logRetentionDuration"
FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
OWN_LOG_CLEANING: Final = "delta.enableExpiredLogCleanup"


def retention_properties(file_s: int) -> dict[str, str]:
    """The properties of a Delta table that keeps files of old versions for `file_s` seconds, and
    its log for `LOG_BEYOND_S` longer.

    VACUUM only uses the table property. lowmark cleans the log itself (`DeltaLog.clean`). Delta
    would keep the log of the current day, and would not keep what a recorded cut needs.
    """
    return {
        FILE_RETENTION: f"interval {file_s} seconds",
        LOG_RETENTION: f"interval {file_s + LOG_BEYOND_S} seconds",
        OWN_LOG_CLEANING: "false",
    }


@dataclass(frozen=True, slots=True)
class Work:
    """The result of maintenance: how many files fewer, and how many bytes rewritten or freed. See
    `Job`.
    """

    files: int = 0
    bytes: int = 0
    live_bytes: int = 0
    disk_bytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.files + other.files,
            self.bytes + other.bytes,
            self.live_bytes + other.live_bytes,
            self.disk_bytes + other.disk_bytes,
        )


class Maintenance:
    """The maintenance of `what`, a table or a changelog, by the process that writes it.

    A failure is printed, and the work is tried again later. `passed` returns the file counts of
    commits since its last call. `compact` merges small files if it is worth it. `clean` and
    `clean_log` remove old files, and get the time in microseconds. `job` has the fields of a job
    except kind, times and outcome. `last_clean` returns when old files were last removed.
    `begun_at` returns when the oldest known commit was made.
    """

    def __init__(
        self,
        what: str,
        job: Job,
        keep: Callable[[Job], None],
        say: Callable[[str], None],
        *,
        retention_s: int,
        passed: Callable[[], list[CommitCount]],
        compact: Callable[[], Work | None],
        clean: Callable[[int], Work],
        clean_log: Callable[[int], None],
        last_clean: Callable[[], int | None],
        begun_at: Callable[[], int],
    ) -> None:
        self._what, self._job, self._keep, self._say = what, job, keep, say
        self._retention_s = retention_s
        self._passed, self._compact, self._clean = passed, compact, clean
        self._clean_log = clean_log
        self._last_clean, self._begun_at = last_clean, begun_at
        self._cleaned_at: int | None = None
        self._log_cleaned_at: int | None = None
        self._removed: list[CommitCount] = []
        # The files of an earlier process are checked with the first new file.
        self._added, self._commits, self._newest_at = LOOK_EVERY - 1, 0, 0
        passed()

    def after_round(self, now: int) -> None:
        """Do the maintenance that is due. Call it between applies. It only raises errors that an
        apply would also raise.
        """
        try:
            self._look(now)
        except (ConnectorError, PySparkException, Py4JError) as error:
            self._say(f"{self._what}: maintenance failed and will be repeated: {cause_of(error)}")

    def _look(self, now: int) -> None:
        passed = self._passed()
        self._removed += (commit for commit in passed if commit.removed)
        self._added += sum(commit.added for commit in passed)
        self._commits += len(passed)
        self._newest_at = max([self._newest_at, *(commit.at for commit in passed)])
        if self._added >= LOOK_EVERY:
            self._added = 0
            done = self._timed(JobKind.COMPACTION, now, self._compact)
            if done is not None:
                self._say(f"{self._what}: compaction reduced the number of files by {done.files:,}")
        if self._cleaned_at is None:
            known = self._last_clean()
            self._cleaned_at = self._begun_at() if known is None else known
            self._newest_at = max(self._newest_at, self._cleaned_at)
        if cleans(
            self._removed,
            now,
            last=self._cleaned_at,
            newest_at=self._newest_at,
            retention_s=self._retention_s,
        ):
            self._cleaned_at = now
            horizon = now - self._retention_s * 1_000_000
            self._removed = [commit for commit in self._removed if commit.at >= horizon]
            done = self._timed(JobKind.CLEAN_UP, now, lambda: self._clean(now))
            if done is not None and done.files:
                self._say(f"{self._what}: {done.files:,} files of old versions were deleted")
        if self._log_cleaned_at is None:
            self._log_cleaned_at = now
        if self._commits >= LOG_EVERY or (self._commits and now - self._log_cleaned_at >= HOUR_US):
            self._commits, self._log_cleaned_at = 0, now
            self._clean_log(now)

    def _timed(self, kind: JobKind, now: int, act: Callable[[], Work | None]) -> Work | None:
        """Run `act`. Record it as a job, unless there was nothing to do."""
        began = time.monotonic_ns()
        job = replace(self._job, kind=kind, started_at=now)
        try:
            done = act()
        except (ConnectorError, PySparkException, Py4JError) as error:
            ended_at = now + (time.monotonic_ns() - began) // 1000
            self._keep(replace(job, ended_at=ended_at, error=cause_of(error)))
            raise
        if done is not None:
            ended_at = now + (time.monotonic_ns() - began) // 1000
            self._keep(replace(job, ended_at=ended_at, **asdict(done)))
        return done


class Rewritten:
    """New files that will replace old files of a table. Readers do not see them before `commit`."""

    def __init__(self, files: Files, path: str, groups: Iterable[Iterable[Any]]) -> None:
        spark = self._spark = files.spark
        self._path, self._version = path, int(files.snapshot.version())
        jvm: Any = spark._jvm
        writing = files.log.startTransaction(none(spark), jvm.scala.Some(files.snapshot))
        self._old, self._new = list[Any](), list[Any]()
        self.work = Work()
        for group in groups:
            old = list(group)
            new = writing.writeFiles(
                files.only(old).rows().coalesce(1)._jdf, none(spark), True, scala_list(spark, ())
            )
            # The rows are the same as before, so a reader of the table's change feed must not see
            # them.
            made = [
                file.json().replace('"dataChange":true', '"dataChange":false') for file in each(new)
            ]
            self._new += map(delta(spark).actions.Action.fromJson, made)
            self._old += old
            self.work += Work(len(old) - len(made), sum(int(file.size()) for file in old))
        self._paths = frozenset(str(file.path()) for file in self._old)

    def commit(
        self,
        log: DeltaLog,
        app_ids: Collection[str],
        metadata_of: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ) -> None:
        """Replace the old files by the new ones. `metadata_of` makes the metadata of the commit
        from that of the newest one.

        `app_ids` are those of the table's writers. If one of them commits meanwhile, nothing is
        changed. Raises `WriterConflictError`, or Delta's conflict, if another process has removed
        one of the old files or commits at the same time.
        """
        transaction = Transaction(self._spark, self._path, None)
        for app_id in app_ids:
            transaction.depend_on(app_id)
        newest = log.newest()
        version = int(transaction.delta.snapshot().version())
        is_ours = newest is not None and newest.stored is not None and newest.version == version
        if (
            newest is None
            or newest.stored is None
            or not is_ours
            or self._paths & log.removed_between(self._version, version)
        ):
            raise WriterConflictError(
                ErrorCode.TABLE_CHANGED,
                f"The files of {self._path} changed during a compaction",
                "Another process wrote to the Delta table",
                "Do nothing: this compaction has changed nothing, and it will be repeated",
                path=self._path,
            )
        transaction.delta.trackFilesRead(scala_list(self._spark, self._old))
        now = time.time_ns() // 1_000_000
        actions = [*self._new, *(file.removeWithTimestamp(now, False) for file in self._old)]
        metadata = metadata_of(newest.stored)
        transaction.commit(0, metadata, actions=scala_list(self._spark, actions))


def rewrite(spark: SparkSession, path: str) -> Rewritten | None:
    """Write the rows of small files into larger ones, by partition, if it is worth it. It needs no
    commit and no lock.
    """
    files = all_files(spark, path)
    known = list(files)
    groups = to_compact([_data_file(file) for file in known])
    return (
        Rewritten(files, path, [[known[number] for number in group] for group in groups])
        if groups
        else None
    )


def _data_file(file: Any) -> DataFile:
    rows, vector = file.numPhysicalRecords(), file.deletionVector()
    marked = 0 if vector is None else int(vector.cardinality())
    return DataFile(
        str(file.partitionValues().toString()),
        int(file.size()),
        int(rows.get()) if rows.isDefined() else 0,
        marked,
    )


def clean(spark: SparkSession, path: str, keep: Collection[int] = ()) -> int:
    """Remove files that are only needed for versions older than the table's retention.

    The files of versions in `keep` stay. It makes no commit. Others may write meanwhile. Returns
    the number of removed files.
    """
    jvm: Any = spark._jvm
    going = {row["path"] for row in spark.sql(f"VACUUM {quoted(path)} DRY RUN").collect()}
    if going and keep:
        log, no = log_of(spark, path), none(spark)
        folder = log.dataPath()
        for version in keep:
            for file in log.getSnapshotAt(version, no, no, False).allFiles().collect():
                going.discard(f"{folder.toString()}/{unquote(file.path())}")
                vector = file.deletionVector()
                if vector is not None and vector.isOnDisk():
                    going.discard(vector.absolutePath(folder).toString())
    path_of = jvm.org.apache.hadoop.fs.Path
    files = path_of(path).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    removed = 0
    for gone in going:
        # Folders stay, because a writer may be about to put a file into an empty one.
        if "." in gone.rpartition("/")[2]:
            removed += bool(files.delete(path_of(gone), False))
    return removed


def bytes_on_disk(spark: SparkSession, path: str) -> int:
    """The size of all files below a folder. 0: not known, for example because others remove files
    at the same time.
    """
    folder = spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    for _ in range(3):
        with suppress(Py4JError):
            return int(files.getContentSummary(folder).getLength())
    return 0
