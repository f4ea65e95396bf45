"""The columns of a table over any history of alterations, for every type (EVO-2, EVO-3, EVO-6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connector.config.parse import parse_tables
from connector.config.settings import StreamConfig
from connector.errors import TableError
from connector.sources.columns import Shown, merged
from connector.state.overrides import columns_at, metadata_with_columns
from connector.tables.alterations import (
    Alteration,
    ColumnOverride,
    alteration,
    declared_alteration,
)
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.nested import RANGE_TYPES, ArrayType, RangeType, RecordType, ValueType
from connector.tables.published import PublishedTable
from connector.tables.stored_definition import (
    NO_IDS,
    ColumnIds,
    assign_ids,
    from_properties,
    to_properties,
)
from connector.tables.values import DataType, Encoding, write_value
from tests.examples import examples
from tests.property.test_nested_laws import SCALARS, TYPES, values_of

TABLE = TableDefinition(
    name="t",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.STRING),), KeyForm.ORDERED),
    columns=(Column("x", "row", b"x", DataType.BOOL),),
    presence_family="row",
)
IDS = assign_ids(NO_IDS, TABLE)
SPANS = ArrayType(RangeType(DataType.TIMESTAMP))
EACH: tuple[ValueType, ...] = (
    *DataType,
    *map(ArrayType, DataType),
    *map(RangeType, RANGE_TYPES),
    *(RecordType((("a", type_),)) for type_ in DataType),
    ArrayType(ArrayType(DataType.STRING)),
    RecordType((("a", SPANS), ("b", RecordType((("c", DataType.INT64),))))),
)


def column(type_: ValueType, name: str = "c", default: str | None = None) -> Column:
    return Column(name, "row", name.encode(), type_, default=default)


def with_columns(*columns: Column) -> TableDefinition:
    return replace(TABLE, columns=(*TABLE.columns, *columns))


def stored(definition: TableDefinition, ids: ColumnIds) -> tuple[TableDefinition, ColumnIds]:
    """Both as another process reads them."""
    return from_properties(json.loads(json.dumps(to_properties(definition, ids))))


def stored_overrides(*overrides: ColumnOverride) -> tuple[ColumnOverride, ...]:
    """Overrides as another process reads them."""
    metadata = None
    for override in overrides:
        metadata = json.loads(json.dumps(metadata_with_columns("p", metadata, add=override)))
    return columns_at("p", metadata)["t"]


def declared_of_source(*types: ValueType) -> TableDefinition:
    """The configuration of a table that follows its source, of which each next column has one of
    the types.
    """
    table = merged(None, "t", [Shown("id", DataType.STRING)], [Shown("x", DataType.BOOL)]).table
    for number, type_ in enumerate(types):
        table = merged(table, "t", [Shown("id", DataType.STRING)], [Shown(f"c{number}", type_)])[0]
    streams = {"s": StreamConfig(name="s", topic="topic")}
    return parse_tables({"t": {**table.section(), "stream": "s"}}, streams)["t"]


@pytest.mark.parametrize("type_", EACH, ids=str)
def test_a_column_of_each_type_is_altered_in_each_way(type_: ValueType) -> None:
    """EVO-2, EVO-3: operators add it, drop it, add it again and change its default, and a source
    adds it. Everything is read again as another process reads it.
    """

    def override(name: str, changed: Column | None, *, only_default: bool = False) -> Alteration:
        nonlocal existing, ids
        overrides = stored_overrides(
            ColumnOverride("t", name, changed, 1, "ada@host", only_default=only_default)
        )
        made = declared_alteration(existing, ids, existing, overrides, 7)
        assert made is not None
        existing, ids = stored(made.definition, made.ids)
        assert (existing, ids) == (made.definition, made.ids)
        assert overrides[0].agrees_with(existing)
        published = PublishedTable("id-1", ids.version, existing)
        assert PublishedTable.from_value(published.to_value()) == published
        assert declared_alteration(existing, ids, existing, overrides, 8) is None
        return made

    existing, ids = TABLE, IDS
    new = column(type_)
    assert override("c", new).added == (new,)
    default = replace(new, default=None if type_ is DataType.BYTES else _DEFAULTS.get(type_))
    if default != new:
        assert override("c", default, only_default=True).added == ()
    assert [c.name for c in override("C", None).dropped] == ["c"]
    others = (other for other in EACH if other != type_)
    for other in others:
        with pytest.raises(TableError) as caught:
            alteration(existing, ids, with_columns(column(other, "C")))
        assert caught.value.code == "COLUMN_NAME_TAKEN"
        assert str(type_) in str(caught.value)
    assert override("c", new).added == (new,)

    before, after = declared_of_source(), declared_of_source(type_)
    followed = declared_alteration(before, assign_ids(NO_IDS, before), after, ())
    assert followed is not None
    assert [c.type for c in followed.added] == [type_]


_DEFAULTS: Mapping[ValueType, str] = {
    DataType.STRING: "x",
    DataType.BOOL: "true",
    DataType.INT64: "1",
    DataType.FLOAT64: "1.5",
    DataType.NUMERIC: "1.5",
    DataType.BIGNUMERIC: "1.5",
    DataType.DATE: "2026-01-31",
    DataType.DATETIME: "2026-01-31T09:00:00",
    DataType.TIME: "09:00:00",
    DataType.TIMESTAMP: "2026-01-31T09:00:00Z",
    DataType.JSON: "{}",
    **{ArrayType(type_): "[null]" for type_ in DataType},
    **{RangeType(type_): '{"start": null}' for type_ in RANGE_TYPES},
    **{type_: "{}" for type_ in EACH if isinstance(type_, RecordType)},
    ArrayType(ArrayType(DataType.STRING)): '[["x"], null]',
}

Step = tuple[Column, ...]
Alter = Callable[[TableDefinition, ColumnIds, TableDefinition, list[str], int], Alteration | None]


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """The columns that a table shall have, one after another: few names, of which each has one of
    two types, and any default.
    """
    types = {name: draw(st.lists(SCALARS | TYPES, min_size=2, max_size=2)) for name in "abc"}

    def of_name(name: str) -> st.SearchStrategy[Column | None]:
        return st.none() | st.sampled_from(types[name]).flatmap(
            lambda type_: (st.none() | values_of(type_)).map(
                lambda value: column(type_, name, _text(type_, value))
            )
        )

    steps = st.tuples(*map(of_name, "abc")).map(lambda step: tuple(filter(None, step)))
    return draw(st.lists(steps, min_size=1, max_size=6))


def _text(type_: ValueType, value: object) -> str | None:
    written = b"" if value is None else write_value(type_, Encoding.TEXT, value)
    try:
        return None if value is None else written.decode()
    except UnicodeDecodeError:  # BYTES that are no text
        return None


def law(steps: Iterable[Step], alter: Alter) -> None:
    """Each alteration gives the table the wanted columns. It is refused for two reasons only: a
    column that stays has another type, or a dropped one comes back with another.
    """
    existing, ids = TABLE, IDS
    dropped: dict[str, ValueType] = {}
    for batch, columns in enumerate(steps, 1):
        before = {c.name: c.type for c in existing.columns}
        wanted = with_columns(*columns)
        after = {c.name: c.type for c in wanted.columns}
        known = {**dropped, **before}
        is_refused = any(known.get(name, type_) != type_ for name, type_ in after.items())
        try:
            made = alter(existing, ids, wanted, list(before), batch)
        except TableError:
            assert is_refused, f"{before} cannot become {after}"
            continue
        assert not is_refused, f"{before} became {after}, and {dropped} were dropped"
        assert (made is None) == (set(existing.columns) == set(wanted.columns))
        if made is not None:
            assert set(made.definition.columns) == set(wanted.columns)
            assert {c.name for c in made.added} == after.keys() - before.keys()
            assert {c.name for c in made.dropped} == before.keys() - after.keys()
            dropped |= {name: type_ for name, type_ in before.items() if name not in after}
            existing, ids = stored(made.definition, made.ids)
            assert (existing, ids) == (made.definition, made.ids)


@examples(100)
@example([(column(SPANS),), (), (column(SPANS, default="[]"),)])
@given(histories())
def test_columns_of_any_types_come_and_go(steps: list[Step]) -> None:
    """EVO-2, EVO-3: two reasons refuse an alteration, and no type is one of them."""
    law(steps, alteration)


@pytest.mark.parametrize("mutant", ["forgets dropped types", "compares a type with its text"])
def test_the_law_notices_a_wrong_comparison(mutant: str) -> None:
    """EVO-3: a canary."""

    def wrong(
        existing: TableDefinition,
        ids: ColumnIds,
        wanted: TableDefinition,
        dropped: list[str],
        batch: int,
    ) -> Alteration | None:
        if mutant == "forgets dropped types":
            return alteration(existing, replace(ids, dropped={}), wanted, dropped, batch)
        texts = {name: str(type_) for name, type_ in ids.dropped.items()}
        return alteration(existing, replace(ids, dropped=texts), wanted, dropped, batch)  # type: ignore[arg-type]

    array = column(ArrayType(DataType.STRING))
    again = (column(DataType.STRING),) if mutant == "forgets dropped types" else (array,)
    with pytest.raises(AssertionError, match=r"dropped|cannot become"):
        law([(array,), (), again], wrong)
