"""New tables are made by Delta's transaction, without SQL. They are the tables that SQL and Spark's
writer make.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from connector import warehouse as places
from connector.config.settings import VersionRetention
from connector.engine.schema import CHANGELOG, STATISTICS
from connector.errors import TableError, WriterConflictError
from connector.records.model import DeleteFamily
from connector.records.ordering import OrderBy
from connector.spark.storage import transaction
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.delta_log import (
    metadata_session,
    session_with,
)
from connector.spark.storage.layout import layout_of, new_properties
from connector.spark.storage.maintenance import retention_properties
from connector.spark.storage.table import Table
from connector.spark.storage.transaction import Transaction
from connector.state.commits import user_metadata
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.stored_definition import NO_IDS, TABLE_ID_PROPERTY, assign_ids
from connector.tables.values import DataType
from tests.changes import change
from tests.spark.streams import Stream, account, copied, definition, job_count, shown

RETENTION = VersionRetention()
OF_USER = {
    "spark.databricks.delta.properties.defaults.checkpointPolicy": "v2",
    "spark.databricks.delta.properties.defaults.targetFileSize": "16mb",
    "spark.databricks.delta.properties.defaults.checkpointInterval": "7",
}
"""Defaults of a user's session: a feature, a property, and a property that lowmark sets."""
DEFINITIONS = {
    "plain": definition(),
    "every type": definition(
        key=Key((KeyPart("key", DataType.BYTES),), KeyForm.ROW_KEY),
        columns=tuple(
            Column(f"of_{type_.name}", "f", type_.name.encode(), type_) for type_ in DataType
        ),
        deletion_vectors=False,
    ),
    "sequence numbers": definition(order=OrderBy.SEQUENCE_NUMBER),
    "all versions": definition(versions=Versions.ALL, buckets=1),
}


@pytest.fixture(
    params=[{}, pytest.param(OF_USER, marks=pytest.mark.long)],
    ids=["our session", "defaults of a user"],
)
def session(spark: SparkSession, request: pytest.FixtureRequest) -> SparkSession:
    return session_with(spark, request.param)


def first_commit(path: str | Path) -> dict[str, Any]:
    """The first commit of a table, without the ids and times of the commit and the table."""
    lines = (Path(path) / "_delta_log" / f"{0:020}.json").read_text("utf-8").splitlines()
    found: dict[str, Any] = {}
    for action in map(json.loads, lines):
        ((kind, facts),) = action.items()
        found.setdefault(kind, []).append(facts)
    for name, lost in {
        "commitInfo": ("timestamp", "txnId"),
        "metaData": ("id", "createdTime"),
        "txn": ("lastUpdated",),
    }.items():
        for facts in found.get(name, []):
            for one in lost:
                facts.pop(one, None)
    (info,), (metadata,), (protocol,) = (found[k] for k in ("commitInfo", "metaData", "protocol"))
    metadata["schemaString"] = json.loads(metadata["schemaString"])
    for name, value in info["operationParameters"].items():
        if value is not None and value[0] in "[{":
            info["operationParameters"][name] = json.loads(value)
    for name in ("readerFeatures", "writerFeatures"):
        protocol[name] = sorted(protocol.get(name, []))
    return found


def executions(spark: SparkSession) -> int:
    """The number of queries and commands so far."""
    context: Any = spark.sparkContext._jsc
    context.sc().listenerBus().waitUntilEmpty()
    return int(spark._jsparkSession.sharedState().statusStore().executionsCount())


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(wanted, marks=[] if name == "every type" else pytest.mark.long, id=name)
        for name, wanted in DEFINITIONS.items()
    ],
)
def test_a_new_table_is_that_of_the_builder(
    session: SparkSession, tmp_path: Path, wanted: TableDefinition
) -> None:
    """TBL-12, TBL-22: protocol, properties with a session's defaults, columns, and commit; no query
    is run.
    """
    folder, path = tmp_path / "new", tmp_path / "defined"
    before = executions(session), job_count(session)
    table = Table(session, str(folder), wanted, retention=RETENTION)
    assert (executions(session), job_count(session)) == before

    ids = assign_ids(NO_IDS, wanted)
    metadata = user_metadata(TableState().to_json(wanted.name))
    builder = DeltaTable.create(metadata_session(session, metadata))
    builder = builder.location(str(path)).partitionedBy(BUCKET)
    for name, type_ in layout_of(wanted, ids).column_types:
        builder = builder.addColumn(name, type_)
    properties = new_properties(wanted, ids), retention_properties(RETENTION.table_file_s)
    own_id = {TABLE_ID_PROPERTY: table.table_id}
    for name, text in {**properties[0], **properties[1], **own_id}.items():
        builder = builder.property(name, text)
    builder.execute()
    assert first_commit(folder / "data") == first_commit(path)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments with which new changelogs are created, and what their transactions write."""
    found: list[tuple[Any, ...]] = []

    def watched(act: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*args: Any) -> Any:
            found.append(args)
            return act(*args)

        return watching

    monkeypatch.setattr(Changelog, "_create", watched(Changelog._create))
    monkeypatch.setattr(Transaction, "write", watched(Transaction.write))
    return found


def test_a_new_changelog_and_a_new_tombstone_table_are_those_of_the_writer(
    session: SparkSession, tmp_path: Path, seen: list[tuple[Any, ...]]
) -> None:
    """TBL-4, TBL-12: protocol, properties with a session's defaults, columns, and commit."""
    stream = Stream(session, tmp_path / "one", without_jobs=repeat(False))
    stream.topic.send(account("a", 1, name="Ada"), account("b", 2, name="Bob"))
    stream.ingest()
    ((_, batch),) = seen
    rows = session.createDataFrame([], from_arrow_schema(CHANGELOG).add("slot", "integer"))
    before = executions(session), job_count(session)
    stored = Changelog(session, f"{tmp_path}/again", "s")._create(batch)
    assert (executions(session), job_count(session)) == before
    of_changelog = save(
        rows.limit(0),
        tmp_path / "changelog",
        stored,
        {
            "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
            "delta.appendOnly": "false",
            "delta.checkpointInterval": "50",
            "txnAppId": "lowmark/s/batches",
            "txnVersion": "0",
            **retention_properties(RETENTION.file_s),
        },
        ["slot"],
    )
    assert without_operation(first_commit(stream.path)) == without_operation(of_changelog)

    stream.apply(stream.table(retention=RETENTION))
    stream.topic.send(change(DeleteFamily("f"), at=5, row_key=b"b"))
    stream.ingest()
    seen.clear()
    few = copied(stream, tmp_path / "few")
    few.without_spark, stream.without_spark = repeat(True), repeat(False)
    for one in (few, stream):
        one.apply(one.table(retention=RETENTION))
    _, rows = seen[0]
    of_tombstones = save(
        rows.limit(0),
        tmp_path / "tombstones",
        {"tombstones": True, "expired_below": 0},
        {
            "delta.dataSkippingStatsColumns": "_newest",
            "delta.checkpointInterval": "50",
            **retention_properties(RETENTION.table_file_s),
        },
    )
    for one in (few, stream):
        made = first_commit(places.tombstones(f"{one.folder}/tables/accounts", ""))
        assert without_operation(made) == without_operation(of_tombstones)
        assert shown(one.table()) == one.truth()


def without_operation(commit: dict[str, Any]) -> dict[str, Any]:
    """A first commit without the name and the facts of its operation."""
    for info in commit["commitInfo"]:
        for name in ("operation", "operationParameters", "operationMetrics"):
            info.pop(name, None)
    return commit


def save(
    rows: DataFrame,
    path: Path,
    stored: Mapping[str, Any],
    options: Mapping[str, str],
    partition_by: list[str] | None = None,
) -> dict[str, Any]:
    """The first commit of a table that Spark's writer makes."""
    writer = rows.write.format("delta").mode("append").partitionBy(partition_by or [])
    writer.options(**options, userMetadata=user_metadata(stored)).save(str(path))
    return first_commit(path)


@pytest.mark.parametrize("within", [False, True])
def test_of_two_that_create_a_table_one_wins(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: bool
) -> None:
    """TBL-14, TBL-8: the other process opens the table of the first, or is told of it."""
    first, second = definition(), definition(keep_unmapped=False)
    folder = str(tmp_path / "accounts")
    interleaved(monkeypatch, within, lambda: Table(spark, folder, first))
    with pytest.raises(WriterConflictError if within else TableError) as caught:
        Table(spark, folder, second)
    told = "CONCURRENT_WRITE" if within else "TABLE_COLUMNS_CHANGED"
    assert caught.value.code == told
    names = [name for name, _ in Table(spark, folder, first).layout.column_types]
    assert spark.read.format("delta").load(places.data(folder)).columns == names


@pytest.mark.parametrize("within", [False, True])
def test_of_two_that_create_a_changelog_one_wins(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: bool
) -> None:
    """TBL-5: the second one writes no batch over that of the first."""
    stream, other = (Stream(spark, tmp_path) for _ in range(2))
    for one in (stream, other):
        one.topic.send(account("a", 1, name="Ada"))
    interleaved(monkeypatch, within, other.ingest)
    with pytest.raises(WriterConflictError):
        stream.ingest()
    assert len(stream.logged_offsets()) == 1
    newest = stream.changelog().newest()
    assert newest is not None
    assert newest.ingest_batch == 1


def interleaved(monkeypatch: pytest.MonkeyPatch, within: bool, act: Callable[[], object]) -> None:
    """Let another process `act` just before the next transaction begins, or within it."""
    owner, name = (transaction, "active") if within else (Transaction, "__init__")
    method, left = getattr(owner, name), [act]

    def overtaken(*args: Any) -> Any:
        if left:
            left.pop()()
        return method(*args)

    monkeypatch.setattr(owner, name, overtaken)


def test_a_table_that_was_removed_is_created_again(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-8: Delta remembers tables that it has seen, also those that are gone."""
    folder = tmp_path / "accounts"

    def created() -> str:
        table = Table(spark, str(folder), definition())
        return json.dumps(first_commit(folder / "data")).replace(table.table_id, "")

    before = created()
    shutil.rmtree(folder)
    assert created() == before
