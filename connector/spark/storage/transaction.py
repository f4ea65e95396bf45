"""One commit of a Delta table through Delta's own transaction: files are written first, then
committed together with metadata that may be computed from them (TBL-5). Delta's writer commits as
it writes, with metadata of the session, which others share. So this module calls its steps through
the JVM.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from connector.spark.storage.delta_log import active, metadata_session
from connector.spark.storage.files import Files, delta, each, log_of, none, scala_list
from connector.state.commits import user_metadata

CHECKPOINTS: Final = {"delta.checkpointInterval": "50"}
"""The property of a table for Delta's checkpoints. One is a Spark job in the middle of a commit."""
_FILES_BESIDE_COMMITS: Final = "spark.databricks.delta.allFilesInCrc.enabled"


class Transaction:
    """A commit in preparation, on the newest version of the table at `path`, of one thread. Commits
    of the writer `app_id` have rising numbers, of which `newest` is the last (-1: no commit yet).
    If another process commits under this name meanwhile, `commit` raises Delta's conflict.
    """

    def __init__(self, spark: SparkSession, path: str, app_id: str | None) -> None:
        self.spark, self.path, self._app_id = spark, path, app_id
        self._none = none(spark)
        self.log = log_of(spark, path)
        self.delta = self.log.startTransaction(self._none, self._none)
        self.is_first = int(self.delta.readVersion()) < 0
        """Whether there is no table yet."""
        self.newest = -1 if app_id is None or self.is_first else self._newest_of(app_id)
        self._written = scala_list(spark, ())

    def _newest_of(self, app_id: str) -> int:
        """The greatest number that was committed under the name. -1: there is no commit."""
        checksum = self.delta.snapshot().checksumOpt()
        if checksum.isEmpty() or checksum.get().setTransactions().isEmpty():
            return int(self.delta.txnVersion(app_id))
        # The same result without the state of the whole log, which Delta would compute.
        self.depend_on(app_id)
        commits = each(checksum.get().setTransactions().get())
        numbers = [int(commit.version()) for commit in commits if commit.appId() == app_id]
        return max(numbers, default=-1)

    def depend_on(self, app_id: str) -> None:
        """Make a commit under this name by another process a conflict."""
        self.delta.readTxn().addOne(app_id)

    def redefine(self, columns: Any, properties: Mapping[str, str]) -> None:
        """Change the columns and set properties, in this commit. Call it before `write`. `columns`
        is Spark's type of a row in the JVM.
        """
        action = json.loads(str(self.delta.metadata().json()))
        metadata = action["metaData"]
        metadata["schemaString"] = columns.json()
        metadata["configuration"] = {**metadata.get("configuration", {}), **properties}
        from_json = delta(self.spark).actions.Action.fromJson
        self.delta.updateMetadata(from_json(json.dumps(action)), False)

    def write(self, rows: DataFrame) -> None:
        """Write rows to files that belong to the commit."""
        self._written = self._written.appendedAll(self.delta.writeFiles(rows._jdf))

    @property
    def has_written(self) -> bool:
        """Whether there are rows to commit."""
        return not self._written.isEmpty()

    @property
    def written(self) -> Files:
        """The written files, for reading. Other readers do not see them before the commit."""
        return Files(self.spark, self.log, self.delta.snapshot(), self._written)

    def commit(self, number: int, stored: Mapping[str, Any], *, actions: Any = None) -> None:
        """Commit the written files, and further `actions` of Delta, under `number`, with `stored`
        as metadata, unless the number or a greater one was committed before.
        """
        if self._app_id is not None:
            if self.newest >= number:
                return
            self.delta.updateSetTransaction(self._app_id, number, self._none)
        files = self._written if actions is None else self._written.appendedAll(actions)
        self.delta.commit(files, self._operation(user_metadata(stored)))

    def _operation(self, metadata: str) -> Any:
        """An operation with Delta's name for an append."""
        jvm: Any = self.spark._jvm
        append = jvm.org.apache.spark.sql.SaveMode.Append
        return delta(self.spark).DeltaOperations.Write(
            append, *[self._none] * 2, jvm.scala.Some(metadata), *[self._none] * 5
        )


def create_table(
    spark: SparkSession,
    path: str,
    columns: Any,
    properties: Mapping[str, str],
    stored: Mapping[str, Any],
    *,
    partition_by: Sequence[str] = (),
    app_id: str | None = None,
) -> bool:
    """Create an empty table in one commit with `stored` as metadata, under number 0 of `app_id`.
    Returns whether there was none before. Raises Delta's conflict if another process creates it
    meanwhile.

    `columns` is Spark's type of a row in the JVM. No query is run, because the first one takes
    seconds.
    """
    # The operation has no metadata of its own. Delta would run a query to list the files before the
    # first commit. An empty list needs none.
    session = metadata_session(spark, user_metadata(stored), {_FILES_BESIDE_COMMITS: "false"})
    transaction = Transaction(session, path, app_id)
    if not transaction.is_first:
        return False
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": columns.json(),
        "partitionColumns": list(partition_by),
        "configuration": dict(properties),
        "createdTime": time.time_ns() // 1_000_000,
    }
    action = delta(spark).actions.Action.fromJson(json.dumps({"metaData": metadata}))
    commit, no = transaction.delta, none(spark)
    with active(session):
        commit.updateMetadata(action, False)
        if app_id is not None:
            commit.updateSetTransaction(app_id, 0, no)
        operation = delta(spark).DeltaOperations.CreateTable(commit.metadata(), False, False, no)
        commit.commit(scala_list(spark, ()), operation)
    return True


def row_type(spark: SparkSession, columns: Sequence[tuple[str, str]]) -> Any:
    """Spark's type of a row in the JVM, from names and types of columns."""
    types: Any = getattr(spark._jvm, "org.apache.spark.sql.types.StructType")
    listed = ", ".join(f"`{name}` {type_}" for name, type_ in columns)
    return types.fromDDL(listed)
