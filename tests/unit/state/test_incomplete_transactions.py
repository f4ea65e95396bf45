"""Transactions that lack records, and for how long tables wait for them (ING-2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.state.incomplete_transactions import (
    CHECK_EVERY_US,
    MOST_FOUND,
    MOST_LISTED,
    NOT_CHECKED,
    Found,
    IncompleteTransaction,
    ReleaseTransaction,
    TransactionCheck,
)
from connector.state.stream_progress import BatchCounts, Progress
from connector.stored import from_stored, to_stored
from connector.watermarks.frontier import Frontier

WAIT = 10_000_000


def release(id_: str, number: int = 1) -> ReleaseTransaction:
    return ReleaseTransaction(number, "s", id_, "a reason", 1, "a test")


def test_a_stream_that_declares_nothing_is_never_checked() -> None:
    checked = NOT_CHECKED.counted(0, 5)
    assert not checked.is_due(10, CHECK_EVERY_US)
    assert checked.waits_to(10, 0, WAIT) == 10
    declared = checked.counted(2, 7)
    assert declared.is_due(10, CHECK_EVERY_US)
    assert declared.checked_to == 7, "nothing below can lack records"
    assert declared.waits_to(10, 0, WAIT) == 7
    assert not declared.is_due(None, CHECK_EVERY_US)


def test_a_check_is_due_once_a_minute_and_after_the_clock_was_set_back() -> None:
    checked = replace(NOT_CHECKED, declared=1).after(10, [], 5 * CHECK_EVERY_US)
    assert not checked.is_due(20, 6 * CHECK_EVERY_US - 1)
    assert checked.is_due(20, 6 * CHECK_EVERY_US)
    assert checked.is_due(20, CHECK_EVERY_US)
    assert not checked.is_due(10, 9 * CHECK_EVERY_US), "there is nothing to check"


def test_tables_wait_until_the_records_are_there() -> None:
    checked = replace(NOT_CHECKED, declared=1).after(10, [Found(4, "a", 1)], 1, wait_us=WAIT)
    assert checked.waits_to(10, 2, WAIT) == 4
    assert checked.overdue(2, WAIT) == ()
    assert checked.waits_to(10, 1 + WAIT, WAIT) == 10
    assert [one.server_transaction_id for one in checked.overdue(1 + WAIT, WAIT)] == ["a"]
    complete = checked.after(12, [], 3, wait_us=WAIT)
    assert complete.waits_to(12, 3, WAIT) == 12
    assert (complete.incomplete, complete.found) == ((), 1)


def test_nothing_waits_for_a_released_transaction() -> None:
    checked = replace(NOT_CHECKED, declared=1).after(10, [Found(4, "a", 1)], 1, wait_us=WAIT)
    released = checked.released([release("a"), release("of another time", 2)])
    assert released.waits_to(10, 2, WAIT) == 10
    assert (checked.complete_to(10), released.complete_to(10)) == (4, 10)
    assert released.overdue(1 + WAIT, WAIT) == ()
    assert released.released_to == 2
    again = released.after(11, [Found(4, "a", 1)], 5, wait_us=WAIT)
    assert again.incomplete == (IncompleteTransaction(4, "a", 1, 1, True),)


def test_what_is_below_the_horizon_is_forgotten() -> None:
    checked = replace(NOT_CHECKED, declared=1).after(10, [Found(4, "a", 1)], 1)
    assert checked.after(20, [Found(4, "a", 1)], 2, horizon=5).incomplete == ()


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 400)), max_size=400, unique=True),
    st.booleans(),
)
def test_a_bounded_list_leaves_out_nothing_that_is_waited_for(
    drawn: list[tuple[int, int]], waits: bool
) -> None:
    """cut_is_consistent: the cut never passes one that no table may show."""
    found = sorted(Found(at, str(id_), 1) for at, id_ in drawn)
    wait_us = WAIT if waits else 0
    checked = replace(NOT_CHECKED, declared=1).after(60, found, 1, wait_us=wait_us)
    assert len(checked.incomplete) <= MOST_LISTED
    complete_to = checked.waits_to(60, 1, wait_us)
    if waits:
        assert complete_to == min([60, *(one.commit_timestamp for one in found)])
        left_out = {one[:2] for one in found} - {one[:2] for one in checked.incomplete}
        assert all(at >= checked.checked_to for at, _ in left_out), "they are found again"
    else:
        assert complete_to == 60
        assert checked.found == len(found)


def test_a_check_that_finds_too_many_does_not_go_further() -> None:
    found = [Found(n, "t", 1) for n in range(1, MOST_FOUND + 1)]
    checked = replace(NOT_CHECKED, declared=1).after(10_000, found, 1)
    assert checked.checked_to == MOST_FOUND
    assert len(checked.incomplete) == MOST_LISTED


@pytest.mark.parametrize("check", [NOT_CHECKED, TransactionCheck(declared=3, checked_to=5)])
def test_old_progress_has_no_check_and_new_progress_is_read_again(check: TransactionCheck) -> None:
    progress = Progress(transactions=check)
    stored = progress.to_json()
    assert ("transactions" in stored) == (check != NOT_CHECKED)
    assert Progress.from_json(stored, Frontier()).transactions == check


def test_the_cut_and_the_horizon_stay_below_an_incomplete_transaction() -> None:
    """cut_is_consistent, deletes_stay_deleted: and TBL-11 once it is overdue."""
    check = replace(NOT_CHECKED, declared=1).after(10, [Found(4, "a", 1)], 1, wait_us=WAIT)
    progress = Progress(ingest_batch=3, transactions=check, frontier=Frontier(low_watermark=10))
    assert progress.cut(2, 300).low_watermark == 10, "the stream does not wait"
    cut = progress.cut(2, 300, WAIT // 1_000_000)
    assert (cut.low_watermark, cut.ignores_watermark) == (4, False)
    late = progress.cut(1 + WAIT, 300, WAIT // 1_000_000)
    assert (late.low_watermark, late.ignores_watermark) == (4, True), "no consistent cut"
    assert BatchCounts(changes=1, declared=1).records == 1


@given(st.builds(TransactionCheck, checked_to=st.integers(0, 2**60), declared=st.integers(0, 9)))
def test_stored_form(check: TransactionCheck) -> None:
    assert from_stored(TransactionCheck, to_stored(check)) == check
