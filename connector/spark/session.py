"""The Spark session of a process, with the settings that untrusted Avro and Delta need.

Some settings only work when the JVM starts: the jars and Avro's length limits. Without these
limits, one corrupt length can fill the heap before an error can be caught (TBL-3).
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.config.spark_settings import JVM_OPTIONS as JVM_OPTION_SETTINGS
from connector.config.storage import is_local, is_s3, spelled
from connector.errors.spark import spark_setting_missing, spark_without_jars
from connector.errors.tables import store_not_conditional
from connector.events import OnEvent
from connector.jars import JarStore, Lock, fetch
from connector.spark.cluster import check_executors, cores, fair_scheduling, repeating, watching
from connector.spark.cluster import is_local as on_one_host
from connector.spark.failures import cause_of
from connector.spark.jvm import SILENT_LOGGERS, check_live, interruptible, launch, quiet_start
from connector.spark.storage.changelog_columns import PARQUET_SETTINGS
from connector.spark.tasks import check_python
from connector.state.store_errors import store_error

_LOCAL_FILES: Final = "io.github.lowmark.LocalFiles"
_S3_CLIENT: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
S3_LOG_STORE: Final = "spark.delta.logStore.s3a.impl"
_NOT_ATOMIC: Final = (
    *("S3SingleDriverLogStore", "HDFSLogStore", "HadoopFileSystemLogStore"),
    *("AzureLogStore", "GCSLogStore", "LocalLogStore"),
)
"""The ends of the names of Delta's classes that look whether a commit exists and then write it, or
rename it: neither is atomic in S3.
"""
_OF_SUBMIT: Final = {"spark.master", "spark.jars", "spark.local.dir"}
"""Settings that only `spark-submit` can make, where it started the process."""
_DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_AVRO_LIMITS: Final = " ".join(
    f"-Dorg.apache.avro.limits.{limit}"
    for limit in (
        "bytes.maxLength=16777216",
        "string.maxLength=16777216",
        "collectionItems.maxLength=1000000",
    )
)

_LARGE_ARRAYS: Final = (
    "-XX:G1HeapRegionSize=16m -XX:-G1UseAdaptiveIHOP -XX:InitiatingHeapOccupancyPercent=70"
)
"""Parquet and Spark work with arrays of 1 to 4 MB. With a heap of 2 GB, the regions would have 1
MB. Each array larger than half a region can start a garbage collection, which then keeps one core
busy. Collectors other than G1 ignore these options.
"""

JVM_OPTIONS: Final = f"{_AVRO_LIMITS} -XX:-DontCompileHugeMethods {_LARGE_ARRAYS}"
"""Spark compiles a whole stage into one method. A wide table makes it so long that the JVM would
only interpret it.
"""

SHORT_JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""For a process of a minute. The second compiler of the JVM would take a third of its time. The
first one alone has only 48 MB for its code.
"""

SETTINGS: Final = {
    "spark.sql.extensions": _DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's own class would let a second writer replace a commit in S3 (STO-3).
    S3_LOG_STORE: "io.github.lowmark.S3ConditionalLogStore",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.sql.parquet.compression.codec": "zstd",
    # The default is an older format, in which other readers cannot read the years 1 to 9999.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    **PARQUET_SETTINGS,
    "spark.sql.shuffle.partitions": "8",
    # Generated code that is the same in each batch stays compiled: sets of numbers are not part of
    # it, and the cache keeps it.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Constraints of a projection with many columns are not useful. Inferring them takes minutes, or
    # all memory.
    "spark.sql.constraintPropagation.enabled": "false",
    # Changes and rows are joined by key within buckets, and both are already distributed by bucket.
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    # A batch is written to a few slots at a time. Open writers avoid a sort of wide rows.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # Every commit reads the state of the log, which has a few hundred commits. More tasks would
    # take longer than the work.
    "spark.databricks.delta.snapshotPartitions": "1",
    # Up to this number of files, each commit stores the state of the log, and no job has to compute
    # it. More would be slow to write.
    "spark.databricks.delta.allFilesInCrc.thresholdNumFiles": "500",
    # lowmark checks itself which old versions can be read. Delta checks the age of a version, not
    # since when there is a newer one.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # This many tasks list folders when old files are removed. The default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # The cores that three of these settings were chosen for: `follow_cores` of
    # `connector.spark.cluster` changes them with the cores that are there.
    "spark.lowmark.cores": "0",
    # The query of a failed batch must end before the next batch starts.
    "spark.sql.streaming.stopTimeout": "60000",
    # Plans are shown without the login and the private key of Kafka's client.
    "spark.sql.redaction.options.regex": "(?i)url|jaas|keystore|secret|password",
}
"""The settings of Spark that differ from its defaults."""

_LOGGING: Final = """\
status = warn
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%notEmpty{%ex{short}%n}
""" + "".join(
    f"logger.silent{number}.name = {name}\nlogger.silent{number}.level = off\n"
    for number, name in enumerate(SILENT_LOGGERS)
)


def configure_session(
    builder: SparkSession.Builder,
    *,
    scratch: Path | None = None,
    jars: Iterable[Path] | None = None,
    warehouse: str | None = None,
) -> SparkSession.Builder:
    """Add all settings and jars that lowmark needs to the builder of your own session.

    It works like Delta's `configure_spark_with_delta_pip`.

    Example:
        spark = configure_session(SparkSession.builder.master("local[4]")).getOrCreate()

    Args:
        builder: The builder of your session. Settings that you add to it afterwards have priority.
        scratch: A local folder for Spark's temporary files, and for the files that configure its
            logging and pools. None: a new temporary folder.
        jars: Spark's and Delta's Kafka and Avro jars. None: the locked jars, which are downloaded
            once and checked.
        warehouse: For a warehouse in S3, the locked jars include those of Spark's S3 client. You
            set `spark.hadoop.fs.s3a.endpoint` and the like yourself.

    Returns:
        The same builder.

    Raises:
        ConnectorError: A jar cannot be downloaded, or its hash differs from the locked one.
    """
    folder = Path(tempfile.mkdtemp(prefix="lowmark-spark-")) if scratch is None else scratch
    if jars is None:
        store = JarStore.from_environment(os.environ)
        jars = fetch("spark", store)
        if warehouse is not None and is_s3(warehouse):
            jars += fetch("s3", store)
    for name, value in _settings(jars, folder).items():
        builder = builder.config(name, value)
    return builder


def check_session(
    spark: SparkSession, *, for_writing: bool = False, warehouse: str | None = None
) -> None:
    """Check that lowmark can use a session.

    Example:
        check_session(spark, for_writing=True)

    Args:
        spark: A session that you started. It is not changed.
        for_writing: Check also what `run` and `rebuild` need: the limits on the memory that a
            damaged record can use (TBL-3).
        warehouse: Check also what Spark needs for this warehouse (STO-1).

    Returns:
        Nothing, if the session is suitable.

    Raises:
        ConfigError: It is not a session, or a session of Spark Connect.
        ConnectorError: The session has ended, or Delta's jars or its extension are missing, also on
            an executor (SCL-2), or, for a warehouse in S3, the jars of its client. With
            `for_writing`, also if the Kafka or Avro jars are missing on an executor, if the limits
            are not set, or if commits in S3 would not be atomic (STO-3). The remedy names the
            settings. `configure_session` sets all of them.
    """
    check_live(spark)
    jvm: Any = spark._jvm
    needs_s3 = warehouse is not None and is_s3(warehouse)
    if not _has_class(jvm, "io.delta.tables.DeltaTable"):
        raise spark_without_jars("Delta", _jars_of("spark"))
    if needs_s3 and not _has_class(jvm, _S3_CLIENT):
        raise spark_without_jars("its S3 client", _jars_of("s3"))
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    if _DELTA_EXTENSION not in extensions:
        raise spark_setting_missing(
            "Spark runs without Delta's extension",
            f"spark.sql.extensions is {extensions!r}",
            f"spark.sql.extensions = {_DELTA_EXTENSION}",
        )
    if for_writing and warehouse is not None and needs_s3:
        _check_log_store(spark, warehouse)
    limit = "org.apache.avro.limits.bytes.maxLength"
    if for_writing and jvm.java.lang.System.getProperty(limit) is None:
        raise spark_setting_missing(
            "Spark decodes Avro without limits",
            "The driver runs without the JVM options of lowmark. A damaged record could use all"
            " memory",
            f"the JVM options {_AVRO_LIMITS}, for the driver and the executors",
        )
    check_executors(spark, _AVRO_LIMITS, for_writing=for_writing)
    if for_writing and not on_one_host(spark):
        with watching(spark):
            repeating(partial(check_python, spark, cores(spark)), "the check of the session")


def _check_log_store(spark: SparkSession, warehouse: str) -> None:
    """Refuse Delta's own classes without a lock. Another class may commit through one (STO-3)."""
    try:
        name = log_store_of(spark, warehouse)
    except Py4JJavaError as error:
        cause = f"Delta cannot make the class that writes its logs: {cause_of(error)}"
    else:
        if not is_not_atomic(name):
            return
        cause = (
            f"Delta commits with the class {name}. With it, a second writer could replace a commit"
        )
    raise spark_setting_missing(
        "Spark would write to S3 without atomic commits",
        cause,
        f"{S3_LOG_STORE} = {SETTINGS[S3_LOG_STORE]}, and without spark.delta.logStore.class",
    )


def log_store_of(spark: SparkSession, warehouse: str) -> str:
    """The name of the class with which Delta commits to this warehouse."""
    jvm: Any = spark._jvm
    store = jvm.org.apache.spark.sql.delta.storage.LogStore.apply(spark._jsparkSession)
    if "getDelegate" in dir(store):
        store = store.getDelegate(jvm.org.apache.hadoop.fs.Path(spelled(warehouse)))
    if "logStoreImpl" in dir(store):
        store = store.logStoreImpl()
    return str(store.getClass().getName())


def check_second_put(spark: SparkSession, warehouse: str) -> None:
    """Prove that no commit in an object store can be replaced: Delta's class writes one file twice,
    and the second time must fail (STO-4). The file is deleted again. Raises `TableError` otherwise.
    """
    if is_local(warehouse):
        return
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    conf = session.sessionState().newHadoopConf()
    path = jvm.org.apache.hadoop.fs.Path(f"{paths.probe(spelled(warehouse))}/{uuid4()}.json")
    problem = f"The warehouse {warehouse} cannot be used"

    def put(text: str) -> None:
        lines = jvm.scala.jdk.javaapi.CollectionConverters.asScala(jvm.java.util.List.of(text))
        log_store = jvm.org.apache.spark.sql.delta.storage.LogStore.apply(session)
        log_store.write(path, lines.iterator(), False, conf)

    try:
        put("the first commit")
        try:
            put("another commit")
        except Py4JJavaError as error:
            if "FileAlreadyExists" not in str(error.java_exception):
                raise
        else:
            raise store_not_conditional(problem, path=warehouse)
        finally:
            path.getFileSystem(conf).delete(path, False)
    except Py4JJavaError as error:
        raise store_error(str(error), problem, path=warehouse) or error from error


def is_not_atomic(log_store: str) -> bool:
    """Whether commits in S3 through this class of Delta can replace each other (STO-3)."""
    return log_store.rpartition(".")[2] in _NOT_ATOMIC


def _has_class(jvm: Any, name: str) -> bool:
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def _jars_of(lock: Lock) -> str:
    return ",".join(map(str, fetch(lock, JarStore.from_environment(os.environ))))


def start_session(
    jars: Iterable[Path],
    *,
    scratch: Path,
    cores: str = "*",
    settings: Mapping[str, str] | None = None,
    on_event: OnEvent | None = None,
) -> SparkSession:
    """The Spark session of this process, with lowmark's jars. It is started if necessary. `scratch`
    is a local folder for temporary files. `settings` have priority over those of lowmark, but JVM
    options are added. The settings of `spark-submit` have priority over both. `on_event` receives
    the lines that a JVM of this process prints (LOG-1). None: they are printed.

    A JVM that is started here ends with this process. It ignores SIGTERM, which a service manager
    sends to all processes of a service: the work in flight can end. A handler of SIGINT is kept. If
    a KeyboardInterrupt ends the start, the JVM is killed.
    """
    given = settings or {}
    merged = {
        "spark.app.name": "lowmark",
        "spark.master": f"local[{cores}]",
        **_settings(jars, scratch),
        **{name: value for name, value in given.items() if name not in JVM_OPTION_SETTINGS},
    }
    for name in JVM_OPTION_SETTINGS:
        merged[name] = f"{merged[name]} {given.get(name, '')}".rstrip()
    if "SPARK_ENV_LOADED" in os.environ:
        merged = _beside_submit(merged)
    builder = SparkSession.builder
    for name, value in merged.items():
        builder = builder.config(name, value)

    def start() -> SparkSession:
        launch(merged, on_event)
        return builder.getOrCreate()

    with quiet_start():
        spark = interruptible(start)
    sessions: Any = getattr(spark._jvm, "org.apache.spark.sql.classic.SparkSession")
    sessions.setActiveSession(spark._jsparkSession)  # in this thread, too
    _use_local_files(spark)
    return spark


def _use_local_files(spark: SparkSession) -> None:
    """Read and write local files by lowmark's class, which starts no process for them. It cannot be
    a setting of Spark, because Spark needs local files before it has loaded the jars. A second call
    for a session does nothing.
    """
    jvm: Any = spark._jvm
    conf, checked = spark.sparkContext._jsc.hadoopConfiguration(), f"{_LOCAL_FILES}$Checked"
    if conf.get("fs.file.impl") != checked and _has_class(jvm, checked):
        conf.set("fs.AbstractFileSystem.file.impl", f"{_LOCAL_FILES}$Context")
        conf.set("fs.file.impl", checked)
        # The next user of local files gets a new object.
        jvm.org.apache.hadoop.fs.FileSystem.getLocal(conf).close()


def _beside_submit(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that do not replace what `spark-submit` was given."""
    SparkContext._ensure_initialized()
    given = {name for name, _ in SparkConf().getAll()} | _OF_SUBMIT
    ours = SETTINGS.keys() - {*JVM_OPTION_SETTINGS, "spark.ui.enabled"}
    return {name: value for name, value in settings.items() if name in ours or name not in given}


def _settings(jars: Iterable[Path], scratch: Path) -> dict[str, str]:
    """The settings of a session. Writes the files in `scratch` that they name."""
    scratch.mkdir(parents=True, exist_ok=True)
    is_debug = logging.getLogger("lowmark").isEnabledFor(logging.DEBUG)
    log_settings = scratch / "log4j2.properties"
    log_settings.write_text(_LOGGING.replace("{level}", "info" if is_debug else "error"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return {
        **SETTINGS,
        "spark.driver.extraJavaOptions": (
            f"{JVM_OPTIONS} -Dlog4j2.configurationFile={log_settings.as_uri()}"
            f" -Dderby.system.home={scratch}"
        ),
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **fair_scheduling(scratch),
    }
