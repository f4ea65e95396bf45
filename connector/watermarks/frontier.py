"""The commit timestamp up to which a stream is complete: frontier, lineage and low watermark (WMK).

Theory. A watermark *w* means: every change with a commit timestamp strictly below *w* was
delivered. Within one Kafka partition, the records of a stream partition arrive in the order in
which they were sent. Therefore a claim in a record is true for all records of the same stream
partition that precede it in the same Kafka partition. It says nothing about other Kafka partitions
(WMK-1).
A frontier contains facts that only grow: the greatest claim by stream partition and Kafka
partition, the lineage, and the Kafka partitions where each end was read. Therefore the reading
order of Kafka partitions and the batch boundaries do not matter, and a record that is read again
changes nothing.
Two values do depend on the reading order: the committed low watermark, which never decreases
(`watermark_is_honest`), and the times at which stream partitions advanced.

All times are microseconds. `now` is the clock of the reader. All other times are of the source.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from connector.records.model import MAX_TIMESTAMP, ChildPartition, ChildPartitions
from connector.records.views import Time, TimeOrNull
from connector.stored import from_stored, to_stored
from connector.watermarks.stream_partition import (
    KeyRange,
    StreamPartition,
    is_read_everywhere,
    least,
)

_Said = TypeVar("_Said", int, "LastAdvance")


class Announcement(NamedTuple):
    """An announcement of a root, as far as its parts were read (WMK-6).

    - `live` are the stream partitions that its parts name.
    - `read_in` has, for each Kafka partition where a part was read, the number of Kafka partitions
      that it was sent to.
    """

    live: frozenset[str]
    read_in: Mapping[int, int]

    def join(self, other: Announcement) -> Announcement:
        """Combine the parts of both."""
        return Announcement(self.live | other.live, least(self.read_in, other.read_in))


class Ended(NamedTuple):
    """A stream partition that has ended: its end, its roots and its parents.

    The roots and parents are kept, because records of its descendants may be read before those of
    its ancestors.
    """

    at: int
    roots: frozenset[str] = frozenset()
    parents: frozenset[str] = frozenset()

    def join(self, other: Ended | StreamPartition) -> Ended:
        """Combine the facts of both. If the other one has not ended, take only its roots and
        parents.
        """
        at = other.at if isinstance(other, Ended) else self.at
        return Ended(max(self.at, at), self.roots | other.roots, self.parents | other.parents)


class LastAdvance(NamedTuple):
    """The low watermark of a stream partition, and the time at which it was reached."""

    watermark: int
    at: int


class Stall(NamedTuple):
    """A stream partition whose low watermark does not move, its lagging Kafka partition, and the
    start of the stall (WMK-12).
    """

    stream_partition: str
    kafka_partition: int
    watermark: TimeOrNull
    since: Time


@dataclass(frozen=True, slots=True)
class LineageRecord:
    """A child-partitions record, and the Kafka partition where it was read."""

    kafka_partition: int
    kafka_partitions: int
    record: ChildPartitions


@dataclass(frozen=True, slots=True)
class BatchClaims:
    """The claims and the lineage of a batch.

    - `kafka_partitions` is the number of Kafka partitions of the topic, or a larger number that a
      record named (WMK-4).
    - `claims` has the greatest claim by stream partition and Kafka partition. It is 0 if records
      were read, but no claim.
    - `epochs` has the newest epoch of the producers in the same form (PUB-4). It counts for the
      stream partitions that have not ended.
    """

    kafka_partitions: int
    claims: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    lineage: tuple[LineageRecord, ...] = ()
    epochs: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frontier:
    """The state of delivery of a stream. It is a value: `advance` and `join` return a new one.

    - `partitions` are the stream partitions that have not ended: the live ones, those that wait for
      their parents, and known parents without records.
    - `ended` are the other ones, until their end is older than the horizon.
    - `announcements` has those of roots that still have descendants in `partitions`, by root and
      start timestamp. For each Kafka partition, it has the two newest of a root.
    - `past_roots` has the newest start timestamp of each other root, until it is older than the
      horizon.
    - `last_advance` has an entry for each of `partitions` after `advance`.
    - `low_watermark` is `None` until it is known (WMK-6). It got its value at `low_advanced_at`.
    """

    kafka_partitions: int = 0
    partitions: Mapping[str, StreamPartition] = field(default_factory=dict)
    ended: Mapping[str, Ended] = field(default_factory=dict)
    announcements: Mapping[tuple[str, int], Announcement] = field(default_factory=dict)
    past_roots: Mapping[str, int] = field(default_factory=dict)
    last_advance: Mapping[str, LastAdvance] = field(default_factory=dict)
    low_watermark: int | None = None
    low_advanced_at: int = 0

    @property
    def waiting(self) -> frozenset[str]:
        """The stream partitions that wait for a parent. Until the parent has ended, it delays the
        low watermark.
        """
        unended = {name for name, partition in self.partitions.items() if not partition.has_ended}
        return frozenset(
            name
            for name, partition in self.partitions.items()
            if not unended.isdisjoint(partition.parents)
        )

    @property
    def live(self) -> Mapping[str, StreamPartition]:
        """The stream partitions that the low watermark depends on.

        These are all except the waiting ones, and except those that have ended and have no waiting
        child.
        """
        waiting = self.waiting
        awaited = frozenset[str]().union(*(self.partitions[name].parents for name in waiting))
        return {
            name: partition
            for name, partition in self.partitions.items()
            if name not in waiting and (not partition.has_ended or name in awaited)
        }

    @property
    def undeclared(self) -> list[str]:
        """The live stream partitions that no announcement names (WMK-8)."""
        return [name for name, partition in self.live.items() if not partition.roots]

    @property
    def lagging_partition(self) -> Stall | None:
        """The live stream partition with the least low watermark. It delays the low watermark
        (WMK-3).

        None: there are no live stream partitions.
        """
        k = self.kafka_partitions
        least = min(
            self.live.items(), key=lambda item: (item[1].low_watermark(k), item[0]), default=None
        )
        return (
            None
            if least is None
            else Stall(least[0], least[1].lagging_partition(k), *self.last_advance[least[0]])
        )

    def uncovered(self) -> tuple[str, KeyRange] | None:
        """Find a root whose live stream partitions leave a hole in the key space, or overlap
        (WMK-9).

        Return the root and the key range, or None. Roots that announced the same stream partition
        share the key space. They are not checked while one of their stream partitions waits,
        because then some of its parents may have ended already.
        """
        waiting = frozenset[str]().union(*(self.partitions[name].roots for name in self.waiting))
        ranged = [partition for partition in self.live.values() if partition.key_range is not None]
        for family in _families(partition.roots for partition in ranged if partition.roots):
            wrong = _hole_or_overlap(
                [one.key_range for one in ranged if one.key_range and one.roots & family]
            )
            if wrong is not None and waiting.isdisjoint(family):
                return min(family), wrong
        return None

    def is_stalled(self, now: int, stall_after: int) -> bool:
        """Return whether the low watermark is known and has not moved for `stall_after`
        (TBL-11).
        """
        return self.low_watermark is not None and now - self.low_advanced_at >= stall_after

    def stalls(self, now: int, stall_after: int) -> list[Stall]:
        """Return the live stream partitions whose low watermark has not moved for `stall_after`,
        the longest stall first (WMK-12).
        """
        stalled = [
            Stall(name, one.lagging_partition(self.kafka_partitions), *self.last_advance[name])
            for name, one in self.live.items()
            if now - self.last_advance[name].at >= stall_after
        ]
        return sorted(stalled, key=lambda stall: (stall.since, stall.stream_partition))

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values. `from_json` is the inverse."""
        stored: dict[str, Any] = to_stored(replace(self, announcements={}))
        stored["announcements"] = [
            [root, start, *to_stored(one)] for (root, start), one in self.announcements.items()
        ]
        for name, partition in self.partitions.items():
            if (keys := partition.key_range) is not None:
                in_hex = [keys.start.hex(), None if keys.end is None else keys.end.hex()]
                stored["partitions"][name]["key_range"] = in_hex
            if not partition.epochs:
                stored["partitions"][name].pop("epochs", None)
        return stored

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> Frontier:
        partitions = {
            name: {**one, "key_range": _bytes_of(one["key_range"])}
            for name, one in stored["partitions"].items()
        }
        announcements = {(root, start): one for root, start, *one in stored["announcements"]}
        return from_stored(
            Frontier, {**stored, "partitions": partitions, "announcements": announcements}
        )


UNKNOWN: Final = Frontier()
"""No record was read."""


def advance(
    frontier: Frontier,
    heard: BatchClaims,
    *,
    now: int,
    horizon: int | None = None,
    roots: frozenset[str] = frozenset(),
    ends: Iterable[str] = (),
) -> Frontier:
    """Return the frontier after a batch.

    Args:
        frontier: The frontier before the batch.
        heard: The claims and the lineage of the batch.
        now: The clock of the reader (µs).
        horizon: The horizon that the batch before committed. Older ends are forgotten. An end below
            the horizon counts only for known parents. It does not make other parents known. A
            stream partition that is announced or sends records below the horizon is included: it
            may be new, and behind.
        roots: The stream partitions that the configuration names (WMK-6).
        ends: The stream partitions that an operator closes (WMK-8).
    """
    said = Frontier(kafka_partitions=heard.kafka_partitions)
    if heard.lineage:
        known_since = _second_newest(frontier.announcements)
        for lineage in heard.lineage:
            if not _parents_in(lineage.record):
                said = join(said, _said_by_announcement(lineage, frontier.past_roots, known_since))
    spoke = {
        name: StreamPartition(claims, roots=roots & {name}, epochs=heard.epochs.get(name, {}))
        for name, claims in heard.claims.items()
    }
    facts = join(frontier, join(said, Frontier(partitions=spoke)))
    facts = _with_ends(
        facts, [lineage for lineage in heard.lineage if _parents_in(lineage.record)], horizon
    )
    facts = _with_epochs(facts, heard.epochs, heard.claims)
    for name in ends:
        facts = _ended(facts, name)
    return _settled(_without_omitted(_with_roots(facts), roots), now, horizon, roots)


def join(one: Frontier, other: Frontier) -> Frontier:
    """Combine the facts of both. The operation is commutative, associative and idempotent.

    It draws no conclusions. `advance` does this.
    """
    ended = {**one.ended, **other.ended}
    ended |= {
        name: one.ended[name].join(other.ended[name])
        for name in one.ended.keys() & other.ended.keys()
    }
    for partitions in (one.partitions, other.partitions):
        ended |= {
            name: ended[name].join(partitions[name]) for name in partitions.keys() & ended.keys()
        }
    past_roots = _greatest(one.past_roots, other.past_roots)
    return Frontier(
        kafka_partitions=max(one.kafka_partitions, other.kafka_partitions),
        partitions={
            name: one.partitions.get(name, _NOTHING).join(other.partitions.get(name, _NOTHING))
            for name in sorted({*one.partitions, *other.partitions} - ended.keys())
        },
        ended=ended,
        announcements={
            (root, start): announcement
            for (root, start), announcement in _joined(
                one.announcements, other.announcements
            ).items()
            if start > past_roots.get(root, 0)
        },
        past_roots=past_roots,
        last_advance=_greatest(one.last_advance, other.last_advance),
        low_watermark=max(
            (low for low in (one.low_watermark, other.low_watermark) if low is not None),
            default=None,
        ),
        low_advanced_at=max(one.low_advanced_at, other.low_advanced_at),
    )


def is_claim(watermark: int, arrival: int, max_clock_skew: int) -> bool:
    """Return whether the estimated low watermark of a change is a claim.

    It is not a claim if it is a sentinel (WMK-5), or too far after the record's arrival (REC-15).
    """
    return 0 < watermark <= min(MAX_TIMESTAMP, arrival + max_clock_skew)


_NOTHING: Final = StreamPartition()


def _with_epochs(
    facts: Frontier, epochs: Mapping[str, Mapping[int, int]], spoke: Container[str]
) -> Frontier:
    """Add the epochs of known stream partitions that are not in `spoke`. An epoch makes no stream
    partition known: it may be that of an announcement, and the root may send no records.
    """
    known = {
        name: StreamPartition(epochs=of_one)
        for name, of_one in epochs.items()
        if name in facts.partitions and name not in spoke
    }
    return join(facts, Frontier(partitions=known)) if known else facts


def _parents_in(record: ChildPartitions) -> set[str]:
    """Return the parents in a child-partitions record. An announcement has no parents."""
    return {parent for child in record.children for parent in child.parent_partition_tokens}


def _second_newest(
    announcements: Mapping[tuple[str, int], Announcement],
) -> dict[tuple[str, int], int]:
    """Return the start timestamp of the second newest announcement of each root in each Kafka
    partition, or 0.
    """
    found: dict[tuple[str, int], int] = {}
    newest: dict[tuple[str, int], int] = {}
    for (root, start), one in sorted(announcements.items(), reverse=True):
        for k in one.read_in:
            if newest.setdefault((root, k), start) != start:
                found.setdefault((root, k), start)
    return found


def _said_by_announcement(
    lineage: LineageRecord,
    past_roots: Mapping[str, int],
    known_since: Mapping[tuple[str, int], int],
) -> Frontier:
    """Return the facts of an announcement. One that is older than the two newest of its root says
    nothing: both have omitted the stream partitions that have ended since.
    """
    record, k = lineage.record, lineage.kafka_partition
    root, start = record.stream_partition, record.start_timestamp
    if start <= past_roots.get(root, 0) or start < known_since.get((root, k), 0):
        return UNKNOWN
    children = {
        child.token: StreamPartition(
            roots=frozenset([root]), introduced_at=start, key_range=_key_range(child)
        )
        for child in record.children
    }
    announcement = Announcement(frozenset(children), {k: lineage.kafka_partitions})
    return Frontier(partitions=children, announcements={(root, start): announcement})


def _with_ends(facts: Frontier, ends: Iterable[LineageRecord], horizon: int | None) -> Frontier:
    """Add the facts of ends. An end below the horizon counts only for known parents, because the
    others were forgotten.

    The result of one end may make the parents of another end known.
    """
    said, left, known = UNKNOWN, list(ends), set(facts.partitions)

    def spoken_of(end: LineageRecord) -> set[str]:
        parents = _parents_in(end.record)
        return (
            parents if horizon is None or end.record.start_timestamp >= horizon else parents & known
        )

    while taken := [end for end in left if spoken_of(end)]:
        left = [end for end in left if not spoken_of(end)]
        for end in taken:
            said = join(said, _said_by_end(end, spoken_of(end)))
        known |= said.partitions.keys() - facts.ended.keys()
    return join(facts, said)


def _said_by_end(lineage: LineageRecord, known: set[str]) -> Frontier:
    """Return the facts of an end about its parents in `known`, and about its children.

    Each parent of a merge reports the merge, and the report ends only this parent. If another
    stream partition reports it, the report ends all parents that it names.
    """
    record, start = lineage.record, lineage.record.start_timestamp
    children = {
        child.token: StreamPartition(
            start=start,
            introduced_at=start,
            key_range=_key_range(child),
            parents=frozenset(child.parent_partition_tokens),
        )
        for child in record.children
    }
    end = StreamPartition(
        introduced_at=start,
        ended_in={lineage.kafka_partition: lineage.kafka_partitions},
        ends_at=start,
    )
    parents = _parents_in(record)
    ends = {record.stream_partition} & parents or parents
    named = {
        parent: end if parent in ends else StreamPartition(introduced_at=start) for parent in known
    }
    return Frontier(partitions={**children, **named})


def _with_roots(frontier: Frontier) -> Frontier:
    """Add roots: a child has the roots of its parents, also of ended parents. If it is announced,
    it has this root, too.
    """
    known: dict[str, Ended | StreamPartition] = {**frontier.ended, **frontier.partitions}
    children = {name: one.parents & known.keys() for name, one in known.items() if one.parents}
    roots = {
        name: known[name].roots
        for name in {*children, *(parent for parents in children.values() for parent in parents)}
    }
    changed = True
    while changed:
        changed = False
        for name, parents in children.items():
            before = roots[name]
            roots[name] = before.union(*(roots[parent] for parent in parents))
            changed |= roots[name] != before
    news = {name for name in children if roots[name] != known[name].roots}
    return replace(
        frontier,
        partitions={
            name: replace(one, roots=roots[name]) if name in news else one
            for name, one in frontier.partitions.items()
        },
        ended={
            name: one._replace(roots=roots[name]) if name in news else one
            for name, one in frontier.ended.items()
        },
    )


def _without_omitted(frontier: Frontier, roots: frozenset[str]) -> Frontier:
    """End each descendant that announcements omit, in the Kafka partitions where they were read
    (WMK-6).

    If it has several roots, the announcements of all its roots must omit it. If reading started in
    the middle of the topic, its roots may be unknown. Then all roots of the configuration must omit
    it.
    """
    said: dict[str, list[tuple[int, Announcement]]] = {}
    for (root, start), announcement in sorted(frontier.announcements.items(), reverse=True):
        said.setdefault(root, []).append((start, announcement))
    partitions = dict(frontier.partitions)
    for name, one in frontier.partitions.items():
        omitted = [
            _omitted_in(name, one.introduced_at, said.get(root, ())) for root in one.roots or roots
        ]
        if not omitted or not (places := set(omitted[0]).intersection(*omitted)):
            continue
        end = StreamPartition(
            ended_in={k: max(of_one[k].sent_to for of_one in omitted) for k in places},
            ends_at=max(of_one[k].at for of_one in omitted for k in places),
        )
        partitions[name] = one.join(end)
    return replace(frontier, partitions=partitions)


class _Omission(NamedTuple):
    """The time of an announcement that omits a stream partition, and the number of Kafka partitions
    that it was sent to.
    """

    at: int
    sent_to: int


def _omitted_in(
    name: str, introduced_at: int, newest_first: Iterable[tuple[int, Announcement]]
) -> dict[int, _Omission]:
    """Return the Kafka partitions in which the announcements of a root end a stream partition.

    An announcement that omits it ends it once a later one that omits it, too, was read in the Kafka
    partition: until then, it may be named in a part that is still to come. An announcement without
    stream partitions ends it at once.
    """
    found: dict[int, _Omission] = {}
    named_in, omitted_in = set[int](), set[int]()
    for start, announcement in newest_first:
        places = announcement.read_in.keys() - named_in
        if name in announcement.live or start <= introduced_at:
            named_in |= places
            continue
        found |= {
            k: _Omission(start, announcement.read_in[k])
            for k in places
            if k in omitted_in or not announcement.live
        }
        omitted_in |= places
    return found


def _ended(frontier: Frontier, name: str) -> Frontier:
    """End a stream partition in all Kafka partitions, at its low watermark."""
    one = frontier.partitions.get(name, _NOTHING)
    at = max(frontier.low_watermark or 0, one.low_watermark(frontier.kafka_partitions))
    return join(frontier, Frontier(ended={name: Ended(at)}))


def _settled(facts: Frontier, now: int, horizon: int | None, roots: frozenset[str]) -> Frontier:
    """Draw the conclusions from the facts: ended stream partitions, the low watermark, and what can
    be forgotten.
    """
    waiting, live = facts.waiting, facts.live
    low = _low_watermark(facts, live, roots)
    over = {
        name: Ended(one.ends_at, one.roots, one.parents)
        for name, one in facts.partitions.items()
        if name not in live and name not in waiting
    }
    partitions = {name: one for name, one in facts.partitions.items() if name not in over}
    past = _past_roots(facts, partitions, roots)
    settled = replace(
        facts,
        partitions=partitions,
        ended={
            name: one
            for name, one in {**facts.ended, **over}.items()
            if horizon is None or one.at >= horizon
        },
        announcements=_newest_two(
            {
                (root, start): announcement
                for (root, start), announcement in facts.announcements.items()
                if root not in past
            }
        ),
        past_roots={
            root: newest
            for root, newest in {**facts.past_roots, **past}.items()
            if horizon is None or newest >= horizon
        },
        last_advance={
            name: _moved(
                facts.last_advance.get(name), one.low_watermark(facts.kafka_partitions), now
            )
            for name, one in partitions.items()
        },
        low_watermark=low,
        low_advanced_at=facts.low_advanced_at if low == facts.low_watermark else now,
    )
    return settled if horizon is None else _without_old_roots(settled, horizon, roots)


def _newest_two(
    announcements: Mapping[tuple[str, int], Announcement],
) -> dict[tuple[str, int], Announcement]:
    """Keep the two newest announcements of each root in each Kafka partition."""
    since, kept = _second_newest(announcements), {}
    for (root, start), one in sorted(announcements.items()):
        read_in = {k: n for k, n in one.read_in.items() if start >= since.get((root, k), 0)}
        if read_in:
            kept[root, start] = one._replace(read_in=read_in)
    return kept


def _past_roots(
    facts: Frontier, partitions: Mapping[str, StreamPartition], roots: frozenset[str]
) -> dict[str, int]:
    """Return the newest start timestamp of each root that has no descendants in `partitions` and is
    not in the configuration.

    The newest announcement must be read in every Kafka partition that it was sent to. Otherwise,
    another Kafka partition may still have an older announcement with other names.
    """
    current = roots.union(*(one.roots for one in partitions.values()))
    newest = _newest(facts)
    return {
        root: start
        for root, start in newest.items()
        if root not in current and is_read_everywhere(facts.announcements[root, start].read_in)
    }


def _newest(facts: Frontier) -> dict[str, int]:
    """Return the start timestamp of the newest announcement of each root."""
    return dict(sorted(facts.announcements))


def _without_old_roots(facts: Frontier, horizon: int, roots: frozenset[str]) -> Frontier:
    """Forget the roots below the horizon that no stream partition needs (WMK-9).

    A stream partition needs the youngest of its roots whose announcement was read everywhere, and
    each younger one. Stream partitions with key ranges share a key space if they share a root, so a
    root that connects them is kept, too.
    """
    newest = _newest(facts)
    old = {root for root, start in newest.items() if start < horizon and root not in roots}
    if not old:
        return facts
    declared = _declared(facts)
    known: list[Ended | StreamPartition] = [*facts.partitions.values(), *facts.ended.values()]
    for one in known:
        age = {root: (newest[root], root) for root in one.roots & newest.keys()}
        youngest = max((age[root] for root in age.keys() & declared), default=(0, ""))
        old -= {root for root in age if age[root] >= youngest}
    old -= _connecting(facts.partitions, old, newest)
    return replace(
        facts,
        partitions={
            name: replace(one, roots=one.roots - old) for name, one in facts.partitions.items()
        },
        ended={name: one._replace(roots=one.roots - old) for name, one in facts.ended.items()},
        announcements={
            (root, start): one
            for (root, start), one in facts.announcements.items()
            if root not in old
        },
    )


def _connecting(
    partitions: Mapping[str, StreamPartition], old: set[str], newest: Mapping[str, int]
) -> set[str]:
    """Return those of the `old` roots without which stream partitions with key ranges would not
    share a key space any more, the youngest where several would do.
    """
    below: dict[str, list[str]] = {}
    for name, one in partitions.items():
        if one.key_range is not None:
            for root in one.roots:
                below.setdefault(root, []).append(name)
    joined_to = {name: name for names in below.values() for name in names}

    def space_of(name: str) -> str:
        while joined_to[name] != name:
            name = joined_to[name]
        return name

    found = set[str]()
    youngest_first = sorted(
        below, key=lambda root: (root not in old, newest.get(root, 0), root), reverse=True
    )
    for root in youngest_first:
        spaces = {space_of(name) for name in below[root]}
        joined_to |= dict.fromkeys(spaces, min(spaces))
        if len(spaces) > 1 and root in old:
            found.add(root)
    return found


def _low_watermark(
    facts: Frontier, live: Mapping[str, StreamPartition], roots: frozenset[str]
) -> int | None:
    """Return the least low watermark of the live stream partitions, but never less than before.

    If it cannot be determined, return the one before (WMK-3, WMK-6, WMK-9).
    """
    is_known = facts.low_watermark is not None or _is_declared(facts, live, roots)
    if not is_known or not live or facts.uncovered() is not None:
        return facts.low_watermark
    least = min(partition.low_watermark(facts.kafka_partitions) for partition in live.values())
    return max(facts.low_watermark or 0, least) or None


def _is_declared(
    facts: Frontier, live: Mapping[str, StreamPartition], roots: frozenset[str]
) -> bool:
    """Return whether the descendants of all necessary roots are known in every Kafka partition.

    The necessary roots are those of the configuration, and at least one root of each live stream
    partition. The descendants are known from announcements, or because a root of the configuration
    sent records itself.

    An announcement in one Kafka partition is not enough if reading started in the middle of the
    topic. Another Kafka partition may have changes of a stream partition that the announcement no
    longer names.
    """
    spoke = {
        name: dict.fromkeys(facts.partitions[name].claims, facts.kafka_partitions)
        for name in roots & facts.partitions.keys()
    }
    declared = _declared(facts, spoke) | facts.past_roots.keys()
    named = roots - facts.ended.keys()
    return (
        bool(declared)
        and named <= declared
        and all(one.roots & declared for one in live.values() if one.roots)
    )


def _declared(facts: Frontier, spoke: Mapping[str, Mapping[int, int]] | None = None) -> set[str]:
    """Return the roots whose announcements were read in every Kafka partition that they were sent
    to. Those that `spoke` need none in the Kafka partitions where they did.
    """
    read_in = dict(spoke or {})
    for (root, _), announcement in facts.announcements.items():
        read_in[root] = least(read_in.get(root, {}), announcement.read_in)
    return {root for root, places in read_in.items() if is_read_everywhere(places)}


def _moved(before: LastAdvance | None, watermark: int, now: int) -> LastAdvance:
    return (
        before
        if before is not None and watermark <= before.watermark
        else LastAdvance(watermark, now)
    )


def _families(related: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Group the roots. Roots that occur in the same set are in the same group."""
    families: list[frozenset[str]] = []
    for roots in related:
        touched = [family for family in families if family & roots]
        families = [*(family for family in families if not family & roots), roots.union(*touched)]
    return families


def _hole_or_overlap(ranges: list[KeyRange]) -> KeyRange | None:
    """Return the first part of the key space that no range covers, or that two ranges cover."""
    covered: bytes | None = b""
    for start, end in sorted(ranges, key=lambda keys: keys.start):
        if covered is None or start < covered:
            return KeyRange(
                start, min((key for key in (covered, end) if key is not None), default=None)
            )
        if start > covered:
            return KeyRange(covered, start)
        covered = end
    return None if covered is None else KeyRange(covered, None)


def _key_range(child: ChildPartition) -> KeyRange | None:
    return (
        None
        if child.start_key is None and child.end_key is None
        else KeyRange(child.start_key or b"", child.end_key or None)
    )


def _joined(
    one: Mapping[tuple[str, int], Announcement], other: Mapping[tuple[str, int], Announcement]
) -> dict[tuple[str, int], Announcement]:
    both = {said: one[said].join(other[said]) for said in one.keys() & other.keys()}
    return {**one, **other, **both}


def _greatest(one: Mapping[str, _Said], other: Mapping[str, _Said]) -> dict[str, _Said]:
    """Return the greater value of both maps for each name."""
    both = {name: max(one[name], other[name]) for name in one.keys() & other.keys()}
    return {**one, **other, **both}


def _bytes_of(in_hex: list[str | None] | None) -> list[bytes | None] | None:
    return (
        None if in_hex is None else [key if key is None else bytes.fromhex(key) for key in in_hex]
    )
