"""The desk of the person on call: a pipeline on the real broker, its commands, alerts and log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import KafkaConfig
from connector.kafka.local.broker import LocalBroker
from connector.kafka.topics import create_topic
from connector.services import local_spark, metrics
from connector.spark import open_tables, stream_ingest
from tests.broker import NewTopic, admin, broker, jar_store, kafka, new_topic
from tests.incidents.desk import Desk
from tests.object_store import object_store
from tests.spark.conftest import spark, store

__all__ = ["admin", "broker", "kafka", "new_topic", "object_store", "spark", "store"]


@pytest.fixture(autouse=True)
def _fast(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are short, and the commands of the test use the session that is there."""
    monkeypatch.setattr(local_spark, "_started", lambda *_: spark)
    monkeypatch.setattr(metrics, "REFRESH_EVERY_S", 0.5)
    monkeypatch.setattr(sys.modules["connector.services.run"], "READ_EVERY_S", 0.5)
    monkeypatch.setattr(stream_ingest, "HEARTBEATS_EVERY_S", 0.5)
    for name in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S"):
        monkeypatch.setattr(open_tables, name, 1.0)


@pytest.fixture
def desk(
    spark: SparkSession,
    kafka: KafkaConfig,
    new_topic: NewTopic,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Desk]:
    with ExitStack() as stack:
        topic = new_topic(kafka_partitions=1).topic
        yield Desk(spark, kafka, topic, tmp_path / "warehouse", stack, capsys=capsys)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalBroker]:
    """A broker that a test may kill, with the topic `orders`."""
    with LocalBroker.start(tmp_path / "broker", jar_store()) as local:
        create_topic(KafkaConfig(local.bootstrap_servers), "orders", kafka_partitions=1)
        yield local
