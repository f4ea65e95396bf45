"""The five scenes. Exit code 1: the table is wrong. Exit code 2: the demo could not end."""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from connector import ConnectorConfig
from connector.errors import ConnectorError, TableError
from connector.jars import JarStore, fetch
from connector.kafka import ChangeProducer, LocalBroker, create_topic
from connector.services import DeadLetters, load_config, read, status
from examples.demo import compare
from examples.demo.history import TABLE, Commit, CommitId, list_commits, read_commits
from examples.demo.pipeline import CONNECTOR, DemoError, Pipeline, own_environment
from examples.demo.publish import BadRecord, publish_commits, report_complete, send_bad_records
from examples.demo.scenes import Scenes, heading, say

ROOT: Final = Path(__file__).parents[2]
STREAM: Final = "demo"
KILLED_WITHIN_S: Final = 0.5
"""Seconds after a batch of the second half, of which a random part is waited."""
SMALL_BATCH: Final = 1000
"""The first run reads so few records at a time that it can be killed between two batches."""

CONFIG: Final = """\
# Written by the demo.
warehouse = {warehouse}

[kafka]
bootstrap_servers = "{servers}"

[streams.demo]
topic = "demo"
partitions = ["files-a-to-l", "files-m-to-z"]
trigger = "250ms"
# So that changes of an old history are not too late for a repair.
delete_retention = "3650d"

# One row for each file of the last commit.
[tables.files]
stream = "demo"
key = {{ form = "row_key", columns = [{{ name = "path", type = "BYTES" }}] }}
columns = [
  {{ name = "mode", family = "f", type = "STRING" }},
  {{ name = "blob", family = "f", type = "STRING" }},
  {{ name = "size", family = "f", type = "INT64" }},
]
"""


@dataclass
class Demo(Scenes):
    """One run: the source, the folder with the result, and what was sent and seen so far."""

    repository: Path
    commits: list[CommitId]
    folder: Path
    config: ConnectorConfig
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    bad_records: list[BadRecord] = field(default_factory=list)
    records: int = 0

    def run(self) -> None:
        """Scenes 1 to 4. A broker must be running."""
        history = read_commits(self.repository, self.commits)
        first_half = islice(history, (len(self.commits) + 1) // 2)
        topic = create_topic(self.config.kafka, STREAM, kafka_partitions=4)
        batch = str(max(SMALL_BATCH, len(self.commits)))
        small_batches = {"CONNECTOR__STREAMS__DEMO__MAX_OFFSETS_PER_TRIGGER": batch}
        with (
            Pipeline(self.config_file, self.folder / "run-1.log", settings=small_batches) as run,
            ChangeProducer(self.config.kafka, topic) as producer,
        ):
            with self.scene("publish"):
                self.publish_first_half(run, producer, first_half)
            with self.scene("kill"):
                self.kill_pipeline(run, producer, history)
        with self.scene("resume"):
            self.resume_pipeline()
        with self.scene("compare"):
            self.compare_result()

    def publish_first_half(
        self, run: Pipeline, producer: ChangeProducer, first_half: Iterator[Commit]
    ) -> None:
        """Publish while the pipeline works, and wait until a snapshot shows the last commit."""
        say("started: connector run")
        published = publish_commits(producer, first_half, self.rng)
        commit = published.last
        if commit is None:
            raise DemoError(f"No commit of {self.repository} changes a file")
        self.bad_records = send_bad_records(self.config.kafka, STREAM)
        say(f"published {published}")
        say(f"published {len(self.bad_records)} bad records")

        def look() -> list[tuple[bytes, compare.Row]] | None:
            producer.poll(0)  # sends the heartbeats that are due
            return self._snapshot(commit.timestamp)

        rows = run.wait_for(look, f"commit {commit.id}")
        self.check(
            f"a snapshot with {len(rows):,} rows is the tree of commit {commit.id[:12]}",
            compare.row_differences(compare.tree(self.repository, commit.id), rows),
        )

    def kill_pipeline(
        self, run: Pipeline, producer: ChangeProducer, second_half: Iterator[Commit]
    ) -> None:
        """Publish the rest, and kill the pipeline while it is at work on it."""
        batch = self._ingest_batch()
        say(f"published {publish_commits(producer, second_half, self.rng)}")
        # The source has no further change up to this moment.
        report_complete(producer, time.time_ns() // 1000)
        run.wait_for(lambda: self._ingest_batch() > batch or None, "another batch")
        time.sleep(random.uniform(0, KILLED_WITHIN_S))
        run.kill()
        producer.close()
        control_records = producer.announced + producer.heartbeats
        self.records = len(self.bad_records) + producer.delivered
        self.records += control_records * producer.kafka_partitions
        ingested, _ = compare.records_in_changelog(self.config)
        say(
            f"SIGKILL ended connector run; the changelog has {ingested:,} of"
            f" {self.records:,} records"
        )

    def resume_pipeline(self) -> None:
        """Run the pipeline again, to the end of the topic."""
        say("started: connector run --once")
        log = self.folder / "run-2.log"
        with Pipeline(self.config_file, log, "--once", settings={}) as run:
            run.finish()
        say("it has ingested and applied the rest")

    def compare_result(self) -> None:
        """Compare the table, the dead letters and the changelog with what was published."""
        head = self.commits[-1].id
        rows = self._snapshot(0) or []
        self.check(
            f"{len(rows):,} rows are the tree that git ls-tree lists for commit {head[:12]}",
            compare.row_differences(compare.tree(self.repository, head), rows),
        )
        letters = [letter for letter, _ in DeadLetters(self.config, STREAM).list()]
        self.check(
            f"{len(letters):,} dead letters are the bad records, with their bytes and reasons",
            compare.letter_differences(self.bad_records, letters),
        )
        ingested, faults = compare.records_in_changelog(self.config)
        if ingested != self.records:
            faults.append(f"the changelog has {ingested:,} records, not {self.records:,}")
        self.check(f"{ingested:,} records of the topic are in the changelog, each once", faults)

    def report(self) -> None:
        """Scene 5."""
        heading("report")
        reasons = Counter(record.reason for record in self.bad_records)
        say(f"rejected  {', '.join(f'{count} {reason}' for reason, count in reasons.items())}")
        self.print_result()

    def next_steps(self) -> None:
        """Commands for the result, as you can type them in this folder."""
        heading("next steps")
        connector = shlex.join([_shown(CONNECTOR), "--config", _shown(self.config_file)])
        broker = shlex.quote(_shown(CONNECTOR)) + " broker"
        folder = "--folder " + shlex.quote(_shown(self.folder / "broker"))
        say("# the table, without a broker and without Java:")
        say(f"{connector} read {TABLE} --limit 10")
        say("# the stream and the dead letters, with the broker:")
        say(f"{broker} start {folder}")
        say(f"{connector} tail --limit 5")
        say(f"{connector} dead-letters list")
        say(f"{broker} stop {folder}")
        say("# all of it in a browser; dead letters need the broker:")
        say(f"{connector} serve")

    @property
    def config_file(self) -> Path:
        return self.folder / "connector.toml"

    def _snapshot(self, after: int) -> list[tuple[bytes, compare.Row]] | None:
        """The rows of the newest snapshot, if it has every change up to `after` (microseconds). No
        Java is needed.
        """
        try:
            with read(self.config, TABLE, snapshot=True) as table:
                if table.cut is not None and table.cut > after:
                    return list(compare.rows_of(table))
        except TableError:
            pass  # there is no table yet, or no snapshot of it
        return None

    def _ingest_batch(self) -> int:
        return status(self.config).streams[STREAM].ingest_batch


def _shown(path: Path) -> str:
    """A path as you can type it in the current folder."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def new_folder(output: Path | None, jars: JarStore) -> Path:
    """A new folder for the result. Without a name, it is `build/demo` in this checkout, which
    replaces that of the last demo. Raises `DemoError`.
    """
    folder = ROOT / "build" / "demo" if output is None else output.absolute()
    if output is None and folder.exists():
        if LocalBroker.find(folder / "broker", jars) is not None:
            raise DemoError(f"A demo or its broker runs in {folder}. Stop it first")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise DemoError(f"{folder} is not empty. Name a new folder")
    return folder


def run_demo(repository: Path, output: Path | None, warehouse: str) -> bool:
    """Run all scenes. Returns whether the result equals the truth."""
    commits = list_commits(repository)
    say(f"the source: {len(commits):,} commits, up to {commits[-1].id[:12]}")
    jars = JarStore.from_environment(os.environ)
    folder = new_folder(output, jars)
    fetch("spark", jars, say)
    if warehouse.startswith(("s3://", "s3a://")):
        fetch("s3", jars, say)
    with LocalBroker.start(folder / "broker", jars) as broker:
        text = CONFIG.format(
            warehouse=json.dumps(warehouse or "warehouse"), servers=broker.bootstrap_servers
        )
        (folder / "connector.toml").write_text(text, "utf-8")
        config = load_config(folder / "connector.toml", own_environment())
        demo = Demo(repository, commits, folder, config)
        demo.run()
    demo.report()
    demo.next_steps()
    return not demo.differences


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--repository", type=Path, default=ROOT, help="a git repository. Default: this one"
    )
    parser.add_argument("--output", type=Path, help="a new folder. Default: build/demo")
    parser.add_argument(
        "--warehouse",
        default="",
        help="a warehouse in an object store, such as s3a://bucket/prefix. Its settings are those"
        " of the environment, such as CONNECTOR__STORAGE__ENDPOINT. Default: in the folder",
    )
    arguments = parser.parse_args()
    # A git hook that starts this program names its own repository in the environment.
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        if not name.startswith("GIT_CONFIG_"):
            del os.environ[name]
    # So that SIGTERM also ends the broker and the pipeline.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        is_equal = run_demo(arguments.repository, arguments.output, arguments.warehouse)
    except (
        ConnectorError,
        DemoError,
        KafkaException,
        OSError,
        subprocess.SubprocessError,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if is_equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
