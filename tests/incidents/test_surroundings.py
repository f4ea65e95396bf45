"""Incidents of what a pipeline stands on: Kafka, the disk, the process, and the warehouse."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from connector.config.settings import KafkaConfig
from connector.kafka import topics
from connector.kafka.local.broker import LocalBroker
from tests.golden.make_warehouse import EXPECTED, FOLDER, as_json
from tests.incidents.desk import Desk, until
from tests.spark.streams import account
from tests.spark.test_backup import shell
from tests.spark.test_pipeline import small_disk

__all__ = ["small_disk"]
AGES = ("lowmark_stream_refresh_age", "lowmark_stream_lag_seconds", "lowmark_table_age")


def of(desk: Desk, broker: LocalBroker) -> Desk:
    return replace(desk, kafka=KafkaConfig(broker.bootstrap_servers), topic="orders")


def test_kafka_is_away_at_the_start(desk: Desk, own_broker: LocalBroker) -> None:
    """docs/howto/on-call.md#lowmarknotrunning"""
    desk = of(desk, own_broker)
    desk.publish(account("a", 1, name="Ada"))
    own_broker.kill()
    with desk.running():
        until(lambda: "WAITING" in desk.log())
        assert desk.alerts() == {"LowmarkNotRunning"}
        assert desk.does("connector validate") == 1
        assert "No Kafka broker answers" in desk.err
        own_broker.restart()
        until(lambda: desk.applied("accounts", "copies"))
        assert {"GOES_ON", "RUNNING"} & desk.log()
        assert desk.table() == desk.truth()
    assert desk.error is None


@pytest.mark.long
def test_kafka_is_away_later(desk: Desk, own_broker: LocalBroker) -> None:
    """docs/howto/on-call.md#lowmarkkafkasilent"""
    desk = of(desk, own_broker)
    desk.publish(account("a", 1, name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.note()
        own_broker.kill()
        expected = {"LowmarkKafkaSilent", "LowmarkLag", "LowmarkTableStale"}
        assert desk.alerts(*AGES) == expected
        until(lambda: "WAITING" in desk.log(), 300)
        own_broker.restart()
        desk.publish(account("b", 2, name="Bob"))
        until(lambda: "GOES_ON" in desk.log())
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == desk.truth()
    assert desk.error is None


def test_a_full_disk(desk: Desk, small_disk: Path) -> None:
    """docs/howto/on-call.md#lowmarkdiskfull"""
    desk = replace(desk, warehouse=small_disk / "warehouse")
    desk.publish(account("a", 1, name="Ada"))
    ballast = small_disk / "ballast"
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.note()
        assert desk.alerts() == {"LowmarkDiskFull"}
        with pytest.raises(OSError, match="No space"), ballast.open("wb") as file:
            while True:
                file.write(os.urandom(4096))
                file.flush()
        desk.publish(*(account(row, 2, name=row * 2000) for row in "abcdefgh"))
        until(desk.has_ended)
    assert desk.error is not None
    assert desk.error.code == "DISK_FULL"
    assert desk.alerts() == {"LowmarkDown"}
    assert "ingested 1 change" in desk.status()
    ballast.unlink()
    assert desk.does("connector run --once") == 0
    assert desk.table() == desk.truth()


def test_an_old_backup(desk: Desk, tmp_path: Path) -> None:
    """docs/howto/on-call.md#a-restored-warehouse"""
    desk.publish(account("a", 1, name="Ada"))
    desk.send([(0, b"x", b"rubbish")])
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        shell(0, tmp_path)
        desk.publish(account("a", 2, name="Anna"), account("b", 3, name="Bob"))
        until(lambda: desk.applied("accounts", "copies"))
        desk.note()
    truth, letters = desk.truth(), desk.letters()
    shutil.move(tmp_path / "warehouse", tmp_path / "lost")
    shell(1, tmp_path)
    assert desk.table() != truth
    assert desk.alerts() == {"LowmarkDown"}
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == truth
    assert desk.letters() == letters
    assert desk.does("connector audit") == 0
    assert desk.error is None


def test_an_upgrade(desk: Desk) -> None:
    """docs/howto/on-call.md#a-new-version"""
    kept = json.loads(EXPECTED.read_text())
    facts = topics.create_topic(desk.kafka, f"{desk.topic}.golden", kafka_partitions=2)
    desk = replace(desk, topic=facts.topic)
    producer = Producer({"bootstrap.servers": desk.kafka.bootstrap_servers})
    for number, end in kept["read"].items():
        for _ in range(end):
            producer.produce(desk.topic, b"was read by the old version", b"k", int(number))
    assert producer.flush(30) == 0
    shutil.copytree(FOLDER, desk.warehouse)
    for log in Path(desk.warehouse).rglob("_delta_log/*.json"):
        log.write_text(log.read_text().replace("id-1", facts.topic_id))
    desk.sections = desk.sections[:1]
    assert desk.does("connector read accounts --allow-stale") == 0
    with desk.running():
        until(lambda: desk.applied("accounts"))
        assert as_json(desk.table()) == kept["merged"]
    assert desk.error is None
