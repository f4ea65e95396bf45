"""The task that writes a large batch, without Spark (ENG-3)."""

from __future__ import annotations

import json
import pickle
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from pyarrow import parquet

from connector.engine.batch import IngestJob, changelog_rows
from connector.engine.rules import RecordRules
from connector.engine.schema import CHANGELOG, KAFKA
from connector.engine.slots import by_key
from connector.errors import TableError
from connector.lake.small_files import row_writer, write_rows
from connector.records.codec import Schemas, frame, framed
from connector.records.model import CONTROL_KEY
from connector.spark import tasks
from connector.spark.tasks import IngestTask
from connector.validation import Limits
from tests.record_cases import CHANGE, HEARTBEAT, STAGED

READ_AT = 1_714_475_990_000_000
VALUES = [*(framed(record, 1) for record in (CHANGE, HEARTBEAT, STAGED)), b"rubbish", None]
VALUES += [frame(b"unseen", 9), frame(b"absent", 8)]
REPLAY = [("x", None), ("connector.replay", b"id-0-0/1")]
HEADERS: list[list[tuple[str, bytes | None]] | None] = [None, None, [("é", b"\xff")], REPLAY]


def source_rows(rng: Random, count: int) -> list[dict[str, Any]]:
    """Records as Spark's Kafka source has them, with their headers."""
    return [
        {
            "key": rng.choice((CHANGE.row_key, CONTROL_KEY)),
            "value": rng.choice(VALUES),
            "partition": number % 2,
            "offset": number,
            "timestamp": READ_AT + rng.choice((-5_000_000, 5 * 10**15)),
            "timestampType": 0,
            "headers": rng.choice(HEADERS),
        }
        for number in range(count)
    ]


def as_json(headers: list[tuple[str, bytes | None]] | None, rng: Random) -> str | None:
    """As `to_json` of Spark. A setting of the session says whether it has values that are null."""
    if headers is None:
        return None
    null = rng.choice(({}, {"value": None}))
    values = [
        {"key": key} | (null if value is None else {"value": b64encode(value).decode()})
        for key, value in headers
    ]
    return json.dumps(values)


def given(rows: list[dict[str, Any]], rng: Random) -> Iterator[pa.RecordBatch]:
    types = {"key": pa.binary(), "value": pa.binary(), "partition": pa.int32()}
    types |= {"offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
    types |= {"timestampType": pa.int32(), "headers": pa.string()}
    plain = [row | {"headers": as_json(row["headers"], rng)} for row in rows]
    while plain:
        size = rng.choice((1, 3, 50))
        yield pa.RecordBatch.from_pylist(plain[:size], pa.schema(types))
        plain = plain[size:]


def kafka_records(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    records = [
        {
            "kafka_partition": row["partition"],
            "offset": row["offset"],
            "record_timestamp": min(row["timestamp"], READ_AT),
            "key": row["key"],
            "value": row["value"],
            "headers": row["headers"]
            and [{"key": key, "value": value} for key, value in row["headers"]],
        }
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(records, KAFKA)


def task_of(folder: Path) -> IngestTask:
    job = IngestJob(
        records=kafka_records([]),
        rules=RecordRules(Limits(), 2),
        schemas=Schemas({8: None}),
        topic="t",
        topic_id="id",
        ingest_batch=4,
        ingest_time=READ_AT,
    )
    return IngestTask(
        job,
        asks_registry=True,
        read_at=READ_AT,
        changelog=str(folder),
        write_rows=row_writer(str(folder)),
    )


@pytest.mark.parametrize("most_bytes", [1, 10**9])
def test_files_and_what_is_left_have_each_record_once(
    tmp_path: Path, seed: int, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENG-3, nothing_lost: rows in the files are those that the driver would write. Replays and
    records of schemas that the registry was not asked for are left.
    """
    monkeypatch.setattr(tasks, "_MOST_BYTES", most_bytes)
    rng = Random(seed)
    rows, task = source_rows(rng, 300), pickle.loads(pickle.dumps(task_of(tmp_path)))
    results = pa.Table.from_batches(task._results(given(rows, rng))).to_pylist()
    adds = [json.loads(row["action"])["add"] for row in results if row["action"]]
    written = [
        parquet.read_table(tmp_path / unquote(add["path"]), partitioning=None) for add in adds
    ]
    left = [
        record
        for row in results
        if row["records"]
        for record in pa.ipc.open_stream(row["records"]).read_all().to_pylist()
    ]
    is_left = [row["headers"] == REPLAY or row["value"] == VALUES[5] for row in rows]
    kept = [row for row, leave in zip(rows, is_left, strict=True) if not leave]
    wanted = by_key(changelog_rows(replace(task.job, records=kafka_records(kept))))
    assert by_key(pa.concat_tables(written).cast(CHANGELOG)).equals(wanted)
    wanted_left = [row for row, leave in zip(rows, is_left, strict=True) if leave]
    assert left == kafka_records(wanted_left).to_pylist()
    assert len({add["partitionValues"]["slot"] for add in adds}) == 4


def test_an_expected_error_is_a_result(tmp_path: Path) -> None:
    """ENG-3: with its code and remedy."""
    (tmp_path / "file").write_text("")
    task = replace(task_of(tmp_path), changelog=str(tmp_path / "file"), write_rows=write_rows)
    (*_, last) = task._results(given(source_rows(Random(1), 5), Random(1)))
    error = pickle.loads(last["error"][0].as_py())
    assert isinstance(error, TableError)
    assert error.remedy
