"""The copies of releases and the rows that a reader hands out (WRS-22)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from connector.kafka.consume.decode import ConsumerRecord, ReleaseCopies
from connector.records.model import Heartbeat, OffsetRange, Record, Release, WriteStreamOffset
from connector.records.rejection import Position
from connector.validation import KafkaRecord
from connector.watermarks.transactions import Staged, released_of
from tests.changes import part

RELEASE = Release("p", 5, (OffsetRange("s/w", 0, 2),))
ROW = replace(part(1), commit_timestamp=0, write_stream=WriteStreamOffset("s/w", 0))


def received(record: Record, k: int, topic: str = "t") -> ConsumerRecord:
    return ConsumerRecord(record, 3, KafkaRecord(Position(topic, "id", k, 7), 70, b"", b""))


@pytest.mark.parametrize(
    ("kafka_partitions", "place"), [(None, 0), ([], 0), ([2, 1], 1), ([0, 2], 0), ([2], 2)]
)
def test_one_copy_of_a_release_is_handed_out(
    kafka_partitions: Collection[int] | None, place: int
) -> None:
    copies = ReleaseCopies("t", kafka_partitions, staged=False)
    for k in range(3):
        one = received(RELEASE, k)
        wanted = released_of(RELEASE, one.position) if k == place else None
        assert copies.shown(one) == wanted
        replay = received(RELEASE, k, "t.dead-letters.group.g.replays")
        assert copies.shown(replay) == released_of(RELEASE, replay.position)


@pytest.mark.parametrize("staged", [False, True])
def test_rows_are_handed_out_on_request_and_all_else_always(staged: bool) -> None:
    copies, row = ReleaseCopies("t", None, staged), received(ROW, 1)
    assert copies.shown(row) == (Staged(ROW, row.position) if staged else None)
    for record in (part(5), replace(ROW, commit_timestamp=5), Heartbeat("p", 5)):
        one = received(record, 1)
        assert copies.shown(one) is one
