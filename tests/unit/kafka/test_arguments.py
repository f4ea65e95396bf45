"""Arguments of a wrong type are errors before anything is sent or read (ARGUMENT_INVALID)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from connector.config.settings import KafkaConfig
from connector.errors import ConfigError, InvalidChangeError
from connector.kafka.produce.producer import ChangeProducer, CopyingProducer
from connector.records.model import DataChange, SetCell
from connector.validation import Limits
from tests.unit.mock_cluster import DEAD, FACTS

CHANGE = DataChange(
    stream_partition="p",
    table="t",
    row_key=b"k",
    commit_timestamp=1,
    entries=(SetCell("f", b"q", b"v"),),
)


def argument(act: Callable[[], object]) -> str:
    """The argument that an error names."""
    with pytest.raises(ConfigError) as caught:
        act()
    assert caught.value.code == "ARGUMENT_INVALID"
    return str(caught.value.fields["argument"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka", "localhost:9092"),
        ("topic", None),
        ("registry", "http://localhost"),
        ("limits", {}),
        ("limits", None),
        ("outbox", 5),
        ("outbox", "a\0b"),
        ("settings", [("linger.ms", "5")]),
        ("settings", {1: "5"}),
        ("transactional_id", ""),
        ("transactional_id", 7),
    ],
)
def test_a_producer_names_a_wrong_argument(name: str, value: object) -> None:
    given: dict[str, Any] = {"kafka": DEAD, "topic": FACTS} | {name: value}
    assert argument(lambda: ChangeProducer(**given)) == name


@pytest.fixture
def producer(kafka: KafkaConfig) -> Iterator[ChangeProducer]:
    with CopyingProducer(kafka, FACTS) as opened:
        yield opened


def test_send_names_a_wrong_argument(producer: ChangeProducer) -> None:
    send: Any = producer.send
    send_many: Any = producer.send_many
    set_aside: Any = producer.send_to_dead_letters
    for record in (None, "change", [CHANGE], {}):
        assert argument(lambda record=record: send(record)) == "record"
    no_names = [[(name, b"1")] for name in ("\ud800", "a\udcff", "a\0b")]
    for headers in ("a", [("a",)], [("a", 1)], [(b"a", b"1")], 5, *no_names, [("a", "\ud800")]):
        assert argument(lambda headers=headers: send(CHANGE, headers)) == "headers"
        assert argument(lambda headers=headers: send_many([CHANGE], headers)) == "headers"
        assert argument(lambda headers=headers: set_aside(headers=headers)) == "headers"
    assert argument(lambda: send(CHANGE, (), "told")) == "on_delivery"
    for changes in (None, CHANGE, [CHANGE, None], "changes"):
        assert argument(lambda changes=changes: send_many(changes)) == "changes"
    assert argument(lambda: send_many([CHANGE], (), 1)) == "on_delivery"
    producer.flush()
    assert producer.delivered == 0


def test_reached_names_a_wrong_argument(producer: ChangeProducer) -> None:
    """PUB-1."""
    reached: Any = producer.reached
    for name in (None, b"p", 1):
        assert argument(lambda name=name: reached(name, 1)) == "stream_partition"
    for timestamp in (None, "1", 1.0, True):
        assert argument(lambda timestamp=timestamp: reached("p", timestamp)) == "timestamp"
    for token in (None, "token", 1):
        assert argument(lambda token=token: reached("p", 1, token)) == "resume_token"


def test_a_position_in_the_future_is_refused(kafka: KafkaConfig) -> None:
    """PUB-1: readers would reject the heartbeat, and `send` all changes up to it."""
    with CopyingProducer(kafka, FACTS, limits=Limits(max_clock_skew_s=100)) as producer:
        now = time.time_ns() // 1000
        with pytest.raises(InvalidChangeError, match="at most 100 s after the clock") as caught:
            producer.reached("p", now + 120_000_000)
        assert caught.value.field == "timestamp"
        producer.send(CHANGE)
        producer.reached("p", now + 60_000_000)
