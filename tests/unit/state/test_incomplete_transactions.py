"""Transactions that lack records, and for how long tables wait for them (ING-2)."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.config.settings import IncompleteTransactions, StreamConfig
from connector.reports.stream_status import stream_status
from connector.state.incomplete_transactions import (
    CHECK_EVERY_US,
    MOST_LISTED,
    NOT_CHECKED,
    STORE_EVERY_US,
    IncompleteTransaction,
    ReleaseTransaction,
    TransactionCheck,
    TransactionGap,
)
from connector.state.stream_progress import BatchCounts, Progress
from connector.stored import from_stored, to_stored
from connector.watermarks.frontier import Frontier

WAIT = 10_000_000


def waiting(wait_s: int | None) -> StreamConfig:
    """A stream whose tables wait so long for an incomplete transaction, or not at all."""
    if wait_s is None:
        return StreamConfig(name="s", topic="s")
    return StreamConfig(
        name="s",
        topic="s",
        incomplete_transactions=IncompleteTransactions.WAIT,
        incomplete_after_s=wait_s,
    )


def release(id_: str, number: int = 1, at: int = 4) -> ReleaseTransaction:
    return ReleaseTransaction(number, "s", id_, "a reason", 1, "a test", at)


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
    assert not checked.is_due(20, 5 * CHECK_EVERY_US)
    assert not checked.is_due(20, 6 * CHECK_EVERY_US - 1)
    assert checked.is_due(20, 6 * CHECK_EVERY_US)
    assert checked.is_due(20, CHECK_EVERY_US)
    assert not checked.is_due(10, 9 * CHECK_EVERY_US), "there is nothing to check"


@pytest.mark.parametrize("waits", [True, False])
def test_time_that_no_check_covered_is_not_stored(waits: bool) -> None:
    """ING-2: without a declared transaction, the horizon alone makes no commit."""
    for horizon in range(0, 10 * STORE_EVERY_US, STORE_EVERY_US):
        followed = replace(NOT_CHECKED, checked_to=max(0, horizon))
        assert not followed.is_news(NOT_CHECKED, horizon, below=horizon, waits=waits)


def test_a_check_is_stored_at_once_if_tables_wait_for_it() -> None:
    """ING-2: otherwise it is stored once in `STORE_EVERY_US`."""
    now, stored = STORE_EVERY_US, replace(NOT_CHECKED, declared=1)
    checked = stored.after(10, [], now)
    assert checked.is_news(stored, now, below=9, waits=True)
    assert checked.is_news(stored, now, below=9, waits=False)
    assert not checked.is_news(replace(stored, checked_at=1), now, below=9, waits=False)
    assert not checked.is_news(stored, now, below=10, waits=True), "nothing looks below 10"
    result = stored.after(10, [TransactionGap(4, "a", 1)], now)
    assert result.is_news(replace(stored, checked_at=1), now, below=10, waits=False)
    taken = replace(stored, released_to=3)
    assert taken.is_news(stored, 1, below=0, waits=False)


def test_tables_wait_until_the_records_are_there() -> None:
    checked = replace(NOT_CHECKED, declared=1).after(
        10, [TransactionGap(4, "a", 1)], 1, wait_us=WAIT
    )
    assert checked.waits_to(10, 2, WAIT) == 4
    assert checked.overdue(2, WAIT) == ()
    assert checked.waits_to(10, 1 + WAIT, WAIT) == 10
    assert [one.server_transaction_id for one in checked.overdue(1 + WAIT, WAIT)] == ["a"]
    complete = checked.after(12, [], 3, wait_us=WAIT)
    assert complete.waits_to(12, 3, WAIT) == 12
    assert (complete.incomplete, complete.found) == ((), 1)


def test_nothing_waits_for_a_released_transaction() -> None:
    checked = replace(NOT_CHECKED, declared=1).after(
        10, [TransactionGap(4, "a", 1)], 1, wait_us=WAIT
    )
    released = checked.released([release("a"), release("of another time", 2)])
    assert released.waits_to(10, 2, WAIT) == 10
    assert (checked.complete_to(10), released.complete_to(10)) == (4, 10)
    assert released.overdue(1 + WAIT, WAIT) == ()
    assert released.released_to == 2
    assert checked.released([release("a", at=5)]).incomplete == checked.incomplete
    assert checked.released([release("a", at=4)]).incomplete == released.incomplete
    assert released.released([]).released_to == released.released([release("a")]).released_to == 2
    again = released.after(11, [TransactionGap(4, "a", 1)], 5, wait_us=WAIT)
    assert again.incomplete == (IncompleteTransaction(4, "a", 1, 1, True),)


def test_transactions_below_the_horizon_are_forgotten() -> None:
    checked = replace(NOT_CHECKED, declared=1).after(10, [TransactionGap(4, "a", 1)], 1)
    assert checked.after(20, [TransactionGap(4, "a", 1)], 2, horizon=5).incomplete == ()


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 400)), max_size=400, unique=True),
    st.booleans(),
)
def test_a_bounded_list_leaves_out_nothing_that_is_waited_for(
    drawn: list[tuple[int, int]], waits: bool
) -> None:
    """cut_is_consistent: the cut never passes one that no table may show."""
    result = sorted(TransactionGap(at, str(id_), 1) for at, id_ in drawn)
    wait_us = WAIT if waits else 0
    checked = replace(NOT_CHECKED, declared=1).after(60, result, 1, wait_us=wait_us)
    assert len(checked.incomplete) <= MOST_LISTED
    complete_to = checked.waits_to(60, 1, wait_us)
    if waits:
        assert complete_to == min([60, *(one.commit_timestamp for one in result)])
        left_out = {one[:2] for one in result} - {one[:2] for one in checked.incomplete}
        assert all(at >= checked.checked_to for at, _ in left_out), "they are found again"
    else:
        assert complete_to == 60
        assert checked.found == len(result)


def test_overdue_transactions_stay_in_a_full_list() -> None:
    """cut_is_consistent: no table is a consistent cut of them, however many there are. Applies and
    the horizon go on.
    """
    result = [TransactionGap(at, "t", 1) for at in range(1, MOST_LISTED + 51)]
    checked = replace(NOT_CHECKED, declared=1).after(900, result, 1, wait_us=WAIT)
    assert checked.waits_to(900, 1, WAIT) == 1
    again = checked.after(950, result, 1 + WAIT, wait_us=WAIT)
    assert len(again.overdue(1 + WAIT, WAIT)) == MOST_LISTED
    assert (again.complete_to(950), again.waits_to(950, 1 + WAIT, WAIT)) == (1, 950)
    requests = [release("t", at=at) for at in range(1, MOST_LISTED + 1)]
    released = again.released(requests).after(950, result, 2 + WAIT, wait_us=WAIT)
    assert released.complete_to(950) == MOST_LISTED + 1, "those that were left out are found again"
    found = (checked.found, again.found, released.found)
    assert found == (MOST_LISTED, MOST_LISTED, len(result)), "each is counted once"


def test_transactions_that_a_full_list_omits_are_counted_once() -> None:
    result = [TransactionGap(5, f"{n:03}", 1) for n in range(MOST_LISTED + 50)]
    checked = replace(NOT_CHECKED, declared=1).after(10, result, 1)
    again = checked.after(20, result, 2)
    assert (again.found, again.incomplete) == (len(result), checked.incomplete)


@given(st.data())
def test_no_cut_passes_a_transaction_that_lacks_records(data: st.DataObject) -> None:
    """cut_is_consistent: over any checks, with a list that is too small, and with equal times.
    A released transaction is passed.
    """
    check, low = replace(NOT_CHECKED, declared=1), 1
    lacking: set[tuple[int, str]] = set()
    released: set[tuple[int, str]] = set()
    with patch("connector.state.incomplete_transactions.MOST_LISTED", 2):
        for now in range(1, data.draw(st.integers(2, 6)) * 2, 2):
            step = data.draw(st.integers(1, 4))
            places = st.tuples(st.integers(low, low + step - 1), st.sampled_from("abc"))
            lacking |= data.draw(st.sets(places))
            low += step
            lacking -= {place for place in sorted(lacking) if data.draw(st.booleans())}
            listed = {one[:2] for one in check.incomplete}
            incomplete = [p for p in lacking if p in listed or check.checked_to <= p[0] < low]
            check = check.after(
                low, [TransactionGap(*place, 1) for place in incomplete], now, wait_us=3
            )
            if check.incomplete and data.draw(st.booleans()):
                at, id_ = check.incomplete[0][:2]
                released.add((at, id_))
                others = [one for one in check.incomplete if one[:2] != (at, id_)]
                check = check.released([release(id_, now, at)])
                assert [one for one in check.incomplete if one[:2] != (at, id_)] == others
            oldest = min([low, *(at for at, id_ in lacking - released)])
            assert check.complete_to(low) <= oldest
            assert check.waits_to(low, now, 3) <= low
            assert len(check.incomplete) <= 2


def test_removed_batches_are_not_checked() -> None:
    """TBL-15"""
    checked = replace(NOT_CHECKED, declared=1).after(10, [], 1)
    assert checked.trimmed(5).checked_to == 10
    assert checked.trimmed(12).checked_to == 12


def test_a_fresh_read_knows_whether_the_stream_waits() -> None:
    """TBL-16: `consistent_to` is the low watermark, or what the tables of the stream wait for."""
    declared = replace(NOT_CHECKED, declared=1, checked_to=7)
    progress = Progress(transactions=declared, frontier=Frontier(low_watermark=10))
    assert progress.consistent_to == 10
    waits = NOT_CHECKED.counted(1, 7, waits=True)
    assert replace(progress, transactions=waits).consistent_to == 7
    assert not NOT_CHECKED.counted(0, 7, waits=True).waits, "it declares nothing"
    assert not waits.counted(0, 7).waits
    assert Progress(transactions=waits).consistent_to is None


@pytest.mark.parametrize("check", [NOT_CHECKED, TransactionCheck(declared=3, checked_to=5)])
def test_old_progress_has_no_check_and_new_progress_is_read_again(check: TransactionCheck) -> None:
    progress = Progress(transactions=check)
    stored = progress.to_json()
    assert ("transactions" in stored) == (check != NOT_CHECKED)
    assert Progress.from_json(stored, Frontier()).transactions == check


def test_the_cut_and_the_horizon_stay_below_an_incomplete_transaction() -> None:
    """cut_is_consistent, deletes_stay_deleted: and TBL-11 once it is overdue."""
    check = replace(NOT_CHECKED, declared=1).after(10, [TransactionGap(4, "a", 1)], 1, wait_us=WAIT)
    progress = Progress(ingest_batch=3, transactions=check, frontier=Frontier(low_watermark=10))
    assert progress.cut(2, 300).low_watermark == 10, "the stream does not wait"
    cut = progress.cut(2, 300, WAIT // 1_000_000)
    assert (cut.low_watermark, cut.ignores_watermark) == (4, False)
    assert not progress.cut(WAIT, 300, WAIT // 1_000_000).ignores_watermark
    late = progress.cut(1 + WAIT, 300, WAIT // 1_000_000)
    assert (late.low_watermark, late.ignores_watermark) == (4, True), "no consistent cut"
    assert BatchCounts(changes=1, declared=1).records == 1


@given(st.builds(TransactionCheck, checked_to=st.integers(0, 2**60), declared=st.integers(0, 9)))
def test_stored_form(check: TransactionCheck) -> None:
    assert from_stored(TransactionCheck, to_stored(check)) == check


def test_the_status_names_the_oldest_and_what_tables_do() -> None:
    """ING-2: they wait, they no longer wait, or the stream only counts."""
    check = replace(NOT_CHECKED, declared=1).after(
        10, [TransactionGap(4, "a", 1), TransactionGap(5, "b", 2)], 1
    )
    progress = Progress(ingest_batch=3, transactions=check, frontier=Frontier(low_watermark=10))
    for now, wait_s, effect in (
        (2, 10, "tables wait for it"),
        (1 + WAIT, 10, "tables no longer wait for it, and are no consistent cut"),
        (2, None, "look for dead letters, or ask the producer"),
    ):
        status = stream_status(waiting(wait_s), progress, now)
        hint = next(one for one in status.hints if one.startswith("transaction a of"))
        assert "lacks 1 record, and 1 other lack some: " + effect in hint
    shown = status.to_json()["transactions"]
    assert [(one["server_transaction_id"], one["missing"]) for one in shown["incomplete"]] == [
        ("a", 1),
        ("b", 2),
    ]
    released = replace(progress, transactions=check.released([release("a"), release("b", 2, at=5)]))
    status = stream_status(waiting(10), released, 1 + WAIT)
    assert not any(one.startswith("transaction") for one in status.hints)
