"""Reads the newest commit of a Delta table from its log, without a Spark job.

Every commit of lowmark has the state of its table as JSON in `userMetadata`, also commits of
maintenance (TBL-10). A newest commit without it was made by another program (TBL-14).
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from connector.config.storage import is_local
from connector.spark.jvm import GONE
from connector.spark.storage.files import newest_snapshot
from connector.state.damage import log_damaged
from connector.state.log_damage import IS_EMPTY, IS_NO_JSON, LogDamage, actions_in
from connector.state.maintenance_schedule import CommitCount, superfluous
from connector.state.reading import reading

_NAME: Final = re.compile(r"/_delta_log/([^,/;}]+)(?=;)")
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_COMMIT_FILE: Final = re.compile(
    r"/_delta_log/(\d{20})\.json; isDirectory=false; (length=\d+;[^{}]*?modification_time=\d+)"
)
_DELETED_AT_ONCE: Final = 5_000
"""A log that was never cleaned is cleaned in steps, because each file is a call."""
_METADATA_CONF: Final = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit: its version, its time (microseconds), Delta's name of the operation, and the
    metadata of lowmark, if there is any.

    `files` counts the files that it added and removed. `added` are the added files as Delta's JSON.
    `removed` are the paths of the files that it removed, or in which it marked rows as deleted.
    """

    version: int
    at: int
    operation: str
    stored: Mapping[str, Any] | None
    files: CommitCount
    added: tuple[str, ...]
    removed: frozenset[str]


class DeltaLog:
    """The log of the table at `path`, which is a path or URI that Spark can open.

    It remembers the version that it has read, and only reads later ones. Several threads may use
    it.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._path_of, self._io, self._arrays = _classes(spark._jvm)
        self._spark = spark
        self._folder = self._path_of(f"{path}/_delta_log")
        self._files = self._folder.getFileSystem(
            spark._jsparkSession.sessionState().newHadoopConf()
        )
        self._is_remote = not is_local(path)
        self._version = -1
        self._read_last: tuple[str, Commit] | None = None
        self._passed: dict[int, CommitCount] | None = None

    @property
    def location(self) -> str:
        """The absolute path of the table."""
        return str(self._files.makeQualified(self._folder.getParent()).toString())

    def newest(self) -> Commit | None:
        """The newest commit. None: there is no table. If a later commit is not one of lowmark, it
        is that commit from then on. Raises `TableError` if its file is damaged.
        """
        if self._is_remote:
            return self._newest_listed()
        # The stored version may be older than one that another thread has read. It is replaced in
        # one step.
        version = self._version
        if version < 0 or not self._files.exists(self._file(version)):
            version = self._listed()
        if version < 0:
            return None
        commit = self._read(version)
        while commit.stored is not None and self._files.exists(self._file(commit.version + 1)):
            commit = self._read(commit.version + 1)
            if self._passed is not None:
                self._passed[commit.version] = commit.files
        self._version = commit.version
        return commit

    def _newest_listed(self) -> Commit | None:
        """As `newest`, in an object store: each look at a file is one or two requests there, and so
        is a look at all of them (STO-5).
        """
        files = self._listed_commits()
        last = self._read_last
        if last is not None and files.get(last[1].version) == last[0]:
            commit = last[1]
        elif files:
            commit = self._read(max(files))
        else:
            return None
        while commit.stored is not None and commit.version + 1 in files:
            commit = self._read(commit.version + 1)
            if self._passed is not None:
                self._passed[commit.version] = commit.files
        self._version, self._read_last = commit.version, (files[commit.version], commit)
        return commit

    def _listed_commits(self) -> dict[int, str]:
        """The versions with a commit, each with the size and the time of its file."""
        return {int(number): facts for number, facts in _COMMIT_FILE.findall(self._statuses())}

    def newest_of_lowmark(self) -> Commit | None:
        """The newest commit of lowmark, except restores, even if other programs have committed
        since. None: there is no such commit.
        """
        commits = self.back_from(self._listed())
        return next(
            (
                commit
                for commit in commits
                if commit.stored is not None and commit.operation != "RESTORE"
            ),
            None,
        )

    def properties(self) -> Mapping[str, str]:
        """The properties of the table's newest version, as Delta stores them. There must be a
        table.
        """
        return self._metadata()[0]

    def columns(self) -> list[str]:
        """The names of the columns of the table's newest version. There must be a table."""
        return self._metadata()[1]

    def _metadata(self) -> tuple[dict[str, str], list[str]]:
        """The properties and columns of the newest version. They are in the checksum beside a
        commit. If there is no checksum, or a damaged one, they come from Delta's own state of the
        log. No SQL is run, because the first query of a process takes seconds.
        """
        version = self._listed()
        assert version >= 0, "there is no table"
        checksum = self._path_of(self._folder, f"{version:020}.crc")
        if self._files.exists(checksum):
            with suppress(ValueError, LookupError, TypeError, AttributeError):
                return _metadata_in(json.loads(self._text_of(checksum))["metadata"])
        action = str(newest_snapshot(self._spark, self.location).metadata().json())
        return _metadata_in(json.loads(action)["metaData"])

    def passed(self) -> list[CommitCount]:
        """The file counts of the commits that `newest` has read since the last call. The first call
        returns none.
        """
        passed, self._passed = self._passed or {}, {}
        return [passed[version] for version in sorted(passed)]

    def back_from(self, version: int) -> Iterator[Commit]:
        """A commit and those before it, the newest first, until one is missing."""
        while version >= 0 and (commit := self.at(version)) is not None:
            yield commit
            version -= 1

    def at(self, version: int) -> Commit | None:
        """A commit. None: it does not exist, or no longer exists."""
        return self._read(version) if self._files.exists(self._file(version)) else None

    def oldest_at(self) -> int:
        """When the oldest existing commit was made, in microseconds. 0: there is no commit."""
        versions = self._versions()
        return self._read(versions[0]).at if versions else 0

    def version_at(self, at: int) -> int | None:
        """The newest version that was committed at `at` (microseconds) or before. None: no such
        version is known.
        """
        versions = self._versions()
        place = bisect_right(versions, at, key=lambda version: self._read(version).at)
        return versions[place - 1] if place else None

    def changed_between(self, after: int, to: int) -> dict[str, str | None]:
        """The paths of files that the versions `(after, to]` removed, or in which they marked rows
        as deleted. Each has the newest action that adds it, as JSON, or None if it is gone.
        """
        changed: dict[str, str | None] = {}
        for version in range(after + 1, to + 1):
            commit = self._read(version)
            changed |= dict.fromkeys(commit.removed)
            for action in commit.added:
                path = json.loads(action)["add"]["path"]
                if path in commit.removed:
                    changed[path] = action
        return changed

    def clean(self, before: int, readable: Collection[int] = ()) -> int:
        """Remove log files that are only needed for versions before `before` (microseconds).
        Returns the number of files.

        Earlier versions in `readable` stay readable.
        """
        names = self._names()
        first_needed = self.version_at(before)
        if first_needed is not None:
            first_needed = min([first_needed, *readable])
        going = superfluous(names, first_needed, max(_versions_in(names), default=-1))[
            :_DELETED_AT_ONCE
        ]
        for name in going:
            self._files.delete(self._path_of(self._folder, name), False)
        return len(going)

    def has_other_files(self) -> bool:
        """Whether there are files at the table's path but no Delta log. A log without a commit does
        not count.
        """
        parent = self._folder.getParent()
        statuses = self._files.listStatus(parent) if self._files.exists(parent) else []
        return any(status.getPath().getName() != "_delta_log" for status in statuses)

    def forget_beginning(self) -> None:
        """Remove a log without a commit. A process that failed while it created the table left it,
        and Delta would take it for a table.

        If another process commits to this log meanwhile, only unfinished files and empty folders
        are removed. The rest is an error.
        """
        if self._files.exists(self._folder):
            for status in self._files.listStatus(self._folder):
                if status.isDirectory() or status.getPath().getName().startswith("."):
                    self._files.delete(status.getPath(), False)
            self._files.delete(self._folder, False)

    def _listed(self) -> int:
        return max(self._versions(), default=-1)

    def _versions(self) -> list[int]:
        """All versions with a commit, in rising order."""
        return _versions_in(self._names())

    def _names(self) -> list[str]:
        """The names of all files in the log."""
        return _NAME.findall(self._statuses())

    def _statuses(self) -> str:
        """The statuses of all files in the log as one text: in a long log, one call to the JVM for
        each name takes seconds, and py4j does not see that S3's are statuses of files.
        """
        if not self._is_remote and not self._files.exists(self._folder):
            return ""
        try:
            return str(self._arrays.toString(self._files.listStatus(self._folder)))
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error.java_exception.getClass().getName()):
                return ""
            raise

    def _file(self, version: int) -> Any:
        return self._path_of(self._folder, f"{version:020}.json")

    def _text_of(self, file: Any) -> str:
        stream = self._files.open(file)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _read(self, version: int) -> Commit:
        text = self._text_of(self._file(version))
        # Delta writes other line separators, for example U+2028 of a key, as they are.
        lines = [line for line in text.split("\n") if line.strip()]
        if not (actions := actions_in(lines)):
            damage = LogDamage(f"{version:020}.json", IS_NO_JSON if lines else IS_EMPTY)
            raise log_damaged(self.location.removeprefix("file:"), damage)
        with reading(self.location, f"Commit {version}"):
            return self._parsed(version, lines, actions)

    def _parsed(self, version: int, lines: list[str], actions: list[dict[str, Any]]) -> Commit:
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        info = infos[0] if infos else {}
        operation, stored = str(info.get("operation", "")), _stored_in(info.get("userMetadata"))
        if operation == "RESTORE" and stored is None:
            # A restore to a version of lowmark, as the remedy suggests, has the metadata of that
            # version.
            restored = info.get("operationParameters", {}).get("version")
            if restored is not None and self._files.exists(self._file(int(restored))):
                stored = self._read(int(restored)).stored
        at = int(info.get("timestamp", 0)) * 1000
        added = {
            action["add"]["path"]: action["add"].get("size") or 0
            for action in actions
            if "add" in action
        }
        removed = {
            action["remove"]["path"]: action["remove"].get("size") or 0
            for action in actions
            if "remove" in action
        }
        # If rows of a file were marked as deleted, the commit removes the file and adds it.
        gone, new = removed.keys() - added.keys(), added.keys() - removed.keys()
        files = CommitCount(
            *(at, len(new), len(gone), sum(removed[path] for path in gone)),
            added_bytes=sum(added[path] for path in new),
        )
        adds = tuple(line for line, action in zip(lines, actions, strict=True) if "add" in action)
        return Commit(version, at, operation, stored, files, adds, frozenset(removed))


def _metadata_in(action: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """The properties and the names of the columns in Delta's action."""
    columns = json.loads(action["schemaString"])["fields"]
    return dict(action.get("configuration", {})), [column["name"] for column in columns]


def _versions_in(names: Iterable[str]) -> list[int]:
    """The versions whose commits are among the files of a log, in rising order."""
    return sorted(int(match[1]) for name in names if (match := _COMMIT.fullmatch(name)))


@cache
def _classes(jvm: Any) -> tuple[Any, ...]:
    """The classes are cached, because the JVM searches all jars for each part of a class name."""
    hadoop, commons = jvm.org.apache.hadoop.fs, jvm.org.apache.commons
    return hadoop.Path, commons.io.IOUtils, commons.lang3.ArrayUtils


def remove_folder(spark: SparkSession, path: str) -> None:
    """Remove a folder with its content."""
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path)
    folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).delete(folder, True)


def folders_in(spark: SparkSession, path: str) -> list[str]:
    """The sorted names of the folders at `path`. Empty if the path does not exist."""
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path)
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    statuses = files.listStatus(folder) if files.exists(folder) else []
    return sorted(str(status.getPath().getName()) for status in statuses if status.isDirectory())


def _stored_in(metadata: str | None) -> Mapping[str, Any] | None:
    try:
        parsed = json.loads(metadata) if metadata else None
    except (RecursionError, ValueError):
        return None
    return (
        parsed["lowmark"]
        if isinstance(parsed, dict) and isinstance(parsed.get("lowmark"), dict)
        else None
    )


def quoted(path: str) -> str:
    """The SQL name of the Delta table at `path`. For a relative path, SQL would search a table of
    that name.
    """
    return f"delta.`{path.replace('`', '``')}`"


def session_with(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A copy of the session with additional settings. Other threads do not see them, and they need
    not be removed.
    """
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Delta's transactions use the settings of this session inside the block. It is the active one
    of the thread.
    """
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
    """A session in which every commit has `metadata` as its `userMetadata`. Delta's builders and
    commands read it only from there.
    """
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


def user_metadata(stored: Mapping[str, Any]) -> str:
    """The `userMetadata` of a commit with `stored`."""
    return json.dumps({"lowmark": stored}, separators=(",", ":"))
