"""Kafka: brokers, topics and groups."""

from __future__ import annotations

from connector.errors import TopicError


def topic_missing(topic: str, servers: str) -> TopicError:
    return TopicError(
        "TOPIC_MISSING",
        f"There is no topic {topic}",
        f"Kafka at {servers} does not have it",
        "Create the topic",
        topic=topic,
    )


def topic_replaced(topic: str, stored_id: str, topic_id: str) -> TopicError:
    return TopicError(
        "TOPIC_REPLACED",
        f"The topic {topic} is not the topic that was read before",
        f"It was deleted and created again: its id was {stored_id} and is {topic_id}",
        "Stored positions are not valid in the new topic. Find out what happened to the old"
        " records, then start again without stored positions",
        topic=topic,
    )


def topic_foreign(topic: str, cause: str) -> TopicError:
    return TopicError(
        "TOPIC_FOREIGN",
        f"The newest records of topic {topic} are not those of lowmark",
        cause,
        "Name the topic to which your producers publish changes. For a topic of another program, or"
        " records with the schema of a registry that [registry] does not name, each record would"
        " become a dead letter",
        topic=topic,
    )
