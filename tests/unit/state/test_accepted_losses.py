"""Records that Kafka deleted unread, and the decisions about them (RUN-7)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.state.accepted_losses import (
    AcceptLoss,
    is_unconfirmed,
    lost_between,
    offsets_of,
    text_of,
)

OFFSETS = st.dictionaries(st.integers(0, 3), st.integers(0, 20))


def loss(table: str = "", offsets: str = "{}") -> AcceptLoss:
    return AcceptLoss(1, "s", table, offsets, "why", 1, "ann")


@given(OFFSETS, OFFSETS, OFFSETS)
def test_a_loss_covers_what_was_lost_then_and_no_more(
    read_to: dict[int, int], first: dict[int, int], later: dict[int, int]
) -> None:
    """RUN-7: also after the decision was stored. A Kafka partition that was never read lost
    nothing.
    """
    lost = lost_between(read_to, first)
    assert set(lost) == {k for k in read_to if k in first and read_to[k] < first[k]}
    accepted = loss(offsets=offsets_of(lost))
    assert accepted.lost == lost
    assert accepted.covers(lost)
    more = lost_between(read_to, later)
    assert accepted.covers(more) == all(k in lost and later[k] <= first[k] for k in more)
    assert not lost or not loss("t", offsets_of(lost)).covers(lost)


@given(st.lists(st.sampled_from(["", "t", "other"])))
def test_a_table_is_unconfirmed_after_a_loss_until_its_own_confirmation(tables: list[str]) -> None:
    """RUN-7: the order counts."""
    decisions = [table for table in tables if table in ("", "t")]
    assert is_unconfirmed(map(loss, tables), "t") == (decisions[-1:] == [""])


def test_lost_offsets_are_named() -> None:
    assert text_of({0: (3, 10), 2: (0, 1)}) == (
        "Kafka partition 0, offsets 3 to 9; Kafka partition 2, offset 0"
    )
