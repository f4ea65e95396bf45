"""Single rows of a Delta table, replaced in one commit: deletion vectors where they lay, new files for what they became (TBL-13).

Delta's MERGE reads a table to find the rows, again to rewrite them, and once more for their vectors. An apply has read them already,
to merge them, and knows where each of them lies. Delta has no public way to be told so: what is called here, through the JVM, are the
steps of its own DELETE and of its writer (docs/decisions/0014-sparse-applies.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connector.errors import WriterConflictError
from connector.spark.transaction import Transaction, scala_object

FILE: Final = "_file"
ROW: Final = "_row"
PLACE: Final = (f"_metadata.file_path AS {FILE}", f"_metadata.row_index AS {ROW}")
"""Where a row lies, as expressions over the table."""
ENABLED: Final = "delta.enableDeletionVectors"
_STATISTICS_PREFIX: Final = 32
"""How much of a text Delta keeps in a file's statistics, unless told otherwise."""


def size_in_bytes(spark: SparkSession, path: str) -> int:
    """How large the files of the table's newest version are. No Spark job, where the version has a checksum, as ours have."""
    snapshot = _delta(spark).DeltaLog.forTable(spark._jsparkSession, path).update(False, _none(spark), _none(spark))
    checksum = snapshot.checksumOpt()
    return int(checksum.get().tableSizeBytes() if checksum.isDefined() else snapshot.sizeInBytes())


def replace_rows(
    spark: SparkSession,
    path: str,
    *,
    version: int,
    places: DataFrame,
    rows: DataFrame,
    app_id: str,
    app_version: int,
    bookkeeping: Mapping[str, Any],
) -> None:
    """Take the rows at `places` (columns `FILE` and `ROW`) out of the table and put `rows` in, in one commit that says `bookkeeping`.

    The commit has the number `app_version` of `app_id`. `version` is the one that the places are of. The table must have deletion
    vectors `ENABLED`. Raises `WriterConflictError` if somebody has committed since, and what Delta raises where somebody does meanwhile.
    """
    transaction = Transaction(spark, path, app_id)
    if transaction.delta.snapshot().version() != version:
        raise WriterConflictError(f"Somebody committed to {path}", "Two processes apply the same table", "Stop one of them")
    # All files count as read: whatever another writer changes meanwhile is a conflict.
    files = transaction.delta.filterFiles()
    with ThreadPoolExecutor(1) as beside:
        # Much of either is not work, but planning and waiting.
        added = beside.submit(inheritable_thread_target(spark)(transaction.write), rows)
        removed = _with_vectors(spark, transaction, files, places)
    added.result()
    transaction.commit(app_version, bookkeeping, actions=removed)


def _with_vectors(spark: SparkSession, transaction: Transaction, files: Any, places: DataFrame) -> Any:
    """Delta's actions that mark the rows at `places` in `files` as removed."""
    commands, log = _delta(spark).commands, transaction.log
    vectors = scala_object(commands, "DeletionVectorBitmapGenerator").buildRowIndexSetsForFilesMatchingCondition(
        spark._jsparkSession, transaction.delta, True, places._jdf, files, _every_row(spark), _some(spark, FILE), _some(spark, ROW)
    )
    helper = scala_object(commands, "DMLWithDeletionVectorsHelper")
    touched = helper.findFilesWithMatchingRows(transaction.delta, helper.generateCandidateFileMap(log.dataPath(), files), vectors)
    return helper.processUnmodifiedData(spark._jsparkSession, touched, transaction.delta.snapshot(), _STATISTICS_PREFIX)._1()


def _delta(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta


def _none(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return scala_object(jvm.scala, "None")


def _some(spark: SparkSession, column: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.scala.Some(F.col(column)._jc)


def _every_row(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral()
