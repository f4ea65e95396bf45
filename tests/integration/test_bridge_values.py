"""Values that may not be those of the database, and topics that a bridge cannot go on with."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from connector.config.settings import ConnectorConfig
from connector.errors import ConnectorError
from connector.events import Event
from connector.kafka import read_letters
from connector.kafka.bridge import checks
from connector.services import run_bridge
from connector.sources.model import OnMissingValue
from tests.integration.foreign_topics import START_US, ForeignTopics
from tests.integration.test_bridge import changes, config, source

__all__ = ["config", "source"]


def findings(config: ConnectorConfig) -> list[str]:
    """The codes of errors, and the texts of warnings."""
    found = checks.source_findings(config, config.streams["shop"])
    return [f.code if isinstance(f, ConnectorError) else f[1] for f in found]


def test_a_null_that_may_be_a_large_value_is_a_missing_value(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-3, SRC-6, SRC-8, nothing_lost: an UPDATE, and a row with another key."""
    source.commit(("a", 1, {"n": "1", "tags": ["x"]}))
    source.commit(("a", 2, {"n": "1", "tags": None}))
    source.commit(("a", 1, {"n": "2", "tags": None}))
    events: list[Event] = []
    counts = run_bridge(config, once=True, on_event=events.append)
    assert (counts.changes, counts.letters) == (2, 1)
    ((letter, _),) = read_letters(config.kafka, config.streams["shop"].topic)
    assert letter.rule == "MISSING_VALUE"
    assert "no event has the value of tags" in letter.detail
    (doubt,) = (event.text for event in events if event.code == "SOURCE_VALUES")
    assert "public.a has no REPLICA IDENTITY FULL" in doubt
    assert any("public.a has no REPLICA IDENTITY FULL" in text for text in findings(config))
    as_null = replace(source.config, on_missing_value=OnMissingValue.NULL)
    shop = replace(config.streams["shop"], source=as_null)
    source.commit(("a", 1, {"n": "4", "tags": None}))
    run_bridge(replace(config, streams={"shop": shop}), once=True)
    assert len(changes(config)) == 3


def test_a_row_with_another_key_may_lack_a_value(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-3: Debezium says so in a header of the record."""
    alone = replace(source.config, transactions="")
    config = replace(config, streams={"shop": replace(config.streams["shop"], source=alone)})
    source.commit(("a", 1, {"n": "1", "tags": ["x"]}))
    assert run_bridge(config, once=True).changes == 1
    producer = Producer({"bootstrap.servers": source.kafka.bootstrap_servers})
    for id_, header in ((2, "__debezium.context.id"), (3, "__debezium.oldkey")):
        row = {"id": id_, "tags": None}
        event = {"op": "c", "after": row, "source": source._source("a", START_US, 5_000, 5_001)}
        value, key = json.dumps(event).encode(), json.dumps({"id": id_}).encode()
        producer.produce(f"{source.prefix}.public.a", value, key, headers=[(header, b"{}")])
    assert producer.flush(30) == 0
    counts = run_bridge(config, once=True)
    ((letter, _),) = read_letters(config.kafka, config.streams["shop"].topic)
    assert (letter.rule, letter.key) == ("MISSING_VALUE", b'{"id": 3}')
    assert (counts.changes, counts.letters) == (1, 1)


def test_validate_names_a_source_topic_that_was_made_again(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-8: the bridge would stop at its start."""
    source.commit(("a", 1, {"n": "1"}))
    assert "TOPIC_REPLACED" not in findings(config)
    assert run_bridge(config, once=True).changes == 1
    assert "TOPIC_REPLACED" not in findings(config)
    source.delete(f"{source.prefix}.public.a")
    source.create("public.a", 2)
    assert findings(config).count("TOPIC_REPLACED") == 1


def test_validate_names_a_source_without_room_in_a_resume_token(
    source: ForeignTopics, config: ConnectorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-8: about 5,000 Kafka partitions of 1,700 topics have no room."""
    assert "SOURCE_TOO_WIDE" not in findings(config)
    size = checks.size_of_position({f"{source.prefix}.public.a": 2})
    monkeypatch.setattr(checks, "MAX_RESUME_TOKEN_BYTES", size)
    assert findings(config).count("SOURCE_TOO_WIDE") == 1
