"""Rows of Python values, written in any order of policies, are the rows of a model (EVO-4, EVO-5,
EVO-12).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import InvalidChangeError
from connector.records.model import DataChange, SetCell
from connector.records.ordering import OrderPosition
from connector.tables.column_names import UNMAPPED
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.merge import visible
from connector.tables.nested import type_of
from connector.tables.presence import PRESENCE_QUALIFIER
from connector.tables.row import row_of, state_of
from connector.tables.row_entries import Missing, RowEntries, Unknown
from connector.tables.values import DataType, Encoding
from tests.examples import examples

TABLE = TableDefinition(
    name="t",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.INT64),)),
    columns=(
        Column("name", "f", b"name", DataType.STRING),
        Column("size", "f", b"n", DataType.INT64, Encoding.BINARY, default="7"),
        Column("tags", "g", b"tags", type_of("ARRAY<STRING>"), default='["new"]'),
        Column("paid", "g", b"paid", DataType.BOOL),
    ),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": st.sampled_from(["a", "é", ""]),
    "size": st.integers(-3, 3),
    "tags": st.lists(st.sampled_from(["x", "y"]), max_size=2),
    "paid": st.booleans(),
}
DEFAULTS = {"name": None, "size": 7, "tags": ["new"], "paid": None}
ROWS = st.fixed_dictionaries(
    {"id": st.integers(0, 2)},
    optional={
        **{name: st.none() | values for name, values in VALUES.items()},
        "colour": st.none() | st.sampled_from(["red", 5, True]),
    },
)
STEPS = st.lists(
    st.tuples(st.sampled_from(list(Missing)), st.sampled_from(["keep", "drop"]), ROWS)
    | st.integers(0, 2),
    max_size=8,
)


def expected_row(before: dict[str, Any] | None, missing: Missing, unknown: str, row: Any) -> Any:
    """The row of the model after an upsert."""
    unmapped: dict[str, bytes] = {}
    if before is not None and missing is Missing.KEEP:
        after, unmapped = dict(before), dict(before[UNMAPPED])
    else:
        after = dict(DEFAULTS if missing is Missing.DEFAULT else dict.fromkeys(DEFAULTS))
    for name, value in row.items():
        if name != "colour":
            after[name] = value
        elif unknown == "keep":
            unmapped.pop("f:colour", None)
            if value is not None:
                unmapped["f:colour"] = {True: b"true"}.get(value, str(value).encode())
    return {**after, UNMAPPED: unmapped}


@examples(300)
@given(STEPS)
def test_rows_are_those_of_the_model(steps: list[Any]) -> None:
    """EVO-4, EVO-5, EVO-12: `missing` and `unknown` may differ from row to row."""
    model: dict[int, dict[str, Any]] = {}
    deliveries: list[tuple[DataChange, OrderPosition]] = []
    for number, step in enumerate(steps, start=1):
        if isinstance(step, int):
            model.pop(step, None)
            row_key, entries = RowEntries(TABLE).delete(step)
        else:
            missing, unknown, row = step
            model[row["id"]] = expected_row(model.get(row["id"]), missing, unknown, row)
            row_key, entries = RowEntries(TABLE, missing, Unknown(unknown)).upsert(row, number)
        change = DataChange(
            stream_partition="p",
            table="t",
            row_key=row_key,
            commit_timestamp=number,
            entries=entries,
        )
        deliveries.append((change, OrderPosition(1, 0, number)))
    for id_ in range(3):
        key = TABLE.key.write_key((id_,))
        state = state_of(TABLE, [each for each in deliveries if each[0].row_key == key])
        assert row_of(TABLE, key, visible(state)) == model.get(id_)


@given(STEPS)
def test_unknown_fields_are_counted(steps: list[Any]) -> None:
    """EVO-5: by name, kept or dropped."""
    rows = [step[2] for step in steps if not isinstance(step, int)]
    for unknown in (Unknown.KEEP, Unknown.DROP):
        entries = RowEntries(TABLE, unknown=unknown)
        for row in rows:
            entries.upsert(row, 1)
        assert entries.unknown_fields["colour"] == sum("colour" in row for row in rows)


@pytest.mark.parametrize("missing", list(Missing))
def test_every_row_has_the_presence_mark(missing: Missing) -> None:
    """EVO-12: last, so that no deletion of its change deletes it."""
    _, entries = RowEntries(TABLE, missing).upsert({"id": 1}, 5)
    assert entries[-1] == SetCell("f", PRESENCE_QUALIFIER, b"", 0)


REQUIRED = TableDefinition(
    name="t",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.INT64), KeyPart("day", DataType.DATE))),
    columns=(
        Column("name", "f", b"name", DataType.STRING, required=True),
        Column("size", "f", b"n", DataType.INT64, required=True, default="7"),
    ),
)
ID = {"id": 1, "day": "2026-01-31"}


@pytest.mark.parametrize(
    ("missing", "row", "field"),
    [
        ("keep", {**ID, "name": None}, "name"),
        ("keep", ID, ""),
        ("null", ID, "name"),
        ("null", {**ID, "name": "a"}, "size"),
        ("default", {**ID, "name": "a"}, ""),
        ("default", {**ID, "name": "a", "size": None}, "size"),
        ("keep", {"id": 1, "name": "a"}, "day"),
        ("keep", {"id": None, "day": "2026-01-31"}, "id"),
        ("keep", {"id": 1, "day": "31.1.2026"}, "day"),
        ("keep", {**ID, "name": 1.5}, "name"),
        ("keep", {**ID, "colour": "red"}, "colour"),
    ],
)
def test_a_refused_row_names_the_field(missing: str, row: dict[str, Any], field: str) -> None:
    """EVO-4, EVO-5, EVO-6: a `required` column without a value, a key without one, an unknown
    field, a value that the type refuses.
    """
    entries = RowEntries(REQUIRED, Missing(missing))
    if not field:
        entries.upsert(row, 1)
        return
    with pytest.raises(InvalidChangeError) as caught:
        entries.upsert(row, 1)
    assert caught.value.field == field
    assert caught.value.problem.startswith(f"{field} is ")


@pytest.mark.parametrize("key", [(1, "2026-01-31"), [1, "2026-01-31"], ID])
def test_a_key_is_a_tuple_or_has_names(key: Any) -> None:
    """EVO-4."""
    row_key, entries = RowEntries(REQUIRED).delete(key)
    assert row_key == RowEntries(REQUIRED).upsert(ID, 1)[0]
    assert len(entries) == 1


@pytest.mark.parametrize("key", [1, (1,), {"id": 1}, {**ID, "name": "a"}, (1, None), (1, "x")])
def test_another_key_is_refused(key: Any) -> None:
    """EVO-4."""
    with pytest.raises(InvalidChangeError):
        RowEntries(REQUIRED).delete(key)


def test_an_unknown_field_does_not_write_the_cell_of_a_column() -> None:
    """EVO-5, `nothing_invented`: the column `size` shows the cell f:n."""
    with pytest.raises(InvalidChangeError, match="f:n is column size"):
        RowEntries(REQUIRED, unknown=Unknown.KEEP).upsert({**ID, "n": 5}, 1)
