"""The arguments of a `ChangeProducer` and of its methods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.config.settings import KafkaConfig, RegistryConfig
from connector.errors import ConfigError, InvalidChangeError, argument_invalid
from connector.kafka import client
from connector.kafka.arguments import (
    check,
    check_flags,
    check_optional,
    check_seconds,
    check_settings,
    check_type,
    check_whole,
)
from connector.kafka.topics import TopicFacts
from connector.records.model import DataChange, Heartbeat, Rule

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_producer(
    *,
    kafka: KafkaConfig,
    topic: str | TopicFacts,
    registry: RegistryConfig | None,
    max_record_bytes: int,
    max_clock_skew_s: int,
    min_commit_timestamp: int,
    queue_timeout_s: float,
    settings: Mapping[str, str] | None,
    announce: bool,
    transactional_id: str | None,
) -> None:
    """Raises `ConfigError` if an argument has a wrong type, or a value that is not allowed."""
    check_type("kafka", kafka, KafkaConfig, "a KafkaConfig")
    check_type("topic", topic, (str, TopicFacts), "the name of a topic, or a TopicFacts")
    check_optional("registry", registry, RegistryConfig, "a RegistryConfig")
    check_whole("max_record_bytes", max_record_bytes, 1)
    check_whole("max_clock_skew_s", max_clock_skew_s)
    check_whole("min_commit_timestamp", min_commit_timestamp)
    check_seconds("queue_timeout_s", queue_timeout_s)
    check_settings("settings", settings)
    check_flags(announce=announce)
    if transactional_id is not None:
        client.check_id("transactional_id", transactional_id)


def check_callback(on_delivery: object) -> None:
    """Raises `ConfigError` if `on_delivery` cannot be called."""
    check("on_delivery", on_delivery, callable(on_delivery), "a function, or None")


def record_invalid(record: object) -> ConfigError:
    """The error for something that is not a record."""
    return argument_invalid("record", record, "a DataChange, a Heartbeat or a ChildPartitions")


def changes_of(changes: object) -> list[DataChange]:
    """The changes of a call of `send_many`. Raises `ConfigError` if one is not a change."""
    given = list(changes) if isinstance(changes, Iterable) else None
    is_allowed = given is not None and all(isinstance(one, DataChange) for one in given)
    check("changes", changes, is_allowed, "a collection of DataChange")
    return given or []


def position_of(
    stream_partition: str, timestamp: int, resume_token: bytes, max_clock_skew_us: int
) -> Heartbeat:
    """The heartbeat of a position that the application reports.

    Raises `ConfigError` if an argument has a wrong type, and `InvalidChangeError` if a value breaks
    a limit. Readers reject a heartbeat that is too far in the future, and `send` refuses all
    changes up to it.
    """
    check_type("stream_partition", stream_partition, str, "the name of a stream partition")
    check("timestamp", timestamp, type(timestamp) is int, "a whole number of microseconds")
    check_type("resume_token", resume_token, bytes, "bytes")
    heartbeat = Heartbeat(stream_partition, timestamp, resume_token)
    if timestamp > now_us() + max_clock_skew_us:
        raise InvalidChangeError(
            Rule.HEARTBEAT_TIMESTAMP,
            "timestamp",
            f"at most {max_clock_skew_us // 1_000_000} s after the clock of this machine"
            " (max_clock_skew_s)",
            timestamp,
            "Report the time up to which the source was read, in microseconds",
        )
    return heartbeat
