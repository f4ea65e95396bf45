"""The log of a Delta table in Spark: reads it without a Spark job, commits to it, cleans it, and
sets the metadata of commands.

`connector.state.commits` reads the commits. This module reads their files, with Hadoop if they are
in a store. `connector.delta_log` commits to the log of a local table.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from connector.config.storage import is_local
from connector.delta_log.log import Log, LogFileMissingError, NotNewestError
from connector.delta_log.old_versions import OldVersions
from connector.delta_log.put import LinksUnsupportedError, LocalFolder
from connector.errors.tables import concurrent_write, files_unreadable
from connector.spark.jvm import GONE
from connector.spark.storage.files import Files, files_of, newest_snapshot
from connector.state.commits import Commit, Commits, user_metadata
from connector.state.damage import (
    Foreign,
    explained,
    log_damaged,
    log_missing,
    or_move_away,
    reading,
)
from connector.state.log_damage import IS_MISSING, LAST_CHECKPOINT, LogDamage, commit_file
from connector.state.maintenance_schedule import CommitCount, removable_log_files

_FILE: Final = re.compile(
    r"/_delta_log/([^,/;}]+);(?: isDirectory=false; (length=\d+;[^{}]*?modification_time=\d+))?"
)
"""The name of a file of the log, with its size and time, in the text of its status."""
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_MOST_MARKED: Final = 256
"""So many commits stay in memory."""
_DELETED_AT_ONCE: Final = 5_000
"""A log that was never cleaned is cleaned in steps, because each file is a call."""
_METADATA_CONF: Final = "spark.databricks.delta.commitInfo.userMetadata"


class DeltaLog(Commits):
    """The log of the table at `path`, which is a path or URI that Spark can open.

    It remembers the version that it has read, and only reads later ones. Several threads may use
    it.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(path, self._text_of)
        self._path_of, self._io, self._arrays = _classes(spark._jvm)
        self._spark = spark
        self._folder = self._path_of(f"{path}/_delta_log")
        self._files = self._folder.getFileSystem(
            spark._jsparkSession.sessionState().newHadoopConf()
        )
        self._is_remote = not is_local(path)
        located = self._files.makeQualified(self._folder)
        self._local = None if self._is_remote else LocalFolder(str(located.toUri().getPath()))
        self._log = None if self._local is None else Log(self._local)
        self._old = OldVersions(self._local, self._log) if self._local and self._log else None
        self.left_to_delta = ""
        """Why commits of files are made by Delta: what lowmark's own writer does not know."""
        self._version = -1
        self._read_last: tuple[str, Commit] | None = None
        self._marked = dict[int, tuple[tuple[int, ...], Commit]]()
        self._new_commits: dict[int, CommitCount] | None = None

    def newest(self) -> Commit | None:
        """The newest commit. None: there is no table. If another program changed rows later, it is
        that commit from then on. Raises `TableError` if its file is damaged.
        """
        if self._is_remote:
            return self._newest_listed()
        # The stored version may be older than one that another thread has read. It is replaced in
        # one step.
        version = self._version
        commit = self.at(version) if version >= 0 else None
        if commit is None:
            if (version := max(self._versions(), default=-1)) < 0:
                return None
            commit = self.existing(version)
        while commit.stored is not None and self._exists(commit_file(commit.version + 1)):
            commit = self._next(commit)
        self._version = commit.version
        return commit

    def _newest_listed(self) -> Commit | None:
        """As `newest`, in an object store: one list costs as much as one look at a file (STO-5)."""
        listed = self._listed()
        files = {version: listed[commit_file(version)] for version in _versions_in(listed)}
        last = self._read_last
        if last is not None and files.get(last[1].version) == last[0]:
            commit = last[1]
        elif files:
            commit = self.existing(max(files))
        else:
            return None
        while commit.stored is not None and commit.version + 1 in files:
            commit = self._next(commit)
        self._version, self._read_last = commit.version, (files[commit.version], commit)
        return commit

    def _alone(self, version: int) -> Commit | None:
        """As in `Commits`. A local file that did not change is read once."""
        if self._local is None or (mark := self._local.mark(commit_file(version))) is None:
            return super()._alone(version)
        held = self._marked.get(version)
        if held is not None and held[0] == mark:
            return held[1]
        if (commit := super()._alone(version)) is not None:
            if len(self._marked) >= _MOST_MARKED:
                self._marked.clear()
            self._marked[version] = (mark, commit)
        return commit

    def _next(self, commit: Commit) -> Commit:
        following = self.existing(commit.version + 1)
        if self._new_commits is not None:
            self._new_commits[following.version] = following.files
        return following

    def files(self, version: int) -> Files | None:
        """The files of `version`, if it is the newest one and they are known without a Spark
        job.
        """
        return files_of(self._spark, self.path, version, self._added(version))

    def added(self, version: int) -> tuple[str, ...] | None:
        """The actions that add the `files` of `version`, as Delta's JSON."""
        added = self._added(version)
        if added is None and (files := files_of(self._spark, self.path, version)) is not None:
            added = files.actions()
        return added

    def newest_files(self) -> tuple[str, ...] | None:
        """`added` of the newest version. Empty: there is no table. None: only Delta knows them."""
        newest = self.newest()
        return () if newest is None else self.added(newest.version)

    def _added(self, version: int) -> tuple[str, ...] | None:
        if self._log is None:
            return None
        with self._explained("read"):
            self.left_to_delta = self._log.state().not_known()
            return self._log.files(version)

    @property
    def is_own(self) -> bool:
        """Whether lowmark commits files itself, as far as is known."""
        return self._log is not None and not self.left_to_delta

    def commit_files(
        self,
        version: int,
        actions: Sequence[str],
        stored: Mapping[str, Any],
        *,
        app_id: str | None = None,
        number: int = 0,
        is_blind: bool = False,
    ) -> bool:
        """Commit actions, as Delta's JSON, that were made for `version`: as `Log.commit`. False:
        Delta must commit them, because the table is in a store, or for the reason in
        `left_to_delta`.

        Raises `WriterConflictError` if another program has committed since.
        """
        if self._log is None:
            return False
        with self._explained("written"):
            self.left_to_delta = self._log.state().not_known()
            if self.left_to_delta:
                return False
            try:
                self._log.commit(
                    version,
                    actions,
                    user_metadata(stored),
                    app_id=app_id,
                    number=number,
                    is_blind=is_blind,
                )
            except NotNewestError as error:
                raise concurrent_write(self.path) from error
            except LinksUnsupportedError:
                self.left_to_delta = "a disk without hard links"
                return False
        return True

    def list_files(self) -> None:
        """List the files of the newest version where Delta finds them without a Spark job. Call it
        before Spark commits.
        """
        if self._log is not None:
            with self._explained("written"):
                self._log.list_files()

    def checkpoint(self) -> None:
        """Write a checkpoint if one is due. Delta writes those of a table in a store. Commits may
        be made meanwhile.
        """
        if self._log is not None:
            with self._explained("written"):
                self._log.checkpoint()

    @contextmanager
    def _explained(self, use: str) -> Iterator[None]:
        """Raise `TableError` for files of the log that are damaged, or cannot be `use`."""
        with reading(self.path, "The Delta log"):
            try:
                yield
            except LogFileMissingError as error:
                raise log_damaged(self.path, LogDamage(str(error), IS_MISSING)) from error
            except OSError as error:
                text, away = str(error), or_move_away(self.path)
                explanation = explained(self.path, use, text)
                raise explanation or files_unreadable(self.path, use, text, away) from error

    def newest_stored(self) -> Mapping[str, Any] | None:
        """The metadata in force at the newest commit. Empty: no metadata is. None: there is no
        table. Raises `TableError` if it is damaged, or only the log is missing.
        """
        commit = self.newest()
        if commit is None:
            self.check_missing()
            return None
        return commit.stored or {}

    def newest_foreign(self) -> Foreign | None:
        """The commit that changed rows, if that is why the newest version has no metadata."""
        commit = self.newest()
        return None if commit is None else self.foreign(commit.version)

    def newest_of_lowmark(self) -> Commit | None:
        """The newest commit of lowmark, except restores, also behind foreign ones, if any."""
        return next(self.of_lowmark(max(self._versions(), default=-1)), None)

    def properties(self) -> Mapping[str, str]:
        """The properties of the newest version. There must be a table. They are in the checksum
        beside a commit, or else in Delta's state of the log. No SQL is run: the first query takes
        seconds.
        """
        checksum = self._text_of(f"{max(self._versions()):020}.crc")
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            return dict(json.loads(checksum)["metadata"]["configuration"])  # type: ignore[arg-type]
        action = str(newest_snapshot(self._spark, self._located).metadata().json())
        return dict(json.loads(action)["metaData"].get("configuration", {}))

    def new_commits(self) -> list[CommitCount]:
        """The file counts of the commits that `newest` has read since the last call."""
        new_commits, self._new_commits = self._new_commits or {}, {}
        return [new_commits[version] for version in sorted(new_commits)]

    def oldest_commit_at(self) -> int:
        """When the oldest existing commit was made, in microseconds. 0: there is no commit."""
        versions = self._versions()
        return self.existing(versions[0]).committed_at if versions else 0

    def version_at(self, at: int) -> int | None:
        """The newest version that was committed at `at` (microseconds) or before. None: unknown."""
        versions = self._versions()
        count = bisect_right(versions, at, key=lambda number: self.existing(number).committed_at)
        return versions[count - 1] if count else None

    @property
    def is_known(self) -> bool:
        """Whether lowmark knows the table completely, and deletes its old versions itself."""
        return self._old_versions() is not None

    def files_of(self, versions: Collection[int]) -> set[str] | None:
        """The files of versions, below the folder of the table. None: the table is in a store, or
        lowmark does not know it completely.
        """
        if (old := self._old_versions()) is None:
            return None
        with self._explained("read"):
            return old.files(versions)

    def delete_unneeded(self, before: int, readable: Collection[int] = ()) -> int:
        """Delete the files of the table that no version needs from `before` (microseconds) on, and
        none in `readable`. Returns their number. 0: only VACUUM can find them, because the table
        is in a store, or lowmark does not know it completely.
        """
        if (old := self._old_versions()) is None:
            return 0
        with self._explained("written"):
            return old.delete_unneeded(readable, before)

    def _old_versions(self) -> OldVersions | None:
        """The old versions. None: the table is in a store, or not known completely."""
        if self._log is None:
            return None
        with self._explained("read"):
            return None if self._log.state().not_known() else self._old

    def clean(self, before: int, readable: Collection[int] = ()) -> int:
        """Remove log files that are only needed for versions before `before` (microseconds).
        Returns the number of files.

        Earlier versions in `readable` stay readable, and if the table is in a store, or lowmark
        does not know it completely, all versions after them. The newest commit of lowmark stays:
        later ones of other programs have no metadata.
        """
        first_needed, own = self.version_at(before), self.newest_of_lowmark()
        if first_needed is not None:
            first_needed = min([first_needed, *([] if own is None else [own.version])])
            readable = [version for version in readable if version < first_needed]
            if (old := self._old_versions()) is None:
                first_needed = min([first_needed, *readable])
            else:
                with self._explained("written"):
                    old.settle(readable)
        names = list(self._listed())
        newest = max(_versions_in(names), default=-1)
        removable = removable_log_files(names, first_needed, newest, readable)
        for name in removable[:_DELETED_AT_ONCE]:
            self._files.delete(self._path_of(self._folder, name), False)
        return len(removable[:_DELETED_AT_ONCE])

    def keep_only(self, version: int) -> None:
        """Remove all files of the log that a version, which has a checkpoint, and later ones do not
        need. The oldest go first, so that a log without gaps is left at any instant.
        """
        number = f"{version:020}."
        statuses = self._files.listStatus(self._folder)
        for name in sorted(str(status.getPath().getName()) for status in statuses):
            if name != LAST_CHECKPOINT and not (name[0].isdigit() and name >= number):
                self._files.delete(self._path_of(self._folder, name), True)

    def check_missing(self) -> None:
        """Raise `TableError` if the table's folder has other files than its Delta log."""
        parent = self._folder.getParent()
        statuses = self._files.listStatus(parent) if self._files.exists(parent) else []
        if any(status.getPath().getName() != "_delta_log" for status in statuses):
            raise log_missing(self.path)

    def forget_beginning(self) -> None:
        """Remove a log without a commit, of a process that failed while it created the table. If
        another process commits meanwhile, only unfinished files and empty folders are removed.
        """
        if self._files.exists(self._folder):
            for status in self._files.listStatus(self._folder):
                if status.isDirectory() or status.getPath().getName().startswith("."):
                    self._files.delete(status.getPath(), False)
            self._files.delete(self._folder, False)

    @property
    def _located(self) -> str:
        """The absolute path of the table."""
        return str(self._files.makeQualified(self._folder.getParent()).toString())

    def _versions(self) -> list[int]:
        """All versions with a commit, in rising order."""
        return _versions_in(self._listed())

    def _listed(self) -> dict[str, str]:
        """The names of all files in the log, each with its size and time.

        The statuses are one text: in a long log, one call to the JVM for each name takes seconds,
        and py4j does not see that S3's are statuses of files.
        """
        if self._local is not None:
            with self._explained("read"):
                return dict.fromkeys(self._local.names(), "")
        try:
            statuses = str(self._arrays.toString(self._files.listStatus(self._folder)))
        except Py4JJavaError as error:
            if _is_missing(error):
                return {}
            raise
        return dict(_FILE.findall(statuses))

    def _exists(self, name: str) -> bool:
        """Whether the log of a local table has a file."""
        return self._local is not None and self._local.has(name)

    def _text_of(self, name: str) -> str | bytes | None:
        """The text of a file of the log. None: there is no such file."""
        if self._local is not None:
            with self._explained("read"):
                return self._local.read(name)
        try:
            stream = self._files.open(self._path_of(self._folder, name))
        except Py4JJavaError as error:
            if _is_missing(error):
                return None
            raise
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()


def _is_missing(error: Py4JJavaError) -> bool:
    return "FileNotFoundException" in str(error.java_exception.getClass().getName())


def _versions_in(names: Iterable[str]) -> list[int]:
    """The versions whose commits are among the files of a log, in rising order."""
    return sorted(int(match[1]) for name in names if (match := _COMMIT.fullmatch(name)))


@cache
def _classes(jvm: Any) -> tuple[Any, ...]:
    """The classes are cached, because the JVM searches all jars for each part of a class name."""
    hadoop, commons = jvm.org.apache.hadoop.fs, jvm.org.apache.commons
    return hadoop.Path, commons.io.IOUtils, commons.lang3.ArrayUtils


def quoted(path: str) -> str:
    """The SQL name of the Delta table at `path`. A relative path would be the name of a table."""
    return f"delta.`{path.replace('`', '``')}`"


def session_with(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A copy of the session with more settings, which other threads do not see."""
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Delta's transactions use the settings of this session inside the block."""
    sessions: Any = getattr(session._jvm, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        with suppress(*GONE, Py4JError):  # a session that has ended is active nowhere
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()


def metadata_session(
    spark: SparkSession, metadata: str, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session in which every commit has `metadata`. Delta's commands read it only from there."""
    return session_with(spark, {**(settings or {}), _METADATA_CONF: metadata})


def set_properties(
    spark: SparkSession, path: str, properties: Mapping[str, str], metadata: str
) -> None:
    """Set properties of the Delta table at `path`, in one commit with `metadata`."""
    listed = ", ".join(f"'{name}' = '{_escaped(text)}'" for name, text in properties.items())
    metadata_session(spark, metadata).sql(
        f"ALTER TABLE {quoted(path)} SET TBLPROPERTIES ({listed})"
    )


def _escaped(text: str) -> str:
    """The text, escaped for an SQL literal."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def rows_in(session: SparkSession, rows: DataFrame) -> DataFrame:
    """The same rows in another session, from which their writer takes its settings."""
    jvm: Any = session._jvm
    of_session = jvm.org.apache.spark.sql.classic.Dataset.ofRows(
        session._jsparkSession, rows._jdf.queryExecution().logical()
    )
    return DataFrame(of_session, session)
