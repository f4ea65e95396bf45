"""Which of two producers began later, by example (PUB-4)."""

from __future__ import annotations

import pytest

from connector.watermarks.advance import advance
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    Frontier,
    join,
)
from connector.watermarks.producer_epoch import (
    EPOCH_HEADER,
    EpochRun,
    OlderProducer,
    ProducerEpoch,
    epoch_of,
    older_producer,
)


def test_a_control_record_has_one_epoch_that_of_its_producer() -> None:
    """PUB-4: a program that copies records does not copy the epoch of another producer."""
    headers = ProducerEpoch(7).on([("a", b"1"), (EPOCH_HEADER, b"99"), ("b", None)])
    assert headers == [("a", b"1"), ("b", None), (EPOCH_HEADER, b"7")]
    assert epoch_of([("a", b"1"), (EPOCH_HEADER, b"7")]) == 7


@pytest.mark.parametrize("value", [None, b"", b"-1", b"x", b" 1", b"1\n", b"9" * 19, b"\xff"])
def test_an_invalid_epoch_is_ignored(value: bytes | None) -> None:
    assert epoch_of([(EPOCH_HEADER, value)]) is None
    assert epoch_of([]) is None


def test_the_epoch_is_after_every_epoch_that_was_read() -> None:
    """PUB-4: max(now, newest + 1), also on a machine whose clock is behind."""
    epoch = ProducerEpoch(100)
    epoch.follows(60)
    assert epoch.value == 100
    epoch.follows(100)
    assert epoch.value == 101
    epoch.follows(5_000)
    assert epoch.value == 5_001


def test_a_producer_that_reads_its_own_epoch_keeps_it() -> None:
    epoch = ProducerEpoch(100)
    epoch.on([])
    epoch.follows(100)
    assert epoch.value == 100


def test_an_older_epoch_behind_a_newer_one_is_found() -> None:
    """PUB-4: in one batch, and behind a batch before. A successor is no second producer."""
    assert older_producer(3, [EpochRun(5, 0, 9), EpochRun(7, 4, 6)], 0) == OlderProducer(3, 5, 7)
    assert older_producer(3, [EpochRun(5, 0, 9)], 6) == OlderProducer(3, 5, 6)
    assert older_producer(3, [EpochRun(5, 0, 3), EpochRun(7, 4, 6)], 5) is None
    assert older_producer(3, [], 9) is None
    three = [EpochRun(5, 0, 9), EpochRun(6, 3, 9), EpochRun(7, 4, 6)]
    for runs in (three, three[::-1]):
        assert older_producer(3, runs, 0) == OlderProducer(3, 6, 7), "the greatest of the older"


def test_an_epoch_makes_no_stream_partition_known() -> None:
    """WMK-3, PUB-4: a root that only announces would hold the low watermark."""
    heard = BatchClaims(2, {"p": {0: 5}}, epochs={"p": {0: 7}, "root": {0: 7}})
    frontier = advance(UNKNOWN, heard, now=0)
    assert list(frontier.partitions) == ["p"]
    later = advance(frontier, BatchClaims(2, epochs={"p": {0: 6, 1: 8}}), now=0)
    assert later.partitions["p"].epochs == {0: 7, 1: 8}, "only the newest counts"
    assert join(frontier, later) == join(later, frontier)
    assert Frontier.from_json(later.to_json()) == later
