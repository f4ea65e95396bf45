"""Definitions are published once, and again until Kafka takes them (EVO-1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from connector.errors import ConnectorError
from connector.errors.kafka import definition_of_another_table, topic_compacted
from connector.spark.apply.follow import DefinitionPorts, Definitions
from connector.tables.published import PublishedTable
from connector.tables.stored_definition import ColumnIds
from tests.spark.streams import definition


def opened(version: int) -> Any:
    """A table at this version of its definition."""
    layout = SimpleNamespace(ids=ColumnIds({}, 0, version=version), definition=definition())
    return SimpleNamespace(table_id="id-1", layout=layout)


class Topic:
    """The topic of the definitions. `failure` is raised, and `refused` returned."""

    def __init__(self) -> None:
        self.failure: ConnectorError | None = None
        self.refused: dict[str, ConnectorError] = {}
        self.versions: list[int] = []

    def publish(self, tables: Sequence[PublishedTable]) -> Mapping[str, ConnectorError]:
        if self.failure is not None:
            raise self.failure
        self.versions += [table.version for table in tables if not self.refused]
        return self.refused


def test_a_definition_is_published_until_kafka_has_it() -> None:
    """EVO-1, resumable: a crash after the commit, or an outage, delays it; each error is reported
    once.
    """
    topic, lines = Topic(), list[str]()
    definitions = Definitions({}, DefinitionPorts(publish=topic.publish), lines.append)
    tables = {"accounts": opened(1)}

    def publish() -> None:
        definitions.publish(definitions.unpublished(tables))

    topic.failure = topic_compacted("t.tables")
    publish()
    publish()
    assert len(lines) == 1
    topic.failure, topic.refused = (
        None,
        {"accounts": definition_of_another_table("t.tables", "accounts", "id-2", "id-1")},
    )
    publish()
    assert (len(lines), topic.versions) == (2, [])
    topic.refused = {}
    publish()
    publish()
    assert topic.versions == [1]
    tables["accounts"] = opened(2)
    publish()
    assert topic.versions == [1, 2]
    restarted = Definitions({}, DefinitionPorts(publish=topic.publish), lines.append)
    assert [table.version for table in restarted.unpublished(tables)] == [2]


def test_a_pipeline_without_kafka_publishes_nothing() -> None:
    """EVO-1: for example in a test."""
    assert Definitions({}, DefinitionPorts(), print).unpublished({"a": opened(1)}) == []
