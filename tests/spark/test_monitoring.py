"""A real Prometheus scrapes a running pipeline (MET-1, MET-3, MET-4)."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector import KafkaConfig, StreamConfig
from connector.exporter import exporting
from connector.lake.state_reader import progress_of, table_state_of
from connector.records import codec
from connector.records.model import Heartbeat, kafka_key
from connector.services import Metrics, run
from connector.services.warehouses import warehouse_of
from tests.broker import NewTopic
from tests.changes import change, delete_family
from tests.spark.live import Live, beside
from tests.spark.streams import account
from tests.unit.test_deploy import ALERTS, dashboard, of_lowmark, rules

pytestmark = pytest.mark.systems

WITHIN_S = 90
NOT_HERE = {
    # Ingest has read everything, and the broker may be on another machine.
    *("lowmark_stream_headroom_seconds", "lowmark_broker_free_bytes"),
    # A stream without a source has no bridge, one without an error has none, and one without
    # announced stream partitions has no low watermark.
    *("lowmark_bridge_lag_offsets", "lowmark_bridge_heartbeat_age_seconds"),
    *("lowmark_last_error_age_seconds", "lowmark_stream_low_watermark_age_seconds"),
    # The first clean-up comes later.
    *("lowmark_table_live_bytes", "lowmark_table_disk_bytes", "lowmark_maintenance_is_failing"),
    "lowmark_warnings_total",
    # It was not audited.
    *("lowmark_stream_audit_age_seconds", "lowmark_stream_audit_is_failed"),
}
"""Series of rules and dashboard that this pipeline has no value for."""


OLDEST_DELETE = "oldest_unapplied_delete_age_seconds"
OF_PROMETHEUS = ("__name__", "instance", "job")


@pytest.fixture
def live(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> Iterator[Live]:
    with ExitStack() as stack:
        yield Live(spark, kafka, new_topic(kafka_partitions=2).topic, tmp_path / "wh", stack)


def until(is_true: Callable[[], object]) -> None:
    end = time.monotonic() + WITHIN_S
    while not is_true():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.2)


def running(live: Live, metrics: Metrics) -> AbstractContextManager[None]:
    return beside(lambda stop: run(live.config, spark=live.spark, stop=stop, metrics=metrics))


class Announced(Live):
    """The stream partition "p" is the only root."""

    @property
    def stream(self) -> StreamConfig:
        return replace(super().stream, partitions=("p",))

    def heartbeat(self, at: int) -> None:
        heartbeat = Heartbeat("p", at)
        value = codec.frame(codec.encode(heartbeat, 2), None)
        self.send((number, kafka_key(heartbeat), value) for number in (0, 1))


def value_of(metrics: Metrics, series: str, label: str) -> object:
    """The value of the sample with this label. None: there is no such sample."""
    samples = (s for s in metrics.samples() if s.series.name == f"lowmark_{series}")
    return next((sample.value for sample in samples if sample.labels == (label,)), None)


def test_a_delete_counts_until_it_is_applied(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """MET-1, MET-3: one that waits for the low watermark."""
    with ExitStack() as stack:
        topic = new_topic(kafka_partitions=2).topic
        live, metrics = Announced(spark, kafka, topic, tmp_path / "wh", stack), Metrics()
        live.publish(account("a", 10, name="A"), account("b", 11, name="B"))
        live.heartbeat(15)
        stack.enter_context(running(live, metrics))

        def of_table(series: str) -> Any:
            return value_of(metrics, f"table_{series}", "accounts")

        until(lambda: of_table("merged_changes") == 2)
        assert (of_table("pending_changes"), of_table(OLDEST_DELETE)) == (0, 0)
        live.publish(change(delete_family(), at=20, row_key=b"a"))
        until(lambda: of_table("pending_changes") == 1)
        before = of_table(OLDEST_DELETE)
        until(lambda: of_table(OLDEST_DELETE) > before)
        assert of_table("merged_changes") == 2
        live.heartbeat(30)
        until(lambda: of_table("removed_rows") == 1)
        until(lambda: (of_table("pending_changes"), of_table(OLDEST_DELETE)) == (0, 0))
        assert value_of(metrics, "stream_written_bytes", "s")


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


class Prometheus:
    """A Prometheus with the alert rules that scrapes one port each second."""

    def __init__(self, folder: Path, scraped: int) -> None:
        self._url = f"http://127.0.0.1:{(port := _free_port())}"
        config = folder / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{ALERTS}]\n"
            "scrape_configs:\n- job_name: lowmark\n"
            f'  static_configs: [{{targets: ["127.0.0.1:{scraped}"]}}]\n'
        )
        self.process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> dict[str, float]:
        """The newest values, by the labels that the pipeline gave."""
        shown = dict[str, float]()
        for found in self.get("query", query=expression)["result"]:
            labels = sorted(found["metric"].items())
            name = ",".join(value for label, value in labels if label not in OF_PROMETHEUS)
            shown[name] = float(found["value"][1])
        return shown

    def is_scraping(self) -> bool:
        try:
            return self.values("lowmark_running") == {"": 1.0}
        except OSError:
            return False


@contextmanager
def prometheus(folder: Path, scraped: int) -> Iterator[Prometheus]:
    folder.mkdir()
    server = Prometheus(folder, scraped)
    try:
        until(server.is_scraping)
        yield server
    finally:
        server.process.terminate()
        server.process.wait(30)


def test_prometheus_scrapes_what_the_pipeline_commits(live: Live, tmp_path: Path) -> None:
    """MET-1, MET-3, MET-4: each series of the rules and of the dashboard exists, each expression is
    accepted, and the values are those of the commits.
    """
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed (Debian package prometheus)")
    live.publish(*(account(f"a{n}", n, amount=str(n)) for n in range(1, 20)))
    live.send([(0, b"x", b"rubbish")])
    metrics = Metrics()
    with ExitStack() as stack:
        port = stack.enter_context(exporting(metrics, "127.0.0.1", 0))
        stack.enter_context(running(live, metrics))
        server = stack.enter_context(prometheus(tmp_path / "prometheus", port))
        merged = "lowmark_table_merged_changes_total"
        until(lambda: server.values(merged) == {"accounts": 19})
        live.publish(account("b", 30, name="Bob"), account("c", 31, name="Cid"))
        until(lambda: server.values(merged) == {"accounts": 21})
        progress = progress_of(warehouse_of(live.config), "s")
        state = table_state_of(warehouse_of(live.config), "s", "accounts")
        assert server.values("lowmark_stream_changes_total") == {"s": progress.changes}
        rejected = server.values("lowmark_stream_rejected_records_total > 0")
        assert rejected == {"UNKNOWN_FRAMING,s": 1}
        assert server.values(merged) == {"accounts": state.merged}
        # Jobs of applies are counted when they are added to the history.
        until(lambda: server.values("lowmark_table_written_rows_total")["accounts"] >= state.merged)
        assert server.values("lowmark_stream_written_bytes_total")["s"] > 0
        assert server.values("lowmark_table_pending_changes") == {"accounts": 0}
        assert server.values(f"lowmark_table_{OLDEST_DELETE}") == {"accounts": 0}
        assert server.values("lowmark_job_duration_seconds_count{kind='apply'}")["apply"] >= 2
        assert server.values("lowmark_batch_duration_seconds_count")["s"] >= 2
        assert 0 <= server.values("lowmark_stream_lag_seconds")["s"] < WITHIN_S
        assert set(server.values("lowmark_stream_lag_offsets")) == {"0,s", "1,s"}
        assert server.values("lowmark_jvm_heap_used_bytes")[""] > 10**6

        named = {name for rule in rules() for name in of_lowmark(rule["expr"])}
        for expression in dashboard().expressions():
            server.get("query", query=expression)
            named |= of_lowmark(expression)
        there = set(server.get("label/__name__/values"))
        assert named - there == NOT_HERE - there
        assert named >= NOT_HERE
        ((group,),) = [server.get("rules")["groups"]]
        assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
        assert not [rule for rule in group["rules"] if rule.get("lastError")]
