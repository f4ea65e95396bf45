"""Which tables qualify as the base of another one (EVO-9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connector.errors import ConfigError
from connector.records.ordering import OrderBy
from connector.tables.definition import Column, TableDefinition, Versions, base_faults
from connector.tables.keys import Key, KeyPart
from connector.tables.values import DataType

NAME = Column("name", "f", b"name", DataType.STRING)
COUNT = Column("count", "f", b"count", DataType.INT64)
KEY = Key((KeyPart("id", DataType.BYTES),))
BASE = TableDefinition(name="t", stream="s", source="t", key=KEY, columns=(NAME,))


@pytest.mark.parametrize(
    ("base", "wanted", "faults"),
    [
        ({}, {}, []),
        ({}, {"columns": (NAME, COUNT)}, []),
        ({}, {"columns": (replace(NAME, name="other"),)}, []),
        ({}, {"keep_unmapped": False}, []),
        ({}, {"source": "u"}, ["its source is t"]),
        ({}, {"order": OrderBy.SEQUENCE_NUMBER}, ["its order is commit"]),
        ({}, {"versions": Versions.ALL}, ["its versions is latest"]),
        ({}, {"presence_family": "g"}, ["its presence_family is f"]),
        ({"keep_unmapped": False}, {}, ["it does not keep cells without a column"]),
        (
            {"keep_unmapped": False},
            {"keep_unmapped": False, "columns": (NAME, COUNT)},
            ["it does not have the cell of column count"],
        ),
        (
            {"columns": (NAME, COUNT)},
            {"columns": (NAME, replace(COUNT, type=DataType.STRING))},
            ["its column count is INT64 text"],
        ),
        ({"columns": (NAME, COUNT)}, {}, ["it has column count, which must be declared"]),
        ({"columns": (NAME, COUNT)}, {"keep_unmapped": False}, []),
        (
            {"columns": (NAME, COUNT), "versions": Versions.ALL},
            {"columns": (replace(NAME, type=DataType.JSON),), "versions": Versions.ALL},
            [],
        ),
    ],
)
def test_a_base_has_every_cell_asked_for(
    base: dict[str, Any], wanted: dict[str, Any], faults: list[str]
) -> None:
    """EVO-9: and the same stream, source, key, order and versions."""
    assert list(base_faults(replace(BASE, **base), replace(BASE, name="u", **wanted))) == faults


@pytest.mark.parametrize("name", ["t", "../u"])
def test_a_base_is_another_table(name: str) -> None:
    with pytest.raises(ConfigError, match=r"tables.t.start_from is .* Name a table that exists"):
        replace(BASE, start_from=name)
