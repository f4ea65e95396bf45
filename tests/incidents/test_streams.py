"""Incidents of a stream: its producers and its records."""

from __future__ import annotations

from dataclasses import replace

from connector.clock import now_us
from connector.kafka import ChangeProducer
from connector.records.model import DataChange
from tests.incidents.desk import Desk, until
from tests.spark.streams import account

HOUR = 3_600_000_000
HELD = "lowmark_stream_low_watermark_held_seconds"


def of(partition: str, row: str, at: int, **cells: str) -> DataChange:
    return replace(account(row, at, **cells), stream_partition=partition)


def send(desk: Desk, producer: ChangeProducer, change: DataChange) -> None:
    """As a producer does it that says how far it is."""
    producer.send(change)
    producer.reached(change.stream_partition, change.commit_timestamp)
    producer.flush()
    desk.published.append(change)


def test_a_dead_producer(desk: Desk) -> None:
    """docs/howto/on-call.md#lowmarkwatermarkstalled"""
    desk.of_stream["stall_after"] = '"2s"'
    with desk.running(), ChangeProducer(desk.kafka, desk.topic) as alive:

        def is_listed(name: str) -> bool:
            assert desk.does("connector partitions list s --json") == 0
            return f'"{name}"' in desk.out

        def lives() -> bool:
            alive.reached("alive", now_us())
            alive.flush()
            return True

        lives()
        with ChangeProducer(desk.kafka, desk.topic) as dead:
            send(desk, dead, of("dead", "a", now_us(), name="Ada"))
        send(desk, alive, of("alive", "b", now_us(), name="Bob"))
        until(lambda: lives() and desk.table() == desk.truth())
        desk.note()
        send(desk, alive, of("alive", "c", now_us(), name="Cid"))
        until(lambda: lives() and "stalled stream partition dead" in desk.status())
        until(lambda: lives() and desk.table() == desk.truth())
        until(lambda: lives() and desk.alerts(HELD) == {"LowmarkWatermarkStalled"})
        assert "run: connector partitions list s" in desk.status()
        assert desk.does('connector partitions close s dead --why "decommissioned"') == 0
        until(lambda: lives() and not is_listed("dead"))
        assert desk.table() == desk.truth()
    assert desk.error is None


def test_five_percent_of_poison(desk: Desk) -> None:
    """docs/howto/on-call.md#lowmarkrejectedratio"""
    desk.publish(account("a", 1, name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.note()
        desk.publish(*(account(f"k{n}", 10 + n, amount=str(n)) for n in range(95)))
        desk.send((0, b"x", b"rubbish") for _ in range(5))
        until(lambda: "5 open" in desk.status())
        until(lambda: desk.applied("accounts", "copies"))
        until(lambda: desk.alerts() == {"LowmarkDeadLetters", "LowmarkRejectedRatio"})
        desk.publish(*(account(f"k{n}", 200 + n, amount=str(n)) for n in range(95, 100)))
        assert (
            desk.does('connector dead-letters discard --reason UNKNOWN_FRAMING --why "sent again"')
            == 0
        )
        until(lambda: desk.applied("accounts"))
        assert desk.table() == desk.truth()
        until(lambda: "0 open" in desk.status())
    assert desk.error is None


def test_a_clock_that_is_ahead(desk: Desk) -> None:
    """docs/howto/on-call.md#a-producer-whose-clock-is-wrong"""
    desk.publish(account("a", now_us(), name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.note()
        ahead = account("b", now_us() + HOUR, name="Bob")
        desk.publish(ahead)
        desk.published.remove(ahead)
        desk.publish(account("c", now_us(), name="Cid"))
        until(lambda: "1 open" in desk.status())
        until(lambda: desk.applied("accounts", "copies"))
        until(lambda: desk.alerts() == {"LowmarkDeadLetters", "LowmarkRejectedRatio"})
        desk.publish(account("b", now_us(), name="Bob"))
        reason = "COMMIT_TIMESTAMP_IN_FUTURE"
        assert (
            desk.does(f'connector dead-letters discard --reason {reason} --why "sent again"') == 0
        )
        until(lambda: "0 open" in desk.status())
        until(lambda: desk.applied("accounts"))
        assert desk.table() == desk.truth()
    assert desk.error is None


def test_a_clock_that_is_behind(desk: Desk) -> None:
    """docs/howto/on-call.md#a-producer-whose-clock-is-wrong"""
    desk.of_stream["stall_after"] = '"2s"'
    with desk.running():
        with ChangeProducer(desk.kafka, desk.topic) as right:
            send(desk, right, of("p", "a", now_us(), name="Ada"))
            send(desk, right, of("p", "b", now_us(), name="Bob"))
        until(lambda: desk.applied("accounts", "copies"))
        desk.note()
        with ChangeProducer(desk.kafka, desk.topic) as behind:
            send(desk, behind, of("p", "a", now_us() - HOUR, name="Anna"))
        until(lambda: desk.applied("accounts", "copies"))
        until(lambda: "late 1 change" in desk.status())
        until(lambda: "stalled" in desk.status())
        assert "ignored claims of p: 1 below an earlier claim" in desk.status()
        until(lambda: desk.alerts(HELD) == {"LowmarkWatermarkStalled"})
        assert desk.table()["a"]["name"] == "Ada"
        with ChangeProducer(desk.kafka, desk.topic) as right:
            send(desk, right, of("p", "a", now_us(), name="Anna"))
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == desk.truth()
        assert desk.table()["a"]["name"] == "Anna"
    assert desk.error is None
