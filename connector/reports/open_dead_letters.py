"""The number of open dead letters of a stream and of each table (DLQ-7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from connector.dead_letters.ledger import ExternalDeadLetters, Totals
from connector.records.views import Hidden, Named, Time


@dataclass(frozen=True, slots=True)
class OpenLetters:
    """Dead letters that were not replayed or discarded: their number, and since when (µs; None:
    unknown).

    `is_known` is False if the ledger could not be read. Then `count` includes all dead letters
    (DLQ-7). `under_way`: some were replayed, and ingest has not read all these replays.
    `uncounted_tables` are the tables of a stream that could not be read. `count` lacks the dead
    letters that only their applies found. `withheld` is the number of releases that are
    withheld, which are treated like dead letters (WRS-18).
    """

    count: Annotated[int, Named("open_dead_letters")] = 0
    since: Annotated[Time | None, Named("dead_letters_since")] = None
    is_known: Annotated[bool, Named("is_ledger_known")] = True
    under_way: Annotated[bool, Named("replays_under_way")] = False
    uncounted_tables: Hidden[tuple[str, ...]] = ()
    withheld: Annotated[int, Named("withheld_releases")] = 0


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
    """Return the open dead letters of a stream, and of each of its tables.

    A rejected record without a known table counts for every table. `is_known` and `under_way` are
    copied to all results.

    Args:
        rejected: The number of all rejected records.
        tables: The number of all table letters, by table.
        outside: The external dead letters.
        topic_id: The id of the change topic.
        totals: The totals of the ledger. None: there were no actions.
        first: The first failure of the oldest dead letter (µs).
        is_known: Whether the ledger could be read.
        under_way: Whether replays are not ingested yet.
    """
    closed = {} if totals is None else totals.closed
    since = first if totals is None or totals.open_since is None else totals.open_since

    def left(count: int) -> OpenLetters:
        return OpenLetters(count, since if count else None, is_known, under_way)

    closed_outside = sum(count for (of, _), count in closed.items() if of != topic_id)
    open_rejected = max(0, rejected - closed.get((topic_id, ""), 0)) + max(
        0, outside.count - closed_outside
    )
    of_tables = {
        name: max(0, count - closed.get((topic_id, name), 0)) for name, count in tables.items()
    }
    return left(open_rejected + sum(of_tables.values())), {
        name: left(open_rejected + count) for name, count in of_tables.items()
    }
