"""One commit of a Delta table through Delta's own transaction: files are written first, then
committed together.

Delta's writer commits as it writes. Here the rows are written first, and the metadata of the commit
may be computed from them. So rows, position and progress are stored together (TBL-5). The metadata
is part of the commit and never a setting of the session, which others share. Delta has no public
API for this in Python. This module calls, through the JVM, the steps of Delta's own writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from connector.spark.storage.delta_log import user_metadata
from connector.spark.storage.files import Files, delta, each, log_of, none, scala_list


class Transaction:
    """A commit in preparation, on the newest version of the table at `path`. Use it from one thread
    only.

    `app_id` names the writer. Its commits have rising numbers, of which `newest` is the last (-1:
    no commit yet). If another process commits under this name meanwhile, `commit` raises Delta's
    conflict. Without `app_id`, commits have no numbers.
    """

    def __init__(self, spark: SparkSession, path: str, app_id: str | None) -> None:
        self._spark, self._app_id = spark, app_id
        self._none = none(spark)
        self.log = log_of(spark, path)
        self.delta = self.log.startTransaction(self._none, self._none)
        self.newest = -1 if app_id is None else self._newest_of(app_id)
        self._written = scala_list(spark, ())

    def _newest_of(self, app_id: str) -> int:
        """The greatest number that was committed under the name. -1: there is no commit."""
        checksum = self.delta.snapshot().checksumOpt()
        if checksum.isEmpty() or checksum.get().setTransactions().isEmpty():
            return int(self.delta.txnVersion(app_id))
        # The same result without the state of the whole log, which Delta would compute.
        self.depend_on(app_id)
        known = checksum.get().setTransactions().get()
        numbers = [int(one.version()) for one in each(known) if one.appId() == app_id]
        return max(numbers, default=-1)

    def depend_on(self, app_id: str) -> None:
        """Make a commit under this name by another process a conflict."""
        self.delta.readTxn().addOne(app_id)

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
        return Files(self._spark, self.log, self.delta.snapshot(), self._written)

    def commit(self, number: int, stored: Mapping[str, Any], *, actions: Any = None) -> None:
        """Commit the written files, and further `actions` of Delta, under `number`, with
        `stored` as metadata.

        If the number or a greater one was committed before, nothing is committed. A caller that
        must know reads the newest commit.
        """
        if self._app_id is not None:
            if self.newest >= number:
                return
            self.delta.updateSetTransaction(self._app_id, number, self._none)
        files = self._written if actions is None else self._written.appendedAll(actions)
        self.delta.commit(files, self._operation(user_metadata(stored)))

    def _operation(self, metadata: str) -> Any:
        """The operation has Delta's name for an append. The actions of the commit show all that it
        does.
        """
        jvm: Any = self._spark._jvm
        append = jvm.org.apache.spark.sql.SaveMode.Append
        return delta(self._spark).DeltaOperations.Write(
            append, *[self._none] * 2, jvm.scala.Some(metadata), *[self._none] * 5
        )
