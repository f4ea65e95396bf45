"""Writes the golden warehouse: `python -m tests.golden.make_warehouse`, once for each release that
changes a stored form.

It has each stored form: two batches that are applied, with a rejected record, deleted rows, cells
without a column, heartbeats and an announcement; a third batch that is not applied; a job, a cut,
overrides, a closed stream partition. `expected.json` has the rows after batch 2 and after batch 3.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from connector import jars
from connector.lake.jobs import History
from connector.lake.overrides import Overrides
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteFamily,
    Heartbeat,
)
from connector.spark.session import start_session
from connector.state.jobs import CutRecord, Job, JobKind
from connector.state.overrides import ClosePartition, Override
from tests.changes import change
from tests.spark.streams import Stream, account, definition, shown

FOLDER = Path(__file__).parent / "warehouse"
EXPECTED = FOLDER.with_suffix(".json")
TABLE = definition(max_staleness_s=3600)
REJECTED = b"not Avro"


def deletion(row: str, at: int) -> DataChange:
    """All cells of a row."""
    return change(DeleteFamily("f"), at=at, row_key=row.encode())


def main() -> None:
    store = jars.JarStore.from_environment(os.environ)
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_session(jars.fetch("spark", store), scratch=Path(scratch), cores="2")
        shutil.rmtree(FOLDER, ignore_errors=True)
        stream = Stream(spark, FOLDER)
        topic, table = stream.topic, stream.table(TABLE)

        topic.send_everywhere(ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
        topic.send(
            *(account(row, 10 + at, name=row, amount=str(at)) for at, row in enumerate("abcdefgh"))
        )
        topic.raw((b"x", REJECTED))
        topic.send_everywhere(Heartbeat("p", 30))
        stream.ingest()
        stream.apply(table)

        topic.send(account("a", 50, name="Ada"), account("b", 51, colour="blue"))
        topic.send(deletion("c", 52), deletion("d", 53))
        topic.send_everywhere(Heartbeat("p", 60))
        stream.ingest()
        stream.apply(table)
        applied, version = shown(table), table.newest()[0]
        assert applied == stream.truth(TABLE), "the maker is wrong"

        # Behind the deletion of c in arrival, before it in time: the row stays deleted.
        topic.send(account("c", 51, name="late"), account("d", 70, name="again"))
        topic.send(account("e", 71, amount="-5"), account("i", 72, name="new"))
        topic.send(deletion("f", 73))
        stream.ingest()
        _operate(str(FOLDER), stream.clock, version)
        rows = {"applied": as_json(applied), "merged": as_json(stream.truth(TABLE))}
        read = {str(number): end for number, end in topic.read.items()}
        EXPECTED.write_text(json.dumps({**rows, "read": read}, indent=1, sort_keys=True) + "\n")
        spark.stop()
    for path in FOLDER.rglob(".*.crc"):  # of Hadoop, for one file each
        path.unlink()
    _forget_place()


def _forget_place() -> None:
    """Remove the path of this checkout, which delta-rs stores in the commit that makes a table."""
    for path in FOLDER.rglob("_delta_log/*.json"):
        path.write_text(path.read_text().replace(FOLDER.as_uri(), "file:///warehouse"))


def _operate(warehouse: str, now: int, version: int) -> None:
    """What services store beside streams and tables."""
    history, overrides = History(warehouse), Overrides(warehouse)
    history.add_job(
        Job(JobKind.APPLY, "accounts", now - 2_000_000, now, 1, 2, 4, 0, 31, 61),
    )
    history.add_cut(CutRecord("s", 61, 2, 0, 12, now, {"accounts": version}))
    overrides.set(Override("max_staleness_s", "accounts", 60, now, "a person"))
    overrides.set(Override("apply_every_s", "accounts", 20, now, "a person"))
    overrides.add(ClosePartition(0, "s", "p", "the tablet is gone", now, "a person"))


def as_json(rows: Mapping[object, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows in the order of their keys, bytes as hexadecimal digits."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): plain(one) for name, one in sorted(value.items())}
        return value.hex() if isinstance(value, bytes) else value

    return [plain(rows[key]) for key in sorted(rows, key=str)]


if __name__ == "__main__":
    main()
