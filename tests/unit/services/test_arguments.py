"""Arguments of services that are not allowed are errors with a remedy, before anything is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connector.config.parse import parse
from connector.config.settings import ConnectorConfig
from connector.dead_letters.filter import LetterFilter
from connector.errors import ConfigError
from connector.lake.overrides import Overrides
from connector.services import (
    DeadLetters,
    audit,
    close_partition,
    explain,
    jobs,
    partitions,
    read,
    rebuild,
    set_max_staleness,
    status,
)
from connector.spark.changes import read_changes, stream_changes
from connector.spark.reader import read_snapshot
from connector.state.overrides import ClosePartition

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
    assert caught.value.code == "ARGUMENT_INVALID"
    if note is not None:  # the user of this process
        with pytest.raises(ConfigError, match="The argument by is"):
            close_partition(config, "s", "p", why="gone", by=note)
    assert Overrides(config.warehouse).requests(ClosePartition, "s", above=0) == []
    close_partition(config, "s", "p", why="gone")
    assert [
        one.reason for one in Overrides(config.warehouse).requests(ClosePartition, "s", above=0)
    ] == ["gone"]


@pytest.mark.parametrize("note", NO_NOTES)
def test_no_action_on_dead_letters_without_a_reason_that_can_be_stored(
    config: ConnectorConfig, note: Any
) -> None:
    """DLQ-11: the reason is refused before Kafka is asked."""
    letters = DeadLetters(config, "s", by="ann")
    for action in (letters.park, letters.discard, letters.reopen, letters.replay):
        with pytest.raises(ConfigError, match="The argument why is"):
            action(LetterFilter(), why=note)
    if note is not None:
        with pytest.raises(ConfigError, match="The argument by is"):
            DeadLetters(config, "s", by=note)


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1, 0, 1e-300])
def test_a_rate_of_replay_that_is_not_allowed_is_refused(
    config: ConnectorConfig, rate: Any
) -> None:
    """DLQ-14."""
    with pytest.raises(ConfigError, match="The argument max_changes_per_s is"):
        DeadLetters(config, "s").replay(LetterFilter(), why="a reason", max_changes_per_s=rate)


@pytest.mark.parametrize("bound", [math.nan, math.inf, -1, -0.5])
def test_a_bound_of_a_read_that_is_not_allowed_is_refused(
    config: ConnectorConfig, bound: Any
) -> None:
    """TBL-16: with NaN, no read would be too old."""
    with pytest.raises(ConfigError, match="The argument max_staleness_s is"):
        read(config, "t", max_staleness_s=bound)


@pytest.mark.parametrize("limit", [-1, 0, True, 1.5, "3", 10**30])
def test_a_limit_of_jobs_that_is_not_allowed_is_refused(
    config: ConnectorConfig, limit: Any
) -> None:
    with pytest.raises(ConfigError, match="The argument limit is"):
        jobs(config, "t", limit=limit)
    assert jobs(config, "t", limit=1) == []


def test_an_empty_name_is_not_all_streams(config: ConnectorConfig) -> None:
    """TBL-6: only None is all of them."""
    with pytest.raises(ConfigError) as caught:
        list(audit(config, ""))
    assert caught.value.code == "STREAM_UNKNOWN"
    assert list(audit(config, None, on_event=lambda event: None)) == []


@pytest.mark.parametrize("name", [None, 5, b"t", [], {}, 1.5, True])
def test_a_name_of_another_type_is_refused(config: ConnectorConfig, name: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: read(config, name),
        lambda: rebuild(config, name),
        lambda: set_max_staleness(config, name, 5),
        lambda: explain(config, name, ("k",)),
    ]
    if name is not None:  # the only stream
        calls += [
            lambda: jobs(config, name),
            lambda: partitions(config, name),
            lambda: DeadLetters(config, name),
            lambda: list(audit(config, name)),
            lambda: close_partition(config, name, "p", why="gone"),
        ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"The argument \w+ is"):
            call()


def test_a_file_at_the_path_of_the_warehouse_is_an_error_of_the_status(
    config: ConnectorConfig, tmp_path: Path
) -> None:
    """OPS-5: an empty status with exit code 0 would be that of a sound warehouse."""
    (tmp_path / "file").write_text("")
    found = status(replace(config, warehouse=str(tmp_path / "file")))
    assert {error.code for error in found.errors.values()} == {"WAREHOUSE_UNUSABLE"}
    assert {"streams.s", "tables.t"} <= found.errors.keys()
    assert status(replace(config, warehouse=str(tmp_path / "new"))).errors == {}


@pytest.mark.parametrize("time", [math.nan, math.inf, 1.5, True, "", "now", 2**63, -(10**30)])
def test_a_time_that_is_no_number_of_microseconds_is_refused(
    config: ConnectorConfig, time: Any
) -> None:
    """SUB-5, TBL-17, OPS-5: no raw error of Python or Spark."""
    spark: Any = None
    calls: list[Callable[[], object]] = [
        lambda: status(config, now=time),
        lambda: read_changes(spark, "w", "s", start_commit=time),
        lambda: read_changes(spark, "w", "s", end_commit=time),
        lambda: stream_changes(spark, "w", "s", start_commit=time),
        lambda: read_snapshot(spark, "w", "t", low_watermark=time),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"The argument \w+ is .* microseconds") as caught:
            call()
        assert caught.value.code == "ARGUMENT_INVALID"


def test_a_snapshot_without_a_table_is_refused() -> None:
    """TBL-17."""
    spark: Any = None
    with pytest.raises(ConfigError, match="The argument names is"):
        read_snapshot(spark, "w")
