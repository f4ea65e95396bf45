"""Reads ranges of offsets of one topic, one after the other, with one lasting client (ENG-4)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from connector.config.settings import KafkaConfig
from connector.kafka.client import (
    READ_TIMEOUT_S,
    READER,
    LastError,
    consumer,
    contents,
    coordinates,
    explain,
    unreachable,
)

MAX_BYTES: Final = 64_000_000
"""A range with larger keys and values is left to another reader."""
_COLUMNS: Final = (*("kafka_partition", "offset", "record_timestamp", "key", "value", "headers"),)
_AT_ONCE: Final = 10_000
_WAIT_S: Final = 0.01
_GONE: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


class RangeReader:
    """A reader of committed records. Use it from one thread. Nothing is asked before `read`."""

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self._errors = LastError()
        self._consumer: Consumer | None = None
        # By Kafka partition: where the next range begins, below which offset each record was
        # fetched, and those of them that no range had.
        self._next, self._fetched = dict[int, int](), dict[int, int]()
        self._early = dict[int, deque[Message]]()

    def read(
        self, ranges: Mapping[int, tuple[int, int]], asked_at: int
    ) -> dict[str, list[Any]] | None:
        """Return the records between these offsets, in the order of the Kafka partitions and of
        their offsets, as columns with the names of `engine.schema.KAFKA`.

        None: the first offset of a Kafka partition is no longer in Kafka, the records have more
        than `MAX_BYTES`, or a record has a header whose name is not UTF-8, which the client cannot
        read.

        Args:
            ranges: The first offset and the end offset (exclusive) of each Kafka partition. The end
                offsets exist in the topic.
            asked_at: The time of arrival (µs) of a record whose timestamp is not believed (REC-25).

        Raises:
            BrokerError: Kafka does not answer, refuses, or sends nothing for `READ_TIMEOUT_S`.
        """
        ranges = {k: ends for k, ends in sorted(ranges.items()) if ends[0] < ends[1]}
        try:
            messages = self._messages(ranges)
        except BaseException:
            self.close()  # the next call begins with another client
            raise
        columns = None if messages is None else _columns(messages, asked_at)
        if columns is None:
            self.close()
        return columns

    def close(self) -> None:
        """End the client. The next `read` begins with another one."""
        ended, self._consumer = self._consumer, None
        self._next.clear()
        if ended is not None:
            with suppress(KafkaException):
                ended.close()

    def _messages(self, ranges: Mapping[int, tuple[int, int]]) -> list[Message] | None:
        reader = self._at({k: begin for k, (begin, _) in ranges.items()})
        read = {k: list[Message]() for k in ranges}
        for number, (_, end) in ranges.items():
            early = self._early[number]
            while early and coordinates(early[0])[1] < end:
                read[number].append(early.popleft())
        size, answered_at = 0, time.monotonic()
        while missing := sum(max(0, end - self._fetched[k]) for k, (_, end) in ranges.items()):
            messages = reader.consume(min(missing, _AT_ONCE), _WAIT_S)
            if not messages and time.monotonic() - answered_at > READ_TIMEOUT_S:
                text = f"{self._topic}: no record arrived within {READ_TIMEOUT_S:.0f} s"
                raise unreachable(self._kafka, self._errors.text or text)
            for message in messages:
                answered_at = time.monotonic()
                if (error := message.error()) is None:
                    number, offset = coordinates(message)
                    self._fetched[number] = offset + 1
                    is_early = number not in ranges or offset >= ranges[number][1]
                    (self._early if is_early else read)[number].append(message)
                    size += len(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    number, offset = coordinates(message)
                    self._fetched[number] = max(self._fetched[number], offset)
                elif error.code() in _GONE:
                    return None
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # it needs no group
                    raise explain(error, self._kafka, f"read {self._topic}", "Read")
            if size > MAX_BYTES:
                return None
        self._next.update({k: end for k, (_, end) in ranges.items()})
        return [message for of_one in read.values() for message in of_one]

    def _at(self, begin: Mapping[int, int]) -> Consumer:
        """The client at these offsets. Kafka partitions that are not named stay where they are."""
        if self._consumer is None:
            self._errors = LastError()
            self._consumer = consumer(self._kafka, self._errors, {"group.id": READER})
        if any(self._next.get(k) != offset for k, offset in begin.items()):
            self._next.update(begin)
            self._fetched = dict(self._next)
            self._early = {k: deque() for k in self._next}
            at = [TopicPartition(self._topic, *of_one) for of_one in self._next.items()]
            self._consumer.assign(at)
        return self._consumer


def _columns(messages: list[Message], asked_at: int) -> dict[str, list[Any]] | None:
    """The records as columns. None: the headers of one cannot be read."""
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    partitions, offsets, times, keys, values, headers = columns.values()
    for message in messages:
        number, offset = coordinates(message)
        key, value, of_record, arrived = contents(message, asked_at)
        if of_record is None:
            return None
        partitions.append(number)
        offsets.append(offset)
        times.append(arrived)
        keys.append(key)
        values.append(value)
        headers.append([{"key": k, "value": v} for k, v in of_record] or None)
    return columns
