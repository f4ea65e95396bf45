"""Rows of small batches move into the slots of the changelog without Spark (TBL-15, ENG-10)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet

from connector.engine.schema import CHANGELOG
from connector.lake.changelog_folds import fold_batches
from connector.lake.small_files import write_rows
from connector.warehouse import CONTROL_SLOT, MIXED_SLOT, REJECTED_SLOT, STAGED_SLOT, table_slot
from tests.examples import tries

TABLES = ("accounts", "orders", "é", "")
KINDS = ("change", "change", "control", "truncate", "rejected", "staged", "expired", "erased")


def rows_of(rng: Random, batch: int, kinds: Sequence[str] = KINDS) -> list[dict[str, Any]]:
    rows = []
    for offset in range(rng.randrange(1, 8)):
        kind = rng.choice(kinds)
        has_source = kind not in ("control", "rejected") and (
            kind != "erased" or rng.random() < 0.7
        )
        source = rng.choice(TABLES) if has_source else None
        row = {"kind": kind, "table": source, "ingest_batch": batch, "offset": 10 * batch + offset}
        row |= {"_hash": rng.choice((None, -5, 7)), "value": rng.randbytes(4)}
        is_staged = kind in ("staged", "expired") or (kind == "erased" and rng.random() < 0.5)
        row |= {"write_stream": {"stream": "w", "offset": 1} if is_staged else None}
        row |= {"commit_timestamp": rng.choice((None, 10**12)), "kafka_partition": 0}
        rows.append(row)
    return rows


def slot_of(row: dict[str, Any]) -> int:
    if row["kind"] in ("control", "truncate"):
        return CONTROL_SLOT
    if row["table"] is None:
        return REJECTED_SLOT
    is_uncommitted = row["write_stream"] is not None and row["commit_timestamp"] is None
    if row["kind"] in ("staged", "expired") or (row["kind"] == "erased" and is_uncommitted):
        return STAGED_SLOT
    return table_slot(row["table"])


def written(folder: Path, batches: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    tables = (pa.Table.from_pylist(list(rows), CHANGELOG) for rows in batches)
    return [write_rows(str(folder), table, MIXED_SLOT) for table in tables]


def file_rows(folder: Path, add: dict[str, Any]) -> pa.Table:
    return parquet.read_table(folder / unquote(add["path"]), partitioning=None)


def test_each_row_is_once_in_its_slot(tmp_path: Path, seed: int) -> None:
    """nothing_lost, nothing_invented: every column of every row, in files without a change of data.
    The old files go.
    """
    rng = Random(seed)
    for number in tries(100, quick=10):
        folder = tmp_path / str(number)
        batches = [rows_of(rng, batch) for batch in range(rng.randrange(1, 6))]
        old = written(folder, batches)
        actions = fold_batches(str(folder), old)
        assert actions is not None
        parsed = [json.loads(action) for action in actions]
        gone = [one["remove"] for one in parsed if "remove" in one]
        adds = [one["add"] for one in parsed if "add" in one]
        assert [one["path"] for one in gone] == [json.loads(one)["add"]["path"] for one in old]
        assert not any(one["dataChange"] for one in (*gone, *adds))
        sent = pa.Table.from_pylist([row for rows in batches for row in rows], CHANGELOG)
        found = pa.concat_tables([file_rows(folder, add) for add in adds])
        assert found.sort_by("offset").to_pylist() == sent.to_pylist()
        for add in adds:
            rows = file_rows(folder, add).to_pylist()
            assert {slot_of(row) for row in rows} == {int(add["partitionValues"]["slot"])}
            assert json.loads(add["stats"])["numRecords"] == len(rows)
        assert len({add["partitionValues"]["slot"] for add in adds}) == len(adds)


def test_a_file_of_an_older_release_is_left_to_spark(tmp_path: Path) -> None:
    """TBL-15: it lacks a column."""
    old = written(tmp_path, [rows_of(Random(1), 1)])
    path = tmp_path / json.loads(old[0])["add"]["path"]
    parquet.write_table(parquet.read_table(path, partitioning=None).drop_columns(["_hash"]), path)
    assert fold_batches(str(tmp_path), old) is None
