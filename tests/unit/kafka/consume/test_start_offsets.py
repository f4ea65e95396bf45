"""Where reading begins in each Kafka partition (REC-21, SUB-3)."""

from __future__ import annotations

from typing import Any

import pytest

from connector.errors import ConfigError, TopicError
from connector.kafka import topics
from connector.kafka.consume import start_offsets
from connector.kafka.consume.start_offsets import (
    check_numbers,
    first_offsets,
    positions_at,
    positions_of_state,
    records_gone,
)
from connector.records.rejection import Position
from connector.watermarks.reader_state import NOTHING, ReaderState
from tests.unit.mock_cluster import DEAD, FACTS

FIRST, LAST, AT = {0: 2, 1: 0}, {0: 9, 1: 5}, {0: 4, 1: 3}


@pytest.fixture(autouse=True)
def topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that has the offsets 2 to 8 in Kafka partition 0, and 0 to 4 in the other one."""
    monkeypatch.setattr(topics, "beginning_offsets", lambda *_: dict(FIRST))
    monkeypatch.setattr(topics, "end_offsets", lambda *_: dict(LAST))
    monkeypatch.setattr(topics, "offsets_at", lambda *_: dict(AT))
    monkeypatch.setattr(start_offsets, "first_arrivals", lambda *_: {})


def stored(offset: int, k: int = 0) -> Position:
    return Position("t", FACTS.topic_id, k, offset)


@pytest.mark.parametrize(
    ("start", "committed", "places"),
    [
        ("beginning", None, FIRST),
        ("end", None, LAST),
        (70, None, AT),
        ((), None, FIRST),
        ((stored(6),), None, {0: 7, 1: 0}),
        ((stored(1), stored(4, 1)), None, {0: 2, 1: 5}),
        ((stored(8),), {0: 3}, {0: 3, 1: 0}),
        ("end", {1: 5}, {0: 9, 1: 5}),
        ("end", {1: 0}, {0: 9, 1: 0}),
    ],
)
def test_a_stored_position_has_priority(
    start: Any, committed: dict[int, int] | None, places: dict[int, int]
) -> None:
    assert first_offsets(DEAD, FACTS, start, [0, 1], committed) == places
    assert first_offsets(DEAD, FACTS, start, [1], committed) == {1: places[1]}


@pytest.mark.parametrize("offset", [0, 9])
def test_a_stored_position_outside_the_topic_is_an_error(offset: int) -> None:
    with pytest.raises(TopicError) as caught:
        first_offsets(DEAD, FACTS, (stored(offset),), [0, 1])
    assert caught.value.code == "RECORDS_DELETED"
    assert first_offsets(DEAD, FACTS, (stored(offset),), [1]) == {1: 0}, "it is not read"


def test_positions_of_another_topic_are_refused() -> None:
    with pytest.raises(ConfigError, match="positions of t"):
        first_offsets(DEAD, FACTS, (Position("other", FACTS.topic_id, 0, 5),), [0])
    with pytest.raises(TopicError) as caught:
        first_offsets(DEAD, FACTS, (Position("t", "another id", 0, 5),), [0])
    assert caught.value.code == "TOPIC_REPLACED"


def test_the_first_offset_has_no_position() -> None:
    assert positions_at(FACTS, {0: 2, 1: 3}, FIRST) == (stored(2, 1),)
    assert positions_at(FACTS, {0: 3, 1: 0}, FIRST) == (stored(2),)


@pytest.mark.parametrize(("number", "is_there"), [(-1, False), (0, True), (1, True), (2, False)])
def test_a_kafka_partition_has_a_number_of_the_topic(number: int, is_there: bool) -> None:
    if is_there:
        check_numbers(FACTS, [0, number])
        return
    with pytest.raises(ConfigError, match="from 0 to 1, a Kafka partition of t"):
        check_numbers(FACTS, [0, number])


def test_the_deleted_offsets_of_all_kafka_partitions_are_named() -> None:
    """RUN-7"""
    with pytest.raises(TopicError) as caught:
        first_offsets(DEAD, FACTS, (stored(0), stored(-1, 1)), [0, 1])
    assert "Kafka partition 0, offset 1" in caught.value.problem
    wanted, ends = {0: 3, 1: 4}, {0: 9, 1: 9}
    problem = records_gone(DEAD, FACTS, wanted, {0: 7, 1: 6}, ends).problem
    assert problem.endswith(
        ": Kafka partition 0, offsets 3 to 6; Kafka partition 1, offsets 4 to 5"
    )
    both = records_gone(DEAD, FACTS, {0: 3, 1: 10}, {0: 7, 1: 6}, ends)
    assert "ends at offset 9, and the position is 10" in both.problem


def state(offsets: dict[int, tuple[int, int]], topic: str = "t") -> ReaderState:
    return ReaderState(topic, FACTS.topic_id, offsets, NOTHING, ())


def test_a_state_continues_at_its_oldest_records() -> None:
    """SUB-3: an error if the topic lost records that were read, or has not the Kafka partition."""
    found = positions_of_state(state({0: (3, 9), 1: (0, 0)}), DEAD, FACTS)
    assert found == (Position("t", FACTS.topic_id, 0, 2), Position("t", FACTS.topic_id, 1, -1))
    with pytest.raises(TopicError) as shortened:
        positions_of_state(state({0: (3, 10)}), DEAD, FACTS)
    assert shortened.value.code == "RECORDS_DELETED"
    assert "Kafka partition 0 ends at offset 9, and the position is 10" in shortened.value.problem
    with pytest.raises(ConfigError, match="a Kafka partition of t"):
        positions_of_state(state({2: (0, 0)}), DEAD, FACTS)
    other = positions_of_state(state({0: (3, 10)}, "other"), DEAD, FACTS)
    assert other == (Position("other", FACTS.topic_id, 0, 2),), "the reader refuses it"
