"""The one Spark session of a process, with what reading untrusted Avro and writing Delta need from the start.

Some settings only work when the JVM starts: the jars, and Avro's length limits, without which one corrupt length can
exhaust the heap before anything can be caught (TBL-3).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from connector.errors import ConnectorError
from connector.spark.pools import fair_scheduling
from connector.spark.storage.changelog import PARQUET_SETTINGS

_AVRO_LIMITS: Final = " ".join(
    f"-Dorg.apache.avro.limits.{limit}"
    for limit in ("bytes.maxLength=16777216", "string.maxLength=16777216", "collectionItems.maxLength=1000000")
)

_LARGE_ARRAYS: Final = "-XX:G1HeapRegionSize=16m -XX:-G1UseAdaptiveIHOP -XX:InitiatingHeapOccupancyPercent=70"
"""Parquet and Spark work in arrays of 1 to 4 MB. A heap of 2 GB would have regions of 1 MB, and each array that is larger than half of one
can start a search for garbage, which then keeps a core busy all the time. Other collectors than G1 take no notice."""

JVM_OPTIONS: Final = f"{_AVRO_LIMITS} -XX:-DontCompileHugeMethods {_LARGE_ARRAYS}"
"""Spark makes one method of a whole stage, and the wider the table, the longer: the JVM would only interpret it."""

SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.sql.parquet.compression.codec": "zstd",
    # The default is an older form that other readers cannot hold the years 1 to 9999 in.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    **PARQUET_SETTINGS,
    "spark.sql.shuffle.partitions": "8",
    # Code that is the same from batch to batch stays compiled: sets of numbers are not written into it, and it is not forgotten.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.codegen.cache.maxEntries": "1000",
    # What follows from a projection of many columns is not worth knowing: working it out takes minutes, or all memory.
    "spark.sql.constraintPropagation.enabled": "false",
    # Changes and rows meet by key within buckets, where both already are.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # A batch is written to a handful of slots at a time: open writers instead of a sort of wide rows.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # Every commit asks for the state of the log, which is a few hundred commits: more tasks would take longer than the work.
    "spark.databricks.delta.snapshotPartitions": "1",
    # Up to so many files the state is written beside each commit, and no job has to work it out; more would be slow to write.
    "spark.databricks.delta.allFilesInCrc.thresholdNumFiles": "500",
    # What may be read of old versions we check ourselves: Delta asks how old a version is, not since when there is a newer one.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # Folders are listed by as many tasks as that when old files are removed, 10,000 unless it is said.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # A batch that dies must not leave its query running into the next one's.
    "spark.sql.streaming.stopTimeout": "60000",
}
"""What we ask of Spark beyond its defaults."""

_LOGGING: Final = """\
status = warn
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
# What stops a query is raised, and said once.
logger.query.name = org.apache.spark.sql.execution.streaming
logger.query.level = off
# What stops a task stops its query, or, where a batch has replays, has it read again.
logger.task.name = org.apache.spark.executor.Executor
logger.task.level = off
logger.stage.name = org.apache.spark.scheduler.TaskSetManager
logger.stage.level = off
logger.tried.name = org.apache.spark.util.Utils
logger.tried.level = off
logger.writer.name = org.apache.spark.sql.delta.files.DeltaFileFormatWriter
logger.writer.level = off
# A stage too long to be compiled runs all the same, a little slower.
logger.codegen.name = org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator
logger.codegen.level = off
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%notEmpty{%ex{short}%n}
"""


def start_session(jars: Iterable[Path], *, scratch: Path, cores: str = "*", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with our jars on the class path; the one of this process, if there is one already.

    `scratch` is a local folder for Spark's temporary files and what configures its logging and its pools. `settings` outrank ours. Where
    the process was started by `spark-submit`, its master stands.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    logging = scratch / "log4j2.properties"
    logging.write_text(_LOGGING)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    merged = {
        **SETTINGS,
        "spark.driver.extraJavaOptions": f"{JVM_OPTIONS} -Dlog4j2.configurationFile={logging.as_uri()} -Dderby.system.home={scratch}",
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **fair_scheduling(scratch),
        **(settings or {}),
    }
    builder = SparkSession.builder.appName("lowmark")
    if "spark.master" not in merged and "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master(f"local[{cores}]")
    for name, value in merged.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    _check_jars(spark, merged["spark.jars"])
    return spark


def _check_jars(spark: SparkSession, jars: str) -> None:
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass("io.delta.tables.DeltaTable")
    except Py4JJavaError:
        raise ConnectorError(
            "Spark runs without Delta's jars",
            "It was started before this program, as spark-submit does, and takes jars only when it starts",
            f"Start it with --jars {jars}",
        ) from None
