"""Adds columns to a table and drops columns, in one commit between two applies (EVO-3).

An added column takes the newest writes of its cell from the residual of each row, with their order.
A dropped one returns them to the residual. Other rows are not written again: their state has no
register of the column. Tombstones in the new form are added to those in the old form, as in an
apply: a merge of both is the same deletion.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.spark.apply.lww_merge import (
    RowRegisters,
    element_with,
    fits,
    is_deletion_of,
    is_held_by,
    is_write_of,
    register_of_element,
    rows_of,
    stored_registers,
)
from connector.spark.sql import spark_type, use_nested, written
from connector.spark.storage.deletion_vectors import FILE, ROW, ROW_LOCATION, marked_files
from connector.spark.storage.files import Files, all_files, newest_snapshot, scala_list
from connector.spark.storage.layout import Layout, layout_of, nothing
from connector.spark.storage.table import Table, new_attempt
from connector.state.table_state import TableState
from connector.tables.alterations import Alteration
from connector.tables.column_names import BUCKET, STATE
from connector.tables.definition import Column, Versions
from connector.tables.nested import scalars
from connector.tables.values import DataType

_FEATURE_OF: Final = {DataType.DATETIME: "timestampNtz"}
"""The features of Delta that types need."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The effect of an alteration.

    `rows` are written again, of `all_rows`, in about `size` bytes. `values` are moved into each
    added column, and `misfits` stay in `_unmapped`, because the column cannot hold them.
    """

    rows: int
    all_rows: int
    size: int
    values: Mapping[str, int]
    misfits: Mapping[str, int]
    buckets: frozenset[int] = frozenset()


def new_reader_features(table: Table, alteration: Alteration) -> tuple[str, ...]:
    """The features of Delta that readers must know after the alteration, and need not know now."""
    snapshot = newest_snapshot(table.spark, table.path)
    protocol = json.loads(str(snapshot.protocol().json()))["protocol"]
    types = set[DataType]().union(*(scalars(column.type) for column in alteration.added))
    needed = {feature for type_, feature in _FEATURE_OF.items() if type_ in types}
    return tuple(sorted(needed.difference(protocol.get("readerFeatures") or ())))


def survey(table: Table, alteration: Alteration) -> Survey:
    """Count what `alter` would change. Nothing is written. Raises `TableError`."""
    change, (version, before) = _Change(table.layout, alteration), table.newest()
    return _survey(table, change, version, before)


def alter(
    table: Table, alteration: Alteration, *, on_step: Callable[[str], None] = lambda step: None
) -> Survey:
    """Give the table the columns of the alteration, in one commit.

    Raises `TableError` or `WriterConflictError`. The table is then unchanged.
    """
    change, (version, before) = _Change(table.layout, alteration), table.newest()
    counted = _survey(table, change, version, before)
    on_step("values read")
    after = replace(
        before,
        apply_number=before.apply_number + 1,
        attempt_id=new_attempt(),
        definition_version=alteration.ids.version,
        has_residual=before.has_residual or bool(counted.rows and alteration.dropped),
        misfits={
            name: count
            for name, count in {**before.misfits, **counted.misfits}.items()
            if count and name in alteration.ids.by_name
        },
    )
    after = _add_tombstones(table, change, before, after)
    on_step("tombstones written")
    features = new_reader_features(table, alteration)
    transaction = table.begin_altered(change.new, version, features)
    removed = scala_list(table.spark, ())
    if counted.rows:
        files = all_files(table.spark, table.path)
        if table.has_vectors:
            touched = files.rows().selectExpr("*", *ROW_LOCATION).where(change.is_touched)
            transaction.write(change.table_rows(files.rows().where(change.is_touched)))
            locations = touched.select(FILE, ROW)
            removed = marked_files(table.spark, transaction, files, locations)
        else:
            rows, whole = _whole_files(files, counted)
            transaction.write(change.table_rows(rows.where(change.is_touched)))
            transaction.write(change.untouched(rows.where(f"NOT {change.is_touched}")))
            now = time.time_ns() // 1_000_000
            actions = [file.removeWithTimestamp(now, True) for file in whole]
            removed = scala_list(table.spark, actions)
    table.commit_altered(transaction, change.new, after, removed)
    on_step("table committed")
    return counted


def _whole_files(files: Files, counted: Survey) -> tuple[DataFrame, list[Any]]:
    """The files of the buckets with touched rows, and their rows."""
    buckets = {str(bucket) for bucket in counted.buckets}
    touched = [file for file in files if file.partitionValues().apply(BUCKET) in buckets]
    return files.only(touched).rows(), touched


def _survey(table: Table, change: _Change, version: int, before: TableState) -> Survey:
    use_nested(table.spark, (column.type for column in change.new.columns))
    added = {column.name: column for column in change.added}
    none = dict.fromkeys(added, 0)
    if not change.moves(before):
        return Survey(0, 0, 0, none, none)
    counts = {
        "_rows": f"count_if({change.is_touched})",
        "_all": "count(*)",
        "_buckets": f"collect_set(CASE WHEN {change.is_touched} THEN {BUCKET} END)",
        **{f"_values{n}": f"count_if({_has(c)})" for n, c in enumerate(added.values())},
        **{f"_misfits{n}": f"count_if({_has_misfit(c)})" for n, c in enumerate(added.values())},
    }
    aggregates = [F.expr(text).alias(name) for name, text in counts.items()]
    row = table.rows(version).agg(*aggregates).first()
    assert row is not None
    size = table.size_in_bytes() * row["_rows"] // max(1, row["_all"])
    values = {name: row[f"_values{n}"] - row[f"_misfits{n}"] for n, name in enumerate(added)}
    misfits = {name: row[f"_misfits{n}"] for n, name in enumerate(added)}
    buckets = frozenset(map(int, row["_buckets"]))
    return Survey(row["_rows"], row["_all"], size, values, misfits, buckets)


def _add_tombstones(
    table: Table, change: _Change, before: TableState, after: TableState
) -> TableState:
    """Add the touched tombstones in the new form. Returns the state that names them."""
    has_moves = change.moves(before) and not change.is_of_versions
    if not (has_moves and table.tombstones.exist(before)):
        return after
    touched = table.tombstones.rows(before, table.layout).where(change.is_touched)
    if not table.add_tombstones(
        change.rows(touched, has_values=False), before, attempt=after.attempt_id
    ):
        return after
    attempts = {**after.attempt_ids, after.apply_number: after.attempt_id}
    return replace(after, has_tombstones=True, has_residual=True, attempt_ids=attempts)


class _Change:
    """An alteration as SQL over the rows of the old layout."""

    def __init__(self, old: Layout, alteration: Alteration) -> None:
        self.old = old
        self.new = layout_of(alteration.definition, alteration.ids, old.buckets)
        self.added, self.dropped = alteration.added, alteration.dropped
        self.is_of_versions = old.definition.versions is Versions.ALL
        self._new_families = [f for f in self.new.families if f not in old.families]
        self._lost_families = [f for f in old.families if f not in self.new.families]

    def moves(self, before: TableState) -> bool:
        """Whether a row may have a write that moves."""
        return before.has_residual or bool(self.dropped) or self.is_of_versions

    @property
    def is_touched(self) -> str:
        """Whether a row, or a tombstone, has a write that moves."""
        return f"({' OR '.join(self._touches()) or 'false'})"

    def _touches(self) -> Iterator[str]:
        of_residual = [*self.added, *(self.dropped if self.is_of_versions else ())]
        for column in of_residual:
            yield f"coalesce(exists({STATE}.residual, x -> {is_write_of(column)}), false)"
        for family in self._new_families:
            deleted = is_deletion_of(family)
            yield f"coalesce(exists({STATE}.residual, x -> {deleted}), false)"
        if not self.is_of_versions:
            for column in self.dropped:
                yield f"get({STATE}.column_entries, {self._slot(column)}) IS NOT NULL"
        for family in self._lost_families:
            yield f"get({STATE}.family_entries, {self._family_slot(family)}) IS NOT NULL"

    def rows(self, rows: DataFrame, *, has_values: bool = True) -> DataFrame:
        """Touched rows of the old layout in the new one, as `rows_of` makes them."""
        old, new = self.old, self.new
        columns = list(enumerate(old.columns if old.registered else ()))
        values = [
            f"{f'`{column.name}`' if has_values else nothing(spark_type(column.type))} AS _value{n}"
            for n, column in columns
        ]
        frame = rows.selectExpr(
            BUCKET, *old.keys, *values, f"{STATE} AS _stored", "true AS _changed"
        )
        if self.is_of_versions:
            state = RowRegisters(frame, [], [], "_stored.residual")
            return rows_of(state, new, has_residual=True)
        registers, deletions = stored_registers([f"_value{n}" for n, _ in columns], old)
        of_cell = dict(zip((c.cell for c in old.registered), registers, strict=True))
        of_family = dict(zip(old.families, deletions, strict=True))
        state = RowRegisters(
            frame,
            [
                of_cell.get(column.cell)
                or register_of_element(element_with(is_write_of(column)), column)
                for column in new.registered
            ],
            [
                of_family.get(family) or f"{element_with(is_deletion_of(family))}.order"
                for family in new.families
            ],
            self._rest(of_cell, of_family),
        )
        return rows_of(state, new, has_residual=True)

    def table_rows(self, rows: DataFrame) -> DataFrame:
        """Touched rows of the table, as its files have them."""
        return self.rows(rows).selectExpr(*(f"`{name}`" for name, _ in self.new.column_types))

    def untouched(self, rows: DataFrame) -> DataFrame:
        """The other rows of files that are written again."""
        there = {column.name for column in self.old.columns}
        missing = {c.name: spark_type(c.type) for c in self.new.columns if c.name not in there}
        return rows.selectExpr(
            *(
                f"{nothing(missing[name])} AS `{name}`" if name in missing else f"`{name}`"
                for name, _ in self.new.column_types
            )
        )

    def _rest(self, of_cell: Mapping[tuple[str, bytes], str], of_family: Mapping[str, str]) -> str:
        """The residual without what moved into columns, and with what moved out of them."""
        moved = [
            *(f"({is_held_by(column)})" for column in self.added),
            *(f"({is_deletion_of(family)})" for family in self._new_families),
        ]
        stays = " AND ".join(f"NOT coalesce({text}, false)" for text in moved) or "true"
        returned = [
            *(self._element(of_cell[c.cell], c.family, c) for c in self.dropped),
            *(self._element(of_family[family], family) for family in self._lost_families),
        ]
        kept = f"filter(coalesce(_stored.residual, {self.new.no_rest}), x -> {stays})"
        if not returned:
            return kept
        elements = f"filter(array({', '.join(returned)}), x -> x IS NOT NULL)"
        return f"concat({kept}, cast({elements} AS {self.new.rest_type}))"

    def _element(self, register: str, family: str, column: Column | None = None) -> str:
        """A register, or the deletion of a family, as an element of the residual."""
        none = nothing("bigint")
        fields = {
            "family": f"'{family}'",
            "qualifier": f"X'{column.qualifier.hex()}'" if column else nothing("binary"),
            "range_start": none,
            "range_end": none,
            "order": f"{register}.order" if column else register,
            "cell_timestamp": f"{register}.cell_timestamp" if column else none,
            "value": (
                written(column.type, column.encoding, f"{register}.value")
                if column
                else nothing("binary")
            ),
        }
        named = ", ".join(f"'{name}', {fields[name]}" for name in self.new.rest_fields)
        return f"CASE WHEN {register} IS NOT NULL THEN named_struct({named}) END"

    def _slot(self, column: Column) -> int:
        return dict(zip(self.old.columns, self.old.column_slots, strict=True))[column]

    def _family_slot(self, family: str) -> int:
        return dict(zip(self.old.families, self.old.family_slots, strict=True))[family]


def _has(column: Column) -> str:
    is_set = f"x -> x.value IS NOT NULL AND {is_write_of(column)}"
    return f"coalesce(exists({STATE}.residual, {is_set}), false)"


def _has_misfit(column: Column) -> str:
    misfits = f"x -> x.value IS NOT NULL AND {is_write_of(column)} AND NOT ({fits(column)})"
    return f"coalesce(exists({STATE}.residual, {misfits}), false)"
