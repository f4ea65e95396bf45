"""A small apply copies the rows of small files into its new file, exactly (TBL-15, ENG-8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from connector.lake import small_apply
from connector.lake.small_apply import merge_few
from connector.lake.small_files import plain, read_vector
from connector.lake.stores import files_at
from connector.state import apply_level as limits
from connector.state import maintenance_schedule as schedule
from connector.tables.column_names import STATE
from tests.examples import tries
from tests.property.histories import COLUMNS, batches
from tests.property.test_small_apply_laws import GONE, ROWS, TABLES, Disk, cell, commit, several

MANY_ROWS = (*ROWS, *(b"row %d" % number for number in range(20)))


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes applies fold so many files, of any size."""

    def force(files: int) -> None:
        monkeypatch.setattr(schedule, "FOLD_FILES", files)
        monkeypatch.setattr(schedule, "FOLD_SHARE", 0)
        monkeypatch.setattr(small_apply, "ATTEMPTS", files)

    return force


def contents(disk: Disk) -> dict[Any, dict[str, Any]]:
    """All live rows of the files, with their state, by key."""
    files, rows = files_at(str(disk.folder / "table")), dict[Any, dict[str, Any]]()
    for action in disk.rows.values():
        add = json.loads(action)["add"]
        vector = add.get("deletionVector")
        gone = read_vector(files, vector) if vector else ()
        table = parquet.read_table(disk.folder / "table" / add["path"], partitioning=None)
        assert len(table) == json.loads(add["stats"])["numRecords"]
        columns = {name: plain(table[name]).to_pylist() for name in table.column_names}
        for number, values in enumerate(zip(*columns.values(), strict=True)):
            if number not in gone:
                row = dict(zip(columns, values, strict=True))
                bucket = add["partitionValues"]["_bucket"]
                absent = {column.name: None for column in COLUMNS}
                assert rows.setdefault(row["id"], {**absent, **row, "_bucket": bucket})["id"]
                assert rows[row["id"]][STATE] == row[STATE], "a key occurs twice"
    return rows


def deletes(disk: Disk) -> set[tuple[Any, ...]]:
    """The tombstones that count (TBL-12): keys, buckets, states, and the applies they are of."""
    before, rows = disk.before, set[tuple[Any, ...]]()
    for name in disk.tombstones:
        table = parquet.read_table(disk.folder / "tombstones" / name)
        columns = {name: plain(table[name]).to_pylist() for name in sorted(table.column_names)}
        for row in zip(*columns.values(), strict=True):
            of_row = dict(zip(columns, row, strict=True))
            apply, attempt = of_row["_apply_number"], of_row.pop("_attempt_id")
            if apply <= before.vacuumed_to or before.attempt_ids.get(apply) == attempt:
                rows.add(tuple(map(repr, of_row.values())))
    return rows


def test_folds_change_no_row_and_no_state(
    tmp_path: Path, seed: int, forced: Callable[[int], None]
) -> None:
    """nothing_lost, nothing_invented, deletes_stay_deleted: rows, states and tombstones are those
    of a table without folds, also if a column was added, or an apply crashed. Few files are left,
    and few attempts are named. A tombstone of an apply that crashed never counts.
    """
    rng, folds, of_tombstones, vacuums = Random(seed), 0, 0, 0
    for number in tries(30, quick=4):
        table = replace(rng.choice(TABLES[:-1]), columns=COLUMNS[:2])
        with_folds, without = (
            Disk(tmp_path / f"{number} {name}", table) for name in ("with", "without")
        )
        deliveries = list(chain(*several(rng, 3, changes=9, rows=MANY_ROWS)))
        drawn = list(batches(rng, deliveries))
        added_at, most = rng.randrange(len(drawn)), (1, 2, 4)[number % 3]
        for at, batch in enumerate(drawn):
            for disk in (with_folds, without):
                if at == added_at:
                    disk.definition = replace(table, columns=COLUMNS)
                forced(most if disk is with_folds else 10_000)
                if rng.random() < 0.1:
                    disk.apply(batch, crashes=True)
                    disk.apply()
                else:
                    disk.apply(batch)
            assert contents(with_folds).keys() == contents(without).keys()
            assert deletes(with_folds) == deletes(without)
        assert contents(with_folds) == contents(without)
        # An apply folds the files of one bucket, and then adds one file.
        assert len(with_folds.rows) <= len(without.rows)
        folds += len(without.rows) - len(with_folds.rows)
        of_tombstones += len(without.tombstones) - len(with_folds.tombstones)
        vacuums += with_folds.before.vacuumed_to > 0
        assert without.before.vacuumed_to == 0
    assert folds > 0
    assert of_tombstones > 0
    assert vacuums > 0


def filled(folder: Path, files: int, *, bytes_of_value: int = 8) -> Disk:
    """A table with so many files of one row, in one bucket."""
    disk = Disk(folder, replace(TABLES[0], buckets=1))
    for at in range(1, files + 1):
        disk.apply([of_row(b"%d" % at, at, Random(at).randbytes(bytes_of_value))])
    assert len(disk.rows) == files
    return disk


def of_row(row_key: bytes, at: int, value: bytes = b"new", *, is_gone: bool = False) -> Any:
    one = cell(value, at, at, *GONE * is_gone)
    return replace(one, change=replace(one.change, row_key=row_key))


def with_another_column(table: pa.Table) -> pa.Table:
    return table.append_column("dropped", pa.array(["kept"] * len(table)))


def with_another_type(table: pa.Table) -> pa.Table:
    at = table.column_names.index(STATE)
    state = table[STATE].combine_chunks()
    names = [field.name for field in state.type][:-1]
    parts = [state.field(name) for name in names]
    return table.set_column(at, STATE, pa.StructArray.from_arrays(parts, names))


def of_another_calendar(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""})


@pytest.mark.parametrize(
    "changed",
    [with_another_column, with_another_type, of_another_calendar, None],
    ids=lambda one: getattr(one, "__name__", "absent"),
)
def test_a_file_that_cannot_be_copied_exactly_stays(
    tmp_path: Path,
    forced: Callable[[int], None],
    changed: Callable[[pa.Table], pa.Table] | None,
) -> None:
    """nothing_lost: no apply fails, or is left to Spark, because of it. The others are folded."""
    forced(1_000)
    disk = filled(tmp_path / "disk", 6)
    odd = sorted(disk.rows)[2]
    file = tmp_path / "disk" / "table" / odd
    if changed is None:
        file.unlink()
    else:
        parquet.write_table(changed(parquet.read_table(file, partitioning=None)), file)
    before = file.read_bytes() if changed else b""
    forced(3)
    folded = list[int]()
    for at in (11, 12):
        disk.log([of_row(b"new %d" % at, at)])
        merged = merge_few(disk.task())
        assert merged is not None
        folded.append(merged.folded)
        commit(disk.rows, merged.table)
        disk.before = replace(disk.before, complete_to_batch=disk.batch, to_batch=disk.batch)
    assert odd in disk.rows
    if changed is None:
        assert folded == [0, 0]  # it may be there next time
        return
    assert folded == [0, 6]
    assert file.read_bytes() == before
    assert len(disk.rows) == 2


def test_files_that_are_large_in_memory_are_not_folded(
    tmp_path: Path, forced: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCL-1: one fewer each time, until they fit. The apply is not left to Spark."""
    forced(1_000)
    disk = filled(tmp_path / "disk", 12, bytes_of_value=2_000)
    forced(7)
    monkeypatch.setattr(limits, "MAX_IN_MEMORY", 80_000)
    folded = list[int]()
    while not any(folded):
        disk.log([of_row(b"new", 20 + len(folded))])
        merged = merge_few(disk.task())
        assert merged is not None
        folded.append(merged.folded)
    # A look at too many files takes one of them out.
    assert 1 < len(folded) < 6
    assert folded[-1] == 12 - len(folded) + 1


def test_an_apply_folds_one_bucket_and_needs_changes(
    tmp_path: Path, forced: Callable[[int], None]
) -> None:
    """ENG-8: not because it looked at the table."""
    forced(3)
    disk = filled(tmp_path / "disk", 3)
    task = disk.task()
    merged = merge_few(task)
    assert merged is not None
    assert (merged.folded, merged.table) == (0, ())
    disk.log([of_row(b"1", 9)])
    merged = merge_few(disk.task())
    assert merged is not None
    kinds = [next(iter(json.loads(action))) for action in merged.table]
    assert (merged.folded, kinds) == (3, ["remove"] * 3 + ["add"])


def test_files_that_applies_wrote_are_not_read_for_other_keys(tmp_path: Path) -> None:
    """ENG-8: the keys of the rows and of the tombstones are kept when they are written."""
    disk = filled(tmp_path / "disk", 2)
    disk.apply([of_row(b"2", 8, is_gone=True)])
    written = [f"table/{name}" for name in disk.rows] + [f"tombstones/{n}" for n in disk.tombstones]
    assert len(written) == 2
    for name in written:
        (disk.folder / name).unlink()
    disk.log([of_row(b"3", 9)])
    assert merge_few(disk.task()) is not None


@pytest.mark.parametrize(
    ("limit", "value", "crashes", "is_odd", "all_count"),
    [
        pytest.param("ATTEMPTS", 1, False, False, True, id="all count"),
        pytest.param("ATTEMPTS", 2, False, False, False, id="few attempts"),
        pytest.param("ATTEMPTS", 1, True, False, False, id="one crashed"),
        pytest.param("ATTEMPTS", 1, False, True, False, id="a file that is left to Spark"),
        pytest.param("_MOST_ATTEMPTS", 1, False, False, False, id="more than are looked at"),
    ],
)
def test_attempts_have_names_unless_all_tombstones_are_known_to_count(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    crashes: bool,
    is_odd: bool,
    all_count: bool,
) -> None:
    """TBL-12, deletes_stay_deleted: without names, a tombstone of a crashed attempt would count."""
    monkeypatch.setattr(small_apply, "ATTEMPTS", 1)
    monkeypatch.setattr(small_apply, limit, value)
    disk = Disk(tmp_path / "disk", TABLES[0])
    disk.log([of_row(b"1", 5, is_gone=True)])
    for crashed in (True, False) if crashes else (False,):
        disk.apply(crashes=crashed)
    if is_odd:
        (name,) = disk.tombstones
        file = disk.folder / "tombstones" / name
        parquet.write_table(of_another_calendar(parquet.read_table(file)), file)
    disk.log([of_row(b"2", 9)])
    merged = merge_few(disk.task())
    assert merged is not None
    assert merged.all_count is all_count
