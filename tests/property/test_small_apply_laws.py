"""Few changes are merged without Spark as `connector.tables.merge` defines it (TBL-13).

The files are real ones. Their commits are lists of actions, as Delta's log has them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from connector.lake import small_apply
from connector.lake.deletion_vectors import read_vector
from connector.lake.small_apply import merge_few
from connector.lake.stores import files_at
from connector.records.model import DeleteCells, DeleteFamily, Entry, SetCell
from connector.records.ordering import OrderBy
from connector.state.small_apply import SmallApply
from connector.state.table_state import TableState
from connector.tables.column_names import STATE
from connector.tables.definition import TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.merge import EMPTY, RowState, join, lift, visible
from connector.tables.row import row_of
from connector.tables.values import DataType
from tests.property.histories import COLUMNS, Delivery, batches, history

TABLE = TableDefinition(
    name="t",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.BYTES),)),
    columns=COLUMNS,
    buckets=2,
)
TABLES = [
    replace(TABLE, order=order, keep_unmapped=keeps) for order in OrderBy for keeps in (True, False)
]


@dataclass
class Disk:
    """A table and its tombstone table in a folder, with the files that commits have added."""

    folder: Path
    definition: TableDefinition
    before: TableState = field(default_factory=TableState)
    batch: int = 0
    rows: dict[str, str] = field(default_factory=dict)
    tombstones: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("changelog", "table", "tombstones"):
            (self.folder / name).mkdir(parents=True)

    def apply(self, deliveries: Sequence[Delivery], *, crashes: bool = False) -> None:
        """Log the deliveries as one batch and merge them. `crashes`: nothing is committed."""
        self.batch += 1
        path = f"{self.batch}.parquet"
        parquet.write_table(logged(deliveries, self.batch), self.folder / "changelog" / path)
        task = SmallApply(
            definition=self.definition,
            buckets=self.definition.buckets,
            before=self.before,
            below=None,
            horizon=None,
            changelog=str(self.folder / "changelog"),
            changes=(json.dumps({"add": {"path": path, "size": 1}}),),
            table=str(self.folder / "table"),
            rows=tuple(self.rows.values()),
            tombstones=str(self.folder / "tombstones"),
            removed=tuple(self.tombstones.values()),
            attempt_id=f"attempt {self.batch}",
        )
        merged = merge_few(task)
        assert merged is not None
        assert merged.changes == len(deliveries)
        commit(self.tombstones, merged.tombstones)
        if crashes:
            self.batch -= 1
            return
        commit(self.rows, merged.table)
        number = self.before.apply_number + 1
        self.before = replace(
            self.before,
            apply_number=number,
            complete_to_batch=self.batch,
            to_batch=self.batch,
            highest_applied=max(self.before.highest_applied, merged.highest),
            has_residual=self.before.has_residual or merged.has_residual,
            attempt_ids={**self.before.attempt_ids, number: task.attempt_id},
        )

    def shown(self) -> dict[bytes, dict[str, Any]]:
        """The rows of the table by key, in the form of `row_of`."""
        files, found = files_at(str(self.folder / "table")), {}
        for action in self.rows.values():
            add = json.loads(action)["add"]
            vector = add.get("deletionVector")
            gone = read_vector(files, vector) if vector else ()
            table = parquet.read_table(self.folder / "table" / add["path"], partitioning=None)
            for number, row in enumerate(table.drop_columns([STATE]).to_pylist()):
                if number not in gone:
                    assert row["id"] not in found, "a key stands twice"
                    unmapped = dict(row["_unmapped"] or {})
                    kept = unmapped if self.definition.keep_unmapped else None
                    found[row["id"]] = {**row, "_unmapped": kept}
        return found


def commit(files: dict[str, str], actions: Iterable[str]) -> None:
    for action in actions:
        ((kind, content),) = json.loads(action).items()
        if kind == "remove":
            del files[content["path"]]
        else:
            assert content["path"] not in files
            files[content["path"]] = action


def logged(deliveries: Sequence[Delivery], batch: int) -> pa.Table:
    """The deliveries as the changelog has them."""
    changes = [one.change for one in deliveries]
    columns = {
        "table": [change.table for change in changes],
        "row_key": [change.row_key for change in changes],
        "commit_timestamp": pa.array(
            [change.commit_timestamp for change in changes], pa.timestamp("us", "UTC")
        ),
        "tie_breaker": [change.tie_breaker for change in changes],
        "transaction": [
            change.transaction
            and {
                "server_transaction_id": change.transaction.server_transaction_id,
                "record_sequence": change.transaction.record_sequence,
            }
            for change in changes
        ],
        "change_sequence_number": [change.change_sequence_number for change in changes],
        "entries": pa.array([[stored(e) for e in change.entries] for change in changes], ENTRIES),
        "order_position": [one.position._asdict() for one in deliveries],
        "stream_partition": [change.stream_partition for change in changes],
        "change_type": [str(change.change_type) for change in changes],
        "source_cluster_id": [change.source_cluster_id for change in changes],
        "ingest_batch": [batch] * len(changes),
        "kind": ["change"] * len(changes),
    }
    return pa.table(columns)


ENTRIES = pa.list_(
    pa.struct(
        [
            ("kind", pa.string()),
            ("family", pa.string()),
            ("qualifier", pa.binary()),
            ("cell_timestamp", pa.int64()),
            ("range_start", pa.int64()),
            ("range_end", pa.int64()),
            ("value", pa.binary()),
        ]
    )
)


def stored(entry: Entry) -> dict[str, object]:
    match entry:
        case SetCell():
            others = {"kind": "SET_CELL", "value": entry.value}
            others["cell_timestamp"] = entry.cell_timestamp
        case DeleteCells():
            others = {"kind": "DELETE_CELLS", "range_start": entry.range_start}
            others["range_end"] = entry.range_end
        case DeleteFamily():
            return {"kind": "DELETE_FAMILY", "family": entry.family}
    return {**others, "family": entry.family, "qualifier": entry.qualifier}


def truth(table: TableDefinition, deliveries: Iterable[Delivery]) -> dict[bytes, dict[str, Any]]:
    states: dict[bytes, list[RowState]] = {}
    for one in deliveries:
        state = lift(one.change, one.position, table.order, table.versions)
        states.setdefault(one.change.row_key, []).append(state)
    rows = {
        key: row_of(table, key, visible(reduce(join, known, EMPTY)))
        for key, known in states.items()
    }
    return {key: row for key, row in rows.items() if row is not None}


@pytest.mark.parametrize("table", TABLES, ids=lambda one: f"{one.order}, {one.keep_unmapped}")
def test_newest_wins_whatever_the_batches(
    tmp_path: Path, seed: int, table: TableDefinition
) -> None:
    """newest_wins, deletes_stay_deleted, nothing_invented, resumable: late and repeated changes in
    any batches, some of which crash before their commit and are merged again.
    """
    rng = Random(f"{seed}/{table.order}/{table.keep_unmapped}")
    for number in range(6):
        rows = [b"%d.%d" % (number, n) for n in range(4)]
        deliveries = [one for _ in range(3) for one in history(rng, changes=9, rows=rows)]
        disk = Disk(tmp_path / str(number), table)
        for batch in batches(rng, deliveries):
            if rng.random() < 0.2:
                disk.apply(batch, crashes=True)
            disk.apply(batch)
        assert disk.shown() == truth(table, deliveries)
        shutil.rmtree(disk.folder)


def test_a_merge_that_forgets_old_rows_is_noticed(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law above can fail."""
    monkeypatch.setattr(small_apply, "join", lambda one, other: one)
    rng, failed = Random(seed), 0
    for number in range(8):
        deliveries = [d for _ in range(2) for d in history(rng, changes=9, rows=(b"a", b"b"))]
        disk = Disk(tmp_path / str(number), TABLE)
        for one in deliveries:
            disk.apply([one])
        failed += disk.shown() != truth(TABLE, deliveries)
    assert failed


def test_a_change_that_does_not_fit_is_left_to_spark(tmp_path: Path) -> None:
    """TBL-9: it becomes a dead letter there."""
    column = replace(COLUMNS[0], type=DataType.INT64)
    disk = Disk(tmp_path / "disk", replace(TABLE, columns=(column,)))
    (first, *_) = history(Random(1), rows=(b"a",))
    entry = SetCell(column.family, column.qualifier, b"much", 1)
    with pytest.raises(AssertionError, match="None"):
        disk.apply([replace(first, change=replace(first.change, entries=(entry,)))])
    assert not any((tmp_path / "disk" / "table").iterdir())
