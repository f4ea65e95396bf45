"""The truth, and the comparison of the result with it. Each difference is a sentence.

The truth is the tree of a commit, as `git ls-tree` lists it. This module shares no code with
`history`, which reads only differences between commits: an error of a shared line would be in both
and not be seen.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from connector import ConnectorConfig, DeadLetter
from connector.services import TableRead, audit
from examples.demo.publish import BadRecord

Row = dict[str, object]


def tree(folder: Path, commit_id: str) -> dict[bytes, Row]:
    """The files of a commit by path: mode, blob, and size (None for submodules)."""
    git = ("git", "--no-replace-objects", "-C", str(folder))
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "-l", "-z", "--full-tree", commit_id],
        stdout=subprocess.PIPE,
        check=True,
    )
    rows: dict[bytes, Row] = {}
    for line in listed.stdout.split(b"\0")[:-1]:
        columns, _, path = line.partition(b"\t")
        mode, _kind, blob, size = columns.decode().split()
        rows[path] = {"mode": mode, "blob": blob, "size": None if size == "-" else int(size)}
    return rows


def rows_of(table: TableRead) -> Iterator[tuple[bytes, Row]]:
    """The path and the other columns of each row."""
    for values in table.rows:
        row = dict(zip(table.columns, values, strict=True))
        yield row.pop("path"), row


def row_differences(expected: Mapping[bytes, Row], rows: Iterable[tuple[bytes, Row]]) -> list[str]:
    """The rows that are wrong, missing, invented or in the table twice. A cell that no column shows
    is in `_unmapped`. There must be none.
    """
    differences = []
    counts: Counter[bytes] = Counter()
    for path, row in rows:
        counts[path] += 1
        columns = {name: value for name, value in row.items() if name != "_unmapped"}
        if counts[path] > 1:
            differences.append(f"{path!r} is in the table {counts[path]} times")
        elif path not in expected:
            differences.append(f"{path!r} should not exist; it is {row}")
        elif columns != expected[path] or row["_unmapped"]:
            differences.append(f"{path!r} is {row}, not {expected[path]}")
    missing = expected.keys() - counts.keys()
    return differences + [f"{path!r} is missing; it should be {expected[path]}" for path in missing]


def letter_differences(sent: Iterable[BadRecord], letters: Iterable[DeadLetter]) -> list[str]:
    """Each bad record must have one dead letter, with its reason and its bytes. There must be no
    other dead letter.
    """
    expected = Counter(sent)
    rejected = Counter(
        BadRecord(
            letter.position.kafka_partition,
            letter.position.offset,
            letter.reason,
            letter.key,
            letter.value,
        )
        for letter in letters
    )
    return [
        *(f"{record} has no dead letter" for record in (expected - rejected).elements()),
        *(f"{record} should not be a dead letter" for record in (rejected - expected).elements()),
    ]


def records_in_changelog(config: ConnectorConfig) -> tuple[int, list[str]]:
    """The number of records in the changelog, and what the audit of lowmark finds wrong."""
    (result,) = audit(config)
    fault = result.fault()
    differences = [] if fault is None else [str(fault)]
    if result.unverified:
        differences.append(f"{result.unverified} offsets cannot be verified")
    return result.counted("rows"), differences
