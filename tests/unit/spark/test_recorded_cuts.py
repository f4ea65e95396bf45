"""The cuts that a pipeline records (TBL-17). They need no session."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from connector.spark.cuts import Cuts
from connector.spark.open_tables import NO_PORTS, OpenTables
from connector.state.jobs import CutRecord


class _Table:
    """A table in a version of the apply "a". `meanwhile` happens while it is looked at."""

    def __init__(self, version: int, meanwhile: Any = lambda: None) -> None:
        self._version, self._meanwhile = version, meanwhile

    log = SimpleNamespace(version_at=lambda at: None)

    def newest(self) -> tuple[int, Any]:
        self._meanwhile()
        return self._version, SimpleNamespace(merged=5, attempt_id="a")

    def superseded_at(self, version: int) -> int | None:
        return None

    def keep(self, named: list[int], now: int) -> None:
        pass


def cuts(recorded: CutRecord, added: list[CutRecord], meanwhile: Any) -> Cuts:
    table: Any = _Table(8, meanwhile)
    retention = SimpleNamespace(snapshot_s=3600)
    config: Any = SimpleNamespace(
        streams={"s": SimpleNamespace(retention=retention)}, tables_of=lambda stream: ["t"]
    )
    job_log: Any = SimpleNamespace(
        newest_cut=lambda stream: recorded,
        add_cut=added.append,
        forget_cuts=lambda *_: None,
        cuts=lambda stream: [],
    )
    ports: Any = {"s": SimpleNamespace(now=lambda: 100)}
    tables = OpenTables(["t"], lambda name: None, lambda name: table, NO_PORTS)
    return Cuts(config, tables, job_log, ports)


OLD = CutRecord("s", 10, 3, 0, 5, recorded_at=1, versions={"t": 7}, attempts={"t": "a"})
NEWER = CutRecord("s", 20, 4, 0, 6, recorded_at=2, versions={"t": 9}, attempts={"t": "b"})


def test_a_cut_is_recorded_again_in_todays_version() -> None:
    added: list[CutRecord] = []
    cuts(OLD, added, lambda: None).forget_old("s", 100)
    assert [(one.low_watermark, one.versions) for one in added] == [(10, {"t": 8})]


def test_an_older_cut_is_not_recorded_after_a_newer_one() -> None:
    """TBL-17: maintenance looks at the tables in a thread of its own, while rounds end. With the
    older cut as the newest record, snapshots would go back in time.
    """
    added: list[CutRecord] = []
    made = cuts(OLD, added, lambda: made._newest.update(s=NEWER))
    made.forget_old("s", 100)
    assert not added
    assert made.newest("s") is NEWER


def test_a_cut_is_the_newest_one_also_if_the_clock_went_back() -> None:
    """TBL-17: otherwise snapshots would show the older one until it expires."""
    added: list[CutRecord] = []
    ahead = replace(OLD, recorded_at=10**15)
    made = cuts(ahead, added, lambda: None)
    made.forget_old("s", 100)
    made._reached = {"s": NEWER}
    made.record(at_once=True)
    assert [one.low_watermark for one in added] == [10, 20]
    assert ahead.recorded_at < added[0].recorded_at < added[1].recorded_at


def test_a_cut_of_a_table_that_was_made_again_is_recorded() -> None:
    """TBL-17: also one with the same rows and batch. The version of the newest record is gone."""
    again = replace(OLD, recorded_at=9, versions={"t": 2}, attempts={"t": "other"})
    assert again.follows(OLD) == again
    assert replace(again, attempts=OLD.attempts).follows(OLD) is None
