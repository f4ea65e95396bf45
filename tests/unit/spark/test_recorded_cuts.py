"""The cuts that a pipeline records (TBL-17). It needs no session."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from connector.spark.open_tables import NO_PORTS, OpenTables
from connector.spark.pipeline import Pipeline
from connector.state.jobs import CutRecord


class _Table:
    """A table in a version of the apply "a". `meanwhile` happens while it is looked at."""

    def __init__(self, version: int, meanwhile: Any = lambda: None) -> None:
        self._version, self._meanwhile = version, meanwhile

    def newest(self) -> tuple[int, Any]:
        self._meanwhile()
        return self._version, SimpleNamespace(merged=5, attempt_id="a")


def pipeline(recorded: CutRecord, added: list[CutRecord], meanwhile: Any) -> Any:
    made: Any = object.__new__(Pipeline)
    table: Any = _Table(8, meanwhile)
    made._config = SimpleNamespace(tables={"t": SimpleNamespace(stream="s")})
    made._tables = OpenTables(["t"], lambda name: None, lambda name: table, NO_PORTS)
    made._ports = {"s": SimpleNamespace(now=lambda: 100)}
    made._job_log = SimpleNamespace(add_cut=added.append)
    made._recording, made._cuts, made._reached = threading.Lock(), {"s": recorded}, {}
    return made


OLD = CutRecord("s", 10, 3, 0, 5, recorded_at=1, versions={"t": 7}, attempts={"t": "a"})
NEWER = CutRecord("s", 20, 4, 0, 6, recorded_at=2, versions={"t": 9}, attempts={"t": "b"})


def test_a_cut_is_recorded_again_in_todays_version() -> None:
    added: list[CutRecord] = []
    pipeline(OLD, added, lambda: None)._record_again("s")
    assert [(one.low_watermark, one.versions) for one in added] == [(10, {"t": 8})]


def test_an_older_cut_is_not_recorded_after_a_newer_one() -> None:
    """TBL-17: maintenance looks at the tables in a thread of its own, while rounds end. With the
    older cut as the newest record, snapshots would go back in time.
    """
    added: list[CutRecord] = []
    made = pipeline(OLD, added, lambda: made._cuts.update(s=NEWER))
    made._record_again("s")
    assert not added
    assert made._cuts["s"] is NEWER


def test_a_cut_is_the_newest_one_also_if_the_clock_went_back() -> None:
    """TBL-17: otherwise snapshots would show the older one until it expires."""
    added: list[CutRecord] = []
    ahead = replace(OLD, recorded_at=10**15)
    made = pipeline(ahead, added, lambda: None)
    made._record_again("s")
    made._reached, made._recorded_at = {"s": NEWER}, {"s": 0.0}
    made._record_reached(at_once=True)
    assert [one.low_watermark for one in added] == [10, 20]
    assert ahead.recorded_at < added[0].recorded_at < added[1].recorded_at
