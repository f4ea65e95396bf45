"""The pipeline goes on with a warehouse that an earlier version wrote (nothing_lost, newest_wins).

tests/golden/make_warehouse.py wrote it, and says what is in it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.records.model import WriteStreamOffset
from connector.spark.apply.rebuild import rebuild
from connector.spark.reader import read_snapshot, read_table
from tests.golden.make_warehouse import EXPECTED, FOLDER, TABLE, as_json
from tests.spark.streams import Stream, Topic, account, rows_by_key, shown

KEPT = json.loads(EXPECTED.read_text())


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    """A copy of the golden warehouse. Its topic is empty up to the position of ingest."""
    shutil.copytree(FOLDER, tmp_path / "warehouse")
    read = {int(number): end for number, end in KEPT["read"].items()}
    topic = Topic(records=[[None] * read[number] for number in sorted(read)], read=read)
    return Stream(spark, tmp_path / "warehouse", topic=topic, clock=1_714_475_999_000_000)


def test_it_is_read_as_applied_and_merged(stream: Stream) -> None:
    """TBL-16, TBL-17."""
    old = read_table(stream.spark, str(stream.folder), "accounts", allow_stale=True)
    assert as_json(rows_by_key(old.rows)) in (KEPT["applied"], KEPT["merged"])
    merged = read_table(
        stream.spark, str(stream.folder), "accounts", now=stream.clock, max_staleness_s=0
    )
    assert as_json(rows_by_key(merged.rows)) == KEPT["merged"]
    snapshot = read_snapshot(stream.spark, str(stream.folder), "accounts", now=stream.clock)
    assert as_json(rows_by_key(snapshot.rows["accounts"])) == KEPT["applied"]


@pytest.mark.systems
def test_apply_and_ingest_go_on(stream: Stream) -> None:
    """TBL-9, MRG-11: what was deleted before stays deleted. WRS-17: staged rows are taken, too."""
    later = stream.clock + stream.config.stall_after_s * 1_000_000
    stream.apply(stream.table(TABLE), now=later)
    assert as_json(shown(stream.table(TABLE))) == KEPT["merged"]
    before = stream.changelog().progress()
    stream.changelog().declare()
    assert stream.changelog().progress() == before
    stream.topic.send(account("c", 51, name="older"), account("z", 90, name="z"))
    row = replace(
        account("staged", 1, name="x"), commit_timestamp=0, write_stream=WriteStreamOffset("w/p", 0)
    )
    stream.topic.send(row)
    assert stream.ingest().staged == 1
    stream.apply(stream.table(TABLE), now=later + 10_000_000)
    rows = shown(stream.table(TABLE))
    assert "c" not in rows
    assert rows.pop("z")["name"] == "z"
    assert as_json(rows) == KEPT["merged"]


def test_staged_rows_expire_in_the_old_form(stream: Stream) -> None:
    """WRS-21: a run that has nothing to read removes old rows, and does not start ingest, which
    gives the changelog its new column.
    """
    row = replace(
        account("staged", 1, name="x"), commit_timestamp=0, write_stream=WriteStreamOffset("w/p", 0)
    )
    stream.topic.send(row)
    stream.without_jobs = repeat(True)  # its file fits the old form, too
    stream.ingest()
    changelog = stream.changelog()
    assert "_hash" not in changelog.rows().columns
    assert changelog.expire(before=2**60) == 1
    (expired,) = changelog.rows().where("kind = 'expired'").collect()
    assert (expired["row_key"], expired["entries"]) == (None, None)
    changelog.declare()
    assert changelog.rows().where("kind = 'expired' AND _hash IS NOT NULL").count() == 0


@pytest.mark.long
def test_it_is_rebuilt(stream: Stream) -> None:
    """TBL-21. By default, `test_rebuild.py` shows it."""
    later = stream.clock + stream.config.stall_after_s * 1_000_000
    changelog = stream.changelog()
    cut = changelog.progress().cut(later, stream.config.stall_after_s)
    path = f"{stream.folder}/tables/accounts"
    rebuild(stream.spark, path, TABLE, changelog, cut, publish=stream.publish)
    assert as_json(shown(stream.table(TABLE))) == KEPT["merged"]
