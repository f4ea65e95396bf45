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
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import machine
from benchmarks.producer import batched
from benchmarks.report import Figure, finish, spread
from connector.config.settings import KafkaConfig
from connector.jars import JarStore
from connector.kafka import ChangeProducer, LocalBroker, topics
from connector.records import codec
from connector.records.model import DataChange
from connector.sources.changes import Changes, headers
from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import ForeignRecord, Released, Row
from connector.sources.records import AvroFormat, JsonFormat
from connector.sources.tables import KnownTables
from connector.tables.definition import TableDefinition
from tests.foreign_records import LSN, TIME, Registry, Typed, Writer, decimal, number, text

ROUNDS = 5
KAFKA_PARTITIONS = 4
SEED = 20261126
FORMATS = ("json", "json with schema", "avro")
Reading = tuple[DebeziumDecoder, dict[str, TableDefinition]]


def records(count: int, format_: str, registry: Registry) -> list[ForeignRecord]:
    """Updates of rows of ten columns, each in a transaction of its own."""
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
    transaction = {"id": f"{index}:{LSN + index}", "total_order": 1, "data_collection_order": 1}
    return writer.event("u", transaction=transaction)


def reading(format_: str, registry: Registry, first: ForeignRecord) -> Reading:
    """A decoder that knows the table, and the definitions that follow from it."""
    tables = KnownTables()
    read = AvroFormat(registry.schema_of) if format_ == "avro" else JsonFormat()
    decoder = DebeziumDecoder(read, tables)
    assert isinstance(decoder.decode(first), Row)
    return decoder, {name: table.definition("c", "s") for name, table in tables.tables.items()}


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
    rates: dict[str, list[float]] = {way: [] for way in (*FORMATS, "send_many")}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lowmark-bench-"))
        broker = stack.enter_context(
            LocalBroker.start(Path(folder), JarStore.from_environment(os.environ))
        )
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "bench", kafka_partitions=KAFKA_PARTITIONS)
        for _ in range(ROUNDS):
            for format_ in FORMATS:
                made = reading(format_, registry, sources[format_][0])
                rates[format_].append(rate(sources[format_], made))
            rates["send_many"].append(rate_of_ready(kafka, "bench", ready))
    print(*machine.facts(), sep="\n")
    print(f"{count} records a round")
    for name, found in rates.items():
        print(spread(name, found, "changes/s and core"))
    json, with_schema, avro, many = (max(found) for found in rates.values())
    return finish(
        [
            Figure("bridge_json_changes_per_s_and_core", json, "15000"),
            Figure("bridge_json_with_schema_changes_per_s_and_core", with_schema, "10000"),
            Figure("bridge_avro_changes_per_s_and_core", avro, "10000"),
            Figure("bridge_json_to_send_many", json / many, "0.17"),
            Figure("bridge_json_with_schema_to_send_many", with_schema / many, "0.12"),
            Figure("bridge_avro_to_send_many", avro / many, "0.12"),
        ],
        validate_record=not quick,
    )


if __name__ == "__main__":
    raise SystemExit(main())
