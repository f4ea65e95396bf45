"""From rows of the changelog to one row per change, with what it says of each register: the first step of a merge.

An entry index of a register is that of the last entry of the change that wrote the column; the rest of the order is the same for
all entries, and is carried once.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.records.ordering import OrderBy
from connector.spark.storage.layout import Layout, nothing, order
from connector.spark.storage.typed import key_columns, key_pieces, typed
from connector.tables.column_names import BUCKET
from connector.tables.definition import Column, Versions

_RANK: Final = {
    OrderBy.COMMIT: """'commit_timestamp', unix_micros(commit_timestamp), 'tie_breaker', tie_breaker,
    'record_sequence', coalesce(transaction.record_sequence, 0L)""",
    OrderBy.SEQUENCE_NUMBER: """'sequence_number', unhex(rpad(array_join(transform(
    split(change_sequence_number, '/'), section -> lpad(section, 16, '0')), ''), 64, '0'))""",
}
_POSITION: Final = """'ingest_batch', order_position.ingest_batch,
    'kafka_partition', order_position.kafka_partition, 'offset', order_position.offset, 'attempt', order_position.attempt"""

RECORD_COORDINATES: Final = ("kafka_partition", "offset")
"""What tells a change from all others of its stream."""


def flatten_entries(changes: DataFrame, layout: Layout, *, all_plain: bool = False) -> DataFrame:
    """One row per change: its key, its order, and for each register the index of the entry that wrote it, if any did.

    `changes` are rows of the changelog. A change is plain if each of its entries sets another column, or deletes another of the
    families that have columns. `all_plain` promises that every change is, and spares the search for anything else; of a change
    that is not, `_plain` alone is then right. Columns: `_bucket`, the key columns, `_change`, `_i<n>`, `_t<n>`, `_v<n>` (index, cell
    timestamp, typed value) for column n, `_d<n>` (index of the deletion) for family n, `_residual`, `_plain`, `_whole` (the change
    covers all that is older in families with columns), `_unreadable` (there is no order, or the key or a value is none that the table
    can hold), `_may_remove` (the change may leave no cell behind), `_committed` (its commit timestamp), `_batch` (the one that logged it),
    `_partition` and `_offset` (its place in the topic, which is a replay's own).

    A value that a column of `layout.late` cannot hold, in a change from before it was defined, is no fault (TBL-8): the register says
    that something was written, the bytes are in `_residual`, and the change is not plain.
    """
    rest = nothing(layout.rest_type) if all_plain else f"CASE WHEN NOT _plain THEN {_residual(layout)} END"
    placed = _placed(changes, layout, all_plain=all_plain)
    if layout.late:
        placed = placed.withColumn("_plain", F.expr(f"_plain AND NOT exists(entries, e -> {_misfits(layout)})"))
    return placed.selectExpr(
        f"int(pmod(xxhash64(row_key), {layout.buckets})) AS {BUCKET}",
        *(f"_key{place} AS {name}" for place, name in enumerate(layout.keys)),
        f"{_change_order(layout)} AS _change",
        *(f"_{register}{n}" for n in layout.registers for register in "itv"),
        *(f"_d{n}" for n in layout.deletions),
        f"{rest} AS _rest",
        "_plain",
        f"{' AND '.join(['_plain', *(f'_d{n} IS NOT NULL' for n in layout.deletions)])} AS _whole",
        f"{_unreadable(layout, all_plain=all_plain)} AS _unreadable",
        f"{_may_remove(layout)} AS _may_remove",
        "unix_micros(commit_timestamp) AS _committed",
        "ingest_batch AS _batch",
        "kafka_partition AS _partition",
        "offset AS _offset",
    )


def unreadable(changes: DataFrame, layout: Layout) -> DataFrame:
    """The places of the changes that the table cannot hold: `kafka_partition` and `offset`.

    Each verdict is written down before it is asked for: Spark would work a filter out below the projections that it rests on,
    with all of them in it, many times for a table of many columns.
    """
    verdict = f"{_unreadable(layout, all_plain=False)} AS _unreadable"
    validated = _placed(changes, layout, all_plain=False).selectExpr(*RECORD_COORDINATES, verdict).localCheckpoint()
    return validated.where("_unreadable").select(*RECORD_COORDINATES)


def _placed(changes: DataFrame, layout: Layout, *, all_plain: bool) -> DataFrame:
    """Changelog rows with their key columns `_key<place>`; with the index `_i<n>` of the last entry that wrote column n, and if that
    set a cell, its timestamp `_t<n>`, bytes `_b<n>` and typed value `_v<n>`; with the index `_d<n>` of the last deletion of family
    n; and `_plain`.
    """
    columns, families = list(enumerate(layout.registered)), list(enumerate(layout.families))
    kept = [*changes.columns, *(f"_key{place}" for place in range(len(layout.keys)))]
    key = layout.definition.key
    placed = (
        changes.selectExpr("*", f"{key_pieces(key, 'row_key')} AS _pieces")
        .selectExpr(
            "*",
            *(f"{part} AS _key{place}" for place, part in enumerate(key_columns(key, "_pieces"))),
            *(f"{_first_cell(column, layout)} AS _i{n}" for n, column in columns),
            *(f"{_first_deletion(family, layout)} AS _d{n}" for n, family in families),
        )
        .selectExpr(
            *kept,
            *(f"CASE WHEN {_sets_found(column, layout, f'get(entries, _i{n})')} THEN _i{n} END AS _i{n}" for n, column in columns),
            *(f"CASE WHEN {_deletes_family(family, f'get(entries, _d{n})')} THEN _d{n} END AS _d{n}" for n, family in families),
        )
    )
    # Each index found is another entry: if no entry is left over, the first that wrote a column was the last, too.
    found = [f"int(_i{n} IS NOT NULL)" for n, _ in columns] + [f"int(_d{n} IS NOT NULL)" for n, _ in families]
    placed = placed.selectExpr("*", f"size(entries.kind) = {' + '.join(found) or 0} AS _plain")
    if not all_plain:
        last = "CASE WHEN _plain THEN {index} ELSE array_max(transform(entries, (e, i) -> CASE WHEN {which} THEN i END)) END AS {index}"
        placed = placed.selectExpr(
            *kept,
            "_plain",
            *(last.format(index=f"_i{n}", which=f"{_sets(column, 'e')} OR {_deletes(column, 'e')}") for n, column in columns),
            *(last.format(index=f"_d{n}", which=_deletes_family(family, "e")) for n, family in families),
        )
    is_set = {n: f"_i{n}" if all_plain else f"CASE WHEN get(entries, _i{n}).kind = 'SET_CELL' THEN _i{n} END" for n, _ in columns}
    return placed.selectExpr(
        "*",
        *(f"get(entries, {is_set[n]}).cell_timestamp AS _t{n}" for n, _ in columns),
        *(f"get(entries, {is_set[n]}).value AS _b{n}" for n, _ in columns),
    ).selectExpr("*", *(f"{typed(column.type, column.encoding, f'_b{n}')} AS _v{n}" for n, column in columns))


def _first_cell(column: Column, layout: Layout) -> str:
    """Where the first entry is that could set the column: the first with its qualifier, if that tells it from other entries."""
    qualifier = f"X'{column.qualifier.hex()}'"
    if _is_told_by_qualifier(column, layout):
        return _index("entries.qualifier", qualifier)
    cell = f"named_struct('kind', 'SET_CELL', 'family', '{column.family}', 'qualifier', {qualifier})"
    return _index("arrays_zip(entries.kind, entries.family, entries.qualifier)", cell)


def _sets_found(column: Column, layout: Layout, entry: str) -> str:
    """Whether the entry that was found is one that sets the column."""
    if _is_told_by_qualifier(column, layout):
        return f"({entry}.kind = 'SET_CELL' AND {entry}.family = '{column.family}')"
    return _sets(column, entry)


def _is_told_by_qualifier(column: Column, layout: Layout) -> bool:
    return bool(column.qualifier) and [other.qualifier for other in layout.registered].count(column.qualifier) == 1


def _first_deletion(family: str, layout: Layout) -> str:
    """Where the first entry is that could delete the family."""
    if len(layout.families) == 1:
        return _index("entries.kind", "'DELETE_FAMILY'")
    deletion = f"named_struct('kind', 'DELETE_FAMILY', 'family', '{family}')"
    return _index("arrays_zip(entries.kind, entries.family)", deletion)


def _index(array: str, element: str) -> str:
    """Where the element first is, from 0 on; -1 if it is not there."""
    return f"int(array_position({array}, {element})) - 1"


def _sets(column: Column, entry: str) -> str:
    return f"({entry}.kind = 'SET_CELL' AND {is_of(column, entry)})"


def _deletes(column: Column, entry: str) -> str:
    """Whether the entry deletes the whole column, and nothing else."""
    return f"({entry}.kind = 'DELETE_CELLS' AND {entry}.range_start = 0 AND {entry}.range_end = 0 AND {is_of(column, entry)})"


def _deletes_family(family: str, entry: str) -> str:
    return f"({entry}.kind = 'DELETE_FAMILY' AND {entry}.family = '{family}')"


def is_of(column: Column, entry: str = "e") -> str:
    """Whether an entry, or an element of `rest`, is of the column's cell."""
    return f"{entry}.family = '{column.family}' AND {entry}.qualifier = X'{column.qualifier.hex()}'"


def _misfit(column: Column) -> str:
    """Whether entry e sets the column to what it cannot hold."""
    return f"{_sets(column, 'e')} AND {typed(column.type, column.encoding, 'e.value')} IS NULL"


def _misfits(layout: Layout) -> str:
    """Whether entry e sets a column that cannot hold it, in a change from before the column was defined."""
    too_early = [f"(ingest_batch <= {batch}L AND {_misfit(column)})" for _, column, batch in layout.late]
    return f"({' OR '.join(too_early) or 'false'})"


def _residual(layout: Layout) -> str:
    """The entries that no register holds, as elements of `rest`; null if there are none."""
    mapped = " OR ".join(f"({is_of(column)})" for column in layout.columns) or "false"
    families = ", ".join(f"'{family}'" for family in dict.fromkeys(column.family for column in layout.columns)) or "NULL"
    in_family = f"coalesce(e.family IN ({families}), false)"
    keeps = "true" if layout.definition.keep_unmapped else "false"
    if layout.definition.versions is Versions.ALL:
        ranged = "e.kind = 'DELETE_CELLS'"
        wanted = f"{keeps} OR CASE WHEN e.kind = 'DELETE_FAMILY' THEN {in_family} ELSE {mapped} END"
    else:
        ranged = "e.kind = 'DELETE_CELLS' AND NOT (e.range_start = 0 AND e.range_end = 0)"
        wanted = (
            f"CASE WHEN e.kind = 'DELETE_FAMILY' THEN NOT {in_family} AND {keeps} "
            f"WHEN {ranged} THEN {mapped} OR {keeps} ELSE (NOT ({mapped}) OR {_misfits(layout)}) AND {keeps} END"
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
    elements = f"filter(transform(entries, (e, i) -> CASE WHEN {wanted} THEN {element} END), x -> x IS NOT NULL)"
    return f"nullif(cast({elements} AS {layout.rest_type}), {layout.no_rest})"


def _change_order(layout: Layout) -> str:
    return f"named_struct({_RANK[layout.definition.order]}, {_POSITION})"


def _unreadable(layout: Layout, *, all_plain: bool) -> str:
    """Whether there is no number to order by, or the key, or any cell that the change sets in a column, cannot be read; a masked cell
    counts too (TBL-9).
    """
    number = ["change_sequence_number IS NULL"] if layout.definition.order is OrderBy.SEQUENCE_NUMBER else []
    keys = [f"_key{place} IS NULL" for place in range(len(layout.keys))]
    validated = {n: f" AND ingest_batch > {batch}L" for n, _, batch in layout.late}
    last = [f"_b{n} IS NOT NULL AND _v{n} IS NULL{validated.get(n, '')}" for n in layout.registers]
    masked = " OR ".join(f"exists(entries, e -> {_misfit(column)}){validated.get(n, '')}" for n, column in enumerate(layout.columns))
    return f"({' OR '.join([*number, *keys, *last, *([] if all_plain or not masked else [f'NOT _plain AND ({masked})'])])})"


def _may_remove(layout: Layout) -> str:
    """Whether the change could leave its row without a cell: unless it is plain and sets a cell behind every deletion of a family, or,
    where all versions are kept, sets one last.
    """
    if layout.definition.versions is Versions.ALL:
        if layout.late and not layout.definition.keep_unmapped:
            return "true"  # what a column cannot hold is not seen, and may hide what it can
        last = "get(entries, size(entries) - 1)"
        is_kept = "true" if layout.definition.keep_unmapped else " OR ".join(is_of(column, last) for column in layout.columns)
        return f"NOT coalesce({last}.kind = 'SET_CELL' AND ({is_kept}), false)"
    deletion = {family: f"coalesce(_d{n}, -1)" for n, family in enumerate(layout.families)}
    leaves = [f"coalesce(_i{n} > {deletion[column.family]}, false)" for n, column in enumerate(layout.columns)]
    return f"NOT (_plain AND ({' OR '.join(leaves) or 'false'}))"
