"""The history of each dead letter of a topic, and its state (DLQ-11).

A dead letter is open until an action changes its state. The last entry of its history decides the
state:

    replayed     sent again to the change topic. If it is rejected again, this is a new dead letter
                 with the next attempt
    parked       set aside, by a person or after too many attempts. It is not replayed until it is
                 reopened
    discarded    it will not be replayed. The ledger keeps why
    reopened     open again, with all attempts available
    erased       its row is erased. Nothing follows, and the ledger forgets what was before
    covered      the change of a table letter is in the table since a rebuild (RUN-6)

In Kafka, the history of a dead letter is one record. Its key is the id of the dead letter. The
topic is compacted, so Kafka keeps the newest history of each dead letter. Another record has the
totals, so the number of closed dead letters is known without a scan. A dead letter may claim that
it is a replay. The claim is accepted if the history of the first dead letter has this replay.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from sys import intern
from typing import Annotated, Any, Final, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType

from connector.dead_letters.envelope import MAX_ATTEMPT, DeadLetter, replay_claim
from connector.dead_letters.envelope import letter_id as id_of
from connector.records.model import MAX_INT, MAX_LONG
from connector.records.rejection import Headers
from connector.stored import from_text, to_stored
from connector.text import truncate_utf8
from connector.validation import size_of

MAX_ENTRIES: Final = 100
"""The maximum number of entries in a history, so that it fits into a record."""


class Action(StrEnum):
    """The actions on a dead letter."""

    REPLAYED = "replayed"
    PARKED = "parked"
    DISCARDED = "discarded"
    REOPENED = "reopened"
    ERASED = "erased"
    COVERED = "covered"


class LetterState(StrEnum):
    """The states of a dead letter."""

    OPEN = "open"
    REPLAYED = "replayed"
    PARKED = "parked"
    DISCARDED = "discarded"
    ERASED = "erased"
    COVERED = "covered"


_STATES: Final = {
    Action.REPLAYED: LetterState.REPLAYED,
    Action.PARKED: LetterState.PARKED,
    Action.DISCARDED: LetterState.DISCARDED,
    Action.REOPENED: LetterState.OPEN,
    Action.ERASED: LetterState.ERASED,
    Action.COVERED: LetterState.COVERED,
}
OPEN_STATES: Final = frozenset({LetterState.OPEN, LetterState.PARKED})
"""The states of dead letters that are still missing from the tables without a final decision."""
ALLOWED: Final[Mapping[Action, frozenset[LetterState]]] = {
    Action.REPLAYED: frozenset({LetterState.OPEN}),
    Action.PARKED: frozenset({LetterState.OPEN}),
    Action.DISCARDED: OPEN_STATES,
    Action.REOPENED: frozenset({LetterState.PARKED, LetterState.DISCARDED}),
    Action.ERASED: frozenset(LetterState) - {LetterState.ERASED},
    # The table may have been restored or made again since, and then rebuilt again.
    Action.COVERED: OPEN_STATES | {LetterState.COVERED},
}
"""The states in which each action is allowed."""


@dataclass(frozen=True, slots=True)
class RepairNote:
    """How a record was repaired: the steps, and the SHA-256 before and after (DLQ-12)."""

    steps: tuple[str, ...]
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One action on one dead letter.

    - `at` is in microseconds.
    - `selection` has the ids or the filter that selected it. For `covered`, it is the id of the
      rebuild.
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
            # Many letters share them.
            object.__setattr__(self, name, intern(truncate_utf8(getattr(self, name))))

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values, as stored in the ledger. A missing repair is omitted."""
        stored: dict[str, Any] = to_stored(self)
        repair = stored.pop("repair_note")
        return stored if repair is None else {**stored, "repair": repair}


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
        return self.state in ALLOWED[action]


class Sent(NamedTuple):
    """The end offsets of the replays in the change topic with the id `topic_id`."""

    topic_id: str = ""
    ends: Mapping[int, int] = {}


NONE_SENT: Final = Sent()


@dataclass(frozen=True, slots=True)
class Totals:
    """The number of closed dead letters, by topic id and table. The table of a rejected record is
    "", that of a covered letter `covered_by(table, rebuild)`.

    `published` is the number of all dead letters, by topic id and table, when the last writer
    began. Every closed one is one of them. Empty: an older version wrote the totals.

    No dead letter that first failed before `open_since` (µs) is open or parked. It is `None` if not
    all were checked. `sent` has the end offsets of the replays of all earlier transactions.
    """

    closed: Mapping[tuple[str, str], int]
    open_since: int | None = None
    sent: Sent = NONE_SENT
    published: Mapping[tuple[str, str], int] = field(default_factory=dict)


class Outgoing(NamedTuple):
    """A record to send again. `kafka_partition` None: the current one of its key."""

    key: bytes
    value: bytes | None
    headers: Headers
    kafka_partition: int | None = None


class LedgerWrite(NamedTuple):
    """An action on one dead letter: the entry for its history, and for a replay, the record."""

    letter_id: str
    entry: LedgerEntry
    record: Outgoing | None = None

    @property
    def size(self) -> int:
        return 0 if self.record is None else size_of(*self.record[:3])


@dataclass(frozen=True, slots=True)
class ExternalDeadLetters:
    """The number of dead letters that ingest did not write: those of producers and of other tools
    (DLQ-1, DLQ-7).

    They are below the offsets `read_to` of the dead-letter topic `topic_id`. Actions on them do not
    change `count`. `since` is the first failure of the oldest one (µs). Ingest reads the topic from
    these offsets on, and stores the count with its progress. So it is known without a scan (OPS-5).
    """

    topic_id: str = ""
    count: int = 0
    since: int | None = None
    read_to: Mapping[int, int] = field(default_factory=dict)

    def after(
        self, letters: Iterable[DeadLetter], ends: Mapping[int, int], change_topic_id: str
    ) -> ExternalDeadLetters:
        """Return the count after reading `letters`, which are below the offsets `ends`.

        A dead letter of a record of the change topic is not external.
        """
        count, since = self.count, self.since
        for letter in letters:
            if letter.position.topic_id != change_topic_id:
                count += 1
                since = min(since or letter.first_failed_at, letter.first_failed_at)
        return ExternalDeadLetters(self.topic_id, count, since, dict(ends))


NO_EXTERNAL: Final = ExternalDeadLetters()


class Ledger:
    """The histories of the dead letters of one topic. `open_since`, `sent`, `published`: as in
    `Totals`.
    """

    def __init__(self) -> None:
        self._histories: dict[str, tuple[LedgerEntry, ...]] = {}
        self._closed: Counter[tuple[str, str]] = Counter()
        self.open_since: int | None = None
        self.sent = NONE_SENT
        self.published: Mapping[tuple[str, str], int] = {}

    def history(self, letter_id: str) -> tuple[LedgerEntry, ...]:
        """Return the history of a dead letter, oldest entry first. Empty: no actions."""
        return self._histories.get(letter_id, ())

    def set_history(self, letter_id: str, history: tuple[LedgerEntry, ...]) -> None:
        assert history, letter_id
        self._closed.subtract(_families(letter_id, self.history(letter_id)))
        self._histories[letter_id] = history
        self._closed.update(_families(letter_id, history))

    def totals(self, histories: Mapping[str, tuple[LedgerEntry, ...]] | None = None) -> Totals:
        """Return the totals as if these histories were also kept. Changes nothing."""
        closed = Counter(self._closed)
        for letter_id, history in (histories or {}).items():
            closed.subtract(_families(letter_id, self.history(letter_id)))
            closed.update(_families(letter_id, history))
        closed_now = {family: count for family, count in closed.items() if count}
        return Totals(closed_now, self.open_since, self.sent, self.published)

    def count_published(self, letter_ids: Iterable[str]) -> None:
        """Count all dead letters: these, which the topic has, and those with a history that it no
        longer has. Call it before an action.
        """
        ids = {*letter_ids, *self._histories}
        self.published = Counter(family for letter_id in ids if (family := _family(letter_id))[1])

    def published_of(self, topic_id: str, table: str, letter_ids: Iterable[str]) -> dict[str, str]:
        """Return the published dead letters of a table, as `count_published` counts them. By id:
        the rebuild that has covered it; empty: none has.
        """
        ids = {*letter_ids, *self._histories}
        return {
            letter_id: self._covered_by(letter_id)
            for letter_id in ids
            if _family(letter_id) == (topic_id, table)
        }

    def _covered_by(self, letter_id: str) -> str:
        history = self.history(letter_id)
        is_covered = bool(history) and history[-1].action is Action.COVERED
        return history[-1].selection if is_covered else ""

    def with_entry(self, letter_id: str, entry: LedgerEntry) -> tuple[LedgerEntry, ...]:
        """Return the history of a dead letter with one more entry. Changes nothing."""
        # A selection or a repair step may have data of the row.
        before = () if entry.action is Action.ERASED else self.history(letter_id)
        return (*before, entry)[-MAX_ENTRIES:]

    def status(self, letter: DeadLetter) -> LetterStatus:
        """Return the state of a dead letter.

        Without a history it is open, and has the attempts of the replay that it came from. Table
        letters of several tables may have the same change. They share their attempts, so that no
        two replays of the change have the same number.
        """
        status = self._status(letter)
        if letter.table is None:
            return status
        tables = {
            table
            for topic_id, table in self._closed
            if topic_id == letter.position.topic_id and table
        }
        histories = (self.history(id_of(letter.position, table)) for table in tables)
        return replace(
            status,
            attempt=max(
                [status.attempt, *(history[-1].attempt for history in histories if history)]
            ),
        )

    def _status(self, letter: DeadLetter) -> LetterStatus:
        history = self.history(letter.id)
        if history:
            return LetterStatus(
                _STATES[history[-1].action], history[-1].attempt, history[-1].attempts_since_reopen
            )
        replayed, attempt = replay_claim(letter.headers) or ("", 0)
        for entry in self.history(replayed) if replayed else ():
            # An erasure forgets the replays before it, and has their number.
            is_erased = entry.action is Action.ERASED and entry.attempt >= attempt
            if is_erased or (entry.action, entry.attempt) == (Action.REPLAYED, attempt):
                return LetterStatus(LetterState.OPEN, entry.attempt, entry.attempts_since_reopen)
        # A replay claim that the ledger does not confirm does not count.
        return LetterStatus(LetterState.OPEN, letter.attempt, 0)

    def ids(self, state: LetterState) -> frozenset[str]:
        """Return the dead letters whose history has this state."""
        return frozenset(
            letter_id
            for letter_id, history in self._histories.items()
            if _STATES[history[-1].action] is state
        )


def covered_by(table: str, rebuild: str) -> str:
    """Return the key in `Totals.closed` of the letters of a table that a rebuild has covered. They
    count for the versions of the table after this rebuild only.
    """
    return f"{table}@{rebuild}"


def _families(letter_id: str, history: tuple[LedgerEntry, ...]) -> tuple[tuple[str, str], ...]:
    """Return the key in `Totals.closed` that counts a letter. Empty: it is not closed."""
    if not history or _STATES[history[-1].action] in OPEN_STATES:
        return ()
    topic_id, table = _family(letter_id)
    if history[-1].action is Action.COVERED:
        table = covered_by(table, history[-1].selection)
    return ((topic_id, table),)


def _family(letter_id: str) -> tuple[str, str]:
    """Return the topic id and the table of a letter, which is "" for a rejected record."""
    parts = _is_letter_id(letter_id)
    return (parts[1], parts[2] or "") if parts else ("", "")


_to_json = json.JSONEncoder(ensure_ascii=False).encode
# Kafka's topic ids have 22 characters, and may contain `-`. A table may have a name like `a-1-2`.
_is_letter_id = re.compile(
    r"(.{22}|.+?)-[0-9]+-[0-9]+(?:-([A-Za-z0-9][-_A-Za-z0-9]*))?", re.DOTALL
).fullmatch


# Records of the ledger are read with these types. Other programs may write to its topic. Therefore
# members that are always written have no default, and numbers have the limits of Kafka.
_Number = Annotated[int, Meta(ge=0, le=MAX_LONG)]
_Attempt = Annotated[int, Meta(ge=0, le=MAX_ATTEMPT)]
_KafkaPartition = Annotated[int, Meta(ge=0, le=MAX_INT)]


class _Entry(Struct):
    action: Action
    at: int
    by: str
    why: str
    selection: str
    attempt: _Attempt
    attempts_since_reopen: _Attempt
    repair: RepairNote | UnsetType = UNSET


class _History(Struct):
    entries: Annotated[list[_Entry], Meta(min_length=1)]


class _Sent(Struct):
    topic_id: str
    end_offsets: dict[_KafkaPartition, _Number]


class _Totals(Struct):
    closed: list[tuple[str, str, _Number]]
    open_since: int | None
    sent: _Sent | UnsetType = UNSET
    published: list[tuple[str, str, _Number]] | UnsetType = UNSET


def totals_to_json(totals: Totals) -> bytes:
    """Convert the totals to the value of their ledger record."""
    closed, published = (
        [[*family, count] for family, count in counts.items()]
        for counts in (totals.closed, totals.published)
    )
    sent = {"topic_id": totals.sent.topic_id, "end_offsets": to_stored(totals.sent.ends)}
    stored = {"closed": closed, "open_since": totals.open_since, "sent": sent}
    return _to_json(stored | ({"published": published} if published else {})).encode()


def totals_from_json(value: bytes) -> Totals:
    """The inverse of `totals_to_json`. Raises ValueError for values that it does not write."""
    try:
        stored = from_text(_Totals, value.decode())
        closed, published = _by_family(stored.closed), _by_family(stored.published or [])
        sent = Sent(stored.sent.topic_id, stored.sent.end_offsets) if stored.sent else NONE_SENT
        return Totals(closed, stored.open_since and _time(stored.open_since), sent, published)
    except (ValueError, RecursionError) as error:
        raise ValueError(truncate_utf8(f"the totals of a ledger are wrong: {error}")) from error


def _by_family(counts: list[tuple[str, str, int]]) -> dict[tuple[str, str], int]:
    by_family = {(topic_id, table): count for topic_id, table, count in counts}
    if len(by_family) < len(counts):
        raise ValueError("a list of counts does not name each table once")
    return by_family


def history_to_json(history: tuple[LedgerEntry, ...]) -> bytes:
    """Convert a history to the value of its ledger record."""
    return _to_json({"entries": [entry.to_json() for entry in history]}).encode()


def history_from_json(value: bytes) -> tuple[LedgerEntry, ...]:
    """The inverse of `history_to_json`. Raises ValueError for values that it does not write."""
    try:
        return tuple(
            LedgerEntry(
                entry.action,
                _time(entry.at),
                entry.by,
                entry.why,
                entry.selection,
                entry.attempt,
                entry.attempts_since_reopen,
                entry.repair or None,
            )
            for entry in from_text(_History, value.decode()).entries
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(
            truncate_utf8(f"the history of a dead letter is wrong: {error}")
        ) from error


def _time(microseconds: int) -> int:
    """A time, of a third-party letter any long in milliseconds. msgspec has no such limits."""
    if -(MAX_LONG + 1) * 1000 <= microseconds <= MAX_LONG * 1000:
        return microseconds
    raise ValueError("a time has more than 64 bits of milliseconds")
