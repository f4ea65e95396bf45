"""Producers and their outboxes."""

from __future__ import annotations

from collections.abc import Mapping

from connector.errors import (
    DeliveryError,
    OutboxError,
    QueueFullError,
    TopicError,
    WriterConflictError,
)


def records_undelivered(topic: str, undelivered: int, cause: str) -> DeliveryError:
    return DeliveryError(
        "RECORDS_UNDELIVERED",
        f"{undelivered} records were not delivered to {topic}",
        cause,
        "Remove the cause, then send the records of undelivered() again. Sending a record twice"
        " does no harm",
        undelivered=undelivered,
    )


def claim_not_true(
    record: str, stream_partition: str, undelivered: int, cause: str
) -> DeliveryError:
    return DeliveryError(
        "RECORDS_UNDELIVERED",
        f"{record} of stream partition {stream_partition} would claim more than was delivered",
        cause,
        "Check the brokers, and send the changes of undelivered() again. Then send this record",
        undelivered=undelivered,
    )


def transaction_not_committed(topic: str, undelivered: int, cause: str) -> DeliveryError:
    return DeliveryError(
        "TRANSACTION_NOT_COMMITTED",
        f"A transaction on {topic} was not committed",
        cause,
        "Send the records of undelivered() again, in another transaction. Sending a record twice"
        " does no harm",
        undelivered=undelivered,
    )


def taken_over(name: str, topic: str, cause: str, outcome: str = "") -> WriterConflictError:
    """`name` is a transactional id, a write session or a group. `outcome` is that of an append."""
    return WriterConflictError(
        "TAKEN_OVER",
        f"Another program uses {name} on {topic} now",
        cause,
        "Stop one of the two programs. Changes that this one has not committed have no effect. To"
        " work in parallel, each needs its own name, and a stream partition has one producer at a"
        " time",
        topic=topic,
        outcome=outcome,
    )


def bridge_taken_over(topic: str) -> WriterConflictError:
    return WriterConflictError(
        "BRIDGE_TAKEN_OVER",
        f"Another bridge publishes to {topic} now",
        "It began later than this one, and goes on. Nothing is lost",
        "Run the bridge of a stream once. If the other one is gone, start this one again",
        topic=topic,
    )


def heartbeat_undelivered(
    topic: str, stream_partition: str, timestamp: str, cause: str
) -> DeliveryError:
    return DeliveryError(
        "HEARTBEAT_UNDELIVERED",
        f"The heartbeat of stream partition {stream_partition} at {timestamp} was not delivered to"
        f" {topic}",
        cause,
        "Check the brokers. The producer sends the heartbeat again by itself. If `send` raised this"
        " error, it has queued its record",
        stream_partition=stream_partition,
    )


def resume_token_missing(topic: str, stream_partition: str) -> TopicError:
    return TopicError(
        "RESUME_TOKEN_MISSING",
        f"{topic} has no resume token of stream partition {stream_partition}",
        "No heartbeat of this stream partition has a resume token, and no change that was sent in a"
        " transaction. Or retention has deleted them",
        "Start with a backfill of the source, or at a position before which everything was"
        " delivered",
        topic=topic,
        stream_partition=stream_partition,
    )


def records_in_outbox(topic: str, undelivered: int, cause: str) -> DeliveryError:
    return DeliveryError(
        "RECORDS_IN_OUTBOX",
        f"{undelivered} records for {topic} are in the outbox, and Kafka does not have them yet",
        cause,
        "Check the brokers. This producer, or the next one with the outbox, sends the records",
        undelivered=undelivered,
    )


def outbox_full(outbox: str, undelivered: int, cause: str) -> QueueFullError:
    return QueueFullError(
        "OUTBOX_FULL",
        f"The outbox {outbox} has no space",
        cause,
        "Wait until Kafka answers, or give the outbox more space. Then send the records of"
        " undelivered() again",
        undelivered=undelivered,
        outbox=outbox,
    )


def outbox_in_use(outbox: str) -> OutboxError:
    return OutboxError(
        "OUTBOX_IN_USE",
        f"Another producer uses the outbox {outbox}",
        "An outbox belongs to one producer at a time",
        "Stop the other producer, or give this one an outbox of its own",
        outbox=outbox,
    )


def outbox_of_another_topic(outbox: str, stored: str, topic: str) -> OutboxError:
    return OutboxError(
        "OUTBOX_FOREIGN",
        f"The outbox {outbox} belongs to another topic",
        f"It has records of {stored}, and the producer writes to the topic {topic}",
        "Give each topic an outbox of its own. If the topic was deleted and created again, it may"
        " lack other changes, too: move the outbox away, and start again with a backfill of the"
        " source",
        outbox=outbox,
    )


def not_an_outbox(outbox: str, content: str) -> OutboxError:
    return OutboxError(
        "OUTBOX_FOREIGN",
        f"{outbox} is not an outbox",
        f"It is {content}",
        "Give the path of an outbox, or of a file that does not exist yet. If it was an outbox,"
        " continue your source from `resume_token`, which the new producer reads from the topic",
        outbox=outbox,
    )


def outbox_damaged(
    outbox: str, cause: str, resume_from: str, resume_tokens: Mapping[str, bytes]
) -> OutboxError:
    return OutboxError(
        "OUTBOX_DAMAGED",
        f"The outbox {outbox} is damaged",
        cause,
        "Move the file away, and start again with a new one. Continue your source from"
        f" {resume_from}",
        outbox=outbox,
        resume_tokens=resume_tokens,
    )


def outbox_unusable(outbox: str, cause: str) -> OutboxError:
    return OutboxError(
        "OUTBOX_UNUSABLE",
        f"The outbox {outbox} cannot be used",
        cause,
        "Check the rights and the free space of its folder",
        outbox=outbox,
    )
