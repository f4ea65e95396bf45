"""The heartbeats that a producer sends by itself, on librdkafka's mock cluster (PUB-1, PUB-2,
REC-18). The clock is moved by hand.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from connector.config.settings import KafkaConfig
from connector.errors import (
    ConfigError,
    DeliveryError,
    InvalidChangeError,
    TopicError,
    WriterConflictError,
)
from connector.kafka.produce import heartbeats
from connector.kafka.produce.producer import ChangeProducer, CopyingProducer
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import (
    CONTROL_KEY,
    ChildPartition,
    ChildPartitions,
    DataChange,
    Heartbeat,
    Record,
    SetCell,
)
from connector.watermarks.producer_epoch import EPOCH_HEADER, epoch_of
from tests.unit import mock_cluster
from tests.unit.mock_cluster import DEAD, FACTS, QUICK_FETCH, MockCluster


def change(at: int, name: str = "p", estimate: int = 0) -> DataChange:
    return DataChange(
        stream_partition=name,
        table="t",
        row_key=b"k%d" % at,
        commit_timestamp=at,
        entries=(SetCell("f", b"q", b"v"),),
        estimated_low_watermark=estimate,
    )


class HandClock:
    """A clock that goes on when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def tick(self, sender: ChangeProducer, after_s: float = 5.0) -> None:
        """The next call of the application, after this time."""
        self.now += after_s
        sender._heartbeats.send_due()


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """The clock of the heartbeats."""
    received = HandClock()
    monkeypatch.setattr(heartbeats, "clock", received)
    return received


def read_messages(kafka: KafkaConfig, kafka_partition: int = 0) -> list[Message]:
    """All records of a Kafka partition; the mock cluster knows nothing of aborted ones."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "g",
            "enable.partition.eof": True,
            **QUICK_FETCH,
        }
    )
    consumer.assign([TopicPartition("t", kafka_partition, 0)])
    received: list[Message] = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        received.append(message)
    consumer.close()
    return received


def read(kafka: KafkaConfig, kafka_partition: int = 0) -> list[Record]:
    """All valid records of a Kafka partition."""
    received: list[Record] = []
    for message in read_messages(kafka, kafka_partition):
        decoded = decode(message.value(), Schemas())
        if isinstance(decoded, ChangeRecord):
            received.append(decoded.record)
    return received


def settle(sender: ChangeProducer) -> None:
    """Wait until each record has a result."""
    while sender._queue.items:
        sender._queue.poll(0.1)


def read_heartbeats(kafka: KafkaConfig, kafka_partition: int = 0) -> list[Heartbeat]:
    return [record for record in read(kafka, kafka_partition) if isinstance(record, Heartbeat)]


@pytest.mark.parametrize("bad", [0, 0.9, 301, -5, float("nan")])
def test_an_interval_that_is_not_allowed_is_refused(bad: float) -> None:
    """PUB-1"""
    with pytest.raises(ConfigError, match="must be 1 to 300 seconds"):
        ChangeProducer(DEAD, FACTS, heartbeat_s=bad)


def test_without_a_reported_position_nothing_is_sent(kafka: KafkaConfig, hand: HandClock) -> None:
    """PUB-1: a program that sends its own heartbeats goes on as before."""
    with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
        sender.send(change(1))
        sender.send(Heartbeat("p", 1))
    assert read_heartbeats(kafka) == [Heartbeat("p", 1)]


def test_a_source_that_stops_still_has_heartbeats(kafka: KafkaConfig, hand: HandClock) -> None:
    """PUB-1: at the newest position, once per interval, in every Kafka partition, behind an
    announcement.
    """
    with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
        sender.reached("p", 5, b"five")
        sender.reached("p", 6)
        hand.tick(sender, 1.0)
        sender.reached("p", 7, b"seven")
        hand.tick(sender, 4.0)
        hand.tick(sender)
        assert sender.delivered == 0
        assert sender.undelivered() == {}
    for kafka_partition in range(2):
        received = read(kafka, kafka_partition)
        assert received[0] == ChildPartitions("p", 4, 0, (ChildPartition("p"),))
        assert received[1:] == [Heartbeat("p", 5, b"five"), Heartbeat("p", 7, b"seven")]


def test_control_records_have_the_epoch_of_their_producer_and_changes_have_none(
    kafka: KafkaConfig, hand: HandClock
) -> None:
    """PUB-4: announcements, both kinds of heartbeats, and child partitions. A producer that is
    made later has a newer epoch, and a given epoch is replaced.
    """
    copied = [("trace", b"1"), (EPOCH_HEADER, b"999999999999999999")]
    epochs = []
    for number in (1, 2):
        with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
            sender.send(change(10 * number), headers=[("trace", b"1")])
            sender.send(Heartbeat("p", 10 * number), copied)
            sender.reached("p", 10 * number + 1)
            hand.tick(sender)
            sender.send(ChildPartitions("p", 10 * number + 5, 0, ()))
            epochs.append(sender._control.epoch.value)
    assert epochs[0] < epochs[1]
    for kafka_partition in range(2):
        control = [
            message.headers() or []
            for message in read_messages(kafka, kafka_partition)
            if message.key() == CONTROL_KEY
        ]
        received = [epoch_of(headers) for headers in control]
        assert received == sorted(received)
        assert set(received) == set(epochs)
        assert len(received) == 2 * 4
        assert [name for headers in control for name, _ in headers].count("trace") == 2
    messages = [*read_messages(kafka, 0), *read_messages(kafka, 1)]
    of_changes = [message.headers() for message in messages if message.key() != CONTROL_KEY]
    assert of_changes == [[("trace", b"1")]] * 2


def test_a_heartbeat_that_is_not_true_yet_is_skipped_without_waiting(
    hand: HandClock,
) -> None:
    """PUB-1, REC-18: with a broker that does not answer."""
    sender = CopyingProducer(DEAD, FACTS)
    sender.send(change(4, "q"))
    sender.send(change(5))
    began = time.monotonic()
    sender.reached("p", 5)
    hand.tick(sender)
    assert time.monotonic() - began < 1
    assert len(sender._queue.items) == 2
    sender.reached("q", 3)
    hand.tick(sender)
    assert {sent.record for sent in sender._queue.items} == {
        change(4, "q"),
        change(5),
        Heartbeat("q", 3),
    }
    assert set(sender.undelivered()) == {change(4, "q"), change(5)}
    with pytest.raises(DeliveryError, match="2 records were not delivered"):
        sender.close(0.1)


def test_a_failed_change_holds_the_heartbeat_until_it_is_delivered(
    cluster: MockCluster, kafka: KafkaConfig, hand: HandClock
) -> None:
    """PUB-1, REC-18"""
    with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
        sender.send(change(4))
        sender.flush()
        cluster.answer_with(mock_cluster.PRODUCE, mock_cluster.MESSAGE_TOO_LARGE)
        sender.send(change(5))
        sender.reached("p", 7)
        with pytest.raises(DeliveryError, match="1 records were not delivered"):
            sender.flush()
        hand.tick(sender)
        assert not sender._queue.items
        sender.send(change(5))  # it failed, so it may be sent again
        sender.flush()
        hand.tick(sender)
    assert read_heartbeats(kafka) == [Heartbeat("p", 7)]


def test_a_reported_position_closes_at_once(kafka: KafkaConfig, hand: HandClock) -> None:
    """PUB-1: before any heartbeat was sent."""
    with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
        sender.send(change(5))
        sender.reached("p", 5)
        with pytest.raises(InvalidChangeError, match="after 5, the position reported") as caught:
            sender.send(change(5))
        assert caught.value.code == "COMMIT_TIMESTAMP"
        assert "before you report it" in caught.value.remedy
        with pytest.raises(InvalidChangeError, match="change at index 1"):
            sender.send_many([change(6), change(4)])
        sender.send(change(6))
        sender.send(change(4, "q"))
    assert read_heartbeats(kafka) == [Heartbeat("p", 5)]


def test_a_position_that_goes_back_or_is_of_no_live_stream_partition_is_refused(
    kafka: KafkaConfig, hand: HandClock
) -> None:
    """PUB-1, WMK-7"""
    with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
        sender.reached("p", 5)
        sender.reached("p", 5, b"the same position, another token")
        with pytest.raises(InvalidChangeError, match="at or after 5, which was reported") as caught:
            sender.reached("p", 4)
        assert caught.value.code == "HEARTBEAT_TIMESTAMP"
        assert caught.value.remedy
        sender.send(Heartbeat("q", 9))
        with pytest.raises(InvalidChangeError, match="at or after 9"):
            sender.reached("q", 8)
        with pytest.raises(InvalidChangeError, match="resume_token"):
            sender.reached("p", 6, b"x" * 100_000)
        with pytest.raises(InvalidChangeError, match="timestamp is 0"):
            sender.reached("p", 0)
        sender.send(
            ChildPartitions("p", 7, 0, (ChildPartition("a", ("p",)), ChildPartition("b", ("p",))))
        )
        with pytest.raises(InvalidChangeError, match="must be live, but it has ended") as caught:
            sender.reached("p", 8)
        assert caught.value.code == "STREAM_PARTITION"
        with pytest.raises(InvalidChangeError, match="must be announced") as caught:
            sender.reached("A", 8)
        assert "Check the name" in caught.value.remedy
        sender.reached("a", 8)
        hand.tick(sender)
    assert read_heartbeats(kafka) == [Heartbeat("p", 5), Heartbeat("q", 9), Heartbeat("a", 8)]


def test_a_copying_producer_reports_positions_of_sent_stream_partitions_only(
    kafka: KafkaConfig, hand: HandClock
) -> None:
    with CopyingProducer(kafka, FACTS) as sender:
        with pytest.raises(InvalidChangeError, match="must be announced"):
            sender.reached("p", 5)
        sender.send(change(5))
        sender.reached("p", 5)
        sender.flush()
        hand.tick(sender)
    assert [type(record) for record in read(kafka) if not isinstance(record, DataChange)] == [
        Heartbeat
    ]


def test_announcements_are_repeated_within_a_minute(kafka: KafkaConfig, hand: HandClock) -> None:
    """PUB-1, WMK-6"""
    with ChangeProducer(kafka, FACTS, heartbeat_s=300) as sender:
        sender.send(change(5))
        sender.reached("p", 5)
        sender.flush()
        assert sender._heartbeats._schedule.next_at <= hand.now + 60
        hand.tick(sender, 60.0)
        hand.tick(sender, 60.0)
    assert len([r for r in read(kafka, 1) if isinstance(r, ChildPartitions)]) >= 3
    assert read_heartbeats(kafka) == [Heartbeat("p", 5)]


def test_a_heartbeat_that_failed_is_raised_once_and_sent_again(
    cluster: MockCluster, kafka: KafkaConfig, hand: HandClock
) -> None:
    """PUB-1, nothing_lost: the record of the call that raises is queued all the same."""
    with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
        sender.send(change(1))
        sender.flush()
        sender.reached("p", 1)
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.MESSAGE_TOO_LARGE] * 2)
        hand.tick(sender)
        settle(sender)
        with pytest.raises(DeliveryError, match="heartbeat of stream partition p at 1") as caught:
            sender.send(change(2))
        assert caught.value.code == "HEARTBEAT_UNDELIVERED"
        sender.flush()
        assert sender.undelivered() == {}
        hand.tick(sender)
    assert read_heartbeats(kafka) == [Heartbeat("p", 1)]
    assert replace(change(2), estimated_low_watermark=2) in [*read(kafka, 0), *read(kafka, 1)]


def test_a_change_carries_the_reported_position(kafka: KafkaConfig, hand: HandClock) -> None:
    """PUB-1, REC-18: the newest one. An
    estimate of the application, also a smaller one, stays.
    """
    with ChangeProducer(kafka, FACTS) as sender:
        sender.send(change(3))
        sender.flush()
        sender.reached("p", 8)
        sender.send_many([change(20), change(30), change(10)])
        sender.flush()
        sender.send(replace(change(40), estimated_low_watermark=5))
        sender.send(change(50))
    received = [*read(kafka, 0), *read(kafka, 1)]
    claims = {
        one.commit_timestamp: one.estimated_low_watermark
        for one in received
        if isinstance(one, DataChange)
    }
    assert claims == {3: 0, 20: 9, 30: 9, 10: 9, 40: 5, 50: 9}


def test_a_heartbeat_that_failed_is_not_raised_once_a_later_one_was_delivered(
    cluster: MockCluster, kafka: KafkaConfig, hand: HandClock
) -> None:
    with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
        sender.send(change(1))
        sender.flush()
        sender.reached("p", 1)
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.MESSAGE_TOO_LARGE] * 2)
        for _ in range(2):
            hand.tick(sender)
            settle(sender)
        sender.flush()


def test_an_automatic_announcement_that_failed_is_sent_again(
    cluster: MockCluster, kafka: KafkaConfig, hand: HandClock
) -> None:
    """PUB-1, WMK-6: it is never undelivered, and the next record repeats it."""
    with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
        sender.send(change(1, "q"))
        sender.flush()
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.MESSAGE_TOO_LARGE] * 2)
        sender.reached("p", 1)
        hand.tick(sender)
        settle(sender)
        assert (sender.announced, sender.undelivered()) == (2, {})
        with pytest.raises(DeliveryError, match="heartbeat of stream partition p"):
            sender.send(change(2, "q"))
        hand.tick(sender)
        assert sender.announced == 4
    for kafka_partition in range(2):
        received = [r for r in read(kafka, kafka_partition) if r.stream_partition == "p"]
        assert received == [ChildPartitions("p", 1, 0, (ChildPartition("p"),)), Heartbeat("p", 1)]


def test_a_full_queue_skips_the_heartbeat(hand: HandClock) -> None:
    """PUB-1: it does not wait for room, and that is no error of the application."""
    sender = CopyingProducer(
        DEAD,
        FACTS,
        settings={"queue.buffering.max.messages": "2"},
    )
    sender.send(change(5))
    sender.reached("p", 4)
    began = time.monotonic()
    hand.tick(sender)
    assert time.monotonic() - began < 1
    assert len(sender._queue.items) == 2, "the first Kafka partition has it"
    with pytest.raises(DeliveryError, match="1 records were not delivered"):
        sender.close(0.1)
    sender._heartbeats.check()


def test_an_error_of_a_heartbeat_is_raised_by_the_next_send_or_flush(
    kafka: KafkaConfig, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-1: not by `reached`, and the heartbeat is sent later."""
    with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
        with monkeypatch.context() as patched:

            def fail() -> None:
                raise TopicError("TOPIC_MISSING", "gone")

            patched.setattr(sender._control, "refresh", fail)
            sender.reached("p", 5)
        with pytest.raises(TopicError, match="gone"):
            sender.flush()
        sender.flush()
    assert read_heartbeats(kafka) == [Heartbeat("p", 5)]


def test_more_kafka_partitions_get_control_records_and_are_never_fewer(
    kafka: KafkaConfig, hand: HandClock
) -> None:
    """WMK-4"""
    with ChangeProducer(kafka, FACTS) as sender:
        watch = sender._control._watch
        watch.kafka_partitions = 1
        sender._control.refresh()
        assert sender.kafka_partitions == 2
        watch.kafka_partitions = 3
        sender._control.refresh()
        assert sender.kafka_partitions == 3
        sender._bytes.kafka_partitions = 2  # the mock cluster has no third one


# ── close ─────────────────────────────────────────────────────────────────────────────────────────


def test_close_sends_the_last_heartbeat_where_it_is_true(
    cluster: MockCluster, kafka: KafkaConfig, hand: HandClock
) -> None:
    """PUB-1: not for a stream partition with a failed change."""
    sender = ChangeProducer(kafka, FACTS, heartbeat_s=5)
    sender.send(change(1))
    sender.send(change(1, "q"))
    sender.flush()
    cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.MESSAGE_TOO_LARGE])
    sender.send(change(2, "q"))
    with pytest.raises(DeliveryError):
        sender.flush()
    sender.reached("q", 2)
    sender.reached("p", 3, b"last")
    with pytest.raises(DeliveryError, match="1 records were not delivered"):
        sender.close()
    assert read_heartbeats(kafka) == [Heartbeat("p", 3, b"last")]


def test_close_fails_if_the_last_heartbeat_was_not_delivered(hand: HandClock) -> None:
    sender = ChangeProducer(DEAD, FACTS)
    sender.reached("p", 3)
    began = time.monotonic()
    with pytest.raises(DeliveryError, match="heartbeat of stream partition p at 3"):
        sender.close(0.5)
    assert time.monotonic() - began < 4
    sender.close()


# ── transactions ──────────────────────────────────────────────────────────────────────────────────


def test_a_transactional_producer_sends_it_in_a_transaction_of_its_own(
    kafka: KafkaConfig, hand: HandClock
) -> None:
    """PUB-1: also for changes that were acknowledged in a transaction."""
    with ChangeProducer(kafka, FACTS, transactional_id="x", heartbeat_s=5) as sender:
        with sender.transaction():
            sender.send(change(5))
            sender.reached("p", 5)
        hand.tick(sender)
        assert not sender._queue.items, "committed"
        sender.send(change(6))
        sender.reached("p", 6)
    assert read_heartbeats(kafka) == [Heartbeat("p", 5), Heartbeat("p", 6)]


def test_heartbeats_wait_for_the_end_of_an_open_transaction(
    kafka: KafkaConfig, hand: HandClock
) -> None:
    """PUB-1: the end of the block sends what is due."""
    with ChangeProducer(kafka, FACTS, transactional_id="x", heartbeat_s=5) as sender:
        with sender.transaction():
            sender.reached("p", 4)
            sender.send(change(5))
            hand.tick(sender)
            assert sender._results.delivery("p").heartbeat_at == 0
        assert sender._results.delivery("p").heartbeat_at == 4
    assert read_heartbeats(kafka) == [Heartbeat("p", 4)]


def test_an_aborted_transaction_holds_the_heartbeat(kafka: KafkaConfig, hand: HandClock) -> None:
    """PUB-1, REC-18: its changes are not acknowledged, though they were handed over."""
    with ChangeProducer(kafka, FACTS, transactional_id="x", heartbeat_s=5) as sender:
        with pytest.raises(ZeroDivisionError), sender.transaction():
            sender.send(change(5))
            sender.reached("p", 5)
            raise ZeroDivisionError
        hand.tick(sender)
        assert sender._results.delivery("p").heartbeat_at == 0
        with sender.transaction():
            sender.send(change(5))
        hand.tick(sender)
        assert sender._results.delivery("p").heartbeat_at == 5


def test_a_transaction_of_a_heartbeat_that_fails_is_raised_before_the_next_one(
    cluster: MockCluster, kafka: KafkaConfig, hand: HandClock
) -> None:
    """PUB-1"""
    with ChangeProducer(kafka, FACTS, transactional_id="x", heartbeat_s=5) as sender:
        sender.send(change(5))
        cluster.answer_with(mock_cluster.PRODUCE, mock_cluster.MESSAGE_TOO_LARGE)
        sender.reached("p", 5)
        with (
            pytest.raises(DeliveryError, match="heartbeat of stream partition p at 5"),
            sender.transaction(),
        ):
            pytest.fail("the block does not begin")
        assert sender.undelivered() == {}
        hand.tick(sender)
        with sender.transaction():
            sender.send(change(6))
    assert Heartbeat("p", 5) in read_heartbeats(kafka)


def test_a_heartbeat_that_failed_does_not_end_a_transaction(
    kafka: KafkaConfig, hand: HandClock
) -> None:
    """PUB-1: its error waits for the end of the block, and is not raised in `on_delivery`."""
    with ChangeProducer(kafka, FACTS, transactional_id="x", heartbeat_s=5) as sender:
        with sender.transaction():
            sender.send(change(5), on_delivery=lambda *_: sender.send(change(7)))
            sender.reached("p", 4)
            sender._heartbeats._failures["q"] = 4, DeliveryError("HEARTBEAT_UNDELIVERED", "late")
            sender.send(change(6))
        with pytest.raises(DeliveryError, match="late"):
            sender.flush()
        sender.flush()
        assert sender.delivered == 3


def test_a_fenced_heartbeat_is_an_error_of_the_next_call(
    cluster: MockCluster, kafka: KafkaConfig, hand: HandClock
) -> None:
    sender = ChangeProducer(kafka, FACTS, transactional_id="x", heartbeat_s=5)
    cluster.answer_with(mock_cluster.ADD_PARTITIONS, mock_cluster.INVALID_PRODUCER_EPOCH)
    sender.reached("p", 5)
    with pytest.raises(WriterConflictError, match="Another program uses the transactional id"):
        sender.flush()
    with pytest.raises(WriterConflictError):
        sender.close()


# ── warnings ──────────────────────────────────────────────────────────────────────────────────────


def test_a_forgotten_heartbeat_is_a_warning(kafka: KafkaConfig, hand: HandClock) -> None:
    """PUB-2, REC-23: not with an estimate, a heartbeat, a reported position, or in a backfill."""
    with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
        for at in (1, 2):
            for name in ("forgotten", "reports", "by hand", "ended"):
                sender.send(change(at, name))
            sender.send(change(at, "estimates", estimate=at))
            sender.send(change(7, "backfill"))
        assert sender.warnings == []
        sender.flush()
        sender.reached("reports", 2)
        hand.tick(sender)
        sender.send(Heartbeat("by hand", 2))
        sender.send(ChildPartitions("ended", 3, 0, ()))
        hand.now += 60
        (warning,) = sender.warnings
        assert "Stream partition forgotten has sent changes for 60 s without a heart" in warning
        assert "Call reached, or send heartbeats" in warning
        sender.send(Heartbeat("forgotten", 2))
        assert sender.warnings == []


def announced(at: int, *names: str, sequence: int = 0) -> ChildPartitions:
    return ChildPartitions("root", at, sequence, tuple(ChildPartition(name) for name in names))


def test_an_automatic_heartbeat_between_two_parts_of_an_announcement_ends_no_stream_partition(
    kafka: KafkaConfig, hand: HandClock
) -> None:
    """WMK-6, PUB-1"""
    with ChangeProducer(kafka, FACTS, heartbeat_s=5) as sender:
        sender.send(announced(10, "p", "q"))
        sender.send(announced(20, "p"))
        sender.reached("p", 30)
        hand.tick(sender)
        hand.tick(sender, 60.0)
        sender.send(announced(20, "q", sequence=1))
        sender.reached("q", 30)
    assert {one.stream_partition for one in read_heartbeats(kafka)} == {"p", "q"}
    newest = [one for one in read(kafka) if isinstance(one, ChildPartitions)][-1]
    assert newest.start_timestamp == 20


@pytest.mark.parametrize("how", ["flush", "close"])
@pytest.mark.parametrize("transactional_id", [None, "x"])
def test_a_name_that_the_last_announcement_omits_ends_at_the_flush_or_close(
    how: str, transactional_id: str | None, kafka: KafkaConfig, hand: HandClock
) -> None:
    """WMK-6: the producer announces the others once more, with a later start timestamp."""
    sender = ChangeProducer(kafka, FACTS, transactional_id=transactional_id, heartbeat_s=5)
    sender.send(announced(10, "p", "q"))
    sender.send(announced(20, "p"))
    if how == "flush":
        sender.flush()
        received = [one for one in read(kafka) if isinstance(one, ChildPartitions)]
        assert received[-2:] == [announced(20, "p"), announced(21, "p")]
    sender.close()
    received = [one for one in read(kafka, 1) if isinstance(one, ChildPartitions)]
    assert received[-2:] == [announced(20, "p"), announced(21, "p")]
