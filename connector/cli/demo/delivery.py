"""The order in which changes go out: not the order in which they were made, and some go out twice.

What a network, retries and several producers do to a stream, from a seed. Two things still hold, as they must for a producer that
keeps its promises: no change is left out, and after a `Mark` no change at or below its timestamp follows (REC-18).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from connector.model import DataChange


@dataclass(frozen=True, slots=True)
class Disorder:
    """How much: changes are shuffled `window` at a time; of these the share `repeated` goes out twice, and `held_back` waits a window."""

    window: int = 500
    repeated: float = 0.05
    held_back: float = 0.1


@dataclass(frozen=True, slots=True)
class Mark:
    """Every change with a commit timestamp at or below this (µs) has been handed out, for the last time."""

    timestamp: int


def disordered(transactions: Iterable[tuple[DataChange, ...]], disorder: Disorder, seed: int) -> Iterator[DataChange | Mark]:
    """The changes of `transactions`, whose commit timestamps rise, in disorder; with a mark after each window that ends at what is certain.

    Holds about two windows in memory, and at least one whole transaction.
    """
    rng = random.Random(seed)
    waiting: list[DataChange] = []
    fresh: list[DataChange] = []
    newest = 0
    for transaction in transactions:
        fresh.extend(transaction)
        newest = transaction[-1].commit_timestamp
        if len(fresh) < disorder.window:
            continue
        # Nothing is held back twice, so that a change is late by one window and no more.
        held = [change for change in fresh if rng.random() < disorder.held_back]
        held_ids = set(map(id, held))
        yield from _shuffled([*waiting, *(change for change in fresh if id(change) not in held_ids)], disorder, rng)
        certain = min((change.commit_timestamp for change in held), default=newest + 1) - 1
        if certain > 0:
            yield Mark(certain)
        waiting, fresh = held, []
    yield from _shuffled([*waiting, *fresh], disorder, rng)
    if newest:
        yield Mark(newest)


def _shuffled(changes: list[DataChange], disorder: Disorder, rng: random.Random) -> Iterator[DataChange]:
    going = [*changes, *(change for change in changes if rng.random() < disorder.repeated)]
    rng.shuffle(going)
    return iter(going)
