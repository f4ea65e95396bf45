"""lowmark beside usual ways to bring the same topic into a Delta table, in turns.

    python -m benchmarks peers [--quick]

    python -m benchmarks.peers [--peers NAME ...] [--warm S] [--seconds S]

Each of them starts as a new process, when the topic has the changes that make 200,000 rows. Then
`benchmarks.load` changes 2,000 rows a second for two minutes, of which the second one counts.

- `loaded_s`: from the start of the process until the table has the rows.
- `table_p50_s`, `table_p95_s`: from the acknowledgement of a change until a commit of the table has
  it, for every change.
- `cores`: all processes of the peer. `memory_mib`: their proportional set size at the end.
- `drained_s`: from the end of the load until the table has every change.
- `wrong_rows`: rows of the table that are not what was sent.
- `after_poison`: 1 if a change behind a record that is no Avro reaches the table within a minute.

`delta-rs` is a loop with the deltalake package, and `spark` a streaming query with MERGE
(`benchmarks.peer_loops`). Neither keeps a changelog, validates records, or is right if changes
arrive out of order.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import forms, load, machine, workload
from benchmarks.freshness import (
    KAFKA_PARTITIONS,
    ROWS,
    SETTINGS,
    Commits,
    configuration,
    end,
    in_changelog,
    in_table,
    now_us,
    seconds,
    visits_of,
)
from benchmarks.peer_loops import LOOPS
from benchmarks.report import Figure, finish
from connector import jars
from connector.config.settings import KafkaConfig
from connector.kafka import ChangeProducer, client, topics
from connector.kafka.local.broker import LocalBroker
from connector.lake.plain_table import open_table
from connector.records.model import DataChange, Heartbeat, SetCell

RATE = 2_000
OURS = "lowmark"
POISON = b"no Avro, but a value"
AFTER_POISON_S = 60


@dataclass(slots=True)
class Peer:
    """A running peer, and the commits of its table. `seen_at` is when the table had each of the
    sent changes (µs).
    """

    process: subprocess.Popen[bytes]
    log: Path
    table: Commits
    changelog: Commits | None

    def look(self) -> None:
        if self.changelog is not None:
            self.changelog.look()
        self.table.look()

    def seen_at(self, sent: np.ndarray) -> np.ndarray:
        self.look()
        if self.changelog is not None:
            return in_table(sent, self.changelog, self.table)
        return np.array([*self.table.at, float("inf")])[in_changelog(sent, self.table)]

    def wait(self, is_done: Callable[[], bool], within_s: float, *, may_end: bool = False) -> float:
        """Wait until it is done. Returns the seconds, or infinity."""
        began = time.monotonic()
        while not is_done():
            if self.process.poll() is not None:
                assert may_end, self.log.read_text()[-2000:]
                return float("inf")
            if time.monotonic() - began > within_s:
                return float("inf")
            time.sleep(0.2)
            self.look()
        return time.monotonic() - began


def begin(name: str, folder: Path, kafka: KafkaConfig, topic: str) -> Peer:
    if name == OURS:
        (folder / "connector.toml").write_text(configuration(kafka, topic, *SETTINGS["bound"]))
        connector = str(Path(sys.executable).with_name("connector"))
        command = [connector, "--config", str(folder / "connector.toml"), "run"]
        warehouse = folder / "warehouse"
        table = warehouse / "tables" / workload.definition().name / "data"
        changelog = Commits(warehouse / "streams" / workload.STREAM / "changelog")
    else:
        loop = [sys.executable, "-m", "benchmarks.peer_loops", name]
        command = [*loop, kafka.bootstrap_servers, topic, str(folder)]
        table, changelog = folder / "table", None
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
    return Peer(process, log, Commits(table), changelog)


def measure(
    name: str, folder: Path, kafka: KafkaConfig, rows: int, warm_s: float, window_s: float
) -> dict[str, float]:
    folder.mkdir()
    facts = topics.create_topic(kafka, f"peer-{name}", kafka_partitions=KAFKA_PARTITIONS)
    topic, values = facts.topic, dict[str, float]()
    with ExitStack() as stack:
        generator = stack.enter_context(load.running(kafka, topic, rows, folder))
        assert generator.stdin is not None
        peer = begin(name, folder, kafka, topic)
        stack.callback(end, peer.process)

        def has_rows() -> bool:
            return bool(peer.table.at) and rows_of(peer.table.folder) >= rows

        values["loaded_s"] = peer.wait(has_rows, 300)
        generator.stdin.write(f"{RATE}\n")
        generator.stdin.flush()
        peer.wait(lambda: False, warm_s)
        pids = machine.descendants(peer.process.pid)
        began, cpu = now_us(), sum(map(machine.cpu_s, pids))
        peer.wait(lambda: False, window_s)
        ended, cpu_then = now_us(), sum(map(machine.cpu_s, pids))
        values["cores"] = (cpu_then - cpu) / (ended - began) * 1e6
        values["memory_mib"] = sum(map(proportional_bytes, pids)) / 2**20
        generator.stdin.close()
        assert generator.wait(120) == 0, "the load failed"
        sent = load.sent_changes(folder)
        values["drained_s"] = peer.wait(lambda: bool(np.isfinite(peer.seen_at(sent)).all()), 300)
        counted = sent[(sent[:, 3] >= began) & (sent[:, 3] < ended)]
        took = seconds(counted, peer.seen_at(counted))
        values |= {"table_p50_s": took[50], "table_p95_s": took[95]}
        values["wrong_rows"] = wrong_rows(peer.table.folder, np.fromfile(folder / "rows", np.int64))
        values["after_poison"] = float(after_poison(peer, kafka, topic))
    return values


def rows_of(folder: Path) -> int:
    return sum(count for (count,) in open_table(str(folder)).query("SELECT count(*) FROM t"))


def wrong_rows(folder: Path, rows: np.ndarray) -> int:
    made = visits_of(rows)
    found = dict(open_table(str(folder)).select(("row_key", "visits")))
    return sum(made.get(key) != found.get(key) for key in made.keys() | found.keys())


def after_poison(peer: Peer, kafka: KafkaConfig, topic: str) -> bool:
    """Whether a change behind a poison record of the same key reaches the table."""
    key, at = forms.row_key(0), time.time_ns() // 1000
    poison = client.producer(kafka, client.LastError(), {})
    poison.produce(topic, POISON, key.encode())
    poison.flush()
    cells = tuple(SetCell(workload.FAMILY, name.encode(), b"7", 1) for name in workload.COLUMNS)
    change = DataChange(
        stream_partition=forms.Plain.partitions[0],
        table=workload.SOURCE,
        row_key=key.encode(),
        commit_timestamp=at,
        entries=cells,
    )
    with ChangeProducer(kafka, topic) as producer:
        producer.send(change)
        for partition in forms.Plain.partitions:
            producer.send(Heartbeat(partition, at))
        producer.flush()

        def is_there() -> bool:
            found = dict(open_table(str(peer.table.folder)).select(("row_key", "visits")))
            return found.get(key) == 7

        return peer.wait(is_there, AFTER_POISON_S, may_end=True) < float("inf")


def proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers")
    parser.add_argument("--quick", action="store_true", help="20,000 rows, 20 s, no judgement")
    parser.add_argument("--peers", nargs="+", choices=(OURS, *LOOPS), default=(OURS, *LOOPS))
    parser.add_argument("--warm", type=float, help="seconds that do not count (default: 60)")
    parser.add_argument("--seconds", type=float, help="seconds that count (default: 60)")
    chosen = parser.parse_args()
    rows, usual = (20_000, 20.0) if chosen.quick else (ROWS, 60.0)
    print(*machine.facts(), sep="\n", flush=True)
    figures, store = list[Figure](), jars.JarStore.from_environment(os.environ)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="lowmark-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        broker = stack.enter_context(LocalBroker.start(folder / "broker", store))
        found = {
            name: measure(
                *(name, folder / name, KafkaConfig(broker.bootstrap_servers), rows),
                *(chosen.warm or usual, chosen.seconds or usual),
            )
            for name in chosen.peers
        }
    for name, values in found.items():
        bars = {"wrong_rows": "<1", "after_poison": "1"} if name == OURS else {}
        figures += [
            Figure(f"peers_{name.replace('-', '_')}_{what}", value, bars.get(what, "-"))
            for what, value in values.items()
        ]
    if {OURS, "spark"} <= found.keys():
        ratio = found[OURS]["table_p95_s"] / found["spark"]["table_p95_s"]
        figures.append(Figure("peers_lowmark_to_spark_table_p95", ratio, "<1.2"))
    return finish(figures, validate_record=not chosen.quick)


if __name__ == "__main__":
    raise SystemExit(main())
