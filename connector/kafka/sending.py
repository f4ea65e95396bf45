"""The messages in flight to Kafka, their client, and the handling of client failures (REC-17).

    queue full         `put` waits for space, and then refuses
    fatal error        the client is replaced by a new one (`recreate`)
    fenced             another client has the same transactional id: `WriterConflictError`
    outcome unknown    the messages of a replaced or closed client count as failed

Every message gets exactly one result: None if it was acknowledged, or else the error of Kafka, or a
text if the outcome is unknown.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from connector.errors.producers import records_undelivered, taken_over
from connector.kafka import client, transactions
from connector.reports.series import ACKNOWLEDGED, FAILED, NO_ACKNOWLEDGEMENTS, QUEUED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from connector.config.settings import KafkaConfig
    from connector.errors import DeliveryError
    from connector.kafka.client import SafeProducer
    from connector.kafka.topics import TopicFacts
    from connector.kafka.transactions import HeaderList
    from connector.reports.series import Histogram, Series

SendError = KafkaError | str
_Item = TypeVar("_Item")

POLL_EVERY: Final = 100


def text_of(error: SendError) -> str:
    if isinstance(error, str):
        return error
    is_refused = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    return f"{error.str()}. It needs the right Write" if is_refused else error.str()


def is_unknown(error: SendError) -> bool:
    """Return whether a message with this error may be in the topic, because its client was replaced
    or closed.
    """
    return isinstance(error, str) or error.code() in (
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._FATAL,
    )


class SendQueue(Generic[_Item]):
    """The send queue of one topic. `client` is the current client.

    `answer` is called for each message, with its item and the error, or None if the message was
    acknowledged. It is called while `put`, `poll`, `recreate` or `close` runs.
    """

    stores = False
    """Whether records are stored on disk before they are sent."""
    may_claim = True
    """Whether a change may have an estimated low watermark."""

    def __init__(
        self,
        kafka: KafkaConfig,
        facts: TopicFacts,
        answer: Callable[[_Item, SendError | None], None],
        transactional_id: str | None = None,
    ) -> None:
        self._kafka, self._facts, self._answer = kafka, facts, answer
        self._transactional_id = transactional_id
        self._outstanding: dict[int, _Item] = {}
        self._reports: list[tuple[int, KafkaError | None]] = []
        self._latencies: list[float] = []
        self._acknowledged, self._failed = NO_ACKNOWLEDGEMENTS, 0
        self._next_number = 0
        self._fenced = ""
        self._errors = client.LastError()
        self.client = self._connect()

    @property
    def items(self) -> Collection[_Item]:
        """The items of the messages without a result. An item occurs once for each message."""
        return self._outstanding.values()

    @property
    def backlog(self) -> int:
        """The number of messages without a result."""
        return len(self._outstanding)

    def figures(self) -> dict[Series, float | Histogram]:
        """The values of its series (MET-1). Any thread may ask."""
        return {QUEUED: self.backlog, ACKNOWLEDGED: self._acknowledged, FAILED: self._failed}

    def together(self) -> AbstractContextManager[None]:
        """A block whose messages are stored together, if they are stored."""
        return nullcontext()

    def forget_error(self) -> None:
        """Clear `last_error`."""
        self._errors.clear()

    @property
    def last_error(self) -> str:
        """The last error of the client, as text."""
        return self._errors.text

    def put(
        self,
        item: _Item,
        key: bytes | None,
        value: bytes | None,
        kafka_partition: int,
        headers: HeaderList,
        *,
        blocks: bool = True,
    ) -> None:
        """Queue a message. Blocks while the queue is full.

        Raises `DeliveryError` if the message was not queued. Then `answer` was already called.
        Raises `WriterConflictError` as `recreate` does. Without `blocks`, a full queue raises
        `BufferError`, and the message gets no answer.
        """
        number = self._next_number
        self._next_number += 1
        # Store it before `produce`, because the report may come during this call.
        self._outstanding[number] = item
        deadline = 0.0
        while True:
            try:
                self.client.produce(
                    self._facts.topic,
                    value,
                    key,
                    kafka_partition,
                    partial(self._on_delivery, number),
                    headers=headers,
                )
                break
            except BufferError:
                if not blocks:
                    del self._outstanding[number]
                    raise
                now = time.monotonic()
                deadline = deadline or now + client.QUEUE_TIMEOUT_S
                if now > deadline:
                    waited = f"the queue stayed full for {client.QUEUE_TIMEOUT_S:g} s"
                    cause = f"{waited}. {self.last_error}".strip()
                    raise self._refused(number, cause) from None
                self.poll(0.05)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:
                    failed = self.client
                    self.poll(0)  # this reads the cause of the failure
                    if self.client is failed:
                        self.recreate(error.args[0])
                raise self._refused(number, error.args[0]) from error
        if number % POLL_EVERY == 0:
            self.poll(0)

    def poll(self, timeout_s: float, *, push: bool = False) -> None:
        """Read the reports of the client. `push` sends waiting batches at once. Raises as
        `recreate` does.
        """
        fatal: KafkaError | None = None
        try:
            self.client.flush(timeout_s) if push else self.client.poll(timeout_s)
        except KafkaException as error:
            # Reports may be lost here. Therefore the result of a message without a report is
            # unknown.
            fatal = error.args[0]
        self.read_reports()
        fatal = self._errors.fatal or fatal
        if fatal is not None:
            self.recreate(fatal)

    def recreate(self, error: KafkaError | str) -> None:
        """Replace a client that cannot send any more. The results of its messages are unknown, so
        they must be sent again.

        Raises `WriterConflictError` if another producer with the same transactional id has taken
        over.
        """
        cause = text_of(error)
        client.log.error("producer for %s rebuilt: %s", self._facts.topic, cause)
        self.close(0, f"outcome unknown: {cause}")
        # If a call failed without a reason, the next call has the reason.
        error = self._errors.fatal or error
        if (
            self._transactional_id is not None
            and isinstance(error, KafkaError)
            and transactions.is_fenced(error)
        ):
            self._fenced = error.str()
            self.check_not_fenced()  # a new client would take over from the other producer
        self._errors = client.LastError()
        self.client = self._connect()

    def check_not_fenced(self) -> None:
        """Raises `WriterConflictError` if another producer with the same transactional id has taken
        over.
        """
        if self._fenced:
            name = f"the transactional id {self._transactional_id}"
            raise taken_over(name, self._facts.topic, self._fenced)

    def close(self, timeout_s: float, reason: str) -> None:
        """Close the client. The results of its remaining messages are unknown. Without the purge,
        the client would wait for their time-out.
        """
        with suppress(KafkaException):
            self.client.purge()
            self.client.flush(timeout_s)
        self.read_reports()
        self.purge(reason)

    def purge(self, reason: str) -> None:
        """Stop waiting for results. All messages have failed for this reason."""
        purged, self._outstanding = self._outstanding, {}
        self._failed += len(purged)
        for item in purged.values():
            self._answer(item, reason)

    def read_reports(self) -> None:
        reports, self._reports = self._reports, []
        outstanding, answer = self._outstanding, self._answer
        for number, error in reports:
            item = outstanding.pop(number, None)
            if item is not None:  # else it is from a replaced client, and already counts as unknown
                self._failed += error is not None
                answer(item, error)
        if self._latencies:
            latencies, self._latencies = self._latencies, []
            self._acknowledged = self._acknowledged.with_values(latencies)

    def _on_delivery(self, number: int, error: KafkaError | None, message: Message) -> None:
        """Store the report of one message. The client calls it inside poll and flush. It must not
        raise or poll.

        It does nothing else, because after a fatal error, Python calls may fail here and leave work
        half done.
        """
        self._reports.append((number, error))
        if error is None and (latency_s := message.latency()) is not None:
            self._latencies.append(latency_s)

    def _refused(self, number: int, error: SendError) -> DeliveryError:
        """Report that this message did not enter the queue, and return the error."""
        if (item := self._outstanding.pop(number, None)) is not None:
            self._failed += 1
            self._answer(item, error)
        return records_undelivered(self._facts.topic, 1, text_of(error))

    def _connect(self) -> SafeProducer:
        transactional = (
            {} if self._transactional_id is None else transactions.settings(self._transactional_id)
        )
        return client.producer(
            self._kafka,
            self._errors,
            {**client.sizes(self._facts.max_message_bytes), **transactional},
        )
