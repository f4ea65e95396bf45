"""Serves metrics over HTTP, for Prometheus (MET-1). No other module imports prometheus_client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from connector.errors import argument_invalid
from connector.reports.series import Histogram, Sample, Series

__all__ = ["HasSamples", "exporting"]

_FAMILIES: Final[dict[str, Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class HasSamples(Protocol):
    """Something with samples, which another thread reads: for example the `Metrics` of a
    pipeline, or a `ChangeProducer`.
    """

    def samples(self) -> Iterable[Sample]: ...


class _Collector(Collector):
    def __init__(self, metrics: HasSamples) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield the family of each series that has samples."""
        families: dict[Series, Any] = {}
        for series, value, labels in self._metrics.samples():
            if (family := families.get(series)) is None:
                family = _FAMILIES[series.kind](series.name, series.help, labels=series.labels)
                families[series] = family
            if isinstance(value, Histogram):
                family.add_metric(labels, value.cumulative, value.sum)
            else:
                family.add_metric(labels, value)
        yield from families.values()


@contextmanager
def exporting(metrics: HasSamples, host: str, port: int) -> Iterator[int]:
    """Serve metrics at `http://host:port/metrics` during the block, without TLS and without a
    password.

    Args:
        metrics: The `Metrics` that you give to `run`, or a `ChangeProducer`.
        host: An address of this machine.
        port: A free port. 0: any.

    Returns:
        A context manager with the port.

    Raises:
        ConfigError: The address cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(_Collector(metrics))
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        allowed = f"an address of this machine with a free port ({error.strerror or error})"
        raise argument_invalid("metrics", f"{host}:{port}", allowed) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
