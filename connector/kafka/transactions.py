"""Kafka's transactions for `ChangeProducer`, and the meaning of their errors (REC-17, REC-18).

Each call is repeated while Kafka allows it. The remaining errors have three meanings:

    it must be aborted    none of its records will be read
    we are shut out       another producer has started with the same transactional id. This one
                          must not send again
    any other error       the outcome is unknown

In the first and the last case, the client is closed. The next client with the same id ends the open
transaction. After that, late requests of the old client cannot end another transaction.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from connector.errors import ErrorCode, WriterConflictError
from connector.kafka import client

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Producer, TopicPartition

    from connector.config.settings import KafkaConfig

TIMEOUT_S: Final = 60.0
"""The maximum duration of a transaction. If it is abandoned, readers cannot read later records
until this time has passed.
"""

START_TIMEOUT_S: Final = 30.0
ABORT_TIMEOUT_S: Final = 5.0
"""If an abort takes longer, the next client with the same id aborts the transaction."""

_SHUT_OUT: Final = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
)


def settings(transactional_id: str) -> dict[str, str]:
    """Return the client settings. A record must not wait longer than its transaction."""
    timeout_ms = str(round(TIMEOUT_S * 1000))
    return {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": timeout_ms,
    }


def start(producer: Producer, kafka: KafkaConfig, transactional_id: str) -> None:
    """Prepare the first transaction of a client: end open transactions of other clients with the
    same id, and shut these out.

    Raises `BrokerError` or `TopicError` if Kafka does not answer, or refuses.
    """
    error = _call(producer.init_transactions, START_TIMEOUT_S)
    if error is not None:
        raise client.explain(error, kafka, f"start transactions as {transactional_id}")


def send_offsets(
    producer: Producer, places: list[TopicPartition], group: object
) -> KafkaError | None:
    """Store offsets and their metadata for a group with the open transaction."""
    return _call(lambda left: producer.send_offsets_to_transaction(places, group, left), TIMEOUT_S)


def commit(producer: Producer) -> KafkaError | None:
    return _call(producer.commit_transaction, TIMEOUT_S)


def abort(producer: Producer) -> KafkaError | None:
    """Abort. None of its records is delivered. Records in flight are reported as failed."""
    return _call(producer.abort_transaction, ABORT_TIMEOUT_S)


def is_shut_out(error: KafkaError) -> bool:
    return error.code() in _SHUT_OUT


def shut_out(topic: str, transactional_id: str, cause: str) -> WriterConflictError:
    return WriterConflictError(
        ErrorCode.PRODUCER_FENCED,
        f"Another producer uses the transactional id {transactional_id} on {topic} now",
        cause,
        "Stop one of the two producers: a stream partition has one producer at a time."
        " Uncommitted records of this producer were not delivered",
        topic=topic,
    )


def _call(call: Callable[[float], object], timeout_s: float) -> KafkaError | None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            call(max(0.1, deadline - time.monotonic()))
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
        else:
            return None
        if not error.retriable() or time.monotonic() > deadline:
            return error
        time.sleep(0.05)
