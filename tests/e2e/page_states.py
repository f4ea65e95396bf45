"""What the pages take for granted: files, records and write streams that their examples work on.

`prepare` makes them in the deployment of the tutorial, before the examples of a page run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from connector import DataChange, DeleteFamily, Heartbeat, Reason, SetCell
from connector.config.settings import ConnectorConfig
from connector.kafka import (
    ChangeProducer,
    DeadLetterPublisher,
    LetterFilter,
    WriteSession,
    commit_streams,
)
from connector.kafka.topics import describe
from connector.records.codec import encode, frame
from connector.records.model import kafka_key
from connector.services import dead_letters, load_config, run
from connector.spark import configure_session
from connector.spark.jvm import stop_session
from tests.documents import ROOT
from tests.integration.changes import send_raw
from tests.integration.test_dead_letter_queue import letter

HOUR: Final = 3_600_000_000
HOWTO: Final = ROOT / "docs/howto"


def prepare(page: Path, now: int) -> dict[str, str]:
    """Make what the examples of a page need. `now` is the present time on the clock of the pages.
    Returns texts of the examples with what a reader types in their place.
    """
    make = _OF_PAGES.get(page)
    return {} if make is None else make(load_config("connector.toml"), now)


def a_dead_letter(group: str | None) -> str:
    """The id of an open dead letter, or of any."""
    letters = dead_letters(load_config("connector.toml"), "shop", group=group)
    for which in (LetterFilter(), LetterFilter(states=frozenset())):
        for found, _ in letters.list(which):
            return found.id
    raise AssertionError("there is no dead letter")


def customer(key: bytes, at: int, partition: str = "p0", name: bytes = b"Ada") -> DataChange:
    return DataChange(
        stream_partition=partition,
        table="customers",
        row_key=key,
        commit_timestamp=at,
        entries=(DeleteFamily("f"), SetCell("f", b"name", name)),
    )


def send(config: ConnectorConfig, *records: DataChange | Heartbeat) -> None:
    with ChangeProducer(config.kafka, "shop") as producer:
        for record in records:
            producer.send(record)


def _an_import_that_ended(config: ConnectorConfig, now: int) -> dict[str, str]:
    send(config, customer(b"120", now, "import-1"), Heartbeat("import-1", now))
    run(config, once=True)
    return {}


def _up_to_date(config: ConnectorConfig, now: int) -> dict[str, str]:
    """The reads have a bound of ten minutes."""
    run(config, once=True)
    return {}


def _a_shard_that_is_gone(config: ConnectorConfig, now: int) -> dict[str, str]:
    send(config, customer(b"121", now, "shard-7"), Heartbeat("shard-7", now))
    run(config, once=True)
    return {}


def _exports(config: ConnectorConfig, now: int) -> dict[str, str]:
    for number, name in enumerate(("customers", "part-1", "part-2")):
        columns = {"id": [300 + 2 * number, 301 + 2 * number], "name": ["Ada", "Grace"]}
        pq.write_table(pa.table(columns), f"{name}.parquet")
    return {}


def _records_of_all_kinds(config: ConnectorConfig, now: int) -> dict[str, str]:
    send(config, customer(b"\xff", now))
    return {}


def _write_streams(config: ConnectorConfig, now: int) -> dict[str, str]:
    """`nightly` died; `worker-1` to `worker-3`, and `export` have ended; of `import`, ingest
    rejects a row; `archive` was committed below the horizon.
    """
    _session(config, "nightly", 1, is_over=False)
    for name in ("worker-1", "worker-2", "worker-3", "export"):
        _session(config, name, 1)
    _session(config, "import", 2)
    _session(config, "archive", 1)
    commit_streams(config.kafka, "shop", ["import/rows"], as_of=now - HOUR - 60_000_000)
    commit_streams(config.kafka, "shop", ["archive/rows"], as_of=now - 60 * HOUR)
    with _limit_of_records(100_000):
        run(load_config("connector.toml"), once=True)
    return {}


def _finalized(config: ConnectorConfig, now: int) -> dict[str, str]:
    _session(config, "part-1", 1)
    return {}


def _session(
    config: ConnectorConfig, name: str, count: int, *, is_over: bool = True
) -> WriteSession:
    """A session whose last row is large if it has several."""
    session = WriteSession(config.kafka, "shop", name)
    stream = session.stream("rows", kind="pending")
    values = [b"Ada"] * (count - 1) + [b"x" * (200_000 if count > 1 else 10)]
    rows = [
        stream.row(
            table="customers", row_key=b"40%d" % number, entries=[SetCell("f", b"name", value)]
        )
        for number, value in enumerate(values)
    ]
    stream.append(rows, offset=0).result(30)
    if is_over:
        stream.finalize()
        session.close()
    return session


@contextmanager
def _limit_of_records(bytes_: int) -> Iterator[None]:
    name = "CONNECTOR__STREAMS__SHOP__MAX_RECORD_BYTES"
    os.environ[name] = str(bytes_)
    try:
        yield
    finally:
        del os.environ[name]


def _a_halted_stream(config: ConnectorConfig, now: int) -> dict[str, str]:
    """Letters of a schema that is known now, and a commit of another program."""
    _dead_letters(config, now)
    run(config, once=True)
    table = Path("warehouse/tables/customers/data")
    log = sorted((table / "_delta_log").glob("*.json"))
    spark = configure_session(SparkSession.builder.master("local[2]")).getOrCreate()
    spark.sql(f"DELETE FROM delta.`{table.absolute()}` WHERE id = 101")
    stop_session(spark)
    return {"data 41": f"data {int(log[-1].stem)}", "--ingest-batch 41": "--ingest-batch 4"}


def _dead_letters(config: ConnectorConfig, now: int) -> dict[str, str]:
    """A letter of each reason that the page names. The schema is known now."""
    facts = describe(config.kafka, "shop")
    good = frame(encode(customer(b"130", now), facts.kafka_partitions), None)
    letters = [
        letter(
            facts,
            number,
            good,
            key=b"130",
            reason=Reason.UNKNOWN_SCHEMA,
            ingest_batch=4,
            headers=(),
        )
        for number in range(2)
    ]
    with DeadLetterPublisher(config.kafka, "shop") as publisher:
        publisher.publish(letters)
    late = customer(b"u#1", now + 24 * HOUR)
    ahead = frame(encode(Heartbeat("p0", now + 24 * HOUR), facts.kafka_partitions), None)
    records: Iterable[tuple[bytes | None, bytes | None]] = [
        (b"131", frame(encode(customer(b"132", now), facts.kafka_partitions), None)),
        (b"133", b"x" * 18 + encode(customer(b"133", now), facts.kafka_partitions)),
        (b"u#1", frame(encode(late, facts.kafka_partitions), None)),
        (kafka_key(Heartbeat("p0", now)), ahead),
    ]
    send_raw(config.kafka, "shop", records)
    run(config, once=True)
    return {}


_OF_PAGES: Final[dict[Path, Callable[[ConnectorConfig, int], dict[str, str]]]] = {
    HOWTO / "write-a-producer.md": _an_import_that_ended,
    HOWTO / "load-a-table.md": _exports,
    HOWTO / "read-a-stream.md": _records_of_all_kinds,
    HOWTO / "read-a-table.md": _up_to_date,
    HOWTO / "check-status.md": _a_shard_that_is_gone,
    HOWTO / "operate-write-streams.md": _write_streams,
    HOWTO / "repair-what-stopped.md": _a_halted_stream,
    HOWTO / "replay-dead-letters.md": _dead_letters,
    HOWTO / "use-from-python.md": _finalized,
}
