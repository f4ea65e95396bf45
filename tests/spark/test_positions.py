"""Tables without changes make no commits (ENG-7)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.config.settings import KafkaConfig
from connector.errors import TableError
from connector.lake.jobs import History
from connector.lake.state_reader import committed_state_of, table_state_of
from connector.records.model import DataChange
from connector.services.read import read
from connector.services.status import status
from connector.spark.reader import read_snapshot, read_table
from connector.state import positions
from connector.state.jobs import JobKind
from connector.state.table_state import TableState
from tests.broker import NewTopic
from tests.spark.live import Live
from tests.spark.streams import account, definition, versions
from tests.spark.test_stopped_tables import heartbeat


@pytest.fixture
def live(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> Iterator[Live]:
    """The table "accounts" has all changes, and "others" has one, at the beginning."""
    with ExitStack() as stack:
        topic = new_topic(kafka_partitions=1).topic
        made = Live(spark, kafka, topic, tmp_path / "warehouse", stack)
        made.tables = (definition(), definition("others", source="u"))
        made.publish(account("a", 1, name="Ada"), other("x", 2))
        heartbeat(made, 5)
        made.pipeline().run_once()
        yield made


def other(row: str, at: int) -> DataChange:
    return replace(account(row, at, name="Xen"), table="u")


def state(live: Live, name: str) -> TableState:
    return table_state_of(str(live.warehouse), "s", name)


def commits(live: Live, name: str) -> int:
    return versions(live.spark, paths.table(str(live.warehouse), name))


def shown(live: Live, name: str, *, snapshot: bool = False) -> tuple[set[object], int | None]:
    """The rows that a reader gets, and the cut."""
    with read(live.config, name, snapshot=snapshot, max_staleness_s=10**6) as found:
        ids = {dict(zip(found.columns, row, strict=True))["id"] for row in found.rows}
        return ids, found.cut


def test_a_table_without_changes_moves_on_without_a_commit(live: Live) -> None:
    """ENG-7, cut_is_consistent: readers with and without Spark, `status`, a snapshot at the new cut
    and the next process see the position. No job is recorded for it.
    """
    warehouse, made = str(live.warehouse), commits(live, "others")
    live.publish(account("b", 6, name="Bob"))
    heartbeat(live, 10)
    live.pipeline().run_once()
    assert commits(live, "others") == made
    at_cut = state(live, "others")
    assert (at_cut.to_batch, at_cut.complete_to_batch, at_cut.apply_watermark) == (2, 2, 11)
    assert at_cut.apply_watermark == state(live, "accounts").apply_watermark
    assert committed_state_of(warehouse, "others").to_batch == 1
    assert len(History(warehouse).jobs("others", kinds=[JobKind.APPLY])) == 1
    of_others = status(live.config).tables["others"]
    assert (of_others.pending_batches, of_others.to_batch) == (0, 2)

    assert shown(live, "others") == shown(live, "others", snapshot=True) == ({"x"}, 11)
    assert shown(live, "accounts", snapshot=True) == ({"a", "b"}, 11)
    merged = read_table(live.spark, warehouse, "others", max_staleness_s=10**6)
    assert (merged.low_watermark, merged.changes) == (11, None)
    snapshot = read_snapshot(live.spark, warehouse, "accounts", "others")
    assert snapshot.cut.low_watermark == 11
    assert [row["id"] for row in snapshot.rows["others"].collect()] == ["x"]

    live.pipeline().run_once()
    assert (commits(live, "others"), state(live, "others")) == (made, at_cut)

    live.publish(other("y", 11))
    heartbeat(live, 20)
    live.pipeline().run_once()
    assert commits(live, "others") == made + 1
    assert shown(live, "others") == ({"x", "y"}, 21)
    assert committed_state_of(warehouse, "others") == state(live, "others")


@pytest.mark.parametrize("lost", ["removed", "damaged", "older"])
def test_a_lost_position_is_found_again(live: Live, lost: str) -> None:
    """ENG-7, nothing_lost: the next apply finds that nothing came, and what came."""
    warehouse, file = str(live.warehouse), Path(paths.positions(str(live.warehouse), "s"))
    live.publish(account("b", 6, name="Bob"))
    heartbeat(live, 10)
    live.pipeline().run_once()
    older = file.read_text()
    live.publish(account("c", 11, name="Cyd"))
    heartbeat(live, 15)
    live.pipeline().run_once()
    if lost == "removed":
        file.unlink()
    else:
        file.write_text(older if lost == "older" else file.read_text()[:-3])
    expected = {"removed": 1, "damaged": 1, "older": 2}[lost]
    assert state(live, "others").to_batch == expected
    assert shown(live, "others", snapshot=True) == ({"x"}, 16)
    live.publish(other("y", 16))
    heartbeat(live, 20)
    live.pipeline().run_once()
    assert shown(live, "others") == ({"x", "y"}, 21)
    assert committed_state_of(warehouse, "others").to_batch == 4


def test_a_position_becomes_a_commit_before_the_changelog_loses_its_rows(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENG-7: ten minutes after the last commit of the table."""
    monkeypatch.setattr(positions, "COMMIT_AFTER_US", 0)
    made = commits(live, "others")
    live.publish(account("b", 6, name="Bob"))
    heartbeat(live, 10)
    live.pipeline().run_once()
    assert commits(live, "others") == made + 1
    assert committed_state_of(str(live.warehouse), "others").to_batch == 2


def test_positions_of_a_later_time_than_the_changelog_do_not_count(
    live: Live, tmp_path: Path
) -> None:
    """ENG-7, nothing_lost: tables and changelogs of a backup, beside newer positions."""
    backup = tmp_path / "backup"
    for part in ("streams", "tables"):
        but = shutil.ignore_patterns("checkpoint")
        shutil.copytree(f"{live.warehouse}/{part}", backup / part, ignore=but)
    for row, at in {"b": 6, "c": 11}.items():
        live.publish(account(row, at, name="Bob"))
        heartbeat(live, at + 4)
        live.pipeline().run_once()
    assert state(live, "others").to_batch == 3
    for part in ("streams", "tables"):
        shutil.rmtree(f"{live.warehouse}/{part}")
        shutil.copytree(backup / part, f"{live.warehouse}/{part}")
    live.publish(other("y", 16))
    for at in (20, 30, 40):
        heartbeat(live, at)
        with suppress(TableError):
            live.pipeline().run_once()
    assert shown(live, "others")[0] == {"x", "y"}


def test_ingest_does_not_begin_with_a_changelog_older_than_a_table(
    live: Live, tmp_path: Path
) -> None:
    """nothing_lost: otherwise batches with other changes would get numbers that the table has."""
    changelog, backup = Path(f"{live.warehouse}/streams"), tmp_path / "backup"
    shutil.copytree(changelog, backup, ignore=shutil.ignore_patterns("checkpoint"))
    for row, at in {"b": 6, "c": 11}.items():
        live.publish(account(row, at, name="Bob"), other(row, at + 1))
        heartbeat(live, at + 4)
        live.pipeline().run_once()
    shutil.move(changelog, tmp_path / "newer")
    shutil.copytree(backup, changelog)
    live.publish(other("y", 16))
    for at in (20, 30):
        heartbeat(live, at)
        with pytest.raises(TableError, match="restored to batch 1"):
            live.pipeline()
    shutil.rmtree(changelog)
    shutil.move(tmp_path / "newer", changelog)
    live.pipeline().run_once()
    assert shown(live, "others") == ({"b", "c", "x", "y"}, 31)
