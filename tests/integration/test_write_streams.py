"""Write streams on a real broker: appends, releases, crashes and two owners (WRS-1 to WRS-15)."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from connector.clock import now_us
from connector.config.settings import KafkaConfig, RegistryConfig
from connector.errors import (
    ConfigError,
    ConnectorError,
    DeliveryError,
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
    LocalBroker,
    WriteSession,
    WriteStream,
    client,
    topics,
    transactions,
)
from connector.kafka.client import messages_between
from connector.kafka.local.folder import free_port
from connector.kafka.transactions import TransactionClient
from connector.kafka.write_streams import catalog as catalogs
from connector.kafka.write_streams import queue
from connector.kafka.write_streams.commit import commit_streams, discard_streams
from connector.kafka.write_streams.queue import Append, AppendResult
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import (
    SERVER_TIME,
    ChildPartitions,
    DataChange,
    Heartbeat,
    OffsetRange,
    Record,
    Release,
    SetCell,
)
from connector.validation import Limits
from connector.watermarks.advance import advance
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    LineageRecord,
)
from connector.write_streams.model import Catalog, catalog_topic, session_id
from tests.broker import NewTopic, jar_store
from tests.faults.proxy import HOST, Proxy
from tests.integration.changes import change
from tests.integration.write_stream_process import ROWS
from tests.unit.registry_stub import running_registry

ROOT = Path(__file__).parents[2]


def read(kafka: KafkaConfig, topic: str, schemas: Schemas | None = None) -> list[list[Record]]:
    """The committed records of each Kafka partition, in order."""
    facts = topics.describe(kafka, topic)
    begins, ends = topics.beginning_offsets(kafka, facts), topics.high_watermarks(kafka, facts)
    errors = client.LastError()
    consumer = client.consumer(kafka, errors, {"group.id": "test"})
    found: list[list[Record]] = [[] for _ in range(facts.kafka_partitions)]
    ranges = {k: (begins[k], ends[k]) for k in ends}
    for message in messages_between(consumer, kafka, errors, ranges, topic, 90):
        record = decode(message.value(), schemas or Schemas())
        assert isinstance(record, ChangeRecord), record
        found[message.partition() or 0].append(record.record)
    consumer.close()
    return found


def offsets(records: list[list[Record]]) -> dict[str, list[int]]:
    """The offsets of the rows of each write stream, sorted. Doubles are kept."""
    found: dict[str, list[int]] = {}
    for record in (one for of_partition in records for one in of_partition):
        if isinstance(record, DataChange) and record.write_stream is not None:
            found.setdefault(record.write_stream.stream, []).append(record.write_stream.offset)
    return {stream: sorted(numbers) for stream, numbers in found.items()}


def of_kind(records: list[list[Record]], kind: type[Record]) -> list[list[Record]]:
    return [[one for one in of_partition if isinstance(one, kind)] for of_partition in records]


def rows(stream: WriteStream, first: int, count: int, value: bytes = b"v") -> list[DataChange]:
    is_committed = stream.kind == "committed"
    return [
        stream.row(
            table="t",
            row_key=b"row-%d" % number,
            entries=[SetCell("f", b"q", value, SERVER_TIME)],
            commit_timestamp=1_000_000 + number if is_committed else None,
        )
        for number in range(first, first + count)
    ]


def read_catalog(kafka: KafkaConfig, topic: str) -> Catalog:
    return catalogs.read(kafka, catalogs.describe(kafka, topic), is_complete=True)


# ── worked examples ───────────────────────────────────────────────────────────────────────────────


def test_examples_1_and_2_offsets_of_a_committed_write_stream(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-5, WRS-7."""
    topic = new_topic(kafka_partitions=3).topic
    with WriteSession(kafka, topic, "job") as session:
        stream = session.stream("a", kind="committed")
        first = rows(stream, 0, 300)
        assert stream.append(first, 0).result(30) == AppendResult(0, 300)
        assert stream.append(first, 0).result(30) == AppendResult(0, 300, repeated=300)
        with pytest.raises(OffsetError) as beyond:
            stream.append(rows(stream, 360, 20), 360)
        assert (beyond.value.expected, beyond.value.received) == (300, 360)
        overlapping = rows(stream, 250, 100)
        with pytest.raises(OffsetError) as overlap:
            stream.append(overlapping, 250)
        found = overlap.value
        assert (found.expected, found.received, found.rows) == (300, 250, 100)
        assert stream.append(overlapping[50:], 300).result(30) == AppendResult(300, 50)
        assert stream.next_offset() == 350
        with pytest.raises(OffsetError):
            stream.append(rows(stream, 300, 50, b"other"), 300)
    assert offsets(read(kafka, topic)) == {"job/a": list(range(350))}


def test_example_3_an_invalid_row_refuses_its_append(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-5: nothing of the append is sent, and later offsets are out of range."""
    topic = new_topic().topic
    with WriteSession(kafka, topic, "job", limits=Limits(max_record_bytes=1_000)) as session:
        stream = session.stream("rows", kind="pending")
        first = stream.append(rows(stream, 0, 40), 0)
        second = rows(stream, 40, 40)
        second[12] = stream.row(
            table="t", row_key=b"row", entries=[SetCell("f", b"q", b"x" * 1_000)]
        )
        with pytest.raises(RowErrors) as invalid:
            stream.append(second, 40)
        assert {n: (e.rule, e.field) for n, e in invalid.value.errors.items()} == {
            12: ("TOO_LARGE", "record")
        }
        with pytest.raises(OffsetError) as beyond:
            stream.append(rows(stream, 80, 40), 80)
        assert (beyond.value.expected, beyond.value.received) == (40, 80)
        assert first.result(30) == AppendResult(0, 40)
    assert offsets(read(kafka, topic)) == {"job/rows": list(range(40))}


def test_examples_4_and_5_a_commit_of_two_sessions_is_one_release(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-14, WRS-15: all or none, and the same answer again for exactly the same set."""
    topic = new_topic(kafka_partitions=2).topic
    for session_name, count, finalizes in (("w1", 1200, True), ("w2", 800, False)):
        with WriteSession(kafka, topic, session_name) as session:
            stream = session.stream("p", kind="pending")
            for first in range(0, count, 400):
                stream.append(rows(stream, first, 400), first)
            if finalizes:
                assert stream.finalize() == count
    with pytest.raises(WriteStreamError) as refused:
        commit_streams(kafka, topic, ["w1/p", "w2/p"])
    assert refused.value.faults == (("w2/p", "NOT_FINALIZED"),)
    assert of_kind(read(kafka, topic), Release) == [[], []]

    with WriteSession(kafka, topic, "w2") as session:
        assert session.stream("p", kind="pending").finalize() == 800
    before = now_us()
    committed = commit_streams(kafka, topic, ["w2/p", "w1/p"])
    assert before <= committed <= now_us()
    found = read(kafka, topic)
    ranges = (OffsetRange("w1/p", 0, 1200), OffsetRange("w2/p", 0, 800))
    for of_partition in of_kind(found, Release):
        (release,) = of_partition
        assert isinstance(release, Release)
        assert (release.commit_timestamp, release.ranges) == (committed, ranges)
    assert offsets(found) == {"w1/p": list(range(1200)), "w2/p": list(range(800))}

    assert commit_streams(kafka, topic, ["w1/p", "w2/p"]) == committed
    with pytest.raises(WriteStreamError) as again:
        commit_streams(kafka, topic, ["w1/p"])
    assert again.value.faults == (("w1/p", "ALREADY_COMMITTED"),)
    assert sum(map(len, of_kind(read(kafka, topic), Release))) == 2


def test_example_6_a_buffered_write_stream_is_flushed_in_part(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-12."""
    topic = new_topic(kafka_partitions=2).topic
    with WriteSession(kafka, topic, "job") as session:
        stream = session.stream("b", kind="buffered")
        stream.append(rows(stream, 0, 10))
        assert stream.flush_rows(4) == 4
        assert stream.flush_rows(2) == 4
        with pytest.raises(OffsetError) as beyond:
            stream.flush_rows(11)
        assert (beyond.value.expected, beyond.value.received) == (10, 11)
        assert stream.flush_rows(6) == 6
        assert stream.finalize() == 10
        with pytest.raises(WriteStreamError) as finalized:
            stream.flush_rows(8)
        assert finalized.value.fault == "FINALIZED"
    found = read(kafka, topic)
    for of_partition in of_kind(found, Release):
        assert [one.ranges for one in of_partition if isinstance(one, Release)] == [
            (OffsetRange("job/b", 0, 4),),
            (OffsetRange("job/b", 4, 6),),
        ]
    last = max(one.commit_timestamp for one in of_kind(found, Release)[0])  # type: ignore[union-attr]
    before_the_end = [
        [one for one in of_partition if getattr(one, "children", True)] for of_partition in found
    ]
    assert (low_watermark(before_the_end) or 0) > last, "nothing delays it behind a release"
    assert read_catalog(kafka, topic).streams["job/b"].flushed == 6


def low_watermark(records: list[list[Record]]) -> int | None:
    """The low watermark of a reader of all records."""
    claims: dict[str, dict[int, int]] = {}
    lineage = []
    for k, of_partition in enumerate(records):
        for one in of_partition:
            if isinstance(one, Heartbeat):
                known = claims.setdefault(one.stream_partition, {})
                known[k] = max(known.get(k, 0), one.timestamp + 1)
            elif isinstance(one, ChildPartitions):
                lineage.append(LineageRecord(k, len(records), one))
            elif not isinstance(one, DataChange) or not one.is_staged:
                claims.setdefault(one.stream_partition, {}).setdefault(k, 0)
    return advance(UNKNOWN, BatchClaims(len(records), claims, tuple(lineage)), now=0).low_watermark


# ── kinds ─────────────────────────────────────────────────────────────────────────────────────────


def test_staged_rows_have_no_time_of_their_own(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """WRS-11: `SERVER_TIME` becomes the time of the append, and the rows make no claim."""
    topic = new_topic().topic
    before = now_us()
    with WriteSession(kafka, topic, "job") as session:
        stream = session.stream("p", kind="pending")
        stream.append(rows(stream, 0, 3)).result(30)
        assert session.stream("p", kind="pending") is stream
        with pytest.raises(WriteStreamError) as other:
            session.stream("p", kind="committed")
        assert other.value.fault == "WRONG_KIND"
        with pytest.raises(ConfigError):
            stream.row(table="t", row_key=b"k", entries=[], commit_timestamp=5)
    (records,) = read(kafka, topic)
    assert len(records) == 3, "no announcement, no heartbeat"
    for record in records:
        assert isinstance(record, DataChange)
        assert record.commit_timestamp == record.estimated_low_watermark == 0
        (cell,) = record.entries
        assert isinstance(cell, SetCell)
        assert before <= cell.cell_timestamp <= now_us()
    with WriteSession(kafka, topic, "job") as session, pytest.raises(WriteStreamError):
        session.stream("p", kind="buffered")


def test_a_session_announces_its_stream_partition_sends_heartbeats_and_ends_it(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-10, PUB-1, REC-18."""
    topic = new_topic(kafka_partitions=2).topic
    with WriteSession(kafka, topic, "job") as session:
        stream = session.stream("a", kind="committed")
        stream.append(rows(stream, 0, 5))
        session.reached(1_000_004, b"token")
        with pytest.raises(RowErrors) as early:
            stream.append(rows(stream, 3, 2), 5)
        assert [e.rule for e in early.value.errors.values()] == ["COMMIT_TIMESTAMP"] * 2
        repeated = stream.append(rows(stream, 0, 5), 0)
        stream.append(rows(stream, 5, 5), 5).result(30)
        assert repeated.result(30).repeated == 5
        session.reached(1_000_009)
        name = session.stream_partition
        assert read_catalog(kafka, topic).sessions["job"].announced == (name,)
    found = read(kafka, topic)
    for of_partition in found:
        controls = [one for one in of_partition if not isinstance(one, DataChange)]
        begin, *heartbeats, end = controls
        assert isinstance(begin, ChildPartitions)
        assert begin.children
        assert begin.start_timestamp == 999_999
        assert heartbeats[-1] == Heartbeat(name, 1_000_009)
        assert end == ChildPartitions(name, 1_000_010, 0, ())
    assert advance_live(found) == set()
    with WriteSession(kafka, topic, "job") as session:
        assert session.stream_partition != name, "one that has ended cannot begin again"
        stream = session.stream("a", kind="committed")
        assert stream.next_offset() == 10
        stream.append(rows(stream, 10, 1), 10).result(30)
        second = session.stream_partition
        session.close(ends_partition=False)
    assert advance_live(read(kafka, topic)) == {second}
    with WriteSession(kafka, topic, "job") as session:
        assert session.stream_partition == second
    assert advance_live(read(kafka, topic)) == set(), "also one that an earlier session began"


def advance_live(records: list[list[Record]]) -> set[str]:
    lineage = tuple(
        LineageRecord(k, len(records), one)
        for k, of_partition in enumerate(records)
        for one in of_partition
        if isinstance(one, ChildPartitions)
    )
    return set(advance(UNKNOWN, BatchClaims(len(records), {}, lineage), now=0).live)


def test_a_release_through_a_producer_counts_as_a_change_of_it(
    kafka: KafkaConfig, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-15: no heartbeat at or above it precedes it, not the timer's, not one in a transaction.
    Without the hold, this fails.
    """
    topic = new_topic(kafka_partitions=2).topic
    with WriteSession(kafka, topic, "job") as session:
        stream = session.stream("p", kind="pending")
        stream.append(rows(stream, 0, 3))
        stream.finalize()
    inside, go_on = threading.Event(), threading.Event()
    commit = transactions.commit

    def slow(producer: object) -> object:
        if threading.current_thread().name == "commit":
            inside.set()
            assert go_on.wait(30)
        return commit(producer)  # type: ignore[arg-type]

    monkeypatch.setattr(transactions, "commit", slow)
    answers: list[int] = []
    with ChangeProducer(kafka, topic, heartbeat_s=1, transactional_id="app") as producer:
        with pytest.raises(WriteStreamError) as nothing_live:
            commit_streams(kafka, topic, ["job/p"], through=producer)
        assert nothing_live.value.code == "PRODUCER_WITHOUT_PARTITION"
        future = now_us() + 60_000_000
        producer.send(change(1))
        producer.send(Heartbeat("p", future))
        producer.flush()
        thread = threading.Thread(
            target=lambda: answers.append(
                commit_streams(kafka, topic, ["job/p"], through=producer)
            ),
            name="commit",
        )
        thread.start()
        assert inside.wait(30)
        producer.reached("p", future + 10)
        sent = producer.heartbeats
        producer.poll(1.5)
        assert producer.heartbeats == sent, "the timer waits for the release"
        later = threading.Thread(target=producer.send, args=(Heartbeat("p", future + 20),))
        later.start()
        later.join(0.5)
        assert later.is_alive(), "so does a heartbeat of the application"
        go_on.set()
        thread.join(30)
        later.join(30)
        assert not later.is_alive()
    assert answers == [future + 1], "now is less, and the last heartbeat is at `future`"
    for of_partition in read(kafka, topic):
        kinds = [one for one in of_partition if isinstance(one, (Heartbeat, Release))]
        at = next(n for n, one in enumerate(kinds) if isinstance(one, Release))
        assert kinds[at].stream_partition == "p"
        assert max(one.timestamp for one in kinds[:at] if isinstance(one, Heartbeat)) == future
        assert any(isinstance(one, Heartbeat) and one.timestamp > future for one in kinds[at:])


def test_a_buffered_write_stream_is_flushed_through_a_producer(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-12, WRS-15: a second release of a stream partition is after the first."""
    topic = new_topic().topic
    with (
        ChangeProducer(kafka, topic) as producer,
        WriteSession(kafka, topic, "job") as session,
    ):
        future = now_us() + 60_000_000
        producer.send(Heartbeat("p", future))
        stream = session.stream("b", kind="buffered")
        stream.append(rows(stream, 0, 10))
        assert stream.flush_rows(4, through=producer) == 4
        assert stream.flush_rows(10, through=producer) == 10
    (records,) = of_kind(read(kafka, topic), Release)
    assert records == [
        Release("p", future + 1, (OffsetRange("job/b", 0, 4),)),
        Release("p", future + 2, (OffsetRange("job/b", 4, 10),)),
    ]


def test_a_backfill_is_released_at_the_time_of_its_export(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-15, REC-23: in a stream partition of its own, which ends with it."""
    topic = new_topic(kafka_partitions=2).topic
    with WriteSession(kafka, topic, "job") as session:
        for name in ("p", "empty"):
            stream = session.stream(name, kind="pending")
            if name == "p":
                stream.append(rows(stream, 0, 3))
            stream.finalize()
    exported_at = now_us() - 3_600_000_000
    with pytest.raises(ConfigError, match="as_of"):
        commit_streams(kafka, topic, ["job/p"], as_of=now_us() + 10**9)
    names = ["job/p", "job/empty"]
    assert commit_streams(kafka, topic, names, as_of=exported_at) == exported_at
    found = read(kafka, topic)
    for of_partition in of_kind(found, Release):
        assert [(one.commit_timestamp, one.ranges) for one in of_partition] == [  # type: ignore[union-attr]
            (exported_at, (OffsetRange("job/p", 0, 3),))
        ]
    assert advance_live(found) == set()


def test_discarded_write_streams_are_never_committed(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-14: one that is open is refused, because its session may go on."""
    topic = new_topic().topic
    with WriteSession(kafka, topic, "job") as session:
        stream = session.stream("p", kind="pending")
        stream.append(rows(stream, 0, 3)).result(30)
        with pytest.raises(WriteStreamError) as refused:
            discard_streams(kafka, topic, ["job/p", "job/none"])
        assert refused.value.faults == (("job/none", "NOT_FOUND"), ("job/p", "NOT_FINALIZED"))
        stream.finalize()
        with pytest.raises(WriteStreamError) as finalized:
            stream.append(rows(stream, 3, 1))
        assert finalized.value.fault == "FINALIZED"
        discard_streams(kafka, topic, ["job/p"])
        discard_streams(kafka, topic, ["job/p"])
    with pytest.raises(WriteStreamError) as discarded:
        commit_streams(kafka, topic, ["job/p"])
    assert discarded.value.faults == (("job/p", "DISCARDED"),)
    with WriteSession(kafka, topic, "job") as session, pytest.raises(WriteStreamError) as gone:
        session.stream("p", kind="pending").append(rows(stream, 3, 1))
    assert gone.value.fault == "DISCARDED"


def test_an_expired_write_stream_takes_nothing(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """WRS-21."""
    topic = new_topic().topic
    with WriteSession(kafka, topic, "job", staging_retention_s=0) as session:
        stream = session.stream("p", kind="pending")
        stream.append(rows(stream, 0, 3)).result(30)
        for refused in (
            lambda: stream.append(rows(stream, 3, 1)),
            stream.finalize,
        ):
            with pytest.raises(WriteStreamError) as expired:
                refused()
            assert expired.value.fault == "EXPIRED"
    with pytest.raises(WriteStreamError) as of_commit:
        commit_streams(kafka, topic, ["job/p"], staging_retention_s=0)
    assert of_commit.value.faults == (("job/p", "EXPIRED"),)
    discard_streams(kafka, topic, ["job/p"], staging_retention_s=0)


def test_with_a_registry_records_have_its_schema_id(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """REC-11, WRS-16."""
    topic = new_topic().topic
    with running_registry() as registry:
        config = RegistryConfig(registry.url, auto_register=True)
        with WriteSession(kafka, topic, "job", registry=config) as session:
            stream = session.stream("a", kind="committed")
            stream.append(rows(stream, 0, 2))
            session.reached(1_000_001)
        assert len(registry.schemas) == 1
        (records,) = read(kafka, topic, Schemas(dict(registry.schemas)))
    assert Counter(type(one) for one in records)[DataChange] == 2


def test_a_topic_without_a_catalog_is_an_error_with_a_remedy(
    kafka: KafkaConfig, new_topic: NewTopic, admin: object
) -> None:
    """WRS-3: for example a topic that another tool made. To create the topics again is enough."""
    facts = new_topic()
    admin.delete_topics([catalog_topic(facts.topic)])[catalog_topic(facts.topic)].result(30)  # type: ignore[attr-defined]
    with pytest.raises(TopicError) as missing:
        WriteSession(kafka, facts.topic, "job")
    assert missing.value.code == "TOPIC_MISSING"
    topics.create_topic(kafka, facts.topic, kafka_partitions=1)
    with WriteSession(kafka, facts.topic, "job"):
        pass
    with pytest.raises(ConfigError, match="uses this one"):
        topics.create_topic(kafka, catalog_topic(facts.topic), kafka_partitions=1)


# ── limits ────────────────────────────────────────────────────────────────────────────────────────


def test_rows_in_flight_are_bounded(
    kafka: KafkaConfig, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-9: append blocks until there is space, or raises. A large append is sent alone."""
    topic, of_100_rows = new_topic().topic, 100 * queue.ROW_OVERHEAD_BYTES
    batching = Batching(linger_s=60, max_in_flight_bytes=of_100_rows)
    monkeypatch.setattr(client, "QUEUE_TIMEOUT_S", 0)
    with WriteSession(kafka, topic, "job", batching=batching) as session:
        stream = session.stream("p", kind="pending")
        large = stream.append(rows(stream, 0, 200), 0)
        with pytest.raises(QueueFullError):
            stream.append(rows(stream, 200, 1), 200)
        assert not large.done
        session.flush(30)
        assert large.done
        stream.append(rows(stream, 200, 1), 200)
    monkeypatch.setattr(client, "QUEUE_TIMEOUT_S", 30)
    batching = Batching(linger_s=0.2, max_in_flight_bytes=of_100_rows)
    with WriteSession(kafka, topic, "job", batching=batching) as session:
        stream = session.stream("p", kind="pending")
        appends = [stream.append(rows(stream, first, 60), first) for first in range(201, 501, 60)]
        assert [one.done for one in appends][:4] == [True] * 4, "each waited for the one before"
    assert offsets(read(kafka, topic)) == {"job/p": list(range(501))}


@pytest.mark.parametrize(
    ("session", "name", "kind"),
    [("a/b", "n", "pending"), ("", "n", "pending"), ("s", "n" * 65, "pending"), ("s", "n", "x")],
)
def test_names_and_kinds_are_checked(
    session: str, name: str, kind: str, kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-4."""
    topic = new_topic().topic
    with (
        pytest.raises(ConfigError),
        WriteSession(kafka, topic, session) as opened,
    ):
        opened.stream(name, kind=kind)


def test_rows_of_another_write_stream_are_refused(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """WRS-5: every invalid row is named."""
    topic = new_topic().topic
    with WriteSession(kafka, topic, "job") as session:
        stream, other = (session.stream(name, kind="pending") for name in ("p", "q"))
        committed = session.stream("c", kind="committed")
        (good,) = rows(stream, 0, 1)
        bad = [
            *rows(other, 0, 1),
            replace(good, stream_partition="p"),
            *rows(committed, 0, 1),
            change(1),
        ]
        with pytest.raises(RowErrors) as invalid:
            stream.append([good, *bad, good])
        assert {n: one.rule for n, one in invalid.value.errors.items()} == {
            1: "WRITE_STREAM",
            2: "STREAM_PARTITION",
            3: "WRITE_STREAM",
            4: "WRITE_STREAM",
        }
        (timed,) = rows(committed, 0, 1)
        with pytest.raises(RowErrors) as claims:
            committed.append([replace(timed, estimated_low_watermark=5)])
        assert claims.value.errors[0].rule == "ESTIMATED_LOW_WATERMARK"
        for count in (0, 1_001):
            with pytest.raises(ConfigError):
                stream.append([good] * count)
    assert offsets(read(kafka, topic)) == {}


# ── crashes and failures ──────────────────────────────────────────────────────────────────────────


def run(
    kafka: KafkaConfig, topic: str, when: str, count: int = 0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "tests.integration.write_stream_process"),
            *(kafka.bootstrap_servers, topic, when, str(count)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("when", "count"),
    [
        pytest.param("after", 3, id="commit_transaction, answer lost"),
        pytest.param("before", 1, id="while it opens the session", marks=pytest.mark.systems),
        pytest.param("before", 3, id="append", marks=pytest.mark.systems),
        pytest.param("after", 5, id="some answers", marks=pytest.mark.systems),
        pytest.param("before", 7, id="before finalize", marks=pytest.mark.systems),
        pytest.param("after", 7, id="finalize", marks=pytest.mark.systems),
        pytest.param("before", 8, id="before the release", marks=pytest.mark.systems),
        pytest.param("after", 8, id="release, answer lost", marks=pytest.mark.systems),
    ],
)
def test_a_program_that_is_killed_and_started_again_sends_each_row_once(
    when: str, count: int, kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-5 to WRS-8, WRS-13, WRS-14; `exactly_once`: the producer's lines of the crash table."""
    topic = new_topic(kafka_partitions=2).topic
    assert run(kafka, topic, when, count).returncode == -signal.SIGKILL
    ended = run(kafka, topic, "never")
    assert ended.returncode == 0, ended.stderr
    committed = int(ended.stdout)
    found = read(kafka, topic)
    assert offsets(found) == {"job/rows": list(range(ROWS))}
    releases = [one for of_partition in of_kind(found, Release) for one in of_partition]
    assert [(one.commit_timestamp, one.ranges) for one in releases] == [  # type: ignore[union-attr]
        (committed, (OffsetRange("job/rows", 0, ROWS),))
    ] * 2


def append_until_it_fails(
    stream: WriteStream, appends: list[Append], is_enough: Callable[[], bool]
) -> None:
    while not is_enough():
        offset = stream.next_offset()
        try:
            appends.append(stream.append(rows(stream, offset, 10), offset))
        except ConnectorError:
            return


def check_outcomes(appends: list[Append], before: int, found: list[int]) -> Counter[str]:
    """Each append of 10 rows was answered truthfully: taken, not taken, or unknown."""
    outcomes: Counter[str] = Counter()
    taken = set(found)
    assert len(taken) == len(found), "no row twice"
    for number, append in enumerate(appends):
        its = set(range(before + 10 * number, before + 10 * number + 10))
        try:
            append.result(120)
        except (DeliveryError, WriterConflictError) as error:
            outcomes[str(error.fields["outcome"])] += 1
            if error.fields["outcome"] == "not taken":
                assert not its & taken, its
        else:
            outcomes["taken"] += 1
            assert its <= taken, its
    return outcomes


@pytest.mark.parametrize("is_busy", [False, pytest.param(True, marks=pytest.mark.systems)])
def test_a_session_has_one_owner(is_busy: bool, kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """WRS-2, WRS-3: the earlier one raises, nothing is lost, and nothing is there twice."""
    topic = new_topic(kafka_partitions=2).topic
    earlier = WriteSession(kafka, topic, "job", batching=Batching(linger_s=0))
    stream = earlier.stream("p", kind="pending")
    appends = [stream.append(rows(stream, 0, 10), 0)]
    appends[0].result(30)
    thread = threading.Thread(
        target=append_until_it_fails,
        args=(stream, appends, lambda: not is_busy or len(appends) > 20_000),
    )
    thread.start()
    with WriteSession(kafka, topic, "job") as later:
        continued = later.stream("p", kind="pending")
        first = continued.next_offset()
        assert first >= 10
        (other,) = [earlier.stream("p", kind="pending")] if not is_busy else [stream]
        with suppress(ConnectorError):
            appends.append(other.append(rows(other, other.next_offset(), 10)))
        thread.join(60)
        with pytest.raises(WriterConflictError) as conflict:
            earlier.flush(60)
        assert conflict.value.code == "TAKEN_OVER"
        continued.append(rows(continued, first, 10), first).result(30)
        with pytest.raises(WriterConflictError):
            earlier.close()
    found = offsets(read(kafka, topic))["job/p"]
    assert found == list(range(first + 10))
    outcomes = check_outcomes(appends, 0, [one for one in found if one < first])
    assert outcomes["taken"] * 10 == first
    assert outcomes["not taken"] >= 1


def test_a_fenced_session_goes_on_while_the_catalog_names_it(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-3: for example, a later one died before it became the owner."""
    topic = new_topic().topic
    with WriteSession(kafka, topic, "job") as session:
        stream = session.stream("p", kind="pending")
        stream.append(rows(stream, 0, 10), 0).result(30)
        died = TransactionClient(kafka, session_id(topic, "job"), 1_000_000)
        died.start()
        died.close()
        assert stream.append(rows(stream, 10, 10), 10).result(60) == AppendResult(10, 10)
        assert stream.finalize() == 20
    assert offsets(read(kafka, topic)) == {"job/p": list(range(20))}


def test_committers_of_one_set_get_one_commit_timestamp(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-14: one that is shut out by another reads the catalog, and tries again."""
    topic = new_topic().topic
    with WriteSession(kafka, topic, "job") as session:
        for name in ("p", "q"):
            stream = session.stream(name, kind="pending")
            stream.append(rows(stream, 0, 10), 0)
            stream.finalize()
    answers: list[int] = []

    def commit() -> None:
        answers.append(commit_streams(kafka, topic, ["job/p", "job/q"]))

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(answers) == 4
    (committed,) = set(answers)
    (releases,) = of_kind(read(kafka, topic), Release)
    assert [one.commit_timestamp for one in releases] == [committed]  # type: ignore[union-attr]


@pytest.mark.long
def test_a_broker_that_restarts_costs_nothing(tmp_path: Path) -> None:
    """WRS-8."""
    with LocalBroker.start(tmp_path, jar_store()) as broker:
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "t", kafka_partitions=2)
        with WriteSession(kafka, "t", "job", batching=Batching(linger_s=0)) as session:
            stream = session.stream("p", kind="pending")
            appends = []
            for number in range(60):
                appends.append(stream.append(rows(stream, 10 * number, 10), 10 * number))
                if number == 20:
                    appends[10].result(30)
                    broker.kill()
                if number == 40:
                    broker.restart()
            assert [one.result(180).offset for one in appends] == list(range(0, 600, 10))
            assert stream.finalize() == 600
        assert offsets(read(kafka, "t")) == {"job/p": list(range(600))}


@pytest.fixture
def behind_proxy(tmp_path: Path) -> Iterator[tuple[KafkaConfig, Proxy]]:
    port = free_port()
    with Proxy(port) as proxy:
        settings = {"advertised.listeners": f"PLAINTEXT://{HOST}:{proxy.port}"}
        with LocalBroker.start(tmp_path, jar_store(), port=port, settings=settings):
            yield KafkaConfig(f"{HOST}:{proxy.port}"), proxy


@pytest.mark.long
def test_each_append_has_its_outcome_after_connections_are_lost(
    behind_proxy: tuple[KafkaConfig, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-8: taken, not taken or unknown, compared with the topic. Each append is a transaction."""
    kafka, proxy = behind_proxy
    topics.create_topic(kafka, "t", kafka_partitions=2)
    monkeypatch.setattr(transactions, "TIMEOUT_S", 2.0)
    known: Counter[str] = Counter()
    for acknowledged in (0, 1, 5, 9, 13):
        session = WriteSession(
            kafka, "t", "job", batching=Batching(linger_s=0, transaction_rows=10, max_retry_s=0)
        )
        stream = session.stream("p", kind="pending")
        before = stream.next_offset()
        appends: list[Append] = []
        for number in range(60):
            offset = before + 10 * number
            appends.append(stream.append(rows(stream, offset, 10), offset))
        appends[acknowledged].result(30)
        proxy.refuses = True
        proxy.cut()
        with pytest.raises(DeliveryError):
            session.flush(60)
        proxy.refuses = False
        with pytest.raises(DeliveryError):
            session.close(5)
        found = offsets(read(kafka, "t"))["job/p"]
        known += check_outcomes(appends, before, found)
        assert found == list(range(len(found)))
    assert known["taken"] >= 5
    assert known["not taken"] >= 5
    assert known.total() == 300


@pytest.mark.systems
@pytest.mark.parametrize("has_result", [False, True])
def test_the_catalog_has_the_outcome_of_a_transaction_without_an_answer(
    has_result: bool, behind_proxy: tuple[KafkaConfig, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """WRS-8: if the commit is in the catalog, the appends are answered. Otherwise they are sent
    again, at the same offsets.
    """
    kafka, proxy = behind_proxy
    topics.create_topic(kafka, "t", kafka_partitions=2)
    monkeypatch.setattr(transactions, "TIMEOUT_S", 2.0)
    commit, calls = transactions.commit, []

    def loses_its_answer(producer: Producer) -> KafkaError | None:
        calls.append(1)
        if len(calls) != 2:
            return commit(producer)
        if has_result:
            assert commit(producer) is None
        else:
            producer.flush(10)
        proxy.refuses = True
        proxy.cut()
        threading.Timer(3, setattr, (proxy, "refuses", False)).start()
        return KafkaError(KafkaError._TIMED_OUT, "the answer is lost")

    with WriteSession(kafka, "t", "job", batching=Batching(linger_s=0)) as session:
        stream = session.stream("p", kind="pending")
        monkeypatch.setattr(transactions, "commit", loses_its_answer)
        calls.append(1)
        appends = [stream.append(rows(stream, first, 10), first) for first in (0, 10, 20)]
        assert [one.result(120).offset for one in appends] == [0, 10, 20]
        assert len(calls) >= 2
        assert stream.finalize() == 30
    assert offsets(read(kafka, "t")) == {"job/p": list(range(30))}


def test_the_catalog_of_a_topic_that_was_deleted_and_created_again_is_refused(
    kafka: KafkaConfig, admin: AdminClient, new_topic: NewTopic
) -> None:
    """REC-4, `nothing_lost`: the catalog has rows that are in no topic. They are neither `repeated`
    nor committed.
    """
    topic = new_topic().topic
    with WriteSession(kafka, topic, "job") as session:
        stream = session.stream("rows", kind="pending")
        stream.append(rows(stream, 0, 5), offset=0)
        stream.finalize()
    admin.delete_topics([topic])[topic].result(30)
    topics.create_topic(kafka, topic, kafka_partitions=1)
    for call in (
        lambda: WriteSession(kafka, topic, "job"),
        lambda: WriteSession(kafka, topic, "another"),
        lambda: commit_streams(kafka, topic, ["job/rows"]),
    ):
        with pytest.raises(TopicError, match="of an earlier topic") as caught:
            call()
        assert caught.value.code == "TOPIC_REPLACED"
    assert of_kind(read(kafka, topic), Release) == [[]]
    admin.delete_topics([catalog_topic(topic)])[catalog_topic(topic)].result(30)
    topics.create_topic(kafka, topic, kafka_partitions=1)
    with WriteSession(kafka, topic, "job") as session:
        assert session.stream("rows", kind="pending").next_offset() == 0
