"""What may be done about letters, whoever tries what, in whatever order: replay_is_safe, in the ledger (DLQ-11, DLQ-14)."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from connector.codec import ChangeRecord, Schemas, encode, frame
from connector.deadletter import DeadLetter, Position, Reason
from connector.ledger import Action, Entry, Ledger, State, story_from_json, story_to_json
from connector.model import DataChange, DeleteFamily
from connector.replay import FrontDoor, Verdict, decide

CHANGE = DataChange(stream_partition="p", table="t", row_key=b"k", commit_timestamp=1, entries=(DeleteFamily("f"),))
FIRST = DeadLetter(
    position=Position("t", "T", 0, 0),
    key=b"k",
    value=frame(encode(CHANGE, 1), None),
    headers=(),
    reason=Reason.UNKNOWN_TABLE,
    rule="",
    detail="",
    attempt=0,
    first_failed_at=1,
    record_timestamp=1,
    schema_id=None,
    ingest_batch=1,
    order_position="1/0/0/0",
)
DOOR = FrontDoor("t", 1, 10_000, lambda record, schemas: ChangeRecord(CHANGE, 1), {})
TRIES = st.lists(st.tuples(st.sampled_from([*Action, "replay", "replay", "replay"]), st.integers(0, 30)), max_size=60)


@given(TRIES, st.integers(1, 3))
def test_no_letter_is_sent_twice_and_nothing_circles(tries: list[tuple[str, int]], max_attempts: int) -> None:
    """Every replay is rejected again, as another letter. Between two restorings no chain of them has more than `max_attempts`."""
    ledger, offsets = Ledger(), count(1)
    letters, sent, in_row = [FIRST], [], {FIRST.id: 0}
    for what, which in tries:
        letter = letters[which % len(letters)]
        standing = ledger.standing(letter)
        if what == "replay":
            found = decide(letter, standing, DOOR, Schemas(), now=1, max_attempts=max_attempts)
            if found.verdict is Verdict.REFUSE:
                assert standing.state is not State.OPEN
                continue
            action = Action.REPLAYED if found.verdict is Verdict.REPLAY else Action.PARKED
            entry = Entry(action, 1, "", "", "", found.attempt, found.tries)
            if found.content is not None:
                sent.append((letter.id, found.attempt))
                again = replace(letter, position=Position("t", "T", 0, next(offsets)), headers=found.content.headers)
                letters.append(again)
                in_row[again.id] = in_row[letter.id] + 1
        elif standing.allows(action := Action(what)) and action is not Action.REPLAYED:
            entry = Entry(action, 1, "", "", "", standing.attempt, 0 if action is Action.RESTORED else standing.tries)
            in_row[letter.id] = 0 if action is Action.RESTORED else in_row[letter.id]
        else:
            continue
        # What another run reads of it is what this one wrote.
        ledger.keep(letter.id, story_from_json(story_to_json(ledger.with_entry(letter.id, entry))))
    assert len({letter_id for letter_id, _ in sent}) == len(sent)
    assert all(number <= max_attempts for number in in_row.values())
    assert [attempt for letter_id, attempt in sent if letter_id == FIRST.id] in ([], [1])
