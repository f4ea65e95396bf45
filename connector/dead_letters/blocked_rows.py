"""Rows that wait for a dead letter, in tables with `block_rows` (DLQ-3).

A row is *blocked* when one of its changes becomes a dead letter. It stays blocked until the dead
letter is replayed with success, is discarded, or is too old for a replay. Later changes of the row
are not merged meanwhile. So no reader sees a later change without the earlier one. A later change
is one that arrived later. If the commit timestamp of the dead letter is known, the later change
must also not have a smaller commit timestamp, because an earlier cut may already contain it.
The Kafka key names the row of a dead letter. If the key itself is wrong, no row is blocked.

A replay that is rejected again is a new dead letter with the same order position. The row waits for
the newest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from connector.dead_letters.envelope import letter_id
from connector.records.rejection import Position, Reason

BLOCKING_REASONS: Final = frozenset(
    {
        *(
            Reason.UNKNOWN_FRAMING,
            Reason.UNKNOWN_SCHEMA,
            Reason.UNDECODABLE,
            Reason.INVALID,
            Reason.UNKNOWN_ENTRY,
            Reason.TOO_LARGE,
        ),
        *(Reason.COMMIT_TIMESTAMP_IN_FUTURE, Reason.COMMIT_TIMESTAMP_TOO_OLD),
        Reason.INVALID_SEQUENCE_NUMBER,
    }
)
"""The reasons of rejected records that block a row: the Kafka key is the row key, and a replay is
possible. Table letters block their row for any reason.
"""

MAX_BLOCKING: Final = 1_000
"""The maximum number of blocking dead letters of a table, because each commit stores them. Above
this number, repair the source.
"""

Coordinates = tuple[int, int]
"""Kafka partition and offset."""


class BlockingLetter(NamedTuple):
    """A dead letter that its row waits for. Table commits store it as a list.

    - `ingest_batch` and `first` are the place in the order of arrival. All its replays keep it.
    - `newest_batch` and `newest` are the place of the newest replay. Before the first replay, they
      are its own place.
    - `table_letter`: the changelog has the change, but the table could not contain it.
    - `since`, and `committed` if it is known, are in microseconds.
    """

    row_key: bytes
    ingest_batch: int
    first: Coordinates
    newest_batch: int
    newest: Coordinates
    table_letter: bool
    since: int
    committed: int | None = None

    def is_before(
        self, row_key: bytes, ingest_batch: int, coordinates: Coordinates, committed: int
    ) -> bool:
        """Return whether a change waits for this one.

        `ingest_batch` and `coordinates` are where the change, or the record that it replays, first
        arrived.
        """
        is_later = (ingest_batch, coordinates) > (self.ingest_batch, self.first)
        return (
            row_key == self.row_key
            and is_later
            and (self.committed is None or committed >= self.committed)
        )

    def letter_id(self, topic_id: str, table: str) -> str:
        """Return the id of the newest dead letter."""
        return letter_id(Position("", topic_id, *self.newest), table if self.table_letter else None)


def still_blocking(
    before: Iterable[BlockingLetter],
    new: Iterable[BlockingLetter],
    *,
    replayed: Mapping[Coordinates, int],
    discarded: frozenset[str],
    topic_id: str,
    table: str,
    horizon: int | None,
) -> tuple[BlockingLetter, ...]:
    """Return the dead letters that rows of a table wait for, oldest first.

    Args:
        before: Those that blocked rows before.
        new: Those of the batches since then.
        replayed: By the first place of each replayed one, the newest batch in which a replay was
            accepted.
        discarded: The ids of discarded dead letters.
        topic_id: The id of the change topic.
        table: The name of the table.
        horizon: A row does not wait for an older dead letter, because its replay would be too late
            (µs).
    """
    newest: dict[Coordinates, BlockingLetter] = {}
    for letter in [*before, *new]:
        earlier = newest.get(letter.first, letter)
        newer = max(earlier, letter, key=lambda candidate: candidate.newest_batch)
        newest[letter.first] = newer._replace(
            row_key=earlier.row_key, since=min(earlier.since, letter.since)
        )
    blocking = (
        letter
        for letter in newest.values()
        if replayed.get(letter.first, 0) <= letter.newest_batch
        and letter.letter_id(topic_id, table) not in discarded
        and (horizon is None or letter.since >= horizon)
    )
    return tuple(sorted(blocking, key=lambda letter: (letter.ingest_batch, letter.first)))
