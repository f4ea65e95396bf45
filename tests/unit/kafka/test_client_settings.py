"""Which settings Kafka clients get (REC-1, REC-17, REC-21)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from connector.config.settings import KafkaConfig
from connector.errors import BrokerError, ConfigError, ErrorCode
from connector.kafka import client

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.idempotence", "false"),
        ("acks", "1"),
        ("partitioner", "consistent_random"),
        ("max.in.flight", "10"),
        ("delivery.report.only.error", "true"),
        ("isolation.level", "read_uncommitted"),
        ("enable.auto.commit", "true"),
        ("auto.offset.reset", "latest"),
        ("transactional.id", "x"),
    ],
)
def test_a_setting_that_would_break_a_promise_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"kafka.{name} is '{value}', but must be") as caught:
        client.producer(KafkaConfig(NOBODY, {name: value}), client.LastError(), {})
    assert caught.value.cause


def test_the_promised_value_itself_is_taken() -> None:
    settings = {"acks": "all", "enable.idempotence": "true", "delivery.report.only.error": "false"}
    client.producer(KafkaConfig(NOBODY, settings), client.LastError(), {})


def test_other_settings_of_the_user_outrank_ours() -> None:
    kafka = KafkaConfig(NOBODY, {"compression.type": "no such codec"})
    with pytest.raises(ConfigError, match="does not accept") as caught:
        client.producer(kafka, client.LastError(), {})
    assert "no such codec" in caught.value.cause


def test_settings_of_the_other_kind_of_client_are_kept_from_it() -> None:
    kafka = KafkaConfig(NOBODY, {"linger.ms": "no number", "fetch.min.bytes": "1"})
    client.consumer(kafka, client.LastError(), {"group.id": "g"}).close()
    with pytest.raises(ConfigError):
        client.producer(kafka, client.LastError(), {})


@pytest.mark.parametrize("value", ["", "\n", "a\0b", "a\ud800", "g" * 40_000, None, 5, b"g"])
def test_an_id_that_ends_or_blocks_the_client_is_refused(value: Any) -> None:
    """SUB-3, REC-17: librdkafka ends the process, or waits for ever."""
    for name in ("group", "transactional_id"):
        with pytest.raises(ConfigError, match=f"The argument {name} is") as caught:
            client.check_id(name, value)
        assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    with pytest.raises(ConfigError, match="The argument group is"):
        client.consumer(KafkaConfig(NOBODY), client.LastError(), {"group.id": value})
    client.check_id("group", "Größe 5/π")


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        client.producer(KafkaConfig(NOBODY, {"compresion.type": "zstd"}), client.LastError(), {})
    assert "compresion.type" in caught.value.cause


def test_unreachable_brokers_are_a_clear_error_within_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(BrokerError, match=f"No Kafka broker answers at {NOBODY}") as caught:
        client.admin(KafkaConfig(NOBODY))
    assert time.monotonic() - began < 2 * client.REACH_TIMEOUT_S
    assert "Connection refused" in caught.value.cause
    assert "Start a local broker" in caught.value.remedy
    assert caught.value.fields["port"] == NOBODY.rpartition(":")[2]
