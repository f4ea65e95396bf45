"""Mixes the order in which changes are sent, and sends some twice.

A network, retries and several producers do this to a stream. Here a seed decides. Two rules still
hold, as they must for a correct producer. No change is left out. After a `Mark`, no change at or
below its timestamp follows (REC-18). Before stream partitions split or merge, all earlier changes
are sent (WMK-7).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING

from connector.demo.lineage import Layout, numbers, steps_between

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from connector.records.model import ChildPartitions, DataChange


@dataclass(frozen=True, slots=True)
class Disorder:
    """How much the order is mixed: `window` changes are shuffled together, or `transactions`
    transactions if these have fewer changes.

    The share `repeated` is sent twice, and the share `held_back` is sent one window later.
    """

    window: int = 500
    transactions: int = 500
    repeated: float = 0.05
    held_back: float = 0.1


@dataclass(frozen=True, slots=True)
class Mark:
    """Every change with a commit timestamp at or below this (µs) was yielded, for the last time.

    `is_all`: no other change was yielded.
    """

    timestamp: int
    is_all: bool = False


def steps(
    transactions: Iterable[tuple[DataChange, ...]],
    layouts: tuple[Layout, ...],
    disorder: Disorder,
    seed: int,
    parts: tuple[int, ...] = (),
) -> Iterator[DataChange | ChildPartitions | Mark]:
    """The changes in mixed order, with marks. Between the changes of two layouts, it yields the
    ends of stream partitions.

    A layout begins with the first change of a stream partition that is new in it. Changes are not
    moved past the beginning of a layout, or past the positions in `parts`, counted in transactions.
    There a mark says that all earlier changes were yielded.
    """
    first_of = numbers(layouts)
    newest = count = 0

    def run_of(transaction: tuple[DataChange, ...]) -> tuple[int, int]:
        nonlocal newest, count
        newest = max(newest, *(first_of[change.stream_partition] for change in transaction))
        count += 1
        return newest, bisect_right(parts, count - 1)

    layout = 0
    for (next_layout, _), group in groupby(transactions, run_of):
        run = iter(group)
        first = next(run)
        yield from steps_between(layouts, layout, next_layout, first[0].commit_timestamp)
        layout = next_layout
        yield from disordered(chain([first], run), disorder, seed)


def disordered(
    transactions: Iterable[tuple[DataChange, ...]], disorder: Disorder, seed: int
) -> Iterator[DataChange | Mark]:
    """The changes of `transactions`, whose commit timestamps rise, in mixed order. A mark follows
    each window, up to the time that is complete.

    About two windows are in memory, and at least one whole transaction.
    """
    rng = random.Random(seed)
    waiting: list[DataChange] = []
    fresh: list[DataChange] = []
    newest = made = 0
    for transaction in transactions:
        fresh.extend(transaction)
        made += 1
        newest = transaction[-1].commit_timestamp
        if len(fresh) < disorder.window and made < disorder.transactions:
            continue
        # A change waits once only, so it is late by one window at most.
        held = [change for change in fresh if rng.random() < disorder.held_back]
        held_ids = set(map(id, held))
        yield from _shuffled(
            [*waiting, *(change for change in fresh if id(change) not in held_ids)], disorder, rng
        )
        certain = min((change.commit_timestamp for change in held), default=newest + 1) - 1
        if certain > 0:
            yield Mark(certain)
        waiting, fresh, made = held, [], 0
    yield from _shuffled([*waiting, *fresh], disorder, rng)
    if newest:
        yield Mark(newest, is_all=True)


def _shuffled(
    changes: list[DataChange], disorder: Disorder, rng: random.Random
) -> Iterator[DataChange]:
    going = [*changes, *(change for change in changes if rng.random() < disorder.repeated)]
    rng.shuffle(going)
    return iter(going)
