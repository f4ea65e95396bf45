"""Files of a Delta table that are known already, read without a look at the table's log: for that Delta runs Spark jobs of its own.

Delta writes the list of a table's files beside each commit, as long as they are few (`SETTINGS` of `connector.spark.session`), and a
process knows what it has written itself. Delta has no public way to read just these; what is called through the JVM is what its own
commands read files with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Files:
    """Files of the table at `path`, and a version of it that has its columns. `added` are Delta's `AddFile`s, as Scala's sequence."""

    spark: SparkSession
    log: Any
    snapshot: Any
    added: Any

    def rows(self) -> DataFrame:
        """The rows of the files, but for those that are marked as removed. Nothing is skipped by statistics, partitions are."""
        return DataFrame(self.log.createDataFrame(self.snapshot, self.added, False, none(self.spark)), self.spark)

    def only(self, added: Iterable[Any]) -> Files:
        """Other files of the same table."""
        return Files(self.spark, self.log, self.snapshot, scala_list(self.spark, added))

    def __iter__(self) -> Iterator[Any]:
        return each(self.added)


def files_of(spark: SparkSession, path: str, version: int) -> Files | None:
    """All files of the table, if `version` is the newest one, and a list of them lies beside its commit; else None."""
    snapshot = newest_snapshot(spark, path)
    return _listed(spark, snapshot) if snapshot.version() == version else None


def all_files(spark: SparkSession, path: str) -> Files:
    """All files of the newest version of the table. Where they are too many for a list beside the commit, Spark jobs look for them."""
    snapshot = newest_snapshot(spark, path)
    listed = _listed(spark, snapshot)
    return listed or Files(spark, snapshot.deltaLog(), snapshot, snapshot.filesForScan(scala_list(spark, ()), True).files())


def size_in_bytes(spark: SparkSession, path: str) -> int:
    """How large the files of the table's newest version are. No Spark job, where the version has a checksum, as ours have."""
    snapshot = newest_snapshot(spark, path)
    checksum = snapshot.checksumOpt()
    return int(checksum.get().tableSizeBytes() if checksum.isDefined() else snapshot.sizeInBytes())


def _listed(spark: SparkSession, snapshot: Any) -> Files | None:
    checksum = snapshot.checksumOpt()
    if checksum.isEmpty() or checksum.get().allFiles().isEmpty():
        return None
    return Files(spark, snapshot.deltaLog(), snapshot, checksum.get().allFiles().get())


def log_of(spark: SparkSession, path: str) -> Any:
    """Delta's own log of the table at `path`."""
    return delta(spark).DeltaLog.forTable(spark._jsparkSession, path)


def newest_snapshot(spark: SparkSession, path: str) -> Any:
    """What Delta knows of the newest version of the table at `path`."""
    return log_of(spark, path).update(False, none(spark), none(spark))


def delta(spark: SparkSession) -> Any:
    """Delta's package in the JVM."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta


def scala_object(package: Any, name: str) -> Any:
    """A singleton of Scala."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def none(spark: SparkSession) -> Any:
    """Scala's `None`."""
    jvm: Any = spark._jvm
    return scala_object(jvm.scala, "None")


def each(items: Any) -> Iterator[Any]:
    """The items of a sequence of Scala."""
    return (items.apply(number) for number in range(items.size()))


def scala_list(spark: SparkSession, items: Iterable[Any]) -> Any:
    """Scala's list of what the JVM has."""
    jvm: Any = spark._jvm
    found = scala_object(jvm.scala.collection.immutable, "Nil")
    for item in items:
        found = found.appended(item)
    return found
