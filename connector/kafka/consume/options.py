"""The arguments of a `ChangeConsumer`: which exclude each other, and the place of a state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypedDict

from connector.config.settings import KafkaConfig, RegistryConfig
from connector.errors import ConfigError, ErrorCode
from connector.kafka import client
from connector.kafka.arguments import (
    check,
    check_optional,
    check_seconds,
    check_type,
    names_of,
)
from connector.kafka.consume.places import check_numbers, check_reached
from connector.kafka.consume.record import Start
from connector.records.model import MAX_TIMESTAMP
from connector.records.rejection import Position
from connector.validation import Limits
from connector.watermarks.reader_state import ReaderState

if TYPE_CHECKING:
    from connector.kafka.topics import TopicFacts


BUFFERED_BYTES: Final = (1024, 1024**4)
"""The least and the greatest `max_buffered_bytes`."""


class ReaderOptions(TypedDict, total=False):
    """The arguments of a `ChangeConsumer` on which the type of its items does not depend."""

    start: Start
    group: str | None
    kafka_partitions: Iterable[int] | None
    bounded: bool
    registry: RegistryConfig | None
    limits: Limits | None
    tables: frozenset[str] | None
    metadata_refresh_s: float
    roots: Iterable[str]
    max_buffered_bytes: int
    state: bytes | None
    replays: bool


def check_options(given: dict[str, bool]) -> None:
    """Raise `ConfigError` if arguments exclude each other."""
    excluded = [
        ("group", "kafka_partitions", "Kafka gives Kafka partitions to the members of a group"),
        ("transactions", "kafka_partitions", "Whole transactions need all Kafka partitions"),
        ("start_commit", "group", "A group has its own stored positions"),
        ("end_commit", "group", "Each member would end at another time"),
        ("start_commit", "start", "The start position follows from start_commit"),
        ("state", "start", "The start position is in the state"),
        ("state", "group", "A group stores its own state"),
        ("staged", "start_commit", "Rows are staged at any time before their release"),
    ]
    for one, other, why in excluded:
        if given[one] and given[other]:
            raise ConfigError(
                ErrorCode.READER_OPTION_INVALID,
                f"{one} and {other} exclude each other",
                why,
                f"Leave out {other}",
            )
    if given["state"] and not given["transactions"]:
        raise ConfigError(
            ErrorCode.READER_OPTION_INVALID,
            "state is given without transactions=True",
            "Only a reader of whole transactions has a state",
            "Pass positions as start, or set transactions=True",
        )
    if given["replays"] and not given["group"]:
        raise ConfigError(
            ErrorCode.READER_OPTION_INVALID,
            "replays is given without group",
            "Each group has its own dead letters, and so its own replays",
            "Set group=, or leave out replays",
        )


def check_types(
    *,
    kafka: KafkaConfig,
    topic: str,
    start: Start,
    group: str | None,
    registry: RegistryConfig | None,
    limits: Limits | None,
    tables: frozenset[str] | None,
    metadata_refresh_s: float,
    state: bytes | None,
) -> None:
    """Raises `ConfigError` if an argument has a wrong type."""
    check_type("kafka", kafka, KafkaConfig, "a KafkaConfig")
    check_type("topic", topic, str, "the name of a topic")
    is_place = (
        all(isinstance(one, Position) for one in start)
        if isinstance(start, tuple)
        else start in ("beginning", "end") or type(start) is int
    )
    allowed = "beginning, end, a time in microseconds, or a tuple of positions"
    check("start", start, is_place, allowed)
    if group is not None:
        client.check_id("group", group)
    check_optional("registry", registry, RegistryConfig, "a RegistryConfig")
    check_optional("limits", limits, Limits, "a Limits")
    if tables is not None:
        names_of("tables", tables, "the names of source tables, or None")
    check_seconds("metadata_refresh_s", metadata_refresh_s)
    check_optional("state", state, bytes, "bytes of state()")


def check_numbers_given(
    *, start_commit: int | None, end_commit: int | None, max_buffered_bytes: int
) -> None:
    """Raise `ConfigError` if a number is out of its range."""
    given = [
        ("start_commit", start_commit, 0, MAX_TIMESTAMP, "It is in microseconds since 1970"),
        ("end_commit", end_commit, 0, MAX_TIMESTAMP, "It is in microseconds since 1970"),
        ("max_buffered_bytes", max_buffered_bytes, *BUFFERED_BYTES, "It bounds the memory"),
    ]
    for name, value, least, most, why in given:
        allowed = "a whole number" if name == "max_buffered_bytes" else "a whole number, or None"
        is_optional = name != "max_buffered_bytes"
        check(name, value, (value is None and is_optional) or type(value) is int, allowed)
        if value is not None and not least <= value <= most:
            raise ConfigError(
                ErrorCode.READER_OPTION_INVALID,
                f"{name} is {value}, but must be from {least:,} to {most:,}",
                why,
                f"Pass another {name}, or leave it out",
            )


def positions_of_state(
    state: ReaderState, kafka: KafkaConfig, facts: TopicFacts
) -> tuple[Position, ...]:
    """Return the positions to continue from. Raises `TopicError` if the topic lost records that
    were read. The reader checks whether it is the topic of the state.
    """
    if (state.topic, state.topic_id) == (facts.topic, facts.topic_id):
        check_numbers(facts, state.offsets)
        check_reached(kafka, facts, {k: at[1] for k, at in state.offsets.items()})
    return tuple(
        Position(state.topic, state.topic_id, number, oldest - 1)
        for number, (oldest, _) in state.offsets.items()
    )
