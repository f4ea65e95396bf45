"""Whole transactions, record by record (SUB-2, SUB-3, WRS-22)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import ConfigError, ConnectorError
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    Heartbeat,
    Mutation,
    OffsetRange,
    Record,
    Release,
    Transaction,
    Truncate,
    WriteStreamOffset,
)
from connector.records.rejection import Position, Reason, Rejection
from connector.watermarks.reader_state import ReaderState
from connector.watermarks.tracker import Watermark, WatermarkTracker
from connector.watermarks.transactions import (
    Item,
    Late,
    Rejected,
    Released,
    Staged,
    TransactionAssembler,
    WholeTransaction,
    released_of,
)
from tests.changes import part as change

ARRIVAL = 10**9
BAD = Rejection(Reason.UNDECODABLE, "bad")


def place(k: int, offset: int) -> Position:
    return Position("t", "id", k, offset)


class Reader:
    """Kafka partitions whose records are read as soon as they are given."""

    def __init__(
        self, kafka_partitions: int = 1, *, state: bytes | None = None, most: int = 10**9
    ) -> None:
        stored = None if state is None else ReaderState.from_bytes(state)
        self.kafka_partitions = kafka_partitions
        self.tracker = (
            WatermarkTracker() if stored is None else WatermarkTracker(frontier=stored.frontier)
        )
        self.assembler = TransactionAssembler(
            self.tracker, "t", "id", state=stored, max_buffered_bytes=most
        )
        self.at = dict.fromkeys(range(kafka_partitions), 0)
        if stored is not None:
            self.at |= {k: at[0] for k, at in stored.offsets.items()}


def read(reader: Reader, *records: Record | Rejection, k: int = 0) -> list[Item]:
    for record in records:
        position = place(k, reader.at[k])
        if isinstance(record, Rejection):
            reader.assembler.reject(record, position)
        else:
            reader.tracker.add(record, k, reader.kafka_partitions, ARRIVAL)
            if isinstance(record, DataChange) and record.is_staged:
                reader.assembler.add_staged(record, position)
            elif isinstance(record, DataChange) or (
                isinstance(record, Release | Truncate) and k == 0
            ):
                reader.assembler.add(record, position, 0)
            else:
                reader.assembler.reached(k, position.offset + 1)
        reader.at[k] += 1
    reader.tracker.advance(0, reader.kafka_partitions)
    reader.assembler.release()
    return taken(reader)


def taken(reader: Reader) -> list[Item]:
    released = []
    while (item := reader.assembler.pop()) is not None:
        released.append(item)
    return released


def announced(
    kafka_partitions: int = 1, *, state: bytes | None = None, most: int = 10**9
) -> Reader:
    reader = Reader(kafka_partitions, state=state, most=most)
    if state is None:
        for k in reader.at:
            read(reader, ChildPartitions("root", 1, 0, (ChildPartition("p"),)), k=k)
    return reader


def whole(*changes: Mutation, missing: int = 0, at: list[tuple[int, int]]) -> WholeTransaction:
    of = changes[0].transaction
    return WholeTransaction(
        changes[0].commit_timestamp,
        of.server_transaction_id if of else "",
        changes,
        missing,
        tuple(place(*one) for one in at),
    )


def test_transactions_come_in_order_once_the_watermark_has_passed_them() -> None:
    """SUB-3: by commit timestamp, then transaction id, then position."""
    reader = announced()
    one, other = change(7, id_="b"), change(7, id_="a")
    single, again = change(7), change(7, b"l")
    assert read(reader, one, change(5), single, other, again, change(9)) == []
    assert read(reader, Heartbeat("p", 6)) == [whole(change(5), at=[(0, 2)])]
    assert read(reader, Heartbeat("p", 8)) == [
        whole(single, at=[(0, 3)]),
        whole(again, at=[(0, 5)]),
        whole(other, at=[(0, 4)]),
        whole(one, at=[(0, 1)]),
    ]


def test_changes_of_a_transaction_are_ordered_by_sequence_over_kafka_partitions() -> None:
    """SUB-3."""
    reader = announced(2)
    parts = [change(5, b"%d" % n, id_="a", sequence=n, of=3) for n in (3, 8, 9)]
    assert read(reader, parts[2], parts[0]) == []
    assert read(reader, Heartbeat("p", 5)) == [], "the other Kafka partition has not spoken"
    assert read(reader, parts[1], Heartbeat("p", 5), k=1) == [
        whole(*parts, at=[(0, 2), (1, 1), (0, 1)])
    ]


def test_missing_records_are_counted_and_late_when_they_arrive() -> None:
    """SUB-3: a transaction whose records are not all there says how many are missing."""
    reader = announced()
    parts = [change(5, b"%d" % n, id_="a", sequence=n, of=3) for n in range(3)]
    (rejected, released) = read(reader, parts[0], BAD, Heartbeat("p", 5))
    assert rejected == Rejected(BAD, place(0, 2))
    assert released == whole(parts[0], missing=2, at=[(0, 1)])
    assert read(reader, parts[1]) == [Late(parts[1], place(0, 4))]


def test_a_duplicate_is_late_and_not_dropped() -> None:
    """SUB-3: also of a change without a transaction, which may name another resume token."""
    reader = announced()
    part, single = change(5, id_="a", sequence=1), change(5)
    again = replace(single, resume_token=b"r", estimated_low_watermark=0)
    assert read(reader, part, single, part, again) == [
        Late(part, place(0, 3), is_duplicate=True),
        Late(again, place(0, 4), is_duplicate=True),
    ]
    assert len(read(reader, Heartbeat("p", 5))) == 2
    assert read(reader, part) == [Late(part, place(0, 6))]


def test_a_full_buffer_names_the_stream_partition_that_lags() -> None:
    """SUB-3: and the change was not taken."""
    reader = announced(2, most=2500)
    read(reader, Heartbeat("p", 2))
    read(reader, change(3), change(4))
    with pytest.raises(ConnectorError, match=r"Stream partition p .* Kafka partition 1") as caught:
        read(reader, Heartbeat("p", 2), k=1)
        read(reader, Heartbeat("p", 9))
        read(reader, change(10))
    assert (caught.value.stream_partition, caught.value.kafka_partition) == ("p", 1)
    assert len(read(reader, Heartbeat("p", 9), k=1)) == 2
    assert read(reader, change(10), Heartbeat("p", 10)) == []


def test_a_full_buffer_names_the_missing_low_watermark() -> None:
    reader = Reader(most=1100)
    read(reader, change(3))
    with pytest.raises(ConnectorError, match="not all stream partitions were announced"):
        read(reader, change(4))


def test_a_program_that_never_acknowledges_gets_an_error() -> None:
    reader = announced(most=2000)
    for number in range(1, 4):
        read(reader, change(number), Heartbeat("p", number))
    with pytest.raises(ConnectorError, match="Call acknowledge") as caught:
        for number in range(4, 6):
            read(reader, change(number), Heartbeat("p", number))
    assert caught.value.code == "TRANSACTIONS_UNACKNOWLEDGED"


def test_staged_rows_that_are_not_acknowledged_have_a_limit() -> None:
    """SUB-3: 256 bytes each. One is always handed out."""
    for most, taken in ((1024, 4), (1023, 3), (256, 1), (1, 1)):
        reader = announced(most=most)
        assert len(read(reader, *map(row, range(taken)))) == taken
        with pytest.raises(ConnectorError) as caught:
            read(reader, row(taken))
        assert caught.value.code == "TRANSACTIONS_UNACKNOWLEDGED"


def test_a_state_continues_after_what_was_acknowledged() -> None:
    """SUB-3: nothing that was acknowledged comes twice, and nothing is left out."""
    reader = announced()
    first, second, open_ = change(3), change(4), change(9)
    released = read(reader, open_, second, first, first, Heartbeat("p", 5))
    late, one, other = released
    assert isinstance(late, Late)
    assert read(reader, change(1)) == [Late(change(1), place(0, 6))]
    reader.assembler.acknowledge(one)
    reader.assembler.acknowledge(late)  # a second time
    state = reader.assembler.state()
    stored = ReaderState.from_bytes(state)
    assert stored.offsets == {0: (1, 7)}
    assert stored.acknowledged[:2] == (3, "")
    assert stored.frontier.low_watermark == 6

    again = announced(state=state)
    assert again.assembler.is_reading_again
    log: list[Record] = [second, first, first, Heartbeat("p", 5)]
    assert read(again, open_, *log) == [], "until all was read again"
    assert read(again, change(1)) == [other, Late(change(1), place(0, 6))]
    assert not again.assembler.is_reading_again
    assert read(again, Heartbeat("p", 9)) == [whole(open_, at=[(0, 1)])]


def test_a_state_without_anything_open_reads_nothing_again() -> None:
    reader = announced()
    (one,) = read(reader, change(3), Heartbeat("p", 5))
    reader.assembler.acknowledge(one)
    stored = ReaderState.from_bytes(reader.assembler.state())
    assert stored.offsets == {0: (3, 3)}
    assert ReaderState.from_bytes(stored.to_bytes()) == stored


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b"\xff", b'{"frontier": {}}'])
def test_bytes_that_are_no_state_are_refused(text: bytes) -> None:
    with pytest.raises(ConfigError, match="are not a state of a reader"):
        ReaderState.from_bytes(text)


# ── watermarks (SUB-2) ────────────────────────────────────────────────────────────────────────────


def add_claims(tracker: WatermarkTracker, record: Record, *places: int, named: int = 4) -> None:
    for k in places:
        tracker.add(record, k, named, ARRIVAL)


def test_a_reader_of_some_kafka_partitions_has_the_watermark_of_these() -> None:
    """SUB-2: the others need not speak, and the lagging Kafka partition has its own number."""
    tracker = WatermarkTracker(only=frozenset([1, 3]))
    add_claims(tracker, ChildPartitions("root", 1, 0, (ChildPartition("p"),)), 1, 3)
    add_claims(tracker, Heartbeat("p", 5), 1)
    assert tracker.advance(0, 4) is None
    assert tracker.lagging_partition is not None
    assert tracker.lagging_partition.kafka_partition == 3
    add_claims(tracker, Heartbeat("p", 4), 3)
    released = tracker.advance(0, 4)
    assert released is not None
    assert (released.low_watermark, released.lagging_partition) == (5, tracker.lagging_partition)
    end = ChildPartitions("p", 9, 0, (ChildPartition("c", ("p",)),))
    add_claims(tracker, end, 1, named=2)  # before there was a Kafka partition 3
    add_claims(tracker, Heartbeat("c", 20), 1, 3)
    assert tracker.advance(0, 4) == Watermark(21, tracker.lagging_partition)


def test_a_watermark_comes_only_when_it_advances() -> None:
    """SUB-2."""
    tracker = WatermarkTracker(roots=frozenset("p"))
    assert tracker.advance(0, 1) is None
    add_claims(tracker, Heartbeat("p", 5), 0, named=1)
    assert tracker.has_news
    released = tracker.advance(0, 1)
    assert released is not None
    assert released.low_watermark == 6
    add_claims(tracker, Heartbeat("p", 3), 0, named=1)
    assert tracker.advance(0, 1) is None
    # An estimate that is after the arrival by more than the clocks may differ claims nothing.
    far = replace(change(6), estimated_low_watermark=ARRIVAL + 300_000_001)
    add_claims(tracker, far, 0, named=1)
    assert tracker.advance(0, 1) is None


def test_an_added_kafka_partition_holds_the_watermark_until_it_is_read() -> None:
    """SUB-2, WMK-4."""
    tracker = WatermarkTracker(roots=frozenset("p"))
    add_claims(tracker, Heartbeat("p", 5), 0, named=1)
    assert tracker.advance(0, 1) is not None
    add_claims(tracker, Heartbeat("p", 8), 0, named=2)
    assert tracker.advance(0, 1) is None
    add_claims(tracker, Heartbeat("p", 8), 1, named=2)
    assert tracker.advance(0, 1) is not None


# ── write streams (WRS-22) ────────────────────────────────────────────────────────────────────────


@given(
    rows=st.lists(st.tuples(st.sampled_from([2, 3]), st.sampled_from([b"k", b"l"])), max_size=6),
    copies=st.lists(st.integers(0, 5), max_size=4),
)
def test_each_row_of_a_committed_write_stream_is_one_transaction(
    rows: list[tuple[int, bytes]], copies: list[int]
) -> None:
    """SUB-3, WRS-10: rows with equal contents are different rows, because their offsets differ. A
    copy that was sent again has the same offset, and is a duplicate.
    """
    sent = [
        replace(change(at, key), write_stream=WriteStreamOffset("s/w", offset))
        for offset, (at, key) in enumerate(rows)
    ]
    again = [sent[n] for n in copies if n < len(sent)]
    released = read(announced(), *sent, *again, Heartbeat("p", 9))
    whole_ones = [one.changes for one in released if isinstance(one, WholeTransaction)]
    assert sorted(whole_ones, key=sent_at) == [(one,) for one in sent]
    assert [one.change for one in released if isinstance(one, Late)] == again
    assert all(one.is_duplicate for one in released if isinstance(one, Late))


def sent_at(changes: tuple[DataChange, ...]) -> int:
    assert changes[0].write_stream is not None
    return changes[0].write_stream.offset


def row(offset: int) -> DataChange:
    return replace(change(1), commit_timestamp=0, write_stream=WriteStreamOffset("s/w", offset))


def release(at: int, upto: int = 2) -> Release:
    return Release("p", at, (OffsetRange("s/w", 0, upto),))


def test_rows_come_at_once_and_their_release_in_order() -> None:
    """WRS-22: a release is one transaction in the order of commit timestamp and position."""
    reader = announced()
    assert read(reader, row(0), change(5), row(1)) == [
        Staged(row(0), place(0, 1)),
        Staged(row(1), place(0, 3)),
    ]
    assert read(reader, release(5), change(5, b"l"), change(5, id_="a"), change(4)) == []
    assert read(reader, Heartbeat("p", 5)) == [
        whole(change(4), at=[(0, 7)]),
        whole(change(5), at=[(0, 2)]),
        released_of(release(5), place(0, 4)),
        whole(change(5, b"l"), at=[(0, 5)]),
        whole(change(5, id_="a"), at=[(0, 6)]),
    ]


def test_a_release_behind_the_low_watermark_is_late_and_comes_at_once() -> None:
    """WRS-22: and again after a restart, if it was not acknowledged."""
    reader = announced()
    read(reader, Heartbeat("p", 5))
    (late,) = read(reader, release(3))
    assert late == replace(released_of(release(3), place(0, 2)), is_late=True)
    again = announced(state=reader.assembler.state())
    assert read(again, release(3)) == [late]
    again.assembler.acknowledge(late)
    assert read(announced(state=again.assembler.state())) == []


def test_a_copy_that_was_sent_again_is_not_a_release_of_its_own() -> None:
    """WRS-22: also if the first copy was acknowledged, and the second one is read again."""
    reader = announced()
    assert read(reader, change(9), release(5), release(5)) == []
    (one,) = read(reader, Heartbeat("p", 5))
    assert isinstance(one, Released)
    reader.assembler.acknowledge(one)
    again = announced(state=reader.assembler.state())
    assert again.at == {0: 1}
    assert read(again, change(9), release(5), release(5), Heartbeat("p", 5)) == []


def test_a_truncation_comes_once_as_a_change_of_its_transaction() -> None:
    """EVO-13, SUB-3: the copies count as one record. Without a transaction, it is one of its own.
    A copy that was sent again adds nothing.
    """
    reader = announced(2)
    of = Transaction("a", 0, number_of_records_in_transaction=2)
    truncate = Truncate("p", "t", 5, transaction=of)
    filled = replace(change(5), transaction=replace(of, record_sequence=1))
    alone = Truncate("p", "t", 4, tie_breaker=1)
    assert read(reader, truncate, filled, alone, alone) == []
    assert read(reader, truncate, alone, Heartbeat("p", 6), k=1) == []
    done = read(reader, Heartbeat("p", 6))
    assert done == [
        whole(alone, at=[(0, 3)]),
        whole(truncate, filled, at=[(0, 1), (0, 2)]),
    ]
    (late,) = read(reader, Truncate("p", "u", 3))
    assert late == Late(Truncate("p", "u", 3), place(0, 6))
    reader.assembler.acknowledge(late)
    again = announced(2, state=reader.assembler.state())
    assert again.at == {0: 7, 1: 4}


def test_rows_that_were_acknowledged_do_not_come_again() -> None:
    """WRS-22: although an older transaction waits, and so they are read again."""
    reader = announced()
    first, second = read(reader, change(9), row(0), row(1))
    reader.assembler.acknowledge(first)
    state = reader.assembler.state()
    again = announced(state=state)
    assert read(again, change(9), row(0), row(1), row(2)) == [second, Staged(row(2), place(0, 4))]
    assert b'"staged": {"0": 3}' in state, "one number, not one for each row"


def test_rows_are_not_kept_in_memory() -> None:
    """WRS-22: only the positions of those that are not acknowledged count."""
    reader = announced(most=1100)
    read(reader, change(9))
    for number in range(50):
        (one,) = read(reader, row(number))
        reader.assembler.acknowledge(one)
    with pytest.raises(ConnectorError, match="Call acknowledge"):
        for number in range(50, 60):
            read(reader, row(number))


def test_a_release_that_waits_is_held_back() -> None:
    """SUB-3, WRS-22: as a transaction without changes."""
    reader = announced()
    read(reader, row(0), release(5))
    held = reader.assembler.held_back()
    assert held is not None
    assert (held.transactions, held.changes, held.oldest) == (1, 0, 5)


def test_a_state_of_an_earlier_version_has_no_rows() -> None:
    reader = announced()
    text = reader.assembler.state().replace(b', "staged": {}', b"")
    assert b"staged" not in text
    assert ReaderState.from_bytes(text).staged == {}
