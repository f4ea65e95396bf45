"""What a table says of itself survives its form on disk, and says when the table is a cut."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from connector.bookkeeping import Bookkeeping

AT = Bookkeeping(apply=3, to_batch=5, highest_applied=40, complete_below=50, complete_to_batch=4, attempts={2: "x"}, horizon=-1, as_of=7)


def test_what_is_stored_is_read_back() -> None:
    """TBL-10: every field; others, which a later release may add, are passed over."""
    stored = json.loads(json.dumps({**AT.to_json("accounts"), "later": 1}))
    assert (stored["table"], stored["consistent_cut"]) == ("accounts", True)
    assert Bookkeeping.from_json(stored) == AT


@pytest.mark.parametrize(("highest", "below", "is_cut"), [(49, 50, True), (50, 50, False), (51, 50, False), (0, None, False)])
def test_cut_is_consistent_while_nothing_above_it_was_merged(highest: int, below: int | None, is_cut: bool) -> None:
    """TBL-11"""
    table = replace(AT, highest_applied=highest, complete_below=below)
    assert table.is_consistent_cut is is_cut
    assert table.is_at(below, 5) is is_cut
    assert not table.is_at(below, 6)
    assert not table.is_at(7, 5)
