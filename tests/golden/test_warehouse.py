"""A warehouse that an earlier version wrote is read without a JVM (TBL-22, OPS-5).

`warehouse` was written by `make_warehouse`. tests/spark/test_golden_warehouse.py goes on with it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from connector import warehouse as places
from connector.lake.audit import open_logged
from connector.lake.changelog_changes import changes_of
from connector.lake.jobs import History
from connector.lake.overrides import Overrides
from connector.lake.plain_table import open_table
from connector.lake.state_reader import progress_of, table_state_of
from connector.state.overrides import ClosePartition
from tests.golden.make_warehouse import EXPECTED, FOLDER, as_json

WAREHOUSE = str(FOLDER)


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
