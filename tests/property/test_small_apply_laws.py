"""Few changes are merged without Spark as `connector.tables.merge` defines it (TBL-13).

The files are real ones. Their commits are lists of actions, as Delta's log has them.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import reduce
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from connector.errors import InvalidChangeError
from connector.lake.small_apply import merge_few
from connector.lake.small_files import KEYS, VECTORS, plain, read_vector
from connector.lake.stores import files_at
from connector.records.model import DataChange, DeleteCells, DeleteFamily, Entry, SetCell
from connector.records.ordering import (
    ChangeOrder,
    OrderBy,
    OrderPosition,
    change_order,
    rank_of,
)
from connector.state import apply_level as limits
from connector.state import maintenance_schedule
from connector.state.apply_level import MAX_BYTES, SmallApply, are_few_by_row, is_few
from connector.state.table_state import TableState
from connector.tables.column_names import STATE
from connector.tables.definition import OnUnreadable, TableDefinition
from connector.tables.keys import KEY_TYPES, Key, KeyPart
from connector.tables.merge import EMPTY, RowState, greatest, join, lift, visible
from connector.tables.row import RowReader, is_same_row, row_of
from connector.tables.stored_definition import ColumnIds
from connector.tables.stored_state import StateForm
from connector.tables.values import DataType, Encoding, read_value
from connector.warehouse import bucket_of
from tests.examples import tries
from tests.property.histories import (
    COLUMNS,
    MARK,
    Delivery,
    batches,
    history,
    plain_entries,
    truncations,
)
from tests.property.spellings import COLUMNS as TYPED
from tests.property.spellings import spelled, value_of

TABLE = TableDefinition(
    name="t",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.BYTES),)),
    columns=COLUMNS,
    buckets=2,
)
ROWS = (b"1", b"2", b"3", b"4")
TABLES = [
    replace(TABLE, order=order, keep_unmapped=keeps) for order in OrderBy for keeps in (True, False)
]
TABLES.append(replace(TABLE, columns=(), presence_family="f", keep_unmapped=False))


Wrong = Callable[[SmallApply], SmallApply]


@dataclass
class Disk:
    """A table and its tombstone table in a folder, with the files that commits have added.

    `wrong` changes the task of each merge, to show that a law can fail.
    """

    folder: Path
    definition: TableDefinition
    wrong: Wrong = field(default=lambda task: task)
    before: TableState = field(default_factory=TableState)
    batch: int = 0
    logged: dict[int, Sequence[Delivery]] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    tombstones: dict[str, str] = field(default_factory=dict)
    attempts: int = 0

    def __post_init__(self) -> None:
        for name in ("changelog", "table", "tombstones"):
            (self.folder / name).mkdir(parents=True)

    def log(self, deliveries: Sequence[Delivery]) -> None:
        """Log the deliveries as one batch."""
        self.batch += 1
        self.logged[self.batch] = deliveries
        file = self.folder / "changelog" / f"{self.batch}.parquet"
        parquet.write_table(logged(deliveries, self.batch), file)

    def task(self, *, below: int | None = None, horizon: int | None = None) -> SmallApply:
        """The apply of all batches that may have changes to merge."""
        self.attempts += 1
        batches = range(self.before.complete_to_batch + 1, self.batch + 1)
        changes = [{"add": {"path": f"{batch}.parquet", "size": 1}} for batch in batches]
        return SmallApply(
            definition=self.definition,
            buckets=self.definition.buckets,
            before=self.before,
            below=below,
            horizon=horizon,
            changelog=str(self.folder / "changelog"),
            changes=tuple(map(json.dumps, changes)),
            table=str(self.folder / "table"),
            rows=tuple(self.rows.values()),
            tombstones=str(self.folder / "tombstones"),
            removed=tuple(self.tombstones.values()),
            attempt_id=f"attempt {self.attempts}",
            cores=2,
        )

    def apply(
        self,
        deliveries: Sequence[Delivery] = (),
        *,
        below: int | None = None,
        horizon: int | None = None,
        crashes: bool = False,
    ) -> None:
        """Log the deliveries as one batch and merge them. `crashes`: nothing is committed."""
        if deliveries:
            self.log(deliveries)
        task = self.wrong(self.task(below=below, horizon=horizon))
        merged = merge_few(task)
        assert merged is not None
        waits = {
            batch
            for batch, them in self.logged.items()
            if any(is_deferred(one, below) for one in them)
        }
        new = [
            one
            for batch, them in self.logged.items()
            for one in them
            if not self.before.covers(batch, one.change.commit_timestamp)
            and not is_deferred(one, below)
            and not self.is_truncated(one)
        ]
        assert (merged.changes, merged.deferred_from) == (len(new), min(waits, default=None))
        unreadable = map(RowReader(self.definition).unreadable, (one.change for one in new))
        assert merged.misfits == Counter(chain.from_iterable(unreadable))
        commit(self.tombstones, merged.tombstones)
        if crashes:
            return
        commit(self.rows, merged.table)
        number = self.before.apply_number + 1
        if merged.all_count:
            vacuumed_to = self.before.apply_number
            self.before = replace(self.before, vacuumed_to=vacuumed_to, attempt_ids={})
        self.before = replace(
            self.before,
            apply_number=number,
            apply_watermark=below,
            complete_to_batch=min(waits, default=self.batch + 1) - 1,
            to_batch=self.batch,
            highest_applied=max(self.before.highest_applied, merged.highest),
            has_residual=self.before.has_residual or merged.has_residual,
            attempt_ids={**self.before.attempt_ids, number: task.attempt_id},
        )
        # Spark leaves the residual of all states out if the table promises that there is none.
        assert self.before.has_residual or not self.residual()
        self.assert_ages(task, merged.tombstones)

    def assert_ages(self, task: SmallApply, actions: Iterable[str]) -> None:
        """A tombstone has the age of its newest deletion, which the horizon is compared with. It
        may be a deletion without a register, which the state does not have.
        """
        form = StateForm(self.definition, task.ids)
        nothing = [None] * len(self.definition.columns)
        added = (json.loads(action).get("add") for action in actions)
        for add in filter(None, added):
            path = self.folder / "tombstones" / add["path"]
            rows = parquet.read_table(path, partitioning=None)
            for newest, stored in zip(
                *(rows[n].to_pylist() for n in ("_newest", STATE)), strict=True
            ):
                state = form.read(stored, nothing)
                orders = [*state.tombstones.values(), *(c.order for c in state.cells.values())]
                age = max((order.age for order in orders), default=0)
                assert newest == age or (newest > age and not self.definition.keep_unmapped)

    def residual(self) -> int:
        """The number of elements in the residual of all states."""
        return sum(
            pc.sum(pc.list_value_length(pc.struct_field(plain(states), "residual"))).as_py() or 0
            for kind, files in (("table", self.rows), ("tombstones", self.tombstones))
            for name in files
            for states in [parquet.read_table(self.folder / kind / name, partitioning=None)[STATE]]
        )

    def is_truncated(self, one: Delivery) -> bool:
        """Whether a truncation that the table has deletes the change (EVO-13)."""
        rank = rank_of(one.change, self.definition.order)
        truncated = self.before.truncated
        return truncated is not None and rank is not None and rank < truncated

    def shown(self) -> dict[bytes, dict[str, Any]]:
        """The rows of the table by row key, in the form of `row_of`."""
        files, found = files_at(str(self.folder / "table")), {}
        for action in self.rows.values():
            add = json.loads(action)["add"]
            vector = add.get("deletionVector")
            gone = read_vector(files, vector) if vector else ()
            table = parquet.read_table(self.folder / "table" / add["path"], partitioning=None)
            columns = {
                name: plain(table[name]).to_pylist() for name in table.column_names if name != STATE
            }
            for number, values in enumerate(zip(*columns.values(), strict=True)):
                if number in gone:
                    continue
                row = dict(zip(columns, values, strict=True))
                key = self.definition.key
                row_key = key.write_key(tuple(as_key(row[part.name]) for part in key.parts))
                assert row_key not in found, "a key stands twice"
                unmapped = dict(row["_unmapped"] or {})
                kept = unmapped if self.definition.keep_unmapped else None
                found[row_key] = {**row, "_unmapped": kept}
        return found

    def assert_shows(self, deliveries: Iterable[Delivery]) -> None:
        """The table is what `connector.tables.merge` says of these deliveries."""
        left = (one for one in deliveries if not self.is_truncated(one))
        shown, expected = self.shown(), truth(self.definition, left)
        assert shown.keys() == expected.keys()
        for row_key, row in shown.items():
            assert is_same_row(row, expected[row_key]), (row, expected[row_key])


def is_deferred(one: Delivery, below: int | None) -> bool:
    return below is not None and one.change.commit_timestamp >= below


def as_key(value: Any) -> Any:
    """A value as keys have it: a decimal without zeros at its end."""
    if isinstance(value, Decimal):
        return read_value(DataType.NUMERIC, Encoding.TEXT, f"{value:f}".encode())
    return value


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
        "transaction": pa.array(
            [
                change.transaction
                and {
                    "server_transaction_id": change.transaction.server_transaction_id,
                    "record_sequence": change.transaction.record_sequence,
                }
                for change in changes
            ],
            pa.struct([("server_transaction_id", pa.string()), ("record_sequence", pa.int64())]),
        ),
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


Law = Callable[[Random, Path, TableDefinition, Wrong], None]
every_table = pytest.mark.parametrize(
    "table", TABLES, ids=lambda one: f"{one.order}, {one.keep_unmapped}"
)


def correct(task: SmallApply) -> SmallApply:
    return task


def forgetful(task: SmallApply) -> SmallApply:
    """The same, with nothing in memory of the files."""
    KEYS.clear()
    VECTORS.clear()
    return task


def several(rng: Random, count: int, **how: Any) -> list[list[Delivery]]:
    """Several histories. No two of their changes have the same order position. In half of the
    cases, all changes can be merged as columns.
    """
    is_even, found = rng.random() < 0.5, []
    for number in range(count):
        drawn = history(rng, **how)
        changes = {
            id(one.change): as_columns(rng, one.change) if is_even else one.change for one in drawn
        }
        found.append(
            [
                Delivery(
                    changes[id(one.change)],
                    one.position._replace(attempt=one.position.attempt + 3 * number),
                )
                for one in drawn
            ]
        )
    return found


def as_columns(rng: Random, change: DataChange) -> DataChange:
    """The change with entries that set columns, and delete columns and families."""

    def entry_of(entry: Entry) -> Entry:
        family, qualifier = rng.choice((*(column.cell for column in COLUMNS), MARK))
        match entry:
            case SetCell():
                return replace(entry, family=family, qualifier=qualifier)
            case DeleteCells():
                return DeleteCells(family, qualifier, 0, 0)
            case DeleteFamily():
                return DeleteFamily(family)

    return replace(change, entries=tuple(map(entry_of, change.entries)))


def any_batches(rng: Random, folder: Path, table: TableDefinition, wrong: Wrong) -> None:
    """Late and repeated changes in any batches, some of which crash before their commit and are
    merged again.
    """
    deliveries = list(chain(*several(rng, 3, changes=9, rows=ROWS)))
    disk = Disk(folder, table, wrong)
    for batch in batches(rng, deliveries):
        if rng.random() < 0.2:
            disk.apply(batch, crashes=True)
            disk.apply()
        else:
            disk.apply(batch)
    disk.assert_shows(deliveries)


def deferred(rng: Random, folder: Path, table: TableDefinition, wrong: Wrong) -> None:
    """Changes at or above the low watermark wait, and several batches are merged at once. The table
    is always the merge of what is below.
    """
    deliveries = list(chain(*several(rng, 3, changes=9, rows=ROWS)))
    disk, below = Disk(folder, table, wrong), 0
    shown = set[int]()
    for batch in batches(rng, deliveries):
        disk.log(batch)
        if rng.random() < 0.5:
            below = min(7, below + rng.choice((0, 0, 1, 2)))
            disk.apply(below=below)
            logged_ = [one for them in disk.logged.values() for one in them]
            shown |= {id(one) for one in logged_ if not is_deferred(one, below)}
            disk.assert_shows(one for one in logged_ if id(one) in shown)
    disk.apply()
    disk.assert_shows(deliveries)


def truncated(rng: Random, folder: Path, table: TableDefinition, wrong: Wrong) -> None:
    """Changes that are older than a truncation of the table do nothing."""
    deliveries = list(chain(*several(rng, 3, changes=9, rows=ROWS)))
    ranks = [rank_of(one, table.order) for _ in range(3) for one in truncations(rng)]
    disk = Disk(folder, table, wrong, TableState(truncated=greatest(*ranks)))
    for batch in batches(rng, deliveries):
        disk.apply(batch)
    disk.assert_shows(deliveries)


def forgotten(rng: Random, folder: Path, table: TableDefinition, wrong: Wrong) -> None:
    """Deletes below the horizon are forgotten. No later change is older than one of them."""

    def order_of(one: Delivery) -> ChangeOrder:
        return change_order(one.change, one.position, table.order)

    disk, known, horizon = Disk(folder, table, wrong), list[Delivery](), 0
    for found in several(rng, 6, changes=6, rows=ROWS[:2]):
        old = [order_of(one) for one in known if order_of(one).age < horizon]
        batch = [
            one
            for one in found
            if order_of(one).age >= horizon and all(order_of(one) > order for order in old)
        ]
        horizon = max(horizon, rng.randint(0, 4))
        if batch:
            disk.apply(batch, horizon=horizon)
            known += batch
        disk.assert_shows(known)


def whole_rows(rng: Random, folder: Path, table: TableDefinition, wrong: Wrong) -> None:
    """Each change is an image of its row. Most arrive in their order, and replace the row without
    its state.
    """
    disk, late, known = Disk(folder, table, wrong), list[Delivery](), list[Delivery]()
    for drawn in several(rng, 2, changes=14, rows=ROWS[:2]):
        found = [
            replace(one, change=replace(one.change, entries=plain_entries(one.change, whole=True)))
            for one in drawn
        ]
        for committed in range(1, 7):
            batch = [one for one in found if one.change.commit_timestamp == committed]
            late += [one for one in batch if rng.random() < 0.3]
            batch = [one for one in batch if one not in late]
            for one in (batch, late.pop()) if late and rng.random() < 0.3 else (batch,):
                now = one if isinstance(one, list) else [one]
                if now:
                    disk.apply(now)
                    known += now
        disk.assert_shows(known)


def typed_values(rng: Random, folder: Path, table: TableDefinition, wrong: Wrong) -> None:
    """Columns of every type in both encodings, with values in any spelling, and keys of several
    parts of every type.
    """
    parts = rng.sample(KEY_TYPES, rng.randint(1, len(KEY_TYPES)))
    key = Key(tuple(KeyPart(f"k{n}", type_) for n, type_ in enumerate(parts)))
    choices = [[value_of(rng, type_) for _ in range(2)] for type_ in parts]
    written = (key.write_key(tuple(rng.choice(some) for some in choices)) for _ in range(6))
    rows = sorted(set(filter(None, tried(written))))
    used = rng.sample(TYPED, 3)

    def typed(entry: Entry) -> Entry:
        if isinstance(entry, DeleteFamily):
            return entry
        column = rng.choice(used)
        if isinstance(entry, DeleteCells):
            return replace(entry, family="f", qualifier=column.qualifier)
        value = rng.choice(spelled(rng, column.type, column.encoding))
        return replace(entry, family="f", qualifier=column.qualifier, value=value)

    found = list(chain(*several(rng, 2, changes=9, rows=rows)))
    changes = {
        id(one.change): replace(one.change, entries=tuple(map(typed, one.change.entries)))
        for one in found
    }
    deliveries = [replace(one, change=changes[id(one.change)]) for one in found]
    disk = Disk(folder, replace(table, key=key, columns=TYPED), wrong)
    for batch in batches(rng, deliveries):
        disk.apply(batch)
    disk.assert_shows(deliveries)


def misfits(rng: Random, folder: Path, table: TableDefinition, wrong: Wrong) -> None:
    """Columns that are NULL for values that they cannot hold, which newer writes hide (EVO-11)."""
    changed = rng.sample(table.columns, min(2, len(table.columns)))
    how = {"type": DataType.INT64, "on_unreadable": OnUnreadable.NULL}
    columns = [replace(one, **how) if one in changed else one for one in table.columns]

    def entry_of(entry: Entry) -> Entry:
        if not isinstance(entry, SetCell):
            return entry
        return replace(entry, value=rng.choice((b"1", b"07", b"NaN", b"\xff")))

    found = list(chain(*several(rng, 3, changes=9, rows=ROWS)))
    changes = {
        id(one.change): replace(one.change, entries=tuple(map(entry_of, one.change.entries)))
        for one in found
    }
    deliveries = [replace(one, change=changes[id(one.change)]) for one in found]
    disk = Disk(folder, replace(table, columns=tuple(columns)), wrong)
    for batch in batches(rng, deliveries):
        disk.apply(batch)
    disk.assert_shows(deliveries)


def tried(row_keys: Iterator[bytes]) -> Iterator[bytes]:
    """Those that can be row keys. An empty one can not."""
    while True:
        try:
            yield next(row_keys)
        except InvalidChangeError:
            continue
        except StopIteration:
            return


@pytest.mark.parametrize(
    "law", [any_batches, deferred, truncated, forgotten, whole_rows, typed_values, misfits]
)
@every_table
def test_few_changes_are_merged_as_defined(
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    table: TableDefinition,
    law: Law,
) -> None:
    """newest_wins, deletes_stay_deleted, nothing_invented, resumable, TBL-13: with the keys of all
    files in memory, of none, and of the newest ones, and with folds.
    """
    rng = Random(f"{seed}/{law.__name__}/{table.order}/{table.keep_unmapped}")
    for number in tries(10, quick=1):
        folder = tmp_path / str(number)
        with monkeypatch.context() as limited:
            if rng.random() < 1 / 3:
                limited.setattr(KEYS, "most", 300)
                limited.setattr(VECTORS, "most", 100)
            if rng.random() < 1 / 2:
                limited.setattr(maintenance_schedule, "FOLD_FILES", 2)
                limited.setattr(maintenance_schedule, "FOLD_SHARE", rng.choice((0, 1)))
            law(rng, folder, table, rng.choice((correct, correct, forgetful)))
        shutil.rmtree(folder)


def before(task: SmallApply, **values: Any) -> SmallApply:
    return replace(task, before=replace(task.before, **values))


@pytest.mark.parametrize(
    ("law", "wrong"),
    [
        pytest.param(any_batches, lambda task: replace(task, rows=()), id="old rows"),
        pytest.param(any_batches, lambda task: replace(task, removed=()), id="tombstones"),
        pytest.param(deferred, lambda task: replace(task, below=None), id="low watermark"),
        pytest.param(deferred, lambda task: before(task, apply_watermark=None), id="merged before"),
        pytest.param(truncated, lambda task: before(task, truncated=None), id="truncation"),
        pytest.param(
            forgotten,
            lambda task: replace(task, horizon=task.horizon and task.horizon + 3),
            id="horizon",
        ),
        pytest.param(whole_rows, lambda task: before(task, highest_applied=-1), id="newest"),
    ],
)
def test_a_merge_that_ignores_a_part_of_its_input_is_noticed(
    tmp_path: Path, seed: int, law: Law, wrong: Wrong
) -> None:
    """The laws above can fail, for example if every change counts as newer than the table."""
    rng = Random(seed)
    for number in range(30):
        try:
            law(rng, tmp_path / str(number), TABLE, wrong)
        except AssertionError:
            return
    pytest.fail("nothing was noticed")


def test_a_change_that_does_not_fit_is_left_to_spark(tmp_path: Path) -> None:
    """TBL-9: it becomes a dead letter there."""
    column = replace(COLUMNS[0], type=DataType.INT64)
    disk = Disk(tmp_path / "disk", replace(TABLE, columns=(column,)))
    (first, *_) = history(Random(1), rows=(b"a",))
    entry = SetCell(column.family, column.qualifier, b"much", 1)
    with pytest.raises(AssertionError, match="None"):
        disk.apply([replace(first, change=replace(first.change, entries=(entry,)))])
    assert not any((tmp_path / "disk" / "table").iterdir())


def test_a_change_without_a_sequence_number_is_left_to_spark(tmp_path: Path) -> None:
    """MRG-2: it becomes a dead letter there, if sequence numbers order the table."""
    (first, *_) = history(Random(1), rows=(b"a",))
    unnumbered = replace(first, change=replace(first.change, change_sequence_number=None))
    by_number = Disk(tmp_path / "number", replace(TABLE, order=OrderBy.SEQUENCE_NUMBER))
    with pytest.raises(AssertionError, match="None"):
        by_number.apply([unnumbered])
    assert not any((tmp_path / "number" / "table").iterdir())
    Disk(tmp_path / "commit", TABLE).apply([unnumbered])


def cell(value: bytes, at: int, offset: int, *entries: Entry) -> Delivery:
    (family, qualifier), row = COLUMNS[0].cell, b"a"
    given = entries or (SetCell(family, qualifier, value, at),)
    (first, *_) = history(Random(1), rows=(row,))
    change = replace(first.change, entries=given, commit_timestamp=at, tie_breaker=0)
    return Delivery(change, OrderPosition(1, 0, offset))


GONE = tuple(DeleteFamily(family) for family in dict.fromkeys(one.family for one in COLUMNS))


def test_a_deleted_row_comes_back_with_what_is_newer(tmp_path: Path) -> None:
    """deletes_stay_deleted: a late change does not bring it back."""
    disk = Disk(tmp_path / "disk", TABLE)
    values = []
    for at, one in (
        (2, cell(b"old", 2, 1)),
        (5, cell(b"", 5, 2, *GONE)),
        (4, cell(b"late", 4, 3)),
        (6, cell(b"new", 6, 4)),
    ):
        disk.apply([one])
        values.append([row[COLUMNS[0].name] for row in disk.shown().values()])
        assert disk.before.highest_applied >= at
    assert values == [[b"old"], [], [], [b"new"]]


@pytest.mark.parametrize(
    "mark", ["org.apache.spark.legacyDateTime", "org.apache.spark.legacyINT96"]
)
def test_dates_of_another_calendar_are_left_to_spark(tmp_path: Path, mark: str) -> None:
    """nothing_invented: the Parquet file says that its old dates are not those of today's
    calendar.
    """
    disk = Disk(tmp_path / "disk", TABLE)
    disk.apply([cell(b"old", 2, 1)])
    (action,) = disk.rows.values()
    file = tmp_path / "disk" / "table" / json.loads(action)["add"]["path"]
    table = parquet.read_table(file, partitioning=None)
    parquet.write_table(table.replace_schema_metadata({mark: ""}), file)
    disk.log([cell(b"new", 3, 2)])
    assert merge_few(disk.task()) is None


@pytest.mark.parametrize("folder", ["changes", "rows", "removed"])
def test_large_files_are_left_to_spark(tmp_path: Path, folder: str) -> None:
    """SCL-1: nothing large is read in the driver, and nothing is read to learn that."""
    disk = Disk(tmp_path / "disk", replace(TABLE, buckets=1))
    disk.log([cell(b"old", 2, 1)])
    large = {"path": "absent", "size": MAX_BYTES + 1, "partitionValues": {"_bucket": "0"}}
    assert merge_few(disk.task()) is not None
    assert merge_few(replace(disk.task(), **{folder: (json.dumps({"add": large}),)})) is None


def test_buckets_without_a_change_do_not_count_and_are_not_read(tmp_path: Path) -> None:
    """TBL-13"""
    disk = Disk(tmp_path / "disk", TABLE)
    disk.log([cell(b"old", 2, 1)])
    other = 1 - bucket_of(b"a", 2)
    large = {"path": "absent", "size": MAX_BYTES, "partitionValues": {"_bucket": str(other)}}
    assert merge_few(replace(disk.task(), rows=(json.dumps({"add": large}),))) is not None


def test_few_changes_are_fewer_with_more_processors() -> None:
    """TBL-13: Spark uses all of them."""
    assert is_few(200_000, 5, cores=2)
    assert not is_few(250_000, 5, cores=2)
    assert is_few(27_000, 5, cores=16)
    assert not is_few(50_000, 5, cores=16)
    assert not is_few(1_000, 2_000, cores=2)
    assert are_few_by_row(50_000, 300_000, 5, cores=2)
    assert not are_few_by_row(60_000, 300_000, 5, cores=2)
    assert not are_few_by_row(50_000, 500_000, 5, cores=2)


@pytest.mark.parametrize("limit", ["MAX_ENTRIES", "MAX_IN_MEMORY", "_MAX_WORK_BY_ROW"])
def test_large_changes_are_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """resumable: an apply that needs too much memory would be tried again and again."""
    disk = Disk(tmp_path / "disk", TABLE)
    unmapped = SetCell("f", b"\xff", b"", 4)
    disk.log([cell(b"old", 2, 1), cell(b"new", 3, 2), cell(b"", 4, 3, unmapped)])
    monkeypatch.setattr(limits, limit, 1)
    assert merge_few(disk.task()) is None
    monkeypatch.undo()
    assert merge_few(disk.task()) is not None


def test_stored_rows_of_ordinary_cells_are_merged_as_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TBL-13: also where nothing may be merged row by row."""
    disk = Disk(tmp_path / "disk", TABLE)
    disk.apply([cell(b"old", 2, 1)])
    disk.log([cell(b"new", 3, 2)])
    monkeypatch.setattr(limits, "_MAX_WORK_BY_ROW", 1)
    assert merge_few(disk.task()) is not None


def test_the_changes_of_all_batches_count_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """resumable: each batch alone would fit."""
    disk = Disk(tmp_path / "disk", TABLE)
    large = [cell(Random(number).randbytes(1_000), number, number) for number in range(1, 100)]
    disk.log(large)
    for most in count(10_000, 10_000):
        monkeypatch.setattr(limits, "MAX_IN_MEMORY", most)
        if merge_few(disk.task()) is not None:
            break
    disk.log(large)
    assert merge_few(disk.task()) is None


SPARSE = ColumnIds({"c0": 5, "c1": 0, "c2": 3}, 9, families={"h": 0, "g": 1, "f": 2})


def test_positions_in_a_state_are_those_of_ids(tmp_path: Path, seed: int) -> None:
    """EVO-3, newest_wins: columns that were dropped leave gaps, in rows that are merged as columns
    and row by row. With other ids in each apply, the law fails.
    """
    rng, mixed = Random(seed), Random(seed)
    for number in tries(12, quick=4):
        any_batches(rng, tmp_path / f"{number}", TABLE, lambda task: replace(task, ids=SPARSE))

    def wrong(task: SmallApply) -> SmallApply:
        ids = {name: mixed.randrange(9) * 3 + at for at, name in enumerate(SPARSE.by_name)}
        return replace(task, ids=replace(SPARSE, by_name=ids))

    with pytest.raises(AssertionError):
        for number in range(20):
            any_batches(rng, tmp_path / f"wrong {number}", TABLE, wrong)
