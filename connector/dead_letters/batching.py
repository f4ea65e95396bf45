"""Things that come one after the other, taken together as far as they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def in_batches(items: Iterable[_Item], size: Callable[[_Item], int], *, at_most: int, at_most_bytes: int) -> Iterator[list[_Item]]:
    """The same items in their order, in lists of `at_most` or fewer, of `at_most_bytes` or fewer; one that is larger goes alone.

    No more are taken from `items` than a list needs, and one that did not fit into it.
    """
    found: list[_Item] = []
    total = 0
    for item in items:
        its = size(item)
        if found and total + its > at_most_bytes:
            yield found
            found, total = [], 0
        found.append(item)
        total += its
        if len(found) == at_most:
            yield found
            found, total = [], 0
    if found:
        yield found
