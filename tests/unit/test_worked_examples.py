"""The worked examples of the merge specification. Example 2 needs snapshot reads, example 8 a
stream with a setting that changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from connector.records.model import DataChange, DeleteFamily, SetCell
from connector.records.ordering import OrderBy, OrderPosition
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.merge import EMPTY, expire, join, lift, normal, visible
from connector.tables.values import DataType, read_value
from tests.changes import change, delete_cells, delete_family, put

Q = ("f", b"q")


def in_any_order(
    changes: Sequence[DataChange],
    versions: Versions = Versions.LATEST,
    order_by: OrderBy = OrderBy.COMMIT,
) -> list[dict[tuple[str, bytes], bytes]]:
    """What is visible of their row, once for each different outcome of all orders of arrival."""
    outcomes: list[dict[tuple[str, bytes], bytes]] = []
    for arrival in permutations(changes):
        state = EMPTY
        for offset, each in enumerate(arrival):
            state = normal(join(state, lift(each, OrderPosition(1, 0, offset), order_by, versions)))
        if visible(state) not in outcomes:
            outcomes.append(visible(state))
    return outcomes


EMPLOYEES = TableDefinition(
    name="employees",
    stream="s",
    source="employees",
    key=Key((KeyPart("id", DataType.INT64),), KeyForm.DELIMITED),
    columns=(
        Column("name", "f", b"name", DataType.STRING),
        Column("salary", "f", b"salary", DataType.INT64),
    ),
)


def upsert(id_: int, name: str, salary: int, at: int) -> DataChange:
    entries = (
        DeleteFamily("f"),
        SetCell("f", b"name", name.encode()),
        SetCell("f", b"salary", b"%d" % salary),
    )
    return change(*entries, row_key=EMPLOYEES.key.write_key((id_,)), at=at)


def table_of(changes: Sequence[DataChange]) -> dict[object, tuple[object, ...]]:
    states = {}
    for offset, each in enumerate(changes):
        state = lift(each, OrderPosition(1, 0, offset), OrderBy.COMMIT, Versions.LATEST)
        states[each.row_key] = join(states.get(each.row_key, EMPTY), state)
    rows = {EMPLOYEES.key.read_key(row_key): visible(state) for row_key, state in states.items()}
    return {
        key: tuple(
            read_value(column.type, column.encoding, cells[column.cell])
            for column in EMPLOYEES.columns
        )
        for key, cells in rows.items()
        if cells
    }


def test_example_1_upserts_and_deletes_of_employees() -> None:
    """MRG example 1 (BigQuery's own): a delete carries the key alone; in any order of arrival."""
    before = [
        upsert(100, "Charlie", 2000, 1),
        upsert(101, "Tal", 3000, 1),
        upsert(102, "Lee", 5000, 1),
    ]
    delete = change(DeleteFamily("f"), row_key=b"100", at=2)
    changes = [*before, delete, upsert(101, "Tal", 8000, 2), upsert(105, "Izumi", 6000, 2)]
    for arrival in permutations(changes):
        assert table_of(arrival) == {
            (101,): ("Tal", 8000),
            (102,): ("Lee", 5000),
            (105,): ("Izumi", 6000),
        }


def test_example_3_a_deleted_family_hides_what_was_committed_before() -> None:
    """MRG example 3, MRG-6: an older change is not visible; a newer one is, however old its cell
    timestamp.
    """
    deleted = change(delete_family(), at=20)
    older = change(put("older", cell_timestamp=10), at=10)
    newer = change(put("newer", cell_timestamp=5), at=30)
    assert in_any_order([deleted, older]) == [{}]
    assert in_any_order([deleted, older, newer]) == [{Q: b"newer"}]


@pytest.mark.parametrize("versions", list(Versions))
def test_example_4_the_larger_tie_breaker_stays(versions: Versions) -> None:
    """MRG example 4, MRG-1: same commit timestamp from two clusters, tie breakers 7 and 9, in
    either order of arrival.
    """
    seven, nine = (
        change(put(str(tie)), tie_breaker=tie, source_cluster_id=f"c{tie}") for tie in (7, 9)
    )
    assert in_any_order([seven, nine], versions) == [{Q: b"9"}]


@pytest.mark.parametrize("versions", list(Versions))
def test_example_5_an_upsert_delivered_twice_is_there(versions: Versions) -> None:
    """MRG example 5, MRG-4: [DeleteFamily f, SetCell f:q], twice."""
    upserted = change(delete_family(), put("there"))
    assert in_any_order([upserted, upserted], versions) == [{Q: b"there"}]


def test_example_6_cell_timestamps_do_not_decide_what_a_delete_hides() -> None:
    """MRG example 6, MRG-6, MRG-9: `latest` forgets older versions at once, `all` keeps them."""
    rewritten = [
        change(put("1", cell_timestamp=10), at=1),
        change(delete_cells(), at=2),
        change(put("3", cell_timestamp=5), at=3),
    ]
    assert in_any_order(rewritten) == in_any_order(rewritten, Versions.ALL) == [{Q: b"3"}]
    ranged = [
        change(put("v1", cell_timestamp=1), at=1),
        change(put("v2", cell_timestamp=2), at=2),
        change(delete_cells(2, 3), at=3),
    ]
    assert in_any_order(ranged, Versions.LATEST) == [{}]
    assert in_any_order(ranged, Versions.ALL) == [{Q: b"v1"}]


def test_example_6_where_numbers_decide_and_commits_go_backwards() -> None:
    """MRG example 6, MRG-2: the same by sequence number; a later section counts less."""
    written = [put("v1", cell_timestamp=1), put("v2", cell_timestamp=2), delete_cells(2, 3)]
    numbered = [
        change(entry, at=9 - place, change_sequence_number=f"1/{place}/FF")
        for place, entry in enumerate(written)
    ]
    assert in_any_order(numbered, Versions.LATEST, OrderBy.SEQUENCE_NUMBER) == [{}]
    assert in_any_order(numbered, Versions.ALL, OrderBy.SEQUENCE_NUMBER) == [{Q: b"v1"}]


def test_example_7_a_key_change_takes_effect_on_both_rows() -> None:
    """MRG example 7: the delete of the old key and the upsert of the new one at the same commit, in
    either order.
    """
    upserted = upsert(7, "Ada", 1, at=1)
    moved = [change(DeleteFamily("f"), row_key=b"7", at=2), upsert(8, "Ada", 1, at=2)]
    for arrival in permutations([upserted, *moved]):
        assert table_of(arrival) == {(8,): ("Ada", 1)}


def test_example_8_in_the_core_the_horizon_decides_whatever_the_retention_was() -> None:
    """MRG example 8, MRG-10: a tombstone above the horizon stays, and goes on hiding the old upsert
    when it comes.
    """
    deleted = lift(
        change(delete_family(), at=20), OrderPosition(2, 0, 0), OrderBy.COMMIT, Versions.LATEST
    )
    late = lift(change(put("late"), at=15), OrderPosition(3, 0, 1), OrderBy.COMMIT, Versions.LATEST)
    assert visible(join(expire(deleted, 12), late)) == {}
