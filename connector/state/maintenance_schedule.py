"""When files are put together and old ones removed, and which: rules over numbers that commits bear anyway (TBL-15, TBL-23)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

MINUTE_US: Final = 60_000_000
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
MIB: Final = 1024 * 1024
LOG_BEYOND_S: Final = 2 * 86_400
"""How much longer than files the log is kept that names them."""
NEWEST_CUT_KEPT_US: Final = 7 * DAY_US
"""How long the newest cut of a stream is kept that its tables show no more."""

LOOK_EVERY: Final = 20
"""After so many new files those of a table are looked at, whether some are to be put together."""
SMALL_BYTES: Final = 32 * MIB
"""Files of that size stay as they are, unless many of their rows are gone."""
LARGEST_BYTES: Final = 128 * MIB
"""Files are put together up to so many bytes."""
GAIN: Final = 30
GAIN_PER_PLACE: Final = 4
"""So many files fewer, in all and on average in each partition, are worth a commit."""
TIER: Final = 2
"""A file joins smaller ones that have together at least the half of its bytes: so no byte is rewritten often."""
MARKED: Final = 0.2
"""From this share of rows on that are marked as gone a file is written anew."""
MARKED_BYTES: Final = 0.2
"""From this share of a table's bytes on, rows that are marked as gone are worth a commit."""

CLEAN_APART_US: Final = 5 * MINUTE_US
CLEAN_APART_OF_RETENTION: Final = 4
"""Files are removed at most every five minutes, or four times in a shorter retention."""
CLEAN_SHARE: Final = 20
CLEAN_LEAST_BYTES: Final = 16 * MIB
CLEAN_LEAST_FILES: Final = 100
"""They are removed once a twentieth of what is kept of old versions may go, and at least so much."""
LOG_EVERY: Final = 200
"""The log is cleaned after so many commits, and after an hour with any."""
CHECKSUMS_KEPT: Final = 20
"""Checksums lie beside the newest commits only: each is as large as a list of all files."""

_LOG_FILE: Final = re.compile(r"(\d{20})\.(?:(json)|(crc)|checkpoint\.(?:(parquet)|(\d{10})\.(\d{10})\.parquet))")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the newest version: its partition, its size, its rows, and how many of them are marked as gone."""

    place: str
    size: int
    rows: int
    marked: int = 0

    @property
    def marked_share(self) -> float:
        return self.marked / self.rows if self.rows else 0.0


def to_compact(files: Sequence[DataFile]) -> list[list[int]]:
    """Which files become one, each group by the places of its files in `files`; none, if it is not worth a commit.

    The files of a group are of one partition, and have at most `LARGEST_BYTES` together, unless it is a single one.
    """
    by_place: dict[str, list[int]] = {}
    for number, file in enumerate(files):
        by_place.setdefault(file.place, []).append(number)
    groups = [group for numbers in by_place.values() for group in _groups(files, numbers)]
    gain = sum(len(group) - 1 for group in groups)
    marked = sum(files[number].size * files[number].marked_share for group in groups for number in group)
    is_worth = gain >= max(GAIN, GAIN_PER_PLACE * len(by_place)) or marked > MARKED_BYTES * sum(file.size for file in files)
    return groups if is_worth else []


def _groups(files: Sequence[DataFile], numbers: Iterable[int]) -> list[list[int]]:
    """Those of one partition."""
    rising = sorted(numbers, key=lambda number: files[number].size)
    anew = [number for number in rising if files[number].marked_share >= MARKED]
    small = [number for number in rising if files[number].size < SMALL_BYTES and number not in set(anew)]
    before, joined = 0, 0
    for place, number in enumerate(small):
        if files[number].size <= TIER * before:
            joined = place + 1
        before += files[number].size
    groups: list[list[int]] = []
    size = LARGEST_BYTES
    for number in sorted([*small[:joined], *anew], key=lambda number: files[number].size):
        if size + files[number].size > LARGEST_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(number)
        size += files[number].size
    return [group for group in groups if len(group) > 1 or files[group[0]].marked_share >= MARKED]


@dataclass(frozen=True, slots=True)
class CommitCount:
    """What a commit did to the files of a table: how many it added, how many it removed, and of how many bytes; `at` in microseconds."""

    at: int
    added: int = 0
    removed: int = 0
    removed_bytes: int = 0


def cleans(removed: Sequence[CommitCount], now: int, *, last: int, newest_at: int, retention_s: int) -> bool:
    """Whether files of old versions are to be removed, which was done at `last` (microseconds) before.

    `removed` are the commits seen since; others may have been made unseen. `newest_at` is when the newest commit was made.
    """
    retention = retention_s * 1_000_000
    if now - last < min(CLEAN_APART_US, retention // CLEAN_APART_OF_RETENTION) or newest_at + retention < last:
        return False
    # What another process has removed is not among them.
    if now - last >= min(retention, DAY_US):
        return True
    due = [commit for commit in removed if commit.at + retention < now]
    files, size = sum(commit.removed for commit in due), sum(commit.removed_bytes for commit in due)
    all_files, all_bytes = sum(commit.removed for commit in removed), sum(commit.removed_bytes for commit in removed)
    return files >= max(CLEAN_LEAST_FILES, all_files // CLEAN_SHARE) or size >= max(CLEAN_LEAST_BYTES, all_bytes // CLEAN_SHARE)


def superfluous(names: Iterable[str], first_needed: int | None, newest: int) -> list[str]:
    """Which files of a Delta log may go, oldest versions first, where all versions from `first_needed` on stay readable.

    None: no version may become unreadable. The newest checkpoint that is not above it stays, with its commit and all behind it: Delta
    works out a version from a checkpoint and the commits since, and keeps the numbers of applications in both. Of checksums only the
    newest few are of use. What is no commit, checkpoint or checksum stays.
    """
    found = [match for name in names if (match := _LOG_FILE.fullmatch(name))]
    parts: dict[tuple[int, int], int] = {}
    for match in found:
        version, _, _, whole, part, of = match.groups()
        if whole or part:
            key = (int(version), int(of or 1))
            parts[key] = parts.get(key, 0) + 1
    complete = [version for (version, of), count in parts.items() if count == of]
    base = max((version for version in complete if first_needed is not None and version <= first_needed), default=0)
    going = [match for match in found if int(match[1]) < base or (match[3] and int(match[1]) <= newest - CHECKSUMS_KEPT)]
    return [match[0] for match in sorted(going, key=lambda match: int(match[1]))]
