"""The newest commit of a Delta table, read from its log: what it says of itself, without a Spark job.

Every commit of ours carries the bookkeeping of its table as JSON in `userMetadata`, maintenance too, so the newest commit
always has it (TBL-10). A newest commit without it was made by somebody else (TBL-14).
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from connector.spark.storage.files import newest_snapshot
from connector.state.maintenance_schedule import CommitCount, superfluous

_NAME: Final = re.compile(r"/_delta_log/([^,/}]+)(?=[,}])")
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_DELETED_AT_ONCE: Final = 5_000
"""A log that was never cleaned is cleaned bit by bit: each file is a call."""
_METADATA_CONF: Final = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit: its version, when it was made (microseconds), Delta's word for what it did, and our bookkeeping, if it is ours.

    `files` says what it did to the files of the table; `added` are those that it added, as Delta's JSON, and `removed` the paths of those
    that it removed, or marked rows of.
    """

    version: int
    at: int
    operation: str
    table_state: Mapping[str, Any] | None
    files: CommitCount
    added: tuple[str, ...]
    removed: frozenset[str]


class DeltaLog:
    """The log of the table at `path` (a path or URI that Spark can open). Remembers how far it has looked; reads forwards only.

    Several threads may look at once.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._path_of, self._io, self._file_util, self._arrays = _classes(spark._jvm)
        self._spark = spark
        self._folder = self._path_of(f"{path}/_delta_log")
        self._files = self._folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        self._version = -1
        self._passed: dict[int, CommitCount] | None = None

    @property
    def location(self) -> str:
        """The table's path, absolute."""
        return str(self._files.makeQualified(self._folder.getParent()).toString())

    def newest(self) -> Commit | None:
        """The newest commit, or None where there is no table. If a commit since the last look is not ours, that one, for good."""
        # What is remembered may be a step behind what another thread has seen, but is never changed by steps.
        version = self._version
        if version < 0 or not self._files.exists(self._file(version)):
            version = self._listed()
        if version < 0:
            return None
        commit = self._read(version)
        while commit.table_state is not None and self._files.exists(self._file(commit.version + 1)):
            commit = self._read(commit.version + 1)
            if self._passed is not None:
                self._passed[commit.version] = commit.files
        self._version = commit.version
        return commit

    def newest_of_ours(self) -> Commit | None:
        """The newest commit that wrote a state of ours, whatever others did on top of it, and if they went back; None if there is none."""
        commits = self.back_from(self._listed())
        return next((commit for commit in commits if commit.table_state is not None and commit.operation != "RESTORE"), None)

    def properties(self) -> Mapping[str, str]:
        """The properties of the table's newest version, as Delta keeps them. There must be a table.

        They stand in the checksum that Delta leaves beside a commit. Where there is none, Delta's own state of the log has them. No SQL
        is run: the first query of a process takes seconds.
        """
        version = self._listed()
        assert version >= 0, "there is no table"
        checksum = self._path_of(self._folder, f"{version:020}.crc")
        if self._files.exists(checksum):
            return dict(json.loads(self._text_of(checksum))["metadata"].get("configuration", {}))
        jvm: Any = self._spark._jvm
        configuration = newest_snapshot(self._spark, self.location).metadata().configuration()
        return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(configuration))

    def passed(self) -> list[CommitCount]:
        """What the commits did that `newest` has gone past since the last call; from the first call on, which returns none."""
        passed, self._passed = self._passed or {}, {}
        return [passed[version] for version in sorted(passed)]

    def back_from(self, version: int) -> Iterator[Commit]:
        """A commit and those before it, the newest first, as far as they are there."""
        while version >= 0 and (commit := self.at(version)) is not None:
            yield commit
            version -= 1

    def at(self, version: int) -> Commit | None:
        """A commit; None if it is not there, or not any more."""
        return self._read(version) if self._files.exists(self._file(version)) else None

    def oldest_at(self) -> int:
        """When the oldest commit was made that is still there; 0 if there is none."""
        versions = self._versions()
        return self._read(versions[0]).at if versions else 0

    def version_at(self, at: int) -> int | None:
        """The newest version that was committed at `at` or before (microseconds); None if none is known to be."""
        versions = self._versions()
        place = bisect_right(versions, at, key=lambda version: self._read(version).at)
        return versions[place - 1] if place else None

    def removed_between(self, after: int, to: int) -> frozenset[str]:
        """The paths of files that the versions `(after, to]` removed, or marked rows of."""
        return frozenset().union(*(self._read(version).removed for version in range(after + 1, to + 1)))

    def clean(self, before: int, readable: Collection[int] = ()) -> int:
        """Remove what the versions do not need that were the newest ones at `before` (microseconds) or later; returns how many files.

        Of earlier ones, those in `readable` stay readable.
        """
        names = self._names()
        first_needed = self.version_at(before)
        if first_needed is not None:
            first_needed = min([first_needed, *readable])
        going = superfluous(names, first_needed, max(_versions_in(names), default=-1))[:_DELETED_AT_ONCE]
        for name in going:
            self._files.delete(self._path_of(self._folder, name), False)
        return len(going)

    def has_other_files(self) -> bool:
        """Whether something lies at the table's path although there is no Delta log. A log without a commit is none."""
        parent = self._folder.getParent()
        statuses = self._files.listStatus(parent) if self._files.exists(parent) else []
        return any(status.getPath().getName() != "_delta_log" for status in statuses)

    def forget_beginning(self) -> None:
        """Remove a log without a commit: a process left it that died while it made the table, and Delta takes it for one.

        Of a log to which somebody commits meanwhile only unfinished files and empty folders are removed, and the rest is an error.
        """
        if self._files.exists(self._folder):
            for status in self._files.listStatus(self._folder):
                if status.isDirectory() or status.getPath().getName().startswith("."):
                    self._files.delete(status.getPath(), False)
            self._files.delete(self._folder, False)

    def _listed(self) -> int:
        return max(self._versions(), default=-1)

    def _versions(self) -> list[int]:
        """All versions whose commit is there, rising."""
        return _versions_in(self._names())

    def _names(self) -> list[str]:
        """The names of all files in the log."""
        if not self._files.exists(self._folder):
            return []
        # As one text: in a long log, asking the JVM for name after name takes seconds.
        return _NAME.findall(self._arrays.toString(self._file_util.stat2Paths(self._files.listStatus(self._folder))))

    def _file(self, version: int) -> Any:
        return self._path_of(self._folder, f"{version:020}.json")

    def _text_of(self, file: Any) -> str:
        stream = self._files.open(file)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _read(self, version: int) -> Commit:
        lines = self._text_of(self._file(version)).splitlines()
        actions = [json.loads(line) for line in lines]
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        info = infos[0] if infos else {}
        operation, table_state = str(info.get("operation", "")), _stored_in(info.get("userMetadata"))
        if operation == "RESTORE" and table_state is None:
            # Whoever goes back to a version of ours, as our remedy says, has what that version said of itself.
            restored = info.get("operationParameters", {}).get("version")
            if restored is not None and self._files.exists(self._file(int(restored))):
                table_state = self._read(int(restored)).table_state
        at = int(info.get("timestamp", 0)) * 1000
        added = {action["add"]["path"] for action in actions if "add" in action}
        removed = {action["remove"]["path"]: action["remove"].get("size") or 0 for action in actions if "remove" in action}
        # A file of which rows were marked is removed and added.
        gone = removed.keys() - added
        files = CommitCount(at, len(added), len(gone), sum(removed[path] for path in gone))
        adds = tuple(line for line, action in zip(lines, actions, strict=True) if "add" in action)
        return Commit(version, at, operation, table_state, files, adds, frozenset(removed))


def _versions_in(names: Iterable[str]) -> list[int]:
    """The versions whose commits are among the files of a log, rising."""
    return sorted(int(match[1]) for name in names if (match := _COMMIT.fullmatch(name)))


@cache
def _classes(jvm: Any) -> tuple[Any, ...]:
    """Looked up once: each look at a class by name has the JVM search all jars, for each part of the name."""
    hadoop, commons = jvm.org.apache.hadoop.fs, jvm.org.apache.commons
    return hadoop.Path, commons.io.IOUtils, hadoop.FileUtil, commons.lang3.ArrayUtils


def remove_folder(spark: SparkSession, path: str) -> None:
    """Remove a folder and all that is in it."""
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path)
    folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).delete(folder, True)


def folders_in(spark: SparkSession, path: str) -> list[str]:
    """The names of the folders at `path`, sorted; none where there is nothing."""
    jvm: Any = spark._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path)
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    statuses = files.listStatus(folder) if files.exists(folder) else []
    return sorted(str(status.getPath().getName()) for status in statuses if status.isDirectory())


def _stored_in(metadata: str | None) -> Mapping[str, Any] | None:
    try:
        parsed = json.loads(metadata) if metadata else None
    except ValueError:
        return None
    return parsed["lowmark"] if isinstance(parsed, dict) and isinstance(parsed.get("lowmark"), dict) else None


def quoted(path: str) -> str:
    """The Delta table at `path`, as SQL names it: for a relative path, SQL would look for a table of that name."""
    return f"delta.`{path.replace('`', '``')}`"


def session_with(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A session like `spark`, with these settings beside its own. No other thread sees them, and nothing is to be taken back."""
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


def session_saying(spark: SparkSession, metadata: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session in which every commit bears `metadata` as its `userMetadata`: Delta's builders and commands take it from there only."""
    return session_with(spark, {**(settings or {}), _METADATA_CONF: metadata})


def set_properties(spark: SparkSession, path: str, properties: Mapping[str, str], metadata: str) -> None:
    """Set properties of the Delta table at `path`, in one commit that bears `metadata`."""
    listed = ", ".join(f"'{name}' = '{_escaped(text)}'" for name, text in properties.items())
    session_saying(spark, metadata).sql(f"ALTER TABLE {quoted(path)} SET TBLPROPERTIES ({listed})")


def _escaped(text: str) -> str:
    """A text within the quotes of an SQL literal."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def rows_in(session: SparkSession, rows: DataFrame) -> DataFrame:
    """The same rows, of another session: what writes them asks that for its settings."""
    jvm: Any = session._jvm
    of_session = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, rows._jdf.queryExecution().logical())
    return DataFrame(of_session, session)


def user_metadata(table_state: Mapping[str, Any]) -> str:
    """The `userMetadata` of a commit that says `table_state`."""
    return json.dumps({"lowmark": table_state}, separators=(",", ":"))
