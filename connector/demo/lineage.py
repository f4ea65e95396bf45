"""The stream partitions of a source, and how they split and merge during its history (WMK-6,
WMK-7).

They are like the tablets of a database. At any time their key ranges cover all keys. A name is used
once. The children of a stream partition begin at the commit timestamp at which it ends.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from connector.records.model import ChildPartition, ChildPartitions

if TYPE_CHECKING:
    from collections.abc import Iterator

Layout = tuple[ChildPartition, ...]
"""The stream partitions that are live at the same time. New ones have their parents."""

FILES_LAYOUTS: Final[tuple[Layout, ...]] = (
    (ChildPartition("files-0", (), b"", b"m"), ChildPartition("files-1", (), b"m", None)),
    (
        ChildPartition("files-0", (), b"", b"m"),
        ChildPartition("files-2", ("files-1",), b"m", b"t"),
        ChildPartition("files-3", ("files-1",), b"t", None),
    ),
    (
        ChildPartition("files-4", ("files-0", "files-2"), b"", b"t"),
        ChildPartition("files-3", (), b"t", None),
    ),
    (
        ChildPartition("files-5", ("files-4",), b"", b"d"),
        ChildPartition("files-6", ("files-4",), b"d", b"t"),
        ChildPartition("files-3", (), b"t", None),
    ),
)
"""Each layout is used for an equal part of the history. There is a split, a merge of two that were
never one, and another split.
"""


def layout_at(index: int, commits: int) -> Layout:
    """The layout of the commit with this index."""
    return FILES_LAYOUTS[index * len(FILES_LAYOUTS) // commits]


def holder(layout: Layout, key: bytes) -> str:
    """The stream partition whose range contains a key."""
    return next(
        one.token
        for one in layout
        if (one.start_key or b"") <= key and (one.end_key is None or key < one.end_key)
    )


def ends(before: Layout, after: Layout, at: int) -> Iterator[ChildPartitions]:
    """The reports when one layout follows another at a commit timestamp. Each parent reports all
    its children, also at a merge.
    """
    for parent in sorted({one.token for one in before} - {one.token for one in after}):
        yield ChildPartitions(
            parent,
            at,
            0,
            tuple(child for child in after if parent in child.parent_partition_tokens),
        )


def numbers(layouts: tuple[Layout, ...]) -> dict[str, int]:
    """For each stream partition, the index of its first layout in `layouts`."""
    return {
        one.token: number for number, layout in reversed(list(enumerate(layouts))) for one in layout
    }


def steps_between(
    layouts: tuple[Layout, ...], first: int, last: int, at: int
) -> Iterator[ChildPartitions]:
    """All reports between one layout and a later one, at one commit timestamp."""
    for before, after in pairwise(layouts[first : last + 1]):
        yield from ends(before, after, at)
