"""Records of `<topic>.tables` that cannot be read, on librdkafka's mock cluster (EVO-1, SRC-5)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from time import sleep
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from connector.clock import now_us
from connector.config.settings import KafkaConfig
from connector.config.source_tables import FollowedTable
from connector.errors import ConnectorError
from connector.kafka import client, published_tables, topics
from connector.kafka.sending import SendQueue
from connector.kafka.tables import (
    SourceTablesWatch,
    publish_source_tables,
    publish_tables,
    source_tables,
)
from connector.sources.columns import SourceColumn, SourceTable
from connector.tables.definition import TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.published import PublishedTable, tables_topic
from connector.tables.values import DataType
from tests.unit.mock_cluster import FACTS, MockCluster, answer_topic_requests

TABLES = replace(FACTS, topic=tables_topic("t"), kafka_partitions=1, cleanup_policy="compact")
ORDERS = PublishedTable(
    "id-1",
    3,
    TableDefinition(
        name="orders", stream="s", source="orders", key=Key((KeyPart("id", DataType.INT64),))
    ),
)
CUSTOMERS = FollowedTable(
    "customers", SourceTable("db.customers", (KeyPart("id", DataType.INT64),), ()).section()
)
ENDLESS = ORDERS.to_value().replace(b'"version":3', b'"version":Infinity')
RUBBISH = [b'{"hello":1}', b"[]", b"7", b"\xff", b"{", b"[" * 100_000, ENDLESS]
BAD_SECTIONS: list[dict[str, Any]] = [
    {"columns": [7]},
    {"columns": 7},
    {"columns": [{"name": "a"}]},
    {"key": []},
    {"key": {"form": "ordered", "columns": [{"name": "id", "type": "FLOAT64"}]}},
    {"presence_family": 3},
    {"unheard": 1},
]


@pytest.mark.parametrize("value", RUBBISH)
def test_another_value_is_a_value_error(value: bytes) -> None:
    for read in (PublishedTable.from_value, FollowedTable.from_value):
        with pytest.raises(ValueError):
            read(value)


@pytest.mark.parametrize("part", BAD_SECTIONS)
def test_a_section_that_no_bridge_makes_is_a_value_error(part: dict[str, Any]) -> None:
    """SRC-5: it would stop the reader of the configuration."""
    assert FollowedTable.from_value(CUSTOMERS.to_value()) == CUSTOMERS
    damaged = replace(CUSTOMERS, section={**CUSTOMERS.section, **part}).to_value()
    with pytest.raises(ValueError):
        FollowedTable.from_value(damaged)


def test_a_record_that_cannot_be_read_counts_as_none(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVO-1, `poison_is_contained`: it is named, and a definition of its name replaces it."""
    cluster.create_topic(TABLES.topic, 1)
    answer_topic_requests(FACTS, TABLES, patch=monkeypatch.setattr)
    monkeypatch.setattr(topics, "create_tables_topic", lambda *_: TABLES)
    kafka, reported = cluster.kafka, list[ConnectorError]()
    watch = SourceTablesWatch(kafka, "t", reported.append)
    sent = [
        ("zzz", RUBBISH[0]),
        ("zzz", b""),
        ("orders", ENDLESS),
        ("source:db.customers", CUSTOMERS.to_value()),
        ("source:db.orders", RUBBISH[0]),
    ]
    queue = SendQueue[str](kafka, TABLES, lambda *_: None)
    for key, value in sent:
        queue.put("", key.encode(), value, 0, [])
    deadline = now_us() + 30_000_000
    while queue.backlog and now_us() < deadline:
        queue.poll(0.2, push=True)
    queue.close(1, "")

    assert published_tables(kafka, "t") == {}
    assert source_tables(kafka, "t", reported.append) == {"db.customers": CUSTOMERS}
    (of_source,) = reported
    assert "Record 4 (key 'source:db.orders')" in of_source.problem
    reported.clear()
    found = dict[str, FollowedTable]()
    while not reported and now_us() < deadline:
        found |= watch.newest()
    watch.close()
    assert (found, [error.problem for error in reported]) == (
        {"db.customers": CUSTOMERS},
        [of_source.problem],
    )
    reported.clear()
    assert publish_tables(kafka, "t", [ORDERS], on_unreadable=reported.append) == {}
    assert ["Record 2 (key 'orders')" in error.problem for error in reported] == [True]
    assert published_tables(kafka, "t")["orders"].version == 3
    older = replace(ORDERS, version=2)
    for take_over, version in ((False, 3), (True, 2)):
        assert publish_tables(kafka, "t", [older], take_over=take_over) == {}
        assert published_tables(kafka, "t")["orders"].version == version


def version_of(columns: int) -> FollowedTable:
    """A version of a table of the source, with so many columns."""
    names = [f"c{number}" for number in range(columns)]
    shown = tuple(SourceColumn(name, name, name, DataType.STRING) for name in names)
    table = SourceTable("db.customers", (KeyPart("id", DataType.INT64),), shown)
    return FollowedTable("customers", table.section())


def published(kafka: KafkaConfig, *columns: int) -> list[FollowedTable]:
    versions = [version_of(count) for count in columns]
    for version in versions:
        publish_source_tables(kafka, "t", {"db.customers": version.to_value()})
    return versions


class OneByOne:
    """A client that returns one record in a call, as a slow broker may."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def consume(self, count: int, timeout_s: float) -> Any:
        return self._inner.consume(min(count, 1), timeout_s)


@pytest.fixture
def slow(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> KafkaConfig:
    """A topic with definitions, of which a call returns one record."""
    cluster.create_topic(TABLES.topic, 1)
    answer_topic_requests(FACTS, TABLES, patch=monkeypatch.setattr)
    monkeypatch.setattr(topics, "create_tables_topic", lambda *_: TABLES)
    consumer = client.consumer
    monkeypatch.setattr(client, "consumer", lambda *given: OneByOne(consumer(*given)))
    return cluster.kafka


def found_by(watch: SourceTablesWatch, last: FollowedTable) -> list[FollowedTable]:
    """What a watch returns, up to a version."""
    found, deadline = list[FollowedTable](), now_us() + 30_000_000
    while (not found or found[-1] != last) and now_us() < deadline:
        found += watch.newest().values()
        sleep(0.01)
    return found


def test_a_watch_never_goes_back_to_an_older_version(slow: KafkaConfig) -> None:
    """SRC-5: the topic still has older versions. A reload with one of them would lose columns."""
    *_, newest = published(slow, 0, 1, 2)
    with closing(SourceTablesWatch(slow, "t", pytest.fail)) as watch:
        assert found_by(watch, newest) == [newest]
        later = published(slow, 3, 4)
        assert found_by(watch, later[-1]) == later


def test_a_watch_goes_on_after_an_error_of_its_topic(slow: KafkaConfig) -> None:
    """SRC-5: for example, the topic was made again and is shorter. The error is reported once, and
    what was published since is found.
    """
    *_, newest = published(slow, 0, 1)
    reported: list[ConnectorError] = []
    with closing(SourceTablesWatch(slow, "t", reported.append)) as watch:
        assert found_by(watch, newest) == [newest]
        watch._client.assign([TopicPartition(TABLES.topic, 0, 999)])
        (later,) = published(slow, 2)
        assert found_by(watch, later) == [later]
        (again,) = published(slow, 3)
        assert found_by(watch, again) == [again]
    assert [TABLES.topic in str(error) for error in reported] == [True]
