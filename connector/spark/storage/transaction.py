"""One commit of a Delta table through Delta's own transaction: files first, which nobody sees, then all of it at once.

Delta's writer commits as it writes. Here the rows are written first, and what their commit says may be worked out from them: data,
position and progress become one fact (TBL-5). The metadata goes with the commit and never through a setting of the session, which
others share. Delta has no public way to do so from Python; what is called through the JVM are the steps of its own writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from connector.spark.storage.delta_log import user_metadata
from connector.spark.storage.files import Files, delta, each, log_of, none, scala_list


class Transaction:
    """A commit in the making, on the newest version of the table at `path`. Not for use by two threads at once.

    `app_id` names the writer, whose commits have rising numbers, up to `newest` so far (-1: none): where another process commits under it
    meanwhile, `commit` raises Delta's conflict. Without one, commits have no numbers.
    """

    def __init__(self, spark: SparkSession, path: str, app_id: str | None) -> None:
        self._spark, self._app_id = spark, app_id
        self._none = none(spark)
        self.log = log_of(spark, path)
        self.delta = self.log.startTransaction(self._none, self._none)
        self.newest = -1 if app_id is None else self._newest_of(app_id)
        self._written = scala_list(spark, ())

    def _newest_of(self, app_id: str) -> int:
        """The greatest number that was committed under the name, -1 if there is none."""
        checksum = self.delta.snapshot().checksumOpt()
        if checksum.isEmpty() or checksum.get().setTransactions().isEmpty():
            return int(self.delta.txnVersion(app_id))
        # The same without the state of the whole log, which Delta would work out for it.
        self.depend_on(app_id)
        known = checksum.get().setTransactions().get()
        numbers = [int(one.version()) for one in each(known) if one.appId() == app_id]
        return max(numbers, default=-1)

    def depend_on(self, app_id: str) -> None:
        """What is committed under the name meanwhile is a conflict."""
        self.delta.readTxn().addOne(app_id)

    def write(self, rows: DataFrame) -> None:
        """Write rows to files that belong to the commit."""
        self._written = self._written.appendedAll(self.delta.writeFiles(rows._jdf))

    @property
    def has_written(self) -> bool:
        """Whether there are any rows to commit."""
        return not self._written.isEmpty()

    @property
    def written(self) -> Files:
        """What was written, for reading; nobody else sees it before the commit."""
        return Files(self._spark, self.log, self.delta.snapshot(), self._written)

    def commit(self, number: int, table_state: Mapping[str, Any], *, actions: Any = None) -> None:
        """Commit what was written, and further `actions` of Delta, under `number`; the commit says `table_state`.

        Where the number or a greater one was taken before, nothing is committed: whoever must know looks at the newest commit.
        """
        if self._app_id is not None:
            if self.newest >= number:
                return
            self.delta.updateSetTransaction(self._app_id, number, self._none)
        files = self._written if actions is None else self._written.appendedAll(actions)
        self.delta.commit(files, self._operation(user_metadata(table_state)))

    def _operation(self, metadata: str) -> Any:
        """Delta's name for the act is that of an append; whatever else it does stands in its actions."""
        jvm: Any = self._spark._jvm
        append = jvm.org.apache.spark.sql.SaveMode.Append
        said = jvm.scala.Some(metadata)
        return delta(self._spark).DeltaOperations.Write(append, *[self._none] * 2, said, *[self._none] * 5)
