"""Which changes of columns a running pipeline makes, and what it refuses (EVO-2, EVO-3)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from connector.errors import ConfigError, TableError
from connector.records.ordering import OrderBy
from connector.tables.alterations import (
    ColumnOverride,
    alteration,
    column_named,
    with_overrides,
)
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.keys import Key, KeyPart
from connector.tables.published import PublishedTable, tables_topic, topic_of_tables
from connector.tables.stored_definition import (
    NO_IDS,
    assign_ids,
    from_properties,
    to_properties,
)
from connector.tables.values import DataType, Encoding

KEY = Key((KeyPart("id", DataType.STRING),))
NAME = Column("name", "f", b"name", DataType.STRING)
AMOUNT = Column("amount", "f", b"amount", DataType.INT64)
NOTE = Column("note", "g", b"note", DataType.STRING)
ORDERS = TableDefinition(
    name="orders", stream="s", source="t", key=KEY, columns=(NAME, AMOUNT), max_staleness_s=60
)
IDS = assign_ids(NO_IDS, ORDERS)


def override(column: Column, *, drops: bool = False) -> ColumnOverride:
    return ColumnOverride("orders", column.name, None if drops else column, 1, "ada@host")


def test_columns_are_appended_and_dropped_ones_keep_their_place() -> None:
    """EVO-3: ids and numbers of families are never used for another one."""
    added = alteration(ORDERS, IDS, replace(ORDERS, columns=(NOTE, AMOUNT, NAME)), (), 7)
    assert added is not None
    assert added.definition.columns == (NAME, AMOUNT, NOTE)
    assert (added.added, added.dropped) == ((NOTE,), ())
    assert added.ids.by_name == {"name": 0, "amount": 1, "note": 2}
    assert (added.ids.families, added.ids.since) == ({"f": 0, "g": 1}, {"note": 7})
    assert added.ids.version == 2
    dropped = alteration(
        added.definition, added.ids, replace(ORDERS, columns=(AMOUNT,)), ("name", "Note"), 9
    )
    assert dropped is not None
    assert dropped.ids.by_name == {"amount": 1}
    assert dropped.ids.dropped == {"name": DataType.STRING, "note": DataType.STRING}
    again = alteration(dropped.definition, dropped.ids, added.definition, (), 11)
    assert again is not None
    assert again.ids.by_name == {"amount": 1, "name": 3, "note": 4}
    assert (again.ids.families, again.ids.version) == ({"f": 0, "g": 1}, 4)
    assert from_properties(to_properties(again.definition, again.ids)) == (
        again.definition,
        again.ids,
    )


def test_the_same_columns_change_nothing() -> None:
    """EVO-3: also in another order, and with other bounds."""
    for wanted in (ORDERS, replace(ORDERS, columns=(AMOUNT, NAME), max_staleness_s=None)):
        assert alteration(ORDERS, IDS, wanted) is None


def test_default_and_required_change_no_row() -> None:
    """EVO-3, EVO-4: they are settings of writers."""
    columns = (replace(NAME, default="x"), replace(AMOUNT, required=True))
    changed = alteration(ORDERS, IDS, replace(ORDERS, columns=columns))
    assert changed is not None
    assert (changed.added, changed.dropped, changed.ids.version) == ((), (), 2)
    assert changed.definition.columns == columns


BINARY = replace(AMOUNT, encoding=Encoding.BINARY)
REFUSED = {
    "type": ({"columns": (NAME, replace(AMOUNT, type=DataType.STRING))}, "DIFFERENT"),
    "cell": ({"columns": (NAME, replace(AMOUNT, qualifier=b"x"))}, "DIFFERENT"),
    "encoding": ({"columns": (NAME, BINARY)}, "DIFFERENT"),
    "name by case": ({"columns": (NAME, replace(AMOUNT, name="Amount"))}, "DIFFERENT"),
    "key": ({"key": Key((KeyPart("id", DataType.INT64),))}, "DIFFERENT"),
    "order": ({"order": OrderBy.SEQUENCE_NUMBER}, "DIFFERENT"),
    "versions": ({"versions": Versions.ALL}, "DIFFERENT"),
    "source": ({"source": "other"}, "DIFFERENT"),
    "stream": ({"stream": "other"}, "DIFFERENT"),
    "lost": ({"columns": (NAME,)}, "LOST"),
    "renamed": ({"columns": (NAME, replace(AMOUNT, name="sum"))}, "LOST"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_changes_are_refused_with_a_remedy(name: str) -> None:
    """EVO-3, EVO-2: a column that the configuration merely lacks is never dropped."""
    changes, code = REFUSED[name]
    with pytest.raises(TableError) as caught:
        alteration(ORDERS, IDS, replace(ORDERS, **changes))  # type: ignore[arg-type]
    assert code in caught.value.code
    assert caught.value.remedy


def test_a_table_without_unmapped_cells_needs_a_rebuild() -> None:
    """EVO-3: the values of the new column are not there."""
    bare = replace(ORDERS, keep_unmapped=False)
    with pytest.raises(TableError, match="Rebuild the table"):
        alteration(bare, IDS, replace(bare, columns=(NAME, AMOUNT, NOTE)))
    with pytest.raises(TableError, match="Rebuild the table"):
        alteration(bare, IDS, replace(bare, columns=(NAME,)), ["amount"])


def test_a_dropped_name_comes_back_with_its_type_only() -> None:
    """EVO-3: older files have it."""
    dropped = alteration(ORDERS, IDS, replace(ORDERS, columns=(NAME,)), ["amount"])
    assert dropped is not None
    for type_, is_allowed in ((DataType.INT64, True), (DataType.STRING, False)):
        wanted = replace(ORDERS, columns=(NAME, replace(AMOUNT, name="AMOUNT", type=type_)))
        if is_allowed:
            assert alteration(dropped.definition, dropped.ids, wanted) is not None
        else:
            with pytest.raises(TableError, match="Choose another name"):
                alteration(dropped.definition, dropped.ids, wanted)
    rebuilt = assign_ids(dropped.ids, replace(ORDERS, columns=(NAME,)))
    assert rebuilt.dropped == {}


def test_overrides_outrank_the_configuration_until_it_agrees() -> None:
    """EVO-2: per column, the newest one counts."""
    adds, drops = override(NOTE), override(AMOUNT, drops=True)
    assert with_overrides(ORDERS, [adds, drops]).columns == (NAME, NOTE)
    assert with_overrides(ORDERS, [adds, override(NOTE, drops=True)]).columns == ORDERS.columns
    followed = replace(ORDERS, columns=(NAME, NOTE))
    for each in (adds, drops):
        assert not each.agrees_with(ORDERS)
        assert each.agrees_with(followed)
        assert with_overrides(followed, [each]) == followed
    with pytest.raises(ConfigError, match="cell"):
        with_overrides(ORDERS, [override(replace(NOTE, family="f", qualifier=b"name"))])


def test_a_column_to_drop_must_exist() -> None:
    """EVO-2: the error names the columns."""
    assert column_named("orders", ORDERS.columns, "AMOUNT") == AMOUNT
    with pytest.raises(ConfigError, match=r"no column amuont.*name.*amount"):
        column_named("orders", ORDERS.columns, "amuont")


def test_ids_are_unique_over_a_long_life(seed: int) -> None:
    """EVO-3: whatever columns come and go, no two columns ever have one id."""
    rng, existing, ids = Random(seed), ORDERS, IDS
    every = [Column(f"c{n}", f"f{n % 3}", b"%d" % n, DataType.STRING) for n in range(6)]
    owners = {0: "name", 1: "amount"}
    for batch in range(100):
        columns = tuple(rng.sample(every, rng.randint(0, len(every))))
        made = alteration(
            existing,
            ids,
            replace(ORDERS, columns=columns),
            [column.name for column in existing.columns],
            batch,
        )
        if made is None:
            continue
        new = {made.ids.by_name[column.name]: column.name for column in made.added}
        assert not new.keys() & owners.keys()
        owners |= new
        assert made.ids.version == ids.version + 1
        assert len(set(made.ids.families.values())) == len(made.ids.families)
        existing, ids = made.definition, made.ids


def test_a_published_definition_is_read_again() -> None:
    """EVO-1: as JSON; another value is an error."""
    table = PublishedTable("id-1", 3, replace(ORDERS, columns=(NAME, NOTE), presence_family="f"))
    assert PublishedTable.from_value(table.to_value()) == table
    for value in (b"", b"[]", b"{}", b'{"table_id": "x", "version": 1, "definition": {}}', b"\xff"):
        with pytest.raises(ValueError):
            PublishedTable.from_value(value)
    assert tables_topic("orders") == "orders.tables"
    assert topic_of_tables("orders.tables") == topic_of_tables("orders") == "orders"
