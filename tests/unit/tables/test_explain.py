"""SUB-6: examples of why a row is as it is; `tests/property/test_explain_laws.py` has the laws."""

from __future__ import annotations

from connector.records.model import DataChange
from connector.records.ordering import OrderBy, OrderPosition
from connector.tables.definition import Versions
from connector.tables.explain import (
    ColumnHistory,
    Delivery,
    Explanation,
    Outcome,
    explain,
)
from connector.tables.merge import EMPTY, expire
from connector.tables.row import state_of
from tests.changes import change, delete_cells, delete_family, put
from tests.property.histories import table


def explained(*changes: DataChange, versions: Versions = Versions.LATEST) -> Explanation:
    deliveries = [Delivery(one, OrderPosition(1, 0, offset)) for offset, one in enumerate(changes)]
    definition = table(OrderBy.COMMIT, versions)
    return explain(deliveries, state_of(definition, deliveries), definition)


def outcomes(column: ColumnHistory) -> list[tuple[bytes, Outcome, int | None]]:
    """The value of each entry, its outcome, and the commit timestamp of the one it lost to."""
    return [
        (one.entry.value, one.outcome, one.lost_to and one.lost_to.rank[0])
        for one in column.entries
    ]


def test_a_newer_write_wins_also_if_it_arrives_first() -> None:
    (column,) = explained(change(put("new"), at=9), change(put("old"), at=3)).columns
    assert outcomes(column) == [
        (b"old", Outcome.OVERWRITTEN, 9),
        (b"new", Outcome.WON, None),
    ]
    assert column.winner is not None
    assert column.winner.value == b"new"


def test_a_late_change_is_hidden_by_the_deletion() -> None:
    result = explained(
        change(put("a"), at=1), change(delete_family(), at=5), change(put("b"), at=4)
    )
    (column,) = result.columns
    assert column.winner is None
    assert outcomes(column) == [
        (b"a", Outcome.OVERWRITTEN, 4),
        (b"b", Outcome.DELETED, 5),
    ]
    (deletion,) = result.deletions
    assert (deletion.hides, deletion.order.rank[0]) == (2, 5)


def test_the_newest_of_several_deletions_is_named() -> None:
    result = explained(
        change(put("a", cell_timestamp=3), at=1),
        change(delete_cells(2, 5), at=4),
        change(delete_family(), at=6),
        change(delete_cells(7, 9), at=8),
    )
    assert outcomes(result.columns[0]) == [(b"a", Outcome.DELETED, 6)]
    assert [deletion.hides for deletion in result.deletions] == [1, 1, 0]


def test_a_column_shows_the_version_with_the_greatest_cell_timestamp() -> None:
    (column,) = explained(
        change(put("v7", cell_timestamp=7), at=1),
        change(put("v3", cell_timestamp=3), at=2),
        versions=Versions.ALL,
    ).columns
    assert outcomes(column) == [
        (b"v7", Outcome.WON, None),
        (b"v3", Outcome.OLDER_VERSION, 1),
    ]


def test_entries_of_one_change_lose_to_each_other() -> None:
    (column,) = explained(change(put("first"), put("second"))).columns
    first, second = column.entries
    assert (first.outcome, first.lost_to) == (Outcome.OVERWRITTEN, second.order)
    assert second.order.entry_index == 1


def test_without_the_deletion_that_removed_it_an_entry_is_removed() -> None:
    """The table forgot the deletion, and its change left the changelog."""
    deliveries = [
        Delivery(change(put("a"), at=1), OrderPosition(1, 0, 0)),
        Delivery(change(delete_family(), at=2), OrderPosition(1, 0, 1)),
    ]
    stored = expire(state_of(table(OrderBy.COMMIT, Versions.LATEST), deliveries), 10)
    result = explain(deliveries[:1], stored, table(OrderBy.COMMIT, Versions.LATEST))
    assert outcomes(result.columns[0]) == [(b"a", Outcome.REMOVED, None)]
    assert result.deletions == ()


def test_a_winner_that_left_the_changelog_has_no_entry() -> None:
    state = state_of(
        table(OrderBy.COMMIT, Versions.LATEST),
        [Delivery(change(put("a"), at=1), OrderPosition(1, 0, 0))],
    )
    (column,) = explain([], state, table(OrderBy.COMMIT, Versions.LATEST)).columns
    assert column.entries == ()
    assert column.winner is not None
    assert column.winner.value == b"a"


def test_a_copy_of_a_replay_is_the_same_entry() -> None:
    """DLQ-10: it has the same position."""
    twice = [Delivery(change(put("a")), OrderPosition(1, 0, 0, 1))] * 2
    state = state_of(table(OrderBy.COMMIT, Versions.LATEST), twice)
    (column,) = explain(twice, state, table(OrderBy.COMMIT, Versions.LATEST)).columns
    assert outcomes(column) == [(b"a", Outcome.WON, None)]


def test_a_row_without_changes_has_nothing_to_explain() -> None:
    result = explain([], EMPTY, table(OrderBy.COMMIT, Versions.LATEST))
    assert (result.columns, result.deletions) == ((), ())
