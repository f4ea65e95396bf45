"""When tables are applied, on a clock that is moved by hand (JOB-2); the laws are in
tests/property/test_pace_laws.py.
"""

from __future__ import annotations

import math

from connector.state.pace import APPLY_EVERY_S, MIN_APPLY_EVERY_S, Turns, pace_s

PACES = {"fast": 5.0, "slow": 60.0}


def applied(turns: Turns, *names: str) -> None:
    for name in names:
        turns.ended(name, applied=True)


def test_the_pace_is_what_is_set_or_half_of_the_bound() -> None:
    """JOB-2: at least a second; 0 is no bound."""
    assert pace_s(None, 600) == 300
    assert pace_s(None, 5) == 2.5
    assert pace_s(3600, 600) == 3600
    assert pace_s(7, None) == 7
    assert (pace_s(None, None), pace_s(None, 0)) == (APPLY_EVERY_S, APPLY_EVERY_S)
    assert pace_s(None, 1) == MIN_APPLY_EVERY_S


def test_a_pace_counts_from_start_to_start() -> None:
    """JOB-2: what an apply takes is part of it; one that takes longer is followed by the next at
    once.
    """
    turns = Turns()
    assert turns.take({"t": 10.0}, 100, 1) == ("t",)
    assert turns.take({"t": 10.0}, 200, 2) == (), "it is at work"
    assert turns.ready_at({"t": 10.0}) == math.inf
    applied(turns, "t")
    assert turns.ready_at({"t": 10.0}) == 110
    assert turns.take({"t": 10.0}, 109.9, 3) == ()
    assert turns.take({"t": 10.0}, 110, 3) == ("t",)
    applied(turns, "t")
    assert turns.take({"t": 10.0}, 135, 4) == ("t",)


def test_a_short_pace_makes_no_other_table_apply_and_a_long_one_takes_all_along() -> None:
    """JOB-2, TBL-10: all go to the cut of the table with the longest pace."""
    turns = Turns()
    assert turns.take(PACES, 0, 0) == ("fast", "slow")
    applied(turns, "fast", "slow")
    for at in range(5, 60, 5):
        assert turns.take(PACES, at, at) == ("fast",)
        applied(turns, "fast")
    assert turns.take(PACES, 59, 59) == ()
    assert turns.take(PACES, 61, 61) == (
        "fast",
        "slow",
    ), "though the fast one was not due for itself"


def test_tables_of_one_pace_go_together() -> None:
    """TBL-10: whenever they began, from the first of them that is due on."""
    turns, paces = Turns(), {"one": 10.0, "other": 10.0}
    turns.take({"one": 10.0}, 0, 0)
    applied(turns, "one")
    turns.take({"other": 10.0}, 5, 5)
    applied(turns, "other")
    assert turns.take(paces, 10, 10) == ("one", "other")


def test_one_that_takes_long_keeps_no_other_waiting() -> None:
    """JOB-2: others go on at their pace while it is at work."""
    turns = Turns()
    assert turns.take(PACES, 0, 0) == ("fast", "slow")
    applied(turns, "fast")
    assert turns.take(PACES, 5, 5) == ("fast",)
    applied(turns, "fast")
    turns.ended("slow", applied=True)
    assert turns.take(PACES, 61, 61) == ("fast", "slow")


def test_a_table_that_had_nothing_to_apply_goes_with_the_next_cut() -> None:
    """JOB-2: its time is over; what comes does not wait for another."""
    turns = Turns()
    turns.take(PACES, 0, 0)
    turns.ended("fast", applied=True)
    turns.ended("slow", applied=False)
    assert turns.take(PACES, 1, 0) == (), "nothing is new"
    assert turns.take(PACES, 2, 1) == ("fast", "slow")


def test_one_that_stands_at_the_cut_is_looked_at_after_its_pace() -> None:
    """DLQ-3: rows may wait for a letter that is discarded, which no batch tells."""
    turns = Turns()
    turns.take({"t": 10.0}, 0, 0)
    applied(turns, "t")
    assert turns.take({"t": 10.0}, 9, 0) == ()
    assert turns.take({"t": 10.0}, 10, 0) == ("t",)
    turns.ended("t", applied=False)
    assert turns.take({"t": 10.0}, 19, 0) == ()
    assert turns.take({"t": 10.0}, 20, 0) == ("t",)


def test_a_pace_that_is_set_meanwhile_counts_at_once() -> None:
    """JOB-2, TBL-20: from the start of the last apply, too."""
    turns = Turns()
    turns.take({"t": 3600.0}, 0, 0)
    applied(turns, "t")
    assert not turns.is_ready({"t": 3600.0}, 30)
    assert turns.is_ready({"t": 30.0}, 30)
