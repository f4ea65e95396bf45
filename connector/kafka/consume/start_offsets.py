"""Where reading begins in each Kafka partition, and the errors if records were deleted.

Theory of ranges of commit time (SUB-1). A change arrives at most `max_clock_skew` before its commit
timestamp (REC-15), and at any time after it. Therefore all changes from T1 on are among the records
that arrived from T1 − `max_clock_skew` on. To know a low watermark, a reader must also read an
announcement in each Kafka partition, or know the roots. Therefore it begins at the newest
announcement before that offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from connector.clock import now_us
from connector.errors import TopicError, argument_invalid
from connector.errors.kafka import records_deleted, start_too_old, topic_shortened
from connector.kafka import topics
from connector.kafka.client import records_between, windows_before
from connector.kafka.consume.options import Start
from connector.kafka.probe_offsets import first_arrivals
from connector.records.model import ChildPartitions
from connector.records.rejection import Position, Rejection
from connector.records.views import view_of_time
from connector.state.accepted_losses import lost_between, text_of, times_of
from connector.watermarks.reader_state import ReaderState

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.kafka.consume.decode import Decoder
    from connector.kafka.topics import TopicFacts
    from connector.validation import Limits

ARRIVAL_MARGIN_S: Final = 60.0
"""The assumed maximum difference between the clocks of the brokers and of this machine, when
arrival times are compared.
"""

_SECOND: Final = 1_000_000
_WINDOW: Final = 1000


def first_offsets(
    kafka: KafkaConfig,
    facts: TopicFacts,
    start: Start,
    numbers: Iterable[int],
    committed: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """Return the first offset to read of each of the Kafka partitions `numbers`.

    The offsets that a group has `committed` have priority. Kafka partitions without a stored
    position are read from the beginning. Raises `ConfigError` if the positions are of another
    topic, `TopicError` if records after one were deleted, and `BrokerError`.
    """
    first = topics.beginning_offsets(kafka, facts)
    stored = dict(committed or {})
    if isinstance(start, tuple):
        for position in start:
            if position.topic != facts.topic:
                raise argument_invalid("start", position, f"positions of {facts.topic}")
            topics.check_identity(position.topic_id, facts)
            stored.setdefault(position.kafka_partition, position.offset + 1)
        begin = first
    elif start == "beginning":
        begin = first
    elif start == "end":
        begin = topics.end_offsets(kafka, facts)
    else:
        begin = topics.offsets_at(kafka, facts, start)
    last = topics.end_offsets(kafka, facts) if stored else {}
    wanted = {number: stored[number] for number in numbers if number in stored}
    if any(not first[number] <= offset <= last[number] for number, offset in wanted.items()):
        raise records_gone(kafka, facts, wanted, first, last)
    return {number: stored.get(number, begin[number]) for number in numbers}


def positions_at(
    facts: TopicFacts, offsets: Mapping[int, int], first: Mapping[int, int]
) -> tuple[Position, ...]:
    """Return the positions with which a consumer starts at these offsets.

    An offset that is the first one has no position. So reading begins with the first record, even
    if retention deletes records meanwhile.
    """
    return tuple(
        Position(facts.topic, facts.topic_id, number, offset - 1)
        for number, offset in offsets.items()
        if offset > first[number]
    )


def check_numbers(facts: TopicFacts, numbers: Iterable[int]) -> None:
    """Raise `ConfigError` if the topic lacks one of these Kafka partitions."""
    for number in numbers:
        if not 0 <= number < facts.kafka_partitions:
            allowed = f"from 0 to {facts.kafka_partitions - 1}, a Kafka partition of {facts.topic}"
            raise argument_invalid("kafka_partitions", number, allowed)


def records_gone(
    kafka: KafkaConfig,
    facts: TopicFacts,
    wanted: Mapping[int, int],
    first: Mapping[int, int],
    last: Mapping[int, int],
) -> TopicError:
    """Return the error for positions of which one is not between the ends of its Kafka partition
    (RUN-7). Raises `BrokerError`.
    """
    number = max(wanted, key=lambda number: wanted[number] - last[number])
    if wanted[number] > last[number]:
        return topic_shortened(facts.topic, str(number), str(last[number]), str(wanted[number]))
    lost = lost_between(wanted, first)
    left = first_arrivals(kafka, facts, {number: end for number, (_, end) in lost.items()})
    return records_deleted(facts.topic, text_of(lost), times_of(lost, left))


def positions_of_state(
    state: ReaderState, kafka: KafkaConfig, facts: TopicFacts
) -> tuple[Position, ...]:
    """Return the positions to continue from. Raises `TopicError` if the topic lost records that
    were read: a Kafka partition ends before the offset that was reached. The reader checks whether
    it is the topic of the state.
    """
    if (state.topic, state.topic_id) == (facts.topic, facts.topic_id):
        check_numbers(facts, state.offsets)
        last = topics.end_offsets(kafka, facts)
        reached = {number: offset for number, (_, offset) in state.offsets.items()}
        if any(offset > last[number] for number, offset in reached.items()):
            raise records_gone(kafka, facts, reached, {}, last)
    return tuple(
        Position(state.topic, state.topic_id, number, oldest - 1)
        for number, (oldest, _) in state.offsets.items()
    )


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
    decoder: Decoder,
    start_commit: int,
    *,
    kafka_partitions: Collection[int] | None,
    has_roots: bool,
) -> tuple[Position, ...]:
    """Return the positions after which a reader from the commit timestamp `start_commit` (µs) on
    reads, without those of Kafka partitions that are read from their beginning.

    With `has_roots`, the reader knows the roots, and needs no announcement. Raises
    `OutOfRangeError` if the topic may not hold all changes from `start_commit` on any more,
    `ConfigError` if it lacks one of the Kafka partitions, and `BrokerError`.
    """
    arrival = first_arrival(facts, decoder.limits, start_commit)
    first = topics.beginning_offsets(kafka, facts)
    starts = topics.offsets_at(kafka, facts, arrival)
    if facts.timestamp_type != "LogAppendTime":
        # Kafka looks for the time among numbers that clients wrote (REC-25). Where not even the
        # first one is believed, the answer means nothing.
        later = {number for number, offset in starts.items() if offset > first[number]}
        believed = first_arrivals(kafka, facts, {k: first[k] for k in later}, at_most=1)
        starts |= {number: first[number] for number in later - believed.keys()}
    if kafka_partitions is not None:
        check_numbers(facts, kafka_partitions)
        starts = {number: starts[number] for number in kafka_partitions}
    _check_age(kafka, facts, start_commit, start_commit - arrival, first, starts)
    if not has_roots:
        starts = _announced_offsets(kafka, facts, decoder, first, starts)
    return positions_at(facts, starts, first)


def _check_age(
    kafka: KafkaConfig,
    facts: TopicFacts,
    start_commit: int,
    skew: int,
    first: Mapping[int, int],
    starts: Mapping[int, int],
) -> None:
    """Raise `OutOfRangeError` if records that were deleted may be in the range.

    A record was deleted only if the first offset is not 0. It arrived no later than the first
    record that is left. If none is left, it is assumed that retention deleted it.
    """
    doubtful = {number for number, offset in starts.items() if 0 < first[number] == offset}
    if not doubtful:
        return
    arrivals = first_arrivals(kafka, facts, {number: first[number] for number in doubtful})
    now = now_us()
    expired = now - facts.retention_ms * 1000 if facts.retention_ms >= 0 else now
    oldest = max(arrivals.get(number, expired) for number in doubtful) + skew + 1
    if start_commit < oldest:
        shown = str(view_of_time(start_commit)), str(view_of_time(oldest))
        raise start_too_old(facts.topic, *shown, oldest)


def _announced_offsets(
    kafka: KafkaConfig,
    facts: TopicFacts,
    decoder: Decoder,
    first: Mapping[int, int],
    starts: Mapping[int, int],
) -> dict[int, int]:
    """Return, by Kafka partition, the newest announcement before an offset, or the first offset.

    Of an announcement in several parts (WMK-6), it is the first part in the window.
    """
    ends, offsets = dict(starts), dict[int, int]()
    for windows in windows_before(ends, first, _WINDOW):
        newest: dict[int, tuple[str, int]] = {}
        for source in records_between(kafka, facts.topic, facts.topic_id, windows):
            verdict = decoder.decode(source, facts.kafka_partitions)
            if isinstance(verdict, Rejection):
                continue
            announced = _announcement(verdict.record)
            number = source.position.kafka_partition
            if announced is not None and newest.get(number) != announced:
                newest[number], offsets[number] = announced, source.position.offset
        for number in newest:
            del ends[number]
    return {number: offsets.get(number, first[number]) for number in starts}


def _announcement(record: object) -> tuple[str, int] | None:
    """Return the root and the start timestamp of an announcement, which all its parts have."""
    if not isinstance(record, ChildPartitions) or any(
        child.parent_partition_tokens for child in record.children
    ):
        return None
    return record.stream_partition, record.start_timestamp
