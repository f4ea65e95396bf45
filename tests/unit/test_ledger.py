"""What was done about dead letters, and how each stands (DLQ-11, DLQ-14)."""

from __future__ import annotations

import pytest

from connector.deadletter import Position, replay_claim, replay_header
from connector.ledger import (
    MAX_ENTRIES,
    Action,
    Entry,
    Ledger,
    MendNote,
    Standing,
    State,
    story_from_json,
    story_to_json,
)
from tests.unit.test_deadletter import letter


def entry(action: Action, attempt: int = 0, tries: int = 0, **fields: object) -> Entry:
    return Entry(action, 5, "ada@host", "a reason", "reason=INVALID", attempt, tries, **fields)  # type: ignore[arg-type]


def ledger(*story: Entry) -> Ledger:
    kept = Ledger()
    kept.keep(letter().id, story)
    return kept


def test_a_letter_without_a_story_is_open() -> None:
    assert Ledger().standing(letter(attempt=0)) == Standing(State.OPEN, 0, 0)


@pytest.mark.parametrize(
    ("action", "state", "allowed"),
    [
        (None, State.OPEN, {Action.REPLAYED, Action.PARKED, Action.DISCARDED}),
        (Action.REPLAYED, State.REPLAYED, set()),
        (Action.PARKED, State.PARKED, {Action.DISCARDED, Action.RESTORED}),
        (Action.DISCARDED, State.DISCARDED, {Action.RESTORED}),
        (Action.RESTORED, State.OPEN, {Action.REPLAYED, Action.PARKED, Action.DISCARDED}),
    ],
)
def test_the_last_entry_decides_how_a_letter_stands_and_what_can_be_done(action: Action | None, state: State, allowed: set[Action]) -> None:
    """DLQ-11: a letter that was replayed is not replayed again."""
    kept = Ledger() if action is None else ledger(entry(Action.PARKED), entry(action, 2, 1))
    standing = kept.standing(letter())
    assert standing.state is state
    assert {done for done in Action if standing.allows(done)} == allowed


def test_a_replay_that_nobody_made_is_no_try() -> None:
    """DLQ-14: a header that anybody can write parks no letter."""
    claims = letter(attempt=9, headers=(replay_header("nonsense", 9),))
    assert Ledger().standing(claims) == Standing(State.OPEN, 9, 0)


def test_a_replay_that_was_rejected_again_is_a_letter_with_the_attempts_of_the_first() -> None:
    """DLQ-14: nothing circles for ever."""
    kept = ledger(entry(Action.RESTORED, 3, 0), entry(Action.REPLAYED, 4, 1))
    again = letter(position=Position("orders", "T", 0, 99), headers=(replay_header(letter().id, 4),))
    assert kept.standing(again) == Standing(State.OPEN, 4, 1)


def test_letters_of_one_change_in_several_tables_share_their_attempts() -> None:
    """MRG-4, DLQ-10: two replays of a change with one attempt would be two changes with one order."""
    kept = Ledger()
    kept.keep(letter(table="a-1").id, (entry(Action.REPLAYED, 3, 1),))
    assert kept.standing(letter(table="b", attempt=0)) == Standing(State.OPEN, 3, 0)
    for other in (letter(table=None, attempt=0), letter(table="b", attempt=0, position=Position("orders", "T", 0, 99))):
        assert kept.standing(other) == Standing(State.OPEN, 0, 0)


@pytest.mark.parametrize("claim", [replay_header(letter().id, 7), replay_header("other-0-1", 4), ("connector.replay", b"rubbish")])
def test_a_claim_that_the_ledger_does_not_know_is_not_believed(claim: tuple[str, bytes]) -> None:
    """DLQ-10: anybody can write such a header."""
    kept = ledger(entry(Action.REPLAYED, 4, 1))
    again = letter(position=Position("orders", "T", 0, 99), attempt=0, headers=(claim,))
    assert kept.standing(again) == Standing(State.OPEN, 0, 0)


@pytest.mark.parametrize("value", [None, b"", b"/1", b"id/", b"id/0", b"id/-1", b"id/x", b"id/\xff", "id/١".encode(), b"id/" + b"9" * 5000])
def test_a_claim_is_a_letter_and_an_attempt(value: bytes | None) -> None:
    """DLQ-10."""
    assert replay_claim((("connector.replay", b"first/1"), ("connector.replay", b"a-0-1-t/12"), ("x", b""))) == ("a-0-1-t", 12)
    assert replay_claim((("connector.replay", b"first/1"), ("connector.replay", value))) is None
    assert replay_claim(()) is None


def test_a_story_comes_back_as_it_was_written() -> None:
    """DLQ-11: who, when, why, which filter; DLQ-12: what was mended, with digests."""
    note = MendNote(("reframe=3", "key=\x1b"), "aa", "bb")
    story = (entry(Action.PARKED), entry(Action.RESTORED), entry(Action.REPLAYED, 1, 1, mended=note))
    assert story_from_json(story_to_json(story)) == story


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"[]", b"{}", b'{"entries": []}', b'{"entries": [{}]}', b'{"entries": [3]}', b"[" * 100_000]
)
def test_what_is_no_story_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        story_from_json(value)


def test_a_story_stays_small_enough_for_a_record() -> None:
    kept = Ledger()
    for number in range(MAX_ENTRIES + 5):
        kept.keep("id", kept.with_entry("id", entry(Action.PARKED if number % 2 else Action.RESTORED, number)))
    assert [found.attempt for found in kept.story("id")] == list(range(5, MAX_ENTRIES + 5))
    texts = dict.fromkeys(("by", "why", "selection"), "ü" * 5000)
    long = Entry(Action.PARKED, 1, **texts)
    assert len(story_to_json((long,) * MAX_ENTRIES)) < 1_000_000


def test_letters_are_counted_by_how_they_stand() -> None:
    kept = Ledger()
    for name, action in (("a", Action.PARKED), ("b", Action.REPLAYED), ("c", Action.REPLAYED), ("d", Action.RESTORED)):
        kept.keep(name, (entry(action),))
    assert (len(kept), kept.states()) == (4, {State.PARKED: 1, State.REPLAYED: 2, State.OPEN: 1})
