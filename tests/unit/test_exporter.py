"""The HTTP server that Prometheus scrapes (MET-1)."""

from __future__ import annotations

import socket
import time
import urllib.request
from contextlib import closing

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from connector.errors import ConfigError
from connector.exporter import exporting
from connector.kafka import ChangeProducer
from connector.services.metrics import Metrics
from tests.unit.kafka.test_producer_errors import change
from tests.unit.mock_cluster import FACTS, running_cluster
from tests.unit.services.test_metrics import running

TABLES = [f"t{number}" for number in range(200)]


def scraped(port: int) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics",
        headers={"Accept": "application/openmetrics-text; version=1.0.0"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        return str(answer.read().decode())


def test_a_scrape_is_openmetrics_with_the_declared_series() -> None:
    """MET-1: a parser of the standard reads it. Each series has its text and its kind."""
    metrics = running(["t0"])
    with exporting(metrics, "127.0.0.1", 0) as port:
        families = {found.name: found for found in text_string_to_metric_families(scraped(port))}
    for series in {sample.series for sample in metrics.samples()}:
        family = families[series.name]
        assert (family.type, family.documentation) == (series.kind, series.help)
        for sample in family.samples:
            assert set(series.labels) == sample.labels.keys() - {"le"}
    (changes,) = families["lowmark_stream_changes"].samples
    assert (changes.name, changes.labels, changes.value) == (
        *("lowmark_stream_changes_total", {"stream": "s"}),
        9,
    )
    assert "process_resident_memory_bytes" in families


def test_a_scrape_of_200_tables_takes_less_than_100_ms() -> None:
    """MET-1: the time of the processor, because this machine has other work, too."""
    with exporting(running(TABLES), "127.0.0.1", 0) as port:
        took = []
        for _ in range(5):
            began = time.process_time()
            text = scraped(port)
            took.append(time.process_time() - began)
    assert text.count("lowmark_table_age_seconds{") == 200
    assert min(took) < 0.1, took


def test_the_figures_of_a_producer_are_served_while_it_sends() -> None:
    """MET-1: the thread of the server asks, and the values are those of the producer."""
    with running_cluster() as cluster:
        cluster.create_topic("t", FACTS.kafka_partitions)
        with (
            ChangeProducer(cluster.kafka, FACTS) as producer,
            exporting(producer, "127.0.0.1", 0) as port,
        ):
            for number in range(300):
                producer.send(change(number))
                if number % 100 == 0:
                    assert 'lowmark_producer_queued_messages{topic="t"}' in scraped(port)
            producer.flush()
            text = scraped(port)
    messages = 300 + 2 * producer.announced
    assert 'lowmark_producer_delivered_records_total{topic="t"} 300.0' in text
    assert f'lowmark_producer_acknowledgement_seconds_count{{topic="t"}} {messages}.0' in text
    assert 'lowmark_producer_queued_messages{topic="t"} 0.0' in text
    assert "outbox" not in text


def test_an_address_that_is_taken_is_an_error() -> None:
    """MET-1, OPS-10"""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigError, match="free port") as caught,
            exporting(Metrics(), "127.0.0.1", port),
        ):
            pass
    assert caught.value.code == "ARGUMENT_INVALID"
