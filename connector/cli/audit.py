"""`connector audit`: that nothing is lost, shown from the changelog, the topic and the dead-letter topic (TBL-6, `nothing_lost`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from connector.cli import settings
from connector.cli.terminal import Progress, console, out, say, show_error, table
from connector.clock import now_us
from connector.dead_letters.envelope import DeadLetter, dead_letter_topic
from connector.errors import TopicError
from connector.records.json_view import to_line
from connector.records.rejection import Position
from connector.state.audit import LettersAudit, PartitionAudit, Ranges, Seen, StreamAudit, compare_letters, count, without
from connector.text import counted

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
    from connector.lake.audit_log import AuditLog
    from connector.lake.changelog_reader import Logged


@click.command()
@click.argument("stream", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each stream.")
@click.pass_context
def command(ctx: click.Context, stream: str | None, *, as_json: bool) -> int:
    """Prove that every offset of STREAM that was read stands once in its changelog, and that every rejected record has its letter.

    Of all streams, unless one is named. Offsets without a row are read in Kafka: nothing may be there to see. What was seen is
    kept, so that it counts when Kafka has forgotten. Exit code 1 if something is lost or doubled, or a letter is missing; 0 if
    not, also where Kafka's retention was quicker: that is said as a warning.
    """
    config = settings.load(ctx)
    faults = 0
    for of in [settings.stream(config, stream)] if stream else config.streams.values():
        found = _of_stream(config, of)
        if found is None:
            say(f"{of.name}: nothing was ingested yet")
            continue
        if as_json:
            out(to_line(found.to_json()))
        else:
            _print_table(found)
        faults += _judge(found)
    return 1 if faults else 0


@dataclass(frozen=True, slots=True)
class Kafka:
    """What an audit asks of Kafka, as functions. `letters` begins behind the given positions; the flag says that none are gone since."""

    look: Callable[[Mapping[int, Ranges]], Mapping[int, Seen]]
    letters: Callable[[tuple[Position, ...]], tuple[Iterable[tuple[DeadLetter, Position]], bool]]


def audit(stream: str, logged: Logged, audit_log: AuditLog, kafka: Kafka, *, now: Callable[[], int]) -> StreamAudit:
    """Audit a stream, and keep what was proved as soon as it is. `now` is the time in microseconds."""
    partitions = {number: PartitionAudit(logged.begin.get(number, 0), end) for number, end in logged.end.items()}
    progress = Progress("rows")
    for runs in logged.steps():
        for number, found in runs.items():
            partitions[number] = partitions.get(number, PartitionAudit(0, 0)).logged(found)
        _look(partitions, audit_log, kafka, now(), to_the_end=False)
        progress.show(sum(partition.rows for partition in partitions.values()), time.monotonic())
    _look(partitions, audit_log, kafka, now(), to_the_end=True)
    progress.clear()
    return StreamAudit(stream, logged.to_batch, partitions, _letters(logged, audit_log, kafka, now()))


def _look(partitions: dict[int, PartitionAudit], audit_log: AuditLog, kafka: Kafka, now: int, *, to_the_end: bool) -> None:
    """Account for offsets without a row: from the proofs, else by looking into Kafka, which makes new ones."""
    gaps = {number: places for number, found in partitions.items() if (places := found.gaps(to_the_end=to_the_end))}
    known = audit_log.empty(gaps)
    for number, places in known.items():
        partitions[number] = partitions[number].looked(places, Seen())
    asked = {number: rest for number, places in gaps.items() if (rest := without(places, known.get(number, ())))}
    if not asked:
        return
    seen = kafka.look(asked)
    for number, places in asked.items():
        partitions[number] = partitions[number].looked(places, seen[number])
    audit_log.add_empty({number: without(places, (*seen[number].visible, *seen[number].gone)) for number, places in asked.items()}, now)


def _letters(logged: Logged, audit_log: AuditLog, kafka: Kafka, now: int) -> LettersAudit:
    proved_batch, read = audit_log.letters()
    rejected = dict(logged.rejected(proved_batch))
    if not rejected:
        return LettersAudit()
    letters, is_whole = kafka.letters(read)
    reached = {position.kafka_partition: position for position in read}
    found = compare_letters(rejected.items(), _followed(letters, reached, logged.settled_batch))
    if not found.missing and not found.altered:
        audit_log.add_letters(logged.settled_batch, reached.values(), now)
    return found if is_whole else replace(found, missing=(), unverified=found.missing)


def _followed(letters: Iterable[tuple[DeadLetter, Position]], reached: dict[int, Position], settled_batch: int) -> Iterator[DeadLetter]:
    """The letters, while `reached` follows in each Kafka partition, up to the first letter that a later audit needs."""
    held: set[int] = set()
    for letter, position in letters:
        if letter.ingest_batch > settled_batch:
            held.add(position.kafka_partition)
        if position.kafka_partition not in held:
            reached[position.kafka_partition] = position
        yield letter


def _of_stream(config: ConnectorConfig, of: StreamConfig) -> StreamAudit | None:
    from connector.lake.audit_log import AuditLog
    from connector.lake.changelog_reader import open_logged

    logged = open_logged(config.warehouse, of.name)
    if logged is None:
        return None
    if logged.foreign_commits:
        say(f"warning: {of.name}: {counted(logged.foreign_commits, 'commit')} of somebody else on top of its changelog")
    audit_log = AuditLog(config.warehouse, of.name, of.topic, logged.changelog_id, logged.topic_id)
    return audit(of.name, logged, audit_log, _kafka(config.kafka, of.topic, logged.topic_id), now=now_us)


def _kafka(kafka: KafkaConfig, topic: str, topic_id: str) -> Kafka:
    def look(places: Mapping[int, Ranges]) -> Mapping[int, Seen]:
        from connector.kafka import probe_offsets

        try:
            return probe_offsets.look(kafka, topic, topic_id, places)
        except TopicError as error:
            say(f"warning: {error}")
            return {number: Seen(gone=ranges) for number, ranges in places.items()}

    def letters(after: tuple[Position, ...]) -> tuple[Iterable[tuple[DeadLetter, Position]], bool]:
        from connector.kafka import topics
        from connector.kafka.dead_letters.topic import read_letters

        try:
            facts = topics.describe(kafka, dead_letter_topic(topic))
        except TopicError as error:
            say(f"warning: {error}")
            return (), True
        # Of a dead-letter topic that was made anew everything is to be read.
        known = tuple(position for position in after if position.topic_id == facts.topic_id)
        begin = {position.kafka_partition: position.offset + 1 for position in known}
        is_whole = all(first <= begin.get(number, 0) for number, first in topics.beginning_offsets(kafka, facts).items())
        return read_letters(kafka, topic, after=known), is_whole

    return Kafka(look, letters)


def _judge(found: StreamAudit) -> int:
    """Say what was found; 1 if the promise is broken."""
    if found.unverified:
        kinds = ((found.counted("unverified"), "offset"), (len(found.letters.unverified), "letter"))
        said = " and ".join(counted(number, noun) for number, noun in kinds if number)
        say(f"warning: {found.stream}: {said} unproved: Kafka no longer has what was there, so nobody can say whether something is lost")
    if fault := found.fault():
        show_error(fault)
        return 1
    offsets = sum(partition.end - partition.begin for partition in found.partitions.values())
    letters = f", {counted(found.letters.compared, 'further letter')} compared" if found.letters.compared else ""
    verdict = "nothing_lost holds as far as Kafka remembers" if found.unverified else "nothing_lost is proved"
    say(f"{found.stream}: {verdict}: {counted(offsets, 'offset')} up to batch {found.to_batch}{letters}")
    return 0


def _print_table(found: StreamAudit) -> None:
    numbers = ("from", "to", "rows", "nothing to see", "lost", "duplicated", "never read", "unverified")
    shown = table("Kafka partition", *numbers, right=frozenset({"Kafka partition", *numbers}))
    for number, of in sorted(found.partitions.items()):
        offsets = (count(ranges) for ranges in (of.lost, of.duplicated, of.unexpected, of.unverified))
        shown.add_row(str(number), *(f"{value:,}" for value in (of.begin, of.end, of.rows, of.empty, *offsets)))
    if shown.row_count:
        console().print(shown)
