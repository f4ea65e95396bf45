"""How many records of Debezium become changes on one core, beside `send_many` of ready changes
(SRC-9).

    python -m benchmarks bridge [--quick]

Updates of a table with ten columns are decoded, become changes with their headers, and are encoded
as the producer encodes them: JSON without a schema, JSON with its schema, and Avro. The records are
ready before, and their order is that of the transactions. `send_many` sends the same changes, ready
before, to a local broker. The processor time of this process is measured, including the threads of
the client library, so the result is a rate per core. All ways take turns, and the best round of
each counts. The rates depend on the machine; the ratios to `send_many` depend less on it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer

from benchmarks import machine
from benchmarks.producer import batched
from benchmarks.report import Figure, finish, spread
from connector.config.settings import KafkaConfig
from connector.jars import JarStore
from connector.kafka import ChangeProducer, LocalBroker, topics
from connector.records import codec
from connector.records.model import DataChange
from connector.services import load_config, run_bridge
from connector.sources.changes import Changes, headers
from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import ForeignRecord, Released, Row
from connector.sources.records import AvroFormat, JsonFormat
from connector.sources.tables import KnownTables
from connector.tables.definition import TableDefinition
from tests.foreign_records import (
    LSN,
    TIME,
    Registry,
    Typed,
    Writer,
    decimal,
    definition_of,
    number,
    text,
)

ROUNDS = 5
KAFKA_PARTITIONS = 4
SOURCE, TRANSACTIONS = "dbz.public.customers", "dbz.transaction"
SEED = 20261126
TOGETHER = 10
FORMATS = ("json", "json with schema", "avro")
Reading = tuple[DebeziumDecoder, dict[str, TableDefinition]]


def records(count: int, format_: str, registry: Registry) -> list[ForeignRecord]:
    """Updates of rows of ten columns, `TOGETHER` in a transaction."""
    chance = random.Random(SEED)
    return [record(index, chance, format_, registry) for index in range(count)]


def record(index: int, chance: random.Random, format_: str, registry: Registry) -> ForeignRecord:
    key = number("id", chance.randrange(200_000))
    fields = [
        key,
        text("name", f"Customer {chance.randrange(10**6)}"),
        text("email", f"c{chance.randrange(10**6)}@example.org"),
        text("city", "Zürich"),
        text("note", None),
        decimal("credit", chance.randrange(10**8), 12, 2),
        number("created_at", TIME + index, "io.debezium.time.MicroTimestamp"),
        number("orders", chance.randrange(100)),
        Typed("active", {"type": "boolean"}, "boolean", chance.random() < 0.5),
        Typed("score", {"type": "double"}, "double", chance.random()),
    ]
    writer = Writer(format_, [key], fields, registry=registry, offset=index)
    which, order = index // TOGETHER, index % TOGETHER + 1
    at = {"id": f"{which}:{LSN + index}", "total_order": order, "data_collection_order": order}
    return writer.event("u", transaction=at)


def end(number: int) -> bytes:
    """The record with the end of a transaction."""
    counts = {"event_count": TOGETHER}
    content = {
        "status": "END",
        "id": f"{number}:{LSN + number * TOGETHER}",
        **counts,
        "data_collections": [{"data_collection": "public.customers", **counts}],
        "ts_ms": TIME // 1000,
    }
    return json.dumps(content).encode()


def reading(format_: str, registry: Registry, first: ForeignRecord) -> Reading:
    """A decoder that knows the table, and the definitions that follow from it."""
    tables = KnownTables()
    read = AvroFormat(registry.schema_of) if format_ == "avro" else JsonFormat()
    decoder = DebeziumDecoder(read, tables)
    assert isinstance(decoder.decode(first), Row)
    return decoder, {name: definition_of(table) for name, table in tables.tables.items()}


def changes(
    sources: Sequence[ForeignRecord], made: Reading
) -> Iterator[tuple[DataChange, Released]]:
    decoder, definitions = made
    maker = Changes(definitions.get)
    for index, source in enumerate(sources):
        event = decoder.decode(source)
        assert isinstance(event, Row)
        released = Released(source, event, TIME + 2 * index, 1, 1)
        change = maker.change(released)
        assert isinstance(change, DataChange)
        yield change, released


def rate(sources: Sequence[ForeignRecord], made: Reading) -> float:
    """Changes a second of processor time, with all but the sending."""
    began = time.process_time()
    for change, released in changes(sources, made):
        headers(released)
        codec.frame(codec.encode(change, KAFKA_PARTITIONS), None)
    return len(sources) / (time.process_time() - began)


def write_topics(kafka: KafkaConfig, sources: Sequence[ForeignRecord]) -> None:
    """The topics that Debezium would write."""
    topics.create_topic(kafka, SOURCE, kafka_partitions=KAFKA_PARTITIONS)
    topics.create_topic(kafka, TRANSACTIONS, kafka_partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20})
    for index, source in enumerate(sources):
        producer.produce(SOURCE, source.value, source.key)
        if index % TOGETHER == TOGETHER - 1:
            producer.produce(TRANSACTIONS, end(index // TOGETHER))
        producer.poll(0)
    producer.flush()


def rate_of_bridge(kafka: KafkaConfig, folder: Path, name: str, count: int) -> float:
    """Changes a second of processor time, from the topics of the source to a new stream."""
    topics.create_topic(kafka, name, kafka_partitions=KAFKA_PARTITIONS)
    file = folder / f"{name}.toml"
    file.write_text(
        f"""warehouse = "{name}"
[kafka]
bootstrap_servers = "{kafka.bootstrap_servers}"
[streams.s]
topic = "{name}"
[streams.s.source]
format = "debezium-json"
topics = ["{SOURCE}"]
transactions = "{TRANSACTIONS}"
"""
    )
    began = time.process_time()
    counts = run_bridge(load_config(file, {}), once=True, on_event=lambda event: None)
    spent = time.process_time() - began
    assert counts.changes == count, counts
    return count / spent


def rate_of_ready(kafka: KafkaConfig, topic: str, ready: list[DataChange]) -> float:
    with ChangeProducer(kafka, topic, heartbeat_s=1) as producer:
        began = time.process_time()
        for some in batched(ready, 1000):
            producer.send_many(some)
        producer.flush()
        return len(ready) / (time.process_time() - began)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks bridge")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, no judgement")
    quick = parser.parse_args().quick
    count = 5_000 if quick else 50_000
    registry = Registry()
    sources = {format_: records(count, format_, registry) for format_ in FORMATS}
    made = reading("avro", registry, sources["avro"][0])
    ready = [change for change, _ in changes(sources["avro"], made)]
    gc.freeze()  # what is ready before is not looked at again and again
    rates: dict[str, list[float]] = {way: [] for way in (*FORMATS, "whole", "send_many")}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lowmark-bench-"))
        broker = stack.enter_context(
            LocalBroker.start(Path(folder), JarStore.from_environment(os.environ))
        )
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "bench", kafka_partitions=KAFKA_PARTITIONS)
        write_topics(kafka, sources["json"])
        for number in range(ROUNDS):
            for format_ in FORMATS:
                made = reading(format_, registry, sources[format_][0])
                rates[format_].append(rate(sources[format_], made))
            rates["whole"].append(rate_of_bridge(kafka, Path(folder), f"bridge-{number}", count))
            rates["send_many"].append(rate_of_ready(kafka, "bench", ready))
    print(*machine.facts(), sep="\n")
    print(f"{count} records a round")
    for name, found in rates.items():
        print(spread(name, found, "changes/s and core"))
    plain, with_schema, avro, whole, many = (max(found) for found in rates.values())
    return finish(
        [
            Figure("bridge_json_changes_per_s_and_core", plain, "15000"),
            Figure("bridge_json_with_schema_changes_per_s_and_core", with_schema, "10000"),
            Figure("bridge_avro_changes_per_s_and_core", avro, "10000"),
            Figure("bridge_whole_changes_per_s_and_core", whole),
            Figure("bridge_json_to_send_many", plain / many, "0.17"),
            Figure("bridge_json_with_schema_to_send_many", with_schema / many, "0.12"),
            Figure("bridge_avro_to_send_many", avro / many, "0.12"),
            Figure("bridge_whole_to_send_many", whole / many),
        ],
        validate_record=not quick,
    )


if __name__ == "__main__":
    raise SystemExit(main())
