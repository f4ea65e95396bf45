"""Write sessions on librdkafka's mock cluster: limits, failures, and the end of a session (WRS-5 to
WRS-10).

The mock cluster has no topic administration, so the tests ask a consumer for offsets. It does not
hide aborted records, so no test here counts rows. `tests/integration/test_write_streams.py` does.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, Producer

from connector.clock import now_us
from connector.config.settings import KafkaConfig
from connector.errors import (
    BrokerError,
    ConfigError,
    DeliveryError,
    InvalidChangeError,
    OffsetError,
    QueueFullError,
    RowErrors,
    TopicError,
    WriterConflictError,
    WriteStreamError,
)
from connector.kafka import (
    Batching,
    ChangeProducer,
    WriteSession,
    WriteStream,
    client,
    topics,
    transactions,
)
from connector.kafka.transactions import TransactionClient, TransactionMessage
from connector.kafka.write_streams import catalog as catalogs
from connector.kafka.write_streams import commit as commits
from connector.kafka.write_streams import session as sessions
from connector.kafka.write_streams.commit import commit_streams, discard_streams
from connector.kafka.write_streams.queue import AppendResult
from connector.records.model import DataChange, Heartbeat, SetCell
from connector.validation import Limits
from connector.write_streams.model import (
    SessionEntry,
    StreamEntry,
    StreamKind,
    StreamState,
    catalog_topic,
    to_value,
)
from tests.unit.mock_cluster import ADD_PARTITIONS, FACTS, MockCluster, answer_topic_requests

FORBIDDEN_TOPIC = 29
CATALOG = replace(FACTS, topic=catalog_topic("t"), kafka_partitions=1, cleanup_policy="compact")


@pytest.fixture
def session_kafka(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> KafkaConfig:
    cluster.create_topic(CATALOG.topic, 1)

    answer_topic_requests(FACTS, CATALOG, patch=monkeypatch.setattr)
    return cluster.kafka


def rows(stream: WriteStream, first: int, count: int) -> list[DataChange]:
    is_committed = stream.kind is StreamKind.COMMITTED
    return [
        stream.row(
            table="t",
            row_key=b"k%d" % number,
            entries=[SetCell("f", b"q", b"v", 1)],
            commit_timestamp=1_000 + number if is_committed else None,
        )
        for number in range(first, first + count)
    ]


def put(kafka: KafkaConfig, key: str, entry: StreamEntry | SessionEntry) -> None:
    """Write a record of the catalog, as another program does."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(CATALOG.topic, to_value(entry), key.encode(), 0)
    assert producer.flush(10) == 0


def test_appends_a_flush_a_finalize_and_a_commit(session_kafka: KafkaConfig) -> None:
    """WRS-5, WRS-12 to WRS-14: the whole way, without what the mock cluster lacks."""
    with WriteSession(session_kafka, FACTS, "job") as session:
        pending = session.stream("p", kind="pending")
        assert pending.append(rows(pending, 0, 3), 0).result(10) == AppendResult(0, 3)
        assert pending.finalize() == pending.finalize() == 3
        assert pending.state is StreamState.FINALIZED
        buffered = session.stream("b", kind=StreamKind.BUFFERED)
        buffered.append(rows(buffered, 0, 3))
        assert buffered.flush_rows(2) == 2
        with pytest.raises(WriteStreamError):
            pending.flush_rows(1)
        committed = session.stream("c", kind="committed")
        committed.append(rows(committed, 0, 3))
        session.reached(1_002)
        session.flush()
        with pytest.raises(ConfigError):
            committed.append(rows(committed, 3, 1), -1)
        with pytest.raises(ConfigError):
            buffered.flush_rows(-1)
    catalog = catalogs.read(session_kafka, CATALOG, is_complete=True)
    assert {name: (one.end, one.flushed) for name, one in catalog.streams.items()} == {
        "job/p": (3, 0),
        "job/b": (3, 2),
        "job/c": (3, 0),
    }
    assert catalog.sessions["job"].announced == ()
    assert catalog.sessions["job"].number == 2
    at = commit_streams(session_kafka, "t", ["job/p"])
    assert commit_streams(session_kafka, "t", "job/p") == at
    with ChangeProducer(session_kafka, FACTS) as producer, pytest.raises(ConfigError):
        commit_streams(session_kafka, "t", ["job/p"], through=producer, as_of=5)
    with pytest.raises(WriteStreamError) as refused:
        discard_streams(session_kafka, "t", ["job/p", "job/c", "job/b"])
    assert dict(refused.value.faults) == {
        "job/p": "ALREADY_COMMITTED",
        "job/c": "WRONG_KIND",
        "job/b": "NOT_FINALIZED",
    }
    for names in (["job"], [], ["a/b/c"], [f"a/{n}" for n in range(1_001)]):
        with pytest.raises(ConfigError):
            commit_streams(session_kafka, "t", names)


def test_a_flush_through_a_producer_has_its_time(session_kafka: KafkaConfig) -> None:
    """WRS-15: a producer that sent nothing has no live stream partition."""
    with (
        ChangeProducer(session_kafka, FACTS) as producer,
        WriteSession(session_kafka, FACTS, "job") as session,
    ):
        stream = session.stream("b", kind="buffered")
        stream.append(rows(stream, 0, 3))
        producer.send(Heartbeat("p", 2**51))
        with producer.hold_release() as held:
            assert held.commit_timestamp == 2**51 + 1
            assert stream.flush_rows(2, through=producer) == 2
        with producer.hold_release() as later:
            assert later.commit_timestamp == 2**51 + 3


def test_a_release_is_after_the_reported_position(session_kafka: KafkaConfig) -> None:
    """WRS-15, watermark_is_honest: changes carry it before a heartbeat does."""
    ahead = time.time_ns() // 1000 + 60_000_000
    with ChangeProducer(session_kafka, FACTS, heartbeat_s=300) as producer:
        producer.reached("p", ahead)
        with producer.hold_release() as held:
            assert held.commit_timestamp > ahead


def test_an_append_that_is_refused_names_the_expected_offset(session_kafka: KafkaConfig) -> None:
    """WRS-5, WRS-7, WRS-4: nothing of it is sent, and the session goes on."""
    with WriteSession(
        session_kafka, FACTS, "job", limits=Limits(max_record_bytes=1_000)
    ) as session:
        stream, other = (session.stream(name, kind="pending") for name in ("p", "q"))
        committed = session.stream("c", kind="committed")
        first = rows(stream, 0, 300)
        stream.append(first, 0)
        assert stream.append(first, 0).result(10) == AppendResult(0, 300, 300)
        with pytest.raises(OffsetError) as beyond:
            stream.append(rows(stream, 360, 20), 360)
        assert (beyond.value.expected, beyond.value.received) == (300, 360)
        with pytest.raises(OffsetError) as overlap:
            stream.append(rows(stream, 250, 100), 250)
        offsets_read = overlap.value
        assert (offsets_read.expected, offsets_read.received, offsets_read.rows) == (300, 250, 100)
        with pytest.raises(OffsetError):
            stream.append(rows(stream, 1, 300), 0)
        buffered = session.stream("b", kind="buffered")
        with pytest.raises(OffsetError):
            buffered.flush_rows(1)

        (good,), (timed,) = rows(stream, 0, 1), rows(committed, 0, 1)
        large = stream.row(table="t", row_key=b"k", entries=[SetCell("f", b"q", b"x" * 1_000)])
        bad = {
            1: (large, "TOO_LARGE"),
            2: (*rows(other, 0, 1), "WRITE_STREAM"),
            3: (replace(good, stream_partition="p"), "STREAM_PARTITION"),
            4: (replace(good, commit_timestamp=5), "COMMIT_TIMESTAMP"),
            5: (replace(timed, write_stream=None), "WRITE_STREAM"),
        }
        with pytest.raises(RowErrors) as invalid:
            stream.append([good, *(row for row, _ in bad.values()), good])
        assert {n: e.rule for n, e in invalid.value.errors.items()} == {
            n: rule for n, (_, rule) in bad.items()
        }
        session.reached(1_000)
        with pytest.raises(InvalidChangeError):
            session.reached(999)
        claims = replace(timed, commit_timestamp=2_000, estimated_low_watermark=5)
        with pytest.raises(RowErrors) as of_committed:
            committed.append([timed, claims])
        rules = [one.rule for one in of_committed.value.errors.values()]
        assert rules == ["COMMIT_TIMESTAMP", "ESTIMATED_LOW_WATERMARK"]

        for wrong in ([], [good] * 1_001):
            with pytest.raises(ConfigError):
                stream.append(wrong)
        with pytest.raises(ConfigError):
            stream.row(table="t", row_key=b"k", entries=[], commit_timestamp=5)
        with pytest.raises(ConfigError):
            session.stream("no/name", kind="pending")
        with pytest.raises(ConfigError):
            session.stream("p", kind="other")
        with pytest.raises(WriteStreamError):
            session.stream("p", kind="buffered")
        assert stream.next_offset() == 300


def test_a_commit_is_discarded_or_dated_back(session_kafka: KafkaConfig) -> None:
    """WRS-14, WRS-15: without `through`, it has a stream partition of its own."""
    finalized = StreamEntry(StreamKind.PENDING, StreamState.FINALIZED, 3, changed_at=2**60)
    for name in ("job/p", "job/q"):
        put(session_kafka, name, finalized)
    assert commit_streams(session_kafka, "t", ["job/p"], as_of=1_000) == 1_000
    for as_of in (0, 2**60):
        with pytest.raises(ConfigError, match="as_of"):
            commit_streams(session_kafka, "t", ["job/q"], as_of=as_of)
    discard_streams(session_kafka, "t", ["job/q"])
    discard_streams(session_kafka, "t", ["job/q"])
    with pytest.raises(WriteStreamError) as refused:
        commit_streams(session_kafka, "t", ["job/q", "job/none"])
    assert refused.value.faults == (("job/none", "NOT_FOUND"), ("job/q", "DISCARDED"))
    with WriteSession(session_kafka, FACTS, "job") as session:
        stream = session.stream("q", kind="pending")
        for call in (lambda: stream.append(rows(stream, 3, 1)), stream.finalize):
            with pytest.raises(WriteStreamError) as gone:
                call()
            assert gone.value.fault == "DISCARDED"


@pytest.mark.parametrize("transactional_id", [None, "app"])
def test_no_heartbeat_passes_a_release_that_is_held(
    transactional_id: str | None, kafka: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-15: not one of the application, not one in its transaction, no automatic one."""
    monkeypatch.setattr(client, "QUEUE_TIMEOUT_S", 0.2)
    ahead = now_us() + 60_000_000
    with ChangeProducer(kafka, FACTS, transactional_id=transactional_id, heartbeat_s=1) as producer:
        with pytest.raises(WriteStreamError) as nothing_live, producer.hold_release():
            pass
        assert nothing_live.value.code == "PRODUCER_WITHOUT_PARTITION"
        producer.send(Heartbeat("p", ahead))
        with producer.hold_release() as held:
            assert (held.stream_partition, held.commit_timestamp) == ("p", ahead + 1)
            with pytest.raises(DeliveryError, match="1 releases are not acknowledged"):
                producer.send(Heartbeat("p", ahead + 1))
            producer.send(Heartbeat("p", ahead))
            producer.reached("p", ahead + 5)
            sent = producer.heartbeats
            producer.poll(0.5)
            assert producer.heartbeats == sent
        producer.send(Heartbeat("p", ahead + 1))


@pytest.mark.parametrize("code", [0, KafkaError.INVALID_TXN_STATE, KafkaError._TIMED_OUT])
@pytest.mark.parametrize("is_in_catalog", [False, True])
def test_the_outcome_of_a_failed_commit_is_read_from_the_catalog(
    code: int, is_in_catalog: bool, session_kafka: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-8: the caller notices nothing."""
    commit, sent = transactions.commit, []
    send = TransactionClient.commit

    def counted(self: TransactionClient, messages: list[TransactionMessage]) -> object:
        sent.append(len(messages))
        return send(self, messages)

    def fails(producer: Producer) -> KafkaError | None:
        monkeypatch.setattr(transactions, "commit", commit)
        if is_in_catalog:
            assert commit(producer) is None
        return KafkaError(code, "made up")

    with WriteSession(session_kafka, FACTS, "job") as session:
        stream = session.stream("p", kind="pending")
        stream.append(rows(stream, 0, 1), 0).result(10)
        monkeypatch.setattr(TransactionClient, "commit", counted)
        monkeypatch.setattr(transactions, "commit", fails)
        assert stream.append(rows(stream, 1, 2), 1).result(30) == AppendResult(1, 2)
        assert sent == ([3] if is_in_catalog else [3, 3])
        assert stream.finalize() == 3


def test_after_the_last_attempt_each_append_has_its_outcome(
    session_kafka: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-8: the transaction may be there, and what was not sent is not."""
    inside, go_on = threading.Event(), threading.Event()

    def fails(producer: Producer) -> KafkaError:
        inside.set()
        assert go_on.wait(10)
        return KafkaError(KafkaError._TIMED_OUT, "made up")

    with WriteSession(session_kafka, FACTS, "job") as earlier:
        other = earlier.stream("o", kind="pending")
        other.append(rows(other, 0, 1)).result(10)
    session = WriteSession(
        session_kafka, FACTS, "job", batching=Batching(linger_s=0, max_retry_s=0)
    )
    stream, other = (session.stream(name, kind="pending") for name in ("p", "o"))
    monkeypatch.setattr(transactions, "commit", fails)
    first = stream.append(rows(stream, 0, 1), 0)
    assert inside.wait(10)
    second = stream.append(rows(stream, 1, 1), 1)
    repeated = stream.append(rows(stream, 0, 1), 0)
    of_second = stream.append(rows(stream, 1, 1), 1)
    committed = other.append(rows(other, 0, 1), 0)
    with pytest.raises(TimeoutError):
        first.result(0)
    with pytest.raises(DeliveryError, match="no result"):
        session.flush(0)
    go_on.set()
    for append in (first, repeated):
        with pytest.raises(DeliveryError) as unknown:
            append.result(10)
        assert unknown.value.outcome == "unknown"
    with pytest.raises(DeliveryError) as not_taken:
        second.result(10)
    assert not_taken.value.outcome == "not taken"
    with pytest.raises(DeliveryError):
        of_second.result(10)
    assert committed.result(10).repeated == 1
    for call in (
        session.flush,
        stream.finalize,
        lambda: session.reached(5),
        lambda: session.stream("q", kind="pending"),
        lambda: stream.append(rows(stream, 2, 1)),
        session.close,
    ):
        with pytest.raises(DeliveryError) as ended:
            call()
        assert ended.value.outcome == "not taken"
    session.close()


def test_a_permanent_error_ends_the_session(
    cluster: MockCluster, session_kafka: KafkaConfig
) -> None:
    """WRS-8."""
    session = WriteSession(session_kafka, FACTS, "job")
    stream = session.stream("p", kind="pending")
    cluster.answer_with(ADD_PARTITIONS, FORBIDDEN_TOPIC, FORBIDDEN_TOPIC)
    with pytest.raises(DeliveryError, match="authorization") as refused:
        stream.append(rows(stream, 0, 1)).result(30)
    assert refused.value.outcome == "not taken"


@pytest.mark.parametrize("is_known", [False, True])
def test_another_owner_ends_the_session(
    is_known: bool, session_kafka: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-2, WRS-3: the records before those of the other owner have the outcome."""

    def taken_over(producer: Producer) -> KafkaError:
        if is_known:  # the transaction is before the record of the owner, so it was committed
            producer.flush(10)
        else:
            producer.purge()
        put(session_kafka, "job", SessionEntry("another"))
        return KafkaError(KafkaError._FENCED, "made up")

    session = WriteSession(session_kafka, FACTS, "job", batching=Batching(linger_s=0))
    stream = session.stream("p", kind="pending")
    stream.append(rows(stream, 0, 1)).result(10)
    monkeypatch.setattr(transactions, "commit", taken_over)
    append = stream.append(rows(stream, 1, 1))
    if is_known:
        assert append.result(30) == AppendResult(1, 1)
    else:
        with pytest.raises(WriterConflictError) as conflict:
            append.result(30)
        assert conflict.value.fields["outcome"] == "not taken"
    with pytest.raises(WriterConflictError):
        session.close()


def test_a_session_that_is_opened_later_has_priority(
    session_kafka: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-3: of two that open at the same time."""

    def taken_over(producer: Producer) -> KafkaError:
        producer.purge()
        put(session_kafka, "job", SessionEntry("another"))
        return KafkaError(KafkaError._FENCED, "made up")

    monkeypatch.setattr(transactions, "commit", taken_over)
    with pytest.raises(WriterConflictError, match="at the same time"):
        WriteSession(session_kafka, FACTS, "job")
    monkeypatch.setattr(catalogs, "OPEN_TIMEOUT_S", -1.0)
    with pytest.raises(BrokerError, match="open the write session"):
        WriteSession(session_kafka, FACTS, "job")


def test_rows_in_flight_are_bounded_and_close_waits(
    session_kafka: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-9, WRS-6: an append that is larger than the limit is sent alone."""
    monkeypatch.setattr(client, "QUEUE_TIMEOUT_S", 0)
    batching = Batching(linger_s=60, max_in_flight_bytes=10)
    with WriteSession(session_kafka, FACTS, "job", batching=batching) as session:
        stream = session.stream("p", kind="pending")
        appends = [stream.append(rows(stream, 0, 10)), None]
        with pytest.raises(QueueFullError):
            stream.append(rows(stream, 10, 1))
        session.flush(10)
        appends[1] = stream.append(rows(stream, 10, 10))
    assert [one.result(0).offset for one in appends if one is not None] == [0, 10]


def test_a_session_whose_block_raises_keeps_its_stream_partition(
    session_kafka: KafkaConfig,
) -> None:
    """WRS-10: the source may not be delivered, so the low watermark must wait."""
    with pytest.raises(KeyError), WriteSession(session_kafka, FACTS, "job") as session:
        stream = session.stream("c", kind="committed")
        stream.append(rows(stream, 0, 3)).result(10)
        raise KeyError
    catalog = catalogs.read(session_kafka, CATALOG, is_complete=True)
    assert catalog.sessions["job"].announced == (session.stream_partition,)


def test_open_write_streams_are_limited(
    session_kafka: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-4: those that others have finalized meanwhile do not count."""
    monkeypatch.setattr(sessions, "MAX_OPEN_STREAMS", 2)
    put(session_kafka, "other/p", StreamEntry(StreamKind.PENDING, changed_at=1))
    with WriteSession(session_kafka, FACTS, "job") as session:
        stream = session.stream("p", kind="pending")
        with pytest.raises(WriteStreamError, match="2 open"):
            session.stream("q", kind="pending")
        session.stream("c", kind="committed")
        stream.finalize()
        stream = session.stream("q", kind="buffered")
        finalized = StreamEntry(StreamKind.PENDING, StreamState.FINALIZED, changed_at=1)
        put(session_kafka, "other/p", finalized)
        session.stream("r", kind="pending")


def test_a_catalog_with_other_records_is_an_error(session_kafka: KafkaConfig) -> None:
    """WRS-3."""
    producer = Producer({"bootstrap.servers": session_kafka.bootstrap_servers})
    producer.produce(CATALOG.topic, b"no JSON", b"job/p", 0)
    assert producer.flush(10) == 0
    with pytest.raises(TopicError, match="was not written by lowmark"):
        WriteSession(session_kafka, FACTS, "job")


def test_a_catalog_must_be_compacted(
    session_kafka: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-3."""
    monkeypatch.setattr(topics, "describe", lambda kafka, topic: FACTS)
    with pytest.raises(TopicError, match="cannot be a ledger or a catalog"):
        WriteSession(session_kafka, FACTS, "job")


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError._TIMED_OUT])
def test_a_commit_is_repeated_until_its_timeout(
    code: int, session_kafka: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-14."""
    finalized = StreamEntry(StreamKind.PENDING, StreamState.FINALIZED, 3, changed_at=2**60)
    put(session_kafka, "job/p", finalized)

    def fails(self: TransactionClient, messages: list[TransactionMessage]) -> object:
        return self._failed(KafkaError(code, "made up"), code != KafkaError._FENCED)

    monkeypatch.setattr(TransactionClient, "commit", fails)
    monkeypatch.setattr(commits, "_MAX_PAUSE_S", 0.1)
    monkeypatch.setattr(commits, "MAX_RETRY_S", 0.2)
    expected = WriterConflictError if code == KafkaError._FENCED else DeliveryError
    with pytest.raises(expected):
        commit_streams(session_kafka, "t", ["job/p"])
