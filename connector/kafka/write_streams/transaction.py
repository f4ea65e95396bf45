"""The client that sends whole transactions of a session or of a commit (WRS-6, WRS-8, WRS-14).

A transaction that fails ends its client. The next client with the same transactional id ends the
open transaction, and the catalog then has the outcome.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from connector.kafka import client, transactions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Producer

    from connector.config.settings import KafkaConfig
    from connector.kafka.sending import HeaderList

_QUEUE_TIMEOUT_S: Final = 60.0
_POLL_EVERY: Final = 1_000
_PERMANENT: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
)


class Message(NamedTuple):
    topic: str
    key: bytes
    value: bytes
    kafka_partition: int
    headers: HeaderList = []  # noqa: RUF012, it is never changed

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value)


@dataclass(frozen=True, slots=True)
class Failure:
    """A transaction without a commit that was acknowledged.

    - `is_unknown`: it may have been committed. Otherwise it was not, and will not be.
    - `is_shut_out`: another client has the transactional id.
    - `is_permanent`: another attempt fails, too.
    - `code`: that of Kafka's error, or 0.
    - `is_reading`: it is not the transaction that failed, but reading its outcome.
    """

    cause: str
    is_unknown: bool
    is_shut_out: bool = False
    is_permanent: bool = False
    is_reading: bool = False
    code: int = 0


class TransactionClient:
    """A client with a transactional id. After a failure it sends nothing any more: `start` again.

    Use it in one thread.
    """

    def __init__(self, kafka: KafkaConfig, transactional_id: str, max_message_bytes: int) -> None:
        self._kafka, self.transactional_id = kafka, transactional_id
        self._settings = {
            **transactions.settings(transactional_id),
            **client.sizes(max_message_bytes),
            "linger.ms": "5",
        }
        self._errors = client.LastError()
        self._producer: Producer | None = None

    @property
    def complaint(self) -> str:
        """The last error of the client, as text."""
        return self._errors.text

    def start(self) -> None:
        """Open a new client. It ends the open transaction of an earlier one, and shuts it out.

        Raises `BrokerError` or `TopicError` if Kafka does not answer, or refuses.
        """
        self.close()
        self._errors = client.LastError()
        self._producer = client.producer(self._kafka, self._errors, self._settings)
        transactions.start(self._producer, self._kafka, self.transactional_id)

    def commit(self, messages: Iterable[Message]) -> Failure | None:
        """Send messages in one transaction. Return None if it is committed."""
        assert self._producer is not None, "start it first"
        is_committing = False
        try:
            self._producer.begin_transaction()
            for number, message in enumerate(messages):
                self._put(self._producer, message)
                if number % _POLL_EVERY == 0:
                    self._producer.poll(0)
            is_committing = True
            error: KafkaError | str | None = transactions.commit(self._producer)
        except (KafkaException, SystemError) as caught:
            error = client.cause_of(caught)
        if error is None:
            return None
        return self._failed(error, is_committing)

    def close(self) -> None:
        """Close the client. A transaction that is not committed has no effect."""
        if (producer := self._producer) is None:
            return
        self._producer = None
        with suppress(KafkaException, SystemError):
            producer.purge()
            producer.flush(0)

    def _put(self, producer: Producer, message: Message) -> None:
        deadline = 0.0
        while True:
            try:
                producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    message.kafka_partition,
                    headers=message.headers,
                )
                return
            except BufferError:
                deadline = deadline or time.monotonic() + _QUEUE_TIMEOUT_S
                if time.monotonic() > deadline:
                    raise KafkaException(
                        KafkaError(KafkaError._QUEUE_FULL, "the queue stayed full")
                    ) from None
                producer.poll(0.05)

    def _failed(self, error: KafkaError | str, is_committing: bool) -> Failure:
        heard = [one for one in (error, self._errors.fatal) if isinstance(one, KafkaError)]
        self.close()
        must_abort = isinstance(error, KafkaError) and error.txn_requires_abort()
        cause = error.str() if isinstance(error, KafkaError) else error
        return Failure(
            f"{cause}. {self.complaint}".strip().removesuffix("."),
            is_unknown=is_committing and not must_abort,
            is_shut_out=any(map(transactions.is_shut_out, heard)),
            is_permanent=any(one.code() in _PERMANENT for one in heard),
            code=heard[-1].code() if heard else 0,
        )
