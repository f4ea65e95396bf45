"""The newest commit of a Delta table, read from its log: what it says of itself, without a Spark job.

Every commit of ours carries the bookkeeping of its table as JSON in `userMetadata`, maintenance too, so the newest commit
always has it (TBL-10). A newest commit without it was made by somebody else (TBL-14).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

_COMMIT: Final = re.compile(r"/_delta_log/(\d{20})\.json(?=[,}])")
_METADATA_CONF: Final = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit: its version, when it was made (microseconds), Delta's word for what it did, and our bookkeeping, if it is ours."""

    version: int
    at: int
    operation: str
    bookkeeping: Mapping[str, Any] | None


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

    @property
    def location(self) -> str:
        """The table's path, absolute."""
        return str(self._files.makeQualified(self._folder.getParent()).toString())

    def newest(self) -> Commit | None:
        """The newest commit, or None where there is no table. If a commit since the last look is not ours, that one, for good."""
        # What is remembered may be a step behind what another thread has seen, but is never changed by steps.
        version = self._version if self._version >= 0 else self._listed()
        if version < 0:
            return None
        commit = self._read(version)
        while commit.bookkeeping is not None and self._files.exists(self._file(commit.version + 1)):
            commit = self._read(commit.version + 1)
        self._version = commit.version
        return commit

    def newest_of_ours(self) -> Commit | None:
        """The newest commit that wrote a state of ours, whatever others did on top of it, and if they went back; None if there is none."""
        version = self._listed()
        while version >= 0 and self._files.exists(self._file(version)):
            commit = self._read(version)
            if commit.bookkeeping is not None and commit.operation != "RESTORE":
                return commit
            version -= 1
        return None

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
        none = getattr(jvm.scala, "None$").__getattr__("MODULE$")
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self.location)
        configuration = log.update(False, none, none).metadata().configuration()
        return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(configuration))

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
        if not self._files.exists(self._folder):
            return -1
        # As one text: in a long log, asking the JVM for name after name takes seconds.
        listed = self._arrays.toString(self._file_util.stat2Paths(self._files.listStatus(self._folder)))
        return max(map(int, _COMMIT.findall(listed)), default=-1)

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
        infos = [action["commitInfo"] for action in map(json.loads, text.splitlines()) if "commitInfo" in action]
        info = infos[0] if infos else {}
        operation, bookkeeping = str(info.get("operation", "")), _bookkeeping(info.get("userMetadata"))
        if operation == "RESTORE" and bookkeeping is None:
            # Whoever goes back to a version of ours, as our remedy says, has what that version said of itself.
            restored = info.get("operationParameters", {}).get("version")
            if restored is not None and self._files.exists(self._file(int(restored))):
                bookkeeping = self._read(int(restored)).bookkeeping
        return Commit(version, int(info.get("timestamp", 0)) * 1000, operation, bookkeeping)


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


def _bookkeeping(metadata: str | None) -> Mapping[str, Any] | None:
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


def rows_in(session: SparkSession, rows: DataFrame) -> DataFrame:
    """The same rows, of another session: what writes them asks that for its settings."""
    jvm: Any = session._jvm
    of_session = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, rows._jdf.queryExecution().logical())
    return DataFrame(of_session, session)


def user_metadata(bookkeeping: Mapping[str, Any]) -> str:
    """The `userMetadata` of a commit that says `bookkeeping`."""
    return json.dumps({"lowmark": bookkeeping}, separators=(",", ":"))
