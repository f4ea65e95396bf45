"""Reads known files of a Delta table without reading its log, for which Delta runs Spark jobs.

Delta writes the list of a table's files beside each commit, if they are few. A process also knows
the files that it has written. This module calls, through the JVM, the methods with which Delta's
own commands read files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Files:
    """Files of a table with its snapshot. `added` is a Scala sequence of Delta's `AddFile`."""

    spark: SparkSession
    log: Any
    snapshot: Any
    added: Any

    def rows(self) -> DataFrame:
        """The rows of the files without those marked as deleted. Statistics skip no file, but
        partition filters do.
        """
        return DataFrame(
            self.log.createDataFrame(self.snapshot, self.added, False, none(self.spark)), self.spark
        )

    def only(self, added: Iterable[Any]) -> Files:
        """Other files of the same table."""
        return Files(self.spark, self.log, self.snapshot, scala_list(self.spark, added))

    def __iter__(self) -> Iterator[Any]:
        return each(self.added)

    def actions(self) -> tuple[str, ...]:
        """The actions of Delta's log that add the files, as JSON. It is one call to the JVM."""
        jvm: Any = self.spark._jvm
        any_type = scala_object(jvm.scala.reflect, "ManifestFactory").Any()
        to_json = scala_object(delta(self.spark).util, "JsonUtils").toJson
        return tuple(json.dumps({"add": add}) for add in json.loads(to_json(self.added, any_type)))


def files_of(
    spark: SparkSession, path: str, version: int, actions: Sequence[str] | None = None
) -> Files | None:
    """All files of the table, if `version` is the newest one. `actions` add these files. None: they
    are not known, and the commit must list them.
    """
    snapshot = newest_snapshot(spark, path)
    if snapshot.version() != version:
        return None
    if actions is None:
        return _listed(spark, snapshot)
    return Files(spark, snapshot.deltaLog(), snapshot, parsed(spark, actions))


def all_files(spark: SparkSession, path: str) -> Files:
    """All files of the newest version. Spark jobs find them if its commit does not list them."""
    snapshot = newest_snapshot(spark, path)
    listed = _listed(spark, snapshot)
    return listed or Files(
        spark,
        snapshot.deltaLog(),
        snapshot,
        snapshot.filesForScan(scala_list(spark, ()), True).files(),
    )


def size_in_bytes(spark: SparkSession, path: str) -> int:
    """The size of the files of the table's newest version, mostly without a Spark job."""
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
    """Delta's snapshot of the newest version of the table at `path`."""
    return log_of(spark, path).update(False, none(spark), none(spark))


def delta(spark: SparkSession) -> Any:
    """Delta's package in the JVM."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta


def scala_object(package: Any, name: str) -> Any:
    """A Scala singleton."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def none(spark: SparkSession) -> Any:
    """Scala's `None`."""
    jvm: Any = spark._jvm
    return scala_object(jvm.scala, "None")


def each(items: Any) -> Iterator[Any]:
    """The items of a Scala sequence."""
    return (items.apply(number) for number in range(items.size()))


def parsed(spark: SparkSession, actions: Iterable[str]) -> Any:
    """A Scala list of actions of Delta's log, which are given as JSON."""
    return scala_list(spark, map(delta(spark).actions.Action.fromJson, actions))


def scala_list(spark: SparkSession, items: Iterable[Any]) -> Any:
    """A Scala list of JVM objects."""
    jvm: Any = spark._jvm
    scala = scala_object(jvm.scala.collection.immutable, "Nil")
    for item in items:
        scala = scala.appended(item)
    return scala
