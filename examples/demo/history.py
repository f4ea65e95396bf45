"""The source: the history of a git repository, as changes of a database with one row for each file.

A commit is a transaction. The commits follow first parents, oldest first. So the state after a
commit is the tree of this commit. The row key is the path, in bytes. The columns are cells of the
family `f`: the mode, the id of the content (`blob`) and its size.

- A new file, or a file with new content, writes its whole row.
- A change of the mode alone writes only the mode. The other columns keep their values.
- A removed file deletes its row. A renamed file deletes one row and writes another.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Final, NamedTuple

from connector import DataChange, DeleteFamily, SetCell, Transaction

TABLE: Final = "files"
FAMILY: Final = "f"
STREAM_PARTITIONS: Final = ("files-a-to-l", "files-m-to-z")
"""The shards of the source. A path before `m` is in the first one."""

ABSENT: Final = b"000000"
"""The mode of a file on the side of a commit on which the file does not exist."""
SUBMODULE: Final = b"160000"
"""The mode of a commit of another repository. It has no size."""

_SIZES_AT_ONCE: Final = 500
"""Ids that git has not answered. So few fit into a pipe, so neither side waits for the other."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that changed files. `timestamp` is its commit timestamp in microseconds."""

    id: str
    timestamp: int
    changes: tuple[DataChange, ...]


class CommitId(NamedTuple):
    """The time is the committer's, in seconds. It may be in the future, or before its parent."""

    id: str
    time: int


class _Difference(NamedTuple):
    path: bytes
    old_mode: bytes
    mode: bytes
    old_blob: bytes
    blob: bytes


def list_commits(folder: Path) -> list[CommitId]:
    """The commits of the repository at or above `folder` along first parents, oldest first.

    Raises `CalledProcessError` if there is no repository or no commit.
    """
    listed = subprocess.run(
        [*_git(folder), "rev-list", "--first-parent", "--reverse", "--timestamp", "HEAD"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = (line.split() for line in listed.stdout.splitlines())
    return [CommitId(commit_id, int(seconds)) for seconds, commit_id in lines]


def read_commits(folder: Path, commits: Sequence[CommitId]) -> Iterator[Commit]:
    """The commits that changed files, in their order. One commit is in memory at a time.

    The dates in a history may go back or be in the future. Commit timestamps of a database do not:
    each is greater than the one before. Raises `CalledProcessError` if git cannot read the
    repository.
    """
    now = time.time_ns() // 1000
    times = dict(commits)
    timestamp = 0
    with _process(folder, "cat-file", "--batch-check=%(objecttype) %(objectsize)") as sizes:
        for commit_id, differences in _differences(folder, commits):
            timestamp = max(timestamp + 1, min(times[commit_id] * 1_000_000, now))
            size_of = _sizes(sizes, [each.blob for each in differences if each.mode != ABSENT])
            yield Commit(commit_id, timestamp, _changes(commit_id, timestamp, differences, size_of))


def _changes(
    commit_id: str, timestamp: int, differences: Sequence[_Difference], size_of: dict[bytes, bytes]
) -> tuple[DataChange, ...]:
    """The changes of one transaction, with their numbers in it."""
    partitions = [STREAM_PARTITIONS[each.path >= b"m"] for each in differences]
    last_of = {partition: index for index, partition in enumerate(partitions)}
    return tuple(
        DataChange(
            stream_partition=partition,
            table=TABLE,
            row_key=difference.path,
            commit_timestamp=timestamp,
            entries=_entries(difference, size_of),
            transaction=Transaction(
                server_transaction_id=commit_id,
                record_sequence=index,
                is_last_record_in_transaction_in_partition=last_of[partition] == index,
                number_of_records_in_transaction=len(differences),
                number_of_partitions_in_transaction=len(last_of),
            ),
        )
        for index, (partition, difference) in enumerate(zip(partitions, differences, strict=True))
    )


def _entries(
    difference: _Difference, size_of: dict[bytes, bytes]
) -> tuple[DeleteFamily | SetCell, ...]:
    if difference.mode == ABSENT:
        return (DeleteFamily(FAMILY),)
    mode = SetCell(FAMILY, b"mode", difference.mode)
    if difference.blob == difference.old_blob:
        return (mode,)
    row = (DeleteFamily(FAMILY), mode, SetCell(FAMILY, b"blob", difference.blob))
    if difference.mode == SUBMODULE:
        return row
    return (*row, SetCell(FAMILY, b"size", size_of[difference.blob]))


def _differences(
    folder: Path, commits: Sequence[CommitId]
) -> Iterator[tuple[str, list[_Difference]]]:
    """Each commit with its differences from the commit before, if there are any."""
    ids = [commit.id for commit in commits]
    with tempfile.TemporaryFile() as pairs:
        lines = [ids[0], *(f"{commit} {parent}" for parent, commit in pairwise(ids))]
        pairs.write("".join(f"{line}\n" for line in lines).encode())
        pairs.seek(0)
        options = ("--stdin", "--root", "--raw", "-r", "-z", "--ignore-submodules=none")
        with _process(folder, "diff-tree", *options, stdin=pairs) as process:
            assert process.stdout is not None
            tokens = _split_at_nul(process.stdout)
            commit_id, differences = "", list[_Difference]()
            for token in tokens:
                if token.startswith(b":"):
                    old_mode, mode, old_blob, blob, _status = token[1:].split(b" ")
                    differences.append(_Difference(next(tokens), old_mode, mode, old_blob, blob))
                else:
                    if differences:
                        yield commit_id, differences
                    commit_id, differences = token.decode(), []
            if differences:
                yield commit_id, differences


def _sizes(process: subprocess.Popen[bytes], blobs: Sequence[bytes]) -> dict[bytes, bytes]:
    """The sizes of the blobs, in decimal digits. Commits of submodules are not among them."""
    assert process.stdin is not None
    assert process.stdout is not None
    sizes = {}
    for start in range(0, len(blobs), _SIZES_AT_ONCE):
        asked = blobs[start : start + _SIZES_AT_ONCE]
        process.stdin.write(b"".join(blob + b"\n" for blob in asked))
        process.stdin.flush()
        for blob in asked:
            kind, _, size = process.stdout.readline().strip().partition(b" ")
            if kind == b"blob":
                sizes[blob] = size
    return sizes


def _split_at_nul(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(1 << 20):
        *tokens, rest = (rest + block).split(b"\0")
        yield from tokens


def _git(folder: Path) -> tuple[str, ...]:
    return ("git", "--no-replace-objects", "-C", str(folder))


@contextmanager
def _process(
    folder: Path, *arguments: str, stdin: IO[bytes] | int = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """A git process, which ends with the block. Raises `CalledProcessError` if it failed."""
    with subprocess.Popen(
        [*_git(folder), *arguments], stdin=stdin, stdout=subprocess.PIPE
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
