"""The lineage of stream partitions that one producer knows, and its announcements (WMK-6, WMK-7).
docs/explanation/watermarks.md has the theory of a producer that starts again.

Theory. An announcement ends those descendants of its root that it omits and that began before its
time. So it must be true for its time, even if other processes have announced something else, or if
the source is far behind the clock. Therefore an announcement has a source timestamp. All live
descendants of the root are known to have reached this time. It names the descendants that were live
at this time, even if they have ended since.
Later children are not named. They begin later, so this announcement cannot end them. If it named
them, an announcement of another process with a time between the two could end them, because it
would omit them.
An announcement may have several parts, and other records may be sent between them. So a name that
the caller's announcement omits ends only when all parts are known to be sent (`complete`). Then a
further announcement with a later start timestamp omits it, too, because readers wait for that.

These are plain values that the producer uses. Times are microseconds. `now` is the clock of the
producer. All other times are of the source.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    Record,
    time_of,
)
from connector.watermarks.stream_partition import parents_in

REPETITIONS: Final = 5
"""Announcements within the topic's retention. It is one more than WMK-6 requires, because a
repetition waits until a record is sent.
"""
CATCHING_UP: Final = 1000
"""The same number while an announcement names stream partitions that have ended. A reader that
starts after it waits for their end.
"""
COMPLETE_AFTER: Final = 60_000_000
"""All parts of an announcement are sent if the caller sends something else this long after the
last one.
"""

_Keys = tuple[bytes | None, bytes | None]


class _Announced(NamedTuple):
    """The newest announcement of a root.

    `empty_since` is the time (clock of the producer) since when it names no live stream partition,
    or 0. `is_current` means that all named stream partitions are live. `omitted` are the other live
    descendants of the root: they may be in a part that is still to come, or have ended. `sent_at`
    is the time (clock of the producer) of the caller's last part.
    """

    start_timestamp: int
    record_sequence: int
    live: frozenset[str]
    empty_since: int
    is_current: bool
    omitted: frozenset[str]
    sent_at: int


class _End(NamedTuple):
    """The time of an end at the source, and the time when this process learned of it."""

    at: int
    learned_at: int


@dataclass(slots=True)
class Announcements:
    """The lineage that one process knows from the child partitions that it sent. `retention` is
    that of the topic.

    Call `due` before each record, and send its result before the record. Call `sent` for the child
    partitions of the caller, and `complete` when all parts of its announcements are sent. Names are
    forgotten one retention after their end.
    """

    retention: int
    _newest: dict[str, _Announced] = field(default_factory=dict)
    _lived: dict[str, int] = field(default_factory=dict)
    _children: dict[str, frozenset[str]] = field(default_factory=dict)
    _born: dict[str, int] = field(default_factory=dict)
    _ended: dict[str, _End] = field(default_factory=dict)
    _keys: dict[str, _Keys] = field(default_factory=dict)
    _repeat_at: int = 0
    _catch_up_at: int = 0

    def due(self, record: Record, now: int, *, is_automatic: bool = False) -> list[ChildPartitions]:
        """Return the announcements to send before `record`.

        A stream partition is announced before its first record. All roots are announced when a
        repetition is due. An automatic record, and a further announcement of a root, say nothing
        about the parts of its announcement.
        """
        if not is_automatic:
            is_announcement = isinstance(record, ChildPartitions) and not parents_in(record)
            self.complete(
                now, COMPLETE_AFTER, besides=record.stream_partition if is_announcement else ""
            )
        announcements = self._again(now) if now >= self._catch_up_at else []
        speakers = (
            sorted(self.ended_by(record))
            if isinstance(record, ChildPartitions)
            else (record.stream_partition,)
        )
        # The record may end it. A time in the future is not used, because it may be a mistake.
        lived = time_of(record) - 1
        if lived > now:
            lived = 0
        for name in speakers:
            lived_to = self._lived.get(name)
            if lived_to is None:
                announcements.append(self._first(name, lived, now))
            elif lived > lived_to:
                self._lived[name] = lived
        return announcements

    def ended_by(self, record: ChildPartitions) -> set[str]:
        """Return the stream partitions that `record` ends: its parents, or those that an
        announcement omits. The next part of the announcement may still name the latter.

        Each parent of a merge reports the merge, and the report ends only this parent.
        """
        parents = parents_in(record)
        if parents:
            return {record.stream_partition} & parents or parents
        root, newest = record.stream_partition, self._newest.get(record.stream_partition)
        if newest is None or record.start_timestamp <= newest.start_timestamp:
            return set()
        born_before = {
            name
            for name in self._below(root) | newest.omitted
            if self._born.get(name, 0) < record.start_timestamp
        }
        named = {child.token for child in record.children}
        return born_before.difference(
            named, *(self._below(other) for other in self._newest if other != root)
        )

    def sent(self, record: ChildPartitions, now: int) -> None:
        """Learn from child partitions that are sent."""
        root, at = record.stream_partition, record.start_timestamp
        newest = self._newest.get(root)
        is_announcement = not parents_in(record)
        if is_announcement and newest is not None and at < newest.start_timestamp:
            return
        ended, omitted = self.ended_by(record), frozenset[str]()
        if is_announcement and record.children:
            # A later announcement omits them, too.
            omitted, ended = frozenset(ended), ended & newest.omitted if newest else set()
            omitted -= ended
        self._end(ended, at, now)
        for child in record.children:
            for parent in child.parent_partition_tokens:
                self._children[parent] = self._children.get(parent, frozenset()) | {child.token}
                self._born[child.token] = at
            self._lived[child.token] = max(self._lived.get(child.token, 0), at)
            if child.start_key is not None or child.end_key is not None:
                self._keys[child.token] = child.start_key, child.end_key
        if is_announcement:
            live = frozenset(child.token for child in record.children)
            sequence = record.record_sequence
            if newest is not None and at == newest.start_timestamp:  # another part of it
                omitted, live = newest.omitted - live, newest.live | live
                sequence = max(sequence, newest.record_sequence)
            self._newest[root] = _Announced(
                *(at, sequence, live, 0 if live else now),
                is_current=True,
                omitted=omitted,
                sent_at=now,
            )

    def complete(self, now: int, after: int = 0, *, besides: str = "") -> bool:
        """End the names that the caller's announcements omit, if their last part was sent at least
        `after` ago. The next announcement of these roots has a later start timestamp, and is due.

        Returns whether there are any. The root `besides` is left out.
        """
        incomplete = {
            root: announced
            for root, announced in self._newest.items()
            if announced.omitted
            and root != besides
            and (not after or now - announced.sent_at >= after)
        }
        for root, announced in incomplete.items():
            self._end(announced.omitted, announced.start_timestamp, now)
            self._newest[root] = announced._replace(
                start_timestamp=announced.start_timestamp + 1,
                record_sequence=0,
                is_current=False,
                omitted=frozenset(),
            )
            self._catch_up_at = 0
        return bool(incomplete)

    def knows(self, stream_partition: str) -> bool:
        """Return whether a record or an announcement has named the stream partition."""
        return stream_partition in self._lived

    def live(self) -> list[str]:
        """Return the stream partitions that are known and have not ended, sorted."""
        return sorted(self._lived.keys() - self._ended.keys())

    def has_ended(self, stream_partition: str) -> bool:
        return stream_partition in self._ended

    def repeated(self, now: int) -> list[ChildPartitions]:
        """Return the announcements of all roots, to send them again now."""
        self.again_soon()
        return self._again(now)

    def again_soon(self) -> None:
        """Announce all roots again before the next record."""
        self._repeat_at = self._catch_up_at = 0

    def copy(self) -> Announcements:
        """Copy the state, so that it can be restored."""
        return Announcements(
            self.retention,
            self._newest.copy(),
            self._lived.copy(),
            self._children.copy(),
            self._born.copy(),
            self._ended.copy(),
            self._keys.copy(),
            self._repeat_at,
            self._catch_up_at,
        )

    def _end(self, names: Iterable[str], at: int, now: int) -> None:
        for name in names:
            self._ended.setdefault(name, _End(at, now))

    def _first(self, name: str, lived: int, now: int) -> ChildPartitions:
        self._lived[name] = max(1, lived)
        # A caller may have announced a root with this name. Then include its descendants.
        announcement = self._announcement(
            name, self._lived[name], 0, {name, *self._below(name, self._lived[name])}
        )
        self.sent(announcement, now)
        return announcement

    def _again(self, now: int) -> list[ChildPartitions]:
        """Announce all roots if a repetition is due. Otherwise, only those whose newest
        announcement is not current.
        """
        is_time = now >= self._repeat_at
        if is_time:
            self._repeat_at = now + self.retention // REPETITIONS
        announcements = []
        for root, announced in self._newest.items():
            if announced.is_current and not is_time:
                continue
            live = self._below(root)
            lived = min((self._lived[name] for name in live), default=0)
            # A later one would end those that a part that is still to come may name.
            start = max(announced.start_timestamp, 0 if announced.omitted else min(lived, now))
            sequence = announced.record_sequence if start == announced.start_timestamp else 0
            named = self._below(root, start)
            self._newest[root] = _Announced(
                start,
                sequence,
                frozenset(named),
                0 if live else announced.empty_since or now,
                named == live,
                announced.omitted,
                announced.sent_at,
            )
            announcements.append(self._announcement(root, start, sequence, named))
        is_current = all(announced.is_current for announced in self._newest.values())
        self._catch_up_at = (
            self._repeat_at
            if is_current
            else min(self._repeat_at, now + self.retention // CATCHING_UP)
        )
        self._forget(now - self.retention)
        return announcements

    def _announcement(
        self, root: str, start: int, sequence: int, live: set[str]
    ) -> ChildPartitions:
        return ChildPartitions(
            root,
            start,
            sequence,
            tuple(ChildPartition(name, (), *self._keys.get(name, ())) for name in sorted(live)),
        )

    def _forget(self, before: int) -> None:
        # Keep ended stream partitions that connect a root with its descendants.
        descended = set[str]().union(*(self._descended(root) for root in self._newest))
        for name in [
            name
            for name, end in self._ended.items()
            if end.learned_at < before and name not in descended
        ]:
            for by_name in (self._ended, self._born, self._lived, self._children, self._keys):
                by_name.pop(name, None)
        for root in [
            root for root, announced in self._newest.items() if 0 < announced.empty_since < before
        ]:
            del self._newest[root]

    def _below(self, root: str, at: int | None = None) -> set[str]:
        """Return the known live descendants of a root, now or at a time of the source."""
        descended = self._descended(root)
        if at is None:
            return descended - self._ended.keys()
        return {
            name
            for name in descended
            if self._born.get(name, 0) <= at
            and (name not in self._ended or at < self._ended[name].at)
        }

    def _descended(self, root: str) -> set[str]:
        """Return the names in the newest announcement of a root, and all their descendants, live or
        ended.
        """
        names: set[str] = set()
        ways = list(self._newest[root].live) if root in self._newest else []
        while ways:
            name = ways.pop()
            if name not in names:
                names.add(name)
                ways.extend(self._children.get(name, ()))
        return names & self._lived.keys()
