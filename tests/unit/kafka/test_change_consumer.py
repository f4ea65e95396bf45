"""What a consumer makes of a stream, on librdkafka's mock cluster (SUB-1 to SUB-3, WRS-22).

The mock cluster knows no requests of topic administration. These are answered from what was sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from connector import cli
from connector.config.settings import KafkaConfig
from connector.errors import (
    BrokerError,
    ConfigError,
    ConnectorError,
    OutOfRangeError,
    TopicError,
)
from connector.kafka import (
    ChangeConsumer,
    CommitRange,
    ConsumerRecord,
    Group,
    Late,
    Rejected,
    Released,
    Staged,
    StreamSettings,
    TransactionConsumer,
    Watermark,
    WatermarkConsumer,
    WholeTransaction,
    client,
    topics,
)
from connector.kafka.consume import group
from connector.kafka.topics import TopicFacts
from connector.records.codec import encode, frame, framed
from connector.records.model import (
    CONTROL_KEY,
    ChildPartition,
    ChildPartitions,
    DataChange,
    Heartbeat,
    OffsetRange,
    Record,
    Release,
    Transaction,
    Truncate,
    WriteStreamOffset,
    kafka_key,
)
from connector.records.rejection import Position, Reason, Rejection
from connector.records.views import view_of_time
from connector.validation import Limits
from tests.changes import part
from tests.unit.mock_cluster import (
    HEARTBEAT,
    JOIN_GROUP,
    OFFSET_FETCH,
    QUICK_FETCH,
    SYNC_GROUP,
    MockCluster,
)
from tests.unit.test_validation import ABSURD_MS

FACTS = TopicFacts("t", "id", 2, 1, "delete", "LogAppendTime", 10**9, 1_000_000)
NOW = time.time_ns() // 1000
T0 = NOW - 1_000_000_000
"""A time of the source: 1,000 s ago."""
KAFKA_ERRORS = {
    value
    for name, value in vars(KafkaError).items()
    if name.strip("_").isupper() and isinstance(value, int) and value
}
QUICK_GROUP = {"session.timeout.ms": "3000", "heartbeat.interval.ms": "100", **QUICK_FETCH}
"""The mock cluster rebalances when a session times out."""


@dataclass
class Stream:
    """A topic whose records arrive when the test says. `deleted` is the first offset that is left,
    by Kafka partition.
    """

    cluster: MockCluster
    producer: Producer
    facts: TopicFacts = FACTS
    arrivals: list[list[int]] = field(default_factory=lambda: [[], []])
    deleted: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})

    @property
    def kafka(self) -> KafkaConfig:
        return self.cluster.kafka

    def send(self, *records: Record, k: int = 0, at: int = NOW) -> None:
        for record in records:
            value = framed(record, self.facts.kafka_partitions)
            self.producer.produce("t", value, kafka_key(record), k, timestamp=at // 1000)
        assert self.producer.flush(10) == 0
        self.arrivals[k].extend([at] * len(records))

    def send_raw(self, key: bytes, value: bytes, *, k: int = 0, at: int = NOW) -> None:
        self.producer.produce("t", value, key, k, timestamp=at // 1000)
        assert self.producer.flush(10) == 0
        self.arrivals[k].append(at)

    def everywhere(self, *records: Record, at: int = NOW) -> None:
        for k in (0, 1):
            self.send(*records, k=k, at=at)

    def ends(self) -> dict[int, int]:
        return {k: len(sent) for k, sent in enumerate(self.arrivals)}

    def offsets_at(self, at: int) -> dict[int, int]:
        yielded = {}
        for k, sent in enumerate(self.arrivals):
            later = (n for n, arrival in enumerate(sent) if arrival >= at and n >= self.deleted[k])
            yielded[k] = next(later, len(sent))
        return yielded


@pytest.fixture
def stream(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> Stream:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    made = Stream(cluster, producer)
    monkeypatch.setattr(client, "admin", lambda *_: None)
    monkeypatch.setattr(topics, "describe", lambda *_: made.facts)
    monkeypatch.setattr(topics, "end_offsets", lambda *_: made.ends())
    monkeypatch.setattr(topics, "beginning_offsets", lambda *_: dict(made.deleted))
    monkeypatch.setattr(topics, "offsets_at", lambda _, __, at: made.offsets_at(at))
    return made


def change(at: int, key: bytes = b"k", **of: Any) -> DataChange:
    return part(T0 + at, key, **of)


def beat(at: int) -> Heartbeat:
    return Heartbeat("p", T0 + at)


ANNOUNCED = ChildPartitions("root", T0, 0, (ChildPartition("p"),))


Yielded = ConsumerRecord | Watermark | WholeTransaction | Late | Rejected | Released | Staged
Both = type[WatermarkConsumer] | type[TransactionConsumer]


def times(yielded: Sequence[Yielded | None]) -> list[int | str]:
    """The changes by their commit timestamps, and all other items by their kind."""
    shown: list[int | str] = []
    for item in yielded:
        if isinstance(item, ConsumerRecord):
            record = item.record
            shown.append(
                record.commit_timestamp - T0
                if isinstance(record, DataChange)
                else type(record).__name__
            )
        elif isinstance(item, WholeTransaction):
            shown.append(item.commit_timestamp - T0)
        elif isinstance(item, Watermark):
            shown.append(f"< {item.low_watermark - T0}")
        else:
            shown.append(type(item).__name__)
    return shown


# ── records ───────────────────────────────────────────────────────────────────────────────────────


def test_records_come_as_before(stream: Stream) -> None:
    """REC-21."""
    stream.send(ANNOUNCED, change(3), beat(4))
    stream.send_raw(CONTROL_KEY, b"bad")
    with ChangeConsumer(stream.kafka, "t", bounded=True) as consumer:
        assert times(list(consumer)) == ["ChildPartitions", 3, "Heartbeat", "Rejection"]
        assert consumer.finished
        assert consumer.poll(0) is None
        assert consumer.positions == (Position("t", "id", 0, 3), Position("t", "id", 1, -1))
    with pytest.raises(ConfigError, match="a Kafka partition of t"):
        ChangeConsumer(stream.kafka, "t", kafka_partitions=[2])


DEAD_END = KafkaConfig("127.0.0.1:1")


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: WatermarkConsumer(DEAD_END, "t", start=Group("g"), kafka_partitions=[0]), "Group"),
        (
            lambda: ChangeConsumer(DEAD_END, "t", start=Group("g"), kafka_partitions=[0]),
            "a Group and kafka_partitions exclude each other",
        ),
        (
            lambda: WatermarkConsumer(DEAD_END, "t", start=Group("g"), commits=CommitRange()),
            "a Group and commits exclude each other",
        ),
        (
            lambda: WatermarkConsumer(DEAD_END, "t", start="end", commits=CommitRange(5)),
            "CommitRange.start and start exclude each other",
        ),
        (
            lambda: TransactionConsumer(
                DEAD_END, "t", start=Group("g", start="end"), commits=CommitRange(5)
            ),
            "CommitRange.start and start exclude each other",
        ),
        (
            lambda: WatermarkConsumer(DEAD_END, "t", staged=True, commits=CommitRange(5)),
            "CommitRange.start and staged exclude each other",
        ),
        (
            lambda: TransactionConsumer(DEAD_END, "t", staged=True, commits=CommitRange(5)),
            "CommitRange.start and staged exclude each other",
        ),
        (lambda: ChangeConsumer(DEAD_END, "t", start="now"), "The argument start is 'now'"),  # type: ignore[arg-type]
        (lambda: Group("g", start="now"), "The argument start is 'now'"),  # type: ignore[arg-type]
        (lambda: Group(""), "The argument group is ''. It must be a text of 1 to 255 printable"),
        (lambda: Group("\n"), "The argument group is"),
        (lambda: Group("a\ud800"), "The argument group is"),
        (lambda: Group("g" * 40_000), "The argument group is"),
        (lambda: StreamSettings(roots="p0"), "The argument roots is 'p0'"),
        (lambda: StreamSettings(tables="orders"), "The argument tables is 'orders'"),  # type: ignore[arg-type]
        (lambda: CommitRange(-1), "CommitRange.start is -1"),
        (lambda: CommitRange(end=10**18), "CommitRange.end is 1000000000000000000"),
        *(
            (lambda state=state: TransactionConsumer(DEAD_END, "t", start=state), "are not a state")
            for state in (b"", b"\xff\x00", b"[" * 100_000)
        ),
        *(
            (
                lambda size=size: TransactionConsumer(DEAD_END, "t", max_buffered_bytes=size),
                f"max_buffered_bytes is {size}. It must be from 1,024 to 1,099,511,627,776",
            )
            for size in (0, 1023, 2**40 + 1)
        ),
    ],
)
def test_arguments_that_are_not_allowed_are_refused(build: Callable[[], object], text: str) -> None:
    """SUB-1, SUB-3: before anything is asked of Kafka."""
    with pytest.raises(ConfigError, match=text):
        build()


def test_only_an_item_of_this_consumer_can_be_set_aside(stream: Stream) -> None:
    """SUB-4: and only before `close`."""
    stream.send(change(1), change(2))
    with ChangeConsumer(stream.kafka, "t", bounded=True) as other:
        first, second = other
    with ChangeConsumer(stream.kafka, "t", start=Group("g")) as consumer:
        while consumer.poll(5) is None:
            pass
        assert isinstance(first, ConsumerRecord)
        assert isinstance(second, ConsumerRecord)
        for given in (second, replace(first, source=second.source)):
            with pytest.raises(ConfigError, match="received is") as caught:
                consumer.set_aside(given, "bad")
            assert caught.value.code == "ARGUMENT_INVALID"
        consumer.commit()
        with pytest.raises(ConfigError, match="one that is not acknowledged"):
            consumer.set_aside(first, "bad")
    with pytest.raises(AssertionError, match="closed consumer"):
        consumer.set_aside(second, "bad")


def test_a_finished_consumer_reports_the_transactions_that_wait(stream: Stream) -> None:
    """SUB-3: how many transactions, and the stream partition that delays the low watermark."""
    two = ChildPartitions("root", T0, 0, (ChildPartition("p"), ChildPartition("q")))
    stream.everywhere(two, beat(10), Heartbeat("q", T0 + 4))
    stream.send(change(3), change(6), change(8))
    with TransactionConsumer(stream.kafka, "t", bounded=True) as consumer:
        assert consumer.held_back is None
        assert times(list(consumer)) == [3]
        held = consumer.held_back
        assert held is not None
        assert (held.transactions, held.changes, held.oldest) == (2, 2, T0 + 6)
        assert held.low_watermark == T0 + 5
        assert held.lagging_partition is not None
        assert held.lagging_partition.stream_partition == "q"
        state = consumer.state()
    stream.everywhere(Heartbeat("q", T0 + 20))
    with TransactionConsumer(stream.kafka, "t", start=state, bounded=True) as consumer:
        assert times(list(consumer))[-2:] == [6, 8]
        assert consumer.held_back is None
    with ChangeConsumer(stream.kafka, "t", bounded=True) as records:
        assert len(list(records)) == 11


# ── watermarks (SUB-2) ────────────────────────────────────────────────────────────────────────────


def test_watermarks_come_when_they_advance(stream: Stream) -> None:
    """SUB-2: after the records that they follow from, by the rules of ingest."""
    stream.everywhere(ANNOUNCED, beat(3))
    with WatermarkConsumer(stream.kafka, "t") as consumer:
        yielded = [consumer.poll(5) for _ in range(5)]
        assert sorted(times(yielded)) == ["< 4", *["ChildPartitions"] * 2, *["Heartbeat"] * 2]
        assert isinstance(last := yielded[-1], Watermark)
        assert last.lagging_partition is not None
        assert last.lagging_partition.stream_partition == "p"
        stream.send(change(7), beat(8))
        assert times([consumer.poll(5) for _ in range(2)]) == [7, "Heartbeat"]
        assert consumer.poll(0.3) is None
        stream.send(beat(8), k=1)
        assert times([consumer.poll(5) for _ in range(2)]) == ["Heartbeat", "< 9"]


def test_a_bounded_reader_ends_with_its_last_watermark(stream: Stream) -> None:
    """SUB-2."""
    stream.everywhere(ANNOUNCED, change(2), beat(3))
    with WatermarkConsumer(stream.kafka, "t", bounded=True) as consumer:
        assert times(list(consumer))[-1] == "< 4"


def test_a_reader_of_some_kafka_partitions_has_their_watermark(stream: Stream) -> None:
    """SUB-2: the other one has not spoken."""
    stream.send(ANNOUNCED, beat(3), k=1)
    with WatermarkConsumer(stream.kafka, "t", bounded=True, kafka_partitions=[1]) as consumer:
        yielded = list(consumer)
    assert times(yielded)[-1] == "< 4"
    assert isinstance(yielded[-1], Watermark)
    assert yielded[-1].lagging_partition is not None
    assert yielded[-1].lagging_partition.kafka_partition == 1


@pytest.mark.systems
def test_members_of_a_group_have_the_watermark_of_their_kafka_partitions(stream: Stream) -> None:
    """SUB-2: it starts again when the group gives them others."""
    stream.everywhere(ANNOUNCED, beat(3))
    kafka = KafkaConfig(stream.cluster.bootstrap_servers, QUICK_GROUP)
    with WatermarkConsumer(kafka, "t", start=Group("g")) as one:
        until(one, 4)
        assert len(one.positions) == 2
        with WatermarkConsumer(kafka, "t", start=Group("g")) as other:
            deadline = time.monotonic() + 60
            while not (len(one.positions) == len(other.positions) == 1):
                assert time.monotonic() < deadline
                one.poll(0.1)
                other.poll(0.1)
            for consumer in (one, other):
                k = consumer.positions[0].kafka_partition
                stream.send(beat(8), k=k)
                last = until(consumer, 9).lagging_partition
                assert last is not None
                assert (last.kafka_partition, last.watermark) == (k, T0 + 9)


def until(consumer: WatermarkConsumer, low: int) -> Watermark:
    """Read up to the watermark."""
    deadline = time.monotonic() + 30
    while True:
        assert time.monotonic() < deadline
        item = consumer.poll(0.2)
        if isinstance(item, Watermark) and item.low_watermark == T0 + low:
            return item


def test_named_roots_need_no_announcement(stream: Stream) -> None:
    """SUB-2, WMK-6."""
    stream.everywhere(beat(3))
    for roots, last in ([], "Heartbeat"), (["p"], "< 4"), (["p", "q"], "Heartbeat"):
        with WatermarkConsumer(
            stream.kafka, "t", bounded=True, stream=StreamSettings(roots=roots)
        ) as consumer:
            assert times(list(consumer))[-1] == last


def test_a_replay_claims_nothing(stream: Stream) -> None:
    """SUB-2, DLQ-10."""
    stream.everywhere(ANNOUNCED)
    for k in (0, 1):
        value = frame(encode(beat(3), 2), None)
        stream.producer.produce(
            "t", value, CONTROL_KEY, k, headers=[("connector.replay", b"x-0-1/1")]
        )
        assert stream.producer.flush(10) == 0
        stream.arrivals[k].append(NOW)
    with WatermarkConsumer(stream.kafka, "t", bounded=True) as consumer:
        assert not any(isinstance(item, Watermark) for item in consumer)


# ── whole transactions (SUB-3) ────────────────────────────────────────────────────────────────────


def fill(stream: Stream) -> None:
    stream.everywhere(ANNOUNCED)
    stream.send(change(5, b"a", id_="x", sequence=1, of=3), change(9), change(4), change(4))
    stream.send(change(5, b"b", id_="x", sequence=0, of=3), k=1)
    stream.send_raw(b"c", b"bad", k=1)
    stream.everywhere(beat(6))


def test_whole_transactions_come_in_order(stream: Stream) -> None:
    """SUB-3."""
    fill(stream)
    with TransactionConsumer(stream.kafka, "t") as consumer:
        assert consumer.low_watermark is None
        yielded = [consumer.poll(5) for _ in range(4)]
        assert sorted(times(yielded[:2])) == ["Late", "Rejected"]
        assert times(yielded[2:]) == [4, 5]
        assert isinstance(whole := yielded[3], WholeTransaction)
        assert [one.row_key for one in whole.changes] == [b"b", b"a"]
        assert whole.missing == 1
        assert consumer.poll(0.2) is None
        assert consumer.low_watermark == T0 + 7


@pytest.mark.parametrize("count", range(5))
def test_a_state_continues(stream: Stream, count: int) -> None:
    """SUB-3: nothing that was acknowledged comes twice, and nothing is left out."""
    fill(stream)
    with TransactionConsumer(stream.kafka, "t", bounded=True) as consumer:
        first = list(consumer)[:count]
        if first:
            last = first[-1]
            assert isinstance(last, WholeTransaction | Late | Rejected)
            consumer.acknowledge(last)
        state = consumer.state()
    stream.everywhere(beat(10))
    with TransactionConsumer(stream.kafka, "t", start=state, bounded=True) as consumer:
        yielded = [*first, *consumer]
    assert sorted(times(yielded), key=str) == [4, 5, 9, "Late", "Rejected"]
    assert [time for time in times(yielded) if isinstance(time, int)] == [4, 5, 9]


def test_a_state_of_another_topic_is_refused(stream: Stream) -> None:
    """REC-4."""
    with TransactionConsumer(stream.kafka, "t", bounded=True) as consumer:
        state = consumer.state()
    stream.facts = replace(FACTS, topic_id="other")
    with pytest.raises(TopicError, match="not the topic that was read before"):
        TransactionConsumer(stream.kafka, "t", start=state)
    stream.facts = replace(FACTS, topic="u")
    with pytest.raises(ConfigError, match="positions of u"):
        TransactionConsumer(stream.kafka, "u", start=state)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ({"0": [5, 4]}, "offsets 5, 4"),
        ({"-1": [0, 4]}, "offsets 0, 4"),
        ({"0": [-1, 4]}, "offsets -1, 4"),
        ({"2": [0, 0]}, "a Kafka partition of t"),
    ],
)
def test_a_state_with_impossible_offsets_is_refused(
    stream: Stream, offsets: dict[str, list[int]], text: str
) -> None:
    """SUB-3: a damaged state does not lead to a wrong place."""
    with TransactionConsumer(stream.kafka, "t", bounded=True) as consumer:
        state = json.loads(consumer.state()) | {"offsets": offsets}
    with pytest.raises(ConnectorError, match=r"state of a reader|a Kafka partition of") as caught:
        TransactionConsumer(stream.kafka, "t", start=json.dumps(state).encode())
    assert text in str(caught.value)


def test_a_state_beyond_the_end_is_an_error(stream: Stream) -> None:
    """nothing_lost: the brokers have lost records that were read."""
    fill(stream)
    with TransactionConsumer(stream.kafka, "t", bounded=True) as consumer:
        list(consumer)
        state = consumer.state()
    stream.arrivals[0].pop()
    with pytest.raises(TopicError, match="ends before the stored position: Kafka partition 0"):
        TransactionConsumer(stream.kafka, "t", start=state)


def test_a_full_buffer_is_an_error_and_loses_nothing(stream: Stream) -> None:
    """SUB-3."""
    stream.everywhere(ANNOUNCED)
    stream.send(change(3), change(4), change(5))
    with TransactionConsumer(stream.kafka, "t", max_buffered_bytes=2700) as consumer:
        for _ in range(2):
            with pytest.raises(ConnectorError, match=r"Stream partition p|not known"):
                while True:
                    consumer.poll(1)
        state = consumer.state()
    stream.everywhere(beat(9))
    with TransactionConsumer(stream.kafka, "t", start=state, bounded=True) as consumer:
        assert times(list(consumer)) == [3, 4, 5]


def test_a_buffer_that_is_full_of_complete_transactions_is_emptied(stream: Stream) -> None:
    """SUB-3: the bound holds for transactions that wait."""
    stream.everywhere(ANNOUNCED)
    for number in range(1, 30):
        stream.send(change(number))
        stream.everywhere(beat(number))
    seen: list[Yielded] = []
    with TransactionConsumer(
        stream.kafka, "t", max_buffered_bytes=20_000, bounded=True
    ) as consumer:
        for item in consumer:
            assert isinstance(item, WholeTransaction)
            consumer.acknowledge(item)
            seen.append(item)
    assert times(seen) == list(range(1, 30))


# ── ranges of commit time (SUB-1) ─────────────────────────────────────────────────────────────────


def source(stream: Stream, skew: int = 0) -> None:
    """A change every 10 s, which arrives `skew` after its commit, and heartbeats."""
    stream.everywhere(ANNOUNCED, at=T0)
    for number in range(1, 11):
        at = number * 10_000_000
        stream.send(change(at), k=number % 2, at=T0 + at + skew)
        stream.everywhere(beat(at), at=T0 + at + skew)


S = 1_000_000


@pytest.mark.parametrize("kind", [WatermarkConsumer, TransactionConsumer])
@pytest.mark.parametrize("skew", [-10 * S, 0, 25 * S], ids=["early", "at once", "later"])
def test_adjacent_ranges_are_the_whole_range(stream: Stream, kind: Both, skew: int) -> None:
    """SUB-1: each change once, whether changes arrive before their commit timestamps or long
    after.
    """
    source(stream, skew)

    def read(start: int, end: int) -> list[int | str]:
        with kind(
            stream.kafka,
            "t",
            commits=CommitRange(T0 + start, T0 + end),
            stream=StreamSettings(limits=Limits(max_clock_skew_s=15)),
        ) as consumer:
            return [one for one in times(list(consumer)) if isinstance(one, int)]

    # The end is a commit timestamp, so that the low watermark comes above it.
    for middle in (29 * S, 30 * S, 30 * S + 1):
        both = sorted([*read(20 * S, middle), *read(middle + 1, 80 * S)])
        assert both == sorted(read(20 * S, 80 * S)) == [n * 10 * S for n in range(2, 9)]


def test_reading_begins_at_an_announcement_before_the_range(stream: Stream) -> None:
    """SUB-1: found backwards. The records between are left out."""
    stream.everywhere(ANNOUNCED, at=T0)
    stream.send(*[change(n + 1) for n in range(1200)], at=T0)
    source(stream)
    with WatermarkConsumer(
        stream.kafka,
        "t",
        commits=CommitRange(T0 + 100 * S, T0 + 100 * S),
        stream=StreamSettings(limits=Limits(max_clock_skew_s=15)),
    ) as consumer:
        assert {p.kafka_partition: p.offset for p in consumer.positions}[0] == 1200
        assert times(list(consumer))[:1] == [100 * S]


def test_reading_begins_at_the_first_part_of_an_announcement(stream: Stream) -> None:
    """SUB-1, WMK-6."""
    parts = [
        ChildPartitions("root", T0 + 5, number, (ChildPartition(name),))
        for number, name in enumerate("ab")
    ]
    stream.everywhere(ANNOUNCED, *parts, at=T0)
    stream.everywhere(beat(40 * S), at=T0 + 40 * S)
    with WatermarkConsumer(
        stream.kafka,
        "t",
        commits=CommitRange(T0 + 30 * S, T0 + 39 * S),
        stream=StreamSettings(limits=Limits(max_clock_skew_s=15)),
    ) as consumer:
        assert {p.kafka_partition: p.offset for p in consumer.positions}[0] == 0


@pytest.mark.parametrize("kind", [WatermarkConsumer, TransactionConsumer])
def test_bad_records_that_are_too_old_for_a_range_are_left_out(stream: Stream, kind: Both) -> None:
    """SUB-1: the others may be in it."""
    stream.everywhere(ANNOUNCED, at=T0)
    stream.send_raw(b"k", b"bad", at=T0 + S)
    stream.send_raw(b"k", b"bad", at=T0 + 19 * S)
    stream.everywhere(beat(40 * S), at=T0 + 40 * S)
    with kind(
        stream.kafka,
        "t",
        commits=CommitRange(T0 + 30 * S, T0 + 39 * S),
        stream=StreamSettings(limits=Limits(max_clock_skew_s=15)),
    ) as consumer:
        yielded = list(consumer)
    assert [
        item.position.offset for item in yielded if isinstance(item, ConsumerRecord | Rejected)
    ] == [2]


FORMS: dict[str, tuple[type[ChangeConsumer] | Both, dict[str, Any]]] = {
    "records": (ChangeConsumer, {"bounded": True}),
    "watermarks": (WatermarkConsumer, {"bounded": True}),
    "transactions": (TransactionConsumer, {"bounded": True}),
    "range": (WatermarkConsumer, {"commits": CommitRange(T0 + S, T0 + 7 * S)}),
    "transactions of a range": (TransactionConsumer, {"commits": CommitRange(T0 + S, T0 + 7 * S)}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [name for name in ABSURD_MS if name != "zero"])
def test_a_record_with_an_absurd_time_is_like_others(stream: Stream, name: str, form: str) -> None:
    """poison_is_contained, REC-25: it and its neighbours come, it claims nothing impossible, and a
    commit timestamp in the future is rejected. The first record has such a time, too.
    """
    at = ABSURD_MS[name]

    def send_absurd(record: Record, k: int) -> None:
        key, value = kafka_key(record), framed(record, 2)
        stream.producer.produce("t", value, key, k, timestamp=at)
        assert stream.producer.flush(10) == 0
        stream.arrivals[k].append(T0 + 4 * S)

    stream.facts = replace(FACTS, timestamp_type="CreateTime")
    stream.deleted = {0: 1, 1: 1}
    early = T0 - 400 * S
    announced = replace(ANNOUNCED, start_timestamp=early)
    for k in (0, 1):
        stream.send(change(S), k=k, at=early)  # it is deleted
        send_absurd(announced, k)
        stream.send(announced, k=k, at=early)
    stream.send(change(2 * S, b"a"), at=T0 + 2 * S)
    send_absurd(replace(change(4 * S, b"b"), estimated_low_watermark=2**60), 0)
    send_absurd(replace(change(0, b"c"), commit_timestamp=NOW + 3600 * S), 0)
    stream.send(change(6 * S, b"d"), at=T0 + 6 * S)
    stream.everywhere(beat(8 * S), at=T0 + 8 * S)
    kind, arguments = FORMS[form]
    with kind(stream.kafka, "t", **arguments) as consumer:
        yielded = [item for item in consumer if not isinstance(item, Watermark)]
    shown = [one for one in times(yielded) if one not in ("ChildPartitions", "Heartbeat")]
    rejected = "Rejected" if kind is TransactionConsumer else "Rejection"
    assert sorted(map(str, shown)) == [*map(str, (2 * S, 4 * S, 6 * S)), rejected]
    for item in yielded:
        if isinstance(item, ConsumerRecord):
            assert T0 - 401 * S <= item.record_timestamp <= time.time_ns() // 1000
            if isinstance(item.record, Rejection):
                assert item.record.reason is Reason.COMMIT_TIMESTAMP_IN_FUTURE
        if isinstance(item, Rejected):
            assert item.rejection.reason is Reason.COMMIT_TIMESTAMP_IN_FUTURE


def test_an_end_in_the_future_waits_and_a_late_change_is_late(stream: Stream) -> None:
    """SUB-1."""
    stream.everywhere(ANNOUNCED, beat(3))
    with WatermarkConsumer(
        stream.kafka, "t", commits=CommitRange(T0 + 1, NOW + 3600 * S)
    ) as consumer:
        while consumer.poll(0.3) is not None:
            pass
        stream.send(change(2), change(4))
        assert times([consumer.poll(5) for _ in range(2)]) == ["Late", 4]
        assert not consumer.finished


def test_ranges_that_cannot_be_read_are_refused(stream: Stream) -> None:
    """SUB-1: before anything is read."""
    source(stream)
    stream.deleted = {0: 0, 1: 8}

    def read(start: int, end: int | None = None) -> None:
        WatermarkConsumer(
            stream.kafka,
            "t",
            commits=CommitRange(start, end),
            stream=StreamSettings(limits=Limits(max_clock_skew_s=15), roots=["p"]),
        )

    for start, end in ((T0 + 5, T0 + 4), (NOW + 3600 * S, None)):
        with pytest.raises(ConfigError, match="start_commit"):
            read(start, end)
    arrival = stream.arrivals[1][8] // 1000 * 1000
    with pytest.raises(OutOfRangeError) as caught:
        read(T0 + 10 * S)
    oldest = arrival + 15 * S + 1
    assert (caught.value.code, caught.value.oldest) == ("START_TOO_OLD", oldest)
    WatermarkConsumer(
        stream.kafka,
        "t",
        commits=CommitRange(oldest),
        stream=StreamSettings(limits=Limits(max_clock_skew_s=15), roots=["p"]),
    ).close()


def test_a_topic_with_times_of_producers_is_read_from_a_minute_earlier(stream: Stream) -> None:
    """SUB-1: with a warning."""
    source(stream)
    places = []
    for kind in ("LogAppendTime", "CreateTime"):
        stream.facts = replace(FACTS, timestamp_type=kind)
        with WatermarkConsumer(
            stream.kafka,
            "t",
            commits=CommitRange(T0 + 95 * S),
            stream=StreamSettings(limits=Limits(max_clock_skew_s=15), roots=["p"]),
        ) as consumer:
            places.append(consumer.positions[0].offset)
            is_warned = any("begins 60 s earlier" in text for text in consumer.warnings)
            assert is_warned == (kind == "CreateTime")
    assert places[1] < places[0]


@pytest.mark.parametrize("at_ms", [T0 // 1_000_000, 0, 2**62], ids=["seconds", "none", "greatest"])
def test_a_range_is_read_whatever_the_unit_of_the_record_timestamps(
    stream: Stream, at_ms: int
) -> None:
    """SUB-1, REC-25: nothing_lost: Kafka cannot look up a time among such numbers."""
    stream.facts = replace(FACTS, timestamp_type="CreateTime")
    for record in (change(S, b"a"), change(2 * S, b"b"), change(3 * S, b"c")):
        key, value = kafka_key(record), framed(record, 2)
        stream.producer.produce("t", value, key, 0, timestamp=at_ms)
        assert stream.producer.flush(10) == 0
    with WatermarkConsumer(
        stream.kafka,
        "t",
        commits=CommitRange(T0 + 2 * S),
        bounded=False,
        stream=StreamSettings(roots=["p"]),
    ) as consumer:
        assert times([consumer.poll(5) for _ in range(2)]) == [2 * S, 3 * S]


def test_tail_prints_a_range(
    stream: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SUB-1: and the problem if the range cannot be read."""
    source(stream)
    config = tmp_path / "connector.toml"
    config.write_text(
        f'warehouse = "w"\n[kafka]\nbootstrap_servers = "{stream.kafka.bootstrap_servers}"\n'
        '[streams.s]\ntopic = "t"\n',
        "utf-8",
    )

    def tail(start: int, end: int) -> int:
        bounds = ("--start-commit", str(T0 + start), "--end-commit", str(T0 + end))
        return cli.invoke(["--config", str(config), "tail", *bounds])

    assert tail(20 * S, 35 * S) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    changes = [one["data_change"]["commit_timestamp"] for one in shown if "data_change" in one]
    assert sorted(changes) == [view_of_time(T0 + 20 * S), view_of_time(T0 + 30 * S)]
    assert {"heartbeat" in one or "data_change" in one for one in shown} == {True}
    assert tail(30 * S, 20 * S) == 1
    assert "ARGUMENT_INVALID" in capsys.readouterr().err


# ── write streams (WRS-22) ────────────────────────────────────────────────────────────────────────


def row(offset: int) -> DataChange:
    return replace(change(1), commit_timestamp=0, write_stream=WriteStreamOffset("s/w", offset))


def release(at: int, first: int = 0, upto: int = 3) -> Release:
    return Release("p", T0 + at, (OffsetRange("s/w", first, upto),))


def fill_write_stream(stream: Stream) -> None:
    """Rows 0 to 2 are released at 5, and row 3 is not."""
    stream.everywhere(ANNOUNCED)
    stream.send(row(0), change(4), row(1))
    stream.send(change(7), row(2), k=1)
    stream.everywhere(release(5), beat(6))
    stream.send(row(3), k=1)


def offsets(yielded: list[Yielded]) -> list[int]:
    """The offsets of the rows in their write stream."""
    return sorted(
        item.change.write_stream.offset
        for item in yielded
        if isinstance(item, Staged) and item.change.write_stream
    )


@pytest.mark.parametrize("staged", [False, True])
def test_a_release_comes_once_and_rows_on_request(stream: Stream, staged: bool) -> None:
    """WRS-22: the copy in Kafka partition 0, at its place there."""
    fill_write_stream(stream)
    with ChangeConsumer(stream.kafka, "t", bounded=True, staged=staged) as consumer:
        yielded: list[Yielded] = list(consumer)
        ends = consumer.positions
    (one,) = [item for item in yielded if isinstance(item, Released)]
    assert one == Released(T0 + 5, release(5).ranges, "p", Position("t", "id", 0, 4))
    assert one.record == release(5)
    assert offsets(yielded) == ([0, 1, 2, 3] if staged else [])
    of_zero = [item for item in yielded if not isinstance(item, Watermark | WholeTransaction)]
    of_zero = [item for item in of_zero if item.position.kafka_partition == 0]
    rows = ["Staged"] if staged else []
    wanted = ["ChildPartitions", *rows, 4, *rows, "Released", "Heartbeat"]
    assert times(of_zero) == wanted
    assert [position.offset for position in ends] == [5, 5]
    assert len(yielded) == (11 if staged else 7)


def test_a_reader_of_named_kafka_partitions_gets_the_copy_in_the_least(stream: Stream) -> None:
    """WRS-22: and the rows that are there."""
    fill_write_stream(stream)
    with ChangeConsumer(
        stream.kafka, "t", bounded=True, staged=True, kafka_partitions=[1]
    ) as consumer:
        yielded: list[Yielded] = list(consumer)
    assert times(yielded) == ["ChildPartitions", 7, "Staged", "Released", "Heartbeat", "Staged"]


def test_a_group_continues_after_a_release(stream: Stream) -> None:
    """WRS-22: what was committed does not come again."""
    fill_write_stream(stream)
    kafka = KafkaConfig(stream.cluster.bootstrap_servers, QUICK_GROUP)
    yielded: list[Yielded] = []
    for _ in range(2):
        with ChangeConsumer(kafka, "t", start=Group("g"), bounded=True, staged=True) as consumer:
            for item in consumer:
                yielded.append(item)
                consumer.commit()
                if isinstance(item, Released):
                    break
    assert offsets(yielded) == [0, 1, 2, 3]
    assert len(yielded) == 11


def test_a_poll_in_a_long_write_stream_takes_its_time_only(stream: Stream) -> None:
    """WRS-22: skipped rows do not prolong it."""
    stream.send(*map(row, range(200)), change(3))
    with ChangeConsumer(stream.kafka, "t", bounded=True) as consumer:
        polls = 0
        while (item := consumer.poll(0)) is None:
            polls += 1
        assert times([item]) == [3]
        assert polls >= 200
        assert consumer.poll(0.1) is None


def test_a_watermark_comes_after_the_releases_below_it(stream: Stream) -> None:
    """WRS-22, SUB-2: and after their rows."""
    fill_write_stream(stream)
    with WatermarkConsumer(stream.kafka, "t", bounded=True, staged=True) as consumer:
        yielded: list[Yielded] = list(consumer)
    shown = times(yielded)
    before = yielded[: shown.index("< 7")]
    assert "Released" in times(before)
    assert offsets(before)[:3] == [0, 1, 2]


def test_a_range_has_the_releases_of_its_time(stream: Stream) -> None:
    """WRS-22, SUB-1: one behind the low watermark is late, and staged rows claim nothing."""
    stream.everywhere(ANNOUNCED)
    stream.send(row(0))
    for n in (2, 5, 8):
        stream.everywhere(release(n), beat(n))
    with WatermarkConsumer(stream.kafka, "t", commits=CommitRange(T0 + 3, T0 + 7)) as consumer:
        yielded = [item for item in consumer if isinstance(item, Released)]
    assert [(one.commit_timestamp - T0, one.is_late) for one in yielded] == [(5, False)]
    with WatermarkConsumer(
        stream.kafka, "t", commits=CommitRange(end=NOW + 3600 * S), staged=True
    ) as running:
        while running.poll(0.3) is not None:
            pass
        stream.everywhere(release(4))
        late = running.poll(5)
        assert isinstance(late, Released)
        assert (late.commit_timestamp, late.is_late) == (T0 + 4, True)


@pytest.mark.parametrize(
    ("count", "staged"), [(1, False), (2, False), (0, True), (1, True), (3, True), (5, True)]
)
def test_a_reader_of_whole_transactions_continues_with_releases(
    stream: Stream, count: int, staged: bool
) -> None:
    """WRS-22, SUB-3: a release is one transaction at its place, after its rows. Nothing comes twice
    after a restart, and nothing is left out.
    """
    fill_write_stream(stream)
    with TransactionConsumer(stream.kafka, "t", bounded=True, staged=staged) as consumer:
        first: list[Yielded] = list(consumer)[:count]
        if first:
            consumer.acknowledge(first[-1])  # type: ignore[arg-type]
        state = consumer.state()
    stream.everywhere(beat(10))
    with TransactionConsumer(
        stream.kafka, "t", start=state, bounded=True, staged=staged
    ) as consumer:
        yielded = [*first, *consumer]
    assert [one for one in times(yielded) if one != "Staged"] == [4, "Released", 7]
    assert offsets(yielded) == ([0, 1, 2, 3] if staged else [])
    before = yielded[: times(yielded).index("Released")]
    assert not staged or set(offsets(before)) >= {0, 1, 2}


def test_tail_prints_a_release_once_and_rows_on_request(
    stream: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """WRS-22."""
    fill_write_stream(stream)
    config = tmp_path / "connector.toml"
    config.write_text(
        f'warehouse = "w"\n[kafka]\nbootstrap_servers = "{stream.kafka.bootstrap_servers}"\n'
        '[streams.s]\ntopic = "t"\n',
        "utf-8",
    )

    def tail(*words: str) -> list[dict[str, Any]]:
        assert cli.invoke(["--config", str(config), "tail", *words]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    plain, with_rows = tail(), tail("--staged")
    for shown, rows in (plain, 0), (with_rows, 4):
        (one,) = [line["release"] for line in shown if "release" in line]
        assert one["commit_timestamp"] == view_of_time(T0 + 5)
        assert one["ranges"] == [{"stream": "s/w", "first": 0, "upto": 3}]
        changes = [line["data_change"] for line in shown if "data_change" in line]
        assert sum("write_stream" in change for change in changes) == rows
        assert len(changes) == 2 + rows


# ── truncations (EVO-13) ──────────────────────────────────────────────────────────────────────────


def test_a_truncation_comes_once_in_each_consumer(
    stream: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """EVO-13, SUB-1 to SUB-3: one copy, whichever consumer reads. In a transaction, it is one of
    its changes.
    """
    of = Transaction("tx", 0, number_of_records_in_transaction=2)
    truncate = Truncate("p", "t", T0 + 5, transaction=of)
    filled = replace(change(5), transaction=replace(of, record_sequence=1))
    stream.everywhere(ANNOUNCED)
    stream.send(change(4))
    stream.everywhere(truncate)
    stream.send(filled, k=1)
    stream.everywhere(beat(6))
    with ChangeConsumer(stream.kafka, "t", bounded=True) as records:
        found = [item for item in records if isinstance(item, ConsumerRecord)]
    copies = [item.position for item in found if item.record == truncate]
    assert copies == [Position("t", "id", 0, 2)]
    with ChangeConsumer(stream.kafka, "t", bounded=True, kafka_partitions=[1]) as some:
        assert truncate in [item.record for item in some if isinstance(item, ConsumerRecord)]
    with TransactionConsumer(stream.kafka, "t", bounded=True) as whole:
        items = list(whole)
    assert [item.changes for item in items if isinstance(item, WholeTransaction)] == [
        (change(4),),
        (truncate, filled),
    ]
    commits = CommitRange(T0 + 1, NOW + 3600 * S)
    with WatermarkConsumer(stream.kafka, "t", commits=commits) as running:
        received = [item for _ in range(12) if (item := running.poll(0.3)) is not None]
        assert sum(getattr(item, "record", None) == truncate for item in received) == 1
        stream.everywhere(Truncate("p", "t", T0 + 3))
        late = running.poll(5)
        assert isinstance(late, Late)
        assert late.change == Truncate("p", "t", T0 + 3)
    config = tmp_path / "connector.toml"
    config.write_text(
        f'warehouse = "w"\n[kafka]\nbootstrap_servers = "{stream.kafka.bootstrap_servers}"\n'
        '[streams.s]\ntopic = "t"\n',
        "utf-8",
    )
    assert cli.invoke(["--config", str(config), "tail"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["truncate"]["table"] for line in lines if "truncate" in line] == ["t", "t"]


# ── events of a consumer group (REC-21) ───────────────────────────────────────────────────────────


def read(consumer: ChangeConsumer, count: int, timeout_s: float = 40) -> list[int]:
    """The commit timestamps of the next changes. The reader may have events before them."""
    yielded: list[int] = []
    deadline = time.monotonic() + timeout_s
    while len(yielded) < count:
        assert time.monotonic() < deadline, f"{len(yielded)} changes came"
        item = consumer.poll(0.5)
        if item is not None:
            assert isinstance(item.record, DataChange)
            yielded.append(item.record.commit_timestamp - T0)
    return yielded


@pytest.mark.systems
def test_a_reader_that_was_too_slow_reads_on_from_its_stored_positions(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """REC-21: a handler took longer than max.poll.interval.ms."""
    stream.send(*map(change, range(4)))
    kafka = KafkaConfig(
        stream.cluster.bootstrap_servers, {**QUICK_GROUP, "max.poll.interval.ms": "3000"}
    )
    with ChangeConsumer(kafka, "t", start=Group("g")) as consumer:
        assert read(consumer, 2) == [0, 1]
        consumer.commit()
        assert read(consumer, 1) == [2]
        time.sleep(5)
        with pytest.raises(BrokerError, match=r"max\.poll\.interval\.ms"):
            consumer.commit()
        assert read(consumer, 2) == [2, 3]
        consumer.commit()
    assert "max.poll.interval.ms" in caplog.text


@pytest.mark.parametrize(
    ("request_", "event", "word"),
    [
        (JOIN_GROUP, KafkaError.GROUP_MAX_SIZE_REACHED, "group.max.size"),
        (HEARTBEAT, KafkaError.FENCED_INSTANCE_ID, "group.instance.id"),
        *(
            pytest.param(JOIN_GROUP, event, word, marks=pytest.mark.systems)
            for event, word in (
                (KafkaError.INVALID_SESSION_TIMEOUT, "session.timeout.ms"),
                (KafkaError.INCONSISTENT_GROUP_PROTOCOL, "partition.assignment.strategy"),
                (KafkaError.GROUP_AUTHORIZATION_FAILED, "rights"),
                (KafkaError.INVALID_REQUEST, "documentation of Kafka"),
                (KafkaError.FENCED_INSTANCE_ID, "group.instance.id"),
            )
        ),
    ],
)
def test_an_event_of_the_group_names_its_setting_and_only_a_right_is_called_one(
    stream: Stream, request_: int, event: int, word: str
) -> None:
    """REC-21: the error has the words of Kafka. The reader goes on, unless Kafka has ended it."""
    stream.send(change(1))
    stream.cluster.answer_with(request_, event)
    kafka = KafkaConfig(stream.cluster.bootstrap_servers, QUICK_GROUP)
    with ChangeConsumer(kafka, "t", start=Group("g")) as consumer:
        with pytest.raises(BrokerError) as caught:
            read(consumer, 2)
        assert KafkaError(event).str() in caught.value.cause
        assert word in caught.value.remedy
        assert ("rights" in caught.value.remedy) == (word == "rights")
        if event == KafkaError.FENCED_INSTANCE_ID:
            with pytest.raises(BrokerError, match=word):
                consumer.poll(0.1)
        else:
            assert read(consumer, 1) == [1]


@pytest.mark.parametrize(
    ("request_", "event"),
    [
        (JOIN_GROUP, KafkaError.REBALANCE_IN_PROGRESS),
        (OFFSET_FETCH, KafkaError.NOT_COORDINATOR),
        *(
            pytest.param(request, event, marks=pytest.mark.systems)
            for request, event in (
                (JOIN_GROUP, KafkaError.UNKNOWN_MEMBER_ID),
                (JOIN_GROUP, KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
                (SYNC_GROUP, KafkaError.ILLEGAL_GENERATION),
                (HEARTBEAT, KafkaError.UNKNOWN_MEMBER_ID),
                (HEARTBEAT, KafkaError.REBALANCE_IN_PROGRESS),
                (OFFSET_FETCH, KafkaError.REBALANCE_IN_PROGRESS),
            )
        ),
    ],
)
def test_a_reader_goes_on_when_its_group_changes(stream: Stream, request_: int, event: int) -> None:
    """REC-21: no event of a rebalance ends a reader."""
    stream.send(change(1))
    stream.cluster.answer_with(request_, event, event)
    kafka = KafkaConfig(stream.cluster.bootstrap_servers, QUICK_GROUP)
    with ChangeConsumer(kafka, "t", start=Group("g")) as consumer:
        assert read(consumer, 1) == [1]


def test_no_error_of_kafka_is_taken_for_a_lack_of_rights() -> None:
    """REC-21: each error has the words of Kafka, and only some are about rights."""
    kafka = KafkaConfig("127.0.0.1:1")
    for error in map(KafkaError, sorted(KAFKA_ERRORS)):
        is_about_rights = "AUTHORIZATION" in error.name() and "DELEGATION" not in error.name()
        for shown in (
            group.explain(error, kafka, "g", "read t"),
            group.not_stored(error, "g"),
            client.explain(error, kafka, "read t", "Read"),
        ):
            assert error.str() in shown.cause
            assert "rights" not in shown.remedy or is_about_rights, error.name()
            assert shown.remedy, error.name()


@pytest.mark.parametrize("start", ["end", NOW, "beginning"], ids=["end", "time", "beginning"])
def test_a_group_without_positions_warns_of_skipped_records(
    stream: Stream, start: str | int, caplog: pytest.LogCaptureFixture
) -> None:
    """REC-21: Kafka may have forgotten its positions. With stored ones, nothing is left out."""
    stream.send(change(1), change(2), at=NOW - 1_000_000)
    kafka = KafkaConfig(stream.cluster.bootstrap_servers, QUICK_GROUP)
    for warns in (start != "beginning", False):
        caplog.clear()
        with ChangeConsumer(kafka, "t", start=Group("g", start=start)) as consumer:  # type: ignore[arg-type]
            deadline = time.monotonic() + 40
            while len(consumer.positions) < 2:
                assert time.monotonic() < deadline
                consumer.poll(0.2)
            assert any("has no stored position" in one for one in consumer.warnings) is warns
            assert ("has no stored position" in caplog.text) is warns
            consumer.commit()


def test_a_topic_that_has_lost_no_record_is_read_from_before_its_oldest_one(stream: Stream) -> None:
    """SUB-1: a range is refused only if the topic may lack changes of it."""
    source(stream)
    with WatermarkConsumer(
        stream.kafka, "t", commits=CommitRange(1), bounded=True, stream=StreamSettings(roots=["p"])
    ) as consumer:
        assert len(list(consumer)) > 8
