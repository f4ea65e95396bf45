"""Incidents of one table: it stops alone, and ingest and the other table go on (RUN-3)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from connector import warehouse as paths
from tests.incidents.desk import Desk, section, until
from tests.spark.streams import account, versions


def path_of(desk: Desk, name: str) -> str:
    return paths.table(str(desk.warehouse), name)


def test_delete_by_hand(desk: Desk) -> None:
    """docs/howto/on-call.md#lowmarktablestopped"""
    desk.publish(account("a", 1, name="Ada"), account("b", 2, name="Bob"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.note()
        assert desk.alerts() == set()
        desk.spark.sql(f"DELETE FROM delta.`{path_of(desk, 'accounts')}` WHERE id = 'a'")
        desk.publish(account("c", 3, name="Cid"))
        until(lambda: desk.stopped() == {"accounts": "COMMIT_FOREIGN"})
        until(lambda: desk.applied("copies"))
        until(lambda: desk.alerts() == {"LowmarkTableStopped"})
        assert "The newest commit of" in desk.status()
        assert desk.does("connector table rebuild accounts") == 0
        until(lambda: "TABLE_GOES_ON" in desk.log())
        until(lambda: desk.applied("accounts"))
        assert desk.table() == desk.truth()
    assert desk.error is None


def test_optimize_by_hand(desk: Desk) -> None:
    """docs/howto/on-call.md#a-commit-of-another-program"""
    desk.publish(account("a", 1, name="Ada"), account("b", 2, name="Bob"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.publish(account("c", 3, name="Cid"))
        until(lambda: desk.applied("accounts", "copies"))
        desk.note()
        desk.spark.sql(f"OPTIMIZE delta.`{path_of(desk, 'accounts')}`")
        assert "1 commit of other programs changed no row: OPTIMIZE" in desk.status()
        assert desk.alerts() == set()
        desk.publish(account("d", 4, name="Dan"))
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == desk.truth()
        assert desk.stopped() == {}
    assert desk.error is None


def test_restore_by_hand(desk: Desk) -> None:
    """docs/howto/on-call.md#a-commit-of-another-program"""
    desk.publish(account("a", 1, name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        path = path_of(desk, "accounts")
        first = versions(desk.spark, path)
        desk.publish(account("a", 2, name="Anna"), account("b", 2, name="Bob"))
        until(lambda: desk.applied("accounts", "copies"))
        desk.note()
        desk.spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {first}")
        assert not desk.applied("accounts")
        desk.publish(account("c", 3, name="Cid"))
        until(lambda: desk.applied("copies"))
        until(lambda: desk.stopped() == {"accounts": "CONCURRENT_WRITE"})
        assert "TABLE_STOPPED table accounts" in desk.status()
        until(lambda: desk.alerts() == {"LowmarkTableStopped"})
    assert desk.does("connector table rebuild accounts") == 0
    with desk.running():
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
        desk.note()
        desk.publish(*(account(f"n{n}", n + 10, amount=str(n)) for n in range(8)))
        desk.publish(account("half", 20, amount="1.5"))
        until(lambda: desk.applied("accounts", "copies"))
        until(lambda: "1 open" in desk.status())
        until(lambda: desk.alerts() == {"LowmarkDeadLetters", "LowmarkTableLettersRatio"})
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
    assert desk.error is None
    del desk.sections[0]
    assert desk.does("connector table drop accounts") == 0


def test_a_dropped_table(desk: Desk) -> None:
    """docs/howto/on-call.md#lowmarktablestopped"""
    desk.publish(account("a", 1, name="Ada"), account("b", 2, name="Bob"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.note()
        shutil.rmtree(Path(path_of(desk, "accounts")).parent)
        desk.publish(account("c", 3, name="Cid"))
        until(lambda: desk.applied("copies"))
        until(lambda: desk.applied("accounts"))
        assert desk.table() == desk.truth()
        until(lambda: desk.alerts() == set())
    assert desk.error is None


def test_a_renamed_source_table(desk: Desk) -> None:
    """docs/howto/on-call.md#a-source-table-with-another-name"""
    desk.publish(account("a", 1, name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.note()
        desk.publish(replace(account("b", 2, name="Bob"), table="clients"))
        until(lambda: desk.applied("accounts", "copies"))
        assert "without a table definition (of late: clients)" in desk.status()
        assert desk.alerts() == set()
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
    good = desk.sections[0]
    desk.sections[0] = good.replace('name = "id", type = "STRING"', 'name = "id", type = "BYTES"')
    desk.publish(account("b", 2, name="Bob"))
    with desk.running():
        until(lambda: desk.stopped() == {"accounts": "TABLE_DEFINITION_DIFFERENT"})
        until(lambda: desk.applied("copies"))
        desk.note()
        until(lambda: desk.alerts() == {"LowmarkTableStopped"})
    assert desk.error is not None
    assert desk.error.code == "TABLE_DEFINITION_DIFFERENT"
    desk.sections[0] = good
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == desk.truth()
    assert desk.error is None
