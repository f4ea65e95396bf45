"""The schedule of automatic heartbeats beside a simulation that knows which changes are
acknowledged (PUB-1, REC-18).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.records.model import DataChange, Heartbeat, SetCell
from connector.watermarks.delivery import Delivery
from connector.watermarks.heartbeat_schedule import REPEAT_S, HeartbeatSchedule

INTERVAL = 5.0
NAMES = "ab"
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["send", "send", "send", "reached", "reached", "acknowledge", "fail", "again", "wait"]
        ),
        st.sampled_from(NAMES),
        st.integers(0, 7),
    ),
    max_size=120,
)


def change(name: str, at: int) -> DataChange:
    return DataChange(
        stream_partition=name,
        table="t",
        row_key=b"k",
        commit_timestamp=at,
        entries=(SetCell("f", b"q", b"v"),),
    )


@dataclass
class Simulation:
    """Two stream partitions whose changes are sent, acknowledged and lost in any order, and an
    application that calls when heartbeats are due.
    """

    schedule: HeartbeatSchedule = field(default_factory=lambda: HeartbeatSchedule(INTERVAL))
    now: float = 1000.0
    clock: int = 0
    deliveries: dict[str, Delivery] = field(default_factory=lambda: defaultdict(Delivery))
    in_flight: list[DataChange] = field(default_factory=list)
    lost: list[DataChange] = field(default_factory=list)
    reported: dict[str, list[Heartbeat]] = field(default_factory=lambda: defaultdict(list))
    heartbeats: dict[str, list[tuple[float, Heartbeat]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    announced: list[float] = field(default_factory=list)

    def step(self, what: str, name: str, number: int) -> None:
        getattr(self, what)(name, number)
        if self.now >= self.schedule.next_at:
            self.tick()

    def send(self, name: str, _number: int) -> None:
        self.clock += 1
        self.in_flight.append(change(name, self.clock))
        self.deliveries[name].sent(self.in_flight[-1])

    def reached(self, name: str, number: int) -> None:
        self.clock += number % 2
        if self.clock:
            position = Heartbeat(name, self.clock, b"%d" % number)
            self.reported[name].append(position)
            self.schedule.reached(position, self.now)

    def acknowledge(self, _name: str, number: int) -> None:
        if self.in_flight:
            one = self.in_flight.pop(number % len(self.in_flight))
            self.deliveries[one.stream_partition].acknowledged(one)

    def fail(self, _name: str, number: int) -> None:
        if self.in_flight:
            one = self.in_flight.pop(number % len(self.in_flight))
            self.lost.append(one)
            self.deliveries[one.stream_partition].lost(one, "refused")

    def again(self, _name: str, number: int) -> None:
        if self.lost:
            one = self.lost.pop(number % len(self.lost))
            self.in_flight.append(one)
            self.deliveries[one.stream_partition].sent(one)

    def wait(self, _name: str, number: int) -> None:
        self.now += (number + 1) * 0.4

    def tick(self) -> None:
        if self.schedule.announces(self.now):
            self.announced.append(self.now)
        due = self.schedule.due(self.now, lambda name: self.deliveries[name].oldest_open())
        for heartbeat in due:
            self.schedule.sent(heartbeat, self.now)
            self.check(heartbeat)
            self.heartbeats[heartbeat.stream_partition].append((self.now, heartbeat))

    def check(self, heartbeat: Heartbeat) -> None:
        name = heartbeat.stream_partition
        assert heartbeat in self.reported[name]
        assert not [
            one
            for one in (*self.in_flight, *self.lost)
            if one.stream_partition == name and one.commit_timestamp <= heartbeat.timestamp
        ], "it is above a change that is not acknowledged"
        if self.heartbeats[name]:
            at, before = self.heartbeats[name][-1]
            assert heartbeat.timestamp >= before.timestamp, "it goes back"
            assert self.now >= at + INTERVAL, "two in one interval"

    def finish(self) -> None:
        """All is delivered in the end."""
        while self.lost:
            self.again("", 0)
        while self.in_flight:
            self.acknowledge("", 0)
        self.now += INTERVAL
        self.tick()
        for name, reported in self.reported.items():
            assert self.heartbeats[name][-1][1] == reported[-1], "the last position was not sent"


def run(steps: list[tuple[str, str, int]]) -> Simulation:
    simulation = Simulation()
    for what, name, number in steps:
        simulation.step(what, name, number)
    simulation.finish()
    return simulation


@given(STEPS)
def test_heartbeats_are_true_go_forwards_and_come_once_per_interval(
    steps: list[tuple[str, str, int]],
) -> None:
    """PUB-1, REC-18, watermark_is_honest: whatever is acknowledged or lost meanwhile, and the last
    position is reached once all is delivered.
    """
    run(steps)


@given(st.integers(1, 40), st.integers(0, 9))
def test_a_busy_source_is_not_without_heartbeats(per_second: int, delay: int) -> None:
    """PUB-1: although the newest position is never true, because its change is in flight."""
    simulation = Simulation()
    for number in range(per_second * 60):
        simulation.send("a", 0)
        simulation.reached("a", 0)
        if len(simulation.in_flight) > delay:
            simulation.acknowledge("a", 0)
        simulation.now += 1 / per_second
        if simulation.now >= simulation.schedule.next_at:
            simulation.tick()
        assert number < per_second * (2 * INTERVAL + delay) or simulation.heartbeats["a"]
    if delay <= per_second:
        assert len(simulation.heartbeats["a"]) >= 9


def test_a_source_that_stops_is_repeated_once_a_minute() -> None:
    """PUB-1: announcements, too, so that a reader that begins in the middle finds one soon."""
    simulation = Simulation()
    simulation.reached("a", 1)
    began = simulation.now
    while simulation.now < began + 600:
        simulation.now = max(simulation.now, simulation.schedule.next_at)
        simulation.tick()
        simulation.now += 0.01
    times = [at for at, _ in simulation.heartbeats["a"]]
    for found in (times, simulation.announced):
        assert 9 <= len(found) <= 12
        assert all(INTERVAL <= later - at <= 60 for at, later in pairwise(found))
    assert REPEAT_S < 60


# ── the checks themselves are tried ───────────────────────────────────────────────────────────────


def ignore_what_is_open(schedule: type[HeartbeatSchedule]) -> Callable[..., object]:
    due = schedule.due
    return lambda self, now, _oldest: due(self, now, lambda _name: None)


def ignore_the_interval(schedule: type[HeartbeatSchedule]) -> Callable[..., object]:
    due = schedule.due

    def at_once(self: HeartbeatSchedule, now: float, oldest: Callable[[str], int | None]) -> object:
        self._next_due_at = now
        for positions in self._positions.values():
            positions.sent_at = min(positions.sent_at, now - INTERVAL)
        return due(self, now, oldest)

    return at_once


def oldest_position(schedule: type[HeartbeatSchedule]) -> Callable[..., object]:
    def oldest(
        self: HeartbeatSchedule, now: float, _oldest: Callable[[str], int | None]
    ) -> list[Heartbeat]:
        self._next_due_at = now + INTERVAL
        return [one.reported[0].heartbeat for one in self._positions.values()]

    return oldest


@pytest.mark.parametrize(
    ("broken", "steps"),
    [
        (
            ignore_what_is_open,
            [("send", "a", 0), ("reached", "a", 0), ("wait", "a", 7), ("wait", "a", 7)],
        ),
        (
            ignore_the_interval,
            [("reached", "a", 1), ("wait", "a", 0), ("reached", "a", 1), ("wait", "a", 0)],
        ),
        (
            oldest_position,
            [("reached", "a", 1), ("wait", "a", 7), ("wait", "a", 7), ("reached", "a", 1)],
        ),
    ],
)
def test_a_broken_schedule_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[type[HeartbeatSchedule]], Callable[..., object]],
    steps: list[tuple[str, str, int]],
) -> None:
    run(steps)
    monkeypatch.setattr(HeartbeatSchedule, "due", broken(HeartbeatSchedule))
    if broken is ignore_the_interval:
        monkeypatch.setattr(HeartbeatSchedule, "next_at", 0.0)
    with pytest.raises(AssertionError):
        run(steps)
