"""Definitions of tables on a real broker (EVO-1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.config.settings import KafkaConfig
from connector.errors import TopicError
from connector.kafka import published_tables, topics
from connector.kafka.tables import publish_tables
from connector.tables.published import PublishedTable
from tests.broker import NewTopic
from tests.integration.test_topics import make_plain
from tests.spark.streams import definition


def published(
    kafka: KafkaConfig, topic: str, table: PublishedTable, *, take_over: bool = False
) -> bool:
    """Whether a call publishes the definition."""
    facts = topics.create_tables_topic(kafka, topic)
    before = topics.end_offsets(kafka, facts)
    for error in publish_tables(kafka, topic, [table], take_over=take_over).values():
        raise error
    return topics.end_offsets(kafka, facts) != before


def test_the_newest_definition_of_each_table_is_read(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """EVO-1: of two warehouses, the second one replaces nothing, unless it takes over."""
    topic = new_topic(kafka_partitions=2).topic
    assert topics.describe(kafka, f"{topic}.tables").cleanup_policy == "compact"
    assert published_tables(kafka, topic) == {}
    accounts, other = definition(buckets=1), definition("other", buckets=1)
    first = PublishedTable("id-1", 1, accounts)
    assert published(kafka, topic, first)
    assert published(kafka, topic, PublishedTable("id-2", 1, other))
    assert not published(kafka, topic, first)
    newer = replace(first, version=2, definition=replace(accounts, columns=accounts.columns[:1]))
    assert published(kafka, topic, newer)
    assert not published(kafka, topic, first), "an older one replaces nothing"
    assert published_tables(kafka, topic)["accounts"] == newer

    of_second = PublishedTable("id-3", 1, accounts)
    with pytest.raises(TopicError, match="another table accounts") as caught:
        published(kafka, topic, of_second)
    assert "take_over" in caught.value.remedy
    assert published_tables(kafka, topic)["accounts"] == newer
    assert published(kafka, topic, of_second, take_over=True)
    assert published_tables(kafka, topic) == {
        "accounts": of_second,
        "other": PublishedTable("id-2", 1, other),
    }


def test_a_missing_topic_is_created(kafka: KafkaConfig, admin) -> None:  # type: ignore[no-untyped-def]
    """EVO-1: a change topic that another tool created has none."""
    topic = make_plain(admin)
    with pytest.raises(TopicError):
        published_tables(kafka, topic)
    assert published(kafka, topic, PublishedTable("id-1", 1, definition()))
    assert published_tables(kafka, topic)["accounts"].version == 1
