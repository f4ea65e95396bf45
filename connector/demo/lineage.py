"""Who the stream partitions of a source are, and how they split and merge while its history goes by (WMK-6, WMK-7).

As tablets of a database do: at any time their key ranges cover all keys, a name has one life, and what follows from it begins at
the commit timestamp at which it ends.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from connector.records.model import ChildPartition, ChildPartitions

if TYPE_CHECKING:
    from collections.abc import Iterator

Layout = tuple[ChildPartition, ...]
"""Those that live side by side, with the parents of those that begin with it."""

FILES_LAYOUTS: Final[tuple[Layout, ...]] = (
    (ChildPartition("files-0", (), b"", b"m"), ChildPartition("files-1", (), b"m", None)),
    (
        ChildPartition("files-0", (), b"", b"m"),
        ChildPartition("files-2", ("files-1",), b"m", b"t"),
        ChildPartition("files-3", ("files-1",), b"t", None),
    ),
    (ChildPartition("files-4", ("files-0", "files-2"), b"", b"t"), ChildPartition("files-3", (), b"t", None)),
    (
        ChildPartition("files-5", ("files-4",), b"", b"d"),
        ChildPartition("files-6", ("files-4",), b"d", b"t"),
        ChildPartition("files-3", (), b"t", None),
    ),
)
"""Each holds for as long a part of the history as the others: a split, a merge of two that never were one, and a split again."""


def layout_at(index: int, commits: int) -> Layout:
    """That of the commit with this index, of so many."""
    return FILES_LAYOUTS[index * len(FILES_LAYOUTS) // commits]


def holder(layout: Layout, key: bytes) -> str:
    """The stream partition in whose range a key lies."""
    return next(one.token for one in layout if (one.start_key or b"") <= key and (one.end_key is None or key < one.end_key))


def ends(before: Layout, after: Layout, at: int) -> Iterator[ChildPartitions]:
    """What is to be said when one layout follows another at a commit timestamp: each parent reports all its children, a merge too."""
    for parent in sorted({one.token for one in before} - {one.token for one in after}):
        yield ChildPartitions(parent, at, 0, tuple(child for child in after if parent in child.parent_partition_tokens))


def numbers(layouts: tuple[Layout, ...]) -> dict[str, int]:
    """The first layout of each stream partition, by its place in `layouts`."""
    return {one.token: number for number, layout in reversed(list(enumerate(layouts))) for one in layout}


def steps_between(layouts: tuple[Layout, ...], first: int, last: int, at: int) -> Iterator[ChildPartitions]:
    """All that is to be said on the way from one layout to a later one, at one commit timestamp."""
    for before, after in pairwise(layouts[first : last + 1]):
        yield from ends(before, after, at)
