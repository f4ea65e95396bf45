"""Arguments of services that are not allowed are errors with a remedy, before anything is read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from connector.config.settings import ConnectorConfig, parse
from connector.dead_letters.filter import LetterFilter
from connector.errors import ConfigError, ErrorCode
from connector.lake.overrides import Overrides
from connector.services import close_partition, dead_letters

NO_NOTES = [None, "", " ", 5, b"gone", "a\0b", "a\ud800"]


@pytest.fixture
def config(tmp_path: Path) -> ConnectorConfig:
    document: dict[str, Any] = {
        "warehouse": str(tmp_path),
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "streams": {"s": {"partitions": ["p"]}},
        "tables": {"t": {"stream": "s"}},
    }
    return parse(document, {})


@pytest.mark.parametrize("note", NO_NOTES)
def test_a_partition_is_not_closed_without_a_reason_that_can_be_stored(
    config: ConnectorConfig, note: Any
) -> None:
    """WMK-8."""
    with pytest.raises(ConfigError, match="The argument why is") as caught:
        close_partition(config, "s", "p", why=note)
    assert caught.value.code == ErrorCode.ARGUMENT_INVALID
    if note is not None:  # the user of this process
        with pytest.raises(ConfigError, match="The argument by is"):
            close_partition(config, "s", "p", why="gone", by=note)
    assert Overrides(config.warehouse).ends("s", above=0) == []
    close_partition(config, "s", "p", why="gone")
    assert [one.reason for one in Overrides(config.warehouse).ends("s", above=0)] == ["gone"]


@pytest.mark.parametrize("note", NO_NOTES)
def test_no_action_on_dead_letters_without_a_reason_that_can_be_stored(
    config: ConnectorConfig, note: Any
) -> None:
    """DLQ-11: the reason is refused before Kafka is asked."""
    letters = dead_letters(config, "s", by="ann")
    for action in (letters.park, letters.discard, letters.reopen, letters.replay):
        with pytest.raises(ConfigError, match="The argument why is"):
            action(LetterFilter(), why=note)
    if note is not None:
        with pytest.raises(ConfigError, match="The argument by is"):
            dead_letters(config, "s", by=note)


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1, 0, 1e-300, True, "x"])
def test_a_rate_of_replay_that_is_not_allowed_is_refused(
    config: ConnectorConfig, rate: Any
) -> None:
    """DLQ-14."""
    with pytest.raises(ConfigError, match="The argument per_second is"):
        dead_letters(config, "s").replay(LetterFilter(), why="a reason", per_second=rate)
