"""The messages in flight to Kafka, their client, and the handling of client failures (REC-17).

Every message gets exactly one result: acknowledged, failed, or unknown. Unknown counts as failed.
Memory is bounded: a full queue first blocks, and then refuses. A client with a fatal error cannot
send any more. It is replaced by a new client, and the results of its remaining messages are
unknown.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from connector.errors import DeliveryError, ErrorCode
from connector.kafka import client, transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from confluent_kafka import Producer

    from connector.config.settings import KafkaConfig
    from connector.kafka.topics import TopicFacts
    from connector.records.model import Heartbeat

HeaderList = list[tuple[str, str | bytes | None]]
_Item = TypeVar("_Item")

POLL_EVERY: Final = 100


class SendQueue(Generic[_Item]):
    """The send queue of one topic.

    `answer` is called for each message, with its item and the error. The error is empty if the
    message was acknowledged. It is called while `put`, `serve`, `renew` or `let_go` runs. `client`
    is the current client.

    With a spool, `has_spool`, `is_spooling`, `backlog` and `may_claim` have other values (PUB-3).
    """

    has_spool = False
    is_spooling = False

    def __init__(
        self,
        kafka: KafkaConfig,
        facts: TopicFacts,
        answer: Callable[[_Item, str], None],
        *,
        queue_timeout_s: float,
        transactional_id: str | None,
    ) -> None:
        self._kafka, self._facts, self._answer = kafka, facts, answer
        self._queue_timeout_s, self._transactional_id = queue_timeout_s, transactional_id
        self._outstanding: dict[int, _Item] = {}
        self._reports: list[tuple[int, KafkaError | None]] = []
        self._next_number = 0
        self._shut_out = ""
        self._errors = client.LastError()
        self.client = self._connect()

    @property
    def items(self) -> Collection[_Item]:
        """The items of the messages without a result. An item occurs once for each message."""
        return self._outstanding.values()

    @property
    def complaint(self) -> str:
        """The last error of the client, as text."""
        return self._errors.text

    def put(
        self,
        item: _Item,
        key: bytes,
        value: bytes,
        kafka_partition: int,
        headers: HeaderList,
        *,
        waits: bool = True,
    ) -> None:
        """Queue a message. Blocks while the queue is full.

        Raises `DeliveryError` if the message was not queued. Then `answer` was already called.
        Raises `WriterConflictError` as `renew` does. Without `waits`, a full queue raises
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
                if not waits:
                    del self._outstanding[number]
                    raise
                now = time.monotonic()
                deadline = deadline or now + self._queue_timeout_s
                if now > deadline:
                    waited = f"the queue stayed full for {self._queue_timeout_s:g} s"
                    cause = f"{waited}. {self.complaint}".strip()
                    raise self._refused(
                        number, cause, "Check the brokers, then send the record again"
                    ) from None
                self.serve(0.05)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:
                    failed = self.client
                    self.serve(0)  # this reads the cause of the failure
                    if self.client is failed:
                        self.renew(error.args[0])
                raise self._refused(
                    number,
                    error.args[0].str(),
                    "Send the record again. If the error stays, remove the cause",
                ) from error
        if number % POLL_EVERY == 0:
            self.serve(0)

    @property
    def backlog(self) -> int:
        """The number of records in the file of the spool that are not settled."""
        return 0

    @property
    def may_claim(self) -> bool:
        """Whether claims may be sent. It is False while a spool has losses."""
        return True

    def put_everywhere(self, item: _Item, key: bytes, value: bytes, headers: HeaderList) -> bool:  # noqa: ARG002
        """Queue a record for all Kafka partitions, if there is a spool. Otherwise return False."""
        return False

    def reached(self, position: Heartbeat) -> None:
        """Keep a position of the application in the spool."""

    def check_may_claim(self) -> None:
        """Raises `SpoolError` if the spool has losses, and without a spool nothing."""

    def serve(self, timeout_s: float, *, push: bool = False) -> None:
        """Read the reports of the client. `push` sends waiting batches at once. Raises as `renew`
        does.
        """
        fatal: KafkaError | str | None = None
        try:
            self.client.flush(timeout_s) if push else self.client.poll(timeout_s)
        except (KafkaException, SystemError) as error:
            # Reports may be lost here. Therefore the result of a message without a report is
            # unknown.
            fatal = client.cause_of(error)
        self.read_reports()
        fatal = self._errors.fatal or fatal
        if fatal is not None:
            self.renew(fatal)

    def renew(self, error: KafkaError | str) -> None:
        """Replace a client that cannot send any more. The results of its messages are unknown, so
        they must be sent again.

        Raises `WriterConflictError` if another producer with the same transactional id has taken
        over.
        """
        cause = error.str() if isinstance(error, KafkaError) else str(error)
        client.log.error("producer for %s rebuilt: %s", self._facts.topic, cause)
        self.let_go(0, f"outcome unknown: {cause}")
        error = (
            self._errors.fatal or error
        )  # if a call failed without a reason, the next call has the reason
        if (
            self._transactional_id is not None
            and isinstance(error, KafkaError)
            and transactions.is_shut_out(error)
        ):
            self._shut_out = error.str()
            self.check_not_shut_out()  # a new client would take over from the other producer
        self._errors = client.LastError()
        self.client = self._connect()

    def check_not_shut_out(self) -> None:
        """Raises `WriterConflictError` if another producer with the same transactional id has taken
        over.
        """
        if self._shut_out:
            raise transactions.shut_out(
                self._facts.topic, self._transactional_id or "", self._shut_out
            )

    def let_go(self, timeout_s: float, why: str) -> None:
        """Close the client and drop its messages. Without the purge, it would wait for the
        messages' time-out.
        """
        with suppress(KafkaException, SystemError):
            self.client.purge()
            self.client.flush(timeout_s)
        self.read_reports()
        self.give_up(why)

    def give_up(self, why: str) -> None:
        """Stop waiting for results."""
        given_up, self._outstanding = self._outstanding, {}
        for item in given_up.values():
            self._answer(item, why)

    def read_reports(self) -> None:
        reports, self._reports = self._reports, []
        outstanding, answer = self._outstanding, self._answer
        for number, error in reports:
            item = outstanding.pop(number, None)
            if item is not None:  # else it is from a replaced client, and already counts as unknown
                answer(item, "" if error is None else error.str())

    def _on_delivery(self, number: int, error: KafkaError | None, _message: Message) -> None:
        """Store the report of one message. The client calls it inside poll and flush. It must not
        raise or poll.

        It does nothing else, because after a fatal error, Python calls may fail here and leave work
        half done.
        """
        self._reports.append((number, error))

    def _refused(self, number: int, cause: str, remedy: str) -> DeliveryError:
        """Report that this message did not enter the queue, and return the error."""
        if (item := self._outstanding.pop(number, None)) is not None:
            self._answer(item, cause)
        return DeliveryError(
            ErrorCode.RECORD_REFUSED,
            f"A record for {self._facts.topic} was not accepted",
            cause,
            remedy,
            undelivered=1,
        )

    def _connect(self) -> Producer:
        transactional = (
            {} if self._transactional_id is None else transactions.settings(self._transactional_id)
        )
        return client.producer(
            self._kafka,
            self._errors,
            {**client.sizes(self._facts.max_message_bytes), **transactional},
        )
