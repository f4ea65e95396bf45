"""Who commits the applies of a table (ENG-5). It needs no session."""

from __future__ import annotations

from typing import Any

from connector.events import Event
from connector.spark.apply_loop import Applies


def test_the_reason_why_delta_commits_is_an_event_once() -> None:
    """ENG-5: for each table, and again if it comes back."""
    events = list[Event]()
    loop: Any = object.__new__(Applies)
    loop._left_to_delta, loop._on_event = {}, events.append
    for name, reason in (
        *(("a", ""), ("a", "the feature x"), ("a", "the feature x"), ("b", "the feature x")),
        *(("a", "the feature y"), ("a", ""), ("a", "the feature y")),
    ):
        loop._tell_writer(name, reason)
    assert [(event.fields["table"], event.code) for event in events] == [
        (name, "COMMITTED_BY_DELTA") for name in ("a", "b", "a", "a")
    ]
    assert all("the feature" in event.line for event in events)
