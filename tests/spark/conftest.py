"""One Spark session for the whole suite, on locked jars."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector import jars
from connector.config.storage import SPARK_DEFAULTS
from connector.spark.session import start_session
from connector.state import maintenance_schedule
from tests.broker import admin, broker, kafka, new_topic
from tests.object_store import ObjectStore, object_store

__all__ = ["admin", "broker", "kafka", "new_topic", "object_store", "spark", "store"]

# A test's plans run once, over a few rows: compiling them takes longer than interpreting them.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# Two cores have room neither for a collector's threads, nor for optimising what runs a few times,
# nor for verifying, at each start, the code of jars that are known by their hashes.
JVM_OPTIONS = (
    "-XX:+UseSerialGC -Xmn400m -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# The same for a process of its own, in its environment. As small as its JVM starts, it warns, where
# a command prints its rows.
QUICK_PROCESS = {
    "JDK_JAVA_OPTIONS": " ".join(
        [JVM_OPTIONS, *(f"-D{name}={value}" for name, value in INTERPRETED.items())]
    )
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if (running := SparkSession.getActiveSession()) is not None:
        # One for the run, not one for each conftest that imports this fixture.
        yield running
        return
    store = jars.JarStore.from_environment(os.environ)
    paths = [*jars.fetch("spark", store), *jars.fetch("s3", store)]
    settings = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2", **INTERPRETED}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", JVM_OPTIONS)
        session = start_session(
            paths, scratch=Path(tmp_path_factory.mktemp("spark")), cores="2", settings=settings
        )
        yield session
        session.stop()


@pytest.fixture(scope="session")
def store(object_store: ObjectStore, spark: SparkSession) -> ObjectStore:
    """The object store, which the session can reach."""
    settings: Any = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    for name, value in {**SPARK_DEFAULTS, **object_store.storage().spark_settings()}.items():
        settings.set(name.removeprefix("spark.hadoop."), value)
    return object_store


@pytest.fixture
def compacts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small files of one partition are worth a commit."""
    rules = {
        "GAIN": 1,
        "GAIN_OF_LOG": 1,
        "GAIN_PER_PARTITION": 0,
        "TIER": 1_000_000,
        "FOLD_BATCHES": 2,
        "MARKED_LEAST_BYTES": 0,
    }
    for name, value in rules.items():
        monkeypatch.setattr(maintenance_schedule, name, value)


@pytest.fixture(scope="module")
def compiled(spark: SparkSession) -> Iterator[None]:
    """Plans are compiled, as users' plans are: for the suites that hold Spark's form of a rule to
    its definition.
    """
    for name in INTERPRETED:
        spark.conf.unset(name)
    yield
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
