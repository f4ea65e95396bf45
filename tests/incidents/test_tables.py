"""Incidents of one table: it stops alone, and ingest and the other table go on (RUN-3)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from connector import warehouse as paths
from tests.incidents.desk import Desk, section, until
from tests.spark.streams import account, versions

STOPPED = "TABLE_STOPPED table accounts"


def path_of(desk: Desk, name: str) -> str:
    return paths.table(str(desk.warehouse), name)


def stops_alone(desk: Desk, operation: str, good: int) -> None:
    """Another program has changed rows after the version `good`. A rebuild repairs the table while
    the pipeline runs.
    """
    desk.publish(account("c", 3, name="Cid"))
    until(lambda: desk.applied("copies"))
    desk.shows(
        *(STOPPED, "JOB_FAILED table accounts")[: 1 + (operation == "RESTORE")],
        alerts={"LowmarkTableStopped"},
        log=f"VERSION AS OF {good}), or rebuild it",
    )
    assert desk.stopped() == {"accounts": "COMMIT_FOREIGN"}
    assert desk.has_logged(f"(version {good + 1}, {operation}) does not belong to table accounts")
    assert desk.does("connector table rebuild accounts") == 0
    until(lambda: desk.has_logged("TABLE_GOES_ON"))
    until(lambda: desk.applied("accounts"))
    assert desk.table() == desk.truth()
    desk.is_well()


def test_delete_by_hand(desk: Desk) -> None:
    """docs/howto/on-call.md#lowmarktablestopped"""
    desk.publish(account("a", 1, name="Ada"), account("b", 2, name="Bob"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
        path = path_of(desk, "accounts")
        good = versions(desk.spark, path)
        desk.spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 'a'")
        stops_alone(desk, "DELETE", good)
    assert desk.error is None


@pytest.mark.long
def test_restore_by_hand(desk: Desk) -> None:
    """docs/howto/on-call.md#a-commit-of-another-program"""
    desk.publish(account("a", 1, name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        path = path_of(desk, "accounts")
        first = versions(desk.spark, path)
        desk.publish(account("a", 2, name="Anna"), account("b", 2, name="Bob"))
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
        good = versions(desk.spark, path)
        desk.spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {first}")
        stops_alone(desk, "RESTORE", good)
    assert desk.error is None


@pytest.mark.long
def test_optimize_by_hand(desk: Desk) -> None:
    """docs/howto/on-call.md#a-commit-of-another-program"""
    desk.publish(account("a", 1, name="Ada"), account("b", 2, name="Bob"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.publish(account("c", 3, name="Cid"))
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
        desk.spark.sql(f"OPTIMIZE delta.`{path_of(desk, 'accounts')}`")
        assert "1 commit of other programs changed no row: OPTIMIZE" in desk.status()
        desk.is_well()
        desk.publish(account("d", 4, name="Dan"))
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == desk.truth()
        assert desk.stopped() == {}
    assert desk.error is None


def test_a_definition_that_does_not_fit(desk: Desk) -> None:
    """docs/howto/on-call.md#lowmarktablelettersratio"""
    desk.sections = [section("accounts"), section("copies", amount="NUMERIC")]
    desk.publish(*(account(f"k{n}", n + 1, amount=str(n)) for n in range(8)))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
        desk.publish(*(account(f"n{n}", n + 10, amount=str(n)) for n in range(8)))
        desk.publish(account("half", 20, amount="1.5"))
        until(lambda: desk.applied("accounts", "copies"))
        alerts = {"LowmarkDeadLetters", "LowmarkTableLettersRatio"}
        desk.shows("DEAD_LETTERS stream s", alerts=alerts, log="; 1 table letter")
        assert "accounts: the table is not complete without 1 dead letter" in desk.status()
        desk.sections[0] = section("accounts", amount="NUMERIC")
        assert desk.does("connector table rebuild accounts") == 1
        assert "declare a table with another name" in desk.err
        desk.sections[0] = section("accounts")
        desk.sections.append(section("balances", amount="NUMERIC"))
        desk.write()
        until(lambda: desk.applied("balances"))
        assert desk.does("connector read balances --allow-stale --json") == 0
        assert len(desk.out.splitlines()) == 17
        assert '"1.5"' in desk.out
        assert desk.does('connector dead-letters discard --table accounts --why "balances"') == 0
        desk.publish(account("last", 30, amount="3"))
        until(lambda: desk.applied("accounts", "copies", "balances"))
        desk.is_well()  # the rebuild that was refused is not the last job any more
    assert desk.error is None
    del desk.sections[0]
    assert desk.does("connector table drop accounts") == 0


def test_a_dropped_table(desk: Desk) -> None:
    """docs/howto/on-call.md#a-removed-folder"""
    desk.publish(account("a", 1, name="Ada"), account("b", 2, name="Bob"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
        shutil.rmtree(Path(path_of(desk, "accounts")).parent)
        desk.publish(account("c", 3, name="Cid"))
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.stopped() == {"accounts": "TABLE_REMOVED"}
        assert desk.has_logged("The folder of table accounts is gone")
        assert desk.table() == desk.truth()
        desk.is_well()
    assert desk.error is None


def test_a_renamed_source_table(desk: Desk) -> None:
    """docs/howto/on-call.md#a-source-table-with-another-name"""
    desk.publish(account("a", 1, name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
        desk.publish(replace(account("b", 2, name="Bob"), table="clients"))
        until(lambda: desk.applied("accounts", "copies"))
        assert "without a table definition (of late: clients)" in desk.status()
        assert desk.has_logged("1 of source tables that no definition names")
        desk.is_well()
        desk.sections.append(section("clients", source="clients"))
        desk.write()
        until(lambda: desk.applied("clients"))
        assert desk.does("connector read clients --allow-stale --json") == 0
        assert '"Bob"' in desk.out
        assert "of late" not in desk.status()
    assert desk.error is None


def test_a_table_with_another_key(desk: Desk) -> None:
    """docs/howto/on-call.md#lowmarktablestopped"""
    desk.publish(account("a", 1, name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
    good = desk.sections[0]
    desk.sections[0] = good.replace('name = "id", type = "STRING"', 'name = "id", type = "BYTES"')
    desk.publish(account("b", 2, name="Bob"))
    with desk.running():
        until(lambda: desk.applied("copies"))
        desk.shows(STOPPED, alerts={"LowmarkTableStopped"}, log="TABLE_STOPPED")
        assert desk.stopped() == {"accounts": "TABLE_DEFINITION_DIFFERENT"}
        desk.sections[0] = good
        desk.write()
        until(lambda: desk.applied("accounts"))
        assert desk.has_logged("RELOADED")
        assert desk.table() == desk.truth()
        desk.is_well()
    assert desk.error is None
