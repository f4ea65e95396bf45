"""The arguments of a `ChangeConsumer` (SUB-1 to SUB-4, WRS-22)."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from connector.config.settings import RegistryConfig
from connector.errors import ConfigError, ErrorCode, TopicError
from connector.kafka import topics
from connector.kafka.consume.options import (
    BUFFERED_BYTES,
    check_numbers_given,
    check_options,
    check_types,
    positions_of_state,
)
from connector.records.model import MAX_TIMESTAMP
from connector.records.rejection import Position
from connector.validation import Limits
from connector.watermarks.reader_state import NOTHING, ReaderState
from tests.unit.mock_cluster import DEAD, FACTS

NAMES = (
    *("group", "kafka_partitions", "transactions", "start_commit", "end_commit", "start"),
    *("state", "staged", "replays"),
)
EXCLUDED = {
    frozenset(pair)
    for pair in (
        ("group", "kafka_partitions"),
        ("transactions", "kafka_partitions"),
        ("start_commit", "group"),
        ("end_commit", "group"),
        ("start_commit", "start"),
        ("state", "start"),
        ("state", "group"),
        ("staged", "start_commit"),
    )
}
NEEDED = {"state": "transactions", "replays": "group"}


@pytest.mark.parametrize(
    "given",
    [frozenset(some) for count in (0, 1, 2, 3) for some in combinations(NAMES, count)],
    ids=sorted,
)
def test_arguments_exclude_or_need_each_other(given: frozenset[str]) -> None:
    is_allowed = not any(pair <= given for pair in EXCLUDED) and all(
        needed in given for one, needed in NEEDED.items() if one in given
    )
    try:
        check_options({name: name in given for name in NAMES})
    except ConfigError as error:
        assert error.code == ErrorCode.READER_OPTION_INVALID
        assert not is_allowed
    else:
        assert is_allowed


RIGHT: dict[str, Any] = {
    "kafka": DEAD,
    "topic": "t",
    "start": "beginning",
    "group": None,
    "registry": None,
    "limits": None,
    "tables": None,
    "metadata_refresh_s": 30.0,
    "state": None,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("start", one) for one in ("end", 0, 5, (), (Position("t", "id", 0, 5),))),
        ("group", "g"),
        ("registry", RegistryConfig("http://127.0.0.1:1")),
        ("limits", Limits()),
        ("tables", frozenset({"t"})),
        ("metadata_refresh_s", 1),
        ("state", b""),
    ],
)
def test_arguments_of_right_types_are_taken(name: str, value: object) -> None:
    check_types(**{**RIGHT, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka", None),
        ("kafka", "127.0.0.1:1"),
        ("topic", 5),
        *(("start", one) for one in ("middle", True, 1.5, None, (5,), [Position("t", "id", 0, 5)])),
        ("group", 5),
        ("registry", "http://127.0.0.1:1"),
        ("limits", {}),
        ("tables", "t"),
        ("metadata_refresh_s", "1"),
        ("state", "text"),
    ],
)
def test_arguments_of_wrong_types_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        check_types(**{**RIGHT, name: value})
    assert name in caught.value.problem


NUMBERS: dict[str, Any] = {"start_commit": None, "end_commit": None, "max_buffered_bytes": 1024}


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("start_commit", 0, MAX_TIMESTAMP),
        ("end_commit", 0, MAX_TIMESTAMP),
        ("max_buffered_bytes", 1024, 1024**4),
    ],
)
def test_numbers_have_ranges(name: str, least: int, most: int) -> None:
    """SUB-1, SUB-3."""
    for value in (least, most):
        check_numbers_given(**{**NUMBERS, name: value})
    for value in (least - 1, most + 1):
        with pytest.raises(ConfigError) as caught:
            check_numbers_given(**{**NUMBERS, name: value})
        assert caught.value.code == ErrorCode.READER_OPTION_INVALID
        assert f"{name} is {value}, but must be from {least:,} to {most:,}" in caught.value.problem
    for value in (True, "5", 1.5, *([None] if name == "max_buffered_bytes" else [])):
        with pytest.raises(ConfigError) as caught:
            check_numbers_given(**{**NUMBERS, name: value})
        assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    check_numbers_given(**NUMBERS)
    assert BUFFERED_BYTES == (1024, 1024**4)


def state(offsets: dict[int, tuple[int, int]], topic: str = "t") -> ReaderState:
    return ReaderState(topic, FACTS.topic_id, offsets, NOTHING, ())


def test_a_state_continues_at_its_oldest_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """SUB-3: an error if the topic lost records that were read, or has not the Kafka partition."""
    monkeypatch.setattr(topics, "end_offsets", lambda *_: {0: 9, 1: 9})
    monkeypatch.setattr(topics, "beginning_offsets", lambda *_: {0: 0, 1: 0})
    found = positions_of_state(state({0: (3, 9), 1: (0, 0)}), DEAD, FACTS)
    assert found == (Position("t", FACTS.topic_id, 0, 2), Position("t", FACTS.topic_id, 1, -1))
    with pytest.raises(TopicError) as shortened:
        positions_of_state(state({0: (3, 10)}), DEAD, FACTS)
    assert shortened.value.code == ErrorCode.TOPIC_SHORTENED
    with pytest.raises(TopicError) as unknown:
        positions_of_state(state({2: (0, 0)}), DEAD, FACTS)
    assert unknown.value.code == ErrorCode.KAFKA_PARTITION_UNKNOWN
    other = positions_of_state(state({0: (3, 10)}, "other"), DEAD, FACTS)
    assert other == (Position("other", FACTS.topic_id, 0, 2),), "the reader refuses it"
