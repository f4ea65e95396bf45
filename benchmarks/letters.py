"""A hundred thousand dead letters, listed and replayed with the commands of a user (DLQ-8, DLQ-14).

    python -m benchmarks letters [--quick]

Each one is a change for which a table was missing, as ingest would have written it, in four Kafka
partitions. Each command is a process, and its whole time counts. For comparison, the same number of
dead letters is sent to their topic. That is one Kafka record for each. A replay has more work: it
reads and validates a dead letter, and writes a record and a ledger entry, in transactions.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from benchmarks import machine
from benchmarks.report import Figure, finish
from connector import jars
from connector.config.settings import KafkaConfig
from connector.dead_letters.envelope import DeadLetter
from connector.kafka import DeadLetterPublisher, topics
from connector.kafka.local.broker import LocalBroker
from connector.kafka.topics import TopicFacts
from connector.records.codec import encode, frame
from connector.records.model import DataChange, SetCell
from connector.records.rejection import Position, Reason

KAFKA_PARTITIONS = 4
SETTINGS = (
    'warehouse = "warehouse"\n[kafka]\nbootstrap_servers = "{servers}"\n[streams.bench]\ntopic ='
    ' "{topic}"\n'
)


def letters(facts: TopicFacts, count: int) -> Iterator[DeadLetter]:
    for number in range(count):
        key = b"customer#%08d" % number
        entries = tuple(
            SetCell("cf", b"column-%d" % n, b"value %d of %d" % (n, number)) for n in range(3)
        )
        at = 1_714_475_984_000_000 + number
        change = DataChange(
            stream_partition="p0",
            table="customers",
            row_key=key,
            commit_timestamp=at,
            entries=entries,
        )
        position = Position(
            facts.topic, facts.topic_id, number % KAFKA_PARTITIONS, number // KAFKA_PARTITIONS
        )
        yield DeadLetter(
            position=position,
            key=key,
            value=frame(encode(change, KAFKA_PARTITIONS), None),
            headers=(),
            reason=Reason.UNKNOWN_TABLE,
            rule="",
            detail="no table definition has the source table customers",
            attempt=0,
            first_failed_at=1_714_475_985_000_000 + number,
            record_timestamp=1_714_475_984_500_000 + number,
            schema_id=None,
            ingest_batch=7,
            order_position=f"7/{position.kafka_partition}/{position.offset}/0",
        )


def timed(folder: Path, *arguments: str) -> tuple[float, float, str]:
    """The seconds and the peak memory in MiB of a `connector dead-letters` command with all its
    processes, and its output.
    """
    command = [
        str(Path(sys.executable).with_name("connector")),
        "--config",
        str(folder / "connector.toml"),
        "dead-letters",
        *arguments,
    ]
    began, peaks, ended = perf_counter(), [0], threading.Event()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:

        def watch() -> None:
            while not ended.wait(0.05):
                peaks.append(sum(map(machine.peak_bytes, machine.descendants(process.pid))))

        watcher = threading.Thread(target=watch)
        watcher.start()
        said, _ = process.communicate()
        seconds = perf_counter() - began
        ended.set()
        watcher.join()
    assert process.returncode == 0, said
    return seconds, max(peaks) / 2**20, said


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks letters")
    parser.add_argument("--quick", action="store_true", help="a tenth of the letters, no judgement")
    quick = parser.parse_args().quick
    count = 10_000 if quick else 100_000
    store = jars.JarStore.from_environment(os.environ)
    with (
        tempfile.TemporaryDirectory(prefix="lowmark-bench-") as name,
        LocalBroker.start(Path(name) / "broker", store) as broker,
    ):
        folder, kafka = Path(name), KafkaConfig(broker.bootstrap_servers)
        facts = topics.create_topic(kafka, "bench", kafka_partitions=KAFKA_PARTITIONS)
        (folder / "connector.toml").write_text(
            SETTINGS.format(servers=kafka.bootstrap_servers, topic=facts.topic)
        )
        made = list(letters(facts, count))
        began = perf_counter()
        with DeadLetterPublisher(kafka, facts.topic) as publisher:
            publisher.publish(made)
        sent_s = perf_counter() - began
        list_s, list_mib, said = timed(folder, "list")
        assert f"{count:,}" in said, said
        filtered_s, _, said = timed(folder, "list", "--table", "customers", "--by", "table,reason")
        assert f"{count:,}" in said, said
        replay_s, replay_mib, said = timed(
            folder, "replay", "--all", "--execute", "--why", "the table is declared"
        )
        assert f"replayed {count:,}" in said, said
        again_s, _, said = timed(folder, "list", "--state", "replayed")
        assert f"{count:,}" in said, said
    print(*machine.facts(), sep="\n")
    return finish(
        [
            Figure("letters_published_per_s", count / sent_s),
            Figure("letters_list_peak_memory_mib", list_mib),
            Figure("letters_replay_peak_memory_mib", replay_mib),
            Figure("letters_list_by_table_s", filtered_s),
            Figure("letters_list_replayed_s", again_s),
            Figure("letters_list_s", list_s, "<5"),
            Figure("letters_replayed_per_s", count / replay_s, "10000"),
        ],
        validate_record=not quick,
    )


if __name__ == "__main__":
    raise SystemExit(main())
