"""Debezium in Kafka Connect, as a local process, for tests and for the demo (SRC-10).

`debezium.lock` has the jars of Debezium's PostgreSQL connector, of Kafka Connect, and of Apicurio's
Avro converter. They are downloaded once, as those of the broker are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from connector.jars import JarStore, fetch, find_java
from connector.jars.store import fetch_listed
from connector.kafka.local.folder import HOST, free_port
from tests.postgres import DATABASE, OWNER

Format = Literal["json", "json-schema", "avro"]
PREFIX = "dbz"
TRANSACTIONS = f"{PREFIX}.transaction"
HEARTBEATS = "public.beat"
START_TIMEOUT_S = 300.0
_LOGGING = ("slf4j", "log4j")
_LOG4J = """<Configuration><Appenders><Console name="out">
<PatternLayout pattern="%d{HH:mm:ss} %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root>
<Logger name="io.debezium" level="info"/></Loggers></Configuration>
"""
CONNECTOR: dict[str, str] = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": "1",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "all_tables",
    "database.hostname": HOST,
    "database.user": OWNER,
    "database.password": "unused",
    "database.dbname": DATABASE,
    "topic.prefix": PREFIX,
    "schema.include.list": "public",
    "provide.transaction.metadata": "true",
    "skipped.operations": "none",
    "heartbeat.interval.ms": "1000",
    "heartbeat.action.query": f"INSERT INTO {HEARTBEATS} VALUES (1, now())"
    " ON CONFLICT (id) DO UPDATE SET at = now()",
    "topic.creation.default.replication.factor": "1",
    "topic.creation.default.partitions": "3",
    "topic.creation.groups": "tx",
    "topic.creation.tx.include": TRANSACTIONS.replace(".", "\\."),
    "topic.creation.tx.replication.factor": "1",
    "topic.creation.tx.partitions": "1",
}
"""What a connector has in each format. `HEARTBEATS` must be a table (id, at)."""
EXACT_TEXTS = {
    "decimal.handling.mode": "string",
    "interval.handling.mode": "string",
    "time.precision.mode": "isostring",
}
"""For JSON without schemas, which has no other way to tell a time from a number."""
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_AVRO = "io.apicurio.registry.utils.converter.AvroConverter"


def jars(store: JarStore) -> list[Path]:
    """The class path of Kafka Connect. Raises `ConnectorError` if they cannot be downloaded."""
    listed = Path(__file__).with_name("debezium.lock").read_text("ascii")
    logging = [
        path
        for path in fetch("broker", store)
        if any(word in path.name for word in _LOGGING) and "log4j-1" not in path.name
    ]
    return [*fetch_listed("debezium", listed, store), *logging]


@dataclass(slots=True)
class Debezium:
    """One connector in one Kafka Connect, which keeps its offsets in `folder`. `start` launches it.

    - `registry` is the URL of Apicurio's own API, for Avro.
    - `settings` are added to those of the connector.
    - `further_jars` come before those of the lock.
    - `flush_ms`: a connector that is killed sends again what it sent since the last flush.
    """

    folder: Path
    store: JarStore
    bootstrap_servers: str
    postgres_port: int
    format: Format = "json"
    registry: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    further_jars: tuple[Path, ...] = ()
    flush_ms: int = 5000
    port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start it, and wait until the connector runs. Raises `RuntimeError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        _write_properties(self.folder / "worker.properties", self._worker())
        connector = {"name": PREFIX, "config": self.connector()}
        (self.folder / "connector.json").write_text(json.dumps(connector, indent=2))
        (self.folder / "log4j2.xml").write_text(_LOG4J)
        options = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}"]
        path = os.pathsep.join(map(str, (*self.further_jars, *jars(self.store))))
        files = [str(self.folder / name) for name in ("worker.properties", "connector.json")]
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(find_java(self.store.environment)), *options, "-cp", path, main, *files],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_running():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"Debezium does not run: {self._log_end()}")
            time.sleep(0.2)

    @property
    def log(self) -> Path:
        return self.folder / "connect.log"

    @property
    def offsets(self) -> Path:
        """The file with its position in the log of PostgreSQL."""
        return self.folder / "connect.offsets"

    def is_running(self) -> bool:
        """Whether the task of the connector runs."""
        url = f"http://{HOST}:{self.port}/connectors/{PREFIX}/status"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                tasks = json.load(answer)["tasks"]
        except (OSError, ValueError):
            return False
        return bool(tasks) and tasks[0]["state"] == "RUNNING"

    def stop(self) -> None:
        """End it as an operator does: it flushes its offsets."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def connector(self) -> dict[str, str]:
        """The settings of the connector. Those of its own are whole if they name a class."""
        if "connector.class" in self.settings:
            return self.settings
        texts = EXACT_TEXTS if self.format == "json" else {}
        avro = {f"{name}.name.adjustment.mode": "avro" for name in ("schema", "field")}
        return {
            **CONNECTOR,
            "database.port": str(self.postgres_port),
            **texts,
            **(avro if self.format == "avro" else {}),
            **self.settings,
        }

    def _worker(self) -> dict[str, str]:
        worker = {
            "bootstrap.servers": self.bootstrap_servers,
            "offset.storage.file.filename": str(self.offsets),
            "offset.flush.interval.ms": str(self.flush_ms),
            "listeners": f"http://{HOST}:{self.port}",
            "plugin.discovery": "only_scan",
        }
        for side in ("key", "value"):
            if self.format != "avro":
                worker[f"{side}.converter"] = _JSON
                with_schema = str(self.format == "json-schema").lower()
                worker[f"{side}.converter.schemas.enable"] = with_schema
                # Otherwise it writes the default of a column for NULL.
                worker[f"{side}.converter.replace.null.with.default"] = "false"
                continue
            converter = {
                "": _AVRO,
                ".apicurio.registry.url": self.registry,
                ".apicurio.registry.auto-register": "true",
                ".apicurio.registry.find-latest": "true",
                ".apicurio.registry.headers.enabled": "false",
                ".apicurio.registry.as-confluent": "true",
                ".apicurio.registry.use-id": "contentId",
            }
            worker |= {f"{side}.converter{name}": value for name, value in converter.items()}
        return worker

    def _log_end(self) -> str:
        return self.log.read_text("utf-8", "replace")[-3000:]


def _write_properties(path: Path, settings: dict[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "ascii")
