"""Reads the records of a topic in the order of each Kafka partition (REC-4, REC-21)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from connector.clock import now_us
from connector.errors import BrokerError, ConnectorError, TopicError
from connector.errors.kafka import group_of_another_reader
from connector.kafka import client, topics
from connector.kafka.consume import group as group_events
from connector.kafka.consume.decode import ConsumerRecord, Decoder
from connector.kafka.consume.options import Group, Start
from connector.kafka.consume.start_offsets import (
    ARRIVAL_MARGIN_S,
    check_numbers,
    first_offsets,
    records_gone,
)
from connector.records.codec import ChangeRecord
from connector.records.model import MAX_INT, Rule
from connector.records.rejection import Position, Reason, Rejection
from connector.watermarks.reader_state import is_piece

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from connector.config.settings import KafkaConfig
    from connector.kafka.topics import TopicFacts

REFRESH_S: Final = 10.0
"""How often the reader checks whether the topic was replaced or has new Kafka partitions."""


class Replays(NamedTuple):
    """The topic with the replays of a group, which is read beside the change topic (SUB-4).

    - `ends` are the offsets to stop at, by Kafka partition. None: it is read for ever.
    - `next_offsets` are the first offsets to read, for a reader that is no member of the group.
    """

    facts: TopicFacts
    ends: Mapping[int, int] | None = None
    next_offsets: Mapping[int, int] | None = None


class RecordReader:
    """Reads a topic record by record. Not thread-safe.

    - `facts` are those of the topic. They change if the topic gets more Kafka partitions.
    - `replay_facts` are those of the topic with the replays of the group, or None.
    - `is_whole_topic`: it reads all Kafka partitions of the topic, also new ones.
    - `finished` is True when all Kafka partitions have reached their end.
    - `warnings` are sentences about records that the group leaves out.
    - `assignments` counts how often a group gave or took Kafka partitions.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        facts: TopicFacts,
        admin: AdminClient,
        decoder: Decoder,
        *,
        start: Start | Group,
        kafka_partitions: Collection[int] | None = None,
        ends: Mapping[int, int] | None = None,
        replays: Replays | None = None,
    ) -> None:
        """Find the start position, or join the group. `ends` are the offsets to stop at, by Kafka
        partition.
        """
        group = start.name if isinstance(start, Group) else None
        self._kafka = (
            kafka
            if group is None
            else replace(kafka, settings={**kafka.settings, "group.id": group})
        )
        self._admin, self._decoder = admin, decoder
        self.facts, self.finished, self.assignments = facts, False, 0
        self._start: Start = start.start if isinstance(start, Group) else start
        self._group, self.replay_facts = group, None if replays is None else replays.facts
        # Below, a Kafka partition n of the replays is the number -1 - n.
        replay_ends = _as_replays((replays and replays.ends) or {})
        self._ends = None if ends is None else {**ends, **replay_ends}
        self._committed: dict[int, int] = {}
        self.is_whole_topic = group is None and kafka_partitions is None
        self._next: dict[int, int] = {}
        self._returned: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()
        self._undecoded: Message | None = None
        self._failure: Exception | None = None
        self._is_fatal = False
        self.warnings: list[str] = []
        self._errors = client.LastError()
        self._refreshed_at = time.monotonic()
        self._refreshed_at_us = now_us()
        numbers = range(facts.kafka_partitions) if kafka_partitions is None else kafka_partitions
        check_numbers(facts, numbers)
        first: dict[int, int] = {}
        if group is None:
            of_replays = range(0 if replays is None else replays.facts.kafka_partitions)
            stored = _as_replays((replays and replays.next_offsets) or {})
            first = self._first_offsets([*numbers, *(-1 - n for n in of_replays)], stored)
        self._client = client.consumer(self._kafka, self._errors, {"group.id": client.READER})
        if group is None:
            self._take(first)
            self._client.assign([self._partition(number) for number in first])
        else:
            self._client.subscribe(
                [facts.topic] if replays is None else [facts.topic, replays.facts.topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_revoke,
            )

    def poll(self, timeout_s: float) -> ConsumerRecord | None:
        """Return the next record of an assigned Kafka partition. None: the time has passed, or a
        bounded reader has reached its end.

        After an exception, the next call returns the same record. Raises as `poll` of a consumer
        does.
        """
        if self.finished:
            return None
        if time.monotonic() - self._refreshed_at > REFRESH_S:
            with suppress(BrokerError):  # check_reachable decides how long this may last
                self._refresh()
        # Do not use "or": a message with an empty value is false.
        message = self._client.poll(timeout_s) if self._undecoded is None else self._undecoded
        self._undecoded = None
        if self._failure is not None:
            raise self._failure
        if message is None:
            self._errors.check_reachable(self._client, self._kafka)
            return None
        self._errors.clear()
        if (error := message.error()) is not None:
            self._handle(error, message)
            return None
        number, offset = self._number(message.topic(), message.partition()), message.offset()
        assert offset is not None
        if number not in self._next:
            return None  # the group has assigned this Kafka partition to another consumer
        if self._ends is not None and offset >= self._ends[number]:
            self._reach(number, self._ends[number])
            return None
        try:
            received = self._receive(message, number)
        except ConnectorError:
            self._undecoded = message
            raise
        self._reach(number, offset + 1)
        self._returned[number] = self._returned.get(number, (offset, 0))[0], offset + 1
        return received

    @property
    def next_offsets(self) -> Mapping[int, int]:
        """The next offset to read of each Kafka partition of the topic that is assigned."""
        if self.replay_facts is None:
            return self._next
        return {number: offset for number, offset in self._next.items() if number >= 0}

    def has_returned(self, position: Position) -> bool:
        """Return whether `poll` has returned a record between the first and the last of which this
        offset is. It stays true when a group takes the Kafka partition away.
        """
        number = self._number(position.topic, position.kafka_partition)
        first, following = self._returned.get(number, (0, 0))
        return first <= position.offset < following

    def is_committed(self, position: Position) -> bool:
        """Return whether `commit` has stored that this record was read."""
        number = self._number(position.topic, position.kafka_partition)
        return position.offset < self._committed.get(number, 0)

    def uncommitted(self) -> int:
        """Return how many offsets `poll` has passed since the last `commit`, in the Kafka
        partitions that it reads.
        """
        return sum(
            max(0, following - max(first, self._committed.get(number, 0)))
            for number, (first, following) in list(self._returned.items())
            if number in self._next
        )

    def commit(self) -> None:
        """Store the positions of all returned records for the group. Raises `BrokerError`."""
        assert self._group is not None, (
            "positions of a reader without a group are the caller's to store"
        )
        # Store the topic's id, too: the next time, another topic may have the same name (REC-4).
        offsets = [
            TopicPartition(
                self._facts_of(number).topic,
                _kafka_partition(number),
                offset,
                self._facts_of(number).topic_id,
            )
            for number, offset in self._next.items()
            if offset >= 0
        ]
        if not offsets:
            return
        try:
            stored = self._client.commit(offsets=offsets, asynchronous=False)
            # Kafka may have stored some of them only.
            for partition in stored or ():
                if partition.error is not None:
                    raise KafkaException(partition.error)
        except KafkaException as error:
            raise group_events.not_stored(error.args[0], self._group) from error
        self._committed.update(
            {
                self._number(partition.topic, partition.partition): partition.offset
                for partition in offsets
            }
        )

    def close(self) -> None:
        """Leave the group, and close the client. Positions are not committed."""
        if not self._is_fatal:  # else the client's `close` would never return
            self._client.close()

    def _number(self, topic: str | None, kafka_partition: int | None) -> int:
        assert kafka_partition is not None
        return kafka_partition if topic == self.facts.topic else -1 - kafka_partition

    def _facts_of(self, number: int) -> TopicFacts:
        return self.facts if number >= 0 or self.replay_facts is None else self.replay_facts

    def _partition(self, number: int) -> TopicPartition:
        return TopicPartition(
            self._facts_of(number).topic, _kafka_partition(number), self._next[number]
        )

    def _take(self, offsets: dict[int, int]) -> None:
        self._next.update(offsets)
        if self._ends is not None:
            self._open.update(
                number for number, offset in offsets.items() if offset < self._ends.get(number, 0)
            )
            self.finished = not self._open

    def _first_offsets(self, numbers: Collection[int], stored: Mapping[int, int]) -> dict[int, int]:
        """Return the first offset to read of Kafka partitions, those of the replays included."""
        first: dict[int, int] = {}
        if changes := sorted(number for number in set(numbers) if number >= 0):
            of_changes = {number: offset for number, offset in stored.items() if number >= 0}
            first = first_offsets(self._kafka, self.facts, self._start, changes, of_changes)
        replays = sorted(_kafka_partition(number) for number in set(numbers) if number < 0)
        if replays and self.replay_facts is not None:
            committed = {_kafka_partition(n): offset for n, offset in stored.items() if n < 0}
            of_replays = first_offsets(
                self._kafka, self.replay_facts, "beginning", replays, committed
            )
            first |= _as_replays(of_replays)
        return first

    # Group membership. These run inside the client's poll, which loses exceptions. So they are
    # stored in _failure.

    def _on_assign(self, _consumer: object, partitions: list[TopicPartition]) -> None:
        self._guarded(lambda: self._assign(partitions))

    def _assign(self, partitions: list[TopicPartition]) -> None:
        numbers = [self._number(partition.topic, partition.partition) for partition in partitions]
        committed: dict[int, int] = {}
        for partition in group_events.committed(self._client, partitions, self._kafka, self._group):
            number = self._number(partition.topic, partition.partition)
            if is_piece(partition.metadata or ""):
                cause = "It stores the state of a reader of whole transactions"
                raise group_of_another_reader(str(self._group), cause)
            if partition.metadata:
                topics.check_identity(partition.metadata, self._facts_of(number))
            committed[number] = partition.offset
        if any(number >= self.facts.kafka_partitions for number in numbers):
            self.facts = topics.describe(self._kafka, self.facts.topic, self._admin)
        if self.replay_facts is not None and any(
            number < -self.replay_facts.kafka_partitions for number in numbers
        ):
            self.replay_facts = topics.describe(self._kafka, self.replay_facts.topic, self._admin)
        offsets = self._first_offsets(numbers, committed)
        self._take(offsets)
        self.assignments += 1
        chosen = [self._partition(number) for number in offsets]
        if self._is_cooperative():
            self._client.incremental_assign(chosen)
        else:
            self._client.assign(chosen)
        with suppress(BrokerError, TopicError):  # a warning is no reason to stop reading
            self._warn_of_skipped(offsets, committed)

    def _warn_of_skipped(self, offsets: Mapping[int, int], committed: Mapping[int, int]) -> None:
        """Warn that a group without stored positions leaves out records. It may be a new one."""
        fresh = [number for number in offsets if number >= 0 and number not in committed]
        if not fresh or self._start == "beginning" or isinstance(self._start, tuple):
            return
        first = topics.beginning_offsets(self._kafka, self.facts)
        skipped = sum(offsets[number] > first[number] for number in fresh)
        if not skipped:
            return
        warning = (
            f"The group {self._group} has no stored position in {skipped} Kafka partitions of"
            f" {self.facts.topic}, and reads from `start` on, without the records before. If it"
            " had positions, Kafka has forgotten them (offsets.retention.minutes of the brokers)"
        )
        self.warnings = [warning]
        client.log.warning("%s", warning)

    def _on_revoke(self, _consumer: object, taken: list[TopicPartition]) -> None:
        self.assignments += 1
        for partition in taken:
            number = self._number(partition.topic, partition.partition)
            self._next.pop(number, None)
            self._committed.pop(number, None)
            self._open.discard(number)
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
            self._failure = error
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() not in group_events.PASSING:
                self._failure = self._explained(cause, f"join the group {self._group}")

    def _explained(self, error: KafkaError, what: str) -> BrokerError:
        return group_events.explain(error, self._kafka, self._group, what)

    # Records.

    def _receive(self, message: Message, number: int) -> ConsumerRecord:
        facts = self._facts_of(number)
        source = client.record_of(message, facts.topic, facts.topic_id)
        # The replay of a change names the Kafka partitions of the change topic.
        verdict = self._decoder.decode(source, facts.kafka_partitions if number >= 0 else MAX_INT)
        # The topic may have got more Kafka partitions (REC-14). A record from before the last
        # refresh needs no new check.
        if (
            _names_too_many(verdict)
            and source.record_timestamp > self._refreshed_at_us - ARRIVAL_MARGIN_S * 1_000_000
        ):
            self._refresh()
            verdict = self._decoder.decode(source, self.facts.kafka_partitions)
        if isinstance(verdict, Rejection):
            return ConsumerRecord(verdict, 0, source)
        return ConsumerRecord(verdict.record, verdict.kafka_partitions, source)

    def _reach(self, number: int, following: int) -> None:
        self._next[number] = max(self._next[number], following)
        if (
            self._ends is not None
            and number in self._open
            and self._next[number] >= self._ends[number]
        ):
            self._open.discard(number)
            self._client.pause([self._partition(number)])
            self.finished = not self._open

    def _handle(self, error: KafkaError, message: Message) -> None:
        """Handle an error. The end of a Kafka partition is not an error."""
        offset, code = message.offset(), error.code()
        kafka_partition = message.partition()
        number = (
            None
            if kafka_partition is None or kafka_partition < 0
            else self._number(message.topic(), kafka_partition)
        )
        if code == KafkaError._PARTITION_EOF:
            if number in self._next and offset is not None:
                self._reach(number, offset)
            return
        if (
            code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
            and number in self._next
        ):
            self._refresh()
            facts, kafka_partition = self._facts_of(number), _kafka_partition(number)
            ends = (
                ask(self._kafka, facts) for ask in (topics.beginning_offsets, topics.end_offsets)
            )
            raise records_gone(self._kafka, facts, {kafka_partition: self._next[number]}, *ends)
        if code in (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
            KafkaError.UNKNOWN_TOPIC_ID,
        ):
            self._refresh()
            return
        if code == KafkaError.GROUP_AUTHORIZATION_FAILED and self._group is None:
            return  # a reader without a group needs no right to one
        if code in group_events.PASSING:
            group_events.log_passing(error, self._group)
            return
        failure = self._explained(error, f"read {self.facts.topic}")
        if code == KafkaError._FATAL:  # the client reads nothing any more
            self._is_fatal, self._failure = True, failure
        raise failure

    def _refresh(self) -> None:
        """Check whether the topic was replaced (REC-4), or has new Kafka partitions."""
        self._refreshed_at, self._refreshed_at_us = time.monotonic(), now_us()
        facts = topics.describe(self._kafka, self.facts.topic, self._admin)
        topics.check_identity(self.facts.topic_id, facts)
        if self.replay_facts is not None:
            replays = topics.describe(self._kafka, self.replay_facts.topic, self._admin)
            topics.check_identity(self.replay_facts.topic_id, replays)
            self.replay_facts = replays
        added = range(self.facts.kafka_partitions, facts.kafka_partitions)
        self.facts = facts
        if added and self.is_whole_topic and self._ends is None:
            self._next.update(dict.fromkeys(added, 0))
            self._client.incremental_assign([self._partition(number) for number in added])


def _kafka_partition(number: int) -> int:
    return number if number >= 0 else -1 - number


def _as_replays(offsets: Mapping[int, int]) -> dict[int, int]:
    return {-1 - kafka_partition: offset for kafka_partition, offset in offsets.items()}


def _names_too_many(verdict: ChangeRecord | Rejection) -> bool:
    return (
        isinstance(verdict, Rejection)
        and verdict.reason is Reason.INVALID
        and verdict.rule == Rule.KAFKA_PARTITIONS
    )
