"""`connector audit` of what `connector run` wrote, beside the real broker (TBL-6, nothing_lost)."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from connector import cli
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.dead_letters.envelope import dead_letter_topic
from tests.broker import NewTopic
from tests.spark.live import Live
from tests.spark.streams import account


class OnlyLogged(Live):
    """Without a table: an audit looks at none."""

    @property
    def config(self) -> ConnectorConfig:
        return replace(super().config, tables={})


def test_nothing_lost_is_proved_broken_and_proved_again(
    spark: SparkSession,
    kafka: KafkaConfig,
    new_topic: NewTopic,
    admin: AdminClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Reading begins in the middle of Kafka partition 1; an aborted transaction and its marker are
    gaps in 0; later Kafka forgets all.
    """
    topic = new_topic(kafka_partitions=2).topic
    file = tmp_path / "connector.toml"
    file.write_text(
        'warehouse = "warehouse"\n[kafka]\nbootstrap_servers ='
        f' "{kafka.bootstrap_servers}"\n[streams.s]\ntopic = "{topic}"\n'
    )

    def audit() -> tuple[int, dict[str, Any], str]:
        code = cli.invoke(["--config", str(file), "audit", "--json"])
        said = capsys.readouterr()
        return code, json.loads(said.out), said.err

    def forget(name: str, number: int, offset: int) -> None:
        place = TopicPartition(name, number, offset)
        admin.delete_records([place])[place].result(30)

    with ExitStack() as stack:
        live = OnlyLogged(spark, kafka, topic, tmp_path / "warehouse", stack)
        live.publish(account("b", 1, name="Bea"), account("b", 2, name="Bob"), at=1)
        forget(topic, 1, 1)
        live.publish(account("a", 1, name="Ada"), at=0)
        live.send([(0, b"x", b"rubbish")])
        live.abort(account("a", 9, name="Eve"), account("e", 9, name="Eve"))
        live.pipeline().run_once()
        live.publish(account("a", 2, name="Ann"), at=0)
        live.abort(account("a", 9, name="Eve"))
        live.pipeline().run_once()

    code, found, said = audit()
    assert (code, found["verdict"], found["to_batch"]) == (0, "passed", 2)
    nothing: dict[str, list[object]] = {
        "lost": [],
        "unverified": [],
        "duplicated": [],
        "unexpected": [],
    }
    # Two records, two aborted ones and their marker, one record, an aborted one and its marker.
    first = {"kafka_partition": 0, "begin": 0, "end": 8, "rows": 3, "empty": 5, **nothing}
    assert found["kafka_partitions"] == [
        first,
        {"kafka_partition": 1, "begin": 1, "end": 2, "rows": 1, "empty": 0, **nothing},
    ]
    assert found["letters"]["compared"] == 1

    changelog = DeltaTable(f"{live.warehouse}/streams/s/changelog")
    ours = changelog.version()
    changelog.delete("kafka_partition = 0 AND \"offset\" = 5 AND kind = 'change'")
    code, found, said = audit()
    assert (code, found["verdict"], found["kafka_partitions"][0]["lost"]) == (1, "failed", [[5, 6]])
    assert "breaks nothing_lost" in said

    forget(topic, 0, 8)
    forget(dead_letter_topic(topic), *_letter_of(live))
    code, found, said = audit()
    assert (code, found["verdict"], found["kafka_partitions"][0]["unverified"]) == (
        0,
        "unverified",
        [[5, 6]],
    )
    assert "1 offset cannot be checked" in said

    DeltaTable(changelog.table_uri).restore(ours)
    code, found, said = audit()
    assert (code, found["verdict"]) == (0, "passed")

    # Without the proofs, and without the topic, nobody can say.
    shutil.rmtree(live.warehouse / "_connector/audit_log")
    admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 30
    while topic in admin.list_topics(timeout=10).topics and time.monotonic() < deadline:
        time.sleep(0.05)
    code, found, said = audit()
    assert (code, found["verdict"], found["kafka_partitions"][0]["unverified"]) == (
        0,
        "unverified",
        [[2, 5], [6, 8]],
    )
    assert len(found["letters"]["unverified"]) == 1
    assert f"There is no topic {topic}" in said


def _letter_of(live: Live) -> tuple[int, int]:
    """Kafka partition of its only letter, and the offset behind it."""
    from connector.kafka.dead_letters.topic import read_letters

    ((_, position),) = read_letters(live.kafka, live.topic)
    return position.kafka_partition, position.offset + 1
