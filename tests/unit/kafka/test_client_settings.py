"""Which settings Kafka clients get (REC-1, REC-17, REC-21)."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from connector.config.settings import KafkaConfig
from connector.errors import BrokerError, ConfigError
from connector.kafka import client, topics

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
def test_a_setting_that_would_break_a_guarantee_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"kafka.{name} is '{value}', but must be") as caught:
        client.producer(KafkaConfig(NOBODY, {name: value}), client.LastError(), {})
    assert caught.value.cause


def test_the_required_value_of_a_setting_is_accepted() -> None:
    settings = {"acks": "all", "enable.idempotence": "true", "delivery.report.only.error": "false"}
    client.producer(KafkaConfig(NOBODY, settings), client.LastError(), {})


def test_other_settings_of_the_user_outrank_ours() -> None:
    kafka = KafkaConfig(NOBODY, {"compression.type": "no such codec"})
    with pytest.raises(ConfigError, match="does not accept") as caught:
        client.producer(kafka, client.LastError(), {})
    assert "no such codec" in caught.value.cause


def test_a_client_does_not_get_settings_of_other_clients() -> None:
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
        assert caught.value.code == "ARGUMENT_INVALID"
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
        client.admin(KafkaConfig(NOBODY), timeout_s=0.5)
    assert time.monotonic() - began < 2
    assert "Connection refused" in caught.value.cause
    assert "Start a local broker" in caught.value.remedy
    assert caught.value.fields["port"] == NOBODY.rpartition(":")[2]


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("ssl://k:1/1: SSL handshake failed: certificate verify failed", "KAFKA_TLS_FAILED"),
        ("Receive failed: error:0A000412:SSL routines::bad certificate", "KAFKA_TLS_FAILED"),
        ("sasl_ssl://k:1/1: SASL authentication error: no", "KAFKA_LOGIN_FAILED"),
        ("Failed to acquire SASL OAUTHBEARER token: no", "KAFKA_LOGIN_FAILED"),
        ("SASL PLAIN mechanism handshake failed: no", "KAFKA_LOGIN_FAILED"),
        ("Connect to ipv4#127.0.0.1:1 failed: Connection refused", "BROKER_UNREACHABLE"),
    ],
)
def test_a_refused_connection_is_not_a_broker_that_is_away(cause: str, code: str) -> None:
    """SEC-1: tests/integration/test_secured.py has the texts of real brokers."""
    error = client.unreachable(KafkaConfig("127.0.0.1:1"), cause)
    assert (error.code, error.cause) == (code, cause)
    assert ("port" in error.fields) is (code == "BROKER_UNREACHABLE")


@pytest.mark.parametrize(
    ("text", "is_closed"),
    [
        ("Disconnected: connection closed by peer (after 2ms in state APIVERSION_QUERY)", True),
        ("Disconnected: connection closed by peer (after 2ms in state UP)", True),
        ("Connect to %s failed: Connection refused (after 0ms in state CONNECT)", False),
    ],
)
def test_a_client_notices_that_brokers_close_its_connections(text: str, is_closed: bool) -> None:
    """SEC-1: a broker that requires TLS does not answer a client without it."""
    heard = client.LastError()
    heard.log(logging.INFO, text, *(["k:1"] if "%s" in text else []))
    assert heard.is_closed_at_once is is_closed
    heard.clear()
    assert not heard.is_closed_at_once


@pytest.mark.parametrize(
    ("replicas", "in_sync", "says"),
    [(3, 2, None), (5, 3, None), (2, 2, "fewer than 3"), (3, 1, "one broker alone")],
)
def test_a_topic_that_one_broker_can_lose_is_warned_about(
    replicas: int, in_sync: int, says: str | None
) -> None:
    """SEC-3."""
    settings = ("delete", "LogAppendTime", 10**9, 1_000_000)
    few = topics.TopicFacts("few", "T", 1, replicas, *settings, min_insync_replicas=in_sync)
    good = topics.TopicFacts("good", "T", 1, 3, *settings, min_insync_replicas=2)
    warnings = topics.check_replicas("s", [good, few])
    if says is None:
        assert warnings == []
        return
    (warning,) = warnings
    assert says in warning
    assert "few" in warning
    assert "good" not in warning
