"""Turns rows of the changelog into one row per change, with a value for each register: the first
step of a merge. The parts of the order that all entries share are stored once.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from connector.records.model import MAX_LONG
from connector.records.ordering import OrderBy
from connector.spark.sql import key_columns, key_pieces, typed, use_nested
from connector.spark.storage.layout import Layout, nothing, order
from connector.tables.column_names import BUCKET
from connector.tables.definition import Column, Versions
from connector.tables.stored_definition import families_of

_RANK: Final = {
    OrderBy.COMMIT: (
        """'commit_timestamp', unix_micros(commit_timestamp), 'tie_breaker', tie_breaker,
    'record_sequence', coalesce(transaction.record_sequence, 0L)"""
    ),
    OrderBy.SEQUENCE_NUMBER: (
        """'sequence_number', unhex(rpad(array_join(transform(
    split(change_sequence_number, '/'), section -> lpad(section, 16, '0')), ''), 64, '0'))"""
    ),
}
_POSITION: Final = """'ingest_batch', order_position.ingest_batch,
    'kafka_partition', order_position.kafka_partition, 'offset', order_position.offset, 'attempt',
    order_position.attempt"""

REGISTER_PARTS: Final = ("entry", "cell_timestamp", "typed")
"""The columns with the register of a change begin with these names, after an underscore."""
RECORD_COORDINATES: Final = ("kafka_partition", "offset")
"""The columns that identify a change of a stream."""


def flatten_entries(changes: DataFrame, layout: Layout, *, all_plain: bool = False) -> DataFrame:
    """One row per change: its key, its order, and for each register the index of the entry that
    wrote it.

    `changes` are rows of the changelog. A change is plain if each of its entries sets a different
    column, or deletes a different family that has columns. `all_plain` promises that every change
    is plain, which is faster. For a change that is not plain, only `_plain` is then correct.

    The columns are:

    - `_bucket` and the key columns.
    - `_change`: the order of the change.
    - `_entry<n>`, `_cell_timestamp<n>`, `_typed<n>`: the entry index, cell timestamp and typed
      value for column n. The presence mark is after the columns.
    - `_deletion<n>`: the entry index of the deletion of family n.
    - `_rest`: the residual.
    - `_plain`: whether the change is plain.
    - `_whole`: whether the change covers everything older in families with columns.
    - `_unreadable`: whether there is no order, or the table cannot hold the key or a value.
    - `_misfit<n>`: for each column of `layout.tolerant`, whether it is left with a value that it
      cannot hold.
    - `_may_remove`: whether the change may leave no cell.
    - `_committed`: the commit timestamp, in microseconds.
    - `_batch`: the ingest batch that logged the change.
    - `_partition`, `_offset`: the coordinates in the topic. A replay has its own.

    A column of `layout.tolerant` may be unable to hold a value. That is not an error (TBL-8,
    EVO-11). The register then says that something was written, the bytes are in `_rest`, and the
    change is not plain.
    """
    rest = (
        nothing(layout.rest_type)
        if all_plain
        else f"CASE WHEN NOT _plain THEN {_residual(layout)} END"
    )
    entries = _last_entries(changes, layout, all_plain=all_plain)
    if layout.tolerant:
        misfits = {f"_misfit{n}": _leaves_misfit(layout, n) for n, _, _ in layout.tolerant}
        entries = entries.selectExpr("*", *(f"{text} AS {name}" for name, text in misfits.items()))
        others = [name for name in entries.columns if name != "_plain"]
        is_plain = f"_plain AND NOT ({' OR '.join(misfits)}) AS _plain"
        entries = entries.selectExpr(*others, is_plain)
    whole = " AND ".join(["_plain", *(f"_deletion{n} IS NOT NULL" for n in layout.deletions)])
    return entries.selectExpr(
        f"int(pmod(crc32(row_key), {layout.buckets})) AS {BUCKET}",
        *(f"_key{n} AS {name}" for n, name in enumerate(layout.keys)),
        f"{_change_order(layout)} AS _change",
        *(f"_{part}{n}" for n in layout.registers for part in REGISTER_PARTS),
        *(f"_deletion{n}" for n in layout.deletions),
        f"{rest} AS _rest",
        "_plain",
        f"{whole} AS _whole",
        f"{_unreadable(layout, all_plain=all_plain)} AS _unreadable",
        f"{_may_remove(layout)} AS _may_remove",
        *(f"_misfit{n}" for n, _, _ in layout.tolerant),
        "unix_micros(commit_timestamp) AS _committed",
        "ingest_batch AS _batch",
        "kafka_partition AS _partition",
        "offset AS _offset",
    )


def unreadable(changes: DataFrame, layout: Layout) -> DataFrame:
    """The coordinates of the changes that the table cannot hold: `kafka_partition` and `offset`.

    Checks are stored before the filter, which Spark would move below them and repeat for each
    column.
    """
    verdict = f"{_unreadable(layout, all_plain=False)} AS _unreadable"
    validated = (
        _last_entries(changes, layout, all_plain=False)
        .selectExpr(*RECORD_COORDINATES, verdict)
        .localCheckpoint()
    )
    return validated.where("_unreadable").select(*RECORD_COORDINATES)


def _last_entries(changes: DataFrame, layout: Layout, *, all_plain: bool) -> DataFrame:
    """Changelog rows with the entries that write each column.

    - `_key<n>`: the key columns.
    - `_entry<n>`: the index of the last entry that wrote column n.
    - `_cell_timestamp<n>`, `_bytes<n>`, `_typed<n>`: the timestamp, bytes and typed value, if this
      entry set a cell.
    - `_deletion<n>`: the index of the last deletion of family n.
    - `_plain`: whether the change is plain.
    """
    columns = list(enumerate(layout.registered))
    use_nested(changes.sparkSession, (column.type for column in layout.columns))
    entries = _first_entries(changes, layout)
    if not all_plain:
        last = (
            "CASE WHEN _plain THEN {index} ELSE array_max(transform(entries, (e, i) -> CASE WHEN"
            " {which} THEN i END)) END AS {index}"
        )
        writes = {
            **{f"_entry{n}": _writes(column, "e") for n, column in columns},
            **{
                f"_deletion{n}": _deletes_family(family, "e")
                for n, family in enumerate(layout.families)
            },
        }
        others = [name for name in entries.columns if name not in writes]
        entries = entries.selectExpr(
            *others, *(last.format(index=index, which=which) for index, which in writes.items())
        )
    cells = {n: f"get(entries, _entry{n})" for n, _ in columns}
    if not all_plain:
        is_set = "CASE WHEN {cell}.kind = 'SET_CELL' THEN _entry{n} END"
        cells = {n: f"get(entries, {is_set.format(cell=cell, n=n)})" for n, cell in cells.items()}
    return entries.selectExpr(
        "*",
        *(f"{cell}.cell_timestamp AS _cell_timestamp{n}" for n, cell in cells.items()),
        *(f"{cell}.value AS _bytes{n}" for n, cell in cells.items()),
    ).selectExpr(
        "*",
        *(
            f"{typed(column.type, column.encoding, f'_bytes{n}')} AS _typed{n}"
            for n, column in columns
        ),
    )


def _first_entries(changes: DataFrame, layout: Layout) -> DataFrame:
    """Changelog rows with `_key<n>`, `_plain`, and the index of the first entry that sets a column
    (`_entry<n>`) or deletes a family (`_deletion<n>`).
    """
    columns, families = list(enumerate(layout.registered)), list(enumerate(layout.families))
    key = layout.definition.key
    kept = [*changes.columns, *(f"_key{n}" for n in range(len(layout.keys)))]
    checked = "CASE WHEN {check} THEN {index} END AS {index}"
    first = (
        changes.selectExpr("*", f"{key_pieces(key, 'row_key')} AS _pieces")
        .selectExpr(
            "*",
            *(f"{part} AS _key{n}" for n, part in enumerate(key_columns(key, "_pieces"))),
            *(f"{_first_cell(column, layout)} AS _entry{n}" for n, column in columns),
            *(f"{_first_deletion(family, layout)} AS _deletion{n}" for n, family in families),
        )
        .selectExpr(
            *kept,
            *(
                checked.format(
                    check=_sets_first(column, layout, f"get(entries, _entry{n})"),
                    index=f"_entry{n}",
                )
                for n, column in columns
            ),
            *(
                checked.format(
                    check=_deletes_family(family, f"get(entries, _deletion{n})"),
                    index=f"_deletion{n}",
                )
                for n, family in families
            ),
        )
    )
    # Each index is a different entry. If no other entry is left, the first entry that wrote a
    # column was also the last.
    indexes = [*(f"_entry{n}" for n, _ in columns), *(f"_deletion{n}" for n, _ in families)]
    count = " + ".join(f"int({index} IS NOT NULL)" for index in indexes) or 0
    return first.selectExpr("*", f"size(entries.kind) = {count} AS _plain")


def _first_cell(column: Column, layout: Layout) -> str:
    """The index of the first entry that may set the column. A unique qualifier is enough."""
    qualifier = f"X'{column.qualifier.hex()}'"
    if _has_unique_qualifier(column, layout):
        return _index("entries.qualifier", qualifier)
    cell = (
        f"named_struct('kind', 'SET_CELL', 'family', '{column.family}', 'qualifier', {qualifier})"
    )
    return _index("arrays_zip(entries.kind, entries.family, entries.qualifier)", cell)


def _sets_first(column: Column, layout: Layout, entry: str) -> str:
    """Whether the entry of `_first_cell` sets the column."""
    if _has_unique_qualifier(column, layout):
        return f"({entry}.kind = 'SET_CELL' AND {entry}.family = '{column.family}')"
    return _sets(column, entry)


def _has_unique_qualifier(column: Column, layout: Layout) -> bool:
    return (
        bool(column.qualifier)
        and [other.qualifier for other in layout.registered].count(column.qualifier) == 1
    )


def _first_deletion(family: str, layout: Layout) -> str:
    """The index of the first entry that may delete the family."""
    if len(layout.families) == 1:
        return _index("entries.kind", "'DELETE_FAMILY'")
    deletion = f"named_struct('kind', 'DELETE_FAMILY', 'family', '{family}')"
    return _index("arrays_zip(entries.kind, entries.family)", deletion)


def _index(array: str, element: str) -> str:
    """The first index of the element, from 0. It is -1 if it is missing."""
    return f"int(array_position({array}, {element})) - 1"


def _sets(column: Column, entry: str) -> str:
    return f"({entry}.kind = 'SET_CELL' AND {is_of(column, entry)})"


def _deletes(column: Column, entry: str) -> str:
    """Whether the entry deletes exactly the whole column."""
    return (
        f"({entry}.kind = 'DELETE_CELLS' AND {entry}.range_start = 0 AND {entry}.range_end = 0 AND"
        f" {is_of(column, entry)})"
    )


def _writes(column: Column, entry: str) -> str:
    return f"{_sets(column, entry)} OR {_deletes(column, entry)}"


def _deletes_family(family: str, entry: str) -> str:
    return f"({entry}.kind = 'DELETE_FAMILY' AND {entry}.family = '{family}')"


def is_of(column: Column, entry: str = "e") -> str:
    """Whether an entry, or an element of `rest`, belongs to the column's cell."""
    return f"{entry}.family = '{column.family}' AND {entry}.qualifier = X'{column.qualifier.hex()}'"


def _misfit(column: Column) -> str:
    """Whether entry e sets the column to a value that it cannot hold."""
    return f"{_sets(column, 'e')} AND {typed(column.type, column.encoding, 'e.value')} IS NULL"


def _leaves_misfit(layout: Layout, n: int) -> str:
    """Whether the change leaves column n with a value that it may be unable to hold, and is."""
    batch = layout.since[n]
    if layout.registered:
        misfit = f"_bytes{n} IS NOT NULL AND _typed{n} IS NULL"
    else:
        last = f"filter(entries, e -> {_writes(layout.columns[n], 'e')})"
        misfit = f"exists(slice({last}, -1, 1), e -> {_misfit(layout.columns[n])})"
    return f"({misfit}{'' if batch == MAX_LONG else f' AND ingest_batch <= {batch}L'})"


def _misfits(layout: Layout) -> str:
    """Whether entry e with index i leaves a column with a value that it cannot hold."""
    misfits = [f"(_misfit{n} AND i = _entry{n})" for n, _, _ in layout.tolerant]
    return f"({' OR '.join(misfits) or 'false'})"


def _residual(layout: Layout) -> str:
    """The entries without a register, as elements of `rest`, or null."""
    mapped = " OR ".join(
        f"({is_of(column)})" for column in (*layout.columns, layout.definition.presence)
    )
    families = ", ".join(f"'{family}'" for family in families_of(layout.definition))
    in_family = f"coalesce(e.family IN ({families}), false)"
    keeps = "true" if layout.definition.keep_unmapped else "false"
    if layout.definition.versions is Versions.ALL:
        ranged = "e.kind = 'DELETE_CELLS'"
        wanted = f"{keeps} OR CASE WHEN e.kind = 'DELETE_FAMILY' THEN {in_family} ELSE {mapped} END"
    else:
        ranged = "e.kind = 'DELETE_CELLS' AND NOT (e.range_start = 0 AND e.range_end = 0)"
        wanted = (
            f"CASE WHEN e.kind = 'DELETE_FAMILY' THEN NOT {in_family} AND {keeps} WHEN {ranged}"
            f" THEN {mapped} OR {keeps} ELSE (NOT ({mapped}) OR {_misfits(layout)}) AND {keeps} END"
        )
    fields = {
        "family": "e.family",
        "qualifier": "CASE WHEN e.kind <> 'DELETE_FAMILY' THEN e.qualifier END",
        "range_start": f"CASE WHEN {ranged} THEN e.range_start END",
        "range_end": f"CASE WHEN {ranged} THEN e.range_end END",
        "order": order("i", _change_order(layout)),
        "cell_timestamp": "CASE WHEN e.kind = 'SET_CELL' THEN e.cell_timestamp END",
        "value": "CASE WHEN e.kind = 'SET_CELL' THEN e.value END",
    }
    named = (f"'{name}', {fields[name]}" for name in layout.rest_fields)
    element = f"named_struct({', '.join(named)})"
    elements = (
        f"filter(transform(entries, (e, i) -> CASE WHEN {wanted} THEN {element} END), x -> x IS NOT"
        " NULL)"
    )
    return f"nullif(cast({elements} AS {layout.rest_type}), {layout.no_rest})"


def _change_order(layout: Layout) -> str:
    return f"named_struct({_RANK[layout.definition.order]}, {_POSITION})"


def rank_of_row(layout: Layout) -> str:
    """The rank of a row of the changelog, as SQL: a struct with the first fields of its order."""
    return f"named_struct({_RANK[layout.definition.order]})"


def _unreadable(layout: Layout, *, all_plain: bool) -> str:
    """Whether the table cannot hold the change.

    This is so if there is no number to order by, or if the key or a cell of a column is unreadable.
    A cell that a later entry of the change overwrites counts too (TBL-9).
    """
    number = (
        ["change_sequence_number IS NULL"]
        if layout.definition.order is OrderBy.SEQUENCE_NUMBER
        else []
    )
    keys = [f"_key{n} IS NULL" for n in range(len(layout.keys))]
    validated = {n: f" AND ingest_batch > {batch}L" for n, _, batch in layout.tolerant}
    strict = [
        (n, column)
        for n, column in enumerate(layout.columns)
        if not layout.since or layout.since[n] != MAX_LONG
    ]
    last = [
        f"_bytes{n} IS NOT NULL AND _typed{n} IS NULL{validated.get(n, '')}"
        for n, _ in (strict if layout.registered else ())
    ]
    masked = " OR ".join(
        f"exists(entries, e -> {_misfit(column)}){validated.get(n, '')}" for n, column in strict
    )
    hidden = [] if all_plain or not masked else [f"NOT _plain AND ({masked})"]
    return f"({' OR '.join([*number, *keys, *last, *hidden])})"


def _may_remove(layout: Layout) -> str:
    """Whether the change may leave its row without a cell.

    A plain change leaves a cell if it sets one after the deletion of its family. If all versions
    are kept, a change leaves a cell if its last entry sets one.
    """
    if layout.definition.versions is Versions.ALL:
        if layout.tolerant and not layout.definition.keep_unmapped:
            # a value that a column cannot hold is not visible, and may hide one that it can hold
            return "true"
        last = "get(entries, size(entries) - 1)"
        is_kept = (
            "true"
            if layout.definition.keep_unmapped
            else " OR ".join(
                is_of(column, last) for column in (*layout.columns, layout.definition.presence)
            )
        )
        return f"NOT coalesce({last}.kind = 'SET_CELL' AND ({is_kept}), false)"
    deletion = {family: f"coalesce(_deletion{n}, -1)" for n, family in enumerate(layout.families)}
    leaves = [
        f"coalesce(_entry{n} > {deletion[column.family]}, false)"
        for n, column in enumerate(layout.registered)
    ]
    return f"NOT (_plain AND ({' OR '.join(leaves)}))"
