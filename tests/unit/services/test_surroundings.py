"""RUN-2: a long-running process waits for its surroundings, and says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from connector.errors import ConnectorError
from connector.errors.dead_letters import dead_letters_undelivered
from connector.errors.kafka import (
    access_denied,
    broker_unreachable,
    login_failed,
    registry_access_denied,
    registry_unreachable,
    tls_failed,
    topic_replaced,
)
from connector.errors.tables import (
    bucket_missing,
    disk_full,
    store_access_denied,
    store_unreachable,
)
from connector.events import Event
from connector.services import surroundings
from connector.services.surroundings import Surroundings, is_away

AWAY = [
    broker_unreachable("h:1", "refused"),
    registry_unreachable("http://h", "refused"),
    store_unreachable("problem", "refused"),
    dead_letters_undelivered("t", 1, "timed out"),
]
DECIDED = [
    access_denied("read", "no right", "Read"),
    login_failed("at h:1", "wrong password"),
    tls_failed("at h:1", "expired"),
    registry_access_denied("http://h", "HTTP 403"),
    store_access_denied("problem"),
    bucket_missing("problem"),
    disk_full("problem", "full"),
    topic_replaced("t", "1", "2"),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(surroundings, "_LONGEST_PAUSE_S", 0.05)


def waiting(events: list[Event], *, fails_fast: bool = False) -> Surroundings:
    return Surroundings("the pipeline", threading.Event(), events.append, fails_fast=fails_fast)


@pytest.mark.parametrize("error", AWAY, ids=lambda error: error.code)
def test_an_outage_is_waited_for(error: ConnectorError) -> None:
    assert is_away(error)
    events = list[Event]()
    assert waiting(events).outlived(error)
    assert [event.fields["error"] for event in events] == [error.code]
    assert not waiting(events, fails_fast=True).outlived(error)


@pytest.mark.parametrize("error", DECIDED, ids=lambda error: error.code)
def test_a_decision_of_a_person_is_not_waited_for(error: ConnectorError) -> None:
    events = list[Event]()
    assert not waiting(events).outlived(error)
    with pytest.raises(type(error)):
        waiting(events).wait_for(raising(error))
    assert events == []


def test_an_outage_is_named_at_once_then_each_minute_and_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is named as often as the time says, and not as often as it is tried."""
    monkeypatch.setattr(surroundings, "_AGAIN_EVERY_S", 0.5)
    events, tries, began = list[Event](), 0, time.monotonic()

    def act() -> str:
        nonlocal tries
        tries += 1
        if time.monotonic() - began < 1.3:
            raise AWAY[0]
        return "done"

    assert waiting(events).wait_for(act) == "done"
    assert [event.code for event in events] == ["WAITING"] * 3 + ["GOES_ON"]
    assert [event.level for event in events] == ["warning"] * 3 + ["info"]
    assert tries > 10
    assert "No Kafka broker answers at h:1" in events[0].text


def test_a_stop_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "_FIRST_PAUSE_S", 600.0)
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    waits = Surroundings("the pipeline", stop, lambda event: None)
    assert waits.wait_for(raising(AWAY[0])) is None


def raising(error: ConnectorError) -> Callable[[], str]:
    def act() -> str:
        raise error

    return act
