"""A warehouse that an earlier version wrote is read without a JVM (TBL-22, OPS-5).

`warehouse` was written by `make_warehouse`. tests/spark/test_golden_warehouse.py goes on with it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from connector import warehouse as places
from connector.lake.audit import open_logged
from connector.lake.changelog_changes import changes_of, has_changes
from connector.lake.jobs import History
from connector.lake.overrides import Overrides
from connector.lake.plain_table import open_table
from connector.lake.row_states import RowStates
from connector.lake.state_reader import progress_of, table_state_of
from connector.state.overrides import ClosePartition
from connector.tables.merge import visible
from connector.tables.row import row_of
from tests.golden.make_warehouse import EXPECTED, FOLDER, TABLE, as_json

WAREHOUSE = str(FOLDER)
KEYS = [bytes([letter]) for letter in b"abcdefghi"]


def test_the_rows_are_read() -> None:
    found = open_table(places.table(WAREHOUSE, "accounts"))
    rows = (dict(zip(found.types, row, strict=True)) for row in found.rows())
    by_key = {row["id"]: row | {"_unmapped": dict(row["_unmapped"] or {})} for row in rows}
    assert as_json(by_key) == json.loads(EXPECTED.read_text())["applied"]


def test_the_state_of_stream_and_table_is_read() -> None:
    """WMK-4, TBL-10."""
    progress = progress_of(WAREHOUSE, "s", with_frontier=True)
    assert (progress.ingest_batch, progress.low_watermark) == (3, 61)
    state = table_state_of(WAREHOUSE, "s", "accounts")
    assert (state.to_batch, state.is_consistent_cut) == (2, True)


def test_the_changes_of_a_row_have_their_headers(tmp_path: Path) -> None:
    """SUB-6: a header without a value, and records without headers."""
    path = places.changelog(WAREHOUSE, "s")
    (found,) = changes_of(open_table(path), "t", b"i")
    assert found.headers == (("trace", b"\x00\xff"), ("empty", None))
    rows = DeltaTable(path).to_pyarrow_table(filters=[("row_key", "=", b"i")])
    at = rows.schema.get_field_index("headers")
    without = rows.set_column(at, rows.schema.field(at), pa.nulls(1, rows.schema.field(at).type))
    write_deltalake(str(tmp_path), without)
    (bare,) = changes_of(open_table(str(tmp_path)), "t", b"i")
    assert (bare.change, bare.headers) == (found.change, ())


@pytest.mark.parametrize("which", ["applied", "merged"])
def test_the_states_of_rows_are_read(which: str) -> None:
    """SUB-6, DLQ-9: as the last apply left them, and with what was ingested since."""
    states = RowStates(WAREHOUSE, TABLE)
    found = states.applied(KEYS) if which == "applied" else states.states_of(KEYS)
    rows = {key.decode(): row_of(TABLE, key, visible(state)) for key, state in found.items()}
    by_key: dict[object, Any] = {key: row for key, row in rows.items() if row is not None}
    assert as_json(by_key) == json.loads(EXPECTED.read_text())[which]


@pytest.mark.parametrize(
    ("source", "after", "to", "expected"),
    [("t", 2, 3, True), ("t", 0, 1, True), ("t", 3, 9, False), ("u", 0, 3, False)],
)
def test_a_read_learns_whether_batches_change_its_table(
    source: str, after: int, to: int, expected: bool
) -> None:
    """TBL-16: a table has all batches that do not change it."""
    assert has_changes(WAREHOUSE, replace(TABLE, source=source), after=after, to=to) is expected


def test_a_truncation_that_is_not_applied_counts(tmp_path: Path) -> None:
    """EVO-13, TBL-16."""
    warehouse = str(copytree(FOLDER, tmp_path / "warehouse"))
    path = places.changelog(warehouse, "s")
    row = DeltaTable(path).to_pyarrow_table(filters=[("slot", "=", places.CONTROL_SLOT)])[:1]
    values = {"kind": "truncate", "table": "t", "ingest_batch": 4, "tie_breaker": 0}
    for name, value in {**values, "commit_timestamp": 1_000}.items():
        index = row.schema.get_field_index(name)
        row = row.set_column(index, row.schema.field(index), pa.array([value], row[name].type))
    stored = dict(open_table(path).stored) | {"ingest_batch": 4}
    of_source = {"t": {"rank": [1_000, 0, 0], "batch": 4}}
    stored["progress"] = stored["progress"] | {"truncations": {"tables": of_source}}
    said = CommitProperties({"userMetadata": json.dumps({"lowmark": stored})})
    write_deltalake(path, row, mode="append", commit_properties=said)
    states = RowStates(warehouse, TABLE)
    assert states.truncated == (1_000, 0, 0)
    assert not any(visible(state) for state in states.states_of(KEYS).values())
    assert any(visible(state) for state in states.applied(KEYS).values())
    assert has_changes(warehouse, TABLE, after=3, to=4)
    assert not has_changes(warehouse, TABLE, after=3, to=3)
    assert not has_changes(warehouse, TABLE, after=4, to=9)


def test_the_offsets_and_the_rejected_record_are_read() -> None:
    """nothing_lost, TBL-6."""
    logged = open_logged(WAREHOUSE, "s")
    assert logged is not None
    read = json.loads(EXPECTED.read_text())["read"]
    found = {
        (number, offset)
        for step in logged.steps()
        for number, runs in step.items()
        for run in runs
        for offset in range(run.start, run.stop)
    }
    assert found == {(int(number), place) for number, end in read.items() for place in range(end)}
    assert [id_ for id_, _ in logged.rejected(0)] == ["id-1-0-5"]


def test_jobs_cuts_and_overrides_are_read() -> None:
    """JOB-1, TBL-17, TBL-20, WMK-8."""
    history, overrides = History(WAREHOUSE), Overrides(WAREHOUSE)
    (job,) = history.jobs("accounts")
    assert (job.kind, job.from_batch, job.to_batch, job.watermark_after) == ("apply", 1, 2, 61)
    cut = history.newest_cut("s")
    assert cut is not None
    assert (cut.low_watermark, cut.versions) == (61, {"accounts": 2})
    assert overrides.bounds() == {"accounts": 60}
    assert overrides.paces() == {"accounts": 20}
    assert [
        closed.stream_partition for closed in overrides.requests(ClosePartition, "s", above=0)
    ] == ["p"]
