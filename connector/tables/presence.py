"""The presence mark: the cell that says that a row exists (EVO-12).

A row without any value has no cell, so it would not exist. A source that inserts a row of NULLs, or
a row of a table that has key columns only, sets the mark. The mark is a cell like any other: the
newest write wins, and a deletion of its family deletes it. It is in no column and not in
`_unmapped`. `TableDefinition.marks` is its family.
"""

from __future__ import annotations

from typing import Final

from connector.records.model import SetCell

PRESENCE_QUALIFIER: Final = b"\x00row"
DEFAULT_FAMILY: Final = "row"
"""The family of the mark in a table without columns."""


def presence_mark(family: str) -> SetCell:
    """Return the entry that says that a row exists."""
    return SetCell(family, PRESENCE_QUALIFIER, b"", cell_timestamp=0)
