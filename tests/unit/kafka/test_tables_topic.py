"""Records of `<topic>.tables` that cannot be read, on librdkafka's mock cluster (EVO-1, SRC-5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connector.clock import now_us
from connector.config.source_tables import FollowedTable
from connector.errors import TopicError
from connector.kafka import published_tables, topics
from connector.kafka.sending import SendQueue
from connector.kafka.tables import SourceTablesWatch, publish_tables, source_tables
from connector.sources.columns import SourceTable
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
    kafka, reported = cluster.kafka, list[TopicError]()
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
