"""The hints of a status about the definition of a table (EVO-2, EVO-3)."""

from __future__ import annotations

import tomllib
from dataclasses import replace

from connector.config.parse import parse
from connector.reports.definition_status import (
    MAX_CELLS,
    cells_without_column,
    definition_hints,
    lines_of,
)
from connector.tables.alterations import ColumnOverride
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.values import DataType

NAME = Column("name", "f", b"name", DataType.STRING)
NOTE = Column("note", "g", b'a "\\\n\x00note', DataType.STRING, required=True, default='x"')
ORDERS = TableDefinition(
    name="orders",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.STRING),)),
    columns=(NAME,),
)
FILE = """
warehouse = "w"
[kafka]
bootstrap_servers = "h:1"
[streams.s]
[tables.orders]
stream = "s"
source = "t"
key = { columns = [{ name = "id", type = "STRING" }] }
"""


def override(column: Column, *, drops: bool = False) -> ColumnOverride:
    return ColumnOverride("orders", column.name, None if drops else column, 1, "ada@host")


def test_an_override_is_shown_with_the_lines_to_paste() -> None:
    """EVO-2: the lines declare the same column; a bytes qualifier, too."""
    for column in (NOTE, replace(NOTE, qualifier=b"\xff")):
        (hint,) = definition_hints(ORDERS, ORDERS, [override(column)], ())
        assert "ada@host set the column note, and the pipeline has not taken it yet" in hint
        lines = hint.partition("\n")[2]
        assert lines == lines_of("orders", column)
        made = parse(tomllib.loads(FILE + lines), {}).tables["orders"]
        assert made.columns == (column,)
    taken = replace(ORDERS, columns=(NAME, NOTE))
    (hint,) = definition_hints(ORDERS, taken, [override(NOTE)], ())
    assert "not taken" not in hint
    assert definition_hints(taken, taken, [override(NOTE)], ()) == ()


def test_a_dropped_column_is_shown_until_the_configuration_lacks_it() -> None:
    """EVO-2: and no missing line of the configuration drops one."""
    (hint,) = definition_hints(
        ORDERS, replace(ORDERS, columns=()), [override(NAME, drops=True)], ()
    )
    assert hint.startswith("ada@host dropped the column name. Remove it")
    (hint,) = definition_hints(replace(ORDERS, columns=()), ORDERS, (), ())
    assert "lacks its column name" in hint


def test_cells_without_a_column_are_named() -> None:
    """EVO-3: a bounded number of them, and none that a column shows or will show."""
    cells = [NAME.cell, NOTE.cell, ("f", b"colour"), ("f", b"\xff"), ("f", b"\x00row")]
    hints = definition_hints(ORDERS, ORDERS, [override(NOTE)], cells)
    assert (
        "2 cells of recent changes have no column, and are in _unmapped: f:colour, f:%FF"
        in hints[-1]
    )
    named = cells_without_column(ORDERS, ORDERS, [override(NOTE)], cells)
    assert named == (("f", b"colour"), ("f", b"\xff"))
    many = [("f", b"c%02d" % n) for n in range(MAX_CELLS + 3)]
    (hint,) = definition_hints(ORDERS, ORDERS, (), many)
    assert "and 3 more" in hint
    bare = replace(ORDERS, keep_unmapped=False)
    (hint,) = definition_hints(bare, bare, (), cells[2:3])
    assert "keep_unmapped = false drops them: f:colour" in hint


def test_columns_that_do_not_go_together_are_a_hint() -> None:
    """EVO-2: with what to do. It names the override."""
    extra = replace(NOTE, name="extra")
    declared = replace(ORDERS, columns=(*ORDERS.columns, NOTE))
    hints = definition_hints(declared, ORDERS, [override(extra)], ())
    (hint,) = [hint for hint in hints if "both show the cell" in hint]
    assert hint.startswith("the table is stopped: ")
    assert "drop a column that an operator set: extra" in hint
    assert cells_without_column(declared, ORDERS, [override(extra)], [NOTE.cell]) == ()
