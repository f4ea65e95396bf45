"""Tables that follow from the records of a source (SRC-5)."""

from __future__ import annotations

import json

import pytest

from connector.sources.columns import (
    Merged,
    Shown,
    SourceTable,
    column_name,
    merged,
    source_name,
    table_name,
)
from connector.sources.model import Row
from connector.sources.tables import KnownTables
from connector.tables.column_names import is_column_name
from connector.tables.nested import type_of
from connector.tables.values import DataType
from tests.foreign_records import Typed, Writer, definition_of, number, text
from tests.unit.sources.test_source_types import decoder_of

ID = Shown("id", DataType.INT64)
TEXT, INT = DataType.STRING, DataType.INT64
SOURCE = "public.items"


def shown(**types: str) -> list[Shown]:
    return [Shown(name, type_of(type_)) for name, type_ in types.items()]


def grown(*steps: list[Shown]) -> list[Merged]:
    """The tables after each of these schemas."""
    made: list[Merged] = []
    for fields in steps:
        made.append(merged(made[-1].table if made else None, SOURCE, [ID], fields))
    return made


def columns(table: SourceTable) -> list[tuple[str, str, str, str]]:
    return [(c.field, c.name, c.cell, str(c.type)) for c in table.columns]


def test_a_new_column_is_added_and_one_that_is_gone_stays():
    """SRC-5."""
    _, last = grown(shown(a="STRING", b="INT64"), shown(b="INT64", c="DATE"))
    assert [column[0] for column in columns(last.table)] == ["a", "b", "c"]
    assert last.warnings == ()


def test_a_field_that_changes_its_type_writes_a_new_cell_with_a_warning():
    """SRC-5: also back, and a third time."""
    steps = [shown(n=type_) for type_ in ("INT64", "STRING", "INT64", "DATE")]
    made = grown(*steps)
    assert columns(made[-1].table) == [
        ("n", "n", "n", "INT64"),
        ("n", "n__2", "n__2", "STRING"),
        ("n", "n__3", "n__3", "DATE"),
    ]
    assert [len(each.warnings) for each in made] == [0, 1, 0, 1]
    (warning,) = made[1].warnings
    assert warning == (
        "public.items: field n was INT64, is STRING. Its values are in column n__2 from here on,"
        " and column n is NULL"
    )


def test_a_new_column_with_a_default_is_named():
    """SRC-5: the source sends no event for the rows that exist. In a new table, it has sent all."""
    added = Shown("note", TEXT, default="dflt")
    first, second = grown([added], [added, Shown("more", TEXT, default="")])
    assert first.with_default == ()
    assert second.with_default == ("more",)


def test_a_changed_key_is_a_warning():
    """SRC-5: a table keeps its key."""
    old = merged(None, SOURCE, [ID], [])
    new = merged(old.table, SOURCE, [Shown("id", TEXT)], [])
    assert new.table == old.table
    assert "the key was (id INT64), is (id STRING)" in new.warnings[0]


def test_the_type_of_a_key_column_is_one_that_keys_have():
    """SRC-5: other values are text there."""
    types = {"FLOAT64": TEXT, "DATETIME": TEXT, "BIGNUMERIC": TEXT, "DATE": DataType.DATE}
    for given, expected in types.items():
        (part,) = merged(None, SOURCE, [Shown("k", type_of(given))], []).table.key
        assert part.type == expected


def test_the_definition_of_an_operator_is_declared_for_stored_and_new_tables():
    """SRC-5, EVO-2."""
    stored, fields = merged(None, SOURCE, [ID], []).table, [Shown("a", INT)]
    asked: list[SourceTable] = []

    def overridden(table: SourceTable):
        asked.append(table)
        return definition_of(table)

    tables = KnownTables([stored], overridden=overridden)
    assert tables.declared == {SOURCE: definition_of(stored)}
    new = tables.meet("public.other", [ID], fields)
    assert tables.declared["public.other"] == definition_of(new)
    assert asked == [stored, new]
    assert KnownTables([stored], overridden=lambda table: None).declared == {}


HOSTILE = [
    "_id",
    "e-mail",
    "1st",
    "",
    "Name",
    "name",
    "größe",
    "a b",
    "a_b",
    "n__2",
    "n",
    "x" * 400,
]


def test_names_that_a_column_cannot_have():
    """SRC-5: each field has a column of its own, and its cell has the field's name."""
    (made,) = grown([Shown(field, TEXT) for field in HOSTILE])
    names = [column.name for column in made.table.columns]
    assert all(is_column_name(name) for name in names)
    assert len({name.lower() for name in names}) == len(HOSTILE)
    assert [column.cell for column in made.table.columns] == HOSTILE
    definition_of(made.table)


def test_a_field_with_the_name_of_the_presence_mark_has_no_column():
    """SRC-5, EVO-12."""
    (made,) = grown([Shown("\x00row", TEXT)])
    assert made.table.columns == ()
    assert made.warnings


@pytest.mark.parametrize(("length", "count"), [(16 * 1024 - 7, 2), (16 * 1024 - 6, 0)])
def test_a_field_with_a_long_name_has_room_for_another_type(length, count):
    """SRC-5: the cell of another type has a longer name, which a definition can have, too."""
    _, last = grown([Shown("n" * length, INT)], [Shown("n" * length, TEXT)])
    assert len(last.table.columns) == count
    assert "_unmapped" in last.warnings[0] or count
    definition_of(last.table)


def test_column_and_table_names():
    assert column_name("e-mail") == "e_mail"
    assert column_name("_id") == "c_id"
    assert column_name("e-mail", ["e_mail"]) == "e_mail_2"
    assert table_name("public.customers") == "customers"
    assert table_name("audit.customers", ["customers"]) == "audit_customers"
    assert table_name("audit.customers", ["customers", "audit_customers"]) == "audit_customers_3"
    assert source_name("public", "customers") == "public.customers"


@pytest.mark.parametrize(
    "steps",
    [
        [shown(a="STRING")],
        [shown(n="INT64"), shown(n="STRING", tags="ARRAY<STRING>")],
        [[Shown(field, TEXT) for field in HOSTILE]],
        [[Shown("n", INT), Shown("n__2", TEXT)], shown(n="DATE"), shown(n__2="DATE")],
        [[Shown("guess", INT, is_guess=True)], [Shown("guess", TEXT, is_guess=True)]],
    ],
)
def test_a_section_is_the_table(steps):
    """SRC-5: what is published is read back as it was, and is a section of the configuration."""
    table = grown(*steps)[-1].table
    section = json.loads(json.dumps(table.section()))
    assert SourceTable.from_section(section) == table
    definition = definition_of(table)
    assert definition.source == table.source
    assert definition.key.parts == table.key
    assert [(c.name, c.qualifier.decode(), c.type) for c in definition.columns] == [
        (column.name, column.cell, column.type) for column in table.columns
    ]


def test_a_changed_type_keeps_its_cell_after_a_restart():
    """SRC-5, resumable: a record that is read again gives the same cells, whatever came later."""
    old = Writer("json with schema", [number("id", 7)], [number("id", 7), number("n", 5)])
    new = Writer("json with schema", old.key, [number("id", 7), text("n", "five")])
    decoder, tables = decoder_of(old)
    first, second = decoder.decode(old.event("c")), decoder.decode(new.event("u"))
    assert isinstance(first, Row)
    assert isinstance(second, Row)
    assert first.cells == {"n": b"5"}
    assert second.cells == {"n__2": b"five"}
    published = [news.table.section() for news in tables.take_news()]
    assert not tables.take_news()
    again = KnownTables(map(SourceTable.from_section, published))
    for writer, row in ((old, first), (new, second)):
        restarted, _ = decoder_of(writer)
        restarted = type(restarted)(restarted._rows.format, again)
        event = restarted.decode(writer.event("c"))
        assert isinstance(event, Row)
        assert event.cells == row.cells
    assert not again.take_news()


def test_a_partial_row_of_a_field_with_another_type_clears_the_old_column():
    """SRC-5, SRC-3: a partial change keeps what it does not name, so the old column is named."""
    first = Writer("json with schema", [number("id", 7)], [number("id", 7), number("n", 5)])
    fields = [number("id", 7), text("n", "five"), text("bio", "__debezium_unavailable_value")]
    second = Writer("json with schema", first.key, fields)
    decoder, _ = decoder_of(first)
    decoder.decode(first.event("c"))
    event = decoder.decode(second.event("u"))
    assert isinstance(event, Row)
    assert not event.whole
    assert event.cells == {"n__2": b"five", "n": None}


def test_a_default_of_the_source_is_read_from_both_kinds_of_schemas():
    """SRC-5."""
    for format_ in ("json with schema", "avro"):
        plain = Writer(format_, [number("id", 7)], [number("id", 7)])
        decoder, tables = decoder_of(plain)
        decoder.decode(plain.event("c"))
        note = Typed(
            "note",
            {"type": "string", "default": "dflt"},
            {"type": "string", "connect.default": "dflt"},
            "x",
        )
        wider = Writer(format_, plain.key, [number("id", 7), note], registry=plain.registry)
        decoder.decode(wider.event("c"))
        assert tables.take_news()[0].with_default == ("note",)
