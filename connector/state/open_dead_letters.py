"""How many dead letters of a stream and of each table are open (DLQ-7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connector.dead_letters.external import ExternalDeadLetters
from connector.dead_letters.ledger import Totals


@dataclass(frozen=True, slots=True)
class OpenLetters:
    """Dead letters that were neither replayed nor discarded: how many, and since when at the earliest (µs; None: not known).

    `is_known` false: the ledger could not be read, and `count` has all there ever were (DLQ-7). `under_way`: some were replayed, and ingest
    has not read all of those replays.
    """

    count: int = 0
    since: int | None = None
    is_known: bool = True
    under_way: bool = False


NONE_OPEN: Final = OpenLetters()


def open_letters(
    rejected: int,
    tables: Mapping[str, int],
    outside: ExternalDeadLetters,
    topic_id: str,
    totals: Totals | None,
    first: int | None,
    *,
    is_known: bool = True,
    under_way: bool = False,
) -> tuple[OpenLetters, dict[str, OpenLetters]]:
    """Those of a stream, and those of each of its tables, by how many records were ever `rejected`, how many changes became letters of
    `tables`, and how many came from `outside`. `first` is when the first of all failed. What has no table may have been one of any.

    `totals` are those of the ledger of the topic with the id `topic_id`, None where nobody has acted yet. `is_known` and `under_way` are
    theirs all alike.
    """
    closed = {} if totals is None else totals.closed
    since = first if totals is None or totals.open_since is None else totals.open_since

    def left(count: int) -> OpenLetters:
        return OpenLetters(count, since if count else None, is_known, under_way)

    closed_outside = sum(count for (of, _), count in closed.items() if of != topic_id)
    open_rejected = max(0, rejected - closed.get((topic_id, ""), 0)) + max(0, outside.count - closed_outside)
    of_tables = {name: max(0, count - closed.get((topic_id, name), 0)) for name, count in tables.items()}
    return left(open_rejected + sum(of_tables.values())), {name: left(open_rejected + count) for name, count in of_tables.items()}
