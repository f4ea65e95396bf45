"""Where reading begins for a range of commit time, and which ranges are refused (SUB-1).

Theory. A change arrives at most `max_clock_skew` before its commit timestamp (REC-15), and at any
time after it. Therefore all changes from T1 on are among the records that arrived from T1 −
`max_clock_skew` on. To know a low watermark, a reader must also read an announcement in each Kafka
partition, or know the roots. Therefore it begins at the newest announcement before that place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final

from connector.errors import ErrorCode, OutOfRangeError
from connector.kafka import client, topics
from connector.kafka.bounded_read import messages_between
from connector.kafka.consume.decode import Decoder
from connector.kafka.consume.places import check_numbers, positions_at
from connector.kafka.consume.reader import RecordReader
from connector.kafka.consume.record import ARRIVAL_MARGIN_S
from connector.records.model import ChildPartitions
from connector.records.rejection import Position
from connector.records.views import view_of_time

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from connector.config.settings import KafkaConfig
    from connector.kafka.topics import TopicFacts
    from connector.validation import Limits

_SECOND: Final = 1_000_000
_WINDOW: Final = 1000
_GROWTH: Final = 10


def create_time_warning(facts: TopicFacts) -> list[str]:
    """Return a warning if the record timestamps of the topic are those of its producers."""
    if facts.timestamp_type == "LogAppendTime":
        return []
    warning = (
        f"The topic {facts.topic} has message.timestamp.type={facts.timestamp_type}. Reading by"
        f" commit time begins {ARRIVAL_MARGIN_S:.0f} s earlier, because the clocks of producers"
        " may be wrong. Changes of a producer whose clock is further behind are left out"
    )
    return [warning]


def first_arrival(facts: TopicFacts, limits: Limits, start_commit: int) -> int:
    """Return the least record timestamp (µs) that a change from `start_commit` on may have."""
    margin = 0.0 if facts.timestamp_type == "LogAppendTime" else ARRIVAL_MARGIN_S
    return max(0, start_commit - int((limits.max_clock_skew_s + margin) * _SECOND))


def first_positions(
    kafka: KafkaConfig,
    facts: TopicFacts,
    admin: AdminClient,
    decoder: Decoder,
    start_commit: int,
    now: int,
    *,
    kafka_partitions: Iterable[int] | None,
    has_roots: bool,
) -> tuple[Position, ...]:
    """Return the positions after which a reader from `start_commit` on reads.

    Args:
        kafka: The brokers and client settings.
        facts: The topic.
        admin: A client for topics.
        decoder: Decodes the records in which announcements are looked for.
        start_commit: The least commit timestamp (µs).
        now: The clock of the reader (µs).
        kafka_partitions: The Kafka partitions to read. None: all.
        has_roots: Whether the reader knows the roots, and needs no announcement.

    Returns:
        The positions, without those of Kafka partitions that are read from their beginning.

    Raises:
        OutOfRangeError: The topic may not hold all changes from `start_commit` on any more.
        TopicError: The topic lacks one of the Kafka partitions.
        BrokerError: No broker answers.
    """
    arrival = first_arrival(facts, decoder.limits, start_commit)
    first = topics.beginning_offsets(kafka, facts)
    places = topics.offsets_at(kafka, facts, arrival)
    if facts.timestamp_type != "LogAppendTime":
        # Kafka looks for the time among numbers that clients wrote (REC-25). Where not even the
        # first one is believed, it says nothing.
        later = {number for number, place in places.items() if place > first[number]}
        believed = _first_arrivals(kafka, facts, first, later, at_most=1)
        places |= {number: first[number] for number in later - believed.keys()}
    if kafka_partitions is not None:
        kafka_partitions = list(kafka_partitions)
        check_numbers(facts, kafka_partitions)
        places = {number: places[number] for number in kafka_partitions}
    _check_age(kafka, facts, start_commit, now, start_commit - arrival, first, places)
    if not has_roots:
        places = _announced_places(kafka, facts, admin, decoder, first, places)
    return positions_at(facts, places, first)


def _check_age(
    kafka: KafkaConfig,
    facts: TopicFacts,
    start_commit: int,
    now: int,
    skew: int,
    first: Mapping[int, int],
    places: Mapping[int, int],
) -> None:
    """Raise `OutOfRangeError` if records that were deleted may be in the range.

    A record was deleted only if the first offset is not 0. It arrived no later than the first
    record that is left. If none is left, it is assumed that retention deleted it.
    """
    doubtful = {number for number, place in places.items() if 0 < first[number] == place}
    if not doubtful:
        return
    arrivals = _first_arrivals(kafka, facts, first, doubtful)
    expired = now - facts.retention_ms * 1000 if facts.retention_ms >= 0 else now
    oldest = max(arrivals.get(number, expired) for number in doubtful) + skew + 1
    if start_commit < oldest:
        raise OutOfRangeError(
            ErrorCode.START_TOO_OLD,
            f"{facts.topic} may not hold all changes from {view_of_time(start_commit)} on",
            "Retention or another program has deleted older records",
            f"Use a start_commit of {view_of_time(oldest)} or later, or read the tables",
            topic=facts.topic,
            oldest=oldest,
        )


def _first_arrivals(
    kafka: KafkaConfig,
    facts: TopicFacts,
    first: Mapping[int, int],
    numbers: Iterable[int],
    *,
    at_most: int | None = None,
) -> dict[int, int]:
    """Return the time of arrival of the first record of each Kafka partition whose record timestamp
    is believed, among the first `at_most` offsets. None: among all.
    """
    found: dict[int, int] = {}
    ends = topics.end_offsets(kafka, facts)
    errors = client.LastError()
    with closing(client.consumer(kafka, errors, {"group.id": "lowmark.reader"})) as consumer:
        for number in numbers:
            end = ends[number] if at_most is None else min(ends[number], first[number] + at_most)
            ranges = {number: (first[number], end)}
            for message in messages_between(consumer, kafka, errors, ranges, facts.topic):
                if (arrived := client.arrival_of(message)) is not None:
                    found[number] = arrived
                    break
    return found


def _announced_places(
    kafka: KafkaConfig,
    facts: TopicFacts,
    admin: AdminClient,
    decoder: Decoder,
    first: Mapping[int, int],
    places: Mapping[int, int],
) -> dict[int, int]:
    """Return, by Kafka partition, the newest announcement before a place, or the first offset.

    Of an announcement in several parts (WMK-6), it is the first part in the window. Each Kafka
    partition is read backwards, in growing windows.
    """
    found = {number: place for number, place in places.items() if place <= first[number]}
    ends = {number: place for number, place in places.items() if number not in found}
    window = _WINDOW
    while ends:
        starts = {number: max(first[number], end - window) for number, end in ends.items()}
        reader = RecordReader(
            kafka,
            facts,
            admin,
            decoder,
            start=positions_at(facts, starts, first),
            kafka_partitions=starts,
            ends=ends,
        )
        newest: dict[int, tuple[str, int]] = {}
        with closing(reader):
            while not reader.finished:
                received = reader.poll(0.5)
                if received is not None and (said := _announcement(received.record)) is not None:
                    k, offset = received.position.kafka_partition, received.position.offset
                    if newest.get(k) != said:
                        newest[k], found[k] = said, offset
        found.update(
            {
                number: start
                for number, start in starts.items()
                if number not in found and start <= first[number]
            }
        )
        ends = {number: start for number, start in starts.items() if number not in found}
        window *= _GROWTH
    return {number: found[number] for number in places}


def _announcement(record: object) -> tuple[str, int] | None:
    """Return the root and the start timestamp of an announcement, which all its parts have."""
    if not isinstance(record, ChildPartitions) or any(
        child.parent_partition_tokens for child in record.children
    ):
        return None
    return record.stream_partition, record.start_timestamp
