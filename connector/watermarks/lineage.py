"""Who lives below which root, as far as one producer knows, and what is to be announced of it when (WMK-6, WMK-7).

Theory. An announcement ends those descendants of its root that it leaves out and that began before its time. So it must be true
of that time, whatever other processes have announced, and however far behind the clock the source may lag. It bears the source's
time: one that all who live below the root are known to have reached, and it names those who lived then, be they over since.
Exactly these had come of the root; what splits off later begins later, and no announcement of that time can end it. Nor is it
named yet: another process may announce a time between the two, at which it has not begun, and would end it.
A producer that begins anew knows of nobody. The first stream partition that speaks is announced as a root of its own, as of just
before what it says: nothing can have come of it by then, so nobody is left out, and others who descend from the same root are
not spoken for. All roots are announced again, with all that live below them, several times in the topic's retention.

Plain values; the producer asks them. Times are microseconds; `now` is the producer's clock, everything else the source's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connector.records.model import ChildPartition, ChildPartitions, DataChange, Heartbeat, Record

REPETITIONS: Final = 5
"""How often in the topic's retention: once more than WMK-6 wants, as a repetition waits until something is sent."""
CATCHING_UP: Final = 1000
"""How often, where an announcement had to name some who are over since: who begins to read behind it waits for their end."""

_Keys = tuple[bytes | None, bytes | None]


class _Said(NamedTuple):
    """The newest announcement of a root.

    `empty_since` is when it left nobody, by the producer's clock; 0 while somebody lives. `is_current`: all whom it names live still.
    """

    start_timestamp: int
    record_sequence: int
    live: frozenset[str]
    empty_since: int
    is_current: bool = True


class _End(NamedTuple):
    """When a stream partition ended at the source, and when this process heard of it."""

    at: int
    heard_at: int


@dataclass(slots=True)
class Announcements:
    """What one process knows of lineage: what it was told by the child partitions that it sent. `retention` is the topic's.

    `due` is asked before each record, and what it returns goes out before the record. `sent` hears of child partitions that a
    caller sends. Names are forgotten when they have been over for the retention.
    """

    retention: int
    _said: dict[str, _Said] = field(default_factory=dict)
    _lived: dict[str, int] = field(default_factory=dict)
    _children: dict[str, frozenset[str]] = field(default_factory=dict)
    _born: dict[str, int] = field(default_factory=dict)
    _ended: dict[str, _End] = field(default_factory=dict)
    _keys: dict[str, _Keys] = field(default_factory=dict)
    _repeat_at: int = 0
    _catch_up_at: int = 0

    def due(self, record: Record, now: int) -> list[ChildPartitions]:
        """What is to be announced before `record`: those who speak for the first time, and everybody when it is time again."""
        announcements = self._again(now) if now >= self._catch_up_at else []
        speakers = sorted(self.ended_by(record)) if isinstance(record, ChildPartitions) else (record.stream_partition,)
        # It may be over with this record. A time that lies ahead is no witness: it may be a mistake.
        lived = _time(record) - 1
        if lived > now:
            lived = 0
        for name in speakers:
            known = self._lived.get(name)
            if known is None:
                announcements.append(self._first(name, lived, now))
            elif lived > known:
                self._lived[name] = lived
        return announcements

    def ended_by(self, record: ChildPartitions) -> set[str]:
        """The stream partitions that are over once `record` is read: its parents, or those whom an announcement leaves out.

        A merge is reported by each of its parents, and ends the one that reports.
        """
        parents = {parent for child in record.children for parent in child.parent_partition_tokens}
        if parents:
            return {record.stream_partition} & parents or parents
        left_out = self._below(record.stream_partition) - {child.token for child in record.children}
        if not left_out or not self._is_news(record):
            return set()
        return left_out.difference(*(self._below(root) for root in self._said if root != record.stream_partition))

    def sent(self, record: ChildPartitions, now: int) -> None:
        """Learn from child partitions that go out."""
        is_announcement = not any(child.parent_partition_tokens for child in record.children)
        if is_announcement and not self._is_news(record):
            return
        for name in self.ended_by(record):
            self._ended.setdefault(name, _End(record.start_timestamp, now))
        for child in record.children:
            for parent in child.parent_partition_tokens:
                self._children[parent] = self._children.get(parent, frozenset()) | {child.token}
                self._born[child.token] = record.start_timestamp
            self._lived[child.token] = max(self._lived.get(child.token, 0), record.start_timestamp)
            if child.start_key is not None or child.end_key is not None:
                self._keys[child.token] = child.start_key, child.end_key
        if is_announcement:
            live = frozenset(child.token for child in record.children)
            self._said[record.stream_partition] = _Said(record.start_timestamp, record.record_sequence, live, 0 if live else now)

    def again_soon(self) -> None:
        """Have everybody announced again before the next record."""
        self._repeat_at = self._catch_up_at = 0

    def copy(self) -> Announcements:
        """What is known now, to come back to."""
        return Announcements(
            self.retention,
            self._said.copy(),
            self._lived.copy(),
            self._children.copy(),
            self._born.copy(),
            self._ended.copy(),
            self._keys.copy(),
            self._repeat_at,
            self._catch_up_at,
        )

    def _first(self, name: str, lived: int, now: int) -> ChildPartitions:
        self._lived[name] = max(1, lived)
        # Where it is also the name of a root that a caller has announced, it joins those below.
        announcement = self._announcement(name, self._lived[name], 0, {name, *self._below(name, self._lived[name])})
        self.sent(announcement, now)
        return announcement

    def _again(self, now: int) -> list[ChildPartitions]:
        """Everybody when it is time, and in between whose newest announcement is not current."""
        is_time = now >= self._repeat_at
        if is_time:
            self._repeat_at = now + self.retention // REPETITIONS
        announcements = []
        for root, said in self._said.items():
            if said.is_current and not is_time:
                continue
            live = self._below(root)
            lived = min((self._lived[name] for name in live), default=0)
            start = max(said.start_timestamp, min(lived, now))
            sequence = said.record_sequence if start == said.start_timestamp else 0
            named = self._below(root, start)
            self._said[root] = _Said(start, sequence, frozenset(named), 0 if live else said.empty_since or now, named == live)
            announcements.append(self._announcement(root, start, sequence, named))
        is_current = all(said.is_current for said in self._said.values())
        self._catch_up_at = self._repeat_at if is_current else min(self._repeat_at, now + self.retention // CATCHING_UP)
        self._forget(now - self.retention)
        return announcements

    def _announcement(self, root: str, start: int, sequence: int, live: set[str]) -> ChildPartitions:
        return ChildPartitions(root, start, sequence, tuple(ChildPartition(name, (), *self._keys.get(name, ())) for name in sorted(live)))

    def _forget(self, before: int) -> None:
        # Those through whom others descend are needed still.
        descended = set[str]().union(*(self._descended(root) for root in self._said))
        for name in [name for name, end in self._ended.items() if end.heard_at < before and name not in descended]:
            for known in (self._ended, self._born, self._lived, self._children, self._keys):
                known.pop(name, None)
        for root in [root for root, said in self._said.items() if 0 < said.empty_since < before]:
            del self._said[root]

    def _below(self, root: str, at: int | None = None) -> set[str]:
        """Those who live below a root, as far as is known, or who did at a time of the source."""
        found = self._descended(root)
        if at is None:
            return found - self._ended.keys()
        return {name for name in found if self._born.get(name, 0) <= at and (name not in self._ended or at < self._ended[name].at)}

    def _descended(self, root: str) -> set[str]:
        """Those whom the newest announcement of a root names, and all that came of these, over or not."""
        found: set[str] = set()
        ways = list(self._said[root].live) if root in self._said else []
        while ways:
            name = ways.pop()
            if name not in found:
                found.add(name)
                ways.extend(self._children.get(name, ()))
        return found & self._lived.keys()

    def _is_news(self, announcement: ChildPartitions) -> bool:
        said = self._said.get(announcement.stream_partition)
        return said is None or (announcement.start_timestamp, announcement.record_sequence) > said[:2]


def _time(record: Record) -> int:
    if isinstance(record, DataChange):
        return record.commit_timestamp
    return record.timestamp if isinstance(record, Heartbeat) else record.start_timestamp
