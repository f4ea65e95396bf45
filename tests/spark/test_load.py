"""A load beside live changes, from the files to the readers (PUB-6, REC-23, WRS-15)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.clock import now_us
from connector.config.settings import KafkaConfig
from connector.errors import ConnectorError
from connector.kafka import ChangeProducer
from connector.lake.plain_table import open_table
from connector.lake.state_reader import progress_of
from connector.records.model import Heartbeat
from connector.services import LoadOptions, load, read
from connector.services.rows import load_checks
from tests.broker import NewTopic
from tests.changes import change, delete_family
from tests.spark.live import Live
from tests.spark.streams import account, versions

SECOND = 1_000_000


@pytest.fixture
def live(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> Iterator[Live]:
    with ExitStack() as stack:
        yield Live(spark, kafka, new_topic(kafka_partitions=2).topic, tmp_path / "warehouse", stack)


def test_rows_are_visible_together_and_newer_live_changes_stay(live: Live, tmp_path: Path) -> None:
    """PUB-6, REC-23, `all_or_nothing`, `newest_wins`, `deletes_stay_deleted`: the low watermark
    advances while the rows are appended, and passes the time of the export.
    """
    as_of = now_us() - 100 * SECOND
    file = tmp_path / "accounts.csv"
    lines = [f"r{number},exported,{number}" for number in range(50)]
    file.write_text("\n".join(["id,name,amount", *lines, "r50,exported,many", ""]))
    table = f"{live.warehouse}/tables/accounts/data"
    config = live.config

    def low_watermark() -> int:
        live.pipeline().run_once()
        found = progress_of(config.warehouse, "s", with_frontier=True).low_watermark
        assert found is not None
        return found

    with ChangeProducer(live.kafka, live.topic) as producer:
        producer.send(account("r4", as_of - SECOND, name="older", amount="-1"))
        producer.send(account("r3", as_of + SECOND, name="newer"))
        producer.send(change(delete_family(), at=as_of + SECOND, row_key=b"r5"))
        producer.flush()
        producer.send(Heartbeat("p", as_of + 2 * SECOND))
        producer.flush()
        before = low_watermark()
        assert before > as_of
        part = load(
            config,
            "accounts",
            [file],
            as_of=as_of,
            options=LoadOptions(skip_rejected=True, commit=False),
        )
        assert (part.rows, part.rejected) == (50, 1)
        producer.flush()
        producer.send(Heartbeat("p", as_of + 3 * SECOND))
        producer.flush()
        assert low_watermark() > before
        assert names(live) == {"r3": ("newer", None), "r4": ("older", -1)}

        known = versions(live.spark, table)
        loaded = load(
            config, "accounts", [file], as_of=as_of, options=LoadOptions(skip_rejected=True)
        )
        assert (loaded.rows, loaded.repeated, loaded.commit_timestamp) == (50, 50, as_of)
        live.pipeline().run_once()
        expected = {f"r{number}": ("exported", number) for number in range(50)}
        del expected["r5"]
        assert names(live) == expected | {"r3": ("newer", 3)}
        assert versions(live.spark, table) == known + 1
        check_the_checks(live, before=part.write_stream)
    again = load(config, "accounts", [file], as_of=as_of, options=LoadOptions(wait=True))
    assert again.was_committed


def check_the_checks(live: Live, before: str) -> None:
    """Without a time, a table that has rows, or changes that wait, is not empty."""
    config, (table,) = live.config, live.tables
    with pytest.raises(ConnectorError, match="It has rows") as caught:
        load_checks.check_empty(config, live.stream, table, before)
    assert caught.value.code == "TABLE_NOT_EMPTY"
    other = replace(table, name="other")
    with pytest.raises(ConnectorError, match="The changelog has changes that are not applied yet"):
        load_checks.check_empty(config, live.stream, other, before)
    elsewhere = replace(table, name="elsewhere", source="elsewhere")
    load_checks.check_empty(config, live.stream, elsewhere, before)
    changelog = open_table(f"{live.warehouse}/streams/s/changelog")
    assert load_checks._staged_streams(changelog, "t") == {before}
    assert load_checks._staged_streams(changelog, "elsewhere") == set()


def names(live: Live) -> dict[object, tuple[object, object]]:
    """The rows of a fresh read."""
    with read(live.config, "accounts", spark=live.spark, max_staleness_s=0) as found:
        rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    return {row["id"]: (row["name"], row["amount"]) for row in rows}
