"""The errors of the sources of a bridge."""

from __future__ import annotations

from typing import Final

from connector.errors import TopicError

_SOURCE_AGAIN: Final = (
    "Let the source send all rows again, for example by a snapshot of Debezium. Name a new change"
    " topic for the stream, so that the bridge begins again, and move the folders of the stream and"
    " of its tables away"
)


def source_topic_missing(topic: str) -> TopicError:
    return TopicError(
        "SOURCE_TOPIC_MISSING",
        f"There is no topic {topic}",
        "The program that writes the source has not made it, its name is another one, or Kafka does"
        " not show it to this user (right: Read)",
        "Correct the name, or wait until that program has written a record",
        topic=topic,
    )


def source_topic_replaced(topic: str, stored_id: str, topic_id: str) -> TopicError:
    return TopicError(
        "TOPIC_REPLACED",
        f"The source topic {topic} is not the topic that the bridge has read",
        f"It was deleted and created again: its id was {stored_id} and is {topic_id}. Records that"
        " the bridge had not read are gone",
        _SOURCE_AGAIN,
        topic=topic,
    )


def source_records_deleted(
    topic: str, kafka_partition: int, position: int, first: int, end: int
) -> TopicError:
    return TopicError(
        "RECORDS_DELETED",
        f"The bridge cannot continue in {topic}: Kafka partition {kafka_partition} has the offsets"
        f" {first} to {end}, and its position is {position}",
        "Retention or another program deleted records that the bridge had not read, or the brokers"
        " lost records that it had",
        _SOURCE_AGAIN,
        topic=topic,
    )


def source_position_missing(topic: str) -> TopicError:
    return TopicError(
        "RESUME_TOKEN_MISSING",
        f"{topic} has no position of its bridge",
        "Retention has deleted its first records, and no heartbeat of a bridge is left. The bridge"
        " did not run for longer than the retention, or another program has used the topic",
        _SOURCE_AGAIN,
        topic=topic,
    )


def source_transactions_split(topic: str, kafka_partitions: int) -> TopicError:
    return TopicError(
        "SOURCE_TRANSACTIONS_SPLIT",
        f"The topic of transactions {topic} has {kafka_partitions} Kafka partitions",
        "The ends of transactions have an order, so they must be in one Kafka partition. With"
        " several, a cut could have the later of two transactions only",
        "Let Debezium write them to another topic with one Kafka partition: set topic.transaction"
        " and topic.creation.….partitions = 1, and name it in transactions of the source. If the"
        f" bridge has run before: {_SOURCE_AGAIN}",
        topic=topic,
    )


def _log_began_again(topic: str, problem: str, cause: str) -> TopicError:
    return TopicError(
        "SOURCE_LOG_BEGAN_AGAIN",
        problem,
        cause,
        "Give Debezium another topic.prefix, so that it reads the tables again, and name the new"
        f" topics in the source. {_SOURCE_AGAIN}",
        topic=topic,
    )


def source_log_began_again(topic: str, first: str, new: str) -> TopicError:
    return _log_began_again(
        topic,
        f"{topic} has old transactions from {first} on, and then the new one {new}",
        "Debezium sends a part of the log again after a restart, up to the newest transaction, and"
        " that did not come. So the log of the database began again, for example after a restore"
        " into a new server, whose clock is behind. It cannot be told which of these transactions"
        " were published",
    )


def source_row_without_place(topic: str, offset: int, transaction: str) -> TopicError:
    return _log_began_again(
        topic,
        f"A row of an incremental snapshot in {topic}, at the offset {offset:,}, has no known place"
        f" before or behind the transaction {transaction}",
        "The log of the database began again at smaller positions, and neither rows of another"
        " snapshot nor the clocks tell from which log the row is",
    )


def source_truncations_unplaced(topic: str, transaction: str) -> TopicError:
    return _log_began_again(
        topic,
        f"The binary log of the source began again before {transaction}, the next transaction of"
        f" {topic}, and the clock of the database did not go on",
        "A truncation has no transaction. Its place is known by its position and its time, and now"
        " both may be those of the old log or of the new one",
    )


def source_log_unknown(topic: str, transaction: str) -> TopicError:
    return TopicError(
        "SOURCE_LOG_UNKNOWN",
        f"{topic} has the transaction {transaction[:100]}, whose id has no order",
        "The bridge knows the transactions of Debezium's connectors for PostgreSQL, MySQL and"
        " MariaDB. With other ids it cannot prove that Debezium sends a transaction again",
        "Remove transactions from the source. Then the order is that of each Kafka partition",
        topic=topic,
    )


def source_too_wide(topic: str, kafka_partitions: int, size: int, allowed: int) -> TopicError:
    return TopicError(
        "SOURCE_TOO_WIDE",
        f"The source of {topic} has too many Kafka partitions: {kafka_partitions:,}",
        f"The position of its bridge has {size:,} bytes, and a resume token has at most"
        f" {allowed:,}",
        "Publish some of its topics as another stream, with a change topic and a bridge of its own."
        f" Or let the source write to topics with fewer Kafka partitions. {_SOURCE_AGAIN}",
        topic=topic,
    )


def source_foreign(stream: str, format_: str, cause: str) -> TopicError:
    return TopicError(
        "TOPIC_FOREIGN",
        f"The newest records of the source of stream {stream} are not {format_}",
        cause,
        "Compare format and topics of the source with the converters of Kafka Connect and with the"
        " registry. With these settings, each record would become a dead letter",
    )
