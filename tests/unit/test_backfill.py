"""A backfill: rows that exist already, sent beside live changes (REC-23)."""

from __future__ import annotations

from itertools import permutations

import pytest

from connector.records.model import ChildPartitions, Record
from connector.records.ordering import OrderBy, OrderPosition
from connector.tables.definition import Versions
from connector.tables.merge import EMPTY, join, lift, visible
from connector.watermarks.advance import advance
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    Frontier,
    LineageRecord,
)
from connector.watermarks.lineage import Announcements
from tests.changes import change, delete_family, put

READ_AT = 100
"""When the snapshot of the source was read."""


@pytest.mark.parametrize("versions", list(Versions))
def test_a_commit_after_the_snapshot_wins_in_any_order_of_arrival(
    versions: Versions,
) -> None:
    """REC-23, newest_wins: and a cell that the row had only before the snapshot is removed."""
    backfill = change(
        delete_family(), put("Lee", qualifier=b"name"), put("5000", qualifier=b"salary"), at=READ_AT
    )
    before = change(put("Rome", qualifier=b"city"), at=READ_AT - 1)
    after = change(put("6000", qualifier=b"salary"), at=READ_AT + 1)
    for arrival in permutations([before, backfill, after]):
        state = EMPTY
        for offset, each in enumerate(arrival):
            state = join(state, lift(each, OrderPosition(1, 0, offset), OrderBy.COMMIT, versions))
        assert visible(state) == {("f", b"name"): b"Lee", ("f", b"salary"): b"6000"}, arrival


def test_it_holds_the_low_watermark_at_the_time_of_the_snapshot_until_it_ends() -> None:
    """REC-23, WMK-6, watermark_is_honest: it ends when its root announces that none of it is
    left.
    """
    announcements = Announcements(retention=1000)

    def read(frontier: Frontier, record: Record, claims: dict[str, int]) -> Frontier:
        """The frontier once the record was read, behind what a producer announces before it."""
        lineage = announcements.due(record, now=500)
        if isinstance(record, ChildPartitions):
            announcements.sent(record, now=500)
            lineage.append(record)
        heard = BatchClaims(
            1,
            {name: {0: claim} for name, claim in claims.items()},
            tuple(LineageRecord(0, 1, one) for one in lineage),
        )
        return advance(frontier, heard, now=500)

    frontier = read(UNKNOWN, change(at=READ_AT, stream_partition="backfill"), {"backfill": READ_AT})
    frontier = read(frontier, change(at=300, stream_partition="live"), {"live": 301})
    assert frontier.low_watermark == READ_AT
    frontier = read(frontier, ChildPartitions("backfill", READ_AT, 0, ()), {})
    assert frontier.low_watermark == 301
