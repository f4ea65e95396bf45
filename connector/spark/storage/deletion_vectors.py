"""Replaces single rows of a Delta table in one commit: deletion vectors for the old rows, new files
for the new ones (TBL-13).

An apply knows the location of each old row, which Delta's MERGE would search again. So this module
calls the steps of Delta's DELETE and of its writer through the JVM
(docs/decisions/0014-sparse-applies.md).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connector.errors.tables import concurrent_write
from connector.spark.storage.files import Files, delta, each, scala_list, scala_object
from connector.spark.storage.transaction import Transaction

FILE: Final = "_file"
ROW: Final = "_row"
ROW_LOCATION: Final = (f"_metadata.file_path AS {FILE}", f"_metadata.row_index AS {ROW}")
"""The location of a row, as SQL expressions over the table."""
ENABLED: Final = "delta.enableDeletionVectors"
_STATISTICS_PREFIX: Final = 32
"""The length of a text in Delta's file statistics. This is Delta's default."""


def replace_rows(
    transaction: Transaction,
    *,
    version: int,
    files: Files | None,
    locations: DataFrame,
    rows: DataFrame,
    number: int,
    stored: Mapping[str, Any],
) -> None:
    """Remove the rows at `locations` (columns `FILE` and `ROW`) of `version` and add `rows`, in one
    commit with this number and `stored`. `files` are all files of the version, if known. Raises
    `WriterConflictError` if another process has committed since, and Delta's conflict if one
    commits meanwhile.
    """
    spark = transaction.spark
    check_version(transaction, version)
    with ThreadPoolExecutor(1) as beside:
        # Both spend much time with planning and waiting.
        added = beside.submit(inheritable_thread_target(spark)(transaction.write), rows)
        removed = (
            _marked_in_log(spark, transaction, locations)
            if files is None
            else marked_files(spark, transaction, files, locations)
        )
    added.result()
    transaction.commit(number, stored, actions=removed)


def check_version(transaction: Transaction, version: int) -> None:
    """Raise `WriterConflictError` unless this version is the newest. Later, it is a conflict."""
    if transaction.delta.snapshot().version() != version:
        raise concurrent_write(transaction.path)
    transaction.delta.readWholeTable()


def marked_files(
    spark: SparkSession, transaction: Transaction, files: Files, locations: DataFrame
) -> Any:
    """Delta's actions that mark the rows at `locations` in `files` as deleted."""
    commands, folder = delta(spark).commands, transaction.log.dataPath()
    vectors = {
        file_url(spark, folder, file): file.deletionVector().serializeToBase64()
        for file in files
        if file.deletionVector()
    }
    old_vectors = (
        F.map_from_arrays(F.lit([*vectors]), F.lit([*vectors.values()]))
        if vectors
        else F.lit(None).cast("map<string, string>")
    )
    generator = scala_object(commands, "DeletionVectorBitmapGenerator")
    named = locations.coalesce(1).select(
        F.col(FILE).alias(generator.FILE_NAME_COL()),
        F.try_element_at(old_vectors, F.col(FILE)).alias(generator.FILE_DV_ID_COL()),
        F.col(ROW).alias(generator.ROW_INDEX_COL()),
    )
    results = generator.buildDeletionVectors(spark._jsparkSession, named._jdf, transaction.log, 0)
    helper = scala_object(commands, "DMLWithDeletionVectorsHelper")
    touched = helper.findFilesWithMatchingRows(
        transaction.delta, helper.generateCandidateFileMap(folder, files.added), results
    )
    actions: list[Any] = []
    for file in each(touched):
        entry = file.fileLogEntry()
        if file.isFullyReplaced():
            actions.append(entry.removeWithTimestamp(time.time_ns() // 1_000_000, True))
        else:
            marked = entry.removeRows(file.newDeletionVector(), True, True)
            actions += (marked._1(), marked._2())
    return scala_list(spark, actions)


def file_url(spark: SparkSession, folder: Any, file: Any) -> str:
    """The path of a file, as its rows have it."""
    jvm: Any = spark._jvm
    path = scala_object(delta(spark).util, "DeltaFileOperations").absolutePath(
        folder.toString(), file.path()
    )
    return str(jvm.org.apache.spark.paths.SparkPath.fromPath(path).urlEncoded())


def _marked_in_log(spark: SparkSession, transaction: Transaction, locations: DataFrame) -> Any:
    """The same for files from the log, without statistics. Delta finds them and their vectors."""
    commands, log, files = delta(spark).commands, transaction.log, transaction.delta.filterFiles()
    jvm: Any = spark._jvm
    vectors = scala_object(
        commands, "DeletionVectorBitmapGenerator"
    ).buildRowIndexSetsForFilesMatchingCondition(
        spark._jsparkSession,
        transaction.delta,
        True,
        locations._jdf,
        files,
        jvm.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral(),  # every row
        jvm.scala.Some(F.col(FILE)._jc),
        jvm.scala.Some(F.col(ROW)._jc),
    )
    helper = scala_object(commands, "DMLWithDeletionVectorsHelper")
    touched = helper.findFilesWithMatchingRows(
        transaction.delta, helper.generateCandidateFileMap(log.dataPath(), files), vectors
    )
    return helper.processUnmodifiedData(
        spark._jsparkSession, touched, transaction.delta.snapshot(), _STATISTICS_PREFIX
    )._1()
