"""What may be done about letters, whoever tries what, in whatever order: replay_is_safe, in the
ledger (DLQ-11, DLQ-14).
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.ledger import (
    Action,
    Ledger,
    LedgerEntry,
    LetterState,
    RepairNote,
    Sent,
    Totals,
    covered_by,
    history_from_json,
    history_to_json,
    totals_from_json,
    totals_to_json,
)
from connector.dead_letters.replay import ReplayTarget, Verdict, decide
from connector.records.codec import ChangeRecord, Schemas, encode, frame
from connector.records.model import DataChange, DeleteFamily
from connector.records.rejection import Position, Reason

CHANGE = DataChange(
    stream_partition="p", table="t", row_key=b"k", commit_timestamp=1, entries=(DeleteFamily("f"),)
)
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
DOOR = ReplayTarget("t", 1, 10_000, lambda record, schemas: ChangeRecord(CHANGE, 1), {})
TRIES = st.lists(
    st.tuples(st.sampled_from([*Action, "replay", "replay", "replay"]), st.integers(0, 30)),
    max_size=60,
)


@given(TRIES, st.integers(1, 3))
@example([("replay", 0), ("replay", 1), (Action.ERASED, 1), ("replay", 2)], 2)
@example([("replay", 0), (Action.REOPENED, 0), ("replay", 0), (Action.ERASED, 0), ("replay", 1)], 1)
def test_no_letter_is_sent_twice_and_nothing_circles(
    attempts_since_reopen: list[tuple[str, int]], max_attempts: int
) -> None:
    """Every replay is rejected again, as another letter. Between two restorings no chain of them
    has more than `max_attempts`.
    """
    ledger, offsets = Ledger(), count(1)
    letters, sent, in_row = [FIRST], [], {FIRST.id: 0}
    for what, which in attempts_since_reopen:
        letter = letters[which % len(letters)]
        standing = ledger.status(letter)
        if what == "replay":
            found = decide(letter, standing, DOOR, Schemas(), now=1, max_attempts=max_attempts)
            if found.verdict is Verdict.REFUSE:
                assert standing.state is not LetterState.OPEN
                continue
            action = Action.REPLAYED if found.verdict is Verdict.REPLAY else Action.PARKED
            entry = LedgerEntry(action, 1, "", "", "", found.attempt, found.attempts_since_reopen)
            if found.content is not None:
                sent.append((letter.id, found.attempt))
                again = replace(
                    letter,
                    position=Position("t", "T", 0, next(offsets)),
                    headers=found.content.headers,
                )
                letters.append(again)
                in_row[again.id] = in_row[letter.id] + 1
        elif standing.allows(action := Action(what)) and action is not Action.REPLAYED:
            entry = LedgerEntry(
                action,
                1,
                "",
                "",
                "",
                standing.attempt,
                0 if action is Action.REOPENED else standing.attempts_since_reopen,
            )
            in_row[letter.id] = 0 if action is Action.REOPENED else in_row[letter.id]
        else:
            continue
        # What another run reads of it is what this one wrote.
        ledger.set_history(
            letter.id, history_from_json(history_to_json(ledger.with_entry(letter.id, entry)))
        )
    assert len({letter_id for letter_id, _ in sent}) == len(sent)
    assert all(number <= max_attempts for number in in_row.values())
    assert [attempt for letter_id, attempt in sent if letter_id == FIRST.id] in ([], [1])


STORIES = st.lists(st.sampled_from(Action), min_size=1, max_size=3).map(
    lambda all_: tuple(LedgerEntry(one, 1, "", "", "r") for one in all_)
)
FAMILIES = {
    "T-0-1": ("T", ""),
    "T-0-2": ("T", ""),
    "T-0-1-eu": ("T", "eu"),
    "U-0-1-eu": ("U", "eu"),
    "totals": ("", ""),
}
KEPT = st.lists(st.tuples(st.sampled_from(list(FAMILIES)), STORIES), max_size=12)


@given(KEPT, st.dictionaries(st.sampled_from(list(FAMILIES)), STORIES))
def test_the_totals_are_the_count_of_what_is_kept(
    kept: list[tuple[str, tuple[LedgerEntry, ...]]], more: dict[str, tuple[LedgerEntry, ...]]
) -> None:
    """DLQ-7: in whatever order histories come, and whichever they take the place of."""
    ledger = Ledger()
    for letter_id, history in kept:
        ledger.set_history(letter_id, history)
    histories = dict(kept)
    before, after = (
        Counter(
            (topic_id, covered_by(table, "r") if history[-1].action is Action.COVERED else table)
            for letter_id, history in of.items()
            for topic_id, table in [FAMILIES[letter_id]]
            if history[-1].action not in (Action.PARKED, Action.REOPENED)
        )
        for of in (histories, histories | more)
    )
    assert (ledger.totals().closed, ledger.totals(more).closed, ledger.totals().closed) == (
        before,
        after,
        before,
    )
    assert sum(len(ledger.ids(state)) for state in LetterState) == len(histories)


@given(KEPT, st.lists(st.sampled_from(list(FAMILIES))))
def test_the_published_letters_are_counted_as_a_set(
    kept: list[tuple[str, tuple[LedgerEntry, ...]]], in_topic: list[str]
) -> None:
    """RUN-6: a letter that the topic has twice, or no longer has, counts once. No table has more
    closed letters than published ones.
    """
    ledger = Ledger()
    for letter_id, history in kept:
        ledger.set_history(letter_id, history)
    ledger.count_published(in_topic)
    all_ids = {*dict(kept), *in_topic}
    assert ledger.totals().published == Counter(
        FAMILIES[letter_id] for letter_id in all_ids if FAMILIES[letter_id][1]
    )
    of_table = ledger.published_of("T", "eu", in_topic)
    assert of_table.keys() == {it for it in all_ids if FAMILIES[it] == ("T", "eu")}
    for letter_id, rebuild in of_table.items():
        history = ledger.history(letter_id)
        is_covered = bool(history) and history[-1].action is Action.COVERED
        assert rebuild == ("r" if is_covered else "")


NOTE = RepairNote(("reframe=3",), "aa", "bb")
HISTORY = json.loads(
    history_to_json(
        (
            LedgerEntry(Action.PARKED, 5, "ada", "why", "all", 1),
            LedgerEntry(Action.REPLAYED, 6, "", "", "", 2, 1, NOTE),
        )
    )
)
TOTALS = json.loads(
    totals_to_json(
        Totals({("T", ""): 2, ("T", "eu"): 1}, 7, Sent("T", {0: 5, 3: 9}), {("T", "eu"): 4})
    )
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=3)
    | st.sampled_from(Action)
)
STRANGE = st.recursive(
    SCALARS | st.sampled_from([2**63, 10**4000]),
    lambda inner: st.lists(inner, max_size=2) | st.just({}),
    max_leaves=4,
)


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every place in a document, as (container, name or index)."""
    here = list(
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    return [(document, name) for name, _ in here] + [
        place for _, value in here for place in places(value)
    ]


@given(
    st.sampled_from(
        [(HISTORY, history_from_json, history_to_json), (TOTALS, totals_from_json, totals_to_json)]
    ),
    STRANGE,
    st.booleans(),
    st.data(),
)
def test_a_record_of_the_ledger_is_one_that_we_write_or_a_value_error(
    of: Any, strange: Any, is_gone: bool, data: st.DataObject
) -> None:
    """DLQ-11: what others write there is never another exception, and never read as what it is
    not.
    """
    known, from_json, to_json = of
    document = json.loads(json.dumps(known))
    within, name = data.draw(st.sampled_from(places(document)))
    if is_gone:
        del within[name]
    else:
        within[name] = strange
    with contextlib.suppress(ValueError):
        read = from_json(json.dumps(document).encode())
        # As texts: to Python 1 is 1.0, and is True.
        written = json.loads(to_json(read))
        # An empty list may be left out.
        kept = {name: value for name, value in document.items() if name in written or value != []}
        assert json.dumps(written, sort_keys=True) == json.dumps(written | kept, sort_keys=True)


def test_totals_with_an_empty_list_of_published_letters_are_those_without_it() -> None:
    """DLQ-11."""
    without = {name: value for name, value in TOTALS.items() if name != "published"}
    read = totals_from_json(json.dumps(without | {"published": []}).encode())
    assert json.loads(totals_to_json(read)) == without


@given(st.binary(max_size=40))
def test_bytes_from_anywhere_are_no_other_exception(value: bytes) -> None:
    for from_json in (history_from_json, totals_from_json):
        with contextlib.suppress(ValueError):
            from_json(value)
