"""The five scenes. Exit code 1: a table is wrong. Exit code 2: the demo could not end."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from connector.errors import ConnectorError, TableError
from connector.jars import JarStore, fetch
from connector.kafka import LocalBroker, create_topic
from connector.services import DeadLetters, audit, load_config, read, status
from examples.demo.pipeline import PATIENCE_S, DemoError, Pipeline, own_environment
from examples.demo.scenes import Scenes, heading, say
from examples.demo_postgres import compare
from examples.demo_postgres.shop import TABLES, Shop
from tests import machine, postgres
from tests.debezium import HEARTBEATS, TRANSACTIONS, Debezium

ROOT: Final = Path(__file__).parents[2]
STREAM: Final = "shop"
WORK_S: Final = 10.0
POLL_S: Final = 0.2
CONFIG: Final = """\
# Written by the demo.
warehouse = "warehouse"

[kafka]
bootstrap_servers = "{servers}"

[streams.shop]
topic = "shop"
trigger = "250ms"

# The tables follow from the schemas in Debezium's records.
[streams.shop.source]
format = "debezium-json"
topics = ["dbz.public.*"]
transactions = "{transactions}"
heartbeats = "{heartbeats}"
"""


@dataclass
class Demo(Scenes):
    """One run: the parts, the shop, and what was found."""

    folder: Path
    jars: JarStore
    server: postgres.Postgres
    shop: Shop

    def run(self, stack: ExitStack) -> None:
        """Scenes 1 to 4. The stack ends the parts."""
        with self.scene("start"):
            self.start(stack)
        with self.shop.working():
            with self.scene("work"):
                self.work()
            with self.scene("kill"):
                self.kill_all()
        with self.scene("compare"):
            self.compare_result()

    def start(self, stack: ExitStack) -> None:
        self.config_file = self.folder / "connector.toml"
        self.shop.open()
        say(f"PostgreSQL has {len(TABLES)} tables and {len(self.shop.newest)} rows")
        self.broker = LocalBroker.start(self.folder / "broker", self.jars)
        stack.callback(lambda: self.broker.stop())
        self.config_file.write_text(
            CONFIG.format(
                servers=self.broker.bootstrap_servers,
                transactions=TRANSACTIONS,
                heartbeats=HEARTBEATS,
            ),
            "utf-8",
        )
        self.config = load_config(self.config_file, own_environment())
        create_topic(self.config.kafka, STREAM, kafka_partitions=2)
        self.debezium = Debezium(
            self.folder / "debezium",
            self.jars,
            self.broker.bootstrap_servers,
            self.server.port,
            "json-schema",
        )
        stack.callback(lambda: self.debezium.kill())
        self.debezium.start()
        self.bridge = self._command("bridge", "--stream", STREAM)
        stack.callback(lambda: self.bridge.kill())
        self.pipeline = self._command("run")
        stack.callback(lambda: self.pipeline.kill())
        say("a broker, Debezium, connector bridge and connector run are started")
        self._wait_for_tables("the first rows")
        say("a snapshot has the rows that were there before")

    def work(self) -> None:
        time.sleep(WORK_S)
        self.shop.add_column()
        say("a column was added and filled: customers.phone")
        time.sleep(WORK_S)

    def kill_all(self) -> None:
        """Kill each part while the shop works, and wait until the tables follow again."""
        for name, kill in self._kills().items():
            kill()
            self._wait_for_stream(f"what the shop did after the kill of {name}")
            say(f"killed, and started again: {name}")

    def _kills(self) -> dict[str, Callable[[], None]]:
        return {
            "Debezium": self._kill_debezium,
            "connector bridge": self._kill_bridge,
            "connector run": self._kill_pipeline,
            "the broker": self._kill_broker,
            "PostgreSQL": self._kill_postgres,
        }

    def _kill_debezium(self) -> None:
        self.debezium.kill()
        self.debezium.start()

    def _kill_bridge(self) -> None:
        self.bridge.kill()
        self.bridge = self._command("bridge", "--stream", STREAM)

    def _kill_pipeline(self) -> None:
        self.pipeline.kill()
        self.pipeline = self._command("run")

    def _kill_broker(self) -> None:
        self.broker.kill()
        self.broker.restart()

    def _kill_postgres(self) -> None:
        self.server.kill()
        self.server.start()

    def compare_result(self) -> None:
        """Compare the tables, the cuts and the dead letters with what PostgreSQL had."""
        self._wait_for_tables("the last transaction")
        warehouse = self.folder / "warehouse"
        cut = list(compare.cuts(warehouse))[-1][1]
        found = compare.state(warehouse, cut)
        self.check(
            f"{len(found):,} rows of {len(TABLES)} tables are those of PostgreSQL",
            compare.row_differences(self.shop.newest, found),
        )
        number, different = compare.cut_differences(warehouse, self.shop.states)
        self.check(
            f"each of {number:,} recorded cuts is a state that PostgreSQL had after one of"
            f" {len(self.shop.states):,} transactions",
            different,
        )
        letters = [letter for letter, _ in DeadLetters(self.config, STREAM).list()]
        self.check("there is no dead letter", [str(letter) for letter in letters])
        faults = [proof.fault() for proof in audit(self.config, STREAM)]
        self.check("the audit finds no fault", [str(fault) for fault in faults if fault])

    def report(self) -> None:
        """Scene 5."""
        heading("report")
        kinds = ", ".join(f"{count} {name}" for name, count in self.shop.done.most_common())
        say(f"transactions  {kinds}")
        self.print_result()

    def _command(self, command: str, *options: str) -> Pipeline:
        log = self.folder / f"{command}.log"
        return Pipeline(self.config_file, log, *options, settings={}, command=command)

    def _wait_for_stream(self, what: str) -> None:
        """Wait until the changelog has everything up to this moment."""
        now = time.time_ns() // 1000

        def look() -> bool:
            return (status(self.config).streams[STREAM].low_watermark or 0) > now

        self._wait_for(look, what)

    def _wait_for_tables(self, what: str) -> None:
        """Wait until a cut of all tables has everything up to this moment."""
        now = time.time_ns() // 1000

        def look() -> bool:
            self.config = load_config(self.config_file, own_environment())
            return all(self._cut(table) > now for table in self._shown())

        self._wait_for(look, what)

    def _wait_for(self, look: Callable[[], bool], what: str) -> None:
        """Raises `DemoError` if it takes too long, or if `connector run` has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not look():
            if self.pipeline.has_ended:
                self.pipeline.finish()
            if time.monotonic() > deadline:
                raise DemoError(f"The tables have not shown {what} after {PATIENCE_S:g} s")
            time.sleep(POLL_S)

    def _shown(self) -> set[str]:
        """The tables that have rows."""
        return {name for name, _ in self.shop.newest}

    def _cut(self, table: str) -> int:
        try:
            if table in self.config.tables:
                with read(self.config, table, snapshot=True) as found:
                    return found.cut or 0
        except TableError:
            pass  # there is no snapshot of it yet
        return 0


def new_folder(output: Path | None) -> Path:
    folder = ROOT / "build" / "demo-postgres" if output is None else output.absolute()
    if output is None:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise DemoError(f"{folder} is not empty. Name a new folder")
    return folder


def run_demo(output: Path | None) -> bool:
    """Run all scenes. Returns whether the tables equal those of PostgreSQL."""
    if lack := machine.why_no_postgres():
        raise DemoError(f"This demo needs PostgreSQL: {lack}")
    jars = JarStore.from_environment(os.environ)
    folder = new_folder(output)
    fetch("spark", jars, say)
    with postgres.started() as server, ExitStack() as stack:
        demo = Demo(folder, jars, server, Shop(server))
        demo.run(stack)
    demo.report()
    return not demo.differences


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo_postgres", description=__doc__)
    parser.add_argument("--output", type=Path, help="a new folder. Default: build/demo-postgres")
    output = parser.parse_args().output
    # So that SIGTERM also ends all parts.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        is_equal = run_demo(output)
    except (
        ConnectorError,
        DemoError,
        KafkaException,
        OSError,
        RuntimeError,
        subprocess.SubprocessError,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if is_equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
