"""The sequencers in single situations. The laws are in `tests/property/test_source_laws.py`."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import replace
from typing import Any

import pytest

from connector.errors import TopicError
from connector.records.model import MAX_RESUME_TOKEN_BYTES
from connector.reports.bridge_status import text_of_waiting
from connector.sources.arrivals import MOST_KEYS
from connector.sources.by_partition import ByPartition
from connector.sources.by_transaction import ByTransaction
from connector.sources.captured import reads_table
from connector.sources.finished import Remembered
from connector.sources.model import (
    BINLOG,
    LSN,
    Commit,
    End,
    Event,
    ForeignRecord,
    Poison,
    Released,
    Row,
    Skipped,
    TopicPartition,
    TruncatedTable,
    least_time,
)
from connector.sources.position import SourcePosition, by_number, by_partition
from connector.sources.queues import Entry, PartitionQueue

ENDS = "t.transaction"
NOW = 1_700_000_000_000_000
S = 1_000_000
SKEW_S = 60


class Source:
    """Records of a source in the order in which they are read, and their sequencer."""

    def __init__(self, sequencer: ByTransaction | ByPartition) -> None:
        self.sequencer = sequencer
        self.next: dict[TopicPartition, int] = {(ENDS, 0): 0, ("t.a", 0): 0, ("t.a", 1): 0}

    def add(
        self, partition: TopicPartition, event: Event, *, at: int | None = None, time: int = NOW
    ) -> None:
        offset = self.next.get(partition, 0) if at is None else at
        self.next[partition] = offset + 1
        self.sequencer.add(ForeignRecord(*partition, offset, time, None, b"x" * 100), event)

    def row(
        self, number: int, sequence: int, key: int = 1, *, partition: int = 0, time: int = NOW
    ) -> None:
        after = (10 * number - 10,)
        commit = Commit(time=time, transaction=str(number), sequence=sequence, log=LSN, after=after)
        self.add(("t.a", partition), Row(table="a", commit=commit, key={"id": key}))

    def end(self, number: int, count: int, *, time: int = NOW, **counts: int) -> None:
        commit = Commit(time=time, transaction=str(number), log=LSN, after=(10 * number,))
        self.add((ENDS, 0), End(commit, count, counts))

    def released(self, now: int = NOW) -> list[Released]:
        """Release all that can be released, and acknowledge what has to be."""
        found = list[Released]()
        for _ in range(5):
            if self.sequencer.wants_ends:
                self.sequencer.ends(self.next)
            found += self.sequencer.released(now)
            if self.sequencer.has_claim:
                self.sequencer.claim_acknowledged()
        return found


def by_transaction(position: SourcePosition | None = None, **limits: Any) -> ByTransaction:
    return ByTransaction(ENDS, position, max_clock_skew_s=SKEW_S, **limits)


def again(source: Source) -> Source:
    """A source whose bridge was killed, and begins at its token."""
    token = source.sequencer.token({})
    new = Source(by_transaction(SourcePosition.parse(token)))
    new.next = {**source.next, **new.sequencer.starts}
    return new


def numbers(released: list[Released]) -> list[tuple[str, int]]:
    return [(r.event.commit.transaction, r.event.commit.sequence) for r in released]


def test_an_end_is_read_before_or_after_its_rows() -> None:
    """SRC-2: the transaction is released when both are there, with the count of its changes."""
    source = Source(by_transaction())
    source.row(1, 1)
    assert source.released() == []
    source.end(1, 2)
    source.end(2, 1)
    assert source.released() == []
    waiting = source.sequencer.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.transaction, waiting.missing) == ("events", "1", 1)
    source.row(2, 1, partition=1)
    assert source.released() == []
    source.row(1, 2, key=2)
    released = source.released()
    assert numbers(released) == [("1", 1), ("1", 2), ("2", 1)]
    assert [r.count for r in released] == [2, 2, 1]
    assert released[0].commit_timestamp + 2 <= released[2].commit_timestamp
    assert source.sequencer.reached == released[2].commit_timestamp


def test_the_base_is_acknowledged_before_anything_is_sent() -> None:
    """SRC-2, resumable: it depends on what was read first."""
    source = Source(by_transaction())
    source.row(1, 1)
    source.end(1, 1)
    source.sequencer.ends(source.next)
    assert list(source.sequencer.released(NOW)) == []
    assert source.sequencer.has_claim
    assert source.sequencer.reached == NOW - 2
    killed = again(source)
    source.sequencer.claim_acknowledged()
    (released,) = source.sequencer.released(NOW)
    killed.row(1, 1)
    killed.end(1, 1)
    (repeated,) = killed.released()
    assert repeated.commit_timestamp == released.commit_timestamp == NOW


def test_a_transaction_without_events_raises_the_clock() -> None:
    """SRC-2: the table of heartbeats keeps the watermark going."""
    source = Source(by_transaction())
    source.end(1, 0)
    source.end(2, 1, beat=1)
    commit = Commit(transaction="2", sequence=1, log=LSN, after=(10,))
    source.add(("t.a", 0), Skipped("HEARTBEAT", commit, "beat"))
    assert source.released() == []
    assert source.sequencer.reached == NOW + 2
    assert source.sequencer.waiting is None


def test_events_of_tables_that_are_not_read_do_not_count() -> None:
    """SRC-2: an end counts all that Debezium sent."""
    source = Source(ByTransaction(ENDS, max_clock_skew_s=SKEW_S, reads=lambda table: table == "a"))
    source.row(1, 3)
    source.end(1, 5, a=1, b=4)
    (released,) = source.released()
    assert released.count == 1


def test_events_of_a_table_whose_topic_has_another_name_count() -> None:
    """SRC-2, `nothing_lost`: its events were read, from one of several topics."""
    source = Source(ByTransaction(ENDS, max_clock_skew_s=SKEW_S, reads={"a": True, "b": False}.get))
    source.row(1, 1)
    source.end(1, 1, a=1)
    commit = Commit(time=NOW, transaction="2", sequence=1, log=LSN, after=(10,))
    source.add(("t.x", 0), Row(table="b", commit=commit, key={"id": 1}))
    source.end(2, 2, a=1, b=1)
    assert numbers(source.released()) == [("1", 1)]
    source.row(2, 2)
    assert numbers(source.released()) == [("2", 1), ("2", 2)]


@pytest.mark.parametrize(
    ("topics", "table", "is_read"),
    [
        (("dbz.public.*",), "public.a", True),
        (("dbz.public.*",), "other.a", False),
        (("dbz.public.part",), "public.part_eu", None),
        (("dbz.public.a", "dbz.public.b"), "public.b", True),
        (("renamed.*",), "public.a", True),
    ],
)
def test_the_topic_of_a_table_follows_from_the_prefix(
    topics: tuple[str, ...], table: str, is_read: bool | None
) -> None:
    """SRC-2: a topic with another name could have any table. A table without a topic of its own may
    be routed into one that is read.
    """
    exists = {"dbz.public.a", "dbz.other.a"}.__contains__
    assert reads_table("dbz.transaction", topics, exists)(table) is is_read


def test_a_commit_time_ahead_waits() -> None:
    """SRC-2: half of the skew is allowed. The clock is not set for ever by a wrong one."""
    ahead = NOW + SKEW_S * 1_000_000
    source = Source(by_transaction())
    source.sequencer.add(
        ForeignRecord(ENDS, 0, 0, ahead, None, None),
        End(Commit(time=ahead, transaction="1", log=LSN, after=(10,)), 0),
    )
    assert source.released() == []
    waiting = source.sequencer.waiting
    assert waiting is not None
    assert waiting.reason == "clock"
    source.released(NOW + SKEW_S * 500_000)
    assert source.sequencer.reached == ahead


def test_commit_times_that_are_equal_or_go_back_rise() -> None:
    """SRC-2: the log decides, not the clock of the database."""
    source = Source(by_transaction())
    for number, time in enumerate((NOW, NOW, NOW - 1_000_000, NOW), start=1):
        source.row(number, 1, time=time)
        source.end(number, 1, time=time)
    times = [r.commit_timestamp for r in source.released()]
    assert times == [NOW, NOW + 2, NOW + 4, NOW + 6]


def test_an_event_that_is_later_than_the_end_with_its_id_waits() -> None:
    """SRC-2, `nothing_lost`: a log that began again uses the id again."""
    source = Source(by_transaction())
    source.row(1, 1, time=NOW + 1_000)
    source.end(1, 1)
    assert source.released() == []
    waiting = source.sequencer.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.transaction) == ("count", "1")


def test_a_large_transaction_is_released_in_parts_and_again_after_a_kill() -> None:
    """SRC-2, resumable: its memory is bounded, its time is one, and its last changes declare how
    many it has.
    """
    source = Source(by_transaction(most_records=4))
    source.end(1, 20)
    first = list[Released]()
    for sequence in range(1, 11):
        while ("t.a", 0) in source.sequencer.full:
            first += source.released()
        source.row(1, sequence)
    assert 0 < len(first) < 10
    assert {r.count for r in first} == {1}
    assert source.sequencer.reached < first[0].commit_timestamp
    killed = again(source)
    assert killed.sequencer.starts["t.a", 0] == 0
    later = list[Released]()
    for sequence in range(1, 21):
        killed.row(1, sequence)
        later += killed.released()
    killed.end(1, 20)
    later += killed.released()
    assert [r.tie_breaker for r in later] == list(range(1, 21))
    assert {r.commit_timestamp for r in first + later} == {first[0].commit_timestamp}
    assert later[-1].count == 20


def test_a_large_transaction_whose_last_event_is_left_out_has_its_count() -> None:
    """SRC-2: its last row declares it. The queue was full before that event was read."""
    source = Source(by_transaction(most_records=4))
    source.end(1, 5)
    for sequence in range(1, 5):
        source.row(1, sequence)
    assert [r.count for r in source.released()] == [1, 1, 1]
    commit = Commit(time=NOW, transaction="1", sequence=5, log=LSN, after=(0,))
    source.add(("t.a", 0), Skipped("NO_KEY", commit, "a"))
    assert [(r.tie_breaker, r.count) for r in source.released()] == [(4, 4)]


def test_a_topic_that_the_source_gets_later_is_released_from_its_beginning() -> None:
    """SRC-2, nothing_lost: its rows are of transactions that were released without them."""
    source = Source(by_transaction())
    for number in range(1, 4):
        source.row(number, 1)
        source.end(number, 1)
    assert len(source.released()) == 3
    later = ("t.b", 0)
    for number in (1, 2):
        commit = Commit(transaction=str(number), sequence=2, log=LSN, after=(10 * number - 10,))
        source.add(later, Row(table="b", commit=commit, key={"id": number}))
    killed = again(source)
    killed.next[later] = 0
    for number in (1, 2, 4):
        commit = Commit(transaction=str(number), sequence=1, log=LSN, after=(10 * number - 10,))
        killed.add(later, Row(table="b", commit=commit, key={"id": number}))
    killed.end(4, 1)
    released = killed.released()
    assert [(r.event.commit.transaction, r.count) for r in released] == [
        ("1", 0),
        ("2", 0),
        ("4", 1),
    ]
    repeated = again(killed)
    commit = Commit(transaction="2", sequence=2, log=LSN, after=(10,))
    repeated.add(later, Row(table="b", commit=commit, key={"id": 2}))
    assert repeated.released() == []
    assert repeated.sequencer.repetitions == 1


def test_a_killed_bridge_knows_that_a_topic_has_grown() -> None:
    """SRC-2, resumable, newest_wins: the end offsets were not asked for before it died. An older
    row of an incremental snapshot is released before a newer transaction.
    """
    source = Source(by_transaction())
    source.row(1, 1)
    source.end(1, 1)
    assert len(source.released()) == 1
    source.add(("t.a", 2), Skipped("TOMBSTONE"))  # a Kafka partition that is new
    assert SourcePosition.parse(source.sequencer.token({})).grown == ("t.a",)
    killed = again(source)
    commit = Commit(time=NOW, log=LSN, after=(10,))
    snapshot = Row(table="a", commit=commit, key={"id": 1}, is_snapshot=True, is_incremental=True)
    killed.next["t.a", 0] += 1  # the row of the snapshot, which is read later
    killed.row(2, 1, partition=2)
    killed.end(2, 1)
    assert killed.released() == []
    killed.next["t.a", 0] -= 1
    killed.add(("t.a", 0), snapshot)
    assert [r.event.is_snapshot for r in killed.released()] == [True, False]


def test_events_that_kafka_deleted_before_the_first_start_are_not_waited_for() -> None:
    """SRC-2: the retention of topics ends at different transactions."""
    source = Source(by_transaction())
    source.end(1, 1)
    source.next["t.a", 0] = 70
    source.row(2, 3)
    source.end(2, 3)
    source.row(3, 1)
    source.end(3, 1)
    source.next["t.a", 1] = 0
    assert numbers(source.released()) == [("2", 3), ("3", 1)]
    source.end(4, 1)
    assert source.released() == []
    assert source.sequencer.waiting is not None


def test_a_transaction_whose_end_is_missing_waits_until_an_operator_skips_it() -> None:
    """SRC-2, nothing_lost: it has no count, so it is not known whether it is whole."""
    source = Source(by_transaction())
    source.row(1, 1)
    source.end(1, 1)
    source.released()
    source.row(2, 1)
    source.row(3, 1)
    source.end(3, 1)
    assert source.released() == []
    waiting = source.sequencer.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.transaction) == ("end", "2")
    assert isinstance(source.sequencer, ByTransaction)
    assert source.sequencer.skip("2")
    released = source.released()
    assert [(r.event.commit.transaction, r.count) for r in released] == [("2", 0), ("3", 1)]
    assert released[0].commit_timestamp < released[1].commit_timestamp


def test_a_log_that_began_again_does_not_wait_for_later_transactions() -> None:
    """SRC-2: its positions are smaller. Only the first transaction waits for the ends behind it."""
    source = Source(by_transaction())
    source.row(70, 1)
    source.end(70, 1)
    source.released()
    later = NOW + 60_000_000

    def row(number: int) -> None:
        commit = Commit(
            time=later, transaction=f"n{number}", sequence=1, log=LSN, after=(10 * number - 10,)
        )
        source.add(("t.a", number % 2), Row(table="a", commit=commit, key={"id": 1}))

    def end(number: int) -> None:
        commit = Commit(time=later, transaction=f"n{number}", log=LSN, after=(10 * number,))
        source.add((ENDS, 0), End(commit, 1))

    row(1)
    end(1)
    assert numbers(source.released(later)) == [("n1", 1)]
    row(2)
    row(3)  # its end is not written yet
    end(2)
    assert numbers(source.released(later)) == [("n2", 1)]


def test_two_events_with_one_number_wait_also_if_one_cannot_be_read() -> None:
    """SRC-2, `nothing_lost`: a Debezium before 3.6.1 has died within the transaction, and counts
    the second event from 1 again.
    """
    source = Source(by_transaction())
    commit = Commit(time=NOW, transaction="1", sequence=1, log=LSN, after=(0,))
    source.add(("t.a", 0), Poison("UNREADABLE", "broken", commit))
    row = Row(table="a", commit=replace(commit, at=(5,)), key={"id": 1})
    source.add(("t.a", 0), row)
    source.end(1, 1)
    assert source.released() == []
    waiting = source.sequencer.waiting
    assert waiting is not None
    assert waiting.reason == "count"


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_event_that_is_counted_again_behind_another_one_waits(is_killed: bool) -> None:
    """SRC-2, `nothing_lost`: the first event is of a table that is not read, and a Debezium before
    3.6.1 has died before the last one. The third event is read late.
    """
    source = Source(by_transaction(reads=lambda table: table == "a"))

    def add(number: int, sequence: int, partition: int = 0) -> None:
        commit = Commit(
            time=NOW,
            transaction="1",
            sequence=sequence,
            log=LSN,
            after=(0,),
            at=(290 + number,),
            counts_again=True,
        )
        record = ForeignRecord(
            "t.a", partition, source.next["t.a", partition], NOW, b"%d" % number, b"x"
        )
        source.next[record.partition] += 1
        source.sequencer.add(record, Row(table="a", commit=commit, key={"id": number}))

    add(2, 2)
    add(4, 4)
    add(4, 1)
    source.end(1, 4, other=1, a=3)
    assert source.released() == []
    waiting = source.sequencer.waiting
    assert waiting is not None
    assert waiting.reason == "count"
    assert isinstance(source.sequencer, ByTransaction)
    assert source.sequencer.skip("1")
    assert len(source.released()) == 3
    if is_killed:
        source = again(source)
    add(4, 4)
    add(3, 3, partition=1)
    (late,) = source.released()
    assert isinstance(late.event, Poison)
    assert (late.event.rule, late.event.commit.at) == ("EVENT_LATE", (293,))


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_event_before_those_that_were_counted_again_is_a_dead_letter(is_killed: bool) -> None:
    """SRC-2, `nothing_lost`: a Debezium before 3.6.1 has died within the transaction, and counts
    its second event from 1 again. The first event is read when the transaction is released.
    """
    source = Source(by_transaction())
    commit = Commit(
        time=NOW,
        transaction="1",
        sequence=1,
        log=LSN,
        after=(0,),
        at=(5,),
        counts_again=True,
    )
    second = Row(table="a", commit=commit, key={"id": 2})
    first = Row(table="a", commit=replace(commit, at=(4,)), key={"id": 1})
    source.add(("t.a", 1), second)
    source.end(1, 1)
    assert numbers(source.released()) == [("1", 1)]
    if is_killed:
        source = again(source)
    source.add(("t.a", 1), second)
    source.add(("t.a", 0), first)
    (late,) = source.released()
    assert isinstance(late.event, Poison)
    assert (late.event.rule, late.event.commit.at) == ("EVENT_LATE", (4,))


def of_one_position(source: Source, keys: list[bytes]) -> None:
    """The events of a compressed transaction of MySQL, and its end."""
    commit = Commit(
        time=NOW,
        transaction="file=bin.1,pos=5",
        log=BINLOG,
        after=(1, 5),
        at=(1, 6, 0),
        counts_again=True,
    )
    for sequence, key in enumerate(keys, 1):
        record = ForeignRecord("t.a", 0, source.next["t.a", 0], NOW, key, b"x")
        source.next[record.partition] += 1
        row = Row(table="a", commit=replace(commit, sequence=sequence), key={"id": key})
        source.sequencer.add(record, row)
    source.add((ENDS, 0), End(replace(commit, after=(1, 6), at=()), len(keys)))


def test_two_events_of_a_row_at_the_only_position_of_a_transaction_are_two() -> None:
    """SRC-2: a compressed transaction of MySQL is not taken for one that was counted again."""
    source = Source(by_transaction())
    of_one_position(source, [b"a", b"b", b"a"])
    assert [r.tie_breaker for r in source.released()] == [1, 2, 3]


def test_a_token_has_the_keys_of_a_few_events_at_one_position() -> None:
    """SRC-1, `nothing_lost`: one of another key is a dead letter if it is sent again."""
    source = Source(by_transaction())
    keys = [b"%d" % number for number in range(MOST_KEYS + 4)]
    of_one_position(source, keys)
    assert len(source.released()) == len(keys)
    (up_to,) = by_partition(SourcePosition.parse(source.sequencer.token({})).read_up_to).values()
    assert len(up_to.keys) == MOST_KEYS
    source = again(source)
    of_one_position(source, keys)
    assert [getattr(r.event, "rule", "") for r in source.released()] == ["EVENT_LATE"] * 4


@pytest.mark.parametrize("limits", [(4, 10**6), (10**6, 400)])
def test_a_full_queue_is_full_until_it_is_half_empty(limits: tuple[int, int]) -> None:
    """SRC-2: its Kafka partition is not paused and resumed for each event."""
    queue = PartitionQueue(("t.a", 0), 0)
    are_full = list[bool]()
    for offset in range(4):
        record = ForeignRecord("t.a", 0, offset, NOW, None, b"x" * 100)
        queue.append(Entry(record, Skipped("NO_KEY"), "1"), limits)
        are_full.append(queue.is_full)
    for _ in range(3):
        queue.take(0, limits)
        are_full.append(queue.is_full)
    assert are_full == [False, False, False, True, True, False, False]


def test_a_truncation_that_a_transaction_lacked_is_a_dead_letter_in_another_partition() -> None:
    """SRC-2, `nothing_lost`: an operator published the transaction without it. A Debezium before
    3.6.1 sends it to a partition that has later events.
    """
    source = Source(by_transaction())
    commit = Commit(
        time=NOW, transaction="1", sequence=1, log=LSN, after=(0,), at=(5,), counts_again=True
    )
    later = replace(commit, transaction="2", after=(10,), at=(15,))
    source.add(("t.a", 0), Row(table="a", commit=commit, key={"id": 1}))
    source.end(1, 2)
    assert source.released() == []
    assert isinstance(source.sequencer, ByTransaction)
    assert source.sequencer.skip("1")
    assert numbers(source.released()) == [("1", 1)]
    source.add(("t.a", 0), Row(table="a", commit=later, key={"id": 1}))
    source.add(("t.a", 0), TruncatedTable("a", replace(commit, sequence=2, at=(6,))))
    source.end(2, 1)
    assert [type(r.event) for r in source.released()] == [Row, Poison]


def test_a_row_of_a_second_snapshot_waits_for_what_was_sent_before_it() -> None:
    """SRC-2, `newest_wins`: Debezium has lost the insert of the row, and sends an older truncation
    in another Kafka partition.
    """
    source = Source(by_transaction())
    source.row(1, 1)
    source.end(1, 1)
    source.released()
    row = Row(table="a", commit=Commit(time=NOW), key={"id": 2}, is_snapshot=True)
    source.add(("t.a", 1), row, time=NOW + 1_000)
    source.end(2, 1)
    assert source.released() == []
    commit = Commit(time=NOW, transaction="2", sequence=1, log=LSN, after=(10,))
    source.add(("t.a", 0), TruncatedTable("a", commit))
    truncated, read = source.released()
    assert (truncated.event.commit.transaction, read.event) == ("2", row)
    assert truncated.commit_timestamp < read.commit_timestamp


def test_status_names_a_row_of_a_snapshot_that_waits() -> None:
    """SRC-8: the newest transaction that was sent before it has no end yet."""
    source = Source(by_transaction())
    source.row(1, 1)
    source.end(1, 1)
    source.released()
    incremental(source, after=20)
    assert source.released() == []
    waiting = source.sequencer.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.transaction) == ("row", "t.a/0/1")
    assert "the row t.a/0/1" in text_of_waiting(waiting, NOW)


def incremental(source: Source, *, after: int, time: int = NOW) -> None:
    commit = Commit(time=time, log=LSN, after=(after,))
    row = Row(table="a", commit=commit, key={"id": 1}, is_snapshot=True, is_incremental=True)
    source.add(("t.a", 0), row, time=time)


def test_a_row_at_the_position_of_the_newest_end_waits_for_ends_that_are_unread() -> None:
    """SRC-2, `newest_wins`: the log may have begun again, so the position may be of the new one."""
    source = Source(by_transaction())
    source.row(1, 1)
    source.end(1, 1)
    source.released()
    source.next[ENDS, 0] = 2  # Kafka has another end
    incremental(source, after=10, time=NOW + 20_000_000)
    assert source.released() == []
    source.next[ENDS, 0] = 1
    source.row(2, 1, partition=1)
    source.end(2, 1)
    first, read = source.released()
    assert (first.event.commit.transaction, read.record.offset) == ("2", 1)


@pytest.mark.parametrize(("position", "order"), [(50, ["30", ""]), (20, ["", "30"])])
def test_a_row_of_a_topic_that_has_grown_has_its_place_in_the_binary_log(
    position: int, order: list[str]
) -> None:
    """SRC-2, `newest_wins`: an older event of its key may be in another Kafka partition."""
    source = Source(by_transaction())
    send(source, BINLOG, 10, 60)
    assert len(source.released()) == 1
    source.add(("t.a", 2), Skipped("TOMBSTONE"))  # a Kafka partition that is new
    commit = Commit(time=NOW - 40_000_000, at=(1, position, 0))
    row = Row(table="a", commit=commit, key={"id": 1}, is_snapshot=True, is_incremental=True)
    source.add(("t.a", 0), row)
    of_next = commit_of(BINLOG, 30, 40)
    source.add((ENDS, 0), End(replace(of_next, after=(1, 31), at=(), sequence=0), 1))
    source.next["t.a", 2] += 1  # the event of that transaction, which is read later
    released = source.released()
    source.next["t.a", 2] -= 1
    source.add(("t.a", 2), Row(table="a", commit=of_next, key={"id": 1}))
    released += source.released(NOW + 60_000_000)
    assert [r.event.commit.transaction[-2:] for r in released] == order


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_read_again", [False, True])
def test_rows_of_another_snapshot_separate_two_logs(is_read_again: bool, is_killed: bool) -> None:
    """SRC-2, `newest_wins`: the log begins again at smaller positions, and the clock does not go
    on. A row of an incremental snapshot has a position that both logs may have. Rows of another
    snapshot between show the log. Without them, the bridge stops.
    """
    source = Source(by_transaction())
    source.row(70, 1)
    source.end(70, 1)
    source.released()
    if is_read_again:
        row = Row(table="a", commit=Commit(time=NOW), key={"id": 3}, is_snapshot=True)
        source.add(("t.a", 1), row, time=NOW + 2_000)
        assert len(source.released()) == 1
    if is_killed:
        source = again(source)
    incremental(source, after=650, time=NOW + 1_000)
    for number in (1, 2):
        source.row(number, 1)
        commit = Commit(time=NOW + 3_000, transaction=str(number), log=LSN, after=(10 * number,))
        source.add((ENDS, 0), End(commit, 1), time=NOW + 3_000)
    if is_read_again:
        assert numbers(source.released()) == [("", 0), ("1", 1), ("2", 1)]
    else:
        with pytest.raises(TopicError, match="has no known place") as stopped:
            source.released()
        assert stopped.value.code == "SOURCE_LOG_BEGAN_AGAIN"


@pytest.mark.parametrize("is_truncated_again", [False, True])
def test_a_binary_log_with_truncations_that_begins_again_under_an_older_clock_stops(
    is_truncated_again: bool,
) -> None:
    """SRC-2, `newest_wins`: nothing tells which truncations are of the old log, also if the new one
    begins with a truncation. That is a dead letter.
    """
    source = Source(by_transaction())

    def send(at: int, time_s: int, *, truncates: bool = False) -> None:
        time, name = NOW + time_s * 1_000_000, f"file=bin.1,pos={at}"
        commit = Commit(
            time=time, sequence=1, log=BINLOG, after=(1, at), at=(1, at + 1, 0), log_position=name
        )
        if truncates:
            source.add(("t.a", 0), TruncatedTable("a", commit))
            return
        commit = replace(commit, transaction=name)
        source.add(("t.a", 0), Row(table="a", commit=commit, key={"id": 1}))
        source.add((ENDS, 0), End(replace(commit, after=(1, at + 1)), 1))

    send(1000, -5)
    send(1100, -4, truncates=True)
    send(1200, -4)
    assert [type(r.event) for r in source.released()] == [Row, TruncatedTable, Row]
    if is_truncated_again:
        send(30, -60, truncates=True)
    send(50, -60)
    with pytest.raises(TopicError, match="the clock of the database did not go on"):
        source.released()


def commit_of(log: str, number: int, age_s: int) -> Commit:
    """The commit of an event, without GTIDs or with them."""
    name = {BINLOG: f"file=bin.1,pos={number}", "A": f"A:{number}", "0": f"0-1-{number}"}[log]
    after = (1, number) if log == BINLOG else (number,)
    time = NOW - age_s * 1_000_000
    return Commit(time=time, transaction=name, sequence=1, log=log, after=after, at=(1, number, 0))


def send(source: Source, log: str, number: int, age_s: int, *, key: int = 1) -> None:
    commit = commit_of(log, number, age_s)
    source.add(("t.a", 0), Row(table="a", commit=commit, key={"id": key}))
    after = (*commit.after[:-1], commit.after[-1] + 1)
    source.add((ENDS, 0), End(replace(commit, after=after, at=(), sequence=0), 1))


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_released", [False, True])
@pytest.mark.parametrize("log", [BINLOG, "A", "0"])
def test_a_log_that_begins_again_with_an_id_in_its_second_stops(
    log: str, is_released: bool, is_killed: bool
) -> None:
    """SRC-2, `nothing_lost`: the clock goes back, and the new log has an id of the old one in the
    same second. It is no repetition, because the newest transaction does not follow.
    """
    source = Source(by_transaction())
    for number in (10, 20, 30):
        send(source, log, number, 60 - number)
    if is_released:
        assert len(source.released()) == 3
    send(source, log, 10, 50, key=2)
    source.released()
    waiting = source.sequencer.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.transaction) == (
        "again",
        commit_of(log, 10, 50).transaction,
    )
    if is_killed:
        source = again(source)
        send(source, log, 10, 50, key=2)
    number = 15 if log == BINLOG else 20
    with pytest.raises(TopicError, match="and that did not come") as stopped:
        send(source, log, number, 45)
    assert stopped.value.code == "SOURCE_LOG_BEGAN_AGAIN"


@pytest.mark.parametrize(
    ("log", "repeated"),
    [
        (BINLOG, (10, 20, 10, 20, 30)),
        ("A", (20, 30)),
        ("A", (20, 30, 20)),  # a replica that became the primary has another order
        ("0", (30,)),
    ],
)
def test_transactions_that_are_sent_again_up_to_the_newest_are_repetitions(
    log: str, repeated: tuple[int, ...]
) -> None:
    """SRC-2, `resumable`: each is published once."""
    source = Source(by_transaction())
    for number in (10, 20, 30):
        send(source, log, number, 60 - number)
    assert len(source.released()) == 3
    for number in repeated:
        send(source, log, number, 60 - number)
        assert source.released() == []
    send(source, log, 40, 20)
    assert numbers(source.released()) == [(commit_of(log, 40, 20).transaction, 1)]


def test_an_end_that_comes_behind_its_transaction_is_the_newest() -> None:
    """SRC-2, `resumable`: an operator published the transaction without it."""
    source, commit = Source(by_transaction()), commit_of(BINLOG, 20, 40)
    send(source, BINLOG, 10, 50)
    source.released()
    source.add(("t.a", 0), Row(table="a", commit=commit, key={"id": 1}))
    later = NOW + 60_000_000
    source.released(later)
    assert isinstance(source.sequencer, ByTransaction)
    assert source.sequencer.skip(commit.transaction)
    assert numbers(source.released(later)) == [(commit.transaction, 1)]
    source.add((ENDS, 0), End(replace(commit, after=(1, 21), at=(), sequence=0), 1))
    send(source, BINLOG, 30, 30)
    assert numbers(source.released(later)) == [(commit_of(BINLOG, 30, 30).transaction, 1)]


def test_later_transactions_that_fill_a_queue_release_no_part_of_one_that_lacks_an_event() -> None:
    """SRC-2, SRC-8: it fits into the queues, and an operator can publish it as it is."""
    source = Source(by_transaction(most_records=4))
    source.end(1, 3)
    source.row(1, 1)
    source.row(1, 2)
    for number in (2, 3):
        source.row(number, 1)
        source.end(number, 1)
    assert source.sequencer.full == [("t.a", 0)]
    assert source.released() == []
    waiting = source.sequencer.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.transaction, waiting.missing) == ("events", "1", 1)
    assert source.sequencer.skip("1")
    assert numbers(source.released()) == [("1", 1), ("1", 2), ("2", 1), ("3", 1)]


def test_a_transaction_without_an_end_waits_in_front_of_one_that_fills_a_queue() -> None:
    """SRC-2, `nothing_lost`: none of its events is published without the others."""
    source = Source(by_transaction(most_records=4))
    source.row(1, 1)
    source.end(1, 1)
    source.released()
    for number in (2, 3):
        source.row(number, 1)
        source.row(number, 2)
    source.end(3, 6)
    assert source.released() == []
    waiting = source.sequencer.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.transaction) == ("end", "2")


def test_a_transaction_without_an_end_waits_in_front_of_a_truncation() -> None:
    """SRC-2, `nothing_lost`: with GTIDs, the next end may have no position in the binary log."""
    source = Source(by_transaction())

    def commit(number: int) -> Commit:
        at = (1, 100 * number, 0)
        name = f"A:{number}"
        return Commit(
            time=NOW,
            transaction=name,
            sequence=1,
            log="A",
            after=(number,),
            at=at,
            log_position=name,
        )

    def end(number: int) -> None:
        at_end = replace(commit(number), after=(number + 1,), at=())
        source.add((ENDS, 0), End(at_end, 1, {"a": 1}))

    source.add(("t.a", 0), Row(table="a", commit=commit(1), key={"id": 1}))
    end(1)
    assert len(source.released()) == 1
    source.add(("t.a", 0), Row(table="a", commit=commit(2), key={"id": 1}))
    source.add(("t.a", 0), TruncatedTable("a", replace(commit(3), transaction="")))
    end(4)
    assert source.released() == []
    waiting = source.sequencer.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.transaction) == ("end", "A:2")


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_truncation_that_was_sent_to_two_partitions_has_the_place_of_its_first_copy(
    is_ahead: bool,
) -> None:
    """SRC-2, `resumable`, `newest_wins`: the later copy is read first, behind a later transaction.
    The bridge is killed, and does not publish that transaction before it has the truncation. Also
    if the clock of the database is ahead, the order of reading changes no commit timestamp.
    """

    def commit(at: int) -> Commit:
        time, name = NOW + is_ahead * 1_000_000, f"file=bin.1,pos={at}"
        after, place = (1, at), (1, at + 1, 0)
        return Commit(time=time, sequence=1, log=BINLOG, after=after, at=place, log_position=name)

    truncated = TruncatedTable("a", commit(20))
    commits = [replace(commit(at), transaction=str(at)) for at in (10, 30)]
    first, later = (Row(table="a", commit=c, key={"id": 1}) for c in commits)
    first_end, later_end = (End(replace(c, after=(1, c.after[1] + 1)), 1) for c in commits)
    source = Source(by_transaction())
    source.add(("t.a", 0), first)
    source.add((ENDS, 0), first_end)
    released = source.released()
    assert [r.event for r in released] == [first]

    source.add(("t.a", 0), later, time=NOW + 20)
    source.add(("t.a", 0), truncated, time=NOW + 40)
    source.add(("t.a", 1), truncated, time=NOW + 10)
    ends = {**source.next, (ENDS, 0): 2}
    source = again(source)
    assert source.next == {("t.a", 0): 1, ("t.a", 1): 0, (ENDS, 0): 1}
    source.add(("t.a", 0), later, time=NOW + 20)
    source.add((ENDS, 0), later_end, time=NOW + 20)
    source.sequencer.ends(ends)
    assert source.released() == []
    source.add(("t.a", 0), truncated, time=NOW + 40)
    source.add(("t.a", 1), truncated, time=NOW + 10)
    released += source.released()
    assert [type(r.event) for r in released] == [Row, TruncatedTable, Row]
    times = [r.commit_timestamp for r in released]
    assert times == ([NOW, NOW + 10, NOW + 20] if is_ahead else [NOW, NOW + 2, NOW + 4])
    assert source.sequencer.starts == {("t.a", 0): 3, ("t.a", 1): 1, (ENDS, 0): 2}


@pytest.mark.parametrize(("partition_of_later", "sent_at"), [(2, 10), (1, 40), (0, 10)])
def test_a_truncation_has_the_time_of_its_first_copy_in_each_order_of_reading(
    partition_of_later: int, sent_at: int
) -> None:
    """SRC-2, `resumable`: the clock of the database is ahead, so Kafka's time counts. A copy behind
    a later transaction in its partition does not count.
    """

    def commit(at: int, transaction: str = "") -> Commit:
        after, place = (1, at), (1, at + 1, 0)
        log = {"log": BINLOG, "log_position": f"file=bin.1,pos={at}"}
        return Commit(
            time=NOW + S, transaction=transaction, sequence=1, after=after, at=place, **log
        )

    first, later = (Row(table="a", commit=commit(at, str(at)), key={"id": 1}) for at in (10, 30))
    ends = [
        End(replace(one.commit, after=(1, one.commit.after[1] + 1)), 1) for one in (first, later)
    ]
    for order in ((0, 1), (1, 0)):
        source = Source(by_transaction())
        source.add(("t.a", 0), first)
        source.add((ENDS, 0), ends[0])
        released = source.released()
        source.add(("t.a", partition_of_later), later, time=NOW + 5)
        for partition in order:
            copy = TruncatedTable("a", commit(20))
            source.add(("t.a", partition), copy, time=NOW + (40, 10)[partition])
        source.add((ENDS, 0), ends[1], time=NOW + 50)
        released += source.released()
        times = [r.commit_timestamp for r in released if isinstance(r.event, TruncatedTable)]
        assert times == [NOW + sent_at], order


@pytest.mark.parametrize(("partition", "sent_at"), [(0, 10), (1, 3_000_000)])
def test_a_truncation_behind_a_later_transaction_is_a_dead_letter_in_each_order_of_reading(
    partition: int, sent_at: int
) -> None:
    """SRC-2, `resumable`: Kafka lost it, and got it again behind an event of that transaction in
    its partition, or behind the end of that transaction. A bridge may read it first, or publish
    that transaction before it, and be killed. Its other copy is then no second letter.
    """

    def commit(at: int) -> Commit:
        after, place = (1, at), (1, at + 1, 0)
        name = f"file=bin.1,pos={at}"
        return Commit(time=NOW, sequence=1, log=BINLOG, after=after, at=place, log_position=name)

    later = replace(commit(30), transaction="30")
    row = Row(table="a", commit=later, key={"id": 1})
    end = End(replace(later, after=(1, 31)), 1)
    truncated = TruncatedTable("a", commit(20))
    found = []
    for is_first in (True, False):
        source = Source(by_transaction())
        assert source.released() == []
        source.add(("t.a", 0), row)
        if is_first:
            source.add(("t.a", partition), truncated, time=NOW + sent_at)
        source.add((ENDS, 0), end, time=NOW + 20)
        released = source.released()
        if not is_first:
            source.add(("t.a", partition), truncated, time=NOW + sent_at)
        source.add(("t.a", 1), truncated, time=NOW + 2 * sent_at)
        released += source.released()
        found.append({r.commit_timestamp: r.event for r in released if r.event is row})
        letters = [r.event for r in released if r.event is not row]
        assert [type(letter) for letter in letters] == [Poison]
        assert {getattr(letter, "rule", "") for letter in letters} == {"TRUNCATION_LATE"}
        assert source.sequencer.repetitions == 1
    assert found == [{NOW: row}] * 2


def test_a_truncation_does_not_wait_for_the_first_end() -> None:
    """SRC-2: it is released 10 s after all was read, also if the transaction topic is empty."""
    source = Source(by_transaction())
    name = "file=bin.1,pos=20"
    commit = Commit(time=NOW, log=BINLOG, after=(1, 20), at=(1, 21, 0), log_position=name)
    source.add(("t.a", 0), TruncatedTable("a", commit))
    assert source.released() == []
    assert [type(r.event) for r in source.released(NOW + 10_000_000)] == [TruncatedTable]
    assert source.sequencer.waiting is None


@pytest.mark.parametrize(
    ("sent_at", "is_skipped", "start"), [(10, False, 0), (40, False, 2), (10, True, 2)]
)
def test_an_event_that_waits_is_read_again_from_its_first_copy(
    sent_at: int, is_skipped: bool, start: int
) -> None:
    """SRC-2: a copy that was sent before the one that waits keeps its place. A later one does not,
    and none of an event that is left out. When the transaction is released, it is released once.
    """
    source = Source(by_transaction())
    commit = Commit(time=NOW, transaction="1", sequence=1, log=LSN, after=(0,))
    row: Event = Row(table="a", commit=commit, key={"id": 1})
    if is_skipped:
        row = Skipped("NO_KEY", commit, "a")
    source.add(("t.a", 0), row, time=NOW + 30)
    source.add(("t.a", 1), row, time=NOW + sent_at)
    source.add(("t.a", 1), row, time=NOW + 50)
    assert source.sequencer.starts["t.a", 1] == start
    assert source.sequencer.repetitions == 2
    source.end(1, 1)
    assert numbers(source.released()) == [("1", 1)] * (not is_skipped)
    assert source.sequencer.starts == {("t.a", 0): 1, ("t.a", 1): 2, (ENDS, 0): 1}


def test_a_copy_of_an_event_that_is_released_keeps_no_place() -> None:
    """SRC-2: a large transaction is released in parts, and some of its queues are empty."""
    source = Source(by_transaction(most_records=2))
    source.row(1, 1)
    source.row(1, 2, partition=1)
    source.row(1, 3, partition=1)
    source.end(1, 5)
    assert numbers(source.released()) == [("1", 1), ("1", 2)]
    commit = Commit(time=NOW, transaction="1", sequence=1, log=LSN, after=(0,))
    source.add(("t.a", 2), Row(table="a", commit=commit, key={"id": 1}), time=NOW - 1)
    assert source.sequencer.repetitions == 1
    assert source.sequencer.starts["t.a", 2] == 1


def test_an_event_of_another_time_is_no_repetition_of_one_that_waits() -> None:
    """SRC-2, `nothing_lost`: a log that began again has the same ids, sequences and positions. A
    killed bridge reads the event again.
    """
    source = Source(by_transaction())
    for number, partition in ((0, 0), (0, 0), (1, 1)):
        time, at = NOW + 60_000_000 * number, (1, 5, 0)
        commit = Commit(time=time, transaction="A:1", sequence=1, log="A", after=(1,), at=at)
        source.add(("t.a", partition), Row(table="a", commit=commit, key={"id": 1}))
    assert source.sequencer.repetitions == 1
    assert source.sequencer.starts["t.a", 1] == 0


def test_without_ends_a_repetition_may_be_a_little_later_than_the_newest_event() -> None:
    """SRC-2, SRC-4, `newest_wins`: PostgreSQL's commit times do not rise with its positions."""
    source = Source(ByPartition(max_clock_skew_s=SKEW_S))
    source.sequencer.ends({})
    times = {1: NOW - 900, 2: NOW, 3: NOW - 300}
    for number in (1, 2, 3, 1, 2, 3):
        commit = Commit(time=times[number], log=LSN, after=(number,))
        source.add(("t.a", 0), Row(table="a", commit=commit, key={"id": 1}))
    assert [r.event.commit.after for r in source.released()] == [(1,), (2,), (3,), (3,)]


@pytest.mark.parametrize("is_repeated", [False, True])
def test_without_ends_events_are_repetitions_only_if_the_newest_one_follows(
    is_repeated: bool,
) -> None:
    """SRC-2, SRC-4, `nothing_lost`: a binary log begins again under a clock that went back, and an
    event has the position of the newest one.
    """
    source = Source(ByPartition(max_clock_skew_s=SKEW_S))
    source.sequencer.ends({})
    ages = [(500, 5), (100, 3), (300, 3), (500, 5 if is_repeated else 4), (600, 2)]
    if is_repeated:
        ages[1:1] = [(500, 5)]
        ages[2:4] = [(100, 6), (300, 6)]
    for position, age_s in ages:
        place = (1, position)
        commit = Commit(time=NOW - age_s * 1_000_000, log=BINLOG, after=place, at=(*place, 0))
        source.add(("t.a", 0), Row(table="a", commit=commit, key={"id": 1}))
    released = [r.event.commit.after[1] for r in source.released()]
    assert released == ([500, 600] if is_repeated else [500, 100, 300, 500, 600])
    assert source.sequencer.repetitions == (4 if is_repeated else 0)


def test_an_end_that_kafka_deleted_before_the_first_start_is_not_waited_for() -> None:
    """SRC-2: the events of its transaction are released without one."""
    source = Source(by_transaction())
    commit = Commit(time=NOW, transaction="1", sequence=1, log=LSN, after=(0,))
    record = ForeignRecord("t.a", 0, 0, NOW - 1, None, b"x")
    source.sequencer.add(record, Row(table="a", commit=commit, key={"id": 1}))
    source.next["t.a", 0] = 1
    source.row(2, 1)
    source.end(2, 1)
    assert [(r.event.commit.transaction, r.count) for r in source.released()] == [
        ("1", 0),
        ("2", 1),
    ]


def test_an_event_of_a_transaction_that_was_skipped_is_released_when_it_comes() -> None:
    """SRC-2, nothing_lost: also after a kill, and once."""
    source = Source(by_transaction())
    assert isinstance(source.sequencer, ByTransaction)
    assert not source.sequencer.skip("1"), "nothing waits"
    source.row(1, 1)
    source.end(1, 2)
    assert source.released() == []
    assert not source.sequencer.skip("7")
    assert source.sequencer.skip("1")
    (released,) = source.released()
    assert released.count == 1, "so it is no transaction that lacks records (ING-2)"
    killed = again(source)
    killed.row(1, 2)
    killed.row(1, 2)
    killed.row(1, 1)
    (late,) = killed.released()
    assert (late.event.commit.sequence, late.count) == (2, 0)
    assert late.commit_timestamp > released.commit_timestamp


def test_a_transaction_whose_events_were_not_read_is_not_skipped() -> None:
    """SRC-8, cut_is_consistent: the events are in Kafka, so they come."""
    source = Source(by_transaction())
    source.row(1, 1)
    source.end(1, 1)
    assert len(source.released()) == 1
    source.end(2, 2)
    source.next["t.a", 0] += 2  # its events, which the bridge reads later
    source.released()
    assert not source.sequencer.skip("2"), "the end offsets are not known"
    assert source.sequencer.wants_ends
    source.released()
    assert not source.sequencer.skip("2"), "they are known"
    assert not source.sequencer.wants_ends
    source.next["t.a", 0] -= 2
    source.row(2, 1)
    source.row(2, 2)
    assert numbers(source.released()) == [("2", 1), ("2", 2)]


def test_transactions_that_lacked_events_take_a_bounded_part_of_a_token() -> None:
    """SRC-1: the bridge forgets the oldest ones, and does not stop."""
    source = Source(by_transaction(most_records=10**6, most_bytes=10**9))
    bits = random.Random(1)
    for number in range(1, 5):
        for sequence in range(1, 65_000):
            if bits.random() < 0.5:
                source.row(number, sequence)
        source.end(number, 65_000)
        source.released()
        if not source.sequencer.skip(str(number)):  # it asks for the end offsets first
            source.released()
            assert source.sequencer.skip(str(number))
        source.released()
    token = source.sequencer.token({})
    assert len(token) < MAX_RESUME_TOKEN_BYTES // 2
    assert list(SourcePosition.parse(token).unfilled) == ["3", "4"]


@pytest.mark.parametrize(
    ("commit_time", "record_time", "least"),
    [(5, 9, 5), (9, 5, 5), (0, 5, 5), (-5, 5, 5), (7, 0, 7), (0, 0, 1), (-5, 0, 1)],
)
def test_a_commit_time_is_positive_and_not_after_the_time_of_kafka(
    commit_time: int, record_time: int, least: int
) -> None:
    """SRC-2. A time that is missing or before 1970 does not stop the bridge."""
    record = ForeignRecord("t.a", 0, 0, record_time, None, None)
    assert least_time(record, Commit(time=commit_time)) == least


def test_an_end_that_cannot_be_read_is_poison() -> None:
    """SRC-6: its rows are released before the next transaction."""
    source = Source(by_transaction())
    source.row(1, 1)
    source.end(1, 1)
    source.row(2, 1)
    source.add((ENDS, 0), Poison("UNREADABLE", "broken"))
    source.row(3, 1)
    source.end(3, 1)
    released = [(type(r.event).__name__, r.count) for r in source.released()]
    assert released == [("Row", 1), ("Poison", 0), ("Row", 0), ("Row", 1)]


@pytest.mark.parametrize(
    ("shown", "counts"), [(1, {}), (1, {"a": 2}), (0, {}), (0, {"a": 2}), (0, {"a": 1, "b": 1})]
)
def test_poison_takes_the_place_of_events_that_a_transaction_lacks(
    shown: int, counts: dict[str, int]
) -> None:
    """SRC-6: also if its end has no counts by table, or no event shows a table of the topic."""
    source = Source(by_transaction())
    for sequence in range(1, shown + 1):
        source.row(1, sequence)
    for _ in range(2 - shown):
        source.add(("t.a", 0), Poison("UNREADABLE", "broken"))
    source.end(1, 2, **counts)
    released = source.released()
    assert [type(r.event) for r in released] == [Row] * shown + [Poison] * (2 - shown)
    assert [r.count for r in released] == [2, 2]


def test_a_token_has_room_for_thousands_of_partitions() -> None:
    """SRC-1: a resume token has at most 64 KB."""
    starts = {
        (f"dbz.public.table_{n}", k): 7919 * n * k % 10**9 for n in range(700) for k in range(6)
    }
    position = SourcePosition(
        starts=by_number(starts),
        topic_ids={f"dbz.public.table_{n}": f"{n:022}" for n in range(700)},
        recent=tuple(Remembered(str(7000 + n), NOW + 7 * n, LSN, (91 * n,)) for n in range(100)),
    )
    assert len(position.token()) < MAX_RESUME_TOKEN_BYTES / 2
    assert SourcePosition.parse(position.token()) == position


def test_a_token_of_an_earlier_release_gives_its_position() -> None:
    """SRC-1, resumable: it remembered ids without times. No finished transaction is sent again."""
    stored = {
        "starts": {"t.a": {"0": 3}, ENDS: {"0": 2}},
        "topic_ids": {"t.a": "id"},
        "time": NOW + 2,
        "end": [20],
        "recent": ["1", "2"],
        "joined": {"t.a": [10]},
    }
    token = b"1" + zlib.compress(json.dumps(stored).encode())
    position = SourcePosition.parse(token)
    assert (position.time, position.ends, position.joined) == (NOW + 2, {LSN: (20,)}, ("t.a",))
    source = Source(by_transaction(replace(position, joined=())))
    source.next = dict(source.sequencer.starts)
    source.row(2, 1)
    source.end(2, 1)
    source.row(3, 1)
    source.end(3, 1)
    assert numbers(source.released()) == [("3", 1)]
    assert SourcePosition.parse(source.sequencer.token({})).recent[-1].transaction == "3"


@pytest.mark.parametrize(
    "token", [b"", b"0", b"1", b"2x", b"3" + SourcePosition(starts={}).token()[1:]]
)
def test_a_token_of_another_program_is_refused(token: bytes) -> None:
    """SRC-1."""
    with pytest.raises(ValueError, match=r"\S"):
        SourcePosition.parse(token)


def test_an_idle_partition_claims_the_time_when_it_was_read_to_its_end() -> None:
    """SRC-4: otherwise it would hold the watermark of all."""
    source = Source(ByPartition(max_clock_skew_s=SKEW_S))
    del source.next[ENDS, 0]
    source.sequencer.ends(source.next)
    source.add(("t.a", 0), Row(table="a", commit=Commit(), key={"id": 1}))
    (released,) = source.sequencer.released(NOW + 5)
    assert released.commit_timestamp == NOW
    assert source.sequencer.wants_ends
    source.sequencer.ends(source.next)
    assert source.sequencer.has_claim
    assert source.sequencer.reached == NOW + 5
    source.add(("t.a", 1), Row(table="a", commit=Commit(), key={"id": 2}))
    assert list(source.sequencer.released(NOW + 6)) == []
    source.sequencer.claim_acknowledged()
    (later,) = source.sequencer.released(NOW + 6)
    assert later.commit_timestamp == NOW + 6
