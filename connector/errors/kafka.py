"""Kafka: brokers, topics and groups."""

from __future__ import annotations

from connector.errors import BrokerError, OutOfRangeError, TopicError


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


def stream_topic_replaced(stream: str, problem: str, cause: str) -> TopicError:
    return TopicError(
        "TOPIC_REPLACED",
        f"The topic of stream {stream} {problem}",
        cause,
        "Restore the topic, or configure a new stream and new tables for the new topic, or move the"
        " folders of the stream and of its tables away",
        stream=stream,
    )


def spark_records_deleted(what: str) -> TopicError:
    return TopicError(
        "RECORDS_DELETED",
        f"Kafka deleted records of {what} before they were read",
        "The retention of the topic deleted them, or Kafka partitions were removed",
        "Find out which records are missing, and send them again to a new stream",
    )


def changelog_start_too_old(start: str | int, oldest: str | int, oldest_us: int) -> OutOfRangeError:
    return OutOfRangeError(
        "START_TOO_OLD",
        f"The changelog may lack changes from {start} on",
        "Batches older than changelog_retention were deleted",
        f"Use a start_commit of {oldest} or later, or read the tables",
        oldest=oldest_us,
    )


def spark_tls_failed(what: str, cause: str) -> BrokerError:
    return BrokerError(
        "KAFKA_TLS_FAILED",
        f"Spark has no secure connection to Kafka for {what}",
        cause,
        "Check ssl.ca.location and the client certificate of [kafka]: their files, who issued the"
        " certificates, and when they expire. Start again once it is corrected. Nothing is lost:"
        " lowmark continues where it stopped",
    )


def spark_login_failed(what: str, cause: str) -> BrokerError:
    return BrokerError(
        "KAFKA_LOGIN_FAILED",
        f"Kafka does not accept the login of Spark for {what}",
        cause,
        "Check the user and password, or the client id, secret and token endpoint, of [kafka]."
        " Start again once it is corrected. Nothing is lost: lowmark continues where it stopped",
    )


def spark_access_denied(what: str, cause: str) -> BrokerError:
    return BrokerError(
        "KAFKA_ACCESS_DENIED",
        f"Kafka refused a request of Spark for {what}",
        cause,
        "Give this user the rights that docs/howto/run-against-your-cluster.md lists. Start again"
        " once it is corrected. Nothing is lost: lowmark continues where it stopped",
    )
