"""Write streams beside ordinary changes: their rate, the latency of an append, and a commit of many
staged rows (WRS-5, WRS-6, WRS-10, WRS-14, WRS-18).

    python -m benchmarks write-streams [--quick]

    python -m benchmarks.write_streams [--parts rate latency commit] [--rows N]

Rate: the same changes of five columns (six entries), ready before, go to a local broker by
`ChangeProducer.send_many`, and by a committed write stream with 10,000 and with 1,000 rows in a
transaction. Both get a thousand changes in a call, and both end when all are acknowledged. The
processor time of this process is measured, including the threads of the client library. All ways
take turns, and the best round of each counts.

Latency: the time from `append` of one row to its result, one after another and with ten in flight.

Commit: a pending write stream gets new rows of a table that has others, and they are ingested. Then
they are committed while ingest runs, a fresh read reads the whole table, and one apply brings the
rows into the table. The same rows go into another warehouse as ordinary changes. The memory is the
peak of the JVM since the start of that part, so it includes the heap that an earlier part took.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from benchmarks import machine, workload
from benchmarks.apply import run_ours
from benchmarks.producer import Row, batched, change, rows
from benchmarks.report import Figure, finish, spread
from benchmarks.stage import Stage, refuse, stage
from connector.config.settings import KafkaConfig
from connector.jars import JarStore
from connector.kafka import (
    Batching,
    ChangeProducer,
    LocalBroker,
    WriteSession,
    WriteStream,
    topics,
)
from connector.kafka.write_streams.commit import commit_streams
from connector.kafka.write_streams.queue import AppendResult
from connector.records.model import DataChange, DeleteFamily, Entry, SetCell
from connector.spark import read_table
from connector.spark.storage.table import Table
from connector.warehouse import table as table_path
from connector.write_streams.model import catalog_topic

ROUNDS = 5
CALL = 1_000
"""The changes in a call of `append` and of `send_many`."""
TRANSACTIONS = (10_000, 1_000)
IN_FLIGHT = 10
DEFAULT_LINGER_S = 0.05
"""That of `WriteSession`."""
TOPIC = "bench"
PARTS = ("rate", "latency", "commit")


# ── rate ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Rate:
    """Changes a second of processor time and of time, and the rows in a transaction."""

    per_core: float
    per_s: float
    transaction_rows: float = 0


def rate_of_default(kafka: KafkaConfig, made: list[DataChange]) -> Rate:
    """The rate of `send_many`, until all are acknowledged."""
    with ChangeProducer(kafka, TOPIC, heartbeat_s=1) as producer:
        with machine.cost() as spent:
            for some in batched(made, CALL):
                producer.send_many(some)
            producer.flush()
        return Rate(len(made) / spent.cpu_s, len(made) / spent.wall_s)


def rate_of_committed(kafka: KafkaConfig, made: list[DataChange], transaction_rows: int) -> Rate:
    """The rate of a committed write stream, until all results are known."""
    # A transaction waits until it is full.
    with WriteSession(
        kafka,
        TOPIC,
        "rate",
        batching=Batching(linger_s=5, transaction_rows=transaction_rows),
        heartbeat_s=60,
    ) as session:
        stream = session.stream(f"of-{transaction_rows}", kind="committed")
        ready, before = [row_of(stream, one) for one in made], catalog_end(kafka)
        with machine.cost() as spent:
            append_all(stream, ready)
            session.flush()
        # Each transaction has one record of the write stream, and a marker of its end.
        transactions = (catalog_end(kafka) - before) // 2
        return Rate(len(made) / spent.cpu_s, len(made) / spent.wall_s, len(made) / transactions)


def row_of(stream: WriteStream, one: DataChange) -> DataChange:
    return stream.row(
        table=one.table,
        row_key=one.row_key,
        entries=one.entries,
        commit_timestamp=one.commit_timestamp,
    )


def append_all(stream: WriteStream, made: Iterable[DataChange]) -> None:
    offset = stream.next_offset()
    for some in batched(made, CALL):
        stream.append(some, offset)
        offset += len(some)


def catalog_end(kafka: KafkaConfig) -> int:
    """The next offset of the catalog."""
    return topics.high_watermarks(kafka, topics.describe(kafka, catalog_topic(TOPIC)))[0]


def rates(kafka: KafkaConfig, count: int) -> list[Figure]:
    """The rates of all ways, which take turns."""
    made = [change(row) for row in rows(count)]
    ways: dict[str, Callable[[], Rate]] = {"default": lambda: rate_of_default(kafka, made)}
    for size in TRANSACTIONS:
        ways[f"committed_{size}"] = lambda size=size: rate_of_committed(kafka, made, size)  # type: ignore[misc]
    found: dict[str, list[Rate]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            found[name].append(way())
    figures, best = list[Figure](), dict[str, tuple[float, float]]()
    for name, each in found.items():
        print(spread(name, [one.per_core for one in each], "changes/s and core"))
        print(spread(name, [one.per_s for one in each], "changes/s"))
        best[name] = max(one.per_core for one in each), max(one.per_s for one in each)
        figures += [
            Figure(f"write_streams_{name}_rows_per_s_and_core", best[name][0]),
            Figure(f"write_streams_{name}_rows_per_s", best[name][1]),
        ]
    for size in TRANSACTIONS:
        name = f"committed_{size}"
        (core, wall), (core_of_default, wall_of_default) = best[name], best["default"]
        figures += [
            Figure(
                f"write_streams_{name}_rows_in_a_transaction",
                min(one.transaction_rows for one in found[name]),
            ),
            Figure(
                f"write_streams_{name}_to_default",
                core / core_of_default,
                "0.7" if size == TRANSACTIONS[0] else "-",
            ),
            Figure(f"write_streams_{name}_to_default_by_time", wall / wall_of_default),
        ]
    return figures


# ── latency ───────────────────────────────────────────────────────────────────────────────────────


def latencies(kafka: KafkaConfig, count: int) -> list[Figure]:
    """The latency of appends of one row."""
    made = [change(row) for row in rows(count)]
    figures = []
    for name, linger_s, in_flight in (
        ("default_linger", DEFAULT_LINGER_S, 1),
        ("no_linger", 0.0, 1),
        ("ten_in_flight", DEFAULT_LINGER_S, IN_FLIGHT),
        ("no_linger_ten_in_flight", 0.0, IN_FLIGHT),
    ):
        with WriteSession(
            kafka, TOPIC, "latency", batching=Batching(linger_s=linger_s), heartbeat_s=60
        ) as session:
            stream = session.stream("one-row", kind="committed")
            taken_s = [1000 * one for one in append_one_by_one(stream, made, in_flight)]
        print(spread(name, taken_s, "ms"))
        cuts = quantiles(taken_s, n=100, method="inclusive")
        figures += [
            Figure(f"write_streams_append_{name}_p50_ms", cuts[49]),
            Figure(f"write_streams_append_{name}_p99_ms", cuts[98]),
        ]
    return figures


def append_one_by_one(
    stream: WriteStream, made: list[DataChange], in_flight: int
) -> Iterator[float]:
    """Append rows, and yield the seconds until the result of each. A session answers in order, so
    the oldest one is waited for.
    """
    open_: deque[tuple[float, Callable[[], AppendResult]]] = deque()
    for one in made:
        row = row_of(stream, one)
        if len(open_) == in_flight:
            yield answered(*open_.popleft())
        began = time.perf_counter()
        open_.append((began, stream.append([row]).result))
    while open_:
        yield answered(*open_.popleft())


def answered(began: float, result: Callable[[], AppendResult]) -> float:
    result()
    return time.perf_counter() - began


# ── commit ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Load:
    """The seconds of each step with the rows of one warehouse, and the peak memory of the JVM.

    `released_s` and `visible_s` are from the commit to the batch that released the rows, and to the
    end of a fresh read. They are 0 for ordinary changes.
    """

    append_s: float = 0
    ingest_s: float = 0
    commit_s: float = 0
    released_s: float = 0
    visible_s: float = 0
    read_s: float = 0
    apply_s: float = 0
    peak_bytes: int = 0


def customers(rows_: Iterable[Row]) -> Iterator[tuple[bytes, tuple[Entry, ...], int]]:
    """Row key, entries and commit timestamp of new rows of the table of `benchmarks.workload`."""
    for place, (_, commit_timestamp, values) in enumerate(rows_):
        texts = [value.hex()[:12].encode() for value in values[:3]]
        numbers = [b"%d" % int.from_bytes(value[:3]) for value in values[3:]]
        cells = [
            SetCell(workload.FAMILY, name.encode(), value, commit_timestamp)
            for name, value in zip(workload.COLUMNS, texts + numbers, strict=True)
        ]
        key = b"new#%08d" % place
        yield key, (DeleteFamily(workload.FAMILY), *cells), commit_timestamp


def load(at: Stage, made: list[Row], *, is_staged: bool) -> Load:
    """Send rows, and bring them to readers and into the table."""
    topic, found = at.new_topic(), Load()
    warehouse = at.folder / ("staged" if is_staged else "ordinary")
    reset_peak(at.pid)
    with ExitStack() as stack:
        producer = stack.enter_context(ChangeProducer(at.kafka, topic, heartbeat_s=1))
        producer.send_many([ordinary(b"first", (SetCell(workload.FAMILY, b"name", b"n"),))])
        producer.flush()
        at.ingest(topic, warehouse)
        run_ours(at, warehouse)
        if is_staged:
            session = stack.enter_context(WriteSession(at.kafka, topic, "load"))
            stream = session.stream("rows", kind="pending")
            with machine.cost() as spent:
                append_all(
                    stream,
                    (
                        stream.row(table=workload.SOURCE, row_key=key, entries=entries)
                        for key, entries, _ in customers(made)
                    ),
                )
                assert stream.finalize() == len(made)
        else:
            with machine.cost() as spent:
                for some in batched((ordinary(*one) for one in customers(made)), CALL):
                    producer.send_many(some)
                producer.flush()
        found.append_s = spent.wall_s
        with machine.cost() as spent:
            at.ingest(topic, warehouse)
        found.ingest_s = spent.wall_s
        table_name = workload.definition().name
        table = Table(at.spark, str(warehouse / "tables" / table_name), workload.definition())
        if is_staged:
            assert fresh_rows(at, warehouse) == 1, "staged rows are not visible"
            release(at, topic, warehouse, producer, found)
        began = time.perf_counter()
        assert fresh_rows(at, warehouse) == 1 + len(made), "all rows are visible"
        found.read_s = time.perf_counter() - began
        found.visible_s = found.released_s + found.read_s if is_staged else 0
        before, _ = table.newest()
        began = time.perf_counter()
        run_ours(at, warehouse)
        found.apply_s = time.perf_counter() - began
        assert table.newest()[0] == before + 1, "all rows are in one version"
        applied = at.spark.read.format("delta").load(table_path(str(warehouse), table_name))
        assert applied.count() == 1 + len(made), "all rows are in the table"
        found.peak_bytes = machine.peak_bytes(at.pid)
    return found


def release(
    at: Stage, topic: topics.TopicFacts, warehouse: Path, producer: ChangeProducer, found: Load
) -> None:
    """Commit the rows while ingest runs, and wait until they are visible."""
    ingest = at.stream_ingest(topic, warehouse, trigger_s=0.2, publish=refuse)
    ingest.start(once=False)
    try:
        before = ingest.changelog.progress()
        producer.send_many([ordinary(b"first", (SetCell(workload.FAMILY, b"name", b"n"),))])
        producer.flush()
        while ingest.changelog.progress().ingest_batch == before.ingest_batch:
            ingest.check()  # the query has begun
            time.sleep(0.05)
        began = time.perf_counter()
        commit_streams(at.kafka, topic.topic, ["load/rows"], through=producer)
        found.commit_s = time.perf_counter() - began
        while not ingest.changelog.progress(with_frontier=False).releases.released_to:
            ingest.check()
            time.sleep(0.02)
        found.released_s = time.perf_counter() - began
    finally:
        ingest.stop()


def ordinary(
    row_key: bytes, entries: tuple[Entry, ...], commit_timestamp: int = workload.START_US
) -> DataChange:
    return DataChange(
        stream_partition="p0",
        table=workload.SOURCE,
        row_key=row_key,
        commit_timestamp=commit_timestamp,
        entries=entries,
    )


def fresh_rows(at: Stage, warehouse: Path) -> int:
    """Read the whole table with all that was ingested. Return the number of rows."""
    found = read_table(at.spark, str(warehouse), workload.definition().name, max_staleness_s=0).rows
    counts = [f"count({name}) AS {name}" for name in workload.COLUMNS]
    return int(found.selectExpr("count(1) AS rows", *counts).collect()[0]["rows"])


def reset_peak(pid: int) -> None:
    """Begin to measure the peak memory of a process again."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def loads(count: int) -> list[Figure]:
    """The steps of staged rows, beside those of ordinary changes."""
    figures = []
    with stage() as at:
        made = rows(count)
        found = {
            name: load(at, made, is_staged=name == "staged") for name in ("staged", "ordinary")
        }
    for name, one in found.items():
        figures.append(Figure(f"write_streams_{name}_append_rows_per_s", count / one.append_s))
        figures += [
            Figure(f"write_streams_{name}_{step}_s", getattr(one, f"{step}_s"))
            for step in ("ingest", "commit", "released", "visible", "read", "apply")
            if getattr(one, f"{step}_s")
        ]
        figures.append(
            Figure(f"write_streams_{name}_peak_memory_of_spark_mib", one.peak_bytes / 2**20)
        )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks write-streams")
    parser.add_argument("--quick", action="store_true", help="a tenth of it, no judgement")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="all if not given")
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="of the commit (default: %(default)s)"
    )
    chosen = parser.parse_args()
    share = 10 if chosen.quick else 1
    print(*machine.facts(), sep="\n", flush=True)
    figures: list[Figure] = []
    if {"rate", "latency"} & {*chosen.parts}:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lowmark-bench-"))
            broker = stack.enter_context(
                LocalBroker.start(Path(folder), JarStore.from_environment(os.environ))
            )
            kafka = KafkaConfig(broker.bootstrap_servers)
            topics.create_topic(kafka, TOPIC, kafka_partitions=4)
            if "latency" in chosen.parts:
                figures += latencies(kafka, 1_000 // share)
            if "rate" in chosen.parts:
                figures += rates(kafka, 100_000 // share)
    if "commit" in chosen.parts:
        figures += loads(chosen.rows // share)
    return finish(figures, validate_record=not chosen.quick)


if __name__ == "__main__":
    raise SystemExit(main())
