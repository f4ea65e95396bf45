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
from connector.reports.metrics import SERIES
from connector.services.metrics import Metrics
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
    """MET-1: a parser of the standard reads it. Each declared series has its text and its kind."""
    with exporting(running(["t0"]), "127.0.0.1", 0) as port:
        families = {found.name: found for found in text_string_to_metric_families(scraped(port))}
    for series in SERIES:
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
