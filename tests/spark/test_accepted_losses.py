"""Records that Kafka deleted before ingest read them, with a real broker (RUN-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from connector import services
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import ConfigError, TopicError
from connector.lake.state_reader import progress_of, table_state_of
from connector.records import codec
from connector.records.model import CONTROL_KEY, Heartbeat, Record
from connector.state.table_state import TableState
from tests.broker import NewTopic
from tests.spark.live import Live
from tests.spark.streams import CrashError, account
from tests.spark.test_cut import ANNOUNCED


@pytest.fixture
def live(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> Iterator[Live]:
    with ExitStack() as stack:
        yield Live(spark, kafka, new_topic(kafka_partitions=2).topic, tmp_path / "warehouse", stack)


def send_everywhere(live: Live, record: Record) -> None:
    value = codec.frame(codec.encode(record, 2), None)
    live.send((number, CONTROL_KEY, value) for number in range(2))


def state(live: Live) -> TableState:
    return table_state_of(str(live.warehouse), "s", "accounts")


def delete(live: Live, admin: AdminClient, before: int) -> None:
    place = TopicPartition(live.topic, 0, before)
    admin.delete_records([place])[place].result(30)


def faults(config: ConnectorConfig) -> list[str]:
    return [each.error.code for each in services.validate_config(config) if each.error]


def crash_after(last: str) -> Callable[[str], None]:
    def on_step(step: str) -> None:
        if step.endswith(last):
            raise CrashError(step)

    return on_step


def test_an_accepted_loss_is_passed_and_no_table_is_a_cut_until_it_is_confirmed(
    live: Live, admin: AdminClient
) -> None:
    """nothing_lost, resumable, watermark_is_honest, RUN-7: the error names offsets and times. The
    accepted loss stays in status and audit. Killed after any step, ingest passes it once.
    """
    config = live.config
    send_everywhere(live, ANNOUNCED)
    live.publish(account("a", 1, name="Ada"), at=0)
    send_everywhere(live, Heartbeat("p", 100))
    live.pipeline().run_once()
    assert state(live).is_consistent_cut
    with pytest.raises(ConfigError, match="Kafka has all"):
        services.accept_loss(config, "s", why="no reason")
    with pytest.raises(ConfigError, match="no unconfirmed loss"):
        services.confirm_table(config, "accounts", why="no reason")

    read_to = 3
    live.publish(*(account("a", at, name="Bob") for at in (101, 102)), at=0)
    live.publish(account("b", 103, name="Eve"), at=0)
    send_everywhere(live, Heartbeat("p", 200))
    delete(live, admin, read_to + 2)
    with pytest.raises(TopicError) as caught:
        live.pipeline().run_once()
    assert f"Kafka partition 0, offsets {read_to} to {read_to + 1}" in caught.value.problem
    assert " after 20" in caught.value.cause
    assert " before 20" in caught.value.cause
    assert caught.value.fields["stream"] == "s"

    # What is accepted are the records that were lost then, and no more.
    services.accept_loss(config, "s", why="too early", by="ann")
    delete(live, admin, read_to + 3)
    with pytest.raises(TopicError, match=f"offsets {read_to} to {read_to + 2}"):
        live.pipeline().run_once()
    assert "RECORDS_DELETED" in faults(config), "before the next start"
    request = services.accept_loss(config, "s", why="sent again by hand", by="ann")
    assert "RECORDS_DELETED" not in faults(config)
    assert request.lost == {0: (read_to, read_to + 3)}

    for last in ("logged", "progress committed"):
        with pytest.raises(CrashError):
            live.pipeline(crash_after(last)).run_once()
    live.pipeline().run_once()
    progress = progress_of(str(live.warehouse), "s")
    assert [(loss.lost, loss.reason) for loss in progress.losses] == [
        (request.lost, "sent again by hand")
    ]
    assert set(live.offsets()) <= set(live.logged_offsets())
    assert (state(live).apply_watermark, state(live).is_consistent_cut) == (201, False)
    status = services.status(config)
    assert not status.tables["accounts"].is_complete
    assert "confirm" in " ".join(status.tables["accounts"].hints)
    assert "accepted by ann" in status.streams["s"].losses[0].text
    (audited,) = services.audit(config)
    assert "sent again by hand" in audited.warnings[0]
    with services.read(config, "accounts", spark=live.spark, allow_stale=True) as read:
        assert read.cut is None

    services.confirm_table(config, "accounts", why="compared with the source", by="bob")
    live.publish(account("c", 201, name="Joe"), at=1)
    send_everywhere(live, Heartbeat("p", 300))
    live.pipeline().run_once()
    assert (state(live).apply_watermark, state(live).is_consistent_cut) == (301, True)
    losses = services.status(config).streams["s"].losses
    assert [loss.made_by for loss in losses] == ["ann", "bob"]
    live.pipeline().run_once()
    assert state(live).is_consistent_cut


def test_records_that_are_deleted_during_a_run_are_named(live: Live, admin: AdminClient) -> None:
    """nothing_lost, RUN-7: Spark notices the loss after the start. The error is the same."""
    live.publish(account("a", 1, name="Ada"), at=0)
    live.pipeline().run_once()
    live.publish(*(account("a", at, name="Bob") for at in (2, 3, 4)), at=0)

    def on_step(step: str) -> None:
        if step.endswith("batch begun"):
            delete(live, admin, 3)

    with pytest.raises(TopicError, match="Kafka partition 0, offsets 1 to 2"):
        live.pipeline(on_step).run_once()
    assert live.logged_offsets() == [(0, 0)]
