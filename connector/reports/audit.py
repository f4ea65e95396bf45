"""Computes the audit of a stream from offset ranges (TBL-6, `nothing_lost`).

Theory. The offsets `[begin, end)` of each Kafka partition were read. An offset is accounted for in
two cases. It is in the changelog exactly once. Or Kafka was checked, and it has no record there for
a reader of committed transactions, because the offset is a transaction marker or an aborted record.
If Kafka has a record that is not in the changelog, it is *lost*. If Kafka's retention deleted the
offset before the check, it is *unverified*. Every audit reads the changelog rows again. The results
of checks in Kafka are stored, because Kafka deletes records.

The audit reads the changelog in steps of whole batches. After each step, the accounted offsets are
merged into a few ranges. So the memory does not grow with the changelog.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Annotated, NamedTuple

from connector.dead_letters.envelope import DeadLetter
from connector.errors import ConnectorError
from connector.errors.changelog import audit_failed
from connector.records.rejection import Headers
from connector.records.views import AsList, Hidden, Listed, Named, Shown, Viewed
from connector.sources.audit import SourceTopicAudit
from connector.state.accepted_losses import AcceptLoss
from connector.state.incomplete_transactions import IncompleteTransaction
from connector.text import FEW, as_header_name, counted, summarize_names


class Range(NamedTuple):
    """Offsets from `start` up to, and without, `stop`."""

    start: int
    stop: int


Ranges = tuple[AsList[Range], ...]
"""Sorted ranges that are not empty, do not overlap and do not touch."""


class Run(NamedTuple):
    """Consecutive offsets that are in the changelog, each of them `times` times."""

    start: int
    stop: int
    times: int


def union_ranges(*parts: Iterable[Range]) -> Ranges:
    """Return the offsets that are in any of the arguments."""
    union: list[Range] = []
    for start, stop in sorted(chain(*parts)):
        if union and start <= union[-1].stop:
            union[-1] = Range(union[-1].start, max(stop, union[-1].stop))
        elif start < stop:
            union.append(Range(start, stop))
    return tuple(union)


def without(ranges: Iterable[Range], others: Iterable[Range]) -> Ranges:
    """Return the offsets of `ranges` that are not in `others`."""
    rest: list[Range] = []
    removed, index = union_ranges(others), 0
    for start, stop in union_ranges(ranges):
        while index < len(removed) and removed[index].start < stop:
            if start < removed[index].start:
                rest.append(Range(start, removed[index].start))
            start = max(start, removed[index].stop)
            if start >= stop:
                break  # it may also contain the next range
            index += 1
        if start < stop:
            rest.append(Range(start, stop))
    return tuple(rest)


def common(ranges: Iterable[Range], others: Iterable[Range]) -> Ranges:
    union = union_ranges(ranges)
    return without(union, without(union, others))


def count(ranges: Iterable[Range]) -> int:
    return sum(stop - start for start, stop in ranges)


@dataclass(frozen=True, slots=True)
class TopicCheck:
    """The result of a check in Kafka: the visible records, and the offsets that Kafka removed."""

    visible: Ranges = ()
    removed: Ranges = ()


def _counted(runs: Iterable[Run]) -> tuple[int, Ranges, Ranges]:
    """Return the number of rows, the offsets with a row, and those with several."""
    runs = list(runs)
    rows = sum((run.stop - run.start) * run.times for run in runs)
    present = union_ranges(Range(run.start, run.stop) for run in runs)
    return rows, present, tuple(Range(run.start, run.stop) for run in runs if run.times > 1)


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """The audit of one Kafka partition, which was read from `begin` up to, and without, `end`.

    - `rows` is the number of changelog rows.
    - `empty` is the number of offsets without a visible record.
    - `covered` are the offsets that are accounted for.
    - `duplicated` are offsets with several rows, or with a row and without a visible record.
    - `unexpected` are offsets with a row that were never read.
    - `lost` and `unverified` are described above.
    """

    begin: int
    end: int
    rows: int = 0
    empty: int = 0
    covered: Hidden[Ranges] = ()
    lost: Ranges = ()
    unverified: Ranges = ()
    duplicated: Ranges = ()
    unexpected: Ranges = ()

    def logged(self, runs: Iterable[Run]) -> PartitionAudit:
        rows, present, twice = _counted(runs)
        return replace(
            self,
            rows=self.rows + rows,
            covered=union_ranges(self.covered, common(present, self._read)),
            lost=without(self.lost, present),
            unverified=without(self.unverified, present),
            duplicated=union_ranges(self.duplicated, twice, common(present, self.covered)),
            unexpected=union_ranges(self.unexpected, without(present, self._read)),
        )

    def gaps(self, *, to_the_end: bool) -> Ranges:
        """Return the offsets that must be checked in Kafka, up to the last row or to the end."""
        last = max((covered.stop for covered in self.covered), default=self.begin)
        stop = self.end if to_the_end else last
        return without(
            (Range(self.begin, stop),), union_ranges(self.covered, self.lost, self.unverified)
        )

    def checked(self, gaps: Ranges, check: TopicCheck) -> PartitionAudit:
        """Add the result of the check of some gaps."""
        empty = without(gaps, union_ranges(check.visible, check.removed))
        return replace(
            self,
            empty=self.empty + count(empty),
            covered=union_ranges(self.covered, empty),
            lost=union_ranges(self.lost, check.visible),
            unverified=union_ranges(self.unverified, check.removed),
        )

    @property
    def _read(self) -> Ranges:
        return union_ranges((Range(self.begin, self.end),))


@dataclass(frozen=True, slots=True)
class LettersAudit:
    """The dead letters of the rejected rows that no earlier audit found: their ids.

    `altered` ones have other bytes than their record. `unverified` ones are missing, but the
    retention of the dead-letter topic may have deleted them before the audit.
    """

    compared: int = 0
    missing: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteStreamAudit:
    """The offsets of one write stream in a changelog (WRS-23).

    lowmark removes no double at ingest: a write session sends each row once. So doubles and gaps
    show a program that writes to the topic without a session, rejected rows, or a fault.

    - `rows` is the number of its rows.
    - `offsets` are those with a row, and `doubled` those with several.
    - `is_whole`: the changelog was never trimmed. Otherwise, offsets before the first one may have
      been deleted, and are no gap.
    """

    rows: int = 0
    offsets: Hidden[Ranges] = ()
    doubled: Ranges = ()
    is_whole: Hidden[bool] = True

    def logged(self, runs: Iterable[Run]) -> WriteStreamAudit:
        rows, present, twice = _counted(runs)
        return replace(
            self,
            rows=self.rows + rows,
            offsets=union_ranges(self.offsets, present),
            doubled=union_ranges(self.doubled, twice, common(present, self.offsets)),
        )

    @property
    def gaps(self) -> Shown[Ranges]:
        """The offsets below the last one that have no row."""
        if not self.offsets:
            return ()
        first = 0 if self.is_whole else self.offsets[0].start
        return without((Range(first, self.offsets[-1].stop),), self.offsets)


@dataclass(frozen=True, slots=True)
class StreamAudit(Viewed):
    """The result of an audit of a stream, up to and including batch `to_batch`.

    `incomplete` are the transactions that lack records, as the last check of ingest found them
    (ING-2). They break no promise of lowmark: the records were rejected, or never sent.

    `write_streams` has the write streams whose offsets have doubles or gaps. They break no promise
    either: `warnings` has a sentence about each kind.

    `losses` are the records that Kafka deleted before ingest read them, as people accepted it, and
    the tables that were confirmed since (RUN-7).

    `source` accounts for the records of a bridge's topics (SRC-7).

    `faulty_tables` says for a table what is wrong with its newest commit, for example that another
    program made it. Then it is not known what the table shows: `nothing_invented` is broken.
    """

    stream: str
    to_batch: int
    partitions: Annotated[
        Mapping[int, PartitionAudit], Listed("kafka_partition"), Named("kafka_partitions")
    ] = field(default_factory=dict)
    letters: LettersAudit = LettersAudit()
    incomplete: Annotated[tuple[IncompleteTransaction, ...], Named("incomplete_transactions")] = ()
    write_streams: Annotated[Mapping[str, WriteStreamAudit], Listed("write_stream")] = field(
        default_factory=dict
    )
    faulty_tables: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[AcceptLoss, ...] = ()
    source: Annotated[tuple[SourceTopicAudit, ...], Named("source_topics")] = ()

    def counted(self, name: str) -> int:
        """Return the sum of a field, or of the offsets of its ranges, over all Kafka partitions."""
        values = [getattr(partition, name) for partition in self.partitions.values()]
        return sum(value if isinstance(value, int) else count(value) for value in values)

    @property
    def unverified(self) -> int:
        """The number of offsets, dead letters and records of the source that cannot be verified any
        more.
        """
        of_source = sum(topic.unverified for topic in self.source)
        return self.counted("unverified") + len(self.letters.unverified) + of_source

    @property
    def warnings(self) -> list[str]:
        """A sentence about each accepted loss, the doubles in write streams, and the gaps."""
        return [*(loss.text for loss in self.losses), *warnings_of(self.write_streams)]

    @property
    def is_proved(self) -> bool:
        """Whether every offset is accounted for, and every dead letter was found."""
        return self.fault() is None and not self.unverified

    def fault(self) -> ConnectorError | None:
        """Return which promise is broken and how, or None. Unverified offsets break none."""
        faults = [
            self._offsets(
                "lost",
                "missing in the changelog, although a reader of the topic sees their records",
            ),
            self._offsets(
                "duplicated",
                "in the changelog more than once, or without a visible record in the topic",
            ),
            self._offsets("unexpected", "in the changelog, but ingest has not read them"),
            _letters(self.letters.missing, "missing in the dead-letter topic"),
            _letters(self.letters.altered, "different from the rejected record"),
            self._of_source("missing", "without a change and a dead letter", "examples"),
        ]
        promises = []
        if any(faults):
            promises.append(f"nothing_lost: {'; '.join(filter(None, faults))}")
        orders = [
            self._of_source("doubled", "published at several places of the order"),
            self._of_source("disordered", "published at a place that is not that of the source"),
        ]
        if any(orders):
            promises.append(f"newest_wins: {'; '.join(filter(None, orders))}")
        if self.faulty_tables:
            promises.append(f"nothing_invented: {'; '.join(self.faulty_tables.values())}")
        if not promises:
            return None
        return audit_failed(self.stream, "; ".join(promises))

    @property
    def verdict(self) -> Shown[str]:
        """`passed`, `unverified` or `failed`."""
        return "failed" if self.fault() else "unverified" if self.unverified else "passed"

    def _of_source(self, kind: str, fault: str, examples: str = "") -> str:
        total = sum(getattr(topic, kind) for topic in self.source)
        if not total:
            return ""
        names = [
            getattr(topic, examples or f"{kind}_examples")
            for topic in self.source
            if getattr(topic, kind)
        ]
        records = counted(total, "record of the source is", "records of the source are")
        return f"{records} {fault} ({_listed(list(chain.from_iterable(names))[:FEW], total)})"

    def _offsets(self, name: str, fault: str) -> str:
        ranges = [
            (number, offsets)
            for number, partition in sorted(self.partitions.items())
            for offsets in getattr(partition, name)
        ]
        if not ranges:
            return ""
        examples = [
            f"{number}/{start}" + (f" to {stop - 1}" if stop - start > 1 else "")
            for number, (start, stop) in ranges[:FEW]
        ]
        offsets = counted(self.counted(name), "offset is", "offsets are")
        return f"{offsets} {fault} (Kafka partition/offset {_listed(examples, len(ranges))})"


def _letters(ids: Sequence[str], fault: str) -> str:
    if not ids:
        return ""
    letters = counted(len(ids), "dead letter is", "dead letters are")
    return f"{letters} {fault} ({_listed(ids[:FEW], len(ids))})"


def _listed(examples: Sequence[str], total: int) -> str:
    return ", ".join(examples) + (", …" if total > len(examples) else "")


def faulty(audits: Mapping[str, WriteStreamAudit]) -> dict[str, WriteStreamAudit]:
    """Return the write streams with doubles or gaps, sorted by name."""
    return {name: audit for name, audit in sorted(audits.items()) if audit.doubled or audit.gaps}


def warnings_of(audits: Mapping[str, WriteStreamAudit]) -> list[str]:
    """Return a sentence about the doubles, and one about the gaps."""
    warnings = []
    for noun, field_name in (("double offset", "doubled"), ("missing offset", "gaps")):
        offsets = {name: count(getattr(audit, field_name)) for name, audit in audits.items()}
        names = sorted(name for name, number in offsets.items() if number)
        if names:
            total = counted(sum(offsets.values()), noun)
            streams = f"{counted(len(names), 'write stream')}: {summarize_names(names)}"
            warnings.append(f"{total} in {streams}")
    return warnings


def compare_letters(
    rejected: Iterable[tuple[str, bytes]], letters: Iterable[DeadLetter]
) -> LettersAudit:
    """Compare dead letters with the rejected rows that must have one (DLQ-1, DLQ-4).

    `rejected` has the id and the `digest` of each row. Reading stops when each row has its dead
    letter. The memory holds one digest for each rejected row.
    """
    missing = dict(rejected)
    compared, altered = len(missing), set[str]()
    for letter in letters:
        if (expected := missing.get(letter.id)) is None:
            continue
        if digest(letter.key, letter.value, letter.headers) == expected:
            del missing[letter.id]
            altered.discard(letter.id)
            if not missing:
                break
        else:
            altered.add(letter.id)
    return LettersAudit(compared, tuple(sorted(missing.keys() - altered)), tuple(sorted(altered)))


def digest(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """Return a digest of key, value and headers. It is equal only if all are equal, byte for byte.
    The names of headers are those that a dead letter can have (`as_header_name`).
    """
    hashed = hashlib.blake2b(digest_size=16)
    named = chain.from_iterable((as_header_name(name).encode(), text) for name, text in headers)
    for part in (key, value, *named):
        hashed.update(b"-" if part is None else b"%d:" % len(part) + part)
    return hashed.digest()
