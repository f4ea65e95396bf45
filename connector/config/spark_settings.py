"""How Spark is started: where it runs, with how much memory, and settings of your own (SCL-1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from connector.config.settings_reader import Form
from connector.config.storage import is_local
from connector.errors.settings import warehouse_not_shared
from connector.records.field_types import Between, check_ranges

LOCAL_MASTER: Final = "local[*]"
MAX_PARALLEL_APPLIES: Final = 32
"""So many threads wait for a table. More would only wait for the driver."""
JVM_OPTIONS: Final = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
"""Your value of these settings is added to that of lowmark."""

_KEYS: Final = {
    "spark.master": "master",
    "spark.driver.memory": "driver_memory",
    "spark.executor.memory": "executor_memory",
    "spark.executor.cores": "executor_cores",
    "spark.jars": "extra_jars",
}
"""Settings of Spark that have a key of their own."""

_MASTER: Final = Form(
    r"local(\[(\*|[1-9][0-9]*)(,[ 0-9]+)?\])?|local-cluster\[.+\]|yarn|[a-z0-9+]+://\S+",
    "local[*], local[N], yarn, or a URL such as spark://host:7077",
    LOCAL_MASTER,
)
_MEMORY: Final = Form(r"[1-9][0-9]{0,6}[mMgG]", "a number with m or g, for example 2g", "2g")

_KEPT: Final = {
    "spark.sql.extensions": "tables are read and written with Delta's extension alone",
    "spark.sql.catalog.spark_catalog": "tables are found by Delta's catalog",
    "spark.sql.session.timeZone": "times are in UTC",
    "spark.sql.ansi.enabled": "a value that does not fit becomes a dead letter, not a failed query",
    "spark.sql.caseSensitive": "names of columns are compared without case",
    "spark.speculation": "two attempts at one task would write the same files",
    "spark.serializer": "what executors send back is read by lowmark",
    "spark.hadoop.fs.s3a.performance.flags": "a commit must never replace another one",
    "spark.hadoop.fs.s3a.create.performance": "a commit must never replace another one",
    "spark.hadoop.fs.s3a.create.conditional.enabled": "a commit must never replace another one",
    "spark.delta.logStore.class": "a commit must never replace another one",
    "spark.delta.logStore.s3a.impl": "a commit must never replace another one",
}
_KEPT_PREFIXES: Final = {
    "spark.sql.legacy.": "values are compared and converted as Spark does by default",
    "spark.sql.parquet.": "every reader must find the same times in the files",
    "spark.hadoop.parquet.": "every reader must find the same times in the files",
    "spark.sql.streaming.": "a batch is repeated with exactly the same records",
    "spark.databricks.delta.": "old versions are removed by lowmark's own rules",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConfig:
    """How lowmark starts Spark, where you do not give a session of your own.

    - `master`: `local[*]`, or the URL of a cluster, for example `spark://host:7077`.
    - `driver_memory`, `executor_memory`: sizes of the heaps, for example `2g`. Empty: Spark's
      default for executors.
    - `executor_cores`: None: all cores of a worker.
    - `max_parallel_applies`: how many tables are applied at the same time. None: by the cores
      (SCL-5).
    - `extra_jars`: jars on the class path of driver and executors, beside those of lowmark.
    - `conf`: any other setting of Spark.
    """

    master: Annotated[str, _MASTER] = LOCAL_MASTER
    driver_memory: Annotated[str, _MEMORY] = "2g"
    executor_memory: Annotated[str, _MEMORY] = ""
    executor_cores: Annotated[int, Between(1, 1024)] | None = None
    max_parallel_applies: Annotated[int, Between(1, MAX_PARALLEL_APPLIES)] | None = None
    extra_jars: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def is_local(self) -> bool:
        return is_local_master(self.master)

    def settings(self) -> dict[str, str]:
        """The settings of Spark. Those that are not given are left out."""
        given = {
            "spark.master": self.master,
            "spark.driver.memory": self.driver_memory,
            "spark.executor.memory": self.executor_memory,
            "spark.executor.cores": str(self.executor_cores or ""),
        }
        return {**self.conf, **{name: value for name, value in given.items() if value}}


def is_local_master(master: str) -> bool:
    """Whether a master runs its tasks in the process of the driver."""
    return master == "local" or master.startswith("local[")


def conf_fault(name: str, value: str) -> tuple[str, str]:
    """The form that a wrong setting should have, and the remedy. Both are empty if it is right."""
    if not re.fullmatch(r"spark\.[^\s=]+", name):
        return "a setting of Spark, which begins with spark.", "correct its name"
    if name in _KEYS:
        return f"only as {_KEYS[name]}, in the section [spark]", f"write {_KEYS[name]} there"
    if name == "spark.speculation" and value.lower() == "false":
        return "", ""
    why = _KEPT.get(name) or next(
        (why for prefix, why in _KEPT_PREFIXES.items() if name.startswith(prefix)), ""
    )
    return (f"the value of lowmark: {why}", "remove it") if why else ("", "")


def check_shared(master: str, warehouse: str, *, shared_folder: bool) -> None:
    """Raise `ConfigError` if the warehouse is a local folder and the executors may be on other
    hosts (SCL-7).

    Each host would write its files to a folder of its own. `shared_folder`: the user says that all
    hosts see the same folder there, for example over NFS.
    """
    one_host = is_local_master(master) or master.startswith("local-cluster")
    if shared_folder or one_host or not is_local(warehouse):
        return
    raise warehouse_not_shared(warehouse, master)
