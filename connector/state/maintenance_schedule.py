"""Rules for maintenance: when to combine files, when to remove old files, and which ones (TBL-15,
TBL-23).

The rules use only numbers that commits already store.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from connector.records.ordering import OrderBy
from connector.warehouse import MIXED_SLOT

MINUTE_US: Final = 60_000_000
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
MIB: Final = 1024 * 1024
NEWEST_CUT_KEPT_US: Final = 7 * DAY_US
"""How long the newest cut of a stream is kept, if its tables no longer have it."""

REST: Final = 10
REST_AT_MOST_US: Final = 10 * MINUTE_US
TOO_MANY: Final = 400
"""After a compaction that took some time, the next one of the same thing waits for so many times of
it. So compactions take less than a tenth of the time. The wait is limited, and so many new files
end it: from 500 files on, Delta does not list them beside each commit. Maintenance that failed is
repeated after the longest wait.
"""
LATE_PACES: Final = 6
"""Applies are late if a batch waits for longer than so many paces of a table. If they are in time,
it waits for up to two paces, and its apply takes up to two.
"""
LATE_AT_MOST_US: Final = 2 * MINUTE_US
"""Maintenance waits so long while applies are late. Without it, they would become later still."""
SMALL_BYTES: Final = 32 * MIB
"""Files of at least this size are not rewritten, unless many of their rows are deleted."""
LARGEST_BYTES: Final = 128 * MIB
"""The maximum size of a combined file."""
GAIN: Final = 30
GAIN_OF_LOG: Final = 200
GAIN_PER_PARTITION: Final = 4
"""A compaction must remove at least `GAIN` files, and so many for each partition on average.
Otherwise it is not worth a commit. An apply or a read opens all files of a table, but only the
newest files of a changelog. Therefore a changelog has `GAIN_OF_LOG`.
"""
TIER: Final = 2
"""A file joins smaller ones that have half of its bytes: no byte is rewritten often."""
MARKED: Final = 0.2
"""A file is rewritten if at least this share of its rows is deleted."""
MARKED_BYTES: Final = 0.2
MARKED_LEAST_BYTES: Final = 32 * MIB
"""A commit is worthwhile if deleted rows use more than this share of the bytes of the table, and so
many bytes. Applies fold the files of smaller tables, and leave the deleted rows out.
"""

FOLD_FILES: Final = 12
FOLD_ROWS: Final = 50_000
FOLD_BYTES: Final = 16 * MIB
"""A small apply folds at least so many files with fewer live rows, of at most so many bytes."""
FOLD_SHARE: Final = 8
"""The largest file of a fold has at most this part of the rows of the others."""

FOLD_BATCHES, FOLD_MORE_BATCHES = 100, 20
FOLD_BATCHES_BYTES: Final = 8 * MIB
"""From so many files of small batches of a changelog on, their rows are moved into slots. A commit
moves those of at most so many bytes, and others follow while so many more are left.
"""

MOST_ATTEMPTS: Final = 100
"""Tombstones are vacuumed when a commit names so many attempts, of some 45 bytes each."""
ATTEMPTS: Final = 50
"""From so many attempts on, a small apply looks whether they need names at all."""
VACUUM_EVERY: Final = {OrderBy.COMMIT: HOUR_US, OrderBy.SEQUENCE_NUMBER: 1_000}
"""Tombstones are vacuumed when the horizon has moved so far: µs, or batches (MRG-12)."""

CLEAN_APART_US: Final = 5 * MINUTE_US
CLEAN_APART_OF_RETENTION: Final = 4
"""Old files are removed at most every five minutes, or at most four times within a shorter
retention.
"""
CLEAN_SHARE: Final = 20
CLEAN_LEAST_BYTES: Final = 16 * MIB
CLEAN_LEAST_FILES: Final = 100
"""Old files are removed if a twentieth of all old files or bytes can be removed, but at least so
many files or bytes.
"""
READ_ENDS_US: Final = 10 * MINUTE_US
"""So long, a version stays after the record of its cut was deleted: a read may have begun."""
LOG_EVERY: Final = 200
"""The log is cleaned after so many commits, or after an hour with at least one."""
CHECKSUMS_KEPT: Final = 20
"""Checksums are kept for so many of the newest commits. Each is as large as a list of all files."""

_LOG_FILE: Final = re.compile(
    r"(\d{20})\.(?:(json)|(crc)|checkpoint\.(?:(parquet)|(\d{10})\.(\d{10})\.parquet))"
)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the newest version: partition, bytes, rows, and deleted rows."""

    partition: str
    size: int
    rows: int
    marked: int = 0

    @staticmethod
    def from_action(action: str) -> DataFile:
        """The file that an action of Delta's log adds. The action is JSON."""
        return DataFile.from_add(json.loads(action)["add"])

    @staticmethod
    def from_add(add: Mapping[str, Any]) -> DataFile:
        """The file that an action adds. This is the content of the action."""
        return DataFile(
            "/".join(map(str, add["partitionValues"].values())),
            int(add["size"]),
            int(json.loads(add.get("stats") or "{}").get("numRecords", 0)),
            int((add.get("deletionVector") or {}).get("cardinality", 0)),
        )

    @property
    def marked_share(self) -> float:
        return self.marked / self.rows if self.rows else 0.0


def to_compact(files: Sequence[DataFile], *, is_log: bool = False) -> list[list[int]]:
    """Return groups of files. Each group becomes one file. The result is empty if a commit is not
    worthwhile. `is_log`: the files are those of a changelog.

    A group has the indexes of its files in `files`. Its files have the same partition, and together
    at most `LARGEST_BYTES`. A group of one file may be larger.
    """
    by_partition: dict[str, list[int]] = {}
    for number, file in enumerate(files):
        by_partition.setdefault(file.partition, []).append(number)
    groups = [group for numbers in by_partition.values() for group in _groups(files, numbers)]
    gain = sum(len(group) - 1 for group in groups)
    marked = sum(
        files[number].size * files[number].marked_share for group in groups for number in group
    )
    least = GAIN_OF_LOG if is_log else GAIN
    is_worth = gain >= max(least, GAIN_PER_PARTITION * len(by_partition))
    is_worth |= _are_many_marked(marked, sum(file.size for file in files))
    return groups if is_worth else []


def _are_many_marked(marked_bytes: float, all_bytes: int) -> bool:
    return marked_bytes > max(MARKED_BYTES * all_bytes, MARKED_LEAST_BYTES)


def _groups(files: Sequence[DataFile], numbers: Iterable[int]) -> list[list[int]]:
    rising = sorted(numbers, key=lambda number: files[number].size)
    marked = [number for number in rising if files[number].marked_share >= MARKED]
    small = [
        number
        for number in rising
        if files[number].size < SMALL_BYTES and number not in set(marked)
    ]
    before, joined = 0, 0
    for index, number in enumerate(small):
        if files[number].size <= TIER * before:
            joined = index + 1
        before += files[number].size
    groups: list[list[int]] = []
    size = LARGEST_BYTES
    for number in sorted([*small[:joined], *marked], key=lambda number: files[number].size):
        if size + files[number].size > LARGEST_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(number)
        size += files[number].size
    return [group for group in groups if len(group) > 1 or files[group[0]].marked_share >= MARKED]


def to_fold(files: Sequence[DataFile]) -> list[int]:
    """Return the files whose live rows a small apply copies into its new file of their partition.
    Empty: it copies none. The files are those of one partition.

    A copy of a row is in a file with more than `FOLD_SHARE` times the rows of the one before. So a
    row of an apply of 100 changes is copied at most three times until its file has `FOLD_ROWS`, and
    four bytes are written for each byte that comes in. Rows of smaller applies are copied more
    often, but most of their bytes are those of the frame of a file, which is not copied. And fewer
    than a hundred files with fewer than `FOLD_ROWS` can be left: with each one more that is not
    folded, the rows grow by an eighth.
    """
    rows = [file.rows - file.marked for file in files]
    rising = sorted((n for n, count in enumerate(rows) if count < FOLD_ROWS), key=rows.__getitem__)
    folded, before, size = 0, 0, 0
    for index, number in enumerate(rising, start=1):
        size += files[number].size
        if size > FOLD_BYTES:
            break
        if rows[number] * FOLD_SHARE <= before and index >= FOLD_FILES:
            folded = index
        before += rows[number]
    return rising[:folded]


def to_slots(files: Sequence[DataFile], at_least: int) -> list[int]:
    """Return the files of small batches of a changelog that are moved into slots together. Empty:
    there are fewer than `at_least`. The files of a changelog are in the order of their commits.
    """
    mixed = [
        number
        for number, file in enumerate(files)
        if file.partition == str(MIXED_SLOT) and not file.marked
    ]
    if len(mixed) < at_least:
        return []
    sizes = accumulate(files[number].size for number in mixed)
    return [number for number, size in zip(mixed, sizes, strict=True) if size <= FOLD_BATCHES_BYTES]


@dataclass(frozen=True, slots=True)
class CommitCount:
    """The files and bytes that a commit added to a table, and those that it removed. A file in
    which it marked rows as deleted is neither. `at` is in microseconds.
    """

    at: int
    added: int = 0
    removed: int = 0
    removed_bytes: int = 0
    added_bytes: int = 0


@dataclass(slots=True)
class Postponed:
    """Work that is due, and waits while applies are late: for at most `LATE_AT_MOST_US`."""

    _since: int | None = None

    def may_begin(self, now: int, is_late: Callable[[], bool]) -> bool:
        """Return whether the work, which is due, may begin. Times are microseconds."""
        self._since = now if self._since is None else self._since
        if now - self._since < LATE_AT_MOST_US and is_late():
            return False
        self._since = None
        return True


@dataclass(slots=True)
class Compactions:
    """Decides when the files of a table, or of a changelog (`is_log`), are checked for compaction,
    and compacted if it is worth it. Not thread-safe. Times are microseconds.

    The files of an earlier process are checked with the first new file. After that, a check comes
    when there are enough new files, or enough new bytes: a row-level apply adds few files, but
    marks about as many bytes as it adds.
    """

    is_log: bool = False
    _live_bytes: int = 0
    _added: int = 0
    _added_bytes: int = 0
    _is_first: bool = True
    _rests_until: int = 0
    _waits: Postponed = field(default_factory=Postponed)

    def passed(self, commits: Iterable[CommitCount]) -> None:
        """Count these commits. Files that another commit removed, as one with a fold, make room."""
        for commit in commits:
            self._added = max(0, self._added + commit.added - commit.removed)
            self._added_bytes += max(0, commit.added_bytes - commit.removed_bytes)

    def begins(self, now: int, is_late: Callable[[], bool], *, is_wanted: bool = False) -> bool:
        """Return whether a check begins now. `is_wanted`: there is another reason for one."""
        least = GAIN_OF_LOG if self.is_log else GAIN
        has_marked = not self.is_log and _are_many_marked(self._added_bytes, self._live_bytes)
        is_due = is_wanted or self._added >= (1 if self._is_first else least) or has_marked
        rests = now < self._rests_until and self._added < TOO_MANY
        if not is_due or rests or not self._waits.may_begin(now, is_late):
            return False
        self._added, self._added_bytes, self._is_first = 0, 0, False
        return True

    def ended(self, at: int, took: int, live_bytes: int) -> None:
        """Note that a check, with its compaction, ended. `live_bytes` is the size of the table."""
        self._rests_until = at + min(REST * took, REST_AT_MOST_US)
        self._live_bytes = live_bytes


def is_vacuum_due(attempts: int, moved: int, order: OrderBy) -> bool:
    """Return whether tombstones are to be vacuumed: a commit names so many `attempts`, or the
    horizon has `moved` so far since the last time.
    """
    return attempts >= MOST_ATTEMPTS or moved >= VACUUM_EVERY[order]


@dataclass(slots=True)
class KeptVersions:
    """The versions of a table that recorded cuts name, and, for `READ_ENDS_US`, those that they
    named before.
    """

    _named_at: dict[int, int] = field(default_factory=dict)

    def with_left(self, named: Iterable[int], now: int) -> list[int]:
        """Return the versions to keep. Cuts name the versions `named` now."""
        self._named_at |= dict.fromkeys(named, now)
        self._named_at = {
            version: at for version, at in self._named_at.items() if now < at + READ_ENDS_US
        }
        return sorted(self._named_at)


def is_clean_up_due(
    removed: Sequence[CommitCount],
    now: int,
    *,
    last: int,
    newest_at: int,
    retention_s: int,
    longest_s: int | None = None,
) -> bool:
    """Return whether files of old versions should be removed now. The last time was `last` (µs).

    `removed` are the known commits since then. Other processes may have made more. `newest_at` is
    the time of the newest commit. `longest_s` is how long files of some versions are kept. None: as
    long as all.
    """
    retention = retention_s * 1_000_000
    if (
        now - last < min(CLEAN_APART_US, retention // CLEAN_APART_OF_RETENTION)
        or newest_at + (longest_s or retention_s) * 1_000_000 < last
    ):
        return False
    # Commits of other processes are not counted, so clean regularly.
    if now - last >= min(retention, DAY_US):
        return True
    due = [commit for commit in removed if commit.at + retention < now]
    files, size = sum(commit.removed for commit in due), sum(commit.removed_bytes for commit in due)
    all_files = sum(commit.removed for commit in removed)
    all_bytes = sum(commit.removed_bytes for commit in removed)
    return files >= max(CLEAN_LEAST_FILES, all_files // CLEAN_SHARE) or size >= max(
        CLEAN_LEAST_BYTES, all_bytes // CLEAN_SHARE
    )


def removable_log_files(
    names: Iterable[str], first_needed: int | None, newest: int, kept: Iterable[int] = ()
) -> list[str]:
    """Return the files of a Delta log that can be removed, oldest version first.

    All versions from `first_needed` on stay readable, and older ones in `kept`. With None, all
    versions stay readable. Delta computes a version from a checkpoint and the commits after it.
    Both also have the transaction numbers of applications. Therefore the newest checkpoint up to
    `first_needed` stays, with its commit and all later ones. For a version in `kept`, the newest
    checkpoint up to it stays, and the commits from it to that which replaced the version. Of the
    checksums, only the newest ones stay. All other kinds of files stay.
    """
    matches = [match for name in names if (match := _LOG_FILE.fullmatch(name))]
    parts: dict[tuple[int, int], int] = {}
    for match in matches:
        version, _, _, whole, part, parts_count = match.groups()
        if whole or part:
            key = (int(version), int(parts_count or 1))
            parts[key] = parts.get(key, 0) + 1
    complete = sorted(version for (version, count), those in parts.items() if count == those)

    def base_of(version: int) -> int:
        count = bisect_right(complete, version)
        return complete[count - 1] if count else 0

    base = 0 if first_needed is None else base_of(first_needed)
    needed = set[int]()
    for version in kept:
        if version < base:
            needed |= {*range(base_of(version), version + 2)}
    going = [
        match
        for match in matches
        if (int(match[1]) < base and int(match[1]) not in needed)
        or (match[3] and int(match[1]) <= newest - CHECKSUMS_KEPT)
    ]
    return [match[0] for match in sorted(going, key=lambda match: int(match[1]))]
