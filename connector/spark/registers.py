"""The merge rule in the JVM, for `versions = latest` and order by commit: `connector.merge`, one register per column.

`merge.py` is the definition. Here the state of a row is laid out so that a merge is one comparison per column in generated
code, and a test holds the two against each other on generated histories:

* a *register* for each typed column: the order, cell timestamp and value of its newest write. A deletion of the whole column
  is a write without a value.
* the order of the newest deletion of each family that has a column.
* `rest`, null for nearly every row: whatever has no register, that is cells and families that no column maps, and deletions
  of a range of cell timestamps.

A register is the greatest of its kind, so a row's state is one aggregation over all that is known of it: its changes, its
row in the table, and what the graveyard remembers. Changes carry one order for all their entries until they are aggregated,
so that little is shuffled; rows of the table carry their state as it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.spark.typed import SPARK_TYPE, key_columns, typed
from connector.tables import BUCKET, STATE, UNMAPPED, Column, TableDefinition

ORDER_TYPE: Final = (
    "struct<commit_timestamp: bigint, tie_breaker: bigint, record_sequence: bigint, ingest_batch: bigint, "
    "kafka_partition: int, offset: bigint, attempt: int, entry_index: int>"
)
REST_TYPE: Final = (
    "array<struct<family: string, qualifier: binary, range_start: bigint, range_end: bigint, "
    f"order: {ORDER_TYPE}, cell_timestamp: bigint, value: binary>>"
)
STATE_TYPE: Final = f"struct<orders: array<{ORDER_TYPE}>, cell_timestamps: array<bigint>, families: array<{ORDER_TYPE}>, rest: {REST_TYPE}>"

_CHANGE_ORDER: Final = """named_struct('commit_timestamp', unix_micros(commit_timestamp), 'tie_breaker', tie_breaker,
    'record_sequence', coalesce(transaction.record_sequence, 0L), 'ingest_batch', order_position.ingest_batch,
    'kafka_partition', order_position.kafka_partition, 'offset', order_position.offset, 'attempt', order_position.attempt)"""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which register is whose: columns by their ids, families in the order in which columns first name them."""

    definition: TableDefinition
    buckets: int

    @property
    def keys(self) -> list[str]:
        """Names of the key columns, quoted for SQL."""
        return [f"`{part.name}`" for part in self.definition.key.parts]

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.definition.columns

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(column.family for column in self.columns))

    @property
    def column_types(self) -> list[tuple[str, str]]:
        """All columns of the table on disk, with their Spark types, in order (TBL-22)."""
        keys = [(part.name, SPARK_TYPE[part.type]) for part in self.definition.key.parts]
        columns = [(column.name, SPARK_TYPE[column.type]) for column in self.columns]
        return [*keys, *columns, (UNMAPPED, "map<string, binary>"), (STATE, STATE_TYPE), (BUCKET, "int")]


def pivot(changes: DataFrame, layout: Layout, *, deletes_cells: bool = True) -> DataFrame:
    """One row per change: its key, its order, and for each register the index of the entry that wrote it, if any did.

    `changes` are rows of the changelog; `deletes_cells` false promises that none of them has a DELETE_CELLS. Columns: `_bucket`,
    the key columns, `_change_order`, `_i<n>`, `_t<n>`, `_v<n>` (index, cell timestamp, typed value) for column n, `_d<n>` (index of
    the deletion) for family n, `_rest`, `_unreadable` (the key or a value that the table cannot hold), `_may_remove` (the change
    leaves no cell behind), `_deletes_cells`.
    """
    return _placed(changes, layout).selectExpr(
        f"int(pmod(xxhash64(row_key), {layout.buckets})) AS {BUCKET}",
        *(f"key{place} AS {name}" for place, name in enumerate(layout.keys)),
        f"{_CHANGE_ORDER} AS _change_order",
        *(part for n, column in enumerate(layout.columns) for part in _written(n, column, deletes_cells=deletes_cells)),
        *(f"CASE WHEN _f{n} > 0 THEN size(entries) - int(_f{n}) END AS _d{n}" for n in range(len(layout.families))),
        f"CASE WHEN NOT plain THEN {_rest(layout)} END AS _rest",
        f"{_unreadable(layout)} AS _unreadable",
        f"{_may_remove(layout)} AS _may_remove",
        "deletes_cells AS _deletes_cells",
    )


def unreadable(changes: DataFrame, layout: Layout) -> DataFrame:
    """The rows of the changelog whose change the table cannot hold, as they are."""
    return _placed(changes, layout).where(_unreadable(layout)).select(changes.columns)


def _placed(changes: DataFrame, layout: Layout) -> DataFrame:
    """Changelog rows with, for column n, the place `_p<n>` of the last entry that sets it, counted from the end, that entry
    `_e<n>` and its typed value `_w<n>`; for family n the place `_f<n>` of its last deletion; 0 where there is none.
    """
    found = changes.selectExpr(
        "*",
        "reverse(entries) AS backwards",
        "array_contains(entries.kind, 'DELETE_CELLS') AS deletes_cells",
        *(f"{key} AS key{place}" for place, key in enumerate(key_columns(layout.definition.key, "row_key"))),
    ).selectExpr(
        "*",
        "arrays_zip(backwards.kind, backwards.family, backwards.qualifier) AS cells",
        "arrays_zip(backwards.kind, backwards.family) AS families",
    )
    places = found.selectExpr(
        "*",
        *(f"array_position(cells, {_set_cell(column)}) AS _p{n}" for n, column in enumerate(layout.columns)),
        *(
            f"array_position(families, named_struct('kind', 'DELETE_FAMILY', 'family', '{family}')) AS _f{n}"
            for n, family in enumerate(layout.families)
        ),
    )
    every = [f"int(_p{n} > 0)" for n in range(len(layout.columns))] + [f"int(_f{n} > 0)" for n in range(len(layout.families))]
    # Each place found is an entry of its own: if all are accounted for, no column was written twice and nothing is left over.
    plain = f"size(entries) = {' + '.join(every) or '0'}"
    return places.selectExpr(
        "*",
        f"{plain} AS plain",
        *(f"get(backwards, int(_p{n}) - 1) AS _e{n}" for n in range(len(layout.columns))),
    ).selectExpr(
        "*", *(f"CASE WHEN _p{n} > 0 THEN {typed(c.type, c.encoding, f'_e{n}.value')} END AS _w{n}" for n, c in enumerate(layout.columns))
    )


def merged(known: DataFrame, layout: Layout, *, with_rest: bool) -> DataFrame:
    """The rows that all of `known` makes: the columns of the table, `_exists`, and `_changed` (some change is of this row).

    `known` is a union of `as_known_changes` and `as_known_states`. `with_rest` false promises that no `rest` is filled.
    """
    registers = [F.expr(f"max({_register(n)})").alias(f"_r{n}") for n in range(len(layout.columns))]
    deletions = [F.expr(f"max({_deletion(n)})").alias(f"_f{n}") for n in range(len(layout.families))]
    rest = F.expr("flatten(collect_list(_rest))") if with_rest else F.expr(f"cast(null AS {REST_TYPE})")
    grouped = known.groupBy(BUCKET, *layout.keys).agg(
        *registers, *deletions, rest.alias("_rest"), F.expr("max(_stored IS NULL)").alias("_changed")
    )
    covered = grouped.selectExpr(
        BUCKET, *layout.keys, "_changed", *_uncovered(layout), *(f"_f{n}" for n in range(len(layout.families))), "_rest"
    )
    if with_rest:
        covered = _settle_rest(covered, layout)
    return _rows(covered, layout)


def _register(n: int) -> str:
    """Register n of one change, or of one stored row; null where it says nothing of the column."""
    of_change = f"named_struct('order', {_order(f'_i{n}')}, 't', _t{n}, 'v', _v{n})"
    of_row = f"named_struct('order', get(_stored.orders, {n}), 't', get(_stored.cell_timestamps, {n}), 'v', _v{n})"
    return (
        f"CASE WHEN _stored IS NULL THEN CASE WHEN _i{n} IS NOT NULL THEN {of_change} END "
        f"WHEN get(_stored.orders, {n}) IS NOT NULL THEN {of_row} END"
    )


def _deletion(n: int) -> str:
    """The deletion of family n by one change, or the newest that one stored row knows."""
    return f"CASE WHEN _stored IS NULL THEN CASE WHEN _d{n} IS NOT NULL THEN {_order(f'_d{n}')} END ELSE get(_stored.families, {n}) END"


def as_known_changes(pivoted: DataFrame, layout: Layout, *, with_rest: bool) -> DataFrame:
    """Pivoted changes as one side of the union that `merged` takes. `with_rest` false promises that no `_rest` is filled."""
    registers = [f"_{name}{n}" for n in range(len(layout.columns)) for name in "itv"] + [f"_d{n}" for n in range(len(layout.families))]
    rest = "_rest" if with_rest else f"cast(null AS {REST_TYPE}) AS _rest"
    return pivoted.selectExpr(BUCKET, *layout.keys, "_change_order", *registers, rest, f"cast(null AS {STATE_TYPE}) AS _stored")


def as_known_states(rows: DataFrame, layout: Layout, *, with_values: bool) -> DataFrame:
    """Rows of the table (`with_values`), or of the graveyard, as another side of it."""
    fields = ORDER_TYPE.replace(", entry_index: int", "")
    registers = [
        part
        for n, column in enumerate(layout.columns)
        for part in (
            f"cast(null AS int) AS _i{n}",
            f"cast(null AS bigint) AS _t{n}",
            f"{f'`{column.name}`' if with_values else f'cast(null AS {SPARK_TYPE[column.type]})'} AS _v{n}",
        )
    ]
    deletions = [f"cast(null AS int) AS _d{n}" for n in range(len(layout.families))]
    return rows.selectExpr(
        BUCKET,
        *layout.keys,
        f"cast(null AS {fields}) AS _change_order",
        *registers,
        *deletions,
        f"{STATE}.rest AS _rest",
        f"{STATE} AS _stored",
    )


def _set_cell(column: Column) -> str:
    return f"named_struct('kind', 'SET_CELL', 'family', '{column.family}', 'qualifier', X'{column.qualifier.hex()}')"


def _is_cell(column: Column) -> str:
    return f"e.family = '{column.family}' AND e.qualifier = X'{column.qualifier.hex()}'"


def _written(n: int, column: Column, *, deletes_cells: bool) -> list[str]:
    """Index, timestamp and value of the last entry that wrote column n: a cell, or a deletion of the whole column after it."""
    last = f"CASE WHEN _p{n} > 0 THEN size(entries) - int(_p{n}) END"
    if not deletes_cells:
        return [f"{last} AS _i{n}", f"CASE WHEN _p{n} > 0 THEN _e{n}.cell_timestamp END AS _t{n}", f"_w{n} AS _v{n}"]
    whole = f"e.kind = 'DELETE_CELLS' AND e.range_start = 0 AND e.range_end = 0 AND {_is_cell(column)}"
    deleted = f"CASE WHEN deletes_cells THEN array_max(transform(entries, (e, i) -> CASE WHEN {whole} THEN i END)) END"
    is_set = f"NOT coalesce(deletes_cells AND coalesce({deleted}, -1) > coalesce({last}, -1), false)"
    return [
        f"CASE WHEN {is_set} THEN {last} ELSE {deleted} END AS _i{n}",
        f"CASE WHEN _p{n} > 0 AND {is_set} THEN _e{n}.cell_timestamp END AS _t{n}",
        f"CASE WHEN {is_set} THEN _w{n} END AS _v{n}",
    ]


def _rest(layout: Layout) -> str:
    """The entries that no register holds, as elements of `rest`; null if there are none."""
    mapped = " OR ".join(f"({_is_cell(column)})" for column in layout.columns) or "false"
    families = ", ".join(f"'{family}'" for family in layout.families) or "NULL"
    keeps = "true" if layout.definition.keep_unmapped else "false"
    bounded = "e.kind = 'DELETE_CELLS' AND NOT (e.range_start = 0 AND e.range_end = 0)"
    wanted = (
        f"CASE WHEN e.kind = 'DELETE_FAMILY' THEN NOT coalesce(e.family IN ({families}), false) AND {keeps} "
        f"WHEN {bounded} THEN {mapped} OR {keeps} ELSE NOT ({mapped}) AND {keeps} END"
    )
    element = (
        "named_struct('family', e.family, 'qualifier', CASE WHEN e.kind <> 'DELETE_FAMILY' THEN e.qualifier END, "
        f"'range_start', CASE WHEN {bounded} THEN e.range_start END, 'range_end', CASE WHEN {bounded} THEN e.range_end END, "
        f"'order', {_order('i', _CHANGE_ORDER)}, 'cell_timestamp', CASE WHEN e.kind = 'SET_CELL' THEN e.cell_timestamp END, "
        "'value', CASE WHEN e.kind = 'SET_CELL' THEN e.value END)"
    )
    elements = f"filter(transform(entries, (e, i) -> CASE WHEN {wanted} THEN {element} END), x -> x IS NOT NULL)"
    return f"nullif(cast({elements} AS {REST_TYPE}), cast(array() AS {REST_TYPE}))"


def _order(index: str, change_order: str = "_change_order") -> str:
    parts = ("commit_timestamp", "tie_breaker", "record_sequence", "ingest_batch", "kafka_partition", "offset", "attempt")
    whole = ", ".join(f"'{part}', {change_order}.{part}" for part in parts)
    return f"named_struct({whole}, 'entry_index', {index})"


def _unreadable(layout: Layout) -> str:
    """Whether the key, or any cell that the change sets in a column, cannot be read; a masked cell counts too (TBL-9)."""
    keys = [f"key{place} IS NULL" for place in range(len(layout.keys))]
    last = [f"_p{n} > 0 AND _w{n} IS NULL" for n in range(len(layout.columns))]
    any_ = [
        f"exists(entries, e -> e.kind = 'SET_CELL' AND {_is_cell(c)} AND {typed(c.type, c.encoding, 'e.value')} IS NULL)"
        for c in layout.columns
    ]
    anywhere = f"NOT plain AND ({' OR '.join(any_)})" if any_ else "false"
    return f"({' OR '.join([*keys, *last, anywhere])})"


def _may_remove(layout: Layout) -> str:
    """Whether the change could leave its row without a cell: unless it is plain and sets a cell behind every deletion of a family."""
    families = layout.families
    sets = [
        f"_p{n} > 0 AND coalesce(_p{n} < _f{families.index(c.family)} OR _f{families.index(c.family)} = 0, true)"
        for n, c in enumerate(layout.columns)
    ]
    return f"NOT (plain AND ({' OR '.join(sets) or 'false'}))"


def _uncovered(layout: Layout) -> list[str]:
    """Registers that no newer deletion of their family covers; a covered one is forgotten, the deletion says it all (MRG-9)."""
    return [
        f"CASE WHEN coalesce(_f{layout.families.index(column.family)} > _r{n}.order, false) THEN NULL ELSE _r{n} END AS _r{n}"
        for n, column in enumerate(layout.columns)
    ]


def _settle_rest(grouped: DataFrame, layout: Layout) -> DataFrame:
    """Normalise `rest`, and take the values of cells and registers that a deleted range covers (MRG-9)."""
    name = "(x.family, x.qualifier, x.range_start, x.range_end)"
    # Sorted by name and order, the newest of each name is the last.
    newest = f"filter(known, (x, i) -> NOT coalesce({name} <=> {name.replace('x.', 'get(known, i + 1).')}, false))"
    families = (
        "map_from_entries(filter(array("
        + ", ".join(
            f"named_struct('key', '{family}', 'value', CASE WHEN _f{n} IS NOT NULL THEN _f{n} END)"
            for n, family in enumerate(layout.families)
        )
        + "), x -> x.value IS NOT NULL))"
    )
    deleted = "exists(kept, y -> y.qualifier IS NULL AND y.family = x.family AND y.order > x.order)"
    if layout.families:
        deleted += f" OR coalesce(element_at({families}, x.family) > x.order, false)"
    wider = (
        "x.range_start IS NOT NULL AND exists(kept, y -> y.family = x.family AND y.qualifier = x.qualifier AND y.order > x.order AND "
        "(y.range_start <= x.range_start AND (y.range_end = 0 OR (x.range_end > 0 AND x.range_end <= y.range_end)) "
        "OR (y.range_start IS NULL AND y.cell_timestamp IS NULL AND y.value IS NULL)))"
    )
    in_range = (
        "exists(kept, y -> y.range_start IS NOT NULL AND y.family = {family} AND y.qualifier = {qualifier} AND y.order > {order} "
        "AND y.range_start <= {t} AND (y.range_end = 0 OR {t} < y.range_end))"
    )
    hidden = in_range.format(family="x.family", qualifier="x.qualifier", order="x.order", t="x.cell_timestamp")
    value = f"CASE WHEN x.range_start IS NULL AND x.value IS NOT NULL AND {hidden} THEN NULL ELSE x.value END"
    fields = [f"'{field}', x.{field}" for field in ("family", "qualifier", "range_start", "range_end", "order", "cell_timestamp")]
    with_values = (
        f"transform(filter(kept, x -> NOT ({deleted}) AND NOT ({wider})), x -> named_struct({', '.join(fields)}, 'value', {value}))"
    )
    others = [f"`{column}`" for column in grouped.columns if column != "_rest"]
    registers = []
    for n, column in enumerate(layout.columns):
        hides = in_range.format(family=f"'{column.family}'", qualifier=f"X'{column.qualifier.hex()}'", order=f"_r{n}.order", t=f"_r{n}.t")
        without = f"named_struct('order', _r{n}.order, 't', _r{n}.t, 'v', cast(NULL AS {SPARK_TYPE[column.type]}))"
        registers.append(f"CASE WHEN _r{n}.v IS NOT NULL AND {hides} THEN {without} ELSE _r{n} END AS _r{n}")
    rest = [column for column in others if not (column.startswith("`_r") and column[3:-1].isdigit())]
    return (
        grouped.selectExpr(*others, "sort_array(_rest) AS known")
        .selectExpr(*others, f"{newest} AS kept")
        .selectExpr(*rest, *registers, f"cast({with_values} AS {REST_TYPE}) AS _rest")
        .selectExpr(*others, f"nullif(_rest, cast(array() AS {REST_TYPE})) AS _rest")
    )


_BYTE: Final = "substring(x.qualifier, i, 1)"
_UNMAPPED_NAME: Final = f"""concat(x.family, ':', CASE
    WHEN is_valid_utf8(cast(x.qualifier AS string)) THEN replace(cast(x.qualifier AS string), '%', '%25')
    ELSE array_join(transform(sequence(1, octet_length(x.qualifier)), i ->
        CASE WHEN {_BYTE} >= X'80' OR {_BYTE} = X'25' THEN concat('%', hex({_BYTE})) ELSE cast({_BYTE} AS string) END), '') END)"""


def _rows(settled: DataFrame, layout: Layout) -> DataFrame:
    """The table's columns from settled registers. A column shows its register's value; a row exists if anything shows (MRG-7)."""
    count = range(len(layout.columns))
    shown = "filter(_rest, x -> x.range_start IS NULL AND x.value IS NOT NULL)"
    pairs = f"transform({shown}, x -> named_struct('key', {_UNMAPPED_NAME}, 'value', x.value))"
    unmapped = f"CASE WHEN size({shown}) > 0 THEN map_from_entries({pairs}) END"
    orders = ", ".join(f"_r{n}.order" for n in count)
    timestamps = ", ".join(f"_r{n}.t" for n in count)
    families = ", ".join(f"_f{n}" for n in range(len(layout.families)))
    fields = f"'orders', array({orders}), 'cell_timestamps', array({timestamps}), 'families', array({families}), 'rest', _rest"
    state = f"CAST(named_struct({fields}) AS {STATE_TYPE})"
    exists = " OR ".join([*(f"_r{n}.v IS NOT NULL" for n in count), f"coalesce(size({shown}) > 0, false)"])
    return settled.selectExpr(
        *layout.keys,
        *(f"_r{n}.v AS `{column.name}`" for n, column in enumerate(layout.columns)),
        f"{unmapped} AS {UNMAPPED}",
        f"{state} AS {STATE}",
        BUCKET,
        f"({exists}) AS _exists",
        "_changed",
    )
