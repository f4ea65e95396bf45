"""What was done about dead letters, and how each stands (DLQ-11, DLQ-14)."""

from __future__ import annotations

import json

import pytest

from connector.dead_letters.envelope import MAX_ATTEMPT, replay_header
from connector.dead_letters.ledger import (
    MAX_ENTRIES,
    Action,
    Ledger,
    LedgerEntry,
    LetterState,
    LetterStatus,
    RepairNote,
    Sent,
    Totals,
    history_from_json,
    history_to_json,
    totals_from_json,
    totals_to_json,
)
from connector.records.rejection import Position
from tests.unit.dead_letters.test_envelope import POSITION, letter


def entry(
    action: Action, attempt: int = 0, attempts_since_reopen: int = 0, **fields: object
) -> LedgerEntry:
    return LedgerEntry(
        action,
        5,
        "ada@host",
        "a reason",
        "reason=INVALID",
        attempt,
        attempts_since_reopen,
        **fields,
    )  # type: ignore[arg-type]


def ledger_with(*history: LedgerEntry) -> Ledger:
    ledger = Ledger()
    ledger.set_history(letter().id, history)
    return ledger


def test_a_letter_without_a_history_is_open() -> None:
    assert Ledger().status(letter(attempt=0)) == LetterStatus(LetterState.OPEN, 0, 0)


@pytest.mark.parametrize(
    ("action", "state", "allowed"),
    [
        (None, LetterState.OPEN, set(Action) - {Action.REOPENED}),
        (Action.REPLAYED, LetterState.REPLAYED, {Action.ERASED}),
        (
            Action.PARKED,
            LetterState.PARKED,
            {Action.DISCARDED, Action.REOPENED, Action.ERASED, Action.COVERED},
        ),
        (Action.DISCARDED, LetterState.DISCARDED, {Action.REOPENED, Action.ERASED}),
        (Action.REOPENED, LetterState.OPEN, set(Action) - {Action.REOPENED}),
        (Action.ERASED, LetterState.ERASED, set()),
        (Action.COVERED, LetterState.COVERED, {Action.ERASED, Action.COVERED}),
    ],
)
def test_the_last_entry_decides_the_state_of_a_letter_and_the_allowed_actions(
    action: Action | None, state: LetterState, allowed: set[Action]
) -> None:
    """DLQ-11: a letter that was replayed is not replayed again."""
    ledger = Ledger() if action is None else ledger_with(entry(Action.PARKED), entry(action, 2, 1))
    status = ledger.status(letter())
    assert status.state is state
    assert {done for done in Action if status.allows(done)} == allowed


def test_a_replay_without_an_entry_is_not_counted() -> None:
    """DLQ-14: a header of another program parks no letter."""
    claims = letter(attempt=9, headers=(replay_header("nonsense", 9),))
    assert Ledger().status(claims) == LetterStatus(LetterState.OPEN, 9, 0)


def test_a_replay_that_was_rejected_again_is_a_letter_with_the_attempts_of_the_first() -> None:
    """DLQ-14: nothing circles for ever."""
    ledger = ledger_with(entry(Action.REOPENED, 3, 0), entry(Action.REPLAYED, 4, 1))
    again = letter(
        position=Position("orders", "T", 0, 99), headers=(replay_header(letter().id, 4),)
    )
    assert ledger.status(again) == LetterStatus(LetterState.OPEN, 4, 1)


def test_letters_of_one_change_in_several_tables_share_their_attempts() -> None:
    """MRG-4, DLQ-10: two replays of a change with one attempt would be two changes with one
    order.
    """
    ledger = Ledger()
    ledger.set_history(letter(table="a-1").id, (entry(Action.REPLAYED, 3, 1),))
    assert ledger.status(letter(table="b", attempt=0)) == LetterStatus(LetterState.OPEN, 3, 0)
    for other in (
        letter(table=None, attempt=0),
        letter(table="b", attempt=0, position=Position("orders", "T", 0, 99)),
    ):
        assert ledger.status(other) == LetterStatus(LetterState.OPEN, 0, 0)


@pytest.mark.parametrize(
    "claim",
    [
        replay_header(letter().id, 7),
        replay_header("other-0-1", 4),
        ("connector.replay", b"rubbish"),
    ],
)
def test_a_claim_that_the_ledger_does_not_know_is_not_believed(claim: tuple[str, bytes]) -> None:
    """DLQ-10: another program can write such a header."""
    ledger = ledger_with(entry(Action.REPLAYED, 4, 1))
    again = letter(position=Position("orders", "T", 0, 99), attempt=0, headers=(claim,))
    assert ledger.status(again) == LetterStatus(LetterState.OPEN, 0, 0)


def test_a_history_is_read_as_it_was_written() -> None:
    """DLQ-11: who, when, why, which filter; DLQ-12: the steps of a repair, with digests."""
    note = RepairNote(("reframe=3", "key=\x1b"), "aa", "bb")
    history = (
        entry(Action.PARKED),
        entry(Action.REOPENED),
        entry(Action.REPLAYED, 1, 1, repair_note=note),
    )
    assert history_from_json(history_to_json(history)) == history


NOT_OURS = [
    b"",
    b"\xff",
    b"[]",
    b"{}",
    b"3",
    b"null",
    b"1e999",
    b"NaN",
    b"9" * 5000,
    b"[" * 100_000,
    b"[" * 990 + b"]" * 990,
]
HISTORY = history_to_json(
    (entry(Action.REPLAYED, 1, 1, repair_note=RepairNote(("reframe=3",), "aa", "bb")),)
)
TOTALS = totals_to_json(Totals({("T", ""): 2, ("T", "eu"): 1}, 7, Sent("T", {0: 5})))


def with_value(document: bytes, path: tuple[str | int, ...], text: str) -> bytes:
    """The document with another value at a place, as it is written in JSON."""
    whole = within = json.loads(document)
    for name in path[:-1]:
        within = within[name]
    within[path[-1]] = "PLACE"
    return json.dumps(whole).replace('"PLACE"', text).encode()


@pytest.mark.parametrize(
    "value",
    [
        *NOT_OURS,
        b'{"entries": []}',
        b'{"entries": [{}]}',
        b'{"entries": [3]}',
        HISTORY.decode().encode("utf-16"),
    ],
)
def test_json_that_is_no_history_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="the history of a dead letter"):
        history_from_json(value)


@pytest.mark.parametrize(
    "value",
    [
        *NOT_OURS,
        b'{"closed": []}',
        b'{"closed": [], "open_since": ""}',
        TOTALS.decode().encode("utf-16"),
        HISTORY,
    ],
)
def test_invalid_totals_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="the totals of a ledger are wrong"):
        totals_from_json(value)


NO_NUMBERS = ["1e999", "-1e999", "NaN", "9" * 4000, "true", "1.0", '"1"', "[1]", "null", "-1e3"]
NO_TEXTS = ["3", "true", '["a"]', r'"\ud800"', "{}", "null"]


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        (("action",), [*NO_TEXTS, '"repaired"']),
        *(((name,), NO_TEXTS) for name in ("by", "why", "selection")),
        (("at",), NO_NUMBERS),
        *(
            ((name,), [*NO_NUMBERS, "-1", str(MAX_ATTEMPT + 1)])
            for name in ("attempt", "attempts_since_reopen")
        ),
        (("repair",), ["null", "[]", "{}", '"steps"']),
        (("repair", "steps"), ["null", "{}", '"reframe=3"']),
        *((("repair", *path), NO_TEXTS) for path in (("steps", 0), ("before",), ("after",))),
    ],
    ids=lambda given: "-".join(map(str, given)) if isinstance(given, tuple) else "",
)
def test_a_history_with_a_value_that_is_never_written_is_refused(
    path: tuple[str | int, ...], texts: list[str]
) -> None:
    """DLQ-11: one record of others in the ledger is an error that names it, and no other
    exception.
    """
    for text in texts:
        with pytest.raises(ValueError, match="the history of a dead letter is wrong"):
            history_from_json(with_value(HISTORY, ("entries", 0, *path), text))


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        (
            ("closed",),
            [
                "null",
                "{}",
                "3",
                "[3]",
                "[[]]",
                '[["T", "", 1, 1]]',
                '["abc"]',
                '[["T", "", 1], ["T", "", 1]]',
            ],
        ),
        *((("closed", 0, number), NO_TEXTS) for number in (0, 1)),
        (("closed", 0, 2), [*NO_NUMBERS, "-1"]),
        (("open_since",), [text for text in NO_NUMBERS if text != "null"]),
        (("sent",), ["null", "[]", "{}"]),
        (("sent", "topic_id"), NO_TEXTS),
        (
            ("sent", "end_offsets"),
            [
                "null",
                "[]",
                *(
                    f'{{"{name}": 1}}'
                    for name in ("", "x", "-1", "01", " 1", "1_0", "\u0661", "9" * 10, "9" * 5000)
                ),
            ],
        ),
        (("sent", "end_offsets", "0"), [*NO_NUMBERS, "-1", str(2**63)]),
    ],
    ids=lambda given: "-".join(map(str, given)) if isinstance(given, tuple) else "",
)
def test_totals_with_a_value_that_we_do_not_write_are_refused(
    path: tuple[str | int, ...], texts: list[str]
) -> None:
    """DLQ-7, DLQ-11: every command reads them."""
    for text in texts:
        with pytest.raises(ValueError, match="the totals of a ledger are wrong"):
            totals_from_json(with_value(TOTALS, path, text))


def test_totals_come_back_as_they_were_written() -> None:
    """DLQ-7. Where a letter of others says when it failed, that may be any number of milliseconds;
    `sent` came with a later release.
    """
    far = (2**63 - 1) * 1000
    for totals in (
        Totals({}),
        Totals({("T", ""): 2, ("T", "a-1"): 1}, -far, Sent("T", {0: 2**63 - 1, 2**31 - 1: 0})),
        Totals({}, far),
    ):
        assert totals_from_json(totals_to_json(totals)) == totals
    assert totals_from_json(b'{"closed": [["T", "eu", 3]], "open_since": null}') == Totals(
        {("T", "eu"): 3}
    )


def test_fields_of_a_newer_release_are_ignored() -> None:
    assert totals_from_json(TOTALS.replace(b"{", b'{"more": 1, ', 1)) == totals_from_json(TOTALS)
    assert history_from_json(HISTORY.replace(b"{", b'{"more": 1, ')) == history_from_json(HISTORY)


def test_an_error_about_a_record_of_others_stays_short() -> None:
    with pytest.raises(ValueError, match="the history of a dead letter is wrong") as caught:
        history_from_json(with_value(HISTORY, ("entries", 0, "action"), f'"{"x" * 100_000}"'))
    assert len(str(caught.value)) <= 1024


def test_a_history_fits_into_a_record() -> None:
    ledger = Ledger()
    for number in range(MAX_ENTRIES + 5):
        ledger.set_history(
            "id",
            ledger.with_entry(
                "id", entry(Action.PARKED if number % 2 else Action.REOPENED, number)
            ),
        )
    assert [result.attempt for result in ledger.history("id")] == list(range(5, MAX_ENTRIES + 5))
    texts = dict.fromkeys(("by", "why", "selection"), "ü" * 5000)
    long = LedgerEntry(Action.PARKED, 1, **texts)
    assert len(history_to_json((long,) * MAX_ENTRIES)) < 1_000_000


@pytest.mark.parametrize(
    ("letter_id", "family"),
    [
        ("MkU3OEVBNTcwNTJENDM2Qg-3-17", ("MkU3OEVBNTcwNTJENDM2Qg", "")),
        ("MkU3OEVBNTcwNTJENDM2Qg-3-17-eu", ("MkU3OEVBNTcwNTJENDM2Qg", "eu")),
        ("MkU3OEVBNTcwNTJENDM2Qg-3-17-a-1-2", ("MkU3OEVBNTcwNTJENDM2Qg", "a-1-2")),
        ("a-1-2-BNTcwNTJENDM2QgX-3-17", ("a-1-2-BNTcwNTJENDM2QgX", "")),
        ("T-3-17-eu", ("T", "eu")),
        *(
            (other, ("", ""))
            for other in (
                "",
                "totals",
                "T",
                "T-3",
                "T-x-17",
                "T-3-x",
                "T-3-17-",
                "T-3-17--a",
                "T-3-17-ü",
                "-3-17",
            )
        ),
    ],
)
def test_closed_letters_are_counted_by_topic_and_table_as_their_ids_have_them(
    letter_id: str, family: tuple[str, str]
) -> None:
    """DLQ-7: Kafka's topic ids and the names of tables have hyphens, too. An id that is no letter's
    counts for no topic.
    """
    ledger = Ledger()
    assert ledger.totals({letter_id: (entry(Action.DISCARDED),)}).closed == {family: 1}
    ledger.set_history(letter_id, (entry(Action.DISCARDED),))
    assert ledger.totals().closed == {family: 1}


def test_a_letter_counts_as_closed_while_it_is_replayed_or_discarded() -> None:
    """DLQ-7: whatever was known of it before, also where that is the longer history."""
    ledger, of_us = Ledger(), {(POSITION.topic_id, ""): 1}
    history: tuple[LedgerEntry, ...] = ()
    for action, closed in (
        (Action.PARKED, {}),
        (Action.DISCARDED, of_us),
        (Action.REOPENED, {}),
        (Action.REPLAYED, of_us),
    ):
        history = (*history, entry(action))
        assert ledger.totals({letter().id: history}).closed == closed
        ledger.set_history(letter().id, history)
        assert (ledger.totals().closed, ledger.totals({letter().id: history}).closed) == (
            closed,
            closed,
        )
    for length, closed in ((2, of_us), (1, {}), (4, of_us), (3, {})):
        ledger.set_history(letter().id, history[:length])
        assert ledger.totals().closed == closed


def test_totals_say_since_when_and_up_to_where_as_the_ledger_does() -> None:
    """DLQ-7."""
    ledger = Ledger()
    assert ledger.totals() == Totals({}, None, Sent("", {}))
    ledger.open_since, ledger.sent = 7, Sent("T", {3: 4})
    assert ledger.totals() == Totals({}, 7, Sent("T", {3: 4}))


def test_only_a_replay_in_the_history_confirms_a_claim() -> None:
    """DLQ-10, DLQ-14: what was parked after four attempts was not sent as the fourth."""
    again = letter(
        position=Position("orders", "T", 0, 99), attempt=0, headers=(replay_header(letter().id, 4),)
    )
    assert ledger_with(entry(Action.PARKED, 4, 1)).status(again) == LetterStatus(
        LetterState.OPEN, 0, 0
    )
    assert ledger_with(entry(Action.REPLAYED, 4, 1), entry(Action.DISCARDED, 4, 1)).status(
        again
    ) == LetterStatus(LetterState.OPEN, 4, 1)


def test_the_own_history_of_a_letter_decides_its_state() -> None:
    """DLQ-11: whatever its headers say."""
    again = letter(
        position=Position("orders", "T", 0, 99), headers=(replay_header(letter().id, 4),)
    )
    ledger = ledger_with(entry(Action.REPLAYED, 4, 1))
    ledger.set_history(again.id, (entry(Action.PARKED, 4, 3),))
    assert ledger.status(again) == LetterStatus(LetterState.PARKED, 4, 3)
    assert (
        ledger.ids(LetterState.PARKED),
        ledger.ids(LetterState.REPLAYED),
        ledger.ids(LetterState.OPEN),
    ) == (
        {again.id},
        {letter().id},
        frozenset(),
    )


def test_the_greatest_attempt_of_the_tables_of_a_change_counts() -> None:
    """MRG-4, DLQ-10."""
    ledger = Ledger()
    for table, attempt in (("a", 2), ("b", 5), ("c", 3)):
        ledger.set_history(letter(table=table).id, (entry(Action.REPLAYED, attempt, 1),))
    ledger.set_history(
        letter().id, (entry(Action.REPLAYED, 9, 9),)
    )  # of the record, which no table letter is of
    assert ledger.status(letter(table="d", attempt=1)) == LetterStatus(LetterState.OPEN, 5, 0)
    assert ledger.status(letter(table="a", attempt=1)) == LetterStatus(LetterState.REPLAYED, 5, 1)
    assert ledger.status(letter(table="d", attempt=7)) == LetterStatus(LetterState.OPEN, 7, 0)
