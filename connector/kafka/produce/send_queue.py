"""Messages on their way to Kafka, the client that carries them, and what becomes of both when it fails (REC-17).

Every message that is put in is answered for once: acknowledged, failed, or unknown, which counts as failed. Memory is bounded: a
full queue blocks for a time, then refuses. A client with a fatal error never sends again; another takes its place, and what the
first one left without an answer is unknown.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from connector.errors import DeliveryError
from connector.kafka import client, transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from confluent_kafka import Producer

    from connector.config.settings import KafkaConfig
    from connector.kafka.topics import TopicFacts

HeaderList = list[tuple[str, str | bytes | None]]
_Item = TypeVar("_Item")

POLL_EVERY: Final = 100


class SendQueue(Generic[_Item]):
    """One topic's outbox. `answer` is called for each message with the item that it belongs to, and why it failed, or nothing.

    Answers come while `put`, `serve`, `renew` or `let_go` runs. `client` is the present one.
    """

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
        """One for each message that has no answer yet."""
        return self._outstanding.values()

    @property
    def complaint(self) -> str:
        """What the client complained of last."""
        return self._errors.text

    def put(self, item: _Item, key: bytes, value: bytes, kafka_partition: int, headers: HeaderList) -> None:
        """Queue a message; blocks while the queue is full. Raises `DeliveryError` when it was not taken: the item has been answered for.

        Raises `WriterConflictError` as `renew` does.
        """
        number = self._next_number
        self._next_number += 1
        # Known before the client is: a report may come while this call still runs.
        self._outstanding[number] = item
        deadline = 0.0
        while True:
            try:
                self.client.produce(self._facts.topic, value, key, kafka_partition, partial(self._on_delivery, number), headers=headers)
                break
            except BufferError:
                now = time.monotonic()
                deadline = deadline or now + self._queue_timeout_s
                if now > deadline:
                    cause = f"the queue stayed full for {self._queue_timeout_s:g} s. {self.complaint}".strip()
                    raise self._refused(number, cause, "Look after the brokers and send it again") from None
                self.serve(0.05)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:
                    failed = self.client
                    self.serve(0)  # what it died of is told there
                    if self.client is failed:
                        self.renew(error.args[0])
                raise self._refused(number, error.args[0].str(), "Send it again; when it stays so, look at the cause") from error
        if number % POLL_EVERY == 0:
            self.serve(0)

    def serve(self, timeout_s: float, *, push: bool = False) -> None:
        """Let the client hand over its reports; `push` sends at once what waits for a batch to fill. Raises as `renew` does."""
        fatal: KafkaError | str | None = None
        try:
            self.client.flush(timeout_s) if push else self.client.poll(timeout_s)
        except (KafkaException, SystemError) as error:
            # Reports may be lost in here, which is why everything without one is unknown.
            fatal = client.cause_of(error)
        self.read_reports()
        fatal = self._errors.fatal or fatal
        if fatal is not None:
            self.renew(fatal)

    def renew(self, error: KafkaError | str) -> None:
        """Give up a client that will never send again, and take another one; what has no report is unknown, hence to be sent again.

        Raises `WriterConflictError` when it was another producer with the same transactional id that shut it out.
        """
        cause = error.str() if isinstance(error, KafkaError) else str(error)
        client.log.error("producer for %s rebuilt: %s", self._facts.topic, cause)
        self.let_go(0, f"outcome unknown: {cause}")
        error = self._errors.fatal or error  # a call that failed without a reason is told it by the next one
        if self._transactional_id is not None and isinstance(error, KafkaError) and transactions.is_shut_out(error):
            self._shut_out = error.str()
            self.check_not_shut_out()  # another client would shut the other producer out in turn
        self._errors = client.LastError()
        self.client = self._connect()

    def check_not_shut_out(self) -> None:
        """Raises `WriterConflictError` when another producer with the same transactional id has shut this one out."""
        if self._shut_out:
            raise transactions.shut_out(self._facts.topic, self._transactional_id or "", self._shut_out)

    def let_go(self, timeout_s: float, why: str) -> None:
        """Give up the client with what it holds; without the purge it would wait for the messages' own time-out."""
        with suppress(KafkaException, SystemError):
            self.client.purge()
            self.client.flush(timeout_s)
        self.read_reports()
        self.give_up(why)

    def give_up(self, why: str) -> None:
        """Wait for no more answers."""
        given_up, self._outstanding = self._outstanding, {}
        for item in given_up.values():
            self._answer(item, why)

    def read_reports(self) -> None:
        reports, self._reports = self._reports, []
        outstanding, answer = self._outstanding, self._answer
        for number, error in reports:
            item = outstanding.pop(number, None)
            if item is not None:  # else it is of a client that was given up, and counted as unknown already
                answer(item, "" if error is None else error.str())

    def _on_delivery(self, number: int, error: KafkaError | None, _message: Message) -> None:
        """Called by the client inside poll and flush, once for each message. Must neither raise nor poll.

        It only takes a note: after a fatal error Python calls of any kind may die in here, and what they had begun is half done.
        """
        self._reports.append((number, error))

    def _refused(self, number: int, cause: str, remedy: str) -> DeliveryError:
        """This message did not enter the queue: the caller is told, and what was promised about the record is settled."""
        if (item := self._outstanding.pop(number, None)) is not None:
            self._answer(item, cause)
        return DeliveryError(f"A record for {self._facts.topic} was not taken", cause, remedy, undelivered=1)

    def _connect(self) -> Producer:
        transactional = {} if self._transactional_id is None else transactions.settings(self._transactional_id)
        return client.producer(self._kafka, self._errors, {**client.sizes(self._facts.max_message_bytes), **transactional})
