"""What a producer may claim, beside a plain model (REC-18)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.records.model import DataChange, Heartbeat, SetCell
from connector.watermarks.delivery import Delivery


def change(timestamp: int, number: int = 0) -> DataChange:
    return DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k%d" % number,
        commit_timestamp=timestamp,
        entries=(SetCell("f", b"q", b"v"),),
    )


steps = st.lists(
    st.tuples(
        st.integers(1, 9), st.sampled_from(["acknowledged", "lost", "later"]), st.integers(0, 5)
    ),
    max_size=40,
)


@given(steps)
def test_the_oldest_open_change_is_the_smallest_that_is_under_way_or_failed(
    plan: list[tuple[int, str, int]],
) -> None:
    delivery, under_way, failed, added = Delivery(), [], set(), 0
    for number, (timestamp, fate, which) in enumerate(plan):
        sent = change(timestamp, number)
        added += delivery.sent(sent)
        under_way.append(sent)
        if fate != "later":
            settled = under_way.pop(which % len(under_way))
            if fate == "acknowledged":
                added += delivery.acknowledged(settled)
            else:
                added += delivery.lost(settled, "why")
                failed.add(settled)
        assert delivery.under_way == len(under_way)
        assert added == len(delivery.failed) == len(failed)
        assert delivery.oldest_failed() == min((c.commit_timestamp for c in failed), default=None)
        assert delivery.oldest_open() == min(
            (c.commit_timestamp for c in [*under_way, *failed]), default=None
        )


def test_a_failed_change_that_is_sent_again_is_no_longer_failed() -> None:
    delivery = Delivery()
    delivery.sent(change(5))
    assert delivery.lost(change(5), "no broker") == 1
    assert delivery.sent(change(5)) == -1
    assert delivery.oldest_failed() is None, "it is under way"
    assert delivery.oldest_open() == 5
    delivery.acknowledged(change(5))
    assert delivery.oldest_open() is None
    assert not delivery.failed


def test_one_delivered_copy_of_a_failed_change_is_enough() -> None:
    delivery = Delivery()
    delivery.sent(change(5))
    delivery.sent(change(5))
    delivery.lost(change(5), "no broker")
    assert delivery.oldest_failed() == 5
    delivery.lost(change(5), "no broker")
    delivery.sent(change(5))
    delivery.acknowledged(change(5))
    assert delivery.oldest_open() is None


def test_an_acknowledged_copy_takes_back_the_failure_of_the_other_one() -> None:
    delivery = Delivery()
    assert [delivery.sent(change(5)), delivery.sent(change(5))] == [0, 0]
    assert delivery.lost(change(5), "no broker") == 1
    assert delivery.acknowledged(change(5)) == -1
    assert not delivery.failed


def test_a_failed_heartbeat_holds_back_no_later_one() -> None:
    delivery = Delivery()
    delivery.lost(Heartbeat("p", 7), "no broker")
    assert delivery.oldest_failed() is None
    assert delivery.failed


def test_a_release_counts_as_an_open_change_until_it_is_acknowledged() -> None:
    """WRS-15."""
    delivery = Delivery()
    delivery.sent(change(7))
    delivery.held = frozenset([5, 9])
    assert delivery.oldest_open() == 5
    delivery.held = frozenset([9])
    assert delivery.oldest_open() == 7
    delivery.acknowledged(change(7))
    assert delivery.oldest_open() == 9
    delivery.held = frozenset()
    assert delivery.oldest_open() is None
