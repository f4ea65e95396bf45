"""Every command on a warehouse in an object store gives what it gives on a local folder (STO-2)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.clock import now_us
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.config.storage import StorageConfig
from connector.kafka import ChangeProducer, LetterFilter
from connector.records.model import DataChange, Heartbeat
from connector.services import (
    DeadLetters,
    audit,
    close_partition,
    jobs,
    load,
    partitions,
    read,
    rebuild,
    run,
    set_max_staleness,
    status,
    validate_config,
)
from tests.broker import NewTopic
from tests.changes import change, delete_family
from tests.object_store import ObjectStore
from tests.spark.live import Live
from tests.spark.streams import account

pytestmark = pytest.mark.systems

SECOND = 1_000_000


def send(live: Live, heartbeat: int, *changes: DataChange) -> None:
    with ChangeProducer(live.kafka, live.topic) as producer:
        for one in changes:
            producer.send(one)
        producer.flush()
        producer.send(Heartbeat("p", heartbeat))
        producer.flush()


def rows(config: ConnectorConfig, **how: Any) -> list[Mapping[str, Any]]:
    with read(config, "accounts", **how) as found:
        return sorted(
            (dict(zip(found.columns, row, strict=True)) for row in found.rows),
            key=lambda row: str(row["id"]),
        )


def story(live: Live, folder: Path) -> dict[str, Any]:
    """What each command says, without times and ids."""
    config, spark = live.config, live.spark
    base = now_us() - 100 * SECOND
    seen: dict[str, Any] = {"before": (status(config).errors, partitions(config).partitions)}
    send(live, base + 3, account("a", base, name="Ada", amount="1"))
    live.send([(0, b"x", b"rubbish")])
    send(live, base + 3, account("b", base + 1, name="Bob"), account("c", base + 2, amount="many"))
    report = run(config, spark=spark, once=True)
    seen["run"] = (report.batches, report.applies, report.dead_letters)
    seen["plain"] = rows(config, spark=spark, allow_stale=True)
    send(
        *(live, base + 9, account("a", base + 3, name="Ann")),
        change(delete_family(), at=base + 4, row_key=b"b"),
    )
    seen["run again"] = run(config, spark=spark, once=True).batches
    seen["merged"] = rows(config, spark=spark, max_staleness_s=0)
    seen["snapshot"] = rows(config, snapshot=True)
    found = status(config)
    seen["status"] = (
        found.errors,
        found.streams["s"].ingest_batch,
        found.tables["accounts"].to_batch,
        found.pipelines["s"].is_done,
    )
    audited = [one.to_json() for one in audit(config)]
    seen["audit"] = [(one["verdict"], one["kafka_partitions"]) for one in audited]
    seen["history"] = [(job.kind, job.changes) for job in jobs(config, "accounts")]
    letters = DeadLetters(config, "s")
    listed = [letter for letter, _ in letters.list()]
    seen["letters"] = [(letter.reason, letters.show(letter.id).rows) for letter in listed]
    which = LetterFilter(ids=frozenset({listed[0].id}))
    seen["discard"] = letters.discard(which, why="not ours")[0]
    seen["bound"] = set_max_staleness(config, "accounts", 60).seconds
    seen["rebuild"] = rebuild(config, "accounts", spark=spark).changes
    seen["rebuilt"] = rows(config, spark=spark, allow_stale=True)
    file = folder / "accounts.csv"
    file.write_text("id,name,amount\nr1,exported,1\nr2,exported,2\n")
    seen["load"] = load(config, "accounts", [file], as_of=base + 50).rows
    send(live, base + 100)
    run(config, spark=spark, once=True)
    seen["loaded"] = rows(config, spark=spark, allow_stale=True)
    seen["close"] = close_partition(config, "s", "p", why="deleted", by="a test")[1]
    seen["last"] = [job.kind for job in jobs(config, "accounts", limit=1)]
    seen["faults"] = [one.text for one in validate_config(config) if one.level == "fault"]
    return seen


@pytest.mark.timeout(900)
def test_every_command_answers_as_on_a_local_folder(
    store: ObjectStore, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path, spark: SparkSession
) -> None:
    """STO-2, `nothing_lost`, `newest_wins`, `deletes_stay_deleted`."""
    with ExitStack() as stack:

        def at(warehouse: Path | str, storage: StorageConfig) -> dict[str, Any]:
            topic = new_topic(kafka_partitions=1).topic
            return story(Live(spark, kafka, topic, warehouse, stack, storage=storage), tmp_path)

        in_store = at(store.warehouse(), store.storage())
        in_folder = at(tmp_path / "warehouse", StorageConfig())
    assert in_store == in_folder
    assert in_store["status"][-1], "RUN-1"
    names = [(row["id"], row["name"], row["amount"]) for row in in_store["merged"]]
    assert names == [("a", "Ann", 1)]
    assert in_store["audit"][0][0] == "passed"
    names = [(row["id"], row["name"], row["amount"]) for row in in_store["loaded"]]
    assert names == [("a", "Ann", 1), ("r1", "exported", 1), ("r2", "exported", 2)]
