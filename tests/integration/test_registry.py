"""Producers, readers and `validate` with a real schema registry: Apicurio (SEC-4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from connector.config.settings import ConnectorConfig, KafkaConfig, RegistryConfig, StreamConfig
from connector.errors import BrokerError
from connector.kafka import (
    ChangeConsumer,
    ChangeProducer,
    StreamSettings,
    WriteSession,
)
from connector.kafka.produce.producer import CopyingProducer
from connector.kafka.schema_registry import RegistryClient
from connector.records.codec import SCHEMA
from connector.records.model import DataChange
from connector.services import validate_config
from tests import machine
from tests.apicurio import running_apicurio, set_compatibility
from tests.broker import NewTopic
from tests.golden.registry_conversation import Exchange, recorded, recorder, serving, talk
from tests.integration.changes import change
from tests.integration.test_write_streams import rows

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(machine.why_no_registry()), reason=machine.why_no_registry()),
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryConfig]:
    with running_apicurio(tmp_path_factory.mktemp("registry")) as url:
        yield RegistryConfig(url, auto_register=True, timeout_s=30)


def faults(kafka: KafkaConfig, topic: str, registry: RegistryConfig, folder: str) -> list[str]:
    streams = {"s": StreamConfig(name="s", topic=topic)}
    config = ConnectorConfig(folder, kafka, registry, streams=streams)
    return [str(one.error.code) for one in validate_config(config) if one.error is not None]


def test_records_are_framed_with_the_ids_of_the_registry(
    kafka: KafkaConfig, new_topic: NewTopic, registry: RegistryConfig, tmp_path: object
) -> None:
    """SEC-4: a producer registers the schema, a reader looks it up, and without registration the
    subject must have it.
    """
    topic, known = new_topic(kafka_partitions=2).topic, replace(registry, auto_register=False)
    assert faults(kafka, topic, known, str(tmp_path)) == ["REGISTRY_SCHEMA_DIFFERENT"]
    with pytest.raises(BrokerError) as unknown:
        ChangeProducer(kafka, topic, registry=known)
    assert unknown.value.code == "REGISTRY_SCHEMA_DIFFERENT"
    assert faults(kafka, topic, registry, str(tmp_path)) == []
    with CopyingProducer(kafka, topic, registry=registry) as producer:
        producer.send(change(1))
    assert faults(kafka, topic, known, str(tmp_path)) == []
    with CopyingProducer(kafka, topic, registry=known) as producer:
        producer.send(change(2))
    with ChangeConsumer(
        kafka, topic, bounded=True, stream=StreamSettings(registry=known)
    ) as consumer:
        found = list(consumer)
    sent = [one.record for one in found if isinstance(one.record, DataChange)]  # type: ignore[union-attr]
    assert sorted(one.commit_timestamp for one in sent) == [1_000_001, 1_000_002]
    with RegistryClient(known) as client:
        schema_id = client.schema_id(topic, SCHEMA)
        assert client.schema(schema_id) is not None
        assert client.schema(999_999) is None
    framing = b"\x00" + schema_id.to_bytes(4, "big")
    assert {one.source.value[:5] for one in found} == {framing}  # type: ignore[union-attr,index]


def test_the_recorded_conversation_is_what_the_registry_says(tmp_path: Path) -> None:
    """SEC-4: a test without a registry replays it. Times and the like may differ."""
    kept = list[Exchange]()
    with running_apicurio(tmp_path) as url, serving(recorder(url, kept)) as address:
        talk(RegistryConfig(address, timeout_s=30))
    assert [(one.request, one.body, one.status) for one in kept] == [
        (one.request, one.body, one.status) for one in recorded()
    ]
    for found, expected in zip(kept, recorded(), strict=True):
        assert json.loads(found.answer).keys() == json.loads(expected.answer).keys()


def test_the_second_version_is_compatible_with_the_first(
    kafka: KafkaConfig, new_topic: NewTopic, registry: RegistryConfig
) -> None:
    """SEC-4: with the default rule of Confluent's registry, a write session registers its schema
    behind that of a producer. Readers read both.
    """
    set_compatibility(registry.url, "BACKWARD")
    topic = new_topic(kafka_partitions=2).topic
    with CopyingProducer(kafka, topic, registry=registry) as producer:
        producer.send(change(1))
    with WriteSession(kafka, topic, "w", registry=registry) as session:
        stream = session.stream("rows", kind="committed")
        assert stream.append(rows(stream, 0, 3), 0).result(30).rows == 3
    with ChangeConsumer(
        kafka, topic, bounded=True, stream=StreamSettings(registry=registry)
    ) as consumer:
        found = [one for one in consumer if isinstance(getattr(one, "record", None), DataChange)]
    assert len(found) == 4
    assert len({one.source.value[:5] for one in found}) == 2  # type: ignore[union-attr,index]
