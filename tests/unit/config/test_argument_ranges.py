"""Numbers out of range in definitions and settings: the error names the argument (OPS-1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from connector import (
    Column,
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
        (
            lambda: StreamConfig(name="s", topic="t", stall_after_s=0),
            "StreamConfig.stall_after_s is 0",
            "a number of at least 1",
        ),
        (
            lambda: StreamConfig(name="s", topic="t", max_dead_letter_ratio=math.nan),
            "StreamConfig.max_dead_letter_ratio is nan",
            "a number from 0 to 1",
        ),
        (
            lambda: SparkConfig(max_parallel_applies=33),
            "SparkConfig.max_parallel_applies is 33",
            "a number from 1 to 32",
        ),
        (lambda: Limits(-1), "Limits.max_clock_skew_s is -1", "of at least 0"),
        (lambda: RegistryConfig("http://h", timeout_s=0), "RegistryConfig.timeout_s is 0", "0.001"),
    ],
)
def test_a_number_out_of_its_range_is_an_error_that_names_the_argument(
    build: Callable[[], object], problem: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert caught.value.code == "ARGUMENT_INVALID"
    assert caught.value.problem.startswith(f"The argument {problem}")
    assert allowed in caught.value.cause


def test_a_list_is_stored_as_a_tuple() -> None:
    made = table(columns=[AMOUNT], key=Key(any_([KeyPart("id", DataType.STRING)])))
    assert made == table(columns=(AMOUNT,))
    assert StreamConfig(name="s", topic="t", partitions=any_(["p"])).partitions == ("p",)
