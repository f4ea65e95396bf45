"""Selects dead letters with a filter, the same for every command (DLQ-8), and counts them by group.

A filter has an optional condition for each property. A dead letter must meet all given conditions.
The most expensive condition is checked last: the table of a change requires decoding, so the record
is decoded only if the filter has a table.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.ledger import LetterState, LetterStatus
from connector.records.codec import Schemas, read
from connector.records.rejection import Reason, Rejection
from connector.records.views import view_of_bytes, view_of_time

EXAMPLES: Final = 2
BASE64: Final = "base64:"
_TOPIC_ID: Final = 22
"""The length of the id of a topic as text."""
_REST: Final = re.compile(r"-[0-9]+-[0-9]+(?:-.*)?", re.DOTALL)
"""The rest of the id of a letter: Kafka partition, offset and, of a table letter, its table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """The conditions for dead letters. A value that is `None` or empty is no condition, but for
    `states`.

    - `states` `None` means `OPEN`, or any state if there are `ids`. Without any element: any state.
    - `since` and `until` limit the first failure, in microseconds. `until` is exclusive.
    - `offsets` are the first and the last offset of the original records.
    - `attempts` are the minimum and the maximum.
    - `table` is the table of a table letter. For others it is the source table of the change, if it
      can be decoded.
    """

    ids: frozenset[str] = frozenset()
    reasons: frozenset[Reason] = frozenset()
    rule: str = ""
    states: frozenset[LetterState] | None = None
    table: str | None = None
    key_prefix: bytes = b""
    since: int | None = None
    until: int | None = None
    kafka_partition: int | None = None
    offsets: tuple[int, int] | None = None
    attempts: tuple[int, int] | None = None
    ingest_batch: int | None = None

    def matches(self, letter: DeadLetter, status: LetterStatus, schemas: Schemas) -> bool:
        """Return whether a letter meets all conditions. `schemas` are used for `table` only."""
        position = letter.position
        states = self.states
        if states is None:
            states = frozenset() if self.ids else frozenset({LetterState.OPEN})
        return (
            (not self.ids or letter.id in self.ids)
            and (not states or status.state in states)
            and (not self.reasons or letter.reason in self.reasons)
            and (not self.rule or letter.rule == self.rule)
            and (not self.key_prefix or (letter.key or b"").startswith(self.key_prefix))
            and (self.since is None or letter.first_failed_at >= self.since)
            and (self.until is None or letter.first_failed_at < self.until)
            and (self.kafka_partition is None or position.kafka_partition == self.kafka_partition)
            and (self.offsets is None or self.offsets[0] <= position.offset <= self.offsets[1])
            and (self.ingest_batch is None or letter.ingest_batch == self.ingest_batch)
            and (self.attempts is None or self.attempts[0] <= status.attempt <= self.attempts[1])
            and (self.table is None or table_of(letter, schemas) == self.table)
        )

    @property
    def has_conditions(self) -> bool:
        """Whether there is any condition besides the state."""
        return any(
            getattr(self, name.name) != name.default
            for name in fields(self)
            if name.name != "states"
        )

    def __str__(self) -> str:
        """The filter as text, as the ledger stores it: for example `reason=INVALID table=users`, or
        `all` without conditions.
        """
        parts = [f"id={letter_id}" for letter_id in sorted(self.ids)]
        parts += [f"reason={reason}" for reason in sorted(self.reasons)] + [
            f"rule={self.rule}"
        ] * bool(self.rule)
        parts += [f"state={state}" for state in sorted(self.states or ())]
        parts += [f"table={self.table}"] if self.table is not None else []
        parts += [f"key-prefix={text_of_bytes(self.key_prefix)}"] if self.key_prefix else []
        parts += [
            f"{name}={view_of_time(at)}"
            for name, at in (("since", self.since), ("until", self.until))
            if at is not None
        ]
        numbers = (("kafka-partition", self.kafka_partition), ("ingest-batch", self.ingest_batch))
        parts += [f"{name}={number}" for name, number in numbers if number is not None]
        parts += [
            f"{name}={pair[0]}..{pair[1]}"
            for name, pair in (("offsets", self.offsets), ("attempts", self.attempts))
            if pair
        ]
        return " ".join(parts) or "all"


def is_whole(letter_id: str) -> bool:
    """Return whether a text has the form of a whole id. It then never means another letter."""
    return _REST.fullmatch(letter_id, _TOPIC_ID) is not None


def is_short_for(text: str, letter_id: str) -> bool:
    """Return whether a text is a prefix of the id of a letter, or a prefix of its topic id with the
    rest: `Ab` and `Ab-3-17` are short for `AbCdEfGhIjKlMnOpQrStUv-3-17`. The empty text is not.
    """
    topic_id, rest = letter_id[:_TOPIC_ID], letter_id[_TOPIC_ID:]
    return text != "" and (
        letter_id.startswith(text)
        or (text.endswith(rest) and topic_id.startswith(text.removesuffix(rest)))
    )


def text_of_bytes(data: bytes) -> str:
    """Return printable UTF-8 as text, other bytes as `base64:` and their base 64."""
    view = view_of_bytes(data)
    return view if isinstance(view, str) else f"{BASE64}{view['base64']}"


def bytes_of_text(text: str) -> bytes:
    """The inverse of `text_of_bytes`. Raises ValueError if it is not base 64."""
    return (
        base64.b64decode(text.removeprefix(BASE64), validate=True)
        if text.startswith(BASE64)
        else text.encode()
    )


def table_of(letter: DeadLetter, schemas: Schemas) -> str | None:
    """Return the table of a table letter, or the source table of the change, or None.

    The change may break a rule, but must be decodable.
    """
    if letter.table is not None:
        return letter.table
    datum = read(letter.value, schemas)
    change = None if isinstance(datum, Rejection) else datum["data_change"]
    return None if change is None else str(change["table"])


GROUPINGS: Final[Mapping[str, Callable[[DeadLetter, LetterStatus, Schemas], str]]] = {
    "reason": lambda letter, status, schemas: letter.reason.value,
    "rule": lambda letter, status, schemas: letter.rule,
    "state": lambda letter, status, schemas: status.state.value,
    "table": lambda letter, status, schemas: table_of(letter, schemas) or "",
    "key": lambda letter, status, schemas: text_of_bytes((letter.key or b"")[:64]),
    "kafka-partition": lambda letter, status, schemas: str(letter.position.kafka_partition),
    "day": lambda letter, status, schemas: str(view_of_time(letter.first_failed_at))[:10],
    "attempt": lambda letter, status, schemas: str(status.attempt),
}
"""The properties for counting. A key is shortened to 64 bytes. A day is in UTC."""


@dataclass(slots=True)
class Group:
    """The number of dead letters, the first and the last failure (µs), and two ids."""

    letters: int = 0
    oldest: int = 0
    newest: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, letter: DeadLetter) -> None:
        self.oldest = min(self.oldest or letter.first_failed_at, letter.first_failed_at)
        self.newest = max(self.newest, letter.first_failed_at)
        self.letters += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(letter.id)


def grouped(
    letters: Iterable[tuple[DeadLetter, LetterStatus]],
    by: tuple[str, ...],
    schemas: Schemas,
    at_most: int = 10_000,
) -> Iterator[tuple[tuple[str, ...], Group]]:
    """Count the dead letters by these properties, the largest group first.

    Memory is used only for the groups. After `at_most` groups, all other dead letters are counted
    in the group `…`.
    """
    groups: dict[tuple[str, ...], Group] = {}
    for letter, status in letters:
        texts = tuple(GROUPINGS[name](letter, status, schemas) for name in by)
        if texts not in groups and len(groups) >= at_most:
            texts = ("…",) * len(by)
        groups.setdefault(texts, Group()).add(letter)
    yield from sorted(groups.items(), key=lambda item: (-item[1].letters, item[0]))
