"""Incidents of a stream: its producers and its records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from connector.clock import now_us
from connector.kafka import ChangeProducer
from connector.records.model import DataChange
from tests.incidents.desk import Desk, until
from tests.spark.streams import account
from tests.spark.test_accepted_losses import delete

HOUR = 3_600_000_000
STALLED = "WATERMARK_STALLED stream s"
LETTERS = "DEAD_LETTERS stream s"
HELD = "lowmark_stream_low_watermark_held_seconds"


def of(partition: str, row: str, at: int, **cells: str) -> DataChange:
    return replace(account(row, at, **cells), stream_partition=partition)


def send(desk: Desk, producer: ChangeProducer, change: DataChange) -> None:
    """As a producer does it that says how far it is."""
    producer.send(change)
    producer.reached(change.stream_partition, change.commit_timestamp)
    producer.flush()
    desk.published.append(change)


@pytest.mark.long
def test_a_dead_producer(desk: Desk) -> None:
    """docs/howto/on-call.md#lowmarkwatermarkstalled"""
    desk.of_stream["stall_after"] = '"10s"'
    with desk.running(), ChangeProducer(desk.kafka, desk.topic) as alive:

        def lives() -> bool:
            alive.reached("alive", now_us())
            alive.flush()
            return True

        def is_listed(name: str) -> bool:
            assert desk.does("connector partitions list --stream s --json") == 0
            return f'"{name}"' in desk.out

        desk.meanwhile = lives
        send(desk, alive, of("alive", "a", now_us(), name="Ada"))
        until(lambda: lives() and desk.table() == desk.truth())
        desk.is_well()
        with ChangeProducer(desk.kafka, desk.topic) as dead:
            send(desk, dead, of("dead", "b", now_us(), name="Bob"))
        send(desk, alive, of("alive", "c", now_us(), name="Cid"))
        desk.shows(STALLED, alerts={"LowmarkWatermarkStalled"}, growing=[HELD])
        assert "no heartbeat of dead" in desk.out
        until(lambda: lives() and desk.table() == desk.truth())
        assert "run: connector partitions list --stream s" in desk.status()
        assert is_listed("dead")
        assert desk.does('connector partitions close --stream s dead --why "decommissioned"') == 0
        until(lambda: not is_listed("dead"))
        desk.is_well()
    assert desk.error is None


def test_five_percent_of_poison(desk: Desk) -> None:
    """docs/howto/on-call.md#lowmarkrejectedratio"""
    desk.publish(account("a", 1, name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
        desk.publish(*(account(f"k{n}", 10 + n, amount=str(n)) for n in range(95)))
        desk.send((0, b"x", b"rubbish") for _ in range(5))
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == desk.truth()
        alerts = {"LowmarkDeadLetters", "LowmarkRejectedRatio"}
        desk.shows(LETTERS, alerts=alerts, log="5 rejected records")
        desk.publish(*(account(f"k{n}", 200 + n, amount=str(n)) for n in range(95, 100)))
        discard = 'connector dead-letters discard --reason UNKNOWN_FRAMING --why "sent again"'
        assert desk.does(discard) == 0
        until(lambda: desk.applied("accounts"))
        assert desk.table() == desk.truth()
        desk.is_well()
    assert desk.error is None


def test_a_clock_that_is_ahead(desk: Desk) -> None:
    """docs/howto/on-call.md#a-producer-whose-clock-is-wrong"""
    desk.publish(account("a", now_us(), name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
        ahead = account("b", now_us() + HOUR, name="Bob")
        desk.publish(ahead)
        desk.published.remove(ahead)
        desk.publish(account("c", now_us(), name="Cid"))
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == desk.truth()
        alerts = {"LowmarkDeadLetters", "LowmarkRejectedRatio"}
        desk.shows(LETTERS, alerts=alerts, log="1 rejected record")
        desk.publish(account("b", now_us(), name="Bob"))
        reason = "COMMIT_TIMESTAMP_IN_FUTURE"
        discard = f'connector dead-letters discard --reason {reason} --why "sent again"'
        assert desk.does(discard) == 0
        until(lambda: desk.applied("accounts"))
        assert desk.table() == desk.truth()
        desk.is_well()
    assert desk.error is None


@pytest.mark.long
def test_a_clock_that_is_behind(desk: Desk) -> None:
    """docs/howto/on-call.md#a-producer-whose-clock-is-wrong"""
    desk.of_stream["stall_after"] = '"10s"'
    with desk.running():
        with ChangeProducer(desk.kafka, desk.topic) as right:

            def lives() -> None:
                right.reached("p", now_us())
                right.flush()

            desk.meanwhile = lives
            send(desk, right, of("p", "a", now_us(), name="Ada"))
            send(desk, right, of("p", "b", now_us(), name="Bob"))
            until(lambda: desk.applied("accounts", "copies"))
            desk.is_well()
        desk.meanwhile = bool
        with ChangeProducer(desk.kafka, desk.topic) as behind:
            send(desk, behind, of("p", "a", now_us() - HOUR, name="Anna"))
        desk.shows(STALLED, alerts={"LowmarkWatermarkStalled"}, growing=[HELD])
        until(lambda: desk.applied("accounts", "copies"))
        assert "late 1 change" in desk.status()
        assert "ignored claims of p: 1 below an earlier claim" in desk.status()
        assert desk.table()["a"]["name"] == "Ada"
        with ChangeProducer(desk.kafka, desk.topic) as right:
            desk.meanwhile = lives
            send(desk, right, of("p", "a", now_us(), name="Anna"))
            until(lambda: desk.applied("accounts", "copies"))
            assert desk.table() == desk.truth()
            assert desk.table()["a"]["name"] == "Anna"
            desk.is_well()
    assert desk.error is None


def test_records_that_are_deleted_before_they_are_read(desk: Desk, admin: AdminClient) -> None:
    """docs/howto/on-call.md#lowmarkheadroom"""
    desk.publish(account("a", 1, name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
    lost = account("b", 2, name="Bob")
    desk.publish(lost)
    desk.published.remove(lost)
    delete(desk, admin, max(offset for _, offset in desk.offsets()) + 1)
    desk.publish(account("c", 3, name="Cid"))
    with desk.running():
        until(desk.has_ended)
    assert desk.error is not None
    assert desk.error.code == "RECORDS_DELETED"
    desk.shows("PIPELINE_DOWN stream s", alerts={"LowmarkDown"})
    assert "RECORDS_DELETED" in desk.out
    assert desk.does("connector read accounts --allow-stale") == 0
    assert desk.does('connector stream accept-loss --stream s --why "sent again"') == 0
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == desk.truth()
        unconfirmed = [f"LOSS_UNCONFIRMED table {name}" for name in ("accounts", "copies")]
        desk.shows(*unconfirmed)
        desk.publish(account("b", 4, name="Bob"))
        until(lambda: desk.applied("accounts", "copies"))
        for name in ("accounts", "copies"):
            assert desk.does(f'connector table confirm {name} --why "compared"') == 0
        desk.is_well()
    assert desk.error is None
