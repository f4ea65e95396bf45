"""The cuts that a pipeline records (TBL-17). They need no session."""

from __future__ import annotations

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


def cuts(recorded: CutRecord, added: list[CutRecord], meanwhile: Any) -> Cuts:
    table: Any = _Table(8, meanwhile)
    retention = SimpleNamespace(snapshot_s=3600)
    config: Any = SimpleNamespace(
        streams={"s": SimpleNamespace(retention=retention)}, tables_of=lambda stream: ["t"]
    )
    job_log: Any = SimpleNamespace(
        newest_cut=lambda stream: recorded, add_cut=added.append, forget_cuts=lambda *_: None
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
