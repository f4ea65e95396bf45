"""What a table says of itself survives its form on disk, and says when the table is a cut."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from connector.dead_letters.blocked_rows import BlockingLetter
from connector.errors import TableError
from connector.state.table_state import TableState

AT = TableState(
    apply_number=3,
    to_batch=5,
    highest_applied=40,
    apply_watermark=50,
    complete_to_batch=4,
    attempt_ids={2: "x"},
    horizon=-1,
    as_of=7,
)


def test_a_stored_table_state_is_read_back() -> None:
    """TBL-10: every field; others, which a later release may add, are passed over."""
    stored = json.loads(json.dumps({**AT.to_json("accounts"), "later": 1}))
    assert (stored["table"], stored["consistent_cut"]) == ("accounts", True)
    assert TableState.from_json(stored) == AT


@pytest.mark.parametrize(
    ("highest", "below", "is_cut"),
    [(49, 50, True), (50, 50, False), (51, 50, False), (0, None, False)],
)
def test_cut_is_consistent_while_nothing_above_it_was_merged(
    highest: int, below: int | None, is_cut: bool
) -> None:
    """TBL-11"""
    table = replace(AT, highest_applied=highest, apply_watermark=below)
    assert table.is_consistent_cut is is_cut
    assert table.is_at(below, 5) is is_cut
    assert not table.is_at(below, 6)
    assert not table.is_at(7, 5)


@pytest.mark.parametrize(
    ("batch", "commit_timestamp", "is_applied"),
    [
        (4, 49, True),  # nothing of batch 4 was deferred
        (4, 60, True),
        (5, 49, True),  # of batch 5, what is below the apply watermark
        (5, 50, False),
        (5, 60, False),
        (6, 49, False),  # no apply has covered batch 6
    ],
)
@pytest.mark.parametrize("highest", [40, 60], ids=["a cut", "no cut"])
def test_a_delete_counts_as_applied_below_the_watermark_or_with_its_batch(
    batch: int, commit_timestamp: int, highest: int, *, is_applied: bool
) -> None:
    """MRG-13: whether the table is a consistent cut or not. `connector explain` says so."""
    table = replace(AT, highest_applied=highest)
    assert table.is_consistent_cut is (highest == 40)
    assert table.covers(batch, commit_timestamp) is is_applied
    unknown = replace(table, apply_watermark=None)
    assert unknown.covers(batch, commit_timestamp) is (batch <= 4)


WAITS = BlockingLetter(b"k", 2, (0, 7), 3, (0, 9), table_letter=False, since=100)


def test_a_table_with_held_rows_is_no_cut_and_needs_the_batches_of_their_letters() -> None:
    """DLQ-3, TBL-11: from the batch of the newest letter on."""
    blocked_rows = replace(AT, blocked_rows=(WAITS._replace(newest_batch=6), WAITS))
    assert AT.is_consistent_cut
    assert not blocked_rows.is_consistent_cut
    assert not blocked_rows.is_at(50, 5)
    assert (AT.needed_to_batch, blocked_rows.needed_to_batch) == (4, 2)
    assert replace(AT, blocked_rows=(WAITS._replace(newest_batch=6),)).needed_to_batch == 4
    assert (
        TableState.from_json(json.loads(json.dumps(blocked_rows.to_json("accounts"))))
        == blocked_rows
    )


MADE = replace(AT, changelog_id="ours")


@pytest.mark.parametrize(
    ("table", "batch", "changelog_id", "how"),
    [
        (MADE, 5, "ours", None),
        (MADE, 6, None, None),
        (AT, 5, "another", None),
        (TableState(), 0, "ours", None),
        (MADE, 9, "another", "replaced by another one"),
        (MADE, 4, "ours", "restored to batch 4"),
        (MADE, 4, None, "restored to batch 4"),
        (MADE, 0, None, "removed"),
    ],
)
def test_a_table_refuses_another_changelog_than_its_own(
    table: TableState, batch: int, changelog_id: str | None, how: str | None
) -> None:
    """nothing_lost: one that ends earlier, or was replaced; one without an id yet takes any."""
    if how is None:
        table.check_changelog("accounts", batch, changelog_id)
    else:
        with pytest.raises(
            TableError,
            match=f"Table accounts contains .* up to batch 5, but the changelog was {how}",
        ):
            table.check_changelog("accounts", batch, changelog_id)


def test_a_table_lacks_nothing_if_no_change_waits() -> None:
    """TBL-24: of batch 5, changes are deferred."""
    assert AT.lacks_nothing_of(4, as_cut=True)
    assert not AT.lacks_nothing_of(5, as_cut=False)
    no_cut = replace(AT, highest_applied=60)
    assert not no_cut.lacks_nothing_of(4, as_cut=True)
    assert no_cut.lacks_nothing_of(4, as_cut=False)
