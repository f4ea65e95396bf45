"""The metrics of a process: what they keep of a pipeline (MET-1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import Producer

from connector import (
    Column,
    ConnectorConfig,
    DataType,
    KafkaConfig,
    Key,
    KeyPart,
    StreamConfig,
    TableDefinition,
)
from connector.clock import now_us
from connector.events import Event, info, warning
from connector.reports.series import Histogram
from connector.services.metrics import Metrics
from connector.state.jobs import Job, JobKind
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from connector.state.unapplied import BatchContents
from connector.watermarks.freshness import Contained, FreshnessLog
from connector.watermarks.frontier import Frontier, LastAdvance
from connector.watermarks.stream_partition import StreamPartition
from tests.unit.mock_cluster import (
    FACTS,
    MockCluster,
    answer_topic_requests,
    running_cluster,
)

TABLE = TableDefinition(
    name="t",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.STRING),)),
    columns=(Column("name", "f", b"name", DataType.STRING),),
    max_staleness_s=60,
)


def config(tables: list[str], streams: list[str] | None = None) -> ConnectorConfig:
    names = ["s"] if streams is None else streams
    return ConnectorConfig(
        "/warehouse",
        KafkaConfig("127.0.0.1:9092"),
        streams={name: StreamConfig(name=name, topic=name) for name in names},
        tables={name: replace(TABLE, name=name) for name in tables},
    )


def running(tables: list[str]) -> Metrics:
    """The metrics of a pipeline that has ingested and applied."""
    metrics = Metrics()
    metrics.begin(config(tables))
    names = [f"p{number}" for number in range(100)]
    frontier = Frontier(
        kafka_partitions=4,
        partitions=dict.fromkeys(names, StreamPartition(claims=dict.fromkeys(range(4), 7))),
        last_advance=dict.fromkeys(names, LastAdvance(7, 7)),
        low_watermark=7,
        low_advanced_at=7,
    )
    fresh = FreshnessLog((Contained(2, 8),))
    progress = Progress(ingest_batch=2, changes=9, freshness=fresh, frontier=frontier)
    metrics.on_batch("s", progress, {0: 5}, 1.5, {2: BatchContents(40)})
    for name in tables:
        metrics.on_table(name, TableState(complete_to_batch=2, merged=3, apply_watermark=7))
        metrics.on_job(Job(JobKind.APPLY, name, 0, 300_000))
    return metrics


def value_of(metrics: Metrics, name: str, *labels: str) -> float | Histogram | None:
    return next(
        (
            sample.value
            for sample in metrics.samples(10_000_000)
            if (sample.series.name, sample.labels) == (f"lowmark_{name}", labels)
        ),
        None,
    )


def test_a_new_configuration_keeps_what_it_still_has() -> None:
    """MET-1, EVO-8: a table and a stream that were removed have no series."""
    metrics = running(["kept", "removed"])
    metrics.begin(config(["kept", "added"], ["s", "other"]))
    assert value_of(metrics, "table_merged_changes", "kept") == 3
    assert value_of(metrics, "table_merged_changes", "removed") is None
    assert value_of(metrics, "table_bound_seconds", "added") == 60
    assert value_of(metrics, "stream_changes", "s") == 9
    metrics.begin(config([], ["other"]))
    assert value_of(metrics, "stream_changes", "s") is None


def test_events_are_counted_and_passed_on() -> None:
    """MET-1, LOG-1"""
    metrics, passed = Metrics(), list[Event]()
    on_event = metrics.noting(passed.append)
    events = [info("A", "a"), warning("B", "b"), warning("B", "b"), Event("error", "C", "c")]
    for event in events:
        on_event(event)
    assert passed == events
    assert value_of(metrics, "warnings", "A") is None
    assert value_of(metrics, "warnings", "B") == 2
    assert value_of(metrics, "last_error_age_seconds", "C") == 0


def test_it_is_known_whether_the_pipeline_runs() -> None:
    """MET-1: also after a failure."""
    metrics = Metrics()
    assert value_of(metrics, "running") == 0
    with pytest.raises(ValueError, match="x"), metrics.running():
        assert value_of(metrics, "running") == 1
        raise ValueError("x")
    assert value_of(metrics, "running") == 0


def test_a_batch_without_records_has_no_duration() -> None:
    """MET-1: a request of an operator, and the state at the start, are no batches of records."""
    metrics = running([])
    metrics.on_batch("s", Progress(ingest_batch=3), None, 0.0, {3: BatchContents(2)})
    metrics.on_batch("s", Progress(ingest_batch=3), {1: 6}, None, {})
    batches = value_of(metrics, "batch_duration_seconds", "s")
    assert batches == Histogram().with_value(1.5)
    assert value_of(metrics, "stream_written_bytes", "s") == 42


def test_it_warns_of_a_low_headroom_once_and_again_when_it_was_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RUN-7: also without a reader of the metrics."""
    with running_cluster() as cluster:
        cluster.create_topic("s", 2)
        produce(cluster, "s", now_us() // 1000 - 60_000)
        metrics, events = running([]), list[Event]()
        asking = replace(config([]), kafka=cluster.kafka)
        for retention_s, read_to, warnings in (
            (300, 0, 0),
            (90, 0, 1),
            (90, 0, 1),
            (90, 1, 1),
            (90, 0, 2),
            (-1, 0, 2),
        ):
            facts = replace(FACTS, topic="s", retention_ms=retention_s * 1000)
            answer_topic_requests(facts, patch=monkeypatch.setattr)
            metrics.on_batch("s", Progress(), {0: read_to}, None, {})
            metrics._ask(asking, asking.streams["s"], events.append, is_measured=False)
            assert len(events) == warnings
    assert {(event.level, event.code, event.fields["stream"]) for event in events} == {
        ("warning", "HEADROOM", "s")
    }
    assert "(offset 0 of Kafka partition 0)" in events[0].text


def produce(cluster: MockCluster, topic: str, milliseconds: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(topic, b"v", b"k", 0, timestamp=milliseconds)
    assert producer.flush(10) == 0
