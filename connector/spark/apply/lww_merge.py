"""The merge rule of `connector.tables.merge` as Spark SQL, with one register per column if
`versions = latest`.

`connector/tables/merge.py` is the definition. Here the state of a row has a form in which a merge
is one comparison per column in generated code. A test compares both on generated histories. The
state has:

* a *register* for each typed column: the order, cell timestamp and value of its newest write. A
  deletion of the whole column is a write without a value.
* the order of the newest deletion of each family that has a column.
* `rest`, the residual, which is null for nearly every row: cells and families that no column maps,
  and deletions of a range of cell timestamps.

If `versions = all`, a column can have many cells. Then there are no registers. Everything is stored
in `rest`, and the typed columns are computed from it.

A merge keeps the greatest register. Therefore the changes of a row are one aggregation. Its result
is compared with the table's row and with its tombstones. Orders are wide. A change stores one order
for all its entries if possible. A stored row does so too if its columns were written together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.spark.apply.flatten import is_of
from connector.spark.sql import constant
from connector.spark.storage.layout import Layout, nothing, order
from connector.spark.storage.typed import SPARK_TYPE, typed
from connector.tables.column_names import BUCKET, STATE, UNMAPPED
from connector.tables.definition import Versions


@dataclass(frozen=True, slots=True)
class RowRegisters:
    """The state of rows: `frame` has one row for each. The other fields are expressions over it."""

    frame: DataFrame
    registers: list[str]
    deletions: list[str]
    rest: str


def registers_of_changes(
    pivoted: DataFrame,
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
        *(f"_{register}{n}" for n in layout.registers for register in "itv"),
        *(f"_d{n}" for n in layout.deletions),
    ]
    by_bucket = pivoted.select(BUCKET, *layout.keys, *fields, *(["_rest"] if has_residual else []))
    by_bucket = _spread(by_bucket, layout, partitions)
    if all_whole:
        newest = by_bucket.groupBy(BUCKET, *layout.keys).agg(
            F.expr(f"max(struct({', '.join(fields)}))").alias("_newest")
        )
        known = RowRegisters(newest, *_said("_newest.", layout), nothing(layout.rest_type))
    else:
        known = _known_together(
            by_bucket, *_said("", layout), "_rest" if has_residual else "", layout, prefix="_change"
        )
    return replace(known, frame=known.frame.withColumn("_changed", F.lit(True)))


def said_of_columns(known: RowRegisters, layout: Layout) -> DataFrame:
    """The value that changes write to each column, without `rest`.

    The result has the keys and `_bucket`. For column n, `_says<n>` is true if a change writes it,
    and `_said<n>` is the value.
    """
    registers = [f"{register} AS _r{n}" for n, register in enumerate(known.registers)]
    deletions = [f"{deletion} AS _f{n}" for n, deletion in enumerate(known.deletions)]
    keys = [BUCKET, *layout.keys]
    covered = known.frame.selectExpr(*keys, *registers, *deletions).selectExpr(
        *keys, *_uncovered(layout), *(f"_f{n}" for n in layout.deletions)
    )
    families = [layout.families.index(column.family) for column in layout.registered]
    says = [
        f"(_r{n} IS NOT NULL OR _f{family} IS NOT NULL) AS _says{n}"
        for n, family in enumerate(families)
    ]
    return covered.selectExpr(*keys, *says, *(f"_r{n}.v AS _said{n}" for n in layout.registers))


def registers_of_rows(rows: DataFrame, layout: Layout, partitions: int | None) -> RowRegisters:
    """The registers of the table's rows. `partitions` is that of `registers_of_changes`."""
    values = [f"`{column.name}` AS _value{n}" for n, column in enumerate(layout.registered)]
    by_bucket = _spread(
        rows.selectExpr(BUCKET, *layout.keys, *values, f"{STATE} AS _stored"), layout, partitions
    )
    return RowRegisters(
        by_bucket, *_stored([f"_value{n}" for n in layout.registers], layout), "_stored.residual"
    )


def registers_of_tombstones(
    entries: DataFrame, layout: Layout, partitions: int | None
) -> RowRegisters:
    """The registers of all tombstones of a row. `partitions` is that of `registers_of_changes`."""
    by_bucket = _spread(
        entries.selectExpr(BUCKET, *layout.keys, f"{STATE} AS _stored"), layout, partitions
    )
    said = _stored([nothing(SPARK_TYPE[column.type]) for column in layout.registered], layout)
    return _known_together(by_bucket, *said, "_stored.residual", layout, prefix="_buried")


def combine(one: RowRegisters, other: RowRegisters, layout: Layout, how: str) -> RowRegisters:
    """Both states of a row merged: the greater of each register and of each deletion, and both
    residuals.
    """
    names = [BUCKET, *layout.key_names]
    return RowRegisters(
        one.frame.join(other.frame, names, how),
        [
            f"greatest({left}, {right})"
            for left, right in zip(one.registers, other.registers, strict=True)
        ],
        [
            f"greatest({left}, {right})"
            for left, right in zip(one.deletions, other.deletions, strict=True)
        ],
        f"concat(coalesce({one.rest}, {layout.no_rest}), coalesce({other.rest}, {layout.no_rest}))",
    )


def rows_of(
    known: RowRegisters, layout: Layout, *, has_residual: bool, horizon: int | None = None
) -> DataFrame:
    """The rows that `known` makes: the columns of the table, `_exists`, and `_changed` (a change is
    of this row).

    `has_residual` false promises that `rest` is always null. Elements of `rest` below `horizon`
    that show nothing are removed, because `rest` would grow without limit (MRG-10). Registers and
    deletions are limited by the number of columns, and stay.
    """
    deletions = [f"_f{n}" for n in layout.deletions]
    said = known.frame.selectExpr(
        BUCKET,
        *layout.keys,
        "coalesce(_changed, false) AS _changed",
        *(f"{register} AS _r{n}" for n, register in enumerate(known.registers)),
        *(
            f"{deletion} AS {name}"
            for name, deletion in zip(deletions, known.deletions, strict=True)
        ),
        f"{known.rest if has_residual else nothing(layout.rest_type)} AS _rest",
    )
    covered = said.selectExpr(
        BUCKET, *layout.keys, "_changed", *_uncovered(layout), *deletions, "_rest"
    )
    settled = _residual_state(covered, layout, horizon) if has_residual else covered
    is_all = layout.definition.versions is Versions.ALL
    rows = (
        _rows_of_versions(settled, layout)
        if is_all
        else _rows(settled, layout, has_residual=has_residual)
    )
    if not has_residual:
        return rows
    # Spark would move this filter below the projections that it uses, and would sort `rest` again
    # for each element. It does not move a filter that is not deterministic.
    return rows.withColumn("_exists", F.expr("_exists AND monotonically_increasing_id() >= 0"))


def _spread(rows: DataFrame, layout: Layout, partitions: int | None) -> DataFrame:
    """Rows with the same key are in the same task."""
    return rows if partitions is None else rows.repartition(partitions, *layout.spread)


def _known_together(
    by_bucket: DataFrame,
    registers: list[str],
    deletions: list[str],
    rest: str,
    layout: Layout,
    *,
    prefix: str,
) -> RowRegisters:
    """All rows with one key merged. An empty `rest`: no row has a residual."""
    kinds = {"register": registers, "deletion": deletions}
    aggregates = {
        f"{prefix}_{kind}{n}": f"max({text})"
        for kind, texts in kinds.items()
        for n, text in enumerate(texts)
    }
    if rest:
        aggregates[f"{prefix}_rest"] = f"flatten(collect_list({rest}))"
    # The count is not used. It is there because a table may have no other aggregate.
    asked = [
        F.count("*").alias(f"{prefix}_count"),
        *(F.expr(text).alias(name) for name, text in aggregates.items()),
    ]
    frame = by_bucket.groupBy(BUCKET, *layout.keys).agg(*asked)
    return RowRegisters(
        frame,
        [f"{prefix}_register{n}" for n in range(len(registers))],
        [f"{prefix}_deletion{n}" for n in range(len(deletions))],
        f"{prefix}_rest" if rest else nothing(layout.rest_type),
    )


def _said(by: str, layout: Layout) -> tuple[list[str], list[str]]:
    """Registers and deletions of one flattened change. Its column names begin with `by`."""
    registers = [
        _register(f"{by}_i{n}", f"{by}_change", f"{by}_t{n}", f"{by}_v{n}")
        for n in layout.registers
    ]
    return registers, [_order_or_null(f"{by}_d{n}", f"{by}_change") for n in layout.deletions]


def _stored(values: list[str], layout: Layout) -> tuple[list[str], list[str]]:
    """Registers and deletions of one stored row. Its state is `_stored`."""

    def change(which: str, n: int) -> str:
        return f"get(_stored.orders, get(_stored.{which}, {n}))"

    registers = [
        _register(
            f"get(_stored.column_entries, {n})",
            change("column_orders", n),
            f"get(_stored.cell_timestamps, {n})",
            value,
        )
        for n, value in enumerate(values)
    ]
    return registers, [
        _order_or_null(f"get(_stored.family_entries, {n})", change("family_orders", n))
        for n in layout.deletions
    ]


def _register(index: str, change: str, timestamp: str, value: str) -> str:
    """A register. It is null if `index` is null: the change does not mention the column."""
    return (
        f"CASE WHEN {index} IS NOT NULL THEN named_struct('order', {order(index, change)}, 't',"
        f" {timestamp}, 'v', {value}) END"
    )


def _order_or_null(index: str, change: str) -> str:
    return f"CASE WHEN {index} IS NOT NULL THEN {order(index, change)} END"


def _uncovered(layout: Layout) -> list[str]:
    """Registers without those that a newer deletion of their family covers. The deletion replaces
    them (MRG-9).
    """
    return [
        f"CASE WHEN coalesce(_f{layout.families.index(column.family)} > _r{n}.order, false) THEN"
        f" NULL ELSE _r{n} END AS _r{n}"
        for n, column in enumerate(layout.registered)
    ]


def _residual_state(grouped: DataFrame, layout: Layout, horizon: int | None) -> DataFrame:
    """Normalise `rest`: remove values that a deleted range covers (MRG-9), and what is too old
    (MRG-10).

    The range also removes the values of registers. If all versions are kept, a covered cell is
    removed completely, because the range covers everything that its name can mean.
    """
    name = f"({', '.join(f'x.{field}' for field in layout.rest_name)})"
    # The elements are sorted by name and order, so the newest one of each name is the last.
    newest = (
        f"filter(_sorted, (x, i) -> NOT coalesce({name} <=>"
        f" {name.replace('x.', 'get(_sorted, i + 1).')}, false))"
    )
    forgotten = constant(horizon or 0, BUCKET)
    others = [f"`{column}`" for column in grouped.columns if column != "_rest"]
    rest = [
        column for column in others if not (column.startswith("`_r") and column[3:-1].isdigit())
    ]
    return (
        grouped.selectExpr(*others, "sort_array(_rest) AS _sorted")
        .selectExpr(*others, f"{newest} AS _kept")
        .selectExpr(*others, "_kept", "filter(_kept, x -> x.value IS NULL) AS _deletions")
        .selectExpr(*rest, *_registers_outside_ranges(layout), f"{_residual_of(layout)} AS _rest")
        .selectExpr(
            *others,
            f"filter(_rest, x -> x.value IS NOT NULL OR x.order.change.{layout.age} >= {forgotten})"
            " AS _rest",
        )
        .selectExpr(*others, f"nullif(_rest, {layout.no_rest}) AS _rest")
    )


_IN_RANGE: Final = """
    exists(_deletions, y -> y.range_start IS NOT NULL
        AND y.family = {family} AND y.qualifier = {qualifier} AND y.order > {order}
        AND y.range_start <= {t} AND (y.range_end = 0 OR {t} < y.range_end))"""
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
            f"named_struct('key', '{family}', 'value', CASE WHEN _f{n} IS NOT NULL THEN _f{n} END)"
            for n, family in enumerate(layout.families)
        )
        of_family = f"map_from_entries(filter(array({families}), x -> x.value IS NOT NULL))"
        deleted += f" OR coalesce(element_at({of_family}, x.family) > x.order, false)"
    hidden = _IN_RANGE.format(
        family="x.family", qualifier="x.qualifier", order="x.order", t="x.cell_timestamp"
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
        f"coalesce(x.range_start IS NULL AND {is_of(column, 'x')} AND _r{n}.order > x.order, false)"
        for n, column, _ in layout.late
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
        hides = _IN_RANGE.format(
            family=f"'{column.family}'",
            qualifier=f"X'{column.qualifier.hex()}'",
            order=f"_r{n}.order",
            t=f"_r{n}.t",
        )
        null = f"cast(NULL AS {SPARK_TYPE[column.type]})"
        without = f"named_struct('order', _r{n}.order, 't', _r{n}.t, 'v', {null})"
        registers.append(
            f"CASE WHEN _r{n}.v IS NOT NULL AND {hides} THEN {without} ELSE _r{n} END AS _r{n}"
        )
    return registers


_BYTE: Final = "substring(x.qualifier, i, 1)"
_UNMAPPED_NAME: Final = f"""concat(x.family, ':', CASE
    WHEN is_valid_utf8(cast(x.qualifier AS string)) THEN replace(cast(x.qualifier AS string), '%',
    '%25')
    ELSE array_join(transform(sequence(1, octet_length(x.qualifier)), i ->
        CASE WHEN {_BYTE} >= X'80' OR {_BYTE} = X'25' THEN concat('%',
        hex({_BYTE})) ELSE cast({_BYTE} AS string) END), '') END)"""


def _rows(settled: DataFrame, layout: Layout, *, has_residual: bool) -> DataFrame:
    """The table's columns from normalised registers.

    A column shows the value of its register. A row exists if it has a visible value (MRG-7).
    """
    changes = [
        *(f"_r{n}.order.change" for n in layout.registers),
        *(f"_f{n}.change" for n in layout.deletions),
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
        *(f"_r{n}.v IS NOT NULL" for n in layout.registers),
        *([f"coalesce(size({shown}) > 0, false)"] if has_residual else []),
    ]
    return settled.selectExpr("*", f"{together} AS _together").selectExpr(
        *layout.keys,
        *(f"_r{n}.v AS `{column.name}`" for n, column in enumerate(layout.columns)),
        f"{unmapped} AS {UNMAPPED}",
        f"{_state(changes, layout)} AS {STATE}",
        BUCKET,
        f"({' OR '.join(exists) or 'false'}) AS _exists",
        "_changed",
    )


def _rows_of_versions(settled: DataFrame, layout: Layout) -> DataFrame:
    """The table's columns if every cell is in `rest`: a column shows the visible cell with the
    greatest cell timestamp (MRG-7).

    A cell that its column cannot hold stays in `_unmapped` (TBL-8). The elements of `rest` are
    sorted by their names.
    """
    next_cell = "get(_cells, i + 1)"
    has_newer = (
        f"coalesce(x.family = {next_cell}.family AND x.qualifier = {next_cell}.qualifier, false)"
    )
    columns, keeps = list(enumerate(layout.columns)), layout.definition.keep_unmapped
    mapped = (
        " OR ".join(f"(_v{n} IS NOT NULL AND {is_of(column, 'x')})" for n, column in columns)
        or "false"
    )
    pairs = f"transform(_others, x -> named_struct('key', {_UNMAPPED_NAME}, 'value', x.value))"
    exists = (
        ["coalesce(size(_shown) > 0, false)"]
        if keeps
        else [f"_v{n} IS NOT NULL" for n, _ in columns]
    )
    return (
        settled.selectExpr("*", "filter(_rest, x -> x.value IS NOT NULL) AS _cells")
        .selectExpr("*", f"filter(_cells, (x, i) -> NOT {has_newer}) AS _shown")
        .selectExpr(
            "*",
            *(
                f"get(filter(_shown, x -> {is_of(column, 'x')}), 0).value AS _b{n}"
                for n, column in columns
            ),
        )
        .selectExpr(
            "*",
            *(f"{typed(column.type, column.encoding, f'_b{n}')} AS _v{n}" for n, column in columns),
        )
        .selectExpr(
            "*",
            f"filter(_shown, x -> {'true' if keeps else 'false'} AND NOT ({mapped})) AS _others",
        )
        .selectExpr(
            *layout.keys,
            *(f"_v{n} AS `{column.name}`" for n, column in columns),
            f"CASE WHEN size(_others) > 0 THEN map_from_entries({pairs}) END AS {UNMAPPED}",
            f"{_state([], layout)} AS {STATE}",
            BUCKET,
            f"({' OR '.join(exists)}) AS _exists",
            "_changed",
        )
    )


def _state(changes: list[str], layout: Layout) -> str:
    """The stored state of a row. `changes` are the orders of the changes that wrote each register
    and each deletion.
    """

    def place(order: str, n: int) -> str:
        return f"CASE WHEN {order} IS NOT NULL THEN CASE WHEN _together THEN 0 ELSE {n} END END"

    arrays = {
        "column_orders": [place(f"_r{n}", n) for n in layout.registers],
        "column_entries": [f"_r{n}.order.entry_index" for n in layout.registers],
        "cell_timestamps": [f"_r{n}.t" for n in layout.registers],
        "family_orders": [place(f"_f{n}", len(layout.registers) + n) for n in layout.deletions],
        "family_entries": [f"_f{n}.entry_index" for n in layout.deletions],
    }
    orders = (
        f"CASE WHEN _together THEN array(greatest({', '.join(changes)})) ELSE"
        f" array({', '.join(changes)}) END"
        if changes
        else "array()"
    )
    fields = ", ".join(
        f"'{name}', array({', '.join(elements)})" for name, elements in arrays.items()
    )
    return (
        f"CAST(named_struct('orders', {orders}, {fields}, 'residual', _rest) AS"
        f" {layout.state_type})"
    )
