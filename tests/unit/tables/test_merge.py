from __future__ import annotations

import pickle
from time import perf_counter

import pytest

from connector.records.model import ChangeType, DataChange
from connector.records.ordering import OrderBy, OrderPosition
from connector.tables.definition import Versions
from connector.tables.merge import (
    EMPTY,
    CellName,
    RowState,
    Tombstone,
    exists,
    expire,
    join,
    lift,
    normal,
    visible,
)
from connector.tables.retention import DELETE_RETENTION_S, NONE_READ, is_too_late, next_horizon
from tests.changes import change, delete_cells, delete_family, put

Q = ("f", b"q")
each_meaning = pytest.mark.parametrize("versions", list(Versions))


def state(
    *changes: DataChange,
    versions: Versions = Versions.LATEST,
    order_by: OrderBy = OrderBy.COMMIT,
    batch: int = 1,
) -> RowState:
    """The state after these changes, delivered one after the other."""
    joined = EMPTY
    for offset, each in enumerate(changes):
        joined = join(joined, lift(each, OrderPosition(batch, 0, offset), order_by, versions))
    return joined


@each_meaning
def test_older_change_never_overwrites_newer(versions: Versions) -> None:
    """MRG-5, `newest_wins`."""
    assert visible(
        state(change(put("new"), at=2), change(put("old"), at=1), versions=versions)
    ) == {Q: b"new"}


@each_meaning
def test_column_that_is_not_mentioned_keeps_its_value(versions: Versions) -> None:
    """MRG-8."""
    changed = state(
        change(put("1", qualifier=b"a"), put("1", qualifier=b"b"), at=1),
        change(put("2", qualifier=b"b"), at=2),
        versions=versions,
    )
    assert visible(changed) == {("f", b"a"): b"1", ("f", b"b"): b"2"}


@each_meaning
def test_last_entry_on_a_column_wins_within_a_change(versions: Versions) -> None:
    """MRG-1: the index is part of the order."""
    assert visible(state(change(put("1"), put("2")), versions=versions)) == {Q: b"2"}
    assert visible(state(change(put("1"), delete_cells()), versions=versions)) == {}
    assert visible(state(change(delete_cells(), put("2")), versions=versions)) == {Q: b"2"}
    assert visible(
        state(change(put("1"), delete_family(), put("2", qualifier=b"r")), versions=versions)
    ) == {("f", b"r"): b"2"}


@each_meaning
def test_record_sequence_decides_within_a_transaction(versions: Versions) -> None:
    """MRG-1."""
    assert visible(
        state(
            change(put("second"), record_sequence=7),
            change(put("first"), record_sequence=3),
            versions=versions,
        )
    ) == {Q: b"second"}


def test_empty_value_and_empty_qualifier_are_visible() -> None:
    """REC-16: empty is not absent."""
    row = state(change(put("", qualifier=b"")))
    assert visible(row) == {("f", b""): b""}
    assert exists(row)


def test_a_family_delete_leaves_other_families_alone() -> None:
    """MRG-6, REC-6."""
    assert visible(
        state(change(put("1"), put("2", family="g")), change(delete_family("g"), at=2))
    ) == {Q: b"1"}


def test_a_column_delete_leaves_other_columns_alone() -> None:
    """MRG-6, REC-7."""
    assert visible(
        state(change(put("1"), put("2", qualifier=b"r")), change(delete_cells(), at=2))
    ) == {("f", b"r"): b"2"}


def test_a_row_with_nothing_visible_does_not_exist() -> None:
    """MRG-7: though much may be remembered of it."""
    row = state(change(put("1")), change(delete_family(), at=2))
    assert not exists(row)
    assert not exists(EMPTY)
    assert normal(row).tombstones


def test_garbage_collection_deletes_like_any_other_change() -> None:
    """REC-9."""
    collected = change(
        delete_cells(0, 5), at=2, change_type=ChangeType.GARBAGE_COLLECTION, source_cluster_id=""
    )
    assert visible(state(change(put("1", cell_timestamp=4)), collected)) == {}


@pytest.mark.parametrize(
    ("start", "end", "gone"),
    [
        (0, 0, {1, 2, 3}),
        (2, 0, {2, 3}),
        (0, 2, {1}),
        (2, 3, {2}),
        (2, 2**63 - 1, {2, 3}),
        (4, 0, set()),
    ],
)
def test_a_range_is_half_open(start: int, end: int, gone: set[int]) -> None:
    """MRG-6, REC-7: the start is deleted, the end is not, 0 is no end."""
    rows = [
        state(change(put("v", cell_timestamp=timestamp)), change(delete_cells(start, end), at=2))
        for timestamp in (1, 2, 3)
    ]
    assert {timestamp for timestamp, row in enumerate(rows, start=1) if not exists(row)} == gone


def test_no_end_reaches_beyond_the_greatest_timestamp() -> None:
    """REC-7: [0, 2^63 - 1) leaves the one timestamp that only [0, 0) reaches."""
    last = change(put("v", cell_timestamp=2**63 - 1))
    assert exists(state(last, change(delete_cells(0, 2**63 - 1), at=2)))
    assert not exists(state(last, change(delete_cells(0, 0), at=2)))


def test_versions_live_side_by_side_only_with_all() -> None:
    """The table of cells: with `all` the column shows the greatest cell timestamp, with `latest`
    the newest write.
    """
    writes = (
        change(put("late", cell_timestamp=9), at=1),
        change(put("early", cell_timestamp=3), at=2),
    )
    assert visible(state(*writes, versions=Versions.ALL)) == {Q: b"late"}
    assert visible(state(*writes, versions=Versions.LATEST)) == {Q: b"early"}
    assert len(state(*writes, versions=Versions.ALL).cells) == 2


def test_between_changes_that_the_source_left_equal_the_later_delivery_wins() -> None:
    """MRG-4: a redelivery too."""
    one, other = change(put("one")), change(put("other"))
    assert visible(state(one, other)) == {Q: b"other"}
    assert visible(state(one, other, one)) == {Q: b"one"}


def test_a_batch_that_runs_again_changes_nothing() -> None:
    """MRG-4: the same offsets in the same ingest batch are the same orders."""
    row = state(change(delete_family(), put("1")), change(put("2"), at=2))
    assert join(row, row) == row


def test_a_replayed_letter_keeps_its_order_position() -> None:
    """MRG-3: a repair does not make a rejected change win a tie."""
    letter = lift(
        change(put("mended")), OrderPosition(1, 0, 5, attempt=1), OrderBy.COMMIT, Versions.LATEST
    )
    later = lift(change(put("later")), OrderPosition(1, 0, 6), OrderBy.COMMIT, Versions.LATEST)
    assert visible(join(later, letter)) == {Q: b"later"}


def test_a_tombstone_inside_a_newer_wider_one_is_dropped() -> None:
    """MRG-9: range in column in family; an older wider one drops nothing."""
    rising = [
        change(delete_cells(2, 3), at=1),
        change(delete_cells(1, 0), at=2),
        change(delete_cells(), at=3),
        change(delete_family(), at=4),
    ]
    assert set(normal(state(*rising)).tombstones) == {Tombstone("f", None, 0, 0)}
    falling = [change(each.entries[0], at=5 - each.commit_timestamp) for each in rising]
    assert len(normal(state(*falling)).tombstones) == 4


@pytest.mark.parametrize(
    ("tombstone", "covers", "contains"),
    [
        (Tombstone("f", None, 0, 0), True, True),
        (Tombstone("g", None, 0, 0), False, False),
        (Tombstone("f", b"q", 0, 0), True, True),
        (Tombstone("f", b"r", 0, 0), False, False),
        (Tombstone("g", b"q", 0, 0), False, False),
        (Tombstone("f", b"q", 3, 5), True, True),
        (Tombstone("f", b"q", 3, 4), True, False),
        (Tombstone("f", b"q", 4, 5), False, False),
        (Tombstone("f", b"q", 0, 3), False, False),
    ],
)
def test_a_delete_reaches_its_own_family_column_and_range_only(
    tombstone: Tombstone, *, covers: bool, contains: bool
) -> None:
    """MRG-6: against the cell f:q at 3, and against the delete of f:q in [3, 5)."""
    assert tombstone.covers(CellName("f", b"q", None), 3) is covers
    assert tombstone.covers(CellName("f", b"q", 3), 3) is covers
    assert tombstone.contains(Tombstone("f", b"q", 3, 5)) is contains


def test_a_delete_of_a_column_contains_none_of_its_family() -> None:
    """MRG-6, MRG-9"""
    both = state(change(delete_family(), at=1), change(delete_cells(qualifier=b""), at=2))
    assert normal(both) == both
    assert not Tombstone("f", b"", 0, 0).contains(Tombstone("f", None, 0, 0))


@pytest.mark.parametrize(
    ("inner", "outer", "is_inside"),
    [
        ((2, 5), (0, 5), True),
        ((2, 5), (2, 6), True),
        ((2, 0), (0, 0), True),
        ((2, 5), (0, 0), True),
        ((2, 5), (0, 4), False),
        ((2, 5), (3, 9), False),
        ((2, 0), (0, 9), False),
        ((0, 0), (0, 9), False),
    ],
)
def test_a_range_is_inside_another_that_begins_or_ends_with_it(
    inner: tuple[int, int], outer: tuple[int, int], *, is_inside: bool
) -> None:
    """MRG-9: what is dropped is compared by state, since nothing of it is visible either way."""
    both = state(change(delete_cells(*inner), at=1), change(delete_cells(*outer), at=2))
    left = {
        name: order
        for name, order in both.tombstones.items()
        if not is_inside or order.rank[0] == 2
    }
    assert normal(both) == RowState({}, left)


def test_tombstones_of_one_name_are_one() -> None:
    """MRG-7: the newest counts."""
    row = state(change(delete_family(), at=2), change(delete_family(), at=1))
    assert [order.rank[0] for order in row.tombstones.values()] == [2]


def test_a_cell_below_a_bounded_range_wins_against_older_writes() -> None:
    """MRG-9: with `latest` its value goes and its order stays; with `all` it goes whole."""
    deleted = [change(put("v2", cell_timestamp=2), at=2), change(delete_cells(2, 3), at=3)]
    latest, all_ = (
        normal(state(*deleted, versions=versions)) for versions in (Versions.LATEST, Versions.ALL)
    )
    assert latest.cells[CellName("f", b"q", None)].value is None
    assert not all_.cells
    older = state(change(put("v1", cell_timestamp=1), at=1))
    assert visible(join(latest, older)) == {}


def test_a_cell_under_a_delete_of_its_column_is_dropped() -> None:
    """MRG-9."""
    assert not normal(state(change(put("1")), change(delete_cells(), at=2))).cells
    assert not normal(state(change(put("1")), change(delete_family(), at=2))).cells


def test_deletes_are_remembered_down_to_the_horizon() -> None:
    """MRG-10: a tombstone at the horizon stays, below it goes; without a horizon all stay."""
    row = state(change(delete_family(), at=20))
    assert expire(row, None).tombstones
    assert expire(row, 20).tombstones
    assert not expire(row, 21).tombstones


def test_values_never_expire() -> None:
    """MRG-10: only what is gone is forgotten."""
    assert visible(expire(state(change(put("1"), at=1)), 10**15)) == {Q: b"1"}


def test_valueless_cells_expire_by_their_own_age() -> None:
    """MRG-10."""
    row = state(change(put("1", cell_timestamp=2), at=10), change(delete_cells(2, 3), at=20))
    assert expire(row, 10).cells
    assert not expire(row, 11).cells
    assert expire(row, 11).tombstones


def test_expiry_hides_before_it_forgets() -> None:
    """MRG-10: a state that was not normal does not show what its expired tombstone hid."""
    assert expire(state(change(put("1"), at=1), change(delete_family(), at=2)), 10) == EMPTY


def test_a_change_below_the_horizon_is_too_late() -> None:
    """MRG-11: the other half, with the same bound."""
    assert is_too_late(change(at=19), 20)
    assert not is_too_late(change(at=20), 20)
    assert not is_too_late(change(at=1), None)


def test_in_a_table_ordered_by_number_deletes_expire_by_batch() -> None:
    """MRG-12."""
    row = state(
        change(delete_family(), at=1, change_sequence_number="FF"),
        order_by=OrderBy.SEQUENCE_NUMBER,
        batch=4,
    )
    assert expire(row, 4).tombstones
    assert not expire(row, 5).tombstones


def test_horizon_never_goes_back() -> None:
    """MRG-10, example 8: retention lowered and raised again."""
    day = 86_400_000_000
    assert next_horizon(None, 10 * day, DELETE_RETENTION_S) == 8 * day
    assert next_horizon(8 * day, 10 * day, 86_400) == 9 * day
    assert next_horizon(9 * day, 10 * day, DELETE_RETENTION_S) == 9 * day
    assert next_horizon(9 * day, None, DELETE_RETENTION_S) == 9 * day
    assert next_horizon(None, None, DELETE_RETENTION_S) is None
    assert next_horizon(None, day, DELETE_RETENTION_S) == 0, "no change is older"


def test_the_retention_of_batches_is_counted_between_their_ingest_times() -> None:
    """MRG-12: from a batch to the newest one that a table holds with all before it, however long
    that has been the newest.
    """
    seconds, horizons = 1_000_000, NONE_READ
    for batch, read_at in enumerate((100, 110, 120, 120, 121), start=1):
        horizons = horizons.after(batch, read_at * seconds, 10)
    assert [horizons.horizon_of(batch) for batch in range(6)] == [None, 0, 0, 2, 2, 3]
    later = horizons.after(6, 90 * seconds, 10).after(7, 131 * seconds, 1000)
    assert [later.horizon_of(batch) for batch in (6, 7)] == [
        3,
        3,
    ], "neither a clock nor a setting brings back what was forgotten"


def test_a_state_can_be_sent_to_another_process() -> None:
    row = normal(state(change(put("1")), change(delete_cells(1, 2), at=2)))
    assert pickle.loads(pickle.dumps(row)) == row


@pytest.mark.systems
def test_the_largest_change_is_merged_in_time() -> None:
    """REC-14: 100,000 entries on as many columns; far below a second each on an idle core."""
    big = change(
        *(
            entry
            for number in range(50_000)
            for entry in (
                put("v", qualifier=b"%d" % number),
                delete_cells(qualifier=b"x%d" % number),
            )
        )
    )
    start = perf_counter()
    row = normal(join(state(big), state(change(delete_family(), at=9))))
    assert not exists(row)
    assert perf_counter() - start < 20
