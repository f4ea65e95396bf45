"""The outbox of a producer with a real broker (PUB-3)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from connector.config.settings import KafkaConfig
from connector.errors import ConnectorError, TopicError
from connector.kafka import (
    ChangeConsumer,
    ChangeProducer,
    ConsumerRecord,
    LocalBroker,
    topics,
)
from connector.records.model import DataChange, Heartbeat
from connector.reports.series import Histogram
from tests.broker import NewTopic, jar_store
from tests.unit.kafka.outbox_process import change
from tests.unit.kafka.test_producer_errors import figures

CHANGES = 20_000
ROOT = Path(__file__).parents[2]


def produce(servers: str, outbox: str, dies_at: int) -> None:
    """A producer that begins at its resume token, and is killed before it sends a change."""
    settings = {"message.timeout.ms": "2000"}
    with ChangeProducer(
        KafkaConfig(servers, settings), "t", outbox=outbox, heartbeat_s=1
    ) as producer:
        try:
            start = int(producer.resume_token("p"))
        except Exception:  # noqa: BLE001, the first process has none
            start = 0
        print(f"from {start}", flush=True)
        for number in range(start, CHANGES):
            if number == 5_000 and start == 0:
                producer.flush()
                print("stop the broker", flush=True)
                sys.stdin.readline()
            if number == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            producer.send(change(number))
            if number % 100 == 99:
                producer.reached("p", number + 1, b"%d" % (number + 1))
        print("sent", flush=True)
        producer.flush()


def run(broker: LocalBroker, outbox: Path, dies_at: int) -> int:
    """Run a producer, and return the change from which it has continued."""
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.integration.test_outbox"),
            *(broker.bootstrap_servers, str(outbox), str(dies_at)),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        start = int(process.stdout.readline().removeprefix("from "))
        for line in process.stdout:
            if line == "stop the broker\n":
                broker.kill()
                process.stdin.write("go on\n")
                process.stdin.flush()
            elif line == "sent\n":
                broker.restart()
    assert process.returncode == (-signal.SIGKILL if dies_at else 0)
    return start


@pytest.mark.long
def test_an_outage_longer_than_every_time_out_and_a_killed_producer_lose_nothing(
    tmp_path: Path,
) -> None:
    """PUB-3, nothing_lost, newest_wins, watermark: the broker is away while the producer is killed,
    and while it starts again from its token.
    """
    outbox = tmp_path / "outbox.db"
    with LocalBroker.start(tmp_path / "broker", jar_store()) as broker:
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "t", kafka_partitions=3)
        assert run(broker, outbox, 12_000) == 0
        assert run(broker, outbox, 16_000) == 12_000, "the newest position in the outbox"
        assert run(broker, outbox, 0) == 16_000
        seen: dict[int, set[int]] = {}
        versions: dict[bytes, list[int]] = {}
        with ChangeConsumer(kafka, "t", bounded=True) as consumer:
            received = [one for one in consumer if isinstance(one, ConsumerRecord)]
    for one in received:
        if isinstance(one.record, DataChange):
            seen.setdefault(one.position.kafka_partition, set()).add(one.record.commit_timestamp)
            versions.setdefault(one.record.row_key, []).append(one.record.commit_timestamp)
    assert set[int]().union(*seen.values()) == set(range(1, CHANGES + 1))
    for found in versions.values():
        # A repeated change is followed by all later ones again.
        for at, (before, after) in enumerate(pairwise(found)):
            if after < before:
                assert after in found[: at + 1]
                later = {version for version in found if after <= version <= before}
                assert later <= set(found[at + 1 :])
    first_at: dict[int, dict[int, int]] = {}
    for one in received:
        if isinstance(one.record, DataChange):
            places = first_at.setdefault(one.position.kafka_partition, {})
            places.setdefault(one.record.commit_timestamp, one.position.offset)
    heartbeats = [one for one in received if isinstance(one.record, Heartbeat)]
    for one in heartbeats:
        assert isinstance(one.record, Heartbeat)
        for at, offset in first_at[one.position.kafka_partition].items():
            assert at > one.record.timestamp or offset < one.position.offset
    assert (
        max(one.record.timestamp for one in heartbeats if isinstance(one.record, Heartbeat))
        == CHANGES
    )


def test_a_topic_that_was_created_again_gets_no_heartbeat_of_the_outbox(
    kafka: KafkaConfig, admin: AdminClient, new_topic: NewTopic, tmp_path: Path
) -> None:
    """PUB-3, watermark_is_honest: the new topic lacks the change that was delivered before, so a
    heartbeat there would claim too much.
    """
    topic = new_topic().topic
    producer = ChangeProducer(kafka, topic, outbox=tmp_path / "outbox.db", heartbeat_s=1)
    producer.send(change(0))
    producer.flush()
    admin.delete_topics([topic])[topic].result(30)
    for number in range(1, 20):
        producer.send(change(number))
    time.sleep(1)
    producer.reached("p", 20)
    topics.create_topic(kafka, topic, kafka_partitions=1)
    deadline = time.monotonic() + 90
    with pytest.raises(TopicError, match=r"There is no topic|is not the topic"):
        while time.monotonic() < deadline:
            producer.poll(0.2)
    with pytest.raises(ConnectorError):
        producer.close(1)
    with ChangeConsumer(kafka, topic, bounded=True) as consumer:
        records = [one.record for one in consumer if isinstance(one, ConsumerRecord)]
    assert not any(isinstance(one, Heartbeat) for one in records)


def test_the_figures_of_a_producer_tell_an_outage(tmp_path: Path) -> None:
    """MET-1: what waits and since when, while the broker is away, and that all was acknowledged."""
    with LocalBroker.start(tmp_path / "broker", jar_store()) as broker:
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "t", kafka_partitions=1)
        with ChangeProducer(kafka, "t", outbox=tmp_path / "outbox.db") as producer:
            producer.send(change(0))
            producer.flush()
            broker.kill()
            began = time.monotonic()
            for number in range(1, 20):
                producer.send(change(number))
            producer.poll(2)
            values = figures(producer)
            assert values["outbox_records"] == 19
            oldest_s = values["outbox_oldest_age_seconds"]
            assert isinstance(oldest_s, float)
            assert 1 < oldest_s <= time.monotonic() - began + 0.1
            broker.restart()
            producer.flush()
            values = figures(producer)
    assert values["outbox_records"] == values["outbox_oldest_age_seconds"] == 0
    assert values["delivered_records"] == 20
    acknowledged = values["acknowledgement_seconds"]
    assert isinstance(acknowledged, Histogram)
    assert sum(acknowledged.counts) == 20 + producer.announced
    assert acknowledged.sum > oldest_s, "messages of the outage waited in the client"


if __name__ == "__main__":
    produce(sys.argv[1], sys.argv[2], int(sys.argv[3]))
