"""The history of each dead letter of a topic, and its state (DLQ-11).

A dead letter is open until an action changes its state. The last entry of its history decides the
state:

    replayed     sent again to the change topic. If it is rejected again, this is a new dead letter
                 with the next attempt
    parked       set aside, by a person or after too many attempts. It is not replayed until it is
                 reopened
    discarded    it will not be replayed. The ledger keeps why
    reopened     open again, with all attempts available

In Kafka, the history of a dead letter is one record. Its key is the id of the dead letter. The
topic is compacted, so Kafka keeps the newest history of each dead letter. Another record has the
totals, so the number of closed dead letters is known without a scan. A dead letter may claim that
it is a replay. The claim is accepted if the history of the first dead letter has this replay.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from sys import intern
from typing import Any, Final, NamedTuple, NoReturn

from connector.dead_letters.envelope import MAX_ATTEMPT, DeadLetter, replay_claim
from connector.dead_letters.envelope import letter_id as id_of
from connector.records.model import MAX_INT, MAX_LONG
from connector.text import is_utf_8, truncate_utf8

MAX_ENTRIES: Final = 100
"""The maximum number of entries in a history. The oldest ones are dropped, so that a history always
fits into a record.
"""


class Action(StrEnum):
    """The actions on a dead letter."""

    REPLAYED = "replayed"
    PARKED = "parked"
    DISCARDED = "discarded"
    REOPENED = "reopened"


class LetterState(StrEnum):
    """The states of a dead letter."""

    OPEN = "open"
    REPLAYED = "replayed"
    PARKED = "parked"
    DISCARDED = "discarded"


_STATES: Final = {
    Action.REPLAYED: LetterState.REPLAYED,
    Action.PARKED: LetterState.PARKED,
    Action.DISCARDED: LetterState.DISCARDED,
    Action.REOPENED: LetterState.OPEN,
}
OPEN_STATES: Final = frozenset({LetterState.OPEN, LetterState.PARKED})
"""The states of dead letters that are still missing from the tables without a final decision."""
ALLOWED: Final[Mapping[Action, frozenset[LetterState]]] = {
    Action.REPLAYED: frozenset({LetterState.OPEN}),
    Action.PARKED: frozenset({LetterState.OPEN}),
    Action.DISCARDED: frozenset({LetterState.OPEN, LetterState.PARKED}),
    Action.REOPENED: frozenset({LetterState.PARKED, LetterState.DISCARDED}),
}
"""The states in which each action is allowed."""


@dataclass(frozen=True, slots=True)
class RepairNote:
    """How a record was repaired before a replay: the given steps, and the SHA-256 before and after
    (DLQ-12).
    """

    steps: tuple[str, ...]
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One action on one dead letter.

    - `at` is in microseconds.
    - `selection` has the ids or the filter that selected it.
    - `attempt` is the number of this replay. For other actions, it is the number of replays so far.
    - `attempts_since_reopen` is the number of replays since it was last reopened. `max_attempts`
      limits it.
    """

    action: Action
    at: int
    by: str
    why: str
    selection: str
    attempt: int = 0
    attempts_since_reopen: int = 0
    repair_note: RepairNote | None = None

    def __post_init__(self) -> None:
        for name in ("by", "why", "selection"):
            object.__setattr__(self, name, truncate_utf8(getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values, as stored in the ledger. A missing repair is omitted."""
        view: dict[str, Any] = {
            "action": self.action.value,
            "at": self.at,
            "by": self.by,
            "why": self.why,
            "selection": self.selection,
        }
        view |= {"attempt": self.attempt, "attempts_since_reopen": self.attempts_since_reopen}
        if self.repair_note is not None:
            view["repair"] = {
                "steps": list(self.repair_note.steps),
                "before": self.repair_note.before,
                "after": self.repair_note.after,
            }
        return view

    @classmethod
    def from_json(cls, view: Mapping[str, Any]) -> LedgerEntry:
        """The inverse of `to_json`. Unknown members are ignored. Raises ValueError for values that
        `to_json` does not write.
        """
        texts = {
            name: intern(truncate_utf8(_text(view.get(name), name)))
            for name in ("by", "why", "selection")
        }  # many letters share them
        attempt, attempts_since_reopen = (
            _number(view.get(name), name, MAX_ATTEMPT)
            for name in ("attempt", "attempts_since_reopen")
        )
        repair_note = (
            _repair_note_of(_object(view["repair"], "repair")) if "repair" in view else None
        )
        return cls(
            Action(_text(view.get("action"), "action")),
            _time(view.get("at"), "at"),
            **texts,
            attempt=attempt,
            attempts_since_reopen=attempts_since_reopen,
            repair_note=repair_note,
        )


@dataclass(frozen=True, slots=True)
class LetterStatus:
    """The state of a dead letter.

    `attempt` is how often it was replayed, including the dead letters that it came from.
    `attempts_since_reopen` is the same as in `LedgerEntry`.
    """

    state: LetterState
    attempt: int
    attempts_since_reopen: int

    def allows(self, action: Action) -> bool:
        """Return whether the action is allowed in this state."""
        return self.state in ALLOWED[action]


class Sent(NamedTuple):
    """The end offsets `ends` of the replays in the Kafka partitions of the change topic with the id
    `topic_id`.
    """

    topic_id: str = ""
    ends: Mapping[int, int] = {}


NONE_SENT: Final = Sent()


@dataclass(frozen=True, slots=True)
class Totals:
    """The number of closed dead letters (replayed or discarded), by topic id and table. The table
    of a rejected record is "".

    No dead letter that first failed before `open_since` (µs) is open or parked. It is `None` if not
    all were checked. `sent` has the end offsets of the replays of all earlier transactions.
    """

    closed: Mapping[tuple[str, str], int]
    open_since: int | None = None
    sent: Sent = NONE_SENT


class Ledger:
    """The histories of the dead letters of one topic. Each takes some hundred bytes. `open_since`
    and `sent` are as in `Totals`.
    """

    def __init__(self) -> None:
        self._stories: dict[str, tuple[LedgerEntry, ...]] = {}
        self._closed: Counter[tuple[str, str]] = Counter()
        self.open_since: int | None = None
        self.sent = NONE_SENT

    def __len__(self) -> int:
        return len(self._stories)

    def story(self, letter_id: str) -> tuple[LedgerEntry, ...]:
        """Return the history of a dead letter, oldest entry first. It is empty if there were no
        actions.
        """
        return self._stories.get(letter_id, ())

    def keep(self, letter_id: str, story: tuple[LedgerEntry, ...]) -> None:
        """Set the history of a dead letter."""
        assert story, letter_id
        is_closed = int(_is_closed(story)) - int(_is_closed(self.story(letter_id)))
        self._stories[letter_id] = story
        if is_closed:
            self._closed[_family(letter_id)] += is_closed

    def totals(self, stories: Mapping[str, tuple[LedgerEntry, ...]] | None = None) -> Totals:
        """Return the totals as if these histories were also kept. Changes nothing."""
        closed = Counter(self._closed)
        for letter_id, story in (stories or {}).items():
            closed[_family(letter_id)] += int(_is_closed(story)) - int(
                _is_closed(self.story(letter_id))
            )
        return Totals(
            {family: count for family, count in closed.items() if count}, self.open_since, self.sent
        )

    def with_entry(self, letter_id: str, entry: LedgerEntry) -> tuple[LedgerEntry, ...]:
        """Return the history of a dead letter with one more entry. Changes nothing."""
        return (*self.story(letter_id), entry)[-MAX_ENTRIES:]

    def standing(self, letter: DeadLetter) -> LetterStatus:
        """Return the state of a dead letter.

        Without a history it is open, and has the attempts of the replay that it came from. Table
        letters of several tables may have the same change. They share their attempts, so that no
        two replays of the change have the same number.
        """
        found = self._standing(letter)
        if letter.table is None:
            return found
        tables = {
            table
            for topic_id, table in self._closed
            if topic_id == letter.position.topic_id and table
        }
        stories = (self.story(id_of(letter.position, table)) for table in tables)
        return replace(
            found, attempt=max([found.attempt, *(story[-1].attempt for story in stories if story)])
        )

    def _standing(self, letter: DeadLetter) -> LetterStatus:
        story = self.story(letter.id)
        if story:
            return LetterStatus(
                _STATES[story[-1].action], story[-1].attempt, story[-1].attempts_since_reopen
            )
        claim = replay_claim(letter.headers)
        for entry in () if claim is None else self.story(claim[0]):
            if (entry.action, entry.attempt) == (Action.REPLAYED, claim[1] if claim else 0):
                return LetterStatus(LetterState.OPEN, entry.attempt, entry.attempts_since_reopen)
        # A replay claim that the ledger does not confirm does not count.
        return LetterStatus(LetterState.OPEN, letter.attempt, 0)

    def ids(self, state: LetterState) -> frozenset[str]:
        """Return the dead letters whose history has this state."""
        return frozenset(
            letter_id
            for letter_id, story in self._stories.items()
            if _STATES[story[-1].action] is state
        )

    def states(self) -> Counter[LetterState]:
        """Count the dead letters with a history by state. A dead letter without a history is
        open.
        """
        return Counter(_STATES[story[-1].action] for story in self._stories.values())


def _is_closed(story: tuple[LedgerEntry, ...]) -> bool:
    return bool(story) and _STATES[story[-1].action] not in OPEN_STATES


def _family(letter_id: str) -> tuple[str, str]:
    """Return the topic id and the table of an id (`dead_letters.envelope.letter_id`)."""
    found = _is_letter_id(letter_id)
    return (found[1], found[2] or "") if found else ("", "")


_to_json = json.JSONEncoder(ensure_ascii=False).encode
# Kafka's topic ids have 22 characters, and may contain `-`. A table may have a name like `a-1-2`.
_is_letter_id = re.compile(
    r"(.{22}|.+?)-[0-9]+-[0-9]+(?:-([A-Za-z0-9][-_A-Za-z0-9]*))?", re.DOTALL
).fullmatch


def totals_to_json(totals: Totals) -> bytes:
    """Convert the totals to the value of their ledger record."""
    closed = [[*family, count] for family, count in totals.closed.items()]
    sent = {
        "topic_id": totals.sent.topic_id,
        "end_offsets": {str(number): end for number, end in totals.sent.ends.items()},
    }
    return _to_json({"closed": closed, "open_since": totals.open_since, "sent": sent}).encode()


def totals_from_json(value: bytes) -> Totals:
    """The inverse of `totals_to_json`. Unknown members are ignored. Raises ValueError for values
    that it does not write.
    """
    try:
        view = _document(value)
        closed = dict(parts := list(map(_closed, _list(view.get("closed"), "closed"))))
        if len(closed) < len(parts):
            _refuse("closed", "a list that names each table once")
        open_since = view.get("open_since", "")
        sent = _sent(_object(view["sent"], "sent")) if "sent" in view else NONE_SENT
        return Totals(closed, None if open_since is None else _time(open_since, "open_since"), sent)
    except (ValueError, RecursionError) as error:
        raise ValueError(truncate_utf8(f"the totals of a ledger are wrong: {error}")) from error


def history_to_json(story: tuple[LedgerEntry, ...]) -> bytes:
    """Convert a history to the value of its ledger record."""
    return _to_json({"entries": [entry.to_json() for entry in story]}).encode()


def history_from_json(value: bytes) -> tuple[LedgerEntry, ...]:
    """The inverse of `history_to_json`. Unknown members are ignored. Raises ValueError for values
    that it does not write.
    """
    try:
        story = tuple(
            LedgerEntry.from_json(_object(entry, "an entry"))
            for entry in _list(_document(value).get("entries"), "entries")
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(
            truncate_utf8(f"the history of a dead letter is wrong: {error}")
        ) from error
    if not story:
        raise ValueError("the history of a dead letter has no entries")
    return story


# Reading. Each function raises ValueError if the type or the range of the value is wrong.


def _document(value: bytes) -> Mapping[str, Any]:
    return _object(
        json.loads(value.decode()), "the document"
    )  # `loads` of bytes would accept UTF-16 and surrogates


def _object(value: object, name: str) -> dict[str, Any]:
    return value if isinstance(value, dict) else _refuse(name, "an object")


def _list(value: object, name: str) -> list[Any]:
    return value if isinstance(value, list) else _refuse(name, "a list")


def _text(value: object, name: str) -> str:
    return value if isinstance(value, str) and is_utf_8(value) else _refuse(name, "text")


def _number(value: object, name: str, most: int, least: int = 0) -> int:
    # The exact type: for isinstance, a bool is an int.
    return (
        value
        if type(value) is int and least <= value <= most
        else _refuse(name, f"an integer from {least} to {most}")
    )


def _time(value: object, name: str) -> int:
    """Microseconds. The time of a third-party dead letter is the record timestamp: any 64-bit
    number of milliseconds.
    """
    return _number(value, name, MAX_LONG * 1000, -(MAX_LONG + 1) * 1000)


def _repair_note_of(view: Mapping[str, Any]) -> RepairNote:
    steps = tuple(_text(step, "a step") for step in _list(view.get("steps"), "steps"))
    return RepairNote(steps, _text(view.get("before"), "before"), _text(view.get("after"), "after"))


def _closed(value: object) -> tuple[tuple[str, str], int]:
    family = _list(value, "an item of closed")
    if len(family) != 3:
        _refuse("an item of closed", "a topic id, a table and a number")
    return (_text(family[0], "a topic id"), _text(family[1], "a table")), _number(
        family[2], "a number of dead letters", MAX_LONG
    )


def _sent(view: Mapping[str, Any]) -> Sent:
    ends = {}
    for name, end in _object(view.get("end_offsets"), "end_offsets").items():
        if not _is_decimal(name):
            _refuse("a Kafka partition", "a number")
        ends[_number(int(name), "a Kafka partition", MAX_INT)] = _number(end, "an offset", MAX_LONG)
    return Sent(_text(view.get("topic_id"), "topic_id"), ends)


_is_decimal = re.compile(r"0|[1-9][0-9]{0,9}").fullmatch


def _refuse(name: str, wanted: str) -> NoReturn:
    raise ValueError(f"{name} is not {wanted}")
