"""How a frontier advances with the claims and the lineage of a batch (WMK).

Facts are joined first. Then conclusions follow from them: which stream partitions have ended, the
low watermark, and what can be forgotten.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from connector.records.model import ChildPartition
from connector.watermarks.frontier import (
    NOTHING,
    UNKNOWN,
    Announcement,
    BatchClaims,
    Ended,
    Frontier,
    LastAdvance,
    LineageRecord,
    join,
)
from connector.watermarks.stream_partition import (
    KeyRange,
    StreamPartition,
    is_read_everywhere,
    least,
    parents_in,
)


def advance(
    frontier: Frontier,
    batch: BatchClaims,
    *,
    now: int,
    horizon: int | None = None,
    roots: frozenset[str] = frozenset(),
    ends: Iterable[str] = (),
) -> Frontier:
    """Return the frontier after a batch.

    Args:
        frontier: The frontier before the batch.
        batch: The claims and the lineage of the batch.
        now: The clock of the reader (µs).
        horizon: The horizon that the batch before committed. Older ends are forgotten. An end below
            the horizon counts only for known parents. It does not make other parents known. A
            stream partition that is announced or sends records below the horizon is included: it
            may be new, and behind.
        roots: The stream partitions that the configuration names (WMK-6).
        ends: The stream partitions that an operator closes (WMK-8).
    """
    news = Frontier(kafka_partitions=batch.kafka_partitions)
    if batch.lineage:
        second_newest = _second_newest(frontier.announcements)
        for lineage in batch.lineage:
            if not parents_in(lineage.record):
                news = join(
                    news, _facts_of_announcement(lineage, frontier.past_roots, second_newest)
                )
    senders = {
        name: StreamPartition(claims, roots=roots & {name}, epochs=batch.epochs.get(name, {}))
        for name, claims in batch.claims.items()
    }
    facts = join(frontier, join(news, Frontier(partitions=senders)))
    facts = _with_ends(
        facts, [lineage for lineage in batch.lineage if parents_in(lineage.record)], horizon
    )
    facts = _with_epochs(facts, batch.epochs, batch.claims)
    for name in ends:
        facts = _ended(facts, name)
    return _settled(_without_omitted(_with_roots(facts), roots), now, horizon, roots)


def _with_epochs(
    facts: Frontier, epochs: Mapping[str, Mapping[int, int]], senders: Container[str]
) -> Frontier:
    """Add the epochs of known stream partitions that are not in `senders`. An epoch makes no stream
    partition known: it may be that of an announcement, and the root may send no records.
    """
    silent = {
        name: StreamPartition(epochs=by_kafka_partition)
        for name, by_kafka_partition in epochs.items()
        if name in facts.partitions and name not in senders
    }
    return join(facts, Frontier(partitions=silent)) if silent else facts


def _second_newest(
    announcements: Mapping[tuple[str, int], Announcement],
) -> dict[tuple[str, int], int]:
    """Return the start timestamp of the second newest announcement of each root in each Kafka
    partition, or 0.
    """
    second: dict[tuple[str, int], int] = {}
    newest: dict[tuple[str, int], int] = {}
    for (root, start), announcement in sorted(announcements.items(), reverse=True):
        for k in announcement.read_in:
            if newest.setdefault((root, k), start) != start:
                second.setdefault((root, k), start)
    return second


def _facts_of_announcement(
    lineage: LineageRecord,
    past_roots: Mapping[str, int],
    second_newest: Mapping[tuple[str, int], int],
) -> Frontier:
    """Return the facts of an announcement. One that is older than the two newest of its root has
    none: both have omitted the stream partitions that have ended since.
    """
    record, k = lineage.record, lineage.kafka_partition
    root, start = record.stream_partition, record.start_timestamp
    if start <= past_roots.get(root, 0) or start < second_newest.get((root, k), 0):
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
    news, left, partition_names = UNKNOWN, list(ends), set(facts.partitions)

    def parents_of(end: LineageRecord) -> set[str]:
        parents = parents_in(end.record)
        is_young = horizon is None or end.record.start_timestamp >= horizon
        return parents if is_young else parents & partition_names

    while taken := [end for end in left if parents_of(end)]:
        left = [end for end in left if not parents_of(end)]
        for end in taken:
            news = join(news, _facts_of_end(end, parents_of(end)))
        partition_names |= news.partitions.keys() - facts.ended.keys()
    return join(facts, news)


def _facts_of_end(lineage: LineageRecord, parents: set[str]) -> Frontier:
    """Return the facts of an end about some of its parents, and about its children.

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
    named = parents_in(record)
    ends = {record.stream_partition} & named or named
    of_parents = {
        parent: end if parent in ends else StreamPartition(introduced_at=start)
        for parent in parents
    }
    return Frontier(partitions={**children, **of_parents})


def _with_roots(frontier: Frontier) -> Frontier:
    """Add roots: a child has the roots of its parents, also of ended parents. If it is announced,
    it has this root, too.
    """
    partitions_by_name: dict[str, Ended | StreamPartition] = {
        **frontier.ended,
        **frontier.partitions,
    }
    children = {
        name: partition.parents & partitions_by_name.keys()
        for name, partition in partitions_by_name.items()
        if partition.parents
    }
    roots = {
        name: partitions_by_name[name].roots
        for name in {*children, *(parent for parents in children.values() for parent in parents)}
    }
    changed = True
    while changed:
        changed = False
        for name, parents in children.items():
            before = roots[name]
            roots[name] = before.union(*(roots[parent] for parent in parents))
            changed |= roots[name] != before
    news = {name for name in children if roots[name] != partitions_by_name[name].roots}
    return replace(
        frontier,
        partitions={
            name: replace(partition, roots=roots[name]) if name in news else partition
            for name, partition in frontier.partitions.items()
        },
        ended={
            name: partition._replace(roots=roots[name]) if name in news else partition
            for name, partition in frontier.ended.items()
        },
    )


def _without_omitted(frontier: Frontier, roots: frozenset[str]) -> Frontier:
    """End each descendant that announcements omit, in the Kafka partitions where they were read
    (WMK-6).

    If it has several roots, the announcements of all its roots must omit it. If reading started in
    the middle of the topic, its roots may be unknown. Then all roots of the configuration must omit
    it.
    """
    by_root: dict[str, list[tuple[int, Announcement]]] = {}
    for (root, start), announcement in sorted(frontier.announcements.items(), reverse=True):
        by_root.setdefault(root, []).append((start, announcement))
    partitions = dict(frontier.partitions)
    for name, partition in frontier.partitions.items():
        omissions = [
            _omitted_in(name, partition.introduced_at, by_root.get(root, ()))
            for root in partition.roots or roots
        ]
        if not omissions or not (omitted := set(omissions[0]).intersection(*omissions)):
            continue
        end = StreamPartition(
            ended_in={k: max(of_root[k].sent_to for of_root in omissions) for k in omitted},
            ends_at=max(of_root[k].at for of_root in omissions for k in omitted),
        )
        partitions[name] = partition.join(end)
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
    omissions: dict[int, _Omission] = {}
    named_in, omitted_in = set[int](), set[int]()
    for start, announcement in newest_first:
        read_in = announcement.read_in.keys() - named_in
        if name in announcement.live or start <= introduced_at:
            named_in |= read_in
            continue
        omissions |= {
            k: _Omission(start, announcement.read_in[k])
            for k in read_in
            if k in omitted_in or not announcement.live
        }
        omitted_in |= read_in
    return omissions


def _ended(frontier: Frontier, name: str) -> Frontier:
    """End a stream partition in all Kafka partitions, at its low watermark."""
    partition = frontier.partitions.get(name, NOTHING)
    at = max(frontier.low_watermark or 0, partition.low_watermark(frontier.kafka_partitions))
    return join(frontier, Frontier(ended={name: Ended(at)}))


def _settled(facts: Frontier, now: int, horizon: int | None, roots: frozenset[str]) -> Frontier:
    """Draw the conclusions from the facts: ended stream partitions, the low watermark, and what can
    be forgotten.
    """
    waiting, live = facts.waiting, facts.live
    low = _low_watermark(facts, live, roots)
    ended = {
        name: Ended(partition.ends_at, partition.roots, partition.parents)
        for name, partition in facts.partitions.items()
        if name not in live and name not in waiting
    }
    partitions = {
        name: partition for name, partition in facts.partitions.items() if name not in ended
    }
    past = _past_roots(facts, partitions, roots)
    settled = replace(
        facts,
        partitions=partitions,
        ended={
            name: entry
            for name, entry in {**facts.ended, **ended}.items()
            if horizon is None or entry.at >= horizon
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
                facts.last_advance.get(name), entry.low_watermark(facts.kafka_partitions), now
            )
            for name, entry in partitions.items()
        },
        low_watermark=low,
        low_advanced_at=facts.low_advanced_at if low == facts.low_watermark else now,
    )
    return settled if horizon is None else _without_old_roots(settled, horizon, roots)


def _newest_two(
    announcements: Mapping[tuple[str, int], Announcement],
) -> dict[tuple[str, int], Announcement]:
    """Keep the two newest announcements of each root in each Kafka partition."""
    since, newest = _second_newest(announcements), {}
    for (root, start), announcement in sorted(announcements.items()):
        read_in = {
            k: n for k, n in announcement.read_in.items() if start >= since.get((root, k), 0)
        }
        if read_in:
            newest[root, start] = announcement._replace(read_in=read_in)
    return newest


def _past_roots(
    facts: Frontier, partitions: Mapping[str, StreamPartition], roots: frozenset[str]
) -> dict[str, int]:
    """Return the newest start timestamp of each root that has no descendants in `partitions` and is
    not in the configuration.

    The newest announcement must be read in every Kafka partition that it was sent to. Otherwise,
    another Kafka partition may still have an older announcement with other names.
    """
    current = roots.union(*(partition.roots for partition in partitions.values()))
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
    entries: list[Ended | StreamPartition] = [*facts.partitions.values(), *facts.ended.values()]
    for entry in entries:
        age = {root: (newest[root], root) for root in entry.roots & newest.keys()}
        youngest = max((age[root] for root in age.keys() & declared), default=(0, ""))
        old -= {root for root in age if age[root] >= youngest}
    old -= _connecting(facts.partitions, old, newest)
    return replace(
        facts,
        partitions={
            name: replace(entry, roots=entry.roots - old)
            for name, entry in facts.partitions.items()
        },
        ended={
            name: entry._replace(roots=entry.roots - old) for name, entry in facts.ended.items()
        },
        announcements={
            (root, start): entry
            for (root, start), entry in facts.announcements.items()
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
    for name, partition in partitions.items():
        if partition.key_range is not None:
            for root in partition.roots:
                below.setdefault(root, []).append(name)
    joined_to = {name: name for names in below.values() for name in names}

    def space_of(name: str) -> str:
        while joined_to[name] != name:
            name = joined_to[name]
        return name

    connecting = set[str]()
    youngest_first = sorted(
        below, key=lambda root: (root not in old, newest.get(root, 0), root), reverse=True
    )
    for root in youngest_first:
        spaces = {space_of(name) for name in below[root]}
        joined_to |= dict.fromkeys(spaces, min(spaces))
        if len(spaces) > 1 and root in old:
            connecting.add(root)
    return connecting


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
    sent = {
        name: dict.fromkeys(facts.partitions[name].claims, facts.kafka_partitions)
        for name in roots & facts.partitions.keys()
    }
    declared = _declared(facts, sent) | facts.past_roots.keys()
    named = roots - facts.ended.keys()
    return (
        bool(declared)
        and named <= declared
        and all(partition.roots & declared for partition in live.values() if partition.roots)
    )


def _declared(facts: Frontier, sent: Mapping[str, Mapping[int, int]] | None = None) -> set[str]:
    """Return the roots whose announcements were read in every Kafka partition that they were sent
    to. Those in `sent` need none in the Kafka partitions where they have sent records.
    """
    read_in = dict(sent or {})
    for (root, _), announcement in facts.announcements.items():
        read_in[root] = least(read_in.get(root, {}), announcement.read_in)
    return {root for root, read in read_in.items() if is_read_everywhere(read)}


def _moved(before: LastAdvance | None, watermark: int, now: int) -> LastAdvance:
    return (
        before
        if before is not None and watermark <= before.watermark
        else LastAdvance(watermark, now)
    )


def _key_range(child: ChildPartition) -> KeyRange | None:
    return (
        None
        if child.start_key is None and child.end_key is None
        else KeyRange(child.start_key or b"", child.end_key or None)
    )
