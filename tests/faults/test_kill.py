"""`connector run` is killed with SIGKILL at random instants while records keep arriving.

KILLS in the environment says how often (once unless given); `make test-faults SEED=… KILLS=…` repeats a run, or makes a long one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from connector import codec
from connector.cli.demo.folder import DemoFolder
from connector.cli.demo.pipeline import Pipeline, running
from connector.cli.settings import load_file
from connector.config import KafkaConfig
from connector.lake.plain_table import open_table
from connector.model import DataChange, kafka_key
from connector.tables import TableDefinition, read_change
from tests.broker import NewTopic
from tests.property.histories import history
from tests.spark.conftest import INTERPRETED, JVM_OPTIONS
from tests.spark.live import offsets, records, truth

KILLS = int(os.environ.get("KILLS", "1"))
ROWS = 30 + 40 * KILLS
PER_SECOND = 100
POISON = (b"rubbish", b"\x00\x00\x00\x00\x07rubbish", b"\xc3\x01" + 8 * b"\x00", b"")
SETTINGS = {
    "JDK_JAVA_OPTIONS": " ".join([JVM_OPTIONS, "-XX:TieredStopAtLevel=1", *(f"-D{name}={value}" for name, value in INTERPRETED.items())])
}

CONFIG = """
warehouse = "warehouse"
[kafka]
bootstrap_servers = "{servers}"
[streams.s]
topic = "{topic}"
trigger = "200ms"
max_offsets_per_trigger = 90
[tables.all]
stream = "s"
source = "t"
max_staleness = "2s"
key = {{ columns = [{{ name = "id", type = "BYTES" }}] }}
columns = [
  {{ name = "c0", family = "f", qualifier = "", type = "BYTES" }},
  {{ name = "c1", family = "g", qualifier = "q", type = "BYTES" }},
]
[tables.numbers]
stream = "s"
source = "t"
max_staleness = "2s"
keep_unmapped = false
key = {{ columns = [{{ name = "id", type = "BYTES" }}] }}
columns = [{{ name = "n", family = "f", qualifier = "q", type = "FLOAT64" }}]
"""

Record = tuple[bytes, bytes]


@contextmanager
def publishing(kafka: KafkaConfig, topic: str, records: list[Record], rng: Random) -> Iterator[None]:
    """Records trickle in during the block; what is left is there at its end."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    ended = threading.Event()

    def publish() -> None:
        for key, value in records:
            producer.produce(topic, value, key)
            ended.wait(rng.expovariate(PER_SECOND))
        assert producer.flush(30) == 0

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def begun(pipeline: Pipeline) -> bool:
    """Whether this process has ingested something."""
    return "stream s: batch" in pipeline.tail()


@pytest.mark.timeout(300 + 60 * KILLS)
def test_resumable_whenever_it_is_killed(kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path, seed: int) -> None:
    """TBL-2, TBL-5, TBL-9 to TBL-14, DLQ-4: nothing_lost, nothing_invented, newest_wins, deletes_stay_deleted, poison_is_contained."""
    rng, facts = Random(seed), new_topic(kafka_partitions=3)
    folder = DemoFolder(tmp_path)
    folder.config.write_text(CONFIG.format(servers=kafka.bootstrap_servers, topic=facts.topic))
    changes = [d.change for n in range(ROWS) for d in history(rng, distinct_ranks=True, rows=(b"%d" % n,))]
    records = [(kafka_key(change), codec.frame(codec.encode(change, 3), None)) for change in changes]
    records += [(b"%d" % n, rng.choice(POISON)) for n in range(len(records) // 20)]
    rng.shuffle(records)

    with publishing(kafka, facts.topic, records, Random(seed)):
        for number in range(KILLS):
            with running(folder, number, "--cores", "2", "--memory", "1g", settings=SETTINGS) as pipeline:
                pipeline.wait(lambda: begun(pipeline), lambda _: None)
                time.sleep(rng.uniform(0, 5))
    with running(folder, KILLS, "--once", "--cores", "2", "--memory", "1g", settings=SETTINGS) as pipeline:
        pipeline.finish(lambda _: None)

    assert logged_offsets(folder) == offsets(kafka, facts.topic)
    tables = load_file(folder.config, {}).tables
    for wanted in tables.values():
        assert rows(folder, wanted) == {row["id"]: row for row in truth(wanted, changes)}
    assert letters(kafka, facts.topic) == expected_letters(kafka, facts.topic, facts.topic_id, tables["numbers"])


def logged_offsets(folder: DemoFolder) -> list[tuple[int, int]]:
    changelog = DeltaTable(str(folder.changelog("s")))
    found = changelog.to_pyarrow_table(columns=["kafka_partition", "offset"], filters=[("kind", "!=", "frontier")]).to_pydict()
    return sorted(zip(found["kafka_partition"], found["offset"], strict=True))


def rows(folder: DemoFolder, wanted: TableDefinition) -> dict[object, dict[str, object]]:
    table = open_table(str(folder.table(wanted.name)))
    found = [dict(zip(table.types, row, strict=True)) for row in table.rows()]
    for row in found:
        row["_unmapped"] = dict(row["_unmapped"] or ()) if wanted.keep_unmapped else None
    by_key = {row["id"]: row for row in found}
    assert len(by_key) == len(found), "a key stands twice"
    return by_key


def letters(kafka: KafkaConfig, topic: str) -> set[str]:
    """The ids of the letters. Two under one id must be the same, to the last byte of the last header."""
    by_id = defaultdict(set)
    for _, _, message in records(kafka, f"{topic}.dead-letters"):
        headers = message.headers() or []
        id_ = dict(headers)["connector.dlq.id"]
        assert isinstance(id_, bytes)
        by_id[id_.decode()].add((message.key(), message.value(), tuple(headers)))
    assert [different for different in by_id.values() if len(different) > 1] == []
    return set(by_id)


def expected_letters(kafka: KafkaConfig, topic: str, topic_id: str, picky: TableDefinition) -> set[str]:
    ids = set()
    for number, offset, message in records(kafka, topic):
        decoded = codec.decode(message.value(), codec.Schemas())
        if not isinstance(decoded, codec.ChangeRecord):
            ids.add(f"{topic_id}-{number}-{offset}")
        elif isinstance(decoded.record, DataChange) and read_change(picky, decoded.record):
            ids.add(f"{topic_id}-{number}-{offset}-{picky.name}")
    return ids
