"""Audit streams: show from the changelog, the topic and the dead-letter topic that nothing is lost
(TBL-6, `nothing_lost`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.config.settings import find_stream
from connector.dead_letters.envelope import DeadLetter, dead_letter_topic
from connector.errors import TableError, TopicError
from connector.events import OnEvent, begun, ignore, info, log_event, reached, warning
from connector.records.rejection import Position
from connector.reports.audit import (
    LettersAudit,
    PartitionAudit,
    Ranges,
    StreamAudit,
    TopicCheck,
    compare_letters,
    faulty,
    without,
)
from connector.services.warehouses import warehouse_of
from connector.sources.audit import SourceTopicAudit
from connector.state.jobs import Job, JobKind
from connector.text import counted

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
    from connector.lake.audit import AuditLog, Logged


def audit(
    config: ConnectorConfig,
    stream: str | None = None,
    *,
    on_event: OnEvent = log_event,
) -> Iterator[StreamAudit]:
    """Check that each offset that was read is once in the changelog, and that each rejected record
    has its dead letter. For a stream with a source, also that each record of its topics, up to the
    position of the bridge, is a change, a mark, a dead letter, or left out by a rule (SRC-7).

    For example: `assert all(result.is_proved for result in audit(config))`. Results that Kafka will
    forget are kept in the warehouse, and each verdict is in the job history.

    Args:
        config: Its streams are audited.
        stream: The name or topic of one stream. None: all streams, one after the other.
        on_event: Receives warnings, `NOTHING_INGESTED` for a stream without a changelog, and how
            far it is.

    Returns:
        An iterator with the result of each stream that has a changelog. `StreamAudit.fault()` is
        the error of a failed audit, or None.

    Raises:
        ConfigError: There is no such stream.
        TableError: The warehouse cannot be read.
        BrokerError: Kafka cannot be reached.
    """
    from connector.lake.jobs import History

    for source in [find_stream(config, stream)] if stream is not None else config.streams.values():
        started_at = now_us()
        result = _of_stream(config, source, on_event)
        if result is None:
            text = "nothing was ingested yet"
            on_event(info("NOTHING_INGESTED", text, stream=source.name))
        else:
            History(warehouse_of(config)).add_job(_job_of(result, started_at))
            yield result


def _job_of(result: StreamAudit, started_at: int) -> Job:
    fault, rows = result.fault(), sum(topic.rows for topic in result.partitions.values())
    return Job(
        *(JobKind.AUDIT, "", started_at, now_us()),
        to_batch=result.to_batch,
        error="" if fault is None else fault.problem,
        stream=result.stream,
        rows_read=rows,
    )


@dataclass(frozen=True, slots=True)
class KafkaSide:
    """The functions of Kafka that an audit uses. `check` returns the visible records of ranges.
    `letters` begins behind the given positions; the flag says that none were removed since.
    """

    check: Callable[[Mapping[int, Ranges]], Mapping[int, TopicCheck]]
    letters: Callable[[tuple[Position, ...]], tuple[Iterable[tuple[DeadLetter, Position]], bool]]


def audit_stream(
    stream: str,
    logged: Logged,
    audit_log: AuditLog,
    kafka: KafkaSide,
    *,
    now: Callable[[], int],
    on_event: OnEvent = ignore,
) -> StreamAudit:
    """Audit a stream, and store each result at once. `now` is in microseconds."""
    partitions = {
        number: PartitionAudit(logged.begin.get(number, 0), end)
        for number, end in logged.end.items()
    }
    offsets = sum(partition.end - partition.begin for partition in partitions.values())
    on_event(reached("offsets checked", 0, offsets, stream=stream))
    for batch_runs in logged.steps():
        for number, runs in batch_runs.items():
            partitions[number] = partitions.get(number, PartitionAudit(0, 0)).logged(runs)
        _check_gaps(partitions, audit_log, kafka, now(), to_the_end=False)
        checked = sum(partition.rows + partition.empty for partition in partitions.values())
        on_event(reached("offsets checked", min(checked, offsets), offsets, stream=stream))
    _check_gaps(partitions, audit_log, kafka, now(), to_the_end=True)
    on_event(begun("comparison of dead letters", stream=stream))
    return StreamAudit(
        stream, logged.to_batch, partitions, _letters(logged, audit_log, kafka, now())
    )


def _check_gaps(
    partitions: dict[int, PartitionAudit],
    audit_log: AuditLog,
    kafka: KafkaSide,
    now: int,
    *,
    to_the_end: bool,
) -> None:
    """Account for offsets without a row: by stored results, or by a check in Kafka."""
    gaps = {
        number: ranges
        for number, partition in partitions.items()
        if (ranges := partition.gaps(to_the_end=to_the_end))
    }
    empty = audit_log.empty(gaps)
    for number, ranges in empty.items():
        partitions[number] = partitions[number].checked(ranges, TopicCheck())
    unchecked = {
        number: rest
        for number, ranges in gaps.items()
        if (rest := without(ranges, empty.get(number, ())))
    }
    if not unchecked:
        return
    checks = kafka.check(unchecked)
    for number, ranges in unchecked.items():
        partitions[number] = partitions[number].checked(ranges, checks[number])
    audit_log.add_empty(
        {
            number: without(ranges, (*checks[number].visible, *checks[number].removed))
            for number, ranges in unchecked.items()
        },
        now,
    )


def _letters(logged: Logged, audit_log: AuditLog, kafka: KafkaSide, now: int) -> LettersAudit:
    proved_batch, read = audit_log.letters()
    rejected = dict(logged.rejected(proved_batch))
    if not rejected:
        return LettersAudit()
    letters, is_whole = kafka.letters(read)
    reached = {position.kafka_partition: position for position in read}
    result = compare_letters(rejected.items(), _followed(letters, reached, logged.settled_batch))
    if not result.missing and not result.altered:
        audit_log.add_letters(logged.settled_batch, reached.values(), now)
    return result if is_whole else replace(result, missing=(), unverified=result.missing)


def _followed(
    letters: Iterable[tuple[DeadLetter, Position]], reached: dict[int, Position], settled_batch: int
) -> Iterator[DeadLetter]:
    """The letters. `reached` follows up to the first letter that a later audit needs."""
    unsettled: set[int] = set()
    for letter, position in letters:
        if letter.ingest_batch > settled_batch:
            unsettled.add(position.kafka_partition)
        if position.kafka_partition not in unsettled:
            reached[position.kafka_partition] = position
        yield letter


def _of_stream(
    config: ConnectorConfig, source: StreamConfig, on_event: OnEvent
) -> StreamAudit | None:
    from connector.lake.audit import AuditLog, open_logged

    logged = open_logged(warehouse_of(config), source.name)
    if logged is None:
        return None
    if logged.foreign_commits:
        commits = counted(logged.foreign_commits, "commit")
        text = f"{commits} of another program on top of its changelog"
        on_event(warning("FOREIGN_COMMITS", text, stream=source.name))
    audit_log = AuditLog(
        warehouse_of(config), source.name, source.topic, logged.changelog_id, logged.topic_id
    )
    kafka = _kafka(config.kafka, source.topic, logged.topic_id, on_event)
    result = audit_stream(source.name, logged, audit_log, kafka, now=now_us, on_event=on_event)
    return replace(
        result,
        source=_of_source(config, source, on_event),
        incomplete=logged.incomplete,
        losses=logged.losses,
        write_streams=faulty(logged.write_streams()),
        faulty_tables=faulty_tables(
            warehouse_of(config),
            config.tables_of(source.name),
        ),
    )


def _of_source(
    config: ConnectorConfig, stream: StreamConfig, on_event: OnEvent
) -> tuple[SourceTopicAudit, ...]:
    """The audit of the topics of a bridge (SRC-7)."""
    if stream.source is None:
        return ()
    from connector.kafka.bridge.audit import audit_source

    try:
        return audit_source(config, stream)
    except TopicError as error:
        on_event(warning("TOPIC_UNREADABLE", str(error), stream=stream.name))
        return ()


def faulty_tables(warehouse: str, tables: Iterable[str]) -> dict[str, str]:
    """The tables whose newest commit is not one of lowmark, or cannot be read, and why."""
    from connector.lake.state_reader import committed_state_of

    faults = {}
    for name in tables:
        try:
            committed_state_of(warehouse, name)
        except TableError as error:
            faults[name] = error.problem
    return faults


def _kafka(kafka: KafkaConfig, topic: str, topic_id: str, on_event: OnEvent) -> KafkaSide:
    def check(gaps: Mapping[int, Ranges]) -> Mapping[int, TopicCheck]:
        from connector.kafka import probe_offsets

        try:
            return probe_offsets.visible_offsets(kafka, topic, topic_id, gaps)
        except TopicError as error:
            on_event(warning("TOPIC_UNREADABLE", str(error)))
            return {number: TopicCheck(removed=ranges) for number, ranges in gaps.items()}

    def letters(after: tuple[Position, ...]) -> tuple[Iterable[tuple[DeadLetter, Position]], bool]:
        from connector.kafka import topics
        from connector.kafka.dead_letters.topic import read_letters

        try:
            facts = topics.describe(kafka, dead_letter_topic(topic))
        except TopicError as error:
            on_event(warning("TOPIC_UNREADABLE", str(error)))
            return (), True
        # A dead-letter topic that was created again is read from its beginning.
        after = tuple(position for position in after if position.topic_id == facts.topic_id)
        begin = {position.kafka_partition: position.offset + 1 for position in after}
        is_whole = all(
            first <= begin.get(number, 0)
            for number, first in topics.beginning_offsets(kafka, facts).items()
        )
        return read_letters(kafka, topic, after=after), is_whole

    return KafkaSide(check, letters)
