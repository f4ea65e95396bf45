"""What a reader of committed transactions finds at given offsets: the answer to why a changelog has no rows there (TBL-6)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from connector.kafka import client, topics
from connector.kafka.bounded_read import messages_between
from connector.state.audit import Range, Ranges, Seen, common, union_ranges, without

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig

NEAR: Final = 10_000
"""Places that are no further apart are read through; beyond, it is quicker to begin anew."""


def look(kafka: KafkaConfig, topic: str, topic_id: str, places: Mapping[int, Ranges]) -> dict[int, Seen]:
    """Read a topic at these offsets of each Kafka partition, to which it must have been written once.

    What the topic does not have is gone: taken by retention, or lost by the brokers. Raises `TopicError` if there is no topic of
    that id, or it is compacted, which takes records from between others; `BrokerError`.
    """
    facts = topics.describe(kafka, topic)
    topics.check_identity(topic_id, facts)
    topics.check(facts)
    first, end = topics.beginning_offsets(kafka, facts), topics.end_offsets(kafka, facts)
    there = {number: common(ranges, [Range(first.get(number, 0), end.get(number, 0))]) for number, ranges in places.items()}
    found: dict[int, list[Range]] = {number: [] for number in places}
    few = {"group.id": "lowmark.audit", "queued.min.messages": "1000", "queued.max.messages.kbytes": "4096"}
    errors = client.LastError()
    with closing(client.consumer(kafka, errors, few)) as consumer:
        for spans in zip_longest(*(_spans(number, ranges) for number, ranges in there.items())):
            together = {number: (start, stop) for number, start, stop in filter(None, spans)}
            for message in messages_between(consumer, kafka, errors, together, topic):
                number, offset = message.partition(), message.offset()
                assert number is not None
                assert offset is not None
                if _is_in(offset, there[number]):
                    _add(found[number], offset)
    return {number: Seen(union_ranges(found[number]), without(ranges, there[number])) for number, ranges in places.items()}


def _spans(number: int, ranges: Ranges) -> Iterator[tuple[int, int, int]]:
    """What to read in one go: Kafka partition, first offset, and the one to stop before."""
    if not ranges:
        return
    start, stop = ranges[0]
    for following in ranges[1:]:
        if following.start - stop > NEAR:
            yield number, start, stop
            start = following.start
        stop = following.stop
    yield number, start, stop


def _add(found: list[Range], offset: int) -> None:
    """The offsets of a Kafka partition come in order."""
    start = found.pop().start if found and found[-1].stop == offset else offset
    found.append(Range(start, offset + 1))


def _is_in(offset: int, ranges: Ranges) -> bool:
    place = bisect_right(ranges, (offset, float("inf"))) - 1
    return place >= 0 and offset < ranges[place].stop
