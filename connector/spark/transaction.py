"""One commit of a Delta table through Delta's own transaction: files first, which nobody sees, then all of it at once.

Delta's writer commits as it writes. Here the rows are written first, and what their commit says may be worked out from them: data,
position and progress become one fact (TBL-5). The metadata goes with the commit and never through a setting of the session, which
others share. Delta has no public way to do so from Python; what is called through the JVM are the steps of its own writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from connector.spark.delta_log import user_metadata


class Transaction:
    """A commit in the making, on the newest version of the table at `path`. Not for use by two threads at once.

    `newest` is the greatest number that was committed under `app_id`, -1 if there is none. Where another writer commits a number under
    it meanwhile, `commit` raises Delta's conflict.
    """

    def __init__(self, spark: SparkSession, path: str, app_id: str) -> None:
        self._spark, self._app_id = spark, app_id
        jvm: Any = spark._jvm
        self._none = scala_object(jvm.scala, "None")
        self.log = _delta(spark).DeltaLog.forTable(spark._jsparkSession, path)
        self.delta = self.log.startTransaction(self._none, self._none)
        self.newest = int(self.delta.txnVersion(app_id))
        self._files: Any = scala_object(jvm.scala.collection.immutable, "Nil")

    def write(self, rows: DataFrame) -> DataFrame:
        """Write rows to files that belong to the commit; returns the rows of these files, read back."""
        files = self.delta.writeFiles(rows._jdf)
        self._files = self._files.appendedAll(files)
        folder = self.log.dataPath().toString()
        paths = [f"{folder}/{unquote(files.apply(n).path())}" for n in range(files.size())]
        if not paths:
            return rows.limit(0)
        return self._spark.read.schema(rows.schema).option("basePath", folder).parquet(*paths)

    def commit(self, number: int, bookkeeping: Mapping[str, Any], *, actions: Any = None) -> None:
        """Commit what was written, and further `actions` of Delta, under `number`; the commit says `bookkeeping`."""
        self.delta.updateSetTransaction(self._app_id, number, self._none)
        files = self._files if actions is None else self._files.appendedAll(actions)
        self.delta.commit(files, self._operation(user_metadata(bookkeeping)))

    def _operation(self, metadata: str) -> Any:
        """Delta's name for the act is that of an append; whatever else it does stands in its actions."""
        jvm: Any = self._spark._jvm
        append = jvm.org.apache.spark.sql.SaveMode.Append
        none = self._none
        return _delta(self._spark).DeltaOperations.Write(append, none, none, jvm.scala.Some(metadata), none, none, none, none, none)


def _delta(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta


def scala_object(package: Any, name: str) -> Any:
    """A singleton of Scala."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
