"""Arguments that are not allowed are errors before anything is sent or read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from connector.config.settings import KafkaConfig
from connector.errors import ConfigError, InvalidChangeError
from connector.kafka import Batching, client
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
        ("outbox", "a\0b"),
        ("transactional_id", ""),
        ("transactional_id", "x" * 256),
        ("heartbeat_s", 0.5),
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
    for record in (None, "change", [CHANGE], {}):
        assert argument(lambda record=record: send(record)) == "record"
    no_names = [[(name, b"1")] for name in ("\ud800", "a\udcff", "a\0b")]
    for headers in ([("a", 1)], *no_names, [("a", "\ud800")]):
        assert argument(lambda headers=headers: send(CHANGE, headers)) == "headers"
        with pytest.raises(ConfigError):
            producer.send_many([CHANGE], headers)
        with pytest.raises(ConfigError):
            producer.send_to_dead_letters(headers=headers)
    producer.flush()
    assert producer.delivered == 0


def test_a_position_in_the_future_is_refused(kafka: KafkaConfig) -> None:
    """PUB-1: readers would reject the heartbeat, and `send` all changes up to it."""
    with CopyingProducer(kafka, FACTS, limits=Limits(max_clock_skew_s=100)) as producer:
        now = time.time_ns() // 1000
        with pytest.raises(InvalidChangeError, match="at most 100 s after the clock") as caught:
            producer.reached("p", now + 120_000_000)
        assert caught.value.field == "timestamp"
        producer.send(CHANGE)
        producer.reached("p", now + 60_000_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linger_s", -0.1),
        ("transaction_rows", 0),
        ("max_in_flight_bytes", 0),
        ("max_retry_s", -1),
        ("max_retry_s", float("inf")),
        ("linger_s", float("nan")),
    ],
)
def test_a_batching_names_a_value_out_of_its_range(name: str, value: float) -> None:
    """WRS-6, WRS-9."""
    given: dict[str, Any] = {name: value}
    assert argument(lambda: Batching(**given)) == name


def test_a_failed_call_of_the_client_is_a_kafka_exception() -> None:
    """REC-17: also if Python raises a `SystemError` in the place of an exception in a report."""
    cause = KafkaException(KafkaError(KafkaError._FENCED, "fenced"))

    def call(hidden: BaseException | None) -> None:
        raise SystemError("returned a result with an exception set") from hidden

    for hidden, code in ((cause, KafkaError._FENCED), (None, KafkaError._FAIL)):
        with pytest.raises(KafkaException) as caught:
            client._with_exception(call, hidden)
        assert caught.value.args[0].code() == code
