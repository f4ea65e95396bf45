"""One Spark session for the whole suite, on locked jars."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector import jars
from connector.spark.session import start_session
from tests.broker import admin, broker, kafka, new_topic

__all__ = ["admin", "broker", "kafka", "new_topic", "spark"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    paths = jars.fetch("spark", jars.JarStore.from_environment(os.environ))
    settings = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
    session = start_session(paths, scratch=Path(tmp_path_factory.mktemp("spark")), cores="2", settings=settings)
    yield session
    session.stop()
