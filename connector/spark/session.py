"""The one Spark session of a process, with what reading untrusted Avro and writing Delta need from the start.

Some settings only work when the JVM starts: the jars, and Avro's length limits, without which one corrupt length can
exhaust the heap before anything can be caught (TBL-3).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from connector.errors import ConnectorError
from connector.jars import JarStore, fetch
from connector.spark.pools import fair_scheduling
from connector.spark.storage.changelog import PARQUET_SETTINGS

_DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
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
    "spark.sql.extensions": _DELTA_EXTENSION,
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


def configure_session(
    builder: SparkSession.Builder, *, scratch: Path | None = None, jars: Iterable[Path] | None = None
) -> SparkSession.Builder:
    """Add all that lowmark needs to the builder of your own session, in the manner of Delta's `configure_spark_with_delta_pip`.

    For example: `spark = configure_session(SparkSession.builder.master("local[4]")).getOrCreate()`.

    Args:
        builder: Settings that you add to it afterwards outrank those of lowmark.
        scratch: A local folder for Spark's temporary files and for what configures its logging and pools. None: a new temporary folder.
        jars: Spark's and Delta's Kafka and Avro jars. None: the locked ones, fetched once and checked.

    Returns:
        The same builder.

    Raises:
        JarError: A jar cannot be fetched, or it has another hash than the locked one.
    """
    folder = Path(tempfile.mkdtemp(prefix="lowmark-spark-")) if scratch is None else scratch
    paths = fetch("spark", JarStore.from_environment(os.environ)) if jars is None else jars
    for name, value in _settings(paths, folder).items():
        builder = builder.config(name, value)
    return builder


def check_session(spark: SparkSession, *, for_writing: bool = False) -> None:
    """Check that a session can be used by lowmark.

    Args:
        spark: A session that you started. It is not changed.
        for_writing: Also check what `run` and `rebuild` need: the limits that bound the memory of a damaged record (TBL-3).

    Raises:
        ConnectorError: Delta's jars or its extension are missing or, with `for_writing`, the limits are not set. The remedy names the
            settings; `configure_session` sets all of them.
    """
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass("io.delta.tables.DeltaTable")
    except Py4JJavaError:
        jars = ",".join(map(str, fetch("spark", JarStore.from_environment(os.environ))))
        raise ConnectorError(
            "Spark runs without Delta's jars",
            "It was started before this program, as spark-submit does, and takes jars only when it starts",
            f"Start it with --jars {jars}",
        ) from None
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    if _DELTA_EXTENSION not in extensions:
        raise ConnectorError(
            "Spark runs without Delta's extension",
            f"spark.sql.extensions is {extensions!r}",
            f"Set spark.sql.extensions to {_DELTA_EXTENSION}, or build the session with connector.spark.configure_session",
        )
    if for_writing and jvm.java.lang.System.getProperty("org.apache.avro.limits.bytes.maxLength") is None:
        raise ConnectorError(
            "Spark decodes Avro without limits",
            "A damaged record could ask for all memory: the driver runs without the JVM options of lowmark",
            f"Start the driver and the executors with {_AVRO_LIMITS}, or build the session with connector.spark.configure_session",
        )


def start_session(jars: Iterable[Path], *, scratch: Path, cores: str = "*", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with our jars on the class path; the one of this process, if there is one already.

    `scratch` is a local folder for Spark's temporary files and what configures its logging and its pools. `settings` outrank ours. Where
    the process was started by `spark-submit`, its master stands.
    """
    merged = {**_settings(jars, scratch), **(settings or {})}
    builder = SparkSession.builder.appName("lowmark")
    if "spark.master" not in merged and "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master(f"local[{cores}]")
    for name, value in merged.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    check_session(spark)
    return spark


def _settings(jars: Iterable[Path], scratch: Path) -> dict[str, str]:
    """The settings of a session, and the files in `scratch` that they name."""
    scratch.mkdir(parents=True, exist_ok=True)
    logging = scratch / "log4j2.properties"
    logging.write_text(_LOGGING)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return {
        **SETTINGS,
        "spark.driver.extraJavaOptions": f"{JVM_OPTIONS} -Dlog4j2.configurationFile={logging.as_uri()} -Dderby.system.home={scratch}",
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **fair_scheduling(scratch),
    }
