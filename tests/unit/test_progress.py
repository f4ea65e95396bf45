"""Whether a table as it stands answers a read, and what is said where nothing does (TBL-16)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.bookkeeping import Bookkeeping
from connector.errors import StaleTableError
from connector.freshness import NONE_ASKED, Asked
from connector.hold import Dead
from connector.merge import Retention
from connector.outside import OutsideLetters
from connector.progress import BatchCounts, Progress
from connector.watermark import UNKNOWN, Ended, Heard
from connector.wishes import EndWish

S = 1_000_000
ONE = Progress().after(1, BatchCounts(changes=3), {0: 3}, Asked(100 * S, {0: 3}), Retention(), frozenset())
TWO = ONE.after(2, BatchCounts(changes=1), {0: 4}, Asked(200 * S, {0: 9}), Retention(), frozenset())


def test_what_is_stored_is_read_back() -> None:
    """TBL-5"""
    assert Progress.from_json(TWO.to_json(), TWO.frontier) == TWO
    with_outside = replace(TWO, outside=OutsideLetters("D", 2, 60, {0: 4}))
    assert Progress.from_json(with_outside.to_json(), TWO.frontier) == with_outside
    assert Progress.from_json(TWO.to_json(), UNKNOWN) == replace(TWO, frontier=UNKNOWN)


@pytest.mark.parametrize(
    ("complete_to_batch", "bound_s", "now_s", "suffices"),
    [(1, 60, 160, True), (1, 60, 161, False), (1, None, 100, False), (1, 0, 100, False), (2, None, 999, True), (2, 60, 999, True)],
)
def test_staleness_is_bounded(complete_to_batch: int, bound_s: float | None, now_s: int, suffices: bool) -> None:
    """TBL-16: the table as it stands will do if it is fresh enough, or if nothing is missing; without a bound only if nothing is."""
    assert TWO.suffices(Bookkeeping(complete_to_batch=complete_to_batch), bound_s, now_s * S) is suffices


def test_a_table_is_as_old_as_is_known_today_or_was_at_its_apply() -> None:
    """TBL-16"""
    quiet = TWO.renewed({0: 9}, Asked(300 * S, {0: 9}))
    assert (TWO.as_of(Bookkeeping(complete_to_batch=2)), quiet.as_of(Bookkeeping(complete_to_batch=2))) == (100 * S, 300 * S)
    assert quiet.as_of(Bookkeeping(complete_to_batch=1)) == 100 * S
    assert quiet.as_of(Bookkeeping(complete_to_batch=1, as_of=150 * S)) == 150 * S
    assert Progress().as_of(Bookkeeping()) is None


def test_who_is_behind_is_said() -> None:
    """TBL-16: the error names the lag and who causes it."""
    TWO.check_age("accounts", 100 * S, 60, 160 * S)
    TWO.check_age("accounts", None, None, 160 * S)
    with pytest.raises(
        StaleTableError, match=r"accounts .* 60\.5 s old, the bound is 60 s\. Ingest .*T00:03:20.* 5 offsets behind\. See"
    ) as error:
        TWO.check_age("accounts", 100 * S, 60, 160 * S + S // 2)
    assert error.value.as_of == 100 * S
    waits = Dead(b"k", 1, (0, 7), 1, (0, 7), table_letter=False, since=90 * S)
    with pytest.raises(StaleTableError, match=r"Ingest asked"):
        TWO.check_age("accounts", 100 * S, 60, 10**6 * S, (waits,))
    with pytest.raises(StaleTableError, match=r"wait for dead letters, the oldest since .*T00:01:30.* replay"):
        ONE.check_age("accounts", 30 * S, 60, 110 * S, (waits,))
    with pytest.raises(StaleTableError, match=r"of unknown age.*Ingest has never run"):
        replace(Progress(), moments=NONE_ASKED).check_age("accounts", None, 60, 160 * S)


def test_an_operators_end_is_recorded_and_not_taken_twice() -> None:
    """WMK-8"""
    heard = Heard(1, {"p": {0: 5}, "q": {0: 9}})
    wishes = [EndWish(number, "s", name, "gone", 1, "me") for number, name in ((3, "p"), (4, "q"))]
    asked = Asked(100 * S, {0: 3})
    spoken = Progress().after(1, BatchCounts(heard=heard, read_at=7), {0: 3}, asked, Retention(), frozenset())
    one = spoken.after(2, BatchCounts(heard=Heard(1)), {0: 3}, asked, Retention(), frozenset(), wishes[:1])
    assert (one.ends, one.ends_to, list(one.frontier.live), one.frontier.ended) == ((wishes[0],), 3, ["q"], {"p": Ended(5)})
    assert Progress.from_json(one.to_json(), one.frontier) == one
    both = one.after(3, BatchCounts(heard=Heard(1)), {0: 3}, asked, Retention(), frozenset(), wishes)
    assert (both.ends, both.ends_to, list(both.frontier.live)) == ((wishes[1],), 4, [])
    assert both.after(4, BatchCounts(heard=Heard(1)), {0: 3}, asked, Retention(), frozenset()).ends == ()


def test_a_batch_without_rows_was_read_when_kafka_was_asked() -> None:
    """WMK-12: nobody is stalled because nothing was to be read."""
    heard = Heard(1, {"p": {0: 5}})
    quiet = Progress().after(1, BatchCounts(heard=heard), {0: 0}, Asked(100 * S, {0: 0}), Retention(), frozenset())
    assert quiet.frontier.moved["p"].at == 100 * S
