"""Accounts for every record of the topics of a source (SRC-7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from connector.errors import TopicError
from connector.kafka import client, topics
from connector.kafka.bridge.reader import described, foreign_record, topics_of
from connector.kafka.bridge.session import decoder_of
from connector.kafka.bridge.status import reported_positions
from connector.kafka.bridge.tables import BridgeTables
from connector.kafka.client import records_between
from connector.kafka.dead_letters.topic import read_letters
from connector.kafka.topics import EARLIEST, offsets_of
from connector.reports.bridge_status import SourceTopicAudit
from connector.sources.changes import RECORD_HEADER, location_of
from connector.sources.model import End, Event, ForeignRecord, Poison, Row, Skipped

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.sources.model import Decoder, TopicPartition

FEW: Final = 5
_Identity = tuple[object, ...]


class _Offsets:
    """A set of offsets by partition, with one bit for each."""

    def __init__(self) -> None:
        self._bits: dict[TopicPartition, bytearray] = {}

    def add(self, partition: TopicPartition, offset: int) -> None:
        bits = self._bits.setdefault(partition, bytearray())
        if len(bits) <= offset >> 3:
            bits.extend(bytes((offset >> 3) + 1024 - len(bits)))
        bits[offset >> 3] |= 1 << (offset & 7)

    def has(self, record: ForeignRecord) -> bool:
        bits, offset = self._bits.get(record.partition, b""), record.offset
        return offset >> 3 < len(bits) and bool(bits[offset >> 3] & 1 << (offset & 7))


class _Audit:
    """The audit of one source."""

    def __init__(self, config: ConnectorConfig, stream: StreamConfig, stack: ExitStack) -> None:
        assert stream.source is not None
        self._config, self._stream, self._source = config, stream, stream.source
        self._kafka, self._admin = config.kafka, client.admin(config.kafka)
        self._changes, self._letters = _Offsets(), _Offsets()
        self._is_whole = True
        tables = BridgeTables(config, stream, lambda _code, _text: None).of_decoder
        self._decoder: Decoder = decoder_of(self._source, config.registry, tables, stack)

    def results(self) -> Iterator[SourceTopicAudit]:
        """Yield the result of each topic."""
        self._read_changes()
        reported = reported_positions(self._config, self._stream, self._admin)
        starts = reported[-1].starts if reported else {}
        names = topics_of(self._admin, self._kafka, self._source)
        ids = described(self._admin, self._kafka, names)
        self._read_letters({topic_id for topic_id, _ in ids.values()})
        existing = [partition for partition in starts if partition[0] in ids]
        first = offsets_of(self._admin, self._kafka, EARLIEST, existing)
        for name in names:
            ranges = {
                number: (begin, starts[topic, number])
                for (topic, number), begin in first.items()
                if topic == name and begin < starts[topic, number]
            }
            yield self._of_topic(name, ids[name][0], ranges)

    def _read_changes(self) -> None:
        """Collect the records that have a change in the change topic."""
        facts = topics.describe(self._kafka, self._stream.topic, self._admin)
        first = topics.beginning_offsets(self._kafka, facts)
        ends = topics.end_offsets(self._kafka, facts)
        self._is_whole = not any(first.values())
        ranges = {number: (first[number], end) for number, end in ends.items()}
        for record in records_between(self._kafka, facts.topic, facts.topic_id, ranges):
            if (at := dict(record.headers).get(RECORD_HEADER)) is None:
                continue
            with suppress(ValueError):
                topic, number, offset = at.decode().rsplit("/", 2)
                self._changes.add((topic, int(number)), int(offset))

    def _read_letters(self, topic_ids: set[str]) -> None:
        with suppress(TopicError):  # without the topic, there are none
            for letter, _ in read_letters(self._kafka, self._stream.topic):
                at = letter.position
                if at.topic_id in topic_ids:
                    self._letters.add((at.topic, at.kafka_partition), at.offset)

    def _of_topic(
        self, name: str, topic_id: str, ranges: dict[int, tuple[int, int]]
    ) -> SourceTopicAudit:
        counts, left_out = Counter[str](), Counter[str]()
        absent: dict[_Identity, list[ForeignRecord]] = {}
        for record, event in self._events(name, topic_id, ranges):
            counts["records"] += 1
            if self._changes.has(record):
                counts["changes"] += 1
            elif self._letters.has(record):
                counts["letters"] += 1
            elif isinstance(event, End):
                counts["marks"] += 1
            elif isinstance(event, Skipped):
                left_out[event.rule] += 1
            else:
                absent.setdefault(_identity(event), []).append(record)
        if absent:  # events that the source sent again have the identity of a published one
            for record, event in self._events(name, topic_id, ranges):
                if self._changes.has(record) or self._letters.has(record):
                    left_out["REPETITION"] += len(absent.pop(_identity(event), ()))
        missing = [record for records in absent.values() for record in records]
        is_whole = self._is_whole and not any(begin for begin, _ in ranges.values())
        return SourceTopicAudit(
            topic=name,
            **counts,
            left_out=dict(left_out),
            missing=len(missing) if is_whole else 0,
            unverified=0 if is_whole else len(missing),
            examples=tuple(location_of(record) for record in missing[:FEW]),
        )

    def _events(
        self, name: str, topic_id: str, ranges: dict[int, tuple[int, int]]
    ) -> Iterator[tuple[ForeignRecord, Event]]:
        for read in records_between(self._kafka, name, topic_id, ranges):
            record = foreign_record(read)
            yield record, self._decoder.decode(record)


def audit_source(config: ConnectorConfig, stream: StreamConfig) -> tuple[SourceTopicAudit, ...]:
    """Account for every record of the topics of a source up to the position of its bridge: it is a
    change, a mark, a dead letter, or left out by a rule.

    It reads the topics of the source, the change topic and its dead letters. Raises `TopicError`
    and `BrokerError`.
    """
    with ExitStack() as stack:
        return tuple(_Audit(config, stream, stack).results())


def _identity(event: Event) -> _Identity:
    """The values that an event has in common with the same event, sent again."""
    commit = event.commit
    table = "" if isinstance(event, End) else event.table
    if commit.transaction and commit.sequence:
        return table, commit.transaction, commit.sequence
    if isinstance(event, Poison | Skipped | End):
        return table, commit.log_position
    key = tuple(event.key.items()) if isinstance(event, Row) else ()
    return table, commit.log_position, commit.time, key
