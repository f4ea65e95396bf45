"""The merge rule of `connector.tables.merge`, which is the definition, as Spark SQL. A test
compares both on generated histories. The state of a row has:

* a *register* for each typed column: the order, cell timestamp and value of its newest write. A
  deletion of the whole column is a write without a value.
* the order of the newest deletion of each family that has a column.
* `rest`, the residual, which is null for nearly every row: cells and families that no column maps,
  and deletions of a range of cell timestamps.

If `versions = all`, a column can have many cells. Then there are no registers. Everything is stored
in `rest`, and the typed columns are computed from it.

A merge keeps the greatest register. So the changes of a row are one aggregation, and its result is
compared with the table's row and its tombstones. Orders are wide, so equal ones are stored once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.records.ordering import Rank
from connector.spark.apply.flatten import REGISTER_PARTS, is_of
from connector.spark.sql import constant, spark_type, typed
from connector.spark.storage.layout import Layout, is_older, nothing, order
from connector.tables.column_names import BUCKET, STATE, UNMAPPED
from connector.tables.definition import Column, Versions


@dataclass(frozen=True, slots=True)
class RowRegisters:
    """The state of rows: `frame` has one row for each. The other fields are expressions over it."""

    frame: DataFrame
    registers: list[str]
    deletions: list[str]
    rest: str


def registers_of_changes(
    flattened: DataFrame,
    layout: Layout,
    partitions: int | None,
    *,
    all_whole: bool,
    has_residual: bool,
) -> RowRegisters:
    """The registers of all changes of a row, with a column `_changed` that is true.

    With `partitions` None, the changes are in one partition and stay there. `all_whole` promises
    that every change is `_whole`, so only the newest change of a row counts. `has_residual` false
    promises that `_rest` is always null.
    """
    fields = [
        "_change",
        *(f"_{part}{n}" for n in layout.registers for part in REGISTER_PARTS),
        *(f"_deletion{n}" for n in layout.deletions),
    ]
    by_bucket = flattened.select(
        BUCKET, *layout.keys, *fields, *(["_rest"] if has_residual else [])
    )
    by_bucket = _spread(by_bucket, layout, partitions)
    if all_whole:
        newest = by_bucket.groupBy(BUCKET, *layout.keys).agg(
            F.expr(f"max(struct({', '.join(fields)}))").alias("_newest")
        )
        parts = _parts_of_change("_newest.", layout)
        registers = RowRegisters(newest, *parts, nothing(layout.rest_type))
    else:
        parts, rest = _parts_of_change("", layout), "_rest" if has_residual else ""
        registers = merged_registers(by_bucket, *parts, rest, layout, prefix="_change")
    return replace(registers, frame=registers.frame.withColumn("_changed", F.lit(True)))


def written_columns(rows: RowRegisters, layout: Layout) -> DataFrame:
    """The value that changes write to each column, without `rest`.

    The result has the keys and `_bucket`. For column n, `_written<n>` is true if a change writes
    it, and `_value<n>` is the value.
    """
    registers = [f"{register} AS _register{n}" for n, register in enumerate(rows.registers)]
    deletions = [f"{deletion} AS _deleted{n}" for n, deletion in enumerate(rows.deletions)]
    keys = [BUCKET, *layout.keys]
    uncovered = rows.frame.selectExpr(*keys, *registers, *deletions).selectExpr(
        *keys, *_uncovered(layout), *(f"_deleted{n}" for n in layout.deletions)
    )
    families = [layout.families.index(column.family) for column in layout.registered]
    is_written = [
        f"(_register{n} IS NOT NULL OR _deleted{family} IS NOT NULL) AS _written{n}"
        for n, family in enumerate(families)
    ]
    values = [f"_register{n}.value AS _value{n}" for n in layout.registers]
    return uncovered.selectExpr(*keys, *is_written, *values)


def registers_of_rows(rows: DataFrame, layout: Layout, partitions: int | None) -> RowRegisters:
    """The registers of the table's rows. `partitions` is that of `registers_of_changes`."""
    columns = list(enumerate(layout.columns if layout.registered else ()))
    values = [f"`{column.name}` AS _value{n}" for n, column in columns]
    by_bucket = _spread(
        rows.selectExpr(BUCKET, *layout.keys, *values, f"{STATE} AS _stored"), layout, partitions
    )
    return RowRegisters(
        by_bucket, *stored_registers([f"_value{n}" for n, _ in columns], layout), "_stored.residual"
    )


def registers_of_tombstones(
    entries: DataFrame, layout: Layout, partitions: int | None
) -> RowRegisters:
    """The registers of all tombstones of a row. `partitions` is that of `registers_of_changes`."""
    by_bucket = _spread(
        entries.selectExpr(BUCKET, *layout.keys, f"{STATE} AS _stored"), layout, partitions
    )
    columns = layout.columns if layout.registered else ()
    parts = stored_registers([nothing(spark_type(column.type)) for column in columns], layout)
    return merged_registers(by_bucket, *parts, "_stored.residual", layout, prefix="_tombstone")


def combine(changes: RowRegisters, stored: RowRegisters, layout: Layout, how: str) -> RowRegisters:
    """Both states of a row merged: the greater registers and deletions, and both residuals."""

    def greater(left: list[str], right: list[str]) -> list[str]:
        return [f"greatest({first}, {second})" for first, second in zip(left, right, strict=True)]

    residuals = (f"coalesce({side.rest}, {layout.no_rest})" for side in (changes, stored))
    return RowRegisters(
        changes.frame.join(stored.frame, [BUCKET, *layout.key_names], how),
        greater(changes.registers, stored.registers),
        greater(changes.deletions, stored.deletions),
        f"concat({', '.join(residuals)})",
    )


def rows_of(
    state: RowRegisters,
    layout: Layout,
    *,
    has_residual: bool,
    horizon: int | None = None,
    truncated: Rank | None = None,
) -> DataFrame:
    """The rows that `state` makes: the columns of the table, `_exists`, and `_changed` (a change is
    of this row).

    `has_residual` false promises that `rest` is always null. Elements of `rest` below `horizon`
    that show nothing are removed, because `rest` would grow without limit (MRG-10). Everything that
    is older than a truncation with the rank `truncated` is removed (EVO-13).
    """
    deletions = [f"_deleted{n}" for n in layout.deletions]
    named = state.frame.selectExpr(
        BUCKET,
        *layout.keys,
        "coalesce(_changed, false) AS _changed",
        *(f"{register} AS _register{n}" for n, register in enumerate(state.registers)),
        *(
            f"{deletion} AS {name}"
            for name, deletion in zip(deletions, state.deletions, strict=True)
        ),
        f"{state.rest if has_residual else nothing(layout.rest_type)} AS _rest",
    )
    if truncated is not None:
        named = named.selectExpr(
            *(BUCKET, *layout.keys, "_changed"),
            *(_not_older(f"_register{n}", truncated, "order.change") for n in layout.registers),
            *(_not_older(name, truncated, "change") for name in deletions),
            f"filter(_rest, x -> NOT {is_older('x.order.change', truncated)}) AS _rest",
        )
    uncovered = named.selectExpr(
        BUCKET, *layout.keys, "_changed", *_uncovered(layout), *deletions, "_rest"
    )
    normal = _residual_state(uncovered, layout, horizon) if has_residual else uncovered
    is_all = layout.definition.versions is Versions.ALL
    rows = (
        _rows_of_versions(normal, layout)
        if is_all
        else _rows(normal, layout, has_residual=has_residual)
    )
    if not has_residual:
        return rows
    # Spark would move this filter below the projections that it uses, and would sort `rest` again
    # for each element. It does not move a filter that is not deterministic.
    return rows.withColumn("_exists", F.expr("_exists AND monotonically_increasing_id() >= 0"))


def _spread(rows: DataFrame, layout: Layout, partitions: int | None) -> DataFrame:
    """Rows with the same key are in the same task."""
    return rows if partitions is None else rows.repartition(partitions, *layout.spread)


def merged_registers(
    by_bucket: DataFrame,
    registers: list[str],
    deletions: list[str],
    rest: str,
    layout: Layout,
    *,
    prefix: str,
) -> RowRegisters:
    """The registers of all rows with the same key, merged. An empty `rest`: no residual."""
    kinds = {"register": registers, "deletion": deletions}
    aggregates = {
        f"{prefix}_{kind}{n}": f"max({text})"
        for kind, texts in kinds.items()
        for n, text in enumerate(texts)
    }
    if rest:
        aggregates[f"{prefix}_rest"] = f"flatten(collect_list({rest}))"
    # The count is not used. It is there because a table may have no other aggregate.
    aggregated = [
        F.count("*").alias(f"{prefix}_count"),
        *(F.expr(text).alias(name) for name, text in aggregates.items()),
    ]
    frame = by_bucket.groupBy(BUCKET, *layout.keys).agg(*aggregated)
    return RowRegisters(
        frame,
        [f"{prefix}_register{n}" for n in range(len(registers))],
        [f"{prefix}_deletion{n}" for n in range(len(deletions))],
        f"{prefix}_rest" if rest else nothing(layout.rest_type),
    )


def _parts_of_change(prefix: str, layout: Layout) -> tuple[list[str], list[str]]:
    """Registers and deletions of one flattened change. Its column names begin with `prefix`."""
    change = f"{prefix}_change"
    registers = [
        _register(f"{prefix}_entry{n}", change, f"{prefix}_cell_timestamp{n}", f"{prefix}_typed{n}")
        for n in layout.registers
    ]
    return registers, [_order_or_null(f"{prefix}_deletion{n}", change) for n in layout.deletions]


def stored_registers(values: list[str], layout: Layout) -> tuple[list[str], list[str]]:
    """Registers and deletions of one stored row with the `values` of its columns. Its state is
    `_stored`.
    """

    def change(which: str, n: int) -> str:
        return f"get(_stored.orders, get(_stored.{which}, {n}))"

    registers = [
        _register(
            f"get(_stored.column_entries, {n})",
            change("column_orders", n),
            f"get(_stored.cell_timestamps, {n})",
            value,
        )
        for n, value in zip(layout.column_slots, values, strict=True)
    ]
    if layout.registered:
        change_of_mark = "get(_stored.orders, _stored.mark_order)"
        is_there = "CASE WHEN _stored.mark_timestamp IS NOT NULL THEN X'' END"
        mark = ("_stored.mark_entry", change_of_mark, "_stored.mark_timestamp", is_there)
        registers.append(_register(*mark))
    return registers, [
        _order_or_null(f"get(_stored.family_entries, {n})", change("family_orders", n))
        for n in layout.family_slots
    ]


def is_write_of(column: Column) -> str:
    """Whether element x of a residual is the cell of the column, or a deletion of all of it."""
    return f"x.range_start IS NULL AND {is_of(column, 'x')}"


def is_deletion_of(family: str) -> str:
    """Whether element x of a residual is a deletion of the family."""
    return f"x.qualifier IS NULL AND x.family = '{family}'"


def fits(column: Column, value: str = "x.value") -> str:
    """Whether the column can hold the bytes of an element."""
    return f"{typed(column.type, column.encoding, value)} IS NOT NULL"


def is_held_by(column: Column) -> str:
    """Whether a register of the column has all of element x of a residual. If not, its bytes stay
    there.
    """
    return f"{is_write_of(column)} AND (x.value IS NULL OR {fits(column)})"


def element_with(condition: str) -> str:
    """The element of a stored residual for which a condition of x is true, or null."""
    return f"get(filter(_stored.residual, x -> {condition}), 0)"


def register_of_element(element: str, column: Column) -> str:
    """The register of a column from its element of a residual."""
    value = typed(column.type, column.encoding, f"{element}.value")
    return (
        f"CASE WHEN {element} IS NOT NULL THEN named_struct('order', {element}.order,"
        f" 'cell_timestamp', {element}.cell_timestamp, 'value', {value}) END"
    )


def _register(index: str, change: str, timestamp: str, value: str) -> str:
    """A register. It is null if `index` is null: the change does not mention the column."""
    return (
        f"CASE WHEN {index} IS NOT NULL THEN named_struct('order', {order(index, change)},"
        f" 'cell_timestamp', {timestamp}, 'value', {value}) END"
    )


def _order_or_null(index: str, change: str) -> str:
    return f"CASE WHEN {index} IS NOT NULL THEN {order(index, change)} END"


def _not_older(name: str, rank: Rank, change: str) -> str:
    """A register or a deletion without what is older than a rank."""
    return f"CASE WHEN {is_older(f'{name}.{change}', rank)} THEN NULL ELSE {name} END AS {name}"


def _uncovered(layout: Layout) -> list[str]:
    """Registers without those that a newer deletion of their family covers and replaces (MRG-9)."""
    return [
        f"CASE WHEN coalesce(_deleted{layout.families.index(column.family)} > _register{n}.order,"
        f" false) THEN NULL ELSE _register{n} END AS _register{n}"
        for n, column in enumerate(layout.registered)
    ]


def _residual_state(grouped: DataFrame, layout: Layout, horizon: int | None) -> DataFrame:
    """Normalise `rest`: remove values that a deleted range covers (MRG-9), also those of registers,
    and what is too old (MRG-10). If all versions are kept, a covered cell is removed completely.
    """
    name = f"({', '.join(f'x.{field}' for field in layout.rest_name)})"
    # The elements are sorted by name and order, so the newest one of each name is the last.
    newest = (
        f"filter(_sorted, (x, i) -> NOT coalesce({name} <=>"
        f" {name.replace('x.', 'get(_sorted, i + 1).')}, false))"
    )
    oldest = constant(horizon or 0, BUCKET)
    others = [f"`{column}`" for column in grouped.columns if column != "_rest"]
    registers = {f"`_register{n}`" for n in layout.registers}
    no_registers = [column for column in others if column not in registers]
    return (
        grouped.selectExpr(*others, "sort_array(_rest) AS _sorted")
        .selectExpr(*others, f"{newest} AS _kept")
        .selectExpr(*others, "_kept", "filter(_kept, x -> x.value IS NULL) AS _deletions")
        .selectExpr(
            *no_registers, *_registers_outside_ranges(layout), f"{_residual_of(layout)} AS _rest"
        )
        .selectExpr(
            *others,
            f"filter(_rest, x -> x.value IS NOT NULL OR x.order.change.{layout.age} >= {oldest})"
            " AS _rest",
        )
        .selectExpr(*others, f"nullif(_rest, {layout.no_rest}) AS _rest")
    )


_IN_RANGE: Final = """
    exists(_deletions, y -> y.range_start IS NOT NULL
        AND y.family = {family} AND y.qualifier = {qualifier} AND y.order > {order}
        AND y.range_start <= {time} AND (y.range_end = 0 OR {time} < y.range_end))"""
"""Whether a newer deletion of a range covers a cell."""

_IN_WIDER_DELETION: Final = """
    x.range_start IS NOT NULL AND exists(_deletions, y ->
        y.family = x.family AND y.qualifier = x.qualifier AND y.order > x.order
        AND (y.range_start <= x.range_start
             AND (y.range_end = 0 OR (x.range_end > 0 AND x.range_end <= y.range_end))
             OR (y.range_start IS NULL AND y.cell_timestamp IS NULL AND y.value IS NULL)))"""
"""Whether a newer deletion covers the whole range of a deletion."""

_IN_DELETED_FAMILY: Final = """
    exists(_deletions, y ->
        y.qualifier IS NULL AND y.family = x.family AND y.order > x.order)"""


def _residual_of(layout: Layout) -> str:
    """The elements of `_kept` that no newer deletion covers, as SQL. A cell in a deleted range has
    no value, or is removed if all versions are kept.
    """
    deleted = _IN_DELETED_FAMILY
    if layout.families:
        families = ", ".join(
            f"named_struct('key', '{family}', 'value',"
            f" CASE WHEN _deleted{n} IS NOT NULL THEN _deleted{n} END)"
            for n, family in enumerate(layout.families)
        )
        of_family = f"map_from_entries(filter(array({families}), x -> x.value IS NOT NULL))"
        deleted += f" OR coalesce(element_at({of_family}, x.family) > x.order, false)"
    hidden = _IN_RANGE.format(
        family="x.family", qualifier="x.qualifier", order="x.order", time="x.cell_timestamp"
    )
    if layout.definition.versions is Versions.ALL:
        deleted += f" OR (x.value IS NOT NULL AND {hidden})"
        value = "x.value"
    else:
        is_hidden = f"x.range_start IS NULL AND x.value IS NOT NULL AND {hidden}"
        value = f"CASE WHEN {is_hidden} THEN NULL ELSE x.value END"
    # Bytes that a register could not hold belong to its newest write. After a newer write they are
    # removed.
    rewritten = " OR ".join(
        f"coalesce({is_write_of(column)} AND _register{n}.order > x.order, false)"
        for n, column, _ in layout.tolerant
        if layout.registered
    )
    fields = ", ".join(
        f"'{field}', {value if field == 'value' else f'x.{field}'}" for field in layout.rest_fields
    )
    stays = f"NOT ({deleted}) AND NOT ({_IN_WIDER_DELETION}) AND NOT ({rewritten or 'false'})"
    elements = f"transform(filter(_kept, x -> {stays}), x -> named_struct({fields}))"
    return f"cast({elements} AS {layout.rest_type})"


def _registers_outside_ranges(layout: Layout) -> list[str]:
    """The registers, without the values that a newer deletion of a range covers."""
    registers = []
    for n, column in enumerate(layout.registered):
        register = f"_register{n}"
        hides = _IN_RANGE.format(
            family=f"'{column.family}'",
            qualifier=f"X'{column.qualifier.hex()}'",
            order=f"{register}.order",
            time=f"{register}.cell_timestamp",
        )
        without = (
            f"named_struct('order', {register}.order, 'cell_timestamp', {register}.cell_timestamp,"
            f" 'value', {nothing(spark_type(column.type))})"
        )
        registers.append(
            f"CASE WHEN {register}.value IS NOT NULL AND {hides} THEN {without} ELSE {register} END"
            f" AS {register}"
        )
    return registers


_BYTE: Final = "substring(x.qualifier, i, 1)"
_UNMAPPED_NAME: Final = f"""concat(x.family, ':', CASE
    WHEN is_valid_utf8(cast(x.qualifier AS string)) THEN replace(cast(x.qualifier AS string), '%',
    '%25')
    ELSE array_join(transform(sequence(1, octet_length(x.qualifier)), i ->
        CASE WHEN {_BYTE} >= X'80' OR {_BYTE} = X'25' THEN concat('%',
        hex({_BYTE})) ELSE cast({_BYTE} AS string) END), '') END)"""


def _rows(normal: DataFrame, layout: Layout, *, has_residual: bool) -> DataFrame:
    """The table's columns from normalised registers.

    A column shows the value of its register. A row exists if it has a visible value (MRG-7).
    """
    changes = [
        *(f"_register{n}.order.change" for n in layout.registers),
        *(f"_deleted{n}.change" for n in layout.deletions),
    ]
    together = (
        f"least({', '.join(changes)}) <=> greatest({', '.join(changes)})" if changes else "true"
    )
    shown = "filter(_rest, x -> x.range_start IS NULL AND x.value IS NOT NULL)"
    pairs = f"transform({shown}, x -> named_struct('key', {_UNMAPPED_NAME}, 'value', x.value))"
    unmapped = (
        f"CASE WHEN size({shown}) > 0 THEN map_from_entries({pairs}) END"
        if has_residual
        else "cast(null AS map<string, binary>)"
    )
    exists = [
        *(f"_register{n}.value IS NOT NULL" for n in layout.registers),
        *([f"coalesce(size({shown}) > 0, false)"] if has_residual else []),
    ]
    return normal.selectExpr("*", f"{together} AS _together").selectExpr(
        *layout.keys,
        *(f"_register{n}.value AS `{column.name}`" for n, column in enumerate(layout.columns)),
        f"{unmapped} AS {UNMAPPED}",
        f"{_state(changes, layout)} AS {STATE}",
        BUCKET,
        f"({' OR '.join(exists) or 'false'}) AS _exists",
        "_changed",
    )


def _rows_of_versions(normal: DataFrame, layout: Layout) -> DataFrame:
    """The table's columns if every cell is in `rest`: a column shows the visible cell with the
    greatest cell timestamp (MRG-7), or the cell stays in `_unmapped` if it cannot hold it (TBL-8).
    """
    next_cell = "get(_cells, i + 1)"
    has_newer = (
        f"coalesce(x.family = {next_cell}.family AND x.qualifier = {next_cell}.qualifier, false)"
    )
    columns, keeps = list(enumerate(layout.columns)), layout.definition.keep_unmapped
    mapped = (
        " OR ".join(f"(_typed{n} IS NOT NULL AND {is_of(column, 'x')})" for n, column in columns)
        or "false"
    )
    is_mark = is_of(layout.definition.presence, "x")
    pairs = f"transform(_others, x -> named_struct('key', {_UNMAPPED_NAME}, 'value', x.value))"
    exists = (
        ["coalesce(size(_shown) > 0, false)"]
        if keeps
        else [*(f"_typed{n} IS NOT NULL" for n, _ in columns), f"exists(_shown, x -> {is_mark})"]
    )
    return (
        normal.selectExpr("*", "filter(_rest, x -> x.value IS NOT NULL) AS _cells")
        .selectExpr("*", f"filter(_cells, (x, i) -> NOT {has_newer}) AS _shown")
        .selectExpr(
            "*",
            *(
                f"get(filter(_shown, x -> {is_of(column, 'x')}), 0).value AS _bytes{n}"
                for n, column in columns
            ),
        )
        .selectExpr(
            "*",
            *(
                f"{typed(column.type, column.encoding, f'_bytes{n}')} AS _typed{n}"
                for n, column in columns
            ),
        )
        .selectExpr(
            "*",
            f"filter(_shown, x -> {'true' if keeps else 'false'} AND NOT ({mapped} OR {is_mark}))"
            " AS _others",
        )
        .selectExpr(
            *layout.keys,
            *(f"_typed{n} AS `{column.name}`" for n, column in columns),
            f"CASE WHEN size(_others) > 0 THEN map_from_entries({pairs}) END AS {UNMAPPED}",
            f"{_state([], layout)} AS {STATE}",
            BUCKET,
            f"({' OR '.join(exists)}) AS _exists",
            "_changed",
        )
    )


def _state(changes: list[str], layout: Layout) -> str:
    """The stored state of a row. `changes` are the orders of its registers and deletions."""

    def index(order: str, n: int) -> str:
        return f"CASE WHEN {order} IS NOT NULL THEN CASE WHEN _together THEN 0 ELSE {n} END END"

    def placed(elements: list[str], slots: list[int]) -> str:
        by_slot = dict(zip(slots, elements, strict=True))
        width = max(slots, default=-1) + 1
        return f"array({', '.join(by_slot.get(slot, 'null') for slot in range(width))})"

    columns, families = layout.column_slots, layout.family_slots
    numbers = range(len(columns))
    mark = f"_register{len(columns)}" if layout.registered else None
    deleted = [index(f"_deleted{n}", len(layout.registers) + n) for n in layout.deletions]
    parts = {
        "column_orders": placed([index(f"_register{n}", n) for n in numbers], columns),
        "column_entries": placed([f"_register{n}.order.entry_index" for n in numbers], columns),
        "cell_timestamps": placed([f"_register{n}.cell_timestamp" for n in numbers], columns),
        "mark_order": index(mark, len(columns)) if mark else "null",
        "mark_entry": f"{mark}.order.entry_index" if mark else "null",
        "mark_timestamp": (
            f"CASE WHEN {mark}.value IS NOT NULL THEN {mark}.cell_timestamp END" if mark else "null"
        ),
        "family_orders": placed(deleted, families),
        "family_entries": placed([f"_deleted{n}.entry_index" for n in layout.deletions], families),
    }
    orders = (
        f"CASE WHEN _together THEN array(greatest({', '.join(changes)})) ELSE"
        f" array({', '.join(changes)}) END"
        if changes
        else "array()"
    )
    fields = ", ".join(f"'{name}', {part}" for name, part in parts.items())
    return (
        f"CAST(named_struct('orders', {orders}, {fields}, 'residual', _rest) AS"
        f" {layout.state_type})"
    )
