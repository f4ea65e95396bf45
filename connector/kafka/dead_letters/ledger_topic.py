"""The ledger on Kafka: what was done about the dead letters of a topic, each deed in one transaction with what it sends (DLQ-11).

Whoever acts on letters does it as this, so that one person's click and another's script cannot both replay the same letter:

    1  start the transactions of the topic's one transactional id: Kafka aborts what a dead one left open, shuts out a live one, and
       answers when the markers of the last transaction are written, so that all of it can be read
    2  read the ledger to its end: nobody can add to it from here on but us, or who shuts us out
    3  one transaction: the records to be sent again, for each letter its story with the new entry, and the totals behind them
    4  after any failure give the client up: nobody knows what became of the transaction, and the ledger says it when it is read anew

A letter is acted upon only as the ledger of step 2 and our own commits have it. So running it again, or killing it anywhere,
doubles nothing and loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Self

from confluent_kafka import KafkaError, KafkaException, Message, murmur2

from connector.dead_letters.batching import in_batches
from connector.dead_letters.envelope import dead_letter_topic, ledger_topic
from connector.dead_letters.ledger import (
    Ledger,
    LedgerEntry,
    Sent,
    Totals,
    history_from_json,
    history_to_json,
    totals_from_json,
    totals_to_json,
)
from connector.errors import DeliveryError, TopicError, WriterConflictError
from connector.kafka import client, topics, transactions
from connector.kafka.bounded_read import messages_between
from connector.records.rejection import Headers
from connector.records.sizes import size_of

if TYPE_CHECKING:
    from types import TracebackType

    from connector.config.settings import KafkaConfig

MAX_DEEDS: Final = 1000
"""Of a transaction (DLQ-11)."""
DeliveryCallback = Callable[[KafkaError | None, Message], None]
TOTALS_KEY: Final = b"totals"
"""No letter has such an id."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of the records in a transaction: it has to end well within `transactions.TIMEOUT_S`."""

_QUEUE_TIMEOUT_S: Final = 30.0
_POLL_EVERY: Final = 100


class Outgoing(NamedTuple):
    """A record that is sent again. `kafka_partition` None: that of its key today."""

    key: bytes
    value: bytes | None
    headers: Headers
    kafka_partition: int | None = None

    @property
    def size(self) -> int:
        """Bytes of its contents."""
        return size_of(self.key, self.value, self.headers)


class LedgerWrite(NamedTuple):
    """What is done about one letter: the entry for its story, and the record that goes with it, if it is a replay."""

    letter_id: str
    entry: LedgerEntry
    record: Outgoing | None = None

    @property
    def size(self) -> int:
        """Bytes of the record's contents."""
        return 0 if self.record is None else self.record.size


def read_ledger(kafka: KafkaConfig, topic: str) -> Ledger:
    """The ledger of a change topic as it is committed now; an empty one where its topic was not made yet.

    Raises `TopicError` for a ledger that is not compacted, or that has a record which is no story; `BrokerError`.
    """
    ledger = Ledger()
    if (found := _found(kafka, topic)) is None:
        return ledger
    for key, value in _records(kafka, *found):
        if isinstance(value, Totals):
            ledger.open_since, ledger.sent = value.open_since, value.sent
        else:
            ledger.keep(key, value)
    return ledger


def read_totals(kafka: KafkaConfig, topic: str) -> Totals | None:
    """The newest totals of the ledger of a change topic, from its last records alone; None if it has none. Raises as `read_ledger` does."""
    if (found := _found(kafka, topic)) is None:
        return None
    facts, begin, end = found
    # They are the last of their transaction; behind them may lie what was given up.
    totals, behind = list[Totals](), 16
    while not totals and behind < 16 * (end - begin):
        totals = [value for _, value in _records(kafka, facts, max(begin, end - behind), end) if isinstance(value, Totals)]
        behind *= 16
    return totals[-1] if totals else None


def _found(kafka: KafkaConfig, topic: str) -> tuple[topics.TopicFacts, int, int] | None:
    """The ledger's topic, with its first offset and its end; None where it was not made yet, beside a change topic that is there."""
    try:
        facts = topics.describe(kafka, ledger_topic(topic))
    except TopicError:
        topics.describe(kafka, topic)
        return None
    check(facts)
    return facts, topics.beginning_offsets(kafka, facts)[0], topics.end_offsets(kafka, facts)[0]


def _records(kafka: KafkaConfig, facts: topics.TopicFacts, begin: int, end: int) -> Iterator[tuple[str, tuple[LedgerEntry, ...] | Totals]]:
    """The stories and totals between two offsets of the ledger, with their keys."""
    errors = client.LastError()
    # The last record of a transaction is a marker, behind which a fetch would wait for more before it says that this is the end.
    consumer = client.consumer(kafka, errors, {"group.id": "lowmark.dead-letters", "fetch.wait.max.ms": "10"})
    try:
        for message in messages_between(consumer, kafka, errors, {0: (begin, end)}, facts.topic):
            key, value, _, _ = client.contents(message)
            try:
                yield (key or b"").decode(), (totals_from_json if key == TOTALS_KEY else history_from_json)(value or b"")
            except ValueError as error:
                raise TopicError(
                    f"Record {message.offset()} of {facts.topic} is no story of a dead letter",
                    str(error),
                    "A newer release may have written it: upgrade. Else somebody else writes to this topic, which only the connector may",
                ) from None
    finally:
        consumer.close()


class LedgerWriter:
    """The one that may act on the dead letters of a change topic; an older one is shut out by the next. One thread at a time.

    `ledger` is what is committed. A context manager. After an error it is of no use: make another one, which reads what happened.
    """

    def __init__(self, kafka: KafkaConfig, topic: str, on_step: Callable[[str], None] = lambda step: None) -> None:
        """Shut out any other, then read the ledger; its topic is created where it is missing. `on_step` is called before each step.

        Raises `TopicError`, `BrokerError`.
        """
        self._kafka, self._on_step = kafka, on_step
        self.source = topics.describe(kafka, topic)
        topics.create_dead_letter_topics(kafka, self.source)
        self._ledger_topic = topics.describe(kafka, ledger_topic(topic))
        check(self._ledger_topic)
        self._is_closed = False
        self._failures: list[KafkaError] = []
        self._delivered: dict[int, int] = {}
        self._errors = client.LastError()
        self._id = f"lowmark.{dead_letter_topic(topic)}"
        sizes = client.sizes(max(self.source.max_message_bytes, topics.LETTER_HEADROOM_BYTES))
        self._producer = client.producer(kafka, self._errors, {**transactions.settings(self._id), **sizes})
        try:
            transactions.start(self._producer, kafka, self._id)
            self.ledger = read_ledger(kafka, topic)
        except BaseException:
            self.close()
            raise

    def commit(self, deeds: Sequence[LedgerWrite]) -> None:
        """Do these in one transaction, or none of them; records go out in this order, totals behind them. At most `MAX_DEEDS`, each letter
        once.

        Raises `WriterConflictError` where another one has taken over, `DeliveryError` where Kafka did not take it or did not say:
        what became of it stands in the ledger.
        """
        assert not self._is_closed, "after an error nobody knows what the ledger has: make another writer, which reads it"
        assert len({deed.letter_id for deed in deeds}) == len(deeds) <= MAX_DEEDS, len(deeds)
        stories = {deed.letter_id: self.ledger.with_entry(deed.letter_id, deed.entry) for deed in deeds}
        self._on_step("begin")
        try:
            self._producer.begin_transaction()
            for number, deed in enumerate(deeds):
                if deed.record is not None:
                    self._send(self.source.topic, deed.record.key, deed.record, self._on_record)
                self._on_step("record")
                story = Outgoing(deed.letter_id.encode(), history_to_json(stories[deed.letter_id]), (), 0)
                self._send(self._ledger_topic.topic, story.key, story)
                if number % _POLL_EVERY == 0:
                    self._producer.poll(0)
            totals = totals_to_json(self.ledger.totals(stories))
            self._send(self._ledger_topic.topic, TOTALS_KEY, Outgoing(TOTALS_KEY, totals, (), 0))
            self._on_step("flush")
            self._producer.flush(transactions.TIMEOUT_S)
            if self._failures:
                self._fail(self._failures[0])
            self._on_step("commit")
            if (error := transactions.commit(self._producer)) is not None:
                self._fail(error)
        except (KafkaException, SystemError) as error:
            self._fail(client.cause_of(error))
        except BaseException:
            self._abort()
            raise
        self._on_step("committed")
        for letter_id, entries in stories.items():
            self.ledger.keep(letter_id, entries)
        known = self.ledger.sent.ends if self.ledger.sent.topic_id == self.source.topic_id else {}
        self.ledger.sent = Sent(self.source.topic_id, {**known, **self._delivered})

    def write_totals(self, open_since: int) -> None:
        """Keep that no letter is open that first failed before `open_since` (microseconds), and where the last replays lie.

        Raises as `commit` does.
        """
        if self.ledger.open_since != open_since or self._delivered:
            self.ledger.open_since = open_since
            self.commit(())

    def close(self) -> None:
        """Let go of the brokers. Everything committed is there already; what is not will not be. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(KafkaException, SystemError):
            self._producer.purge()
            self._producer.flush(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _send(self, topic: str, key: bytes, record: Outgoing, on_delivery: DeliveryCallback | None = None) -> None:
        partition = murmur2(key, self.source.kafka_partitions) if record.kafka_partition is None else record.kafka_partition
        headers: list[tuple[str, str | bytes | None]] = list(record.headers)
        deadline = time.monotonic() + _QUEUE_TIMEOUT_S
        while True:
            try:
                self._producer.produce(topic, record.value, key, partition, on_delivery or self._on_delivery, headers=headers)
                return
            except BufferError:
                if time.monotonic() > deadline or self._failures:
                    self._fail(self._failures[0] if self._failures else "the queue stayed full")
                self._producer.poll(0.05)

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        """Only takes a note: after a fatal error Python calls of any kind may die in here."""
        if error is not None:
            self._failures.append(error)

    def _on_record(self, error: KafkaError | None, message: Message) -> None:
        self._on_delivery(error, message)
        if error is None:
            self._delivered[message.partition() or 0] = (message.offset() or 0) + 1

    def _fail(self, error: KafkaError | str) -> NoReturn:
        """End what is left of the transaction as far as may be, and say what is known of it."""
        aborted = self._abort()
        # Which call is the first to hear of another one is a matter of luck.
        heard = [known for known in (error, self._errors.fatal, aborted, *self._failures) if isinstance(known, KafkaError)]
        cause = error.str() if isinstance(error, KafkaError) else error
        if (shut_out := next(filter(transactions.is_shut_out, heard), None)) is not None:
            raise WriterConflictError(
                f"Another one acts on the dead letters of {self.source.topic}",
                shut_out.str(),
                "Wait until it has ended and run this again: it goes on with what is left. Nothing was done twice",
            )
        raise DeliveryError(
            f"A transaction for dead letters of {self.source.topic} was not committed, or nobody knows",
            f"{cause}. {self._errors.text}".strip().removesuffix("."),
            "Run this again: the ledger knows what was done, and it goes on with what is left",
        )

    def _abort(self) -> KafkaError | None:
        try:
            return transactions.abort(self._producer)
        except SystemError as error:
            cause = client.cause_of(error)
            return cause if isinstance(cause, KafkaError) else None
        finally:
            self.close()


def in_transactions(deeds: Iterable[LedgerWrite], at_most: int = MAX_DEEDS) -> Iterator[list[LedgerWrite]]:
    """The same deeds, in lists of which each fits into one transaction."""
    return in_batches(deeds, lambda deed: deed.size, at_most=at_most, at_most_bytes=MAX_BYTES)


def check(facts: topics.TopicFacts) -> None:
    """Raises `TopicError` for a ledger that would forget what was done about a letter, or would not know in which order."""
    if "compact" not in facts.cleanup_policy or "delete" in facts.cleanup_policy or facts.kafka_partitions != 1:
        raise TopicError(
            f"The ledger {facts.topic} has {facts.kafka_partitions} Kafka partitions and cleanup.policy={facts.cleanup_policy}",
            "it must have one Kafka partition and be compacted only: what was done about a letter would be forgotten, or out of order",
            f"Set cleanup.policy=compact on {facts.topic}; more than one Kafka partition cannot be taken back, make the topic again",
        )
