"""What the producer makes of the brokers' answers, on librdkafka's mock cluster (REC-17, REC-18,
PUB-5).
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from connector.errors import BrokerError, DeliveryError, InvalidChangeError, WriterConflictError
from connector.kafka import client
from connector.kafka.produce.producer import ChangeProducer, CopyingProducer
from connector.kafka.sending import SendQueue
from connector.records.model import (
    DataChange,
    Heartbeat,
    OffsetRange,
    Record,
    Release,
    SetCell,
    Truncate,
    WriteStreamOffset,
)
from connector.reports.series import Histogram
from connector.validation import Limits
from tests.unit import mock_cluster
from tests.unit.mock_cluster import DEAD, FACTS, MockCluster


def change(number: int) -> DataChange:
    return DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k%d" % number,
        commit_timestamp=number + 1,
        entries=(SetCell("f", b"q", b"v"),),
    )


@dataclass
class Reports:
    """The calls of `on_delivery`, by record."""

    errors: dict[Record, str | None] = field(default_factory=dict)
    calls: Counter[Record] = field(default_factory=Counter)

    def __call__(self, record: Record, error: str | None) -> None:
        self.errors[record] = error
        self.calls[record] += 1


def poll_until(producer: ChangeProducer, reports: Reports, calls: int) -> None:
    deadline = time.monotonic() + 20
    while reports.calls.total() < calls:
        assert time.monotonic() < deadline, reports
        producer.poll(0.5)


def test_a_passing_error_is_retried(cluster: MockCluster) -> None:
    with ChangeProducer(cluster.kafka, FACTS) as producer:
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.NOT_ENOUGH_REPLICAS] * 3)
        for number in range(10):
            producer.send(change(number))
        producer.flush()
        assert producer.delivered == 10


def test_a_refused_record_is_reported_and_can_be_sent_again(cluster: MockCluster) -> None:
    with ChangeProducer(cluster.kafka, FACTS) as producer:
        producer.send(change(0))
        producer.flush()
        cluster.answer_with(mock_cluster.PRODUCE, mock_cluster.MESSAGE_TOO_LARGE)
        producer.send(change(1))
        with pytest.raises(DeliveryError, match="1 records were not delivered"):
            producer.flush()
        with pytest.raises(DeliveryError, match="would claim more"):
            producer.send(Heartbeat("p", 5))
        for record in producer.undelivered():
            producer.send(record)
        producer.send(Heartbeat("p", 5))


def figures(producer: ChangeProducer) -> dict[str, float | Histogram]:
    """The samples of a producer by series, without its prefix."""
    assert {sample.labels for sample in producer.samples()} == {("t",)}
    return {
        sample.series.name.removeprefix("lowmark_producer_"): sample.value
        for sample in producer.samples()
    }


@pytest.mark.parametrize(
    "error", [mock_cluster.MESSAGE_TOO_LARGE, mock_cluster.OUT_OF_ORDER_SEQUENCE]
)
def test_each_message_is_queued_or_acknowledged_or_failed(cluster: MockCluster, error: int) -> None:
    """MET-1: also after a fatal error, which leaves messages without a report. A failure stays in
    the counter when its record is delivered at last.
    """
    with CopyingProducer(cluster.kafka, FACTS, settings={"linger.ms": "100"}) as producer:
        producer.send(change(0))
        producer.flush()
        cluster.answer_with(mock_cluster.PRODUCE, *[error] * 5)
        for number in range(1, 20):
            producer.send(change(number))
        queued = figures(producer)
        assert (queued["queued_messages"], queued["failed_messages"]) == (19, 0)
        with pytest.raises(DeliveryError, match="were not delivered"):
            producer.flush(30)
        failed = len(producer.undelivered())
        assert figures(producer)["failed_messages"] == failed
        assert figures(producer)["undelivered_records"] == failed
        cluster.answer_with(mock_cluster.PRODUCE)
        send_again_what_failed(producer)
        values = figures(producer)
    acknowledged = values.pop("acknowledgement_seconds")
    assert isinstance(acknowledged, Histogram)
    assert sum(acknowledged.counts) >= 20
    assert 0 < acknowledged.sum < 60
    assert values.pop("failed_messages") >= failed  # type: ignore[operator]
    assert values == {"queued_messages": 0, "delivered_records": 20, "undelivered_records": 0}


@pytest.mark.parametrize("transactional_id", [None, "x"])
def test_a_heartbeat_waits_for_all_copies_of_a_truncation(
    cluster: MockCluster, transactional_id: str | None
) -> None:
    """EVO-13, REC-18: it counts as a change. If one copy fails, all are sent again."""
    truncate, reports = Truncate("p", "t", 4), Reports()
    with ChangeProducer(cluster.kafka, FACTS, transactional_id=transactional_id) as producer:
        producer.send(change(0))
        producer.flush()
        cluster.answer_with(mock_cluster.PRODUCE, mock_cluster.MESSAGE_TOO_LARGE)
        with pytest.raises(DeliveryError):
            producer.send(truncate, on_delivery=reports)
            producer.flush()
        assert set(producer.undelivered()) == {truncate}
        with pytest.raises(DeliveryError, match=r"would claim more|was not delivered before"):
            producer.send(Heartbeat("p", 5))
        producer.send(truncate)
        producer.send(Heartbeat("p", 5))
        producer.flush()
        assert producer.undelivered() == {}
        with pytest.raises(InvalidChangeError, match="after 5, the last heartbeat"):
            producer.send(Truncate("p", "t", 5))
        producer.poll()
        assert reports.calls[truncate] == 1


def send_again_what_failed(producer: ChangeProducer) -> None:
    for _ in range(5):
        for record in producer.undelivered():
            producer.send(record)
        with suppress(DeliveryError):  # the errors that were left over
            producer.flush(30)
            break


def test_after_a_fatal_error_records_without_a_report_are_undelivered_and_the_producer_goes_on(
    cluster: MockCluster,
) -> None:
    with ChangeProducer(cluster.kafka, FACTS, settings={"linger.ms": "100"}) as producer:
        producer.send(change(0))
        producer.flush()
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.OUT_OF_ORDER_SEQUENCE] * 5)
        for number in range(1, 20):
            producer.send(change(number))
        with pytest.raises(DeliveryError, match="were not delivered") as caught:
            producer.flush(30)
        assert caught.value.undelivered == len(producer.undelivered()) > 0
        cluster.answer_with(mock_cluster.PRODUCE)
        send_again_what_failed(producer)
        assert producer.delivered >= 20
        producer.send(Heartbeat("p", 20))


# ── acknowledgements and batches (PUB-5) ──────────────────────────────────────────────────────────


def test_poll_reports_each_record_once_without_flush(cluster: MockCluster) -> None:
    """PUB-5: a control record is acknowledged once all Kafka partitions have it."""
    reports, records = Reports(), [*map(change, range(250)), Heartbeat("p", 250)]
    with ChangeProducer(cluster.kafka, FACTS) as producer:
        for record in records:
            producer.send(record, on_delivery=reports)
        poll_until(producer, reports, len(records))
        assert reports.errors == dict.fromkeys(records)
        assert producer.poll() == 0, "nothing is left to be told"
    assert set(reports.calls.values()) == {1}


def test_a_refused_record_is_reported_with_the_reason_and_stays_undelivered(
    cluster: MockCluster,
) -> None:
    """PUB-5: `flush` raises as it does for who has not asked."""
    reports = Reports()
    with ChangeProducer(cluster.kafka, FACTS) as producer:
        producer.send(change(0), on_delivery=reports)
        producer.flush()
        assert reports.errors == {change(0): None}
        cluster.answer_with(mock_cluster.PRODUCE, mock_cluster.MESSAGE_TOO_LARGE)
        producer.send(change(1), on_delivery=reports)
        with pytest.raises(DeliveryError, match="1 records were not delivered"):
            producer.flush()
        assert reports.errors[change(1)] == producer.undelivered()[change(1)]
        assert "too large" in str(reports.errors[change(1)])
        producer.send(change(1), on_delivery=reports)
        producer.flush()
        assert reports.errors == {change(0): None, change(1): None}


def test_after_a_fatal_error_each_record_is_reported_once(cluster: MockCluster) -> None:
    """PUB-5: what has no report counts as failed, and its answer does not come a second time."""
    reports = Reports()
    with ChangeProducer(cluster.kafka, FACTS, settings={"linger.ms": "100"}) as producer:
        producer.send(change(0))
        producer.flush()
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.OUT_OF_ORDER_SEQUENCE] * 5)
        for number in range(1, 20):
            producer.send(change(number), on_delivery=reports)
        with pytest.raises(DeliveryError, match="were not delivered"):
            producer.flush(30)
        assert reports.calls == Counter(map(change, range(1, 20)))
        assert {record for record, error in reports.errors.items() if error} == set(
            producer.undelivered()
        )
        cluster.answer_with(mock_cluster.PRODUCE)
        send_again_what_failed(producer)
    assert reports.calls.total() == 19


def test_on_delivery_may_send_and_flush_waits_for_the_record(cluster: MockCluster) -> None:
    with ChangeProducer(cluster.kafka, FACTS) as producer:
        refusals: list[str] = []

        def send_again(record: Record, error: str | None) -> None:
            if error:
                refusals.append(error)
                producer.send(record, on_delivery=send_again)

        producer.send(change(0))
        producer.flush()
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.MESSAGE_TOO_LARGE] * 2)
        producer.send(change(1), on_delivery=send_again)
        producer.flush()
        assert len(refusals) == 2
        assert producer.undelivered() == {}
        producer.send(Heartbeat("p", 5))


@pytest.mark.parametrize("what", ["poll", "flush", "close"])
def test_on_delivery_may_not_wait(cluster: MockCluster, what: str) -> None:
    with ChangeProducer(cluster.kafka, FACTS) as producer:
        producer.send(change(0), on_delivery=lambda _record, _error: getattr(producer, what)())
        with pytest.raises(AssertionError, match="may send, and nothing else"):
            producer.flush()


def test_an_error_of_a_callback_is_raised_between_complete_operations(
    cluster: MockCluster,
) -> None:
    """PUB-5: the answer counts all the same, the others are told later, and a `send` that raises it
    has sent nothing.
    """
    reports = Reports()

    def fail(_record: Record, _error: str | None) -> None:
        raise ZeroDivisionError

    with ChangeProducer(cluster.kafka, FACTS) as producer:
        producer.send_many([change(0)], on_delivery=fail)
        producer.send_many([change(1)], on_delivery=reports)
        with pytest.raises(ZeroDivisionError):
            producer.flush()
        producer.flush()
        assert reports.errors == {change(1): None}
        assert producer.delivered == 2

        producer.send(change(2), on_delivery=fail)
        with pytest.raises(ZeroDivisionError):
            for number in range(3, 10_000):
                producer.send(change(number))
        sent = number - 1
        producer.flush()
        assert producer.delivered == sent + 1
        producer.send(change(number), on_delivery=fail)
        with pytest.raises(ZeroDivisionError):
            producer.close()
    producer.close()


def test_open_records_are_reported_as_failed_when_a_producer_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PUB-5: as that which finds no room."""
    monkeypatch.setattr(client, "QUEUE_TIMEOUT_S", 0.1)
    reports = Reports()
    producer = CopyingProducer(
        DEAD,
        FACTS,
        settings={"queue.buffering.max.messages": "2"},
    )
    producer.send(change(0), on_delivery=reports)
    producer.send(change(1), on_delivery=reports)
    with pytest.raises(DeliveryError, match="1 records were not delivered"):
        producer.send(change(2), on_delivery=reports)
    assert producer.poll() == 1
    assert "the queue stayed full" in str(reports.errors[change(2)])
    with pytest.raises(DeliveryError, match="3 records were not delivered"):
        producer.close(timeout_s=0.1)
    assert reports.calls == Counter(map(change, range(3)))
    assert reports.errors == producer.undelivered()


def test_of_a_batch_with_a_bad_change_nothing_is_queued(cluster: MockCluster) -> None:
    """PUB-5: the error names the first bad one."""
    reports = Reports()
    too_late, too_large = (
        change(2),
        DataChange(
            stream_partition="q",
            table="t",
            row_key=b"k",
            commit_timestamp=9,
            entries=(SetCell("f", b"q", b"v" * 2000),),
        ),
    )
    with ChangeProducer(cluster.kafka, FACTS, limits=Limits(max_record_bytes=1000)) as producer:
        producer.send(Heartbeat("p", 5))
        producer.flush()
        for bad, field_name in ((too_late, "commit_timestamp"), (too_large, "record")):
            with pytest.raises(InvalidChangeError, match="change at index 3") as caught:
                producer.send_many([*map(change, range(5, 8)), bad, too_large], on_delivery=reports)
            assert (caught.value.index, caught.value.field) == (3, field_name)
        assert producer.undelivered() == {}
        producer.flush()
        assert (producer.delivered, producer.announced, reports.calls) == (
            1,
            1,
            Counter(),
        ), "q would be waited for"
        producer.send_many(map(change, range(5, 8)), on_delivery=reports)
        producer.flush()
        assert reports.errors == dict.fromkeys(map(change, range(5, 8)))


def test_a_batch_without_space_in_the_queue_is_undelivered_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PUB-5, nothing_lost: also those after the one that was refused, and a heartbeat waits for
    them.
    """
    monkeypatch.setattr(client, "QUEUE_TIMEOUT_S", 0.1)
    reports = Reports()
    producer = CopyingProducer(
        DEAD,
        FACTS,
        settings={"queue.buffering.max.messages": "2"},
    )
    with pytest.raises(DeliveryError, match="1 records were not delivered"):
        producer.send_many(map(change, range(5)), on_delivery=reports)
    assert list(producer.undelivered()) == [change(2), change(3), change(4), change(0), change(1)]
    assert producer.poll() == 3
    assert "not sent, because a record before it was not accepted: the queue stayed full" in str(
        reports.errors[change(4)]
    )
    with pytest.raises(DeliveryError, match="would claim more"):
        producer.send(Heartbeat("p", 6))
    with pytest.raises(DeliveryError, match="5 records were not delivered"):
        producer.close(timeout_s=0.1)


def test_records_of_a_transaction_are_reported_when_it_ends(cluster: MockCluster) -> None:
    """PUB-5, REC-17: acknowledged by the brokers is not yet delivered."""
    reports = Reports()
    with ChangeProducer(cluster.kafka, FACTS, transactional_id="x") as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(change(0), on_delivery=reports)
            while producer._queue.items:  # the brokers have it
                assert producer.poll(0.1) == 0
            assert not reports.calls
            raise ZeroDivisionError
        assert producer.poll() == 1
        assert "its transaction was aborted: ZeroDivisionError()" in str(reports.errors[change(0)])
        with producer.transaction():
            producer.send_many([change(0), change(1)], on_delivery=reports)
        assert producer.poll() == 2
        assert reports.errors == {change(0): None, change(1): None}
        producer.send_many([change(2), change(3)], on_delivery=reports)
        assert producer.delivered == 4, "a batch is a transaction of its own"
        producer.flush()
        assert reports.calls == Counter([change(0), *map(change, range(4))])


def test_on_delivery_sends_in_a_transaction_of_its_own(
    cluster: MockCluster,
) -> None:
    """PUB-5: and `flush` returns when those who were sent thereby are told, too."""
    reports = Reports()
    with ChangeProducer(cluster.kafka, FACTS, transactional_id="x") as producer:

        def send_next(record: Record, error: str | None) -> None:
            reports(record, error)
            assert isinstance(record, DataChange)
            if record.commit_timestamp < 5:
                producer.send(change(record.commit_timestamp), on_delivery=send_next)

        producer.send(change(0), on_delivery=send_next)
        with producer.transaction():
            producer.send(change(9))
            assert set(reports.errors) == {change(0)}, (
                "change 1 was sent before this one began, and is told after it"
            )
        producer.flush()
        assert reports.errors == dict.fromkeys(map(change, range(5)))


def test_a_purged_record_is_reported_once() -> None:
    """REC-17: its report may come later."""
    answers: list[tuple[str, object]] = []
    queue = SendQueue[str](DEAD, FACTS, lambda *answer: answers.append(answer))
    queue.put("item", b"k", b"v", 0, [])
    queue.purge("no answer")
    assert not queue.items
    queue.close(1, "closed")
    assert answers == [("item", "no answer")]


# ── transactions ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "request_kind", [mock_cluster.ADD_PARTITIONS, mock_cluster.END_TRANSACTION]
)
def test_temporary_errors_of_a_transaction_are_retried(
    cluster: MockCluster, request_kind: int
) -> None:
    with ChangeProducer(cluster.kafka, FACTS, transactional_id="x") as producer:
        cluster.answer_with(request_kind, *[mock_cluster.CONCURRENT_TRANSACTIONS] * 2)
        producer.send(change(0))
        assert producer.delivered == 1


def test_a_transaction_with_a_refused_record_is_aborted_and_can_be_sent_again(
    cluster: MockCluster,
) -> None:
    """A change in it is not acknowledged before it is committed."""
    with ChangeProducer(cluster.kafka, FACTS, transactional_id="x") as producer:
        producer.send(change(0))
        cluster.answer_with(mock_cluster.PRODUCE, mock_cluster.MESSAGE_TOO_LARGE)
        with (
            pytest.raises(DeliveryError, match="was not committed") as caught,
            producer.transaction(),
        ):
            producer.send(change(1))
            producer.send(change(2))
        assert caught.value.undelivered == 2
        assert producer.delivered == 1
        assert set(producer.undelivered()) == {change(1), change(2)}
        with producer.transaction():
            for record in producer.undelivered():
                producer.send(record)
            producer.send(Heartbeat("p", 3))
        assert producer.delivered == 4


def test_a_commit_with_an_unknown_outcome_is_sent_again_by_another_client(
    cluster: MockCluster,
) -> None:
    """REC-18: its heartbeat may have been read, so nothing new may come before it."""
    with ChangeProducer(cluster.kafka, FACTS, transactional_id="x") as producer:
        cluster.answer_with(mock_cluster.END_TRANSACTION, mock_cluster.INVALID_STATE)
        with pytest.raises(DeliveryError, match="was not committed"), producer.transaction():
            producer.send(change(1))
            producer.send(Heartbeat("p", 5))
        with pytest.raises(InvalidChangeError, match="the last heartbeat"):
            producer.send(change(2))
        with producer.transaction():
            for record in producer.undelivered():
                producer.send(record)
        assert producer.delivered == 2


@pytest.mark.parametrize(
    "request_kind", [mock_cluster.ADD_PARTITIONS, mock_cluster.END_TRANSACTION]
)
def test_a_fenced_producer_stays_fenced(cluster: MockCluster, request_kind: int) -> None:
    producer = ChangeProducer(cluster.kafka, FACTS, transactional_id="x")
    cluster.answer_with(request_kind, mock_cluster.INVALID_PRODUCER_EPOCH)
    for _ in range(2):
        with pytest.raises(
            WriterConflictError, match="Another program uses the transactional id x on t"
        ):
            producer.send(change(1))
    with pytest.raises(DeliveryError, match="1 records were not delivered"):
        producer.close()


def test_a_producer_that_was_fenced_reports_it_at_the_next_record(
    cluster: MockCluster,
) -> None:
    producer = ChangeProducer(cluster.kafka, FACTS, transactional_id="x")
    cluster.answer_with(mock_cluster.ADD_PARTITIONS, mock_cluster.INVALID_PRODUCER_EPOCH)
    with (
        pytest.raises(WriterConflictError, match="Another program uses the transactional id"),
        producer.transaction(),
    ):
        producer.send(change(1))
        time.sleep(0.3)  # the client knows by then, and has told nobody
        producer.send(change(2))
    assert set(producer.undelivered()) == {change(1), change(2)}
    with pytest.raises(DeliveryError, match="2 records were not delivered"):
        producer.close()


def test_a_transactional_id_that_is_not_ours_is_refused_at_once(cluster: MockCluster) -> None:
    cluster.answer_with(mock_cluster.INIT_PRODUCER_ID, mock_cluster.FORBIDDEN_ID)
    with pytest.raises(BrokerError, match="Kafka refused the request: start transactions as x"):
        ChangeProducer(cluster.kafka, FACTS, transactional_id="x")


def test_an_aborted_transaction_leaves_no_claim_and_no_lineage(cluster: MockCluster) -> None:
    """WMK-6, REC-18: its stream partition is announced again, its heartbeat claims nothing."""
    with ChangeProducer(cluster.kafka, FACTS, transactional_id="x") as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(Heartbeat("p", 5))
            raise ZeroDivisionError
        producer.send(change(4))
        assert producer.announced == 2
        producer.send(Heartbeat("p", 5))
        assert producer.announced == 2


def test_a_time_in_another_unit_is_refused_before_it_is_sent() -> None:
    """ING-6: of a change and of a heartbeat; without the setting, the producer takes it."""
    in_ms, year_2000 = 1_714_475_984_123, 946_684_800_000_000
    with CopyingProducer(DEAD, FACTS, limits=Limits(min_commit_timestamp=year_2000)) as producer:
        for record in (change(in_ms), Heartbeat("p", in_ms)):
            with pytest.raises(InvalidChangeError, match="it fits milliseconds") as caught:
                producer.send(record)
            assert caught.value.rule == "COMMIT_TIMESTAMP_TOO_OLD"
        with pytest.raises(InvalidChangeError) as caught:
            producer.send_many([change(in_ms)])
        assert caught.value.index == 0


ROW = replace(change(0), write_stream=WriteStreamOffset("job/a", 0))
STAGED = replace(ROW, commit_timestamp=0)
RELEASE = Release("p", 1, (OffsetRange("job/a", 0, 1),))


@pytest.mark.parametrize("record", [ROW, STAGED, RELEASE], ids=["row", "staged", "release"])
def test_a_record_of_a_write_session_is_refused_and_others_go_on(
    cluster: MockCluster, record: Record
) -> None:
    """WRS-2: before and after a heartbeat, alone and in a batch."""
    with ChangeProducer(cluster.kafka, FACTS) as producer:
        for _ in range(2):
            with pytest.raises(InvalidChangeError, match="only a write session sends"):
                producer.send(record)
            if isinstance(record, DataChange):
                with pytest.raises(
                    InvalidChangeError, match="at index 1 is invalid: write_stream is 'job/a'"
                ):
                    producer.send_many([change(20), record])
            producer.send(change(19))
            producer.flush()
            producer.send(Heartbeat("p", 5))
            producer.flush()
        assert not producer.undelivered()
