"""Kafka's transactions, and the meaning of their errors (REC-17, REC-18).

Each call is repeated while Kafka allows it. The remaining errors have three meanings:

    it must be aborted    none of its records will be read
    it is fenced          another producer has started with the same transactional id. This one
                          must not send again
    any other error       the outcome is unknown

In the first and the last case, the client is closed. The next client with the same id ends the open
transaction. After that, late requests of the old client cannot end another transaction.

`TransactionClient` sends whole transactions: those of write sessions and their commits, of the
ledger of dead letters, and of groups that store a state (WRS-8, WRS-14, DLQ-11, SUB-3).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from connector.errors import argument_invalid
from connector.kafka import client
from connector.text import is_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message, Producer, TopicPartition

    from connector.config.settings import KafkaConfig
    from connector.kafka.client import SafeProducer

    _Report = Callable[[KafkaError | None, Message], None]

TIMEOUT_S: Final = 60.0
"""The maximum duration of a transaction. If it is abandoned, readers cannot read later records
until this time has passed.
"""

START_TIMEOUT_S: Final = 30.0
ABORT_TIMEOUT_S: Final = 5.0
"""If an abort takes longer, the next client with the same id aborts the transaction."""

_POLL_EVERY: Final = 1_000
_FENCED: Final = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
Headers = Iterable[tuple[str, str | bytes | None]]
HeaderList = list[tuple[str, str | bytes | None]]


def headers_of(headers: Headers) -> HeaderList:
    """Return the headers of a Kafka record. Raises `ConfigError` if the client cannot send one."""
    pairs = list(headers)
    for name, value in pairs:
        is_text = isinstance(value, str) and is_plain(value, with_nul=True)
        if not is_plain(name) or not (is_text or value is None or isinstance(value, bytes)):
            allowed = "pairs of a name without NUL characters and lone surrogates, and bytes"
            raise argument_invalid("headers", (name, value), allowed)
    return pairs


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
    same id, and fence these.

    Raises `BrokerError` or `TopicError` if Kafka does not answer, or refuses.
    """
    error = _call(producer.init_transactions, START_TIMEOUT_S)
    if error is not None:
        what = f"start transactions as {transactional_id}"
        raise client.explain(error, kafka, what, "Write")


def send_offsets(
    producer: Producer, partitions: list[TopicPartition], group: object
) -> KafkaError | None:
    """Store offsets and their metadata for a group with the open transaction."""
    return _call(
        lambda left: producer.send_offsets_to_transaction(partitions, group, left), TIMEOUT_S
    )


def commit(producer: Producer) -> KafkaError | None:
    return _call(producer.commit_transaction, TIMEOUT_S)


def abort(producer: Producer) -> KafkaError | None:
    """Abort. None of its records is delivered. Records in flight are reported as failed."""
    return _call(producer.abort_transaction, ABORT_TIMEOUT_S)


def is_fenced(error: KafkaError) -> bool:
    """Return whether another producer has started with the same transactional id."""
    return error.code() in _FENCED


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


class TransactionMessage(NamedTuple):
    """A message of a transaction."""

    topic: str
    key: bytes
    value: bytes | None
    kafka_partition: int
    headers: HeaderList = []  # noqa: RUF012, it is never changed

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value or b"")


class Offsets(NamedTuple):
    """The offsets that a transaction stores for a group. `group` is the client's metadata of it."""

    partitions: list[TopicPartition]
    group: object


@dataclass(frozen=True, slots=True)
class Failure:
    """A transaction without a commit that was acknowledged.

    - `is_unknown`: it may have been committed. Otherwise it was not, and will not be.
    - `is_fenced`: another client has the transactional id.
    - `is_permanent`: another attempt fails, too.
    - `is_reading`: it is not the transaction that failed, but reading its outcome.
    - `error` is that of Kafka. None: its outcome could not be read.
    """

    cause: str
    is_unknown: bool
    is_fenced: bool = False
    is_permanent: bool = False
    is_reading: bool = False
    error: KafkaError | None = None


class TransactionClient:
    """A client with a transactional id. After a failure it sends nothing any more: `start` again.

    Use it in one thread. `on_step` is called before each step of a transaction, and after it.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        transactional_id: str,
        max_message_bytes: int,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._kafka, self.transactional_id = kafka, transactional_id
        self._settings = {
            **settings(transactional_id),
            **client.sizes(max_message_bytes),
            "linger.ms": "5",
        }
        self._on_step = on_step
        self._errors = client.LastError()
        self._failed_deliveries: list[KafkaError] = []
        self._producer: SafeProducer | None = None

    @property
    def is_open(self) -> bool:
        """Whether `commit` can be called."""
        return self._producer is not None

    def start(self) -> None:
        """Open a new client. It ends the open transaction of an earlier one, and fences it.

        Raises `BrokerError` or `TopicError` if Kafka does not answer, or refuses.
        """
        self.close()
        self._errors, self._failed_deliveries = client.LastError(), []
        self._producer = client.producer(self._kafka, self._errors, self._settings)
        try:
            start(self._producer, self._kafka, self.transactional_id)
        except BaseException:
            self.close()
            raise

    def commit(
        self,
        messages: Iterable[TransactionMessage],
        *,
        offsets: Offsets | None = None,
        on_delivered: Callable[[Message], None] | None = None,
    ) -> Failure | None:
        """Send messages in one transaction. Return None if it is committed.

        `on_delivered` is called for each message, before the commit. It must only store what it
        gets, because after a fatal error, Python calls may fail there.
        """
        assert self._producer is not None, "start it first"
        producer, is_committing = self._producer, False
        report = None if on_delivered is None else self._report_to(on_delivered)
        error: KafkaError | None
        try:
            self._on_step("begin")
            producer.begin_transaction()
            for number, message in enumerate(messages):
                self._put(producer, message, report)
                if number % _POLL_EVERY == 0:
                    producer.poll(0)
            error = None if offsets is None else send_offsets(producer, *offsets)
            if error is None and report is not None:
                self._on_step("flush")
                producer.flush(TIMEOUT_S)
                error = next(iter(self._failed_deliveries), None)
            if error is None:
                self._on_step("commit")
                is_committing = True
                error = commit(producer)
        except KafkaException as failed:
            error = failed.args[0]
        except BaseException:
            self._abort()
            raise
        if error is not None:
            return self._failed(error, is_committing)
        self._on_step("committed")
        return None

    def close(self) -> None:
        """Close the client. A transaction that is not committed has no effect. A second call does
        nothing.
        """
        if (producer := self._producer) is None:
            return
        self._producer = None
        with suppress(KafkaException):
            producer.purge()
            producer.flush(0)

    def _report_to(self, on_delivered: Callable[[Message], None]) -> _Report:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                on_delivered(message)
            else:
                self._failed_deliveries.append(error)

        return report

    def _put(self, producer: Producer, message: TransactionMessage, report: _Report | None) -> None:
        deadline = 0.0
        while True:
            try:
                producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    message.kafka_partition,
                    report,
                    headers=message.headers,
                )
                return
            except BufferError:
                deadline = deadline or time.monotonic() + client.QUEUE_TIMEOUT_S
                if self._failed_deliveries:
                    raise KafkaException(self._failed_deliveries[0]) from None
                if time.monotonic() > deadline:
                    raise KafkaException(
                        KafkaError(KafkaError._QUEUE_FULL, "the queue stayed full")
                    ) from None
                producer.poll(0.05)

    def _failed(self, error: KafkaError, is_committing: bool) -> Failure:
        # Any of the calls may be the first one that reports another client.
        others = (self._errors.fatal, self._abort(), *self._failed_deliveries)
        errors = [error, *(other for other in others if other is not None)]
        fenced = next(filter(is_fenced, errors), None)
        return Failure(
            f"{(fenced or error).str()}. {self._errors.text}".strip().removesuffix("."),
            is_unknown=is_committing and not error.txn_requires_abort(),
            is_fenced=fenced is not None,
            is_permanent=any(other.code() in client.PERMANENT for other in errors),
            error=self._errors.fatal or error,
        )

    def _abort(self) -> KafkaError | None:
        """Abort the transaction if that is possible, and close the client."""
        try:
            return None if self._producer is None else abort(self._producer)
        finally:
            self.close()
