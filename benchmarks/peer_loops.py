"""Two usual ways to bring a topic into a Delta table, as programs for `benchmarks.peers`:

    python -m benchmarks.peer_loops {delta-rs,spark} SERVERS TOPIC FOLDER

Both decode the records with their Avro library, take the newest change of each key, and merge once
a second into FOLDER/table. Each commit names the offsets up to which it has read.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from deltalake import CommitProperties, DeltaTable

from benchmarks.freshness import KAFKA_PARTITIONS
from benchmarks.workload import COLUMNS
from connector.records.codec import SCHEMA as RECORD_SCHEMA
from connector.tables.values import DataType

AT_ONCE = 50_000
TYPES = {DataType.STRING: pa.string(), DataType.INT64: pa.int64()}
SCHEMA = pa.schema(
    [
        ("row_key", pa.string()),
        ("commit_timestamp", pa.int64()),
        ("deleted", pa.bool_()),
        *((name, TYPES[type_]) for name, type_ in COLUMNS.items()),
    ]
)


def delta_rs(servers: str, topic: str, folder: Path) -> None:
    """A loop without Spark. The stored commit timestamp keeps an older change from winning."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "peer"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(KAFKA_PARTITIONS)])
    schema = fastavro.parse_schema(json.loads(RECORD_SCHEMA))
    columns = pa.schema([field for field in SCHEMA if field.name != "deleted"])
    table = DeltaTable.create(str(folder / "table"), columns)
    names, ends = columns.names, dict.fromkeys(map(str, range(KAFKA_PARTITIONS)), 0)
    while True:
        began, newest = time.monotonic(), dict[str, dict[str, Any]]()
        for message in consumer.consume(AT_ONCE, timeout=0.1):
            record = fastavro.schemaless_reader(io.BytesIO(message.value()[10:]), schema, None)
            ends[str(message.partition())] = message.offset() + 1
            if (change := record["data_change"]) is not None:
                row = row_of(change)
                known = newest.get(row["row_key"])
                if known is None or known["commit_timestamp"] <= row["commit_timestamp"]:
                    newest[row["row_key"]] = row
        if newest:
            merge = table.merge(
                pa.Table.from_pylist(list(newest.values()), SCHEMA),
                "t.row_key = s.row_key",
                source_alias="s",
                target_alias="t",
                commit_properties=CommitProperties({"userMetadata": said(ends)}),
            )
            newer = "s.commit_timestamp >= t.commit_timestamp"
            values = {name: f"s.{name}" for name in names}
            merge.when_matched_delete(f"s.deleted AND {newer}").when_matched_update(
                values, f"NOT s.deleted AND {newer}"
            ).when_not_matched_insert(values, "NOT s.deleted").execute()
        time.sleep(max(0.0, began + 1 - time.monotonic()))


def row_of(change: Mapping[str, Any]) -> dict[str, Any]:
    """A decoded change as a row of `SCHEMA`."""
    cells = {
        entry["qualifier"].decode(): entry["value"].decode()
        for entry in change["entries"]
        if entry["kind"] == "SET_CELL"
    }
    at = change["commit_timestamp"]
    return {
        "row_key": change["row_key"].decode(),
        "commit_timestamp": at if isinstance(at, int) else round(at.timestamp() * 1_000_000),
        "deleted": not cells,
        **{
            name: int(cells[name]) if type_ is DataType.INT64 else cells[name]
            for name, type_ in COLUMNS.items()
            if name in cells
        },
    }


def spark(servers: str, topic: str, folder: Path) -> None:
    """The recipe of `benchmarks.backlog`, with a trigger of a second."""
    from benchmarks.apply import upsert
    from benchmarks.backlog import changes_of, recipe_session

    session, table, checkpoint = recipe_session(folder), folder / "table", folder / "checkpoint"
    records = session.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }
    )
    changes = changes_of(records.load())
    session.createDataFrame([], changes.schema).drop("deleted").write.format("delta").save(
        str(table)
    )
    merge = upsert(session, str(table))

    def batch(rows: Any, number: int) -> None:
        ends = json.loads((checkpoint / f"offsets/{number}").read_text().splitlines()[-1])[topic]
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", said(ends))
        merge(rows, number)

    writer = changes.writeStream.foreachBatch(batch).trigger(processingTime="1 second")
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def said(ends: Mapping[str, int]) -> str:
    """The metadata of a commit, in the form that `Commits` of `benchmarks.freshness` reads."""
    return json.dumps({"lowmark": {"end_offsets": ends}})


LOOPS: dict[str, Callable[[str, str, Path], None]] = {"delta-rs": delta_rs, "spark": spark}

if __name__ == "__main__":
    name, servers, topic, folder = sys.argv[1:]
    os.chdir(folder)
    LOOPS[name](servers, topic, Path(folder))
