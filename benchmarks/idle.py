"""What `connector run` costs with nothing or little to do.

    python -m benchmarks idle [--quick]

- `once_new_s`: `connector run --once` with a new warehouse and a topic of three changes.
- `once_nothing_s`: the same again, with nothing to do.
- `idle_…`: `connector run` beside a stream without changes, with a bound of 2 s: its commits a
  minute, of the changelog and of the table, and its cores. First no producer runs, so the topic has
  no new record (`silent`). Then a producer sends its heartbeats, one a second (`heartbeats`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import machine, workload
from benchmarks.freshness import SETTINGS, configuration, running_pipeline
from benchmarks.report import Figure, finish
from connector import DataChange, SetCell, jars
from connector.config.settings import KafkaConfig
from connector.kafka import ChangeProducer, topics
from connector.kafka.local.broker import LocalBroker

COMMAND = str(Path(sys.executable).with_name("connector"))


def once_s(folder: Path) -> float:
    began = time.monotonic()
    subprocess.run(
        [COMMAND, "--config", str(folder / "connector.toml"), "run", "--once"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.monotonic() - began


def commits(folder: Path) -> int:
    """The number of commits of the changelog and of the table."""
    return sum(1 for _ in (folder / "warehouse").glob("*/*/*/_delta_log/*.json"))


def idle(
    folder: Path, pid: int, name: str, seconds: float, each_second: Callable[[], None]
) -> list[Figure]:
    pids, before, began = machine.descendants(pid), commits(folder), time.monotonic()
    cpu_s = sum(map(machine.cpu_s, pids))
    while time.monotonic() - began < seconds:
        each_second()
        time.sleep(1)
    took_s = time.monotonic() - began
    made, used_s = commits(folder) - before, sum(map(machine.cpu_s, pids)) - cpu_s
    return [
        Figure(f"idle_{name}_commits_per_minute", made / took_s * 60, "<1.1"),
        Figure(f"idle_{name}_cores", used_s / took_s, "<0.05"),
    ]


def beat(producer: ChangeProducer) -> None:
    """The producer's source has no change up to this time."""
    producer.reached("p0", time.time_ns() // 1000)
    producer.poll(0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks idle")
    parser.add_argument("--quick", action="store_true", help="short, no judgement")
    quick = parser.parse_args().quick
    warm_s, seconds = (5.0, 5.0) if quick else (90.0, 180.0)
    store = jars.JarStore.from_environment(os.environ)
    print(*machine.facts(), sep="\n", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lowmark-bench-")))
        broker = stack.enter_context(LocalBroker.start(folder / "broker", store))
        kafka = KafkaConfig(broker.bootstrap_servers)
        topic = topics.create_topic(kafka, "idle", kafka_partitions=4).topic
        (folder / "connector.toml").write_text(configuration(kafka, topic, *SETTINGS["bound"]))
        producer = ChangeProducer(kafka, topic)
        stack.callback(producer.close)
        for number in range(3):
            producer.send(
                DataChange(
                    stream_partition="p0",
                    table=workload.SOURCE,
                    row_key=b"row-%d" % number,
                    commit_timestamp=time.time_ns() // 1000,
                    entries=(SetCell(workload.FAMILY, b"name", b"value"),),
                )
            )
        producer.flush()
        figures = [
            Figure("once_new_s", once_s(folder), "<15"),
            Figure("once_nothing_s", once_s(folder), "<8"),
        ]
        with running_pipeline(folder) as pipeline:
            time.sleep(warm_s)
            figures += idle(folder, pipeline.pid, "silent", seconds, lambda: None)
            figures += idle(folder, pipeline.pid, "heartbeats", seconds, lambda: beat(producer))
    return finish(figures, validate_record=not quick)


if __name__ == "__main__":
    raise SystemExit(main())
