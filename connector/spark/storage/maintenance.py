"""Maintenance of Delta tables: merges small files, and removes files that no version needs (TBL-15,
TBL-23).

New files are written first, which delays no writer. Then a commit replaces the old files. Delta's
OPTIMIZE takes its commit metadata from the session, and before it has written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connector.errors import ConnectorError, WriterConflictError
from connector.errors.tables import concurrent_write, files_changed
from connector.events import OnEvent, begun, info, warning
from connector.spark.failures import cause_of
from connector.spark.storage.deletion_vectors import (
    FILE,
    ROW,
    ROW_LOCATION,
    check_version,
    file_url,
    marked_files,
)
from connector.spark.storage.delta_log import DeltaLog, quoted
from connector.spark.storage.files import (
    Files,
    all_files,
    delta,
    each,
    log_of,
    newest_snapshot,
    none,
    scala_list,
)
from connector.spark.storage.hadoop import opened
from connector.spark.storage.transaction import Transaction
from connector.state.jobs import Job, JobKind
from connector.state.maintenance_schedule import (
    HOUR_US,
    LOG_EVERY,
    REST_AT_MOST_US,
    CommitCount,
    Compactions,
    DataFile,
    Postponed,
    is_clean_up_due,
    to_compact,
)
from connector.tables.column_names import BUCKET

LOG_RETENTION: Final = "delta.logRetentionDuration"
FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
OWN_LOG_CLEANING: Final = "delta.enableExpiredLogCleanup"


def retention_properties(file_s: int) -> dict[str, str]:
    """The properties of a Delta table in which VACUUM deletes no file of a version that was
    replaced within `file_s` seconds. lowmark cleans the log itself: Delta would not keep what a
    recorded cut needs.
    """
    return {
        FILE_RETENTION: f"interval {file_s} seconds",
        LOG_RETENTION: f"interval {file_s} seconds",
        OWN_LOG_CLEANING: "false",
    }


@dataclass(frozen=True, slots=True)
class Work:
    """The result of maintenance: files fewer, and bytes rewritten or freed, as in `Job`."""

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


@dataclass(frozen=True, slots=True)
class Maintained:
    """A table or a changelog, as functions for its maintenance. `clean` and `clean_log` get the
    time in microseconds.

    `checkpoint` writes the checkpoints that are due. `is_wanted` returns whether there is other
    work for `compact` than small files. `live_bytes` returns the size of the newest version of a
    table. None: it is a changelog.
    """

    new_commits: Callable[[], list[CommitCount]]
    oldest_commit_at: Callable[[], int]
    compact: Callable[[], Work | None]
    clean: Callable[[int], Work]
    clean_log: Callable[[int], None]
    checkpoint: Callable[[], None] = lambda: None
    is_wanted: Callable[[], bool] = lambda: False
    live_bytes: Callable[[], int] | None = None


class Maintenance:
    """The maintenance of a table or a changelog. A failure is an event and a job, and the work is
    repeated without a new reason. The next attempt ends the failure, also if it finds nothing to
    do.

    `retention_s` is how long old versions are kept, and `longest_s`, how long some of them are.
    `job` has the fields of a job except kind, times and outcome. `last_failed` returns the kinds
    whose newest job failed, also of an earlier process. While applies are late (`is_late`, at a
    time in microseconds), `compact` and `clean` wait for a while.
    """

    def __init__(
        self,
        job: Job,
        maintained: Maintained,
        *,
        retention_s: int,
        longest_s: int | None = None,
        last_clean: Callable[[], int | None],
        last_failed: Callable[[], Iterable[JobKind]] = tuple,
        add_job: Callable[[Job], None],
        on_event: OnEvent,
        is_late: Callable[[int], bool] = lambda now: False,
    ) -> None:
        self._job, self._maintained = job, maintained
        self._subject = {"table": job.table} if job.table else {"stream": job.stream}
        self._retention_s, self._longest_s = retention_s, longest_s
        self._last_clean, self._is_late = last_clean, is_late
        self._last_failed = last_failed
        self._add_job, self._on_event = add_job, on_event
        self._compactions = Compactions(is_log=maintained.live_bytes is None)
        self._cleaning = Postponed()
        self._cleaned_at: int | None = None
        self._log_cleaned_at: int | None = None
        self._removed: list[CommitCount] = []
        self._commits, self._newest_at = 0, 0
        self._failed: set[JobKind] | None = None
        self._repeat_at: dict[JobKind, int] = {}
        maintained.new_commits()

    def after_round(self, now: int) -> None:
        """Do the maintenance that is due, between applies. Its failure is printed. A conflict with
        another writer is not: nothing was written, and if it lasts, the next apply says so.
        """
        try:
            self._look(now)
        except WriterConflictError:
            return
        except (ConnectorError, PySparkException, Py4JError) as error:
            text = f"maintenance failed and will be repeated: {cause_of(error)}"
            self._on_event(warning("MAINTENANCE_FAILED", text, **self._subject))

    def _look(self, now: int) -> None:
        new_commits = self._maintained.new_commits()
        if new_commits:
            self._maintained.checkpoint()
        self._removed += (commit for commit in new_commits if commit.removed)
        self._compactions.passed(new_commits)
        self._commits += len(new_commits)
        self._newest_at = max([self._newest_at, *(commit.at for commit in new_commits)])
        is_late = partial(self._is_late, now)
        if self._failed is None:
            self._failed = set(self._last_failed())
            self._repeat_at = dict.fromkeys(self._failed, now)
        is_wanted = bool(new_commits) and self._maintained.is_wanted()
        is_wanted |= self._is_to_repeat(JobKind.COMPACTION, now)
        if self._compactions.begins(now, is_late, is_wanted=is_wanted):
            self._look_at_files(now)
        if self._cleaned_at is None:
            last = self._last_clean()
            self._cleaned_at = self._maintained.oldest_commit_at() if last is None else last
            self._newest_at = max(self._newest_at, self._cleaned_at)
        self._cleaned_at = min(self._cleaned_at, now)  # the clock may have been ahead
        is_due = self._is_to_repeat(JobKind.CLEAN_UP, now) or is_clean_up_due(
            self._removed,
            now,
            last=self._cleaned_at,
            newest_at=self._newest_at,
            retention_s=self._retention_s,
            longest_s=self._longest_s,
        )
        if is_due and self._cleaning.may_begin(now, is_late):
            self._cleaned_at = now
            horizon = now - self._retention_s * 1_000_000
            self._removed = [commit for commit in self._removed if commit.at >= horizon]
            done = self._timed(JobKind.CLEAN_UP, now, lambda: self._maintained.clean(now))
            if done is not None and done.files:
                text = f"{done.files:,} files of old versions were deleted"
                self._on_event(info("CLEANED_UP", text, **self._subject, **asdict(done)))
        self._log_cleaned_at = min(self._log_cleaned_at or now, now)
        if self._commits >= LOG_EVERY or (self._commits and now - self._log_cleaned_at >= HOUR_US):
            self._commits, self._log_cleaned_at = 0, now
            self._maintained.clean_log(now)

    def _look_at_files(self, now: int) -> None:
        self._on_event(begun("compaction", **self._subject))
        began = time.monotonic_ns()
        try:
            done = self._timed(JobKind.COMPACTION, now, self._maintained.compact)
            if done is not None:
                text = f"compaction reduced the number of files by {done.files:,}"
                self._on_event(info("COMPACTED", text, **self._subject, **asdict(done)))
        finally:
            took = (time.monotonic_ns() - began) // 1000
            size = 0 if self._maintained.live_bytes is None else self._maintained.live_bytes()
            self._compactions.ended(now + took, took, size)

    def _is_to_repeat(self, kind: JobKind, now: int) -> bool:
        return self._repeat_at.get(kind, now + 1) <= now

    def _timed(self, kind: JobKind, now: int, act: Callable[[], Work | None]) -> Work | None:
        """Run `act`. Record it as a job, unless there was nothing to do and no failure to end. A
        conflict with another writer is no failure.
        """
        assert self._failed is not None
        began = time.monotonic_ns()

        def add_job(**outcome: Any) -> None:
            ended_at = now + (time.monotonic_ns() - began) // 1000
            self._add_job(
                replace(self._job, kind=kind, started_at=now, ended_at=ended_at, **outcome)
            )

        try:
            work = act()
        except WriterConflictError:
            self._repeat_at[kind] = now
            raise
        except (ConnectorError, PySparkException, Py4JError) as error:
            self._failed.add(kind)
            self._repeat_at[kind] = now + REST_AT_MOST_US
            add_job(error=cause_of(error))
            raise
        if work is not None or kind in self._failed:
            add_job(**asdict(work or Work()))
        self._failed.discard(kind)
        self._repeat_at.pop(kind, None)
        return work


@dataclass(frozen=True, slots=True)
class _Group:
    """Files of one partition, by path, and those that will replace them, as Delta's `AddFile`."""

    old: Mapping[str, Any]
    new: tuple[Any, ...]

    @property
    def work(self) -> Work:
        return Work(
            len(self.old) - len(self.new), sum(int(file.size()) for file in self.old.values())
        )


NO_PARTS: Final[Mapping[str, str]] = {}


class Rewritten:
    """New files that will replace old files of a table. Readers do not see them before `commit`.

    `changed` makes the rows of the new files from the old ones. None: they are the same rows. They
    may go to other partitions, which `parts` names.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        groups: Iterable[Iterable[Any]],
        changed: Callable[[DataFrame], DataFrame] | None = None,
        parts: Mapping[str, str] = NO_PARTS,
    ) -> None:
        spark = self._spark = files.spark
        self._files, self._path, self._version = files, path, int(files.snapshot.version())
        self._changes_rows = changed is not None
        jvm: Any = spark._jvm
        writing = files.log.startTransaction(none(spark), jvm.scala.Some(files.snapshot))
        self._groups = list[_Group]()
        for group in groups:
            old = {str(file.path()): file for file in group}
            rows = files.only(old.values()).rows()
            rows = rows if changed is None else changed(rows)
            rows = rows.withColumns({name: F.expr(value) for name, value in parts.items()})
            new = writing.writeFiles(
                rows.coalesce(1)._jdf, none(spark), True, scala_list(spark, ())
            )
            actions = [file.json() for file in each(new)]
            self._groups.append(_Group(old, self._parsed(actions)))
        self.work = sum((group.work for group in self._groups), Work())

    def _parsed(self, actions: Iterable[str]) -> tuple[Any, ...]:
        """The `AddFile`s of actions. A change feed must show changed rows alone."""
        from_json = delta(self._spark).actions.Action.fromJson
        is_new = '"dataChange":true' if self._changes_rows else '"dataChange":false'
        return tuple(from_json(text.replace('"dataChange":true', is_new)) for text in actions)

    def commit(
        self,
        log: DeltaLog,
        app_ids: Collection[str],
        metadata_of: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        keys: Sequence[str] = (),
        *,
        is_alone: bool = False,
    ) -> Work:
        """Replace the old files by the new ones. `metadata_of` makes the metadata of the commit
        from that of the newest one.

        If an old file has changed meanwhile, its group stays as it is. With `keys`, the columns
        that identify a row, rows that were removed from it are marked in the new files instead. If
        rows were left out, all groups are replaced, or none. With `is_alone`, nothing may have
        changed, also no other file.

        Raises `WriterConflictError`, or Delta's conflict, if one of the writers `app_ids`, or
        another process, commits at the same time, or if all old files have changed. Nothing is
        changed then.
        """
        transaction = Transaction(self._spark, self._path, None)
        for app_id in app_ids:
            transaction.depend_on(app_id)
        newest = log.newest()
        version = int(transaction.delta.snapshot().version())
        is_passed = is_alone and version != self._version
        if newest is None or newest.stored is None or newest.version != version or is_passed:
            raise files_changed(self._path)
        changed = log.changed_between(self._version, version)
        groups = [
            now
            for group in self._groups
            if (now := self._as_of_now(group, changed, transaction, keys)) is not None
        ]
        if len(groups) < (len(self._groups) if self._changes_rows else 1):
            raise files_changed(self._path)
        self.work = sum((group.work for group in groups), Work())
        old = [file for group in groups for file in group.old.values()]
        transaction.delta.trackFilesRead(scala_list(self._spark, old))
        at = time.time_ns() // 1_000_000
        removed = (file.removeWithTimestamp(at, False) for file in old)
        actions = [*(file for group in groups for file in group.new), *removed]
        metadata = metadata_of(newest.stored)
        transaction.commit(0, metadata, actions=scala_list(self._spark, actions))
        return self.work

    def _as_of_now(
        self,
        group: _Group,
        changed: Mapping[str, str | None],
        transaction: Transaction,
        keys: Sequence[str],
    ) -> _Group | None:
        """The group, without the rows that were removed meanwhile. None: its old files stay."""
        was = {path: file for path, file in group.old.items() if path in changed}
        if not was:
            return group
        live = [action for path in was if (action := changed[path]) is not None]
        if not keys or (not live and len(was) == len(group.old)):
            return None
        now = {str(file.path()): file for file in self._parsed(live)}
        key = f"struct({', '.join(keys)}) AS _key"
        left = self._files.only(now.values()).rows().selectExpr(key)
        rows = self._files.only(was.values()).rows().selectExpr(key)
        removed = rows.join(left, "_key", "left_anti")
        new = self._files.only(group.new)
        locations = new.rows().selectExpr(key, *ROW_LOCATION).join(removed, "_key", "left_semi")
        marked = marked_files(self._spark, transaction, new, locations.select(FILE, ROW))
        old = {path: file for path, file in group.old.items() if path not in was} | now
        return _Group(old, self._parsed(self._marked(group.new, marked)))

    @staticmethod
    def _marked(files: Iterable[Any], actions: Any) -> Iterator[str]:
        """The actions that add `files`, with rows marked as in `actions`, without empty files."""
        removed, added = set[str](), dict[str, str]()
        for text in (action.json() for action in each(actions)):
            ((kind, action),) = json.loads(text).items()
            if kind == "add":
                added[action["path"]] = text
            else:
                removed.add(action["path"])
        for file in files:
            path = str(file.path())
            if path in added or path not in removed:
                yield added.get(path) or file.json()


def rewrite(
    spark: SparkSession,
    log: DeltaLog,
    *,
    is_log: bool = False,
    parts: Mapping[str, str] = NO_PARTS,
) -> Rewritten | None:
    """Write the rows of small files of a table into larger ones, by partition, if it is worth it.
    It needs no commit and no lock. `is_log`: it is a changelog. `parts` are new values of partition
    columns, as SQL. Spark lists the files only if it may be worth it.
    """

    def groups_of(actions: Iterable[str]) -> list[list[int]]:
        return to_compact([*map(DataFile.from_action, actions)], is_log=is_log)

    newest = log.newest_files()
    if newest is not None and not groups_of(newest):
        return None
    log.list_files()
    files = all_files(spark, log.path)
    adds, groups = list(files), groups_of(files.actions())
    if not groups:
        return None
    chosen = [[adds[number] for number in group] for group in groups]
    return Rewritten(files, log.path, chosen, parts=parts)


def without_rows(
    spark: SparkSession, path: str, condition: str, *, bucket: int | None = None
) -> Rewritten | None:
    """As `with_rows_changed`, without the rows for which the condition is true. With `bucket`, rows
    that are marked as deleted in its files leave them, too.
    """
    kept = f"NOT coalesce({condition}, false)"
    return with_rows_changed(spark, path, condition, lambda rows: rows.where(kept), bucket=bucket)


def with_rows_changed(
    spark: SparkSession,
    path: str,
    condition: str,
    changed: Callable[[DataFrame], DataFrame],
    *,
    bucket: int | None = None,
) -> Rewritten | None:
    """Write the files that have a row for which the SQL condition is true again, with rows as
    `changed` makes them. None: there is no such row. It needs no commit and no lock.
    """
    files = all_files(spark, path)
    rows = files.rows().where(condition).selectExpr("_metadata.file_path").distinct().collect()
    touched = {row["file_path"] for row in rows}
    old = [
        file
        for file, action in zip(files, files.actions(), strict=True)
        if file_url(spark, files.log.dataPath(), file) in touched
        or (bucket is not None and _has_vector(action, bucket))
    ]
    return Rewritten(files, path, [[file] for file in old], changed) if old else None


def _has_vector(action: str, bucket: int) -> bool:
    add = json.loads(action)["add"]
    return bool(add.get("deletionVector")) and add["partitionValues"][BUCKET] == str(bucket)


def commit_marker(
    spark: SparkSession, log: DeltaLog, stored: Mapping[str, Any], app_ids: Iterable[str]
) -> None:
    """Commit `stored` and no file. The commit before names removed files, with their statistics.

    Raises `WriterConflictError`, or Delta's conflict, if another process commits meanwhile.
    """
    newest, transaction = log.newest(), Transaction(spark, log.path, None)
    for app_id in app_ids:
        transaction.depend_on(app_id)
    check_version(transaction, -1 if newest is None else newest.version)
    transaction.commit(0, stored)
    newest = log.newest()
    if newest is None or newest.stored != stored:
        raise concurrent_write(log.path)


def forget_versions(
    spark: SparkSession, log: DeltaLog, begun_at: int, on_step: Callable[[str], None]
) -> None:
    """Remove all versions of a Delta table but the newest: files, and the log with its statistics.
    The newest commit must have no file. Readers of an older version get an error.

    Other files from `begun_at` (µs) on stay: a writer that began meanwhile may be about to commit.
    """
    snapshot = newest_snapshot(spark, log.path)
    log_of(spark, log.path).checkpoint(snapshot, none(spark))
    on_step(f"checkpoint {log.path}")
    _remove_other_files(spark, log.path, begun_at)
    on_step(f"files {log.path}")
    log.keep_only(int(snapshot.version()))
    on_step(f"log {log.path}")


def clean(
    spark: SparkSession,
    path: str,
    kept: Collection[int] = (),
    named: Collection[str] | None = None,
) -> int:
    """Remove files that are only needed for versions older than the table's retention.

    The files of the versions `kept` stay. `named` are these files. None: they are not known. It
    makes no commit. Others may write meanwhile. Returns the number of removed files.
    """
    jvm: Any = spark._jvm
    removable = {row["path"] for row in spark.sql(f"VACUUM {quoted(path)} DRY RUN").collect()}
    if removable and kept:
        log, no = log_of(spark, path), none(spark)
        folder = log.dataPath()
        removable -= {f"{folder.toString()}/{name}" for name in named or ()}
        # The retention keeps the files of cuts, but not those of the newest one.
        for version in [max(kept)] if named is None else []:
            for file in log.getSnapshotAt(version, no, no, False).allFiles().collect():
                removable.discard(f"{folder.toString()}/{unquote(file.path())}")
                vector = file.deletionVector()
                if vector is not None and vector.isOnDisk():
                    removable.discard(vector.absolutePath(folder).toString())
    _, files = opened(spark, path)
    removed = 0
    for file in removable:
        # Folders stay, because a writer may be about to put a file into an empty one.
        if "." in file.rpartition("/")[2]:
            removed += bool(files.delete(jvm.org.apache.hadoop.fs.Path(file), False))
    return removed


def _remove_other_files(spark: SparkSession, path: str, before: int) -> None:
    """Remove all files of a table from before a time (µs) that its newest version does not need.
    VACUUM keeps hidden ones, and prints.
    """
    files = all_files(spark, path)
    folder, store = opened(spark, path)
    folder = store.makeQualified(folder)
    kept = {f"{folder.toString()}/{unquote(file.path())}" for file in files}
    vectors = (file.deletionVector() for file in files)
    kept |= {
        vector.absolutePath(files.log.dataPath()).toString()
        for vector in vectors
        if vector is not None and vector.isOnDisk()
    }
    removable, listed = list[Any](), store.listFiles(folder, True)
    while listed.hasNext():
        status = listed.next()
        name, is_old = status.getPath().toString(), status.getModificationTime() * 1000 < before
        if is_old and "/_delta_log/" not in name and name not in kept:
            removable.append(status.getPath())
    for file in removable:
        store.delete(file, False)
