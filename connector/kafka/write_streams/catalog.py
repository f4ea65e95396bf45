"""Reads the catalog of a change topic (WRS-3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from connector.errors import ErrorCode, TopicError
from connector.kafka import client, topics
from connector.kafka.bounded_read import messages_between
from connector.write_streams.model import Catalog, catalog_topic, topic_of_catalog

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig

READ_TIMEOUT_S: Final = 90.0
"""Longer than a transaction may be open: another session may have died in one."""


def describe(kafka: KafkaConfig, topic: str) -> topics.TopicFacts:
    """Ask for the properties of the catalog. Raises `TopicError` if it does not exist, or cannot be
    one, and `BrokerError`.
    """
    name = catalog_topic(topic)
    try:
        facts = topics.describe(kafka, name)
    except TopicError as error:
        if error.code != ErrorCode.TOPIC_MISSING:
            raise
        raise TopicError(
            ErrorCode.CATALOG_MISSING,
            f"{topic} has no catalog of write streams",
            f"There is no topic {name}",
            "Create the topics of the stream. Existing ones are not changed",
            topic=topic,
        ) from error
    if facts.cleanup_policy != "compact" or facts.kafka_partitions != 1:
        raise TopicError(
            ErrorCode.CATALOG_UNSUITABLE,
            f"{name} cannot be a catalog of write streams",
            f"It has cleanup.policy={facts.cleanup_policy} and {facts.kafka_partitions} Kafka"
            " partitions, but a catalog has cleanup.policy=compact and one Kafka partition",
            "If it has never had write streams, delete it and create the topics of the stream."
            " Otherwise set cleanup.policy=compact on it: without the catalog, rows may be in the"
            " topic twice",
            topic=topic,
        )
    return facts


def read(
    kafka: KafkaConfig,
    facts: topics.TopicFacts,
    *,
    is_complete: bool,
    topic_id: str = "",
    session: str = "",
    owner: str = "",
) -> Catalog:
    """Read the committed records of the catalog.

    Args:
        kafka: The brokers and client settings.
        facts: The result of `describe`.
        is_complete: Read up to the high watermark, and wait for the end of the transactions that
            are open now. Otherwise, read what can be read at once.
        topic_id: The id of the change topic. Empty: it is not compared.
        session: As in `Catalog`.
        owner: As in `Catalog`.

    Raises:
        TopicError: A record is not one of the catalog, or sessions wrote to an earlier change topic
            with another id.
        BrokerError: No broker answers, or an open transaction does not end.
    """
    catalog = Catalog(session, owner)
    offsets = topics.high_watermarks if is_complete else topics.end_offsets
    begin, end = topics.beginning_offsets(kafka, facts)[0], offsets(kafka, facts)[0]
    if begin >= end:
        return catalog
    errors = client.LastError()
    consumer = client.consumer(
        kafka, errors, {"group.id": "lowmark.write-streams", "fetch.wait.max.ms": "10"}
    )
    try:
        for message in messages_between(
            consumer, kafka, errors, {0: (begin, end)}, facts.topic, READ_TIMEOUT_S
        ):
            key, value, _, _ = client.contents(message)
            try:
                catalog.keep((key or b"").decode(), value or b"")
            except (ValueError, RecursionError) as error:
                raise TopicError(
                    ErrorCode.CATALOG_UNREADABLE,
                    f"Record {message.offset()} of {facts.topic} is not one of a catalog",
                    str(error),
                    "If a newer release of lowmark wrote it, upgrade. Otherwise another program"
                    " writes to this topic: only lowmark may do that",
                    topic=facts.topic,
                ) from None
    finally:
        consumer.close()
    if topic_id and (other := catalog.other_topic(topic_id)):
        raise _of_another_topic(facts.topic, other, topic_id)
    return catalog


def _of_another_topic(name: str, other: str, topic_id: str) -> TopicError:
    topic = topic_of_catalog(name)
    return TopicError(
        ErrorCode.TOPIC_REPLACED,
        f"The catalog {name} has write streams of an earlier topic {topic}",
        f"{topic} was deleted and created again: its id was {other} and is {topic_id}. The rows of"
        " these write streams are gone",
        f"Delete {name} and create the topics of the stream. Then send the rows again, from the"
        " offset 0",
        topic=topic,
    )
