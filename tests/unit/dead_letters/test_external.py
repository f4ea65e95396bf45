"""Dead letters that neither ingest nor an apply made, and how many they are (DLQ-7)."""

from __future__ import annotations

import json

from connector.dead_letters.envelope import DeadLetter, from_record, source_letter, to_headers
from connector.dead_letters.ledger import NO_EXTERNAL, ExternalDeadLetters
from connector.records.rejection import Position, Reason
from connector.stored import from_stored, to_stored


def letter(number: int, at: int, *, is_ours: bool) -> DeadLetter:
    """As it is read from the topic with the id D; ours are of records of the topic with the id
    T.
    """
    made = source_letter("t", b"k", b"v", (), "Broker: no", now=at)
    where = Position("t", "T", 0, number) if is_ours else made.position
    sent = DeadLetter(
        **{name: getattr(made, name) for name in made.__slots__}
        | {"position": where, "reason": Reason.REJECTED}
    )
    return from_record(
        b"k",
        b"v",
        to_headers(sent),
        at=Position("t.dead-letters", "D", 0, number),
        record_timestamp=at,
    )


def test_only_what_comes_from_outside_counts() -> None:
    known = ExternalDeadLetters("D").after(
        [letter(0, 50, is_ours=True), letter(1, 70, is_ours=False)], {0: 2}, "T"
    )
    assert known == ExternalDeadLetters("D", 1, 70, {0: 2})
    more = known.after(
        [letter(2, 60, is_ours=False), letter(3, 40, is_ours=True)], {0: 4, 1: 0}, "T"
    )
    assert more == ExternalDeadLetters("D", 2, 60, {0: 4, 1: 0})
    assert more.after([], {0: 4, 1: 0}, "T") == more
    later = more.after([letter(4, 99, is_ours=False)], {0: 5, 1: 0}, "T")
    assert (later.count, later.since) == (3, 60), "the first that failed"
    copied = more.after(
        [letter(4, 30, is_ours=True)], {0: 5, 1: 0}, "the topic that was made in its place"
    )
    assert (copied.count, copied.since) == (3, 30)


def test_stored_counts_are_read_back() -> None:
    for known in (NO_EXTERNAL, ExternalDeadLetters("D", 2, 60, {0: 4, 11: 0})):
        assert from_stored(ExternalDeadLetters, json.loads(json.dumps(to_stored(known)))) == known
