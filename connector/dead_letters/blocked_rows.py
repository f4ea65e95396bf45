"""Rows that wait for a dead change of theirs, for tables that ask for it (DLQ-3).

A row is *held* from the moment a change of it is dead until that is replayed with success, discarded, or too old to be replayed. What
comes after it of the same row is not merged meanwhile, so that nobody sees the later changes without the one before. After it is what
arrived later and, where the dead one's commit timestamp is known, was not committed before it: what was, an earlier cut may have merged.
Which row a dead record is of, its Kafka key says; where the key itself is what is wrong, no row is held.

A replay that is rejected again is another letter for the same place in the order of arrival: the row waits for the newest one.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from connector.dead_letters.envelope import letter_id
from connector.records.rejection import Position, Reason

HOLDING_REASONS: Final = frozenset(
    {
        *(Reason.UNKNOWN_FRAMING, Reason.UNKNOWN_SCHEMA, Reason.UNDECODABLE, Reason.INVALID, Reason.UNKNOWN_ENTRY, Reason.TOO_LARGE),
        *(Reason.COMMIT_TIMESTAMP_IN_FUTURE, Reason.INVALID_SEQUENCE_NUMBER),
    }
)
"""Reasons of rejected records whose key is the row key, and that can be replayed. Table letters hold their row, whatever the reason."""

MAX_HELD: Final = 1_000
"""Dead changes of a table: they stand in its commits. A stream with more of them wants mending, not waiting."""

Place = tuple[int, int]
"""Kafka partition and offset."""


@dataclass(frozen=True, slots=True)
class BlockingLetter:
    """A change that its row waits for.

    `ingest_batch` and `first` are its place in the order of arrival, kept by all of its replays; `newest_batch` and `newest` say where
    the newest of them lies, itself at first. `table_letter`: the changelog took it, and the table could not. `since`, and `committed`
    if it is known, in microseconds.
    """

    row_key: bytes
    ingest_batch: int
    first: Place
    newest_batch: int
    newest: Place
    table_letter: bool
    since: int
    committed: int | None = None

    def is_before(self, row_key: bytes, ingest_batch: int, place: Place, committed: int) -> bool:
        """Whether a change waits for this one: `ingest_batch` and `place` are where it arrived, or what it replays."""
        is_later = (ingest_batch, place) > (self.ingest_batch, self.first)
        return row_key == self.row_key and is_later and (self.committed is None or committed >= self.committed)

    def letter_id(self, topic_id: str, table: str) -> str:
        """The id of the newest letter."""
        return letter_id(Position("", topic_id, *self.newest), table if self.table_letter else None)

    def to_json(self) -> list[Any]:
        key = base64.b64encode(self.row_key).decode()
        newest = (self.newest_batch, [*self.newest], self.table_letter, self.since, self.committed)
        return [key, self.ingest_batch, [*self.first], *newest]

    @staticmethod
    def from_json(stored: list[Any]) -> BlockingLetter:
        key, batch, first, newest_batch, newest, *others = stored
        return BlockingLetter(base64.b64decode(key), batch, (first[0], first[1]), newest_batch, (newest[0], newest[1]), *others)


def still_blocking(
    before: Iterable[BlockingLetter],
    found: Iterable[BlockingLetter],
    *,
    replayed: Mapping[Place, int],
    discarded: frozenset[str],
    topic_id: str,
    table: str,
    horizon: int | None,
) -> tuple[BlockingLetter, ...]:
    """The dead changes that rows of a table wait for now, oldest first.

    `found` are those of the batches since `before`. `replayed` has, for the first place of each that was replayed, the newest batch in
    which a replay was taken; `discarded` are ids of letters. What died before `horizon` (microseconds) waits no longer: a replay of it
    would be too late.
    """
    newest: dict[Place, BlockingLetter] = {}
    for dead in [*before, *found]:
        known = newest.get(dead.first, dead)
        newer = max(known, dead, key=lambda one: one.newest_batch)
        newest[dead.first] = replace(newer, row_key=known.row_key, since=min(known.since, dead.since))
    waiting = (
        dead
        for dead in newest.values()
        if replayed.get(dead.first, 0) <= dead.newest_batch
        and dead.letter_id(topic_id, table) not in discarded
        and (horizon is None or dead.since >= horizon)
    )
    return tuple(sorted(waiting, key=lambda dead: (dead.ingest_batch, dead.first)))
