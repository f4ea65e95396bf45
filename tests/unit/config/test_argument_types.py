"""Values of another type or range in definitions and settings: the error names the argument
(OPS-1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from connector import (
    Column,
    ConnectorConfig,
    DataType,
    KafkaConfig,
    Key,
    KeyPart,
    RegistryConfig,
    StreamConfig,
    TableDefinition,
)
from connector.config.spark_settings import SparkConfig
from connector.errors import ConfigError
from connector.validation import Limits

KEY = Key((KeyPart("id", DataType.STRING),))
KAFKA = KafkaConfig("127.0.0.1:9092")
AMOUNT = Column("amount", "f", b"amount", DataType.INT64)
any_: Any = lambda value: value  # noqa: E731, for arguments of a wrong type


def table(**fields: Any) -> TableDefinition:
    legal: dict[str, Any] = {"name": "t", "stream": "s", "source": "t", "key": KEY}
    return TableDefinition(**legal | fields)


@pytest.mark.parametrize(
    ("build", "problem", "allowed"),
    [
        (lambda: Column("c", "f", any_("c"), DataType.INT64), "Column.qualifier is 'c'", "bytes"),
        (lambda: Column("c", any_(None), b"c", DataType.INT64), "Column.family is None", "text"),
        (
            lambda: Column("c", "f", b"c", any_("INT64")),
            "Column.type is 'INT64'",
            "DataType.STRING",
        ),
        (lambda: KeyPart(any_(5), DataType.STRING), "KeyPart.name is 5", "text"),
        (lambda: Key(any_(KeyPart("id", DataType.STRING))), "Key.parts is KeyPart(", "a tuple"),
        (lambda: Key((any_("id"),)), "Key.parts[0] is 'id'", "a KeyPart"),
        (lambda: table(columns=AMOUNT), "TableDefinition.columns is Column(", "a tuple"),
        (lambda: table(key="id"), "TableDefinition.key is 'id'", "a Key"),
        (lambda: table(buckets=True), "TableDefinition.buckets is True", "a whole number"),
        (lambda: table(max_staleness_s="10m"), "TableDefinition.max_staleness_s is '10m'", "None"),
        (lambda: KafkaConfig(any_(["h:1"])), "KafkaConfig.bootstrap_servers is ['h:1']", "text"),
        (lambda: KafkaConfig("h:1", any_("acks")), "KafkaConfig.settings is 'acks'", "a mapping"),
        (
            lambda: KafkaConfig("h:1", any_({"linger.ms": 5})),
            "KafkaConfig.settings['linger.ms'] is 5",
            "text",
        ),
        (lambda: StreamConfig(name="s", topic=any_(b"t")), "StreamConfig.topic is b't'", "text"),
        (
            lambda: StreamConfig(name="s", topic="t", partitions=any_("p0")),
            "StreamConfig.partitions is 'p0'",
            "a tuple, each item text",
        ),
        (
            lambda: StreamConfig(name="s", topic="t", trigger_s=any_("5s")),
            "StreamConfig.trigger_s is '5s'",
            "a number",
        ),
        (
            lambda: StreamConfig(name="s", topic="t", stall_after_s=0),
            "StreamConfig.stall_after_s is 0",
            "a whole number (int) of at least 1",
        ),
        (
            lambda: StreamConfig(name="s", topic="t", max_dead_letter_ratio=math.nan),
            "StreamConfig.max_dead_letter_ratio is nan",
            "a number from 0 to 1",
        ),
        (
            lambda: SparkConfig(max_parallel_applies=33),
            "SparkConfig.max_parallel_applies is 33",
            "a whole number (int) from 1 to 32 or None",
        ),
        (lambda: Limits(-1), "Limits.max_clock_skew_s is -1", "of at least 0"),
        (lambda: Limits(any_("5m")), "Limits.max_clock_skew_s is '5m'", "a whole number"),
        (
            lambda: ConnectorConfig("w", any_("h:1")),
            "ConnectorConfig.kafka is 'h:1'",
            "KafkaConfig",
        ),
        (
            lambda: ConnectorConfig("w", KAFKA, tables=any_({"t": KEY})),
            "ConnectorConfig.tables['t'] is Key(",
            "a TableDefinition",
        ),
    ],
)
def test_a_value_of_another_type_or_range_is_an_error_that_names_the_argument(
    build: Callable[[], object], problem: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert caught.value.code == "ARGUMENT_INVALID"
    assert caught.value.problem.startswith(f"The argument {problem}")
    assert allowed in caught.value.cause


def test_the_value_of_a_secret_is_not_shown() -> None:
    """OPS-7."""
    for build in (
        lambda: KafkaConfig("h:1", any_({"sasl.password": 987654})),
        lambda: RegistryConfig("http://h", "ada", any_(987654)),
    ):
        with pytest.raises(ConfigError) as caught:
            build()
        assert "password" in str(caught.value)
        assert "987654" not in str(caught.value)


def test_a_list_is_stored_as_a_tuple() -> None:
    made = table(columns=[AMOUNT], key=Key(any_([KeyPart("id", DataType.STRING)])))
    assert made == table(columns=(AMOUNT,))
    assert StreamConfig(name="s", topic="t", partitions=any_(["p"])).partitions == ("p",)
