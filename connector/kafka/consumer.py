"""Reads a change stream record by record, for programs (REC-4, REC-21).

    with ChangeConsumer(kafka, "changes", bounded=True) as consumer:
        for received in consumer:
            match received.record: case DataChange(): … case Rejection(): …

A bad record is a `Rejection` in the stream, never an exception. Exceptions are for bad situations:
no broker, no registry, a topic that was replaced, or records that retention deleted before they
were read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Self

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from connector.clock import now_us
from connector.errors import BrokerError, ConnectorError, ErrorCode, TopicError
from connector.kafka import client, topics
from connector.kafka.schema_registry import RegistryClient
from connector.records.codec import ChangeRecord, Schemas, confluent_id
from connector.records.model import ChildPartitions, DataChange, Heartbeat, Rule
from connector.records.rejection import Position, Reason, Rejection
from connector.validation import KafkaRecord, Limits, validate_record

if TYPE_CHECKING:
    from types import TracebackType

    from connector.config.settings import KafkaConfig, RegistryConfig

Start = Literal["beginning", "end"] | int | tuple[Position, ...]
"""Where to start. An `int` is a record timestamp in microseconds. Positions are a value of
`ChangeConsumer.positions`.
"""

UNREACHABLE_AFTER_S: Final = 30.0
ARRIVAL_MARGIN_S: Final = 60.0
"""The assumed maximum difference between the clocks of the brokers and of this machine, when
arrival times are compared.
"""

_NO_GROUP: Final = "lowmark.reader"


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """The decoded record of a Kafka record, and the Kafka record.

    - `record` is the change, control record or `Rejection`.
    - `kafka_partitions` is the number that its producer used (REC-24). It is 0 for a rejection.
    - `source` is the Kafka record.
    """

    record: DataChange | Heartbeat | ChildPartitions | Rejection
    kafka_partitions: int
    source: KafkaRecord

    @property
    def position(self) -> Position:
        """The coordinates of the Kafka record."""
        return self.source.position

    @property
    def record_timestamp(self) -> int:
        """The time of arrival in Kafka, in microseconds."""
        return self.source.record_timestamp


class ChangeConsumer:
    """An iterator of `ConsumerRecord`. Records of one Kafka partition come in order. Not
    thread-safe.

    Use it as a context manager. `finished` is True when a bounded consumer has reached its end.
    `warnings` are sentences about wrong settings of the topic.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str,
        *,
        start: Start = "beginning",
        group: str | None = None,
        kafka_partitions: Iterable[int] | None = None,
        bounded: bool = False,
        registry: RegistryConfig | None = None,
        limits: Limits | None = None,
        tables: frozenset[str] | None = None,
        metadata_refresh_s: float = 10.0,
    ) -> None:
        """Check the topic and find the start position.

        Args:
            kafka: The brokers and client settings.
            topic: The name of the change topic.
            start: Where to start. In a group, it applies only to Kafka partitions without a
                committed position. Kafka partitions that are missing in stored positions are read
                from the beginning, because they are new.
            group: The consumer group. Kafka distributes the Kafka partitions, and `commit` stores
                positions.
            kafka_partitions: Without a group, the Kafka partitions to read. None: all, including
                new ones.
            bounded: Stop at the current end of the topic.
            registry: The schema registry.
            limits: The limits of the stream.
            tables: The declared source tables. None: changes of any table are accepted.
            metadata_refresh_s: How often to check whether the topic was replaced or has new Kafka
                partitions.

        Raises:
            TopicError: There is no such topic, it is compacted or was replaced, or records were
                deleted.
            BrokerError: No broker answers.
            ConfigError: A client setting is not allowed.
        """
        assert group is None or kafka_partitions is None, (
            "in a group, Kafka shares the Kafka partitions out"
        )
        self._kafka = (
            kafka
            if group is None
            else replace(kafka, settings={**kafka.settings, "group.id": group})
        )
        self._admin = client.admin(kafka)
        self._facts = topics.describe(kafka, topic, self._admin)
        self.warnings = topics.check(self._facts)
        self.finished = False
        self._start, self._group, self._limits, self._tables = (
            start,
            group,
            limits or Limits(),
            tables,
        )
        self._whole_topic = group is None and kafka_partitions is None
        self._registry = RegistryClient(registry) if registry is not None else None
        self._by_id: dict[int, str | None] = {}
        self._schemas = Schemas(self._by_id)
        self._ends = topics.end_offsets(kafka, self._facts) if bounded else None
        self._next: dict[int, int] = {}
        self._open: set[int] = set()
        self._unjudged: Message | None = None
        self._trouble: Exception | None = None
        self._errors = client.LastError()
        self._look_again_s = metadata_refresh_s
        self._heard_at = self._looked_at = time.monotonic()
        self._looked_at_us = now_us()
        mine = (
            sorted(set(kafka_partitions))
            if kafka_partitions is not None
            else list(range(self._facts.kafka_partitions))
        )
        if beyond := [number for number in mine if not 0 <= number < self._facts.kafka_partitions]:
            raise TopicError(
                ErrorCode.KAFKA_PARTITION_UNKNOWN,
                f"{topic} has no Kafka partition {beyond[0]}",
                f"It has {self._facts.kafka_partitions} Kafka partitions, counted from 0",
                "Use the numbers of existing Kafka partitions",
                topic=topic,
            )
        places = self._places(mine) if group is None else {}
        self._client = client.consumer(self._kafka, self._errors, {"group.id": _NO_GROUP})
        if group is None:
            self._take(places)
            self._client.assign([self._place(number) for number in places])
        else:
            self._client.subscribe(
                [topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_revoke,
            )

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records and wait for more. It ends only if the consumer is bounded. Raises as
        `poll` does.
        """
        while not self.finished:
            received = self.poll(0.5)
            if received is not None:
                yield received

    def poll(self, timeout_s: float) -> ConsumerRecord | None:
        """Return the next record.

        After an exception, the next call returns the same record.

        Args:
            timeout_s: The approximate maximum time to wait.

        Returns:
            The record. None: the time has passed, or a bounded consumer has reached its end.

        Raises:
            BrokerError: No broker has answered for 30 s.
            RegistryError: A schema is needed, and the registry does not answer.
            TopicError: The topic was deleted or replaced, or records were deleted before they were
                read.
        """
        if self.finished:
            return None
        if time.monotonic() - self._looked_at > self._look_again_s:
            with suppress(BrokerError):  # _check_reachable decides how long this may last
                self._look_again()
        # Do not use "or": a message with an empty value is false.
        message = self._client.poll(timeout_s) if self._unjudged is None else self._unjudged
        self._unjudged = None
        if self._trouble is not None:
            raise self._trouble
        if message is None:
            self._check_reachable()
            return None
        self._heard_at = time.monotonic()
        self._errors.clear()
        if (error := message.error()) is not None:
            self._meet(error, message)
            return None
        number, offset = message.partition(), message.offset()
        assert number is not None
        assert offset is not None
        if number not in self._next:
            return None  # the group has assigned this Kafka partition to another consumer
        if self._ends is not None and offset >= self._ends[number]:
            self._reach(number, self._ends[number])
            return None
        try:
            received = self._receive(message, number, offset)
        except ConnectorError:
            self._unjudged = message
            raise
        self._reach(number, offset + 1)
        return received

    @property
    def positions(self) -> tuple[Position, ...]:
        """The last offset that was read in each Kafka partition, or -1. Store it, and pass it as
        `start` later.
        """
        facts = self._facts
        return tuple(
            Position(facts.topic, facts.topic_id, number, following - 1)
            for number, following in sorted(self._next.items())
        )

    def commit(self) -> None:
        """Store the positions of all returned records for the group.

        Raises:
            BrokerError: Kafka did not store them.
        """
        assert self._group is not None, (
            "positions of a reader without a group are the caller's to store"
        )
        # Store the topic's id, too: the next time, another topic may have the same name (REC-4).
        places = [
            TopicPartition(self._facts.topic, number, offset, self._facts.topic_id)
            for number, offset in self._next.items()
            if offset >= 0
        ]
        if not places:
            return
        try:
            self._client.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            raise BrokerError(
                ErrorCode.POSITIONS_NOT_STORED,
                f"The positions of the group {self._group} were not stored",
                error.args[0].str(),
                "You need not do anything: the reader reads the records after its last stored"
                " positions again",
            ) from error

    def close(self) -> None:
        """Leave the group, and close the client. Positions are not committed."""
        self._client.close()
        if self._registry is not None:
            self._registry.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Where to start.

    def _places(
        self, numbers: list[int], committed: dict[int, int] | None = None
    ) -> dict[int, int]:
        """Return the first offset to read of each Kafka partition.

        Raises `TopicError` if records after a stored position were deleted.
        """
        first = topics.beginning_offsets(self._kafka, self._facts)
        stored = dict(committed or {})
        if isinstance(self._start, tuple):
            for position in self._start:
                if position.topic != self._facts.topic:
                    raise TopicError(
                        ErrorCode.POSITION_OF_ANOTHER_TOPIC,
                        f"A stored position belongs to the topic {position.topic}, not to"
                        f" {self._facts.topic}",
                        "",
                        f"Pass positions of {self._facts.topic}",
                        topic=self._facts.topic,
                    )
                topics.check_identity(position.topic_id, self._facts)
                stored.setdefault(position.kafka_partition, position.offset + 1)
            begin = first
        elif self._start == "beginning":
            begin = first
        elif self._start == "end":
            begin = topics.end_offsets(self._kafka, self._facts)
        else:
            begin = topics.offsets_at(self._kafka, self._facts, self._start)
        last = topics.end_offsets(self._kafka, self._facts) if stored else {}
        for number in numbers:
            if number in stored and not first[number] <= stored[number] <= last[number]:
                raise self._gone(number, stored[number], first[number], last[number])
        return {number: stored.get(number, begin[number]) for number in numbers}

    def _place(self, number: int) -> TopicPartition:
        return TopicPartition(self._facts.topic, number, self._next[number])

    def _take(self, places: dict[int, int]) -> None:
        self._next.update(places)
        if self._ends is not None:
            self._open.update(
                number for number, offset in places.items() if offset < self._ends.get(number, 0)
            )
            self.finished = not self._open

    def _gone(self, number: int, wanted: int, first: int, last: int) -> TopicError:
        remedy = (
            "Send the missing changes again from the source (a backfill), then start again"
            " from the beginning of the topic"
        )
        if wanted > last:
            return TopicError(
                ErrorCode.TOPIC_SHORTENED,
                f"{self._facts.topic} ends before the stored position: Kafka partition {number}"
                f" ends at offset {last}, and the position is {wanted}",
                "The brokers lost records that were read before (an unclean leader election),"
                " or the stored position is wrong",
                remedy,
                topic=self._facts.topic,
            )
        return TopicError(
            ErrorCode.RECORDS_DELETED,
            f"Records of {self._facts.topic} were deleted before they were read: Kafka partition"
            f" {number}, offsets {wanted} to {first - 1}",
            "Retention or another program deleted them before this reader continued",
            remedy,
            topic=self._facts.topic,
        )

    # Group membership. These run inside the client's poll, which loses exceptions. So they are
    # stored in _trouble.

    def _on_assign(self, _consumer: object, given: list[TopicPartition]) -> None:
        self._guarded(lambda: self._assign(given))

    def _assign(self, given: list[TopicPartition]) -> None:
        numbers = [place.partition for place in given]
        committed: dict[int, int] = {}
        for place in self._client.committed(given, timeout=client.REACH_TIMEOUT_S) if given else ():
            if place.offset >= 0:
                if place.metadata:
                    topics.check_identity(place.metadata, self._facts)
                committed[place.partition] = place.offset
        if any(number >= self._facts.kafka_partitions for number in numbers):
            self._facts = topics.describe(self._kafka, self._facts.topic, self._admin)
        places = self._places(numbers, committed) if numbers else {}
        self._take(places)
        chosen = [self._place(number) for number in places]
        if self._is_cooperative():
            self._client.incremental_assign(chosen)
        else:
            self._client.assign(chosen)

    def _on_revoke(self, _consumer: object, taken: list[TopicPartition]) -> None:
        for place in taken:
            self._next.pop(place.partition, None)
            self._open.discard(place.partition)
        self._guarded(
            lambda: (
                self._client.incremental_unassign(taken)
                if self._is_cooperative()
                else self._client.unassign()
            )
        )

    def _is_cooperative(self) -> bool:
        settings = self._kafka.settings
        return settings.get("group.protocol") == "consumer" or "cooperative" in settings.get(
            "partition.assignment.strategy", ""
        )

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except ConnectorError as error:
            self._trouble = error
        except KafkaException as error:
            self._trouble = BrokerError(
                ErrorCode.GROUP_UNAVAILABLE,
                f"The reader cannot join the group {self._group}",
                error.args[0].str(),
                "Check the rights on the group",
            )

    # Records.

    def _receive(self, message: Message, number: int, offset: int) -> ConsumerRecord:
        facts = self._facts
        key, value, headers, arrived = client.contents(message)
        source = KafkaRecord(
            Position(facts.topic, facts.topic_id, number, offset), arrived, key, value, headers
        )
        verdict = self._judge(source)
        # The topic may have got more Kafka partitions (REC-14). A record from before the last
        # refresh needs no new check.
        if _names_too_many(verdict) and arrived > self._looked_at_us - ARRIVAL_MARGIN_S * 1_000_000:
            self._look_again()
            verdict = self._judge(source)
        if isinstance(verdict, Rejection):
            return ConsumerRecord(verdict, 0, source)
        return ConsumerRecord(verdict.record, verdict.kafka_partitions, source)

    def _judge(self, source: KafkaRecord) -> ChangeRecord | Rejection:
        schema_id = confluent_id(source.value)
        if (
            schema_id is not None
            and self._registry is not None
            and self._by_id.get(schema_id) is None
        ):
            self._by_id[schema_id] = self._registry.schema(schema_id)
        return validate_record(
            source,
            schemas=self._schemas,
            limits=self._limits,
            kafka_partitions=self._facts.kafka_partitions,
            tables=self._tables,
        )

    def _reach(self, number: int, following: int) -> None:
        self._next[number] = max(self._next[number], following)
        if (
            self._ends is not None
            and number in self._open
            and self._next[number] >= self._ends[number]
        ):
            self._open.discard(number)
            self._client.pause([TopicPartition(self._facts.topic, number)])
            self.finished = not self._open

    def _meet(self, error: KafkaError, message: Message) -> None:
        """Handle an error. The end of a Kafka partition is not an error."""
        number, offset = message.partition(), message.offset()
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            if number in self._next and offset is not None:
                self._reach(number, offset)
            return
        if (
            code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
            and number in self._next
        ):
            self._look_again()
            first, last = (
                ask(self._kafka, self._facts)[number]
                for ask in (topics.beginning_offsets, topics.end_offsets)
            )
            raise self._gone(number, self._next[number], first, last)
        if code in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
            KafkaError.UNKNOWN_TOPIC_ID,
        ):
            self._look_again()
            return
        raise BrokerError(
            ErrorCode.TOPIC_UNREADABLE,
            f"{self._facts.topic} cannot be read",
            error.str(),
            "Check the rights on the topic and the group, and the brokers",
            topic=self._facts.topic,
        )

    def _look_again(self) -> None:
        """Check whether the topic was replaced (REC-4), or has new Kafka partitions."""
        self._looked_at, self._looked_at_us = time.monotonic(), now_us()
        facts = topics.describe(self._kafka, self._facts.topic, self._admin)
        topics.check_identity(self._facts.topic_id, facts)
        added = range(self._facts.kafka_partitions, facts.kafka_partitions)
        self._facts = facts
        if added and self._whole_topic and self._ends is None:
            self._next.update(dict.fromkeys(added, 0))
            self._client.incremental_assign([self._place(number) for number in added])

    def _check_reachable(self) -> None:
        now = time.monotonic()
        if not self._errors.all_down or now - self._heard_at < UNREACHABLE_AFTER_S:
            return
        heard = self._errors.text
        try:
            # The client does not report when a broker is back, so ask.
            self._client.list_topics(self._facts.topic, timeout=client.REACH_TIMEOUT_S)
        except KafkaException as error:
            raise client.unreachable(self._kafka, heard or error.args[0].str()) from error
        self._errors.clear()
        self._heard_at = now


def _names_too_many(verdict: ChangeRecord | Rejection) -> bool:
    return (
        isinstance(verdict, Rejection)
        and verdict.reason is Reason.INVALID
        and verdict.rule == Rule.KAFKA_PARTITIONS
    )
