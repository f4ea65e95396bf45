"""Parallelism follows the cores that are there when a step runs (SCL-5)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from connector.spark import cluster
from connector.spark.session import SETTINGS

SHUFFLE = "spark.sql.shuffle.partitions"
FOLLOWING = (
    "spark.lowmark.cores",
    SHUFFLE,
    "spark.databricks.delta.snapshotPartitions",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism",
)


@pytest.fixture
def own(spark: SparkSession) -> SparkSession:
    """A session with lowmark's settings, whatever those of the suite are."""
    session = spark.newSession()
    for name in FOLLOWING:
        session.conf.set(name, SETTINGS[name])
    return session


def parallelism(session: SparkSession) -> list[str | None]:
    return [session.conf.get(name) for name in FOLLOWING[1:]]


def test_settings_follow_cores_that_come_and_go(
    own: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCL-5: two local cores change nothing, and a setting of the user stays."""
    cluster.follow_cores(own)
    assert cluster.cores(own) == 2
    assert parallelism(own) == ["8", "1", "4"]
    assert cluster.applies_at_once(own) == 2
    now = [0]
    monkeypatch.setattr(cluster, "cores", lambda spark: now[0])
    for now[0], expected in (
        (32, ["64", "4", "32"]),
        (2, ["8", "1", "4"]),
        (16, ["32", "2", "16"]),
    ):
        cluster.follow_cores(own)
        assert parallelism(own) == expected
    assert cluster.applies_at_once(own) == 4
    own.conf.set(SHUFFLE, "200")
    now[0] = 8
    cluster.follow_cores(own)
    assert parallelism(own) == ["200", "1", "8"]
    own.conf.set("spark.lowmark.cores", "")
    now[0] = 64
    cluster.follow_cores(own)
    assert parallelism(own) == ["200", "1", "8"], "a session without lowmark's settings"
