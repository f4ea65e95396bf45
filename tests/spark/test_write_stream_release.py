"""A commit that an operator waits for, from a write session to the table (WRS-18, WRS-23)."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import KafkaConfig
from connector.errors import WriteStreamError
from connector.kafka import WriteSession
from connector.lake.audit import open_logged
from connector.records.model import SERVER_TIME, SetCell
from connector.reports.audit import warnings_of
from connector.services import (
    commit_write_streams,
    finalize_write_stream,
    list_write_streams,
    release_rows,
    status,
)
from tests.broker import NewTopic
from tests.spark.live import Strict
from tests.spark.streams import shown


@pytest.mark.systems
def test_a_commit_is_withheld_for_a_rejected_row_and_released_without_it(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """WRS example 8: `commit --wait`, `release --without-rejected`, the status and the audit."""
    topic, stop = new_topic(kafka_partitions=2).topic, threading.Event()
    session = WriteSession(kafka, topic, "w1")
    stream = session.stream("p", kind="pending")
    tables = ["t"] * 9 + ["misspelt"]
    stream.append(
        [
            stream.row(
                table=table,
                row_key=f"r{n}".encode(),
                entries=[SetCell("f", b"name", b"n", SERVER_TIME)],
            )
            for n, table in enumerate(tables)
        ],
        0,
    ).result(30)
    with ExitStack() as stack:
        live = Strict(spark, kafka, topic, tmp_path / "warehouse", stack)
        config, pipeline = live.config, live.pipeline()
        thread = threading.Thread(target=pipeline.run, args=(stop,))
        thread.start()
        try:
            assert finalize_write_stream(config, "s", "w1/p") == 10
            with pytest.raises(WriteStreamError) as withheld:
                commit_write_streams(config, "s", ["w1/p"], wait=True, timeout_s=120)
            assert withheld.value.code == "RELEASE_WITHHELD"
            (release,) = list_write_streams(config, "s").releases
            found = status(config)
            assert found.streams["s"].dead_letters.withheld == 1
            assert not found.tables["accounts"].is_complete
            request = release_rows(config, "s", "w1/p", why="a misspelt table")
            committed = commit_write_streams(config, "s", ["w1/p"], wait=True, timeout_s=120)
            assert committed == release.commit_timestamp == request.commit_timestamp
        finally:
            stop.set()
            thread.join()
        found = status(config)
        assert found.streams["s"].dead_letters.withheld == 0
        assert len(shown(pipeline._tables["accounts"])) == 9
        assert list_write_streams(config, "s").write_streams["w1/p"].released_rows == 10
        logged = open_logged(str(live.warehouse), "s")
        assert logged is not None
        streams = logged.write_streams()
        assert (streams["w1/p"].rows, streams["w1/p"].doubled) == (9, ())
        assert warnings_of(streams) == []
