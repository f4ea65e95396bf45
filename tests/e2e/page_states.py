"""What the pages take for granted: files, records and write streams that their examples work on.

`prepare` makes them in the deployment of the tutorial, before the examples of a page run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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
    WriteStream,
    create_group_topics,
)
from connector.kafka.topics import describe
from connector.kafka.write_streams.commit import commit_streams
from connector.lake.state_reader import progress_of
from connector.records.codec import encode, frame
from connector.records.model import kafka_key
from connector.records.views import view_of_time
from connector.services import DeadLetters, load_config, run
from connector.services.warehouses import warehouse_of
from connector.spark import configure_session
from connector.spark.jvm import stop_session
from tests.documents import ROOT
from tests.integration.changes import send_raw
from tests.integration.test_dead_letter_queue import letter

HOUR: Final = 3_600_000_000
TOO_LARGE: Final = b"x" * 200_000
HOWTO: Final = ROOT / "docs/howto"


def prepare(page: Path, now: int) -> dict[str, str]:
    """Make what the examples of a page need. `now` is the present time on the clock of the pages.
    Returns texts of the examples with what a reader types in their place.
    """
    make = _OF_PAGES.get(page)
    return {} if make is None else make(load_config("connector.toml"), now)


def a_dead_letter(commands: str) -> str:
    """The id of the dead letter that commands are for: of a change that is too late if they are for
    a new change, otherwise of one that would be taken now, if there is one.
    """
    group = "index" if "--group index" in commands else None
    letters = DeadLetters(load_config("connector.toml"), "shop", group=group)
    best = Reason.TOO_LATE if "new change" in commands.replace("-", " ") else Reason.UNKNOWN_TABLE
    for which in (
        LetterFilter(reasons=frozenset({best}), key_prefix=b"13"),
        LetterFilter(),
        LetterFilter(states=frozenset()),
    ):
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
    """`nightly` died; `worker-1` to `worker-3`, and `export` have ended; of `import`, and of two
    flushes of `live`, ingest rejects a row; `archive` was committed below the horizon.
    """
    _session(config, "nightly", rows=1, is_over=False)
    for name in ("worker-1", "worker-2", "worker-3", "export", "archive"):
        _session(config, name, rows=1)
    _session(config, "import", rows=2, last=TOO_LARGE)
    commit_streams(config.kafka, "shop", ["import/rows"], as_of=now - HOUR - 60_000_000)
    commit_streams(config.kafka, "shop", ["archive/rows"], as_of=now - 60 * HOUR)
    with WriteSession(config.kafka, "shop", "live") as session:
        stream = session.stream("rows", kind="buffered")
        for offset in (0, 2):
            stream.append([_row(stream, offset), _row(stream, offset + 1, TOO_LARGE)], offset)
            stream.flush_rows(offset + 2)
    with _limit_of_records(100_000):
        run(load_config("connector.toml"), once=True)
    releases = progress_of(warehouse_of(config), "shop").releases
    flushed = [one for one in releases.withheld if "live/rows" in one.write_streams]
    return {"2026-04-30T09:30:00.000000Z": str(view_of_time(flushed[0].commit_timestamp))}


def _finalized(config: ConnectorConfig, now: int) -> dict[str, str]:
    _session(config, "part-1", rows=1)
    return {}


def _session(
    config: ConnectorConfig, name: str, *, rows: int, last: bytes = b"Ada", is_over: bool = True
) -> None:
    session = WriteSession(config.kafka, "shop", name)
    stream = session.stream("rows", kind="pending")
    names = [b"Ada"] * (rows - 1) + [last]
    stream.append([_row(stream, number, name) for number, name in enumerate(names)], 0).result(30)
    if is_over:
        stream.finalize()
        session.close()


def _row(stream: WriteStream, number: int, name: bytes = b"Ada") -> DataChange:
    entries = [SetCell("f", b"name", name)]
    return stream.row(table="customers", row_key=b"40%d" % number, entries=entries)


@contextmanager
def _limit_of_records(bytes_: int) -> Iterator[None]:
    name = "CONNECTOR__STREAMS__SHOP__MAX_RECORD_BYTES"
    os.environ[name] = str(bytes_)
    try:
        yield
    finally:
        del os.environ[name]


def _a_halted_stream(config: ConnectorConfig, now: int) -> dict[str, str]:
    """Letters of a batch, and a commit of another program."""
    _publish_letters(config, now, 100, 101, reason=Reason.UNKNOWN_SCHEMA)
    table = Path("warehouse/tables/customers/data")
    log = sorted((table / "_delta_log").glob("*.json"))
    spark = configure_session(SparkSession.builder.master("local[2]")).getOrCreate()
    spark.sql(f"DELETE FROM delta.`{table.absolute()}` WHERE id = 101")
    stop_session(spark)
    return {"data 41": f"data {int(log[-1].stem)}", "--ingest-batch 41": "--ingest-batch 4"}


def _dead_letters(config: ConnectorConfig, now: int) -> dict[str, str]:
    """A letter of each reason that the page names."""
    _publish_letters(config, now, 0, 1, reason=Reason.UNKNOWN_SCHEMA)
    _publish_letters(config, now, 2, reason=Reason.UNKNOWN_TABLE)
    count = describe(config.kafka, "shop").kafka_partitions

    def value(record: DataChange | Heartbeat) -> bytes:
        return frame(encode(record, count), None)

    records: list[tuple[bytes | None, bytes | None]] = [
        (b"131", value(customer(b"132", now))),
        (b"133", b"x" * 18 + encode(customer(b"133", now), count)),
        (b"u#1", value(customer(b"u#1", now + 24 * HOUR))),
        (b"134", value(customer(b"134", now - 60 * HOUR))),
        (kafka_key(Heartbeat("p0", now)), value(Heartbeat("p0", now + 24 * HOUR))),
    ]
    send_raw(config.kafka, "shop", records)
    run(config, once=True)
    create_group_topics(config.kafka, "shop", "index")
    _publish_letters(config, now, 2, reason=Reason.CONSUMER_FAILED, group="index")
    return {}


def _publish_letters(
    config: ConnectorConfig, now: int, *offsets: int, reason: Reason, group: str | None = None
) -> None:
    """Letters of ingest batch 4, whose changes would be taken now."""
    facts = describe(config.kafka, "shop")
    value = frame(encode(customer(b"130", now), facts.kafka_partitions), None)
    fields = {"key": b"130", "reason": reason, "ingest_batch": 4, "headers": ()}
    with DeadLetterPublisher(config.kafka, "shop", group) as publisher:
        publisher.publish(letter(facts, offset, value, **fields) for offset in offsets)


_OF_PAGES: Final[dict[Path, Callable[[ConnectorConfig, int], dict[str, str]]]] = {
    HOWTO / "manage-stream-partitions.md": _an_import_that_ended,
    HOWTO / "load-a-table.md": _exports,
    HOWTO / "read-a-stream.md": _records_of_all_kinds,
    HOWTO / "read-a-table.md": _up_to_date,
    HOWTO / "check-status.md": _a_shard_that_is_gone,
    HOWTO / "operate-write-streams.md": _write_streams,
    HOWTO / "repair-what-stopped.md": _a_halted_stream,
    HOWTO / "replay-dead-letters.md": _dead_letters,
    HOWTO / "use-from-python.md": _finalized,
}
