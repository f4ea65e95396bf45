"""The requests that a warehouse in an object store costs (STO-5).

    python -m benchmarks requests [--quick]

`connector run` is a separate process on SeaweedFS, behind a proxy that counts. It has one stream
with the default trigger and one table with a bound of 10 minutes. After a first batch, the requests
are counted until the next batch of 1,000 changes is logged with its progress, in idle minutes, in
an apply of that batch, and in one call of `status`. The counts do not depend on the machine.

The apply is counted while the process stops: it then applies what was ingested. So its count has
the last looks of the process, too.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine
from benchmarks.report import Figure, finish
from connector import jars
from connector.kafka import ChangeProducer, topics
from connector.kafka.local.broker import LocalBroker
from connector.lake.state_reader import progress_of, table_state_of
from connector.records.model import DataChange, SetCell
from connector.services import load_config, status
from connector.services.warehouses import warehouse_of
from tests import object_store
from tests.store_proxy import StoreProxy, Traffic

CHANGES = 1_000
IDLE_MINUTES = 3
WITHIN_S = 300.0
STREAM_CONFIG = """
warehouse = "{warehouse}"
[kafka]
bootstrap_servers = "{servers}"
[streams.s]
topic = "t"
[tables.accounts]
stream = "s"
max_staleness = "10m"
apply_every = "10m"
key = {{ columns = [{{ name = "id", type = "STRING" }}] }}
columns = [{{ name = "name", family = "f", type = "STRING" }}]
"""
BARS = {"batch": "<61", "idle_minute": "<10.1"}
_PLACES = ("changelog/_delta_log", "changelog", "checkpoint", "data/_delta_log", "data")
_PLACE = re.compile(r"/(changelog/_delta_log|changelog|checkpoint|data/_delta_log|data|tombstones)")


@dataclass
class Scene:
    """The pipeline and its store."""

    config_file: Path
    store: object_store.ObjectStore
    proxy: StoreProxy
    sent: int = 0

    def environment(self, port: int) -> dict[str, str]:
        storage = self.store.storage(port=port)
        return {
            "CONNECTOR__STORAGE__ENDPOINT": storage.endpoint,
            "CONNECTOR__STORAGE__ACCESS_KEY": storage.access_key,
            "CONNECTOR__STORAGE__SECRET_KEY": storage.secret_key,
        }

    @property
    def warehouse(self) -> str:
        """Opened beside the proxy, so that looking does not count."""
        return warehouse_of(load_config(self.config_file, self.environment(self.store.port)))

    def publish(self) -> None:
        kafka = load_config(self.config_file, {}).kafka
        with ChangeProducer(kafka, "t") as producer:
            for _ in range(CHANGES):
                self.sent += 1
                cell = SetCell("f", b"name", b"%d" % self.sent)
                key = b"%d" % (self.sent % (2 * CHANGES))
                change = DataChange(
                    stream_partition="p",
                    table="accounts",
                    row_key=key,
                    commit_timestamp=1_000_000 + self.sent,
                    entries=(cell,),
                )
                producer.send(change)
            producer.flush()

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not reached():
            assert time.monotonic() < deadline, "the pipeline does not get there"
            time.sleep(0.5)

    def is_ingested(self) -> bool:
        return progress_of(self.warehouse, "s").changes >= self.sent

    def is_applied(self) -> bool:
        progress = progress_of(self.warehouse, "s")
        return table_state_of(self.warehouse, "s", "accounts").to_batch >= progress.ingest_batch


@contextmanager
def running(scene: Scene, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    entry = "from connector.cli import main; main()"
    words = [sys.executable, "-c", entry, "--config", str(scene.config_file), "run"]
    environment = {**os.environ, **scene.environment(scene.proxy.port)}
    with log.open("wb") as talk:
        process = subprocess.Popen(words, stdout=talk, stderr=talk, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def shown(name: str, traffic: Traffic, *, lists_all: bool = False) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(traffic.kinds.items()))
    print(f"{name}: {traffic.kinds.total()} ({kinds})")
    where: Counter[str] = Counter()
    for kind, target in traffic.requests:
        where[f"{place_of(target)} {kind}"] += 1
    print("   ", ", ".join(f"{count} {what}" for what, count in sorted(where.items())), flush=True)
    if lists_all:
        print("\n".join(f"  {kind} {target}" for kind, target in traffic.requests), flush=True)


def place_of(target: str) -> str:
    """The part of the warehouse that a request is about."""
    path = target.replace("%2F", "/")
    if (small := re.search(r"/_connector/(\w+)", path)) is not None:
        return small[1]
    found = _PLACE.search(path)
    return found[1] if found else "other"


def measured(*, quick: bool, lists_all: bool) -> Iterator[Figure]:
    minutes = 1 if quick else IDLE_MINUTES
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lowmark-requests-")))
        store = stack.enter_context(object_store.started())
        proxy = stack.enter_context(StoreProxy(store.port))
        broker = stack.enter_context(
            LocalBroker.start(folder / "broker", jars.JarStore.from_environment(os.environ))
        )
        config = folder / "connector.toml"
        config.write_text(
            STREAM_CONFIG.format(warehouse=store.warehouse(), servers=broker.bootstrap_servers)
        )
        topics.create_topic(load_config(config, {}).kafka, "t", kafka_partitions=1)
        scene = Scene(config, store, proxy)
        process = stack.enter_context(running(scene, folder / "log"))
        scene.publish()
        scene.until(scene.is_applied)
        scene.publish()
        scene.until(scene.is_ingested)
        time.sleep(20)
        proxy.look()
        scene.publish()
        scene.until(scene.is_ingested)
        time.sleep(2)
        batch = proxy.look()
        shown("a batch", batch, lists_all=lists_all)
        time.sleep(10)
        proxy.look()
        time.sleep(60 * minutes)
        idle = proxy.look()
        shown(f"{minutes} idle minutes", idle)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=WITHIN_S)
        assert scene.is_applied()
        apply = proxy.look()
        shown("an apply", apply)
        status(load_config(config, scene.environment(proxy.port)))
        look = proxy.look()
        shown("status", look)
    yield Figure("batch_requests", batch.kinds.total(), BARS["batch"])
    yield Figure("batch_puts", batch.kinds["PUT"])
    yield Figure("idle_minute_requests", idle.kinds.total() / minutes, BARS["idle_minute"])
    yield Figure("apply_requests", apply.kinds.total())
    yield Figure("apply_puts", apply.kinds["PUT"])
    yield Figure("status_requests", look.kinds.total())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true", help="name each request of a batch")
    arguments = parser.parse_args()
    print(*machine.facts(), sep="\n", flush=True)
    return finish(
        list(measured(quick=arguments.quick, lists_all=arguments.list)),
        validate_record=not arguments.quick,
    )


if __name__ == "__main__":
    sys.exit(main())
