"""Which heartbeats a producer sends by itself, and when (PUB-1, PUB-2)."""

from __future__ import annotations

from connector.records.model import Heartbeat
from connector.watermarks.heartbeat_schedule import MAX_POSITIONS, ClaimWatch, HeartbeatSchedule


def nothing_open(_name: str) -> int | None:
    return None


def sent(schedule: HeartbeatSchedule, now: float, oldest: int | None = None) -> list[Heartbeat]:
    due = schedule.due(now, lambda _name: oldest)
    for heartbeat in due:
        schedule.sent(heartbeat, now)
    return due


def test_the_newest_position_is_sent_once_and_repeated_after_a_minute() -> None:
    schedule = HeartbeatSchedule(5)
    schedule.reached(Heartbeat("p", 7), 100.0)
    schedule.reached(Heartbeat("p", 8, b"t"), 100.1)
    assert sent(schedule, 100.2) == [Heartbeat("p", 8, b"t")]
    assert sent(schedule, 105.2) == []
    schedule.reached(Heartbeat("p", 8, b"u"), 106.0)
    assert sent(schedule, 106.0) == [], "not before the interval is over"
    assert sent(schedule, 110.2) == [Heartbeat("p", 8, b"u")], "a new token is a new position"
    times = [115.2 + 5 * tick for tick in range(11) if sent(schedule, 115.2 + 5 * tick)]
    assert times == [165.2]


def test_a_heartbeat_that_failed_is_sent_at_the_next_tick() -> None:
    schedule = HeartbeatSchedule(5)
    schedule.reached(Heartbeat("p", 7), 100.0)
    assert sent(schedule, 100.0)
    schedule.failed(Heartbeat("p", 7))
    assert schedule.last(nothing_open) == [Heartbeat("p", 7)]
    assert sent(schedule, 105.0) == [Heartbeat("p", 7)]
    assert schedule.last(nothing_open) == []


def test_positions_are_bounded_and_the_oldest_and_newest_stay() -> None:
    """PUB-1: however long Kafka is away."""
    schedule = HeartbeatSchedule(1)
    for number in range(1, 5000):
        schedule.reached(Heartbeat("p", number), float(number))
    places = schedule._positions["p"].reported
    assert len(places) <= MAX_POSITIONS
    assert sent(schedule, 5000.0, oldest=2) == [Heartbeat("p", 1)]
    assert sent(schedule, 5001.0) == [Heartbeat("p", 4999)]


def test_an_ended_stream_partition_is_forgotten() -> None:
    schedule = HeartbeatSchedule(5)
    schedule.reached(Heartbeat("p", 7), 100.0)
    schedule.keep(lambda name: name != "p")
    assert sent(schedule, 100.0) == []
    schedule.failed(Heartbeat("p", 7))


def test_announcements_are_due_also_between_rare_heartbeats() -> None:
    schedule = HeartbeatSchedule(300)
    schedule.reached(Heartbeat("p", 7), 100.0)
    assert not schedule.announces(100.0), "the first heartbeat comes with one"
    assert sent(schedule, 100.0)
    assert schedule.next_at == 155.0
    assert not schedule.announces(154.0)
    assert schedule.announces(155.0)
    assert sent(schedule, 155.0) == []
    assert schedule.next_at == 210.0


def test_changes_without_a_claim_are_noticed_after_a_minute() -> None:
    """PUB-2: a claim or an end makes it right; a backfill is exempt (REC-23)."""
    watch = ClaimWatch()
    for number in range(100):
        watch.changed(5, lambda: 0.0)
        assert not watch.is_forgotten(number * 100.0), "one commit timestamp may be a backfill"
    watch.changed(6, lambda: 1000.0)
    watch.changed(7, lambda: 1050.0)
    assert not watch.is_forgotten(1059.0)
    assert watch.is_forgotten(1060.0)
    watch.claimed()
    assert not watch.is_forgotten(5000.0)
    watch.changed(8, lambda: 5000.0)
    watch.changed(9, lambda: 5001.0)
    assert watch.is_forgotten(5061.0)
