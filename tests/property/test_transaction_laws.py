"""Whole transactions beside a simulation that knows what was sent (SUB-3)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.records.model import DataChange, Release
from connector.records.rejection import Position
from connector.watermarks.reader_state import ReaderState
from connector.watermarks.tracker import WatermarkTracker
from connector.watermarks.transactions import TransactionAssembler, WholeTransaction
from tests.examples import draws, examples
from tests.property.transactions import MakeAssembler, TransactionSimulation, read_range, run

rngs = st.integers(0, 2**64 - 1).map(Random)


@examples(150, quick=10)
@given(rng=rngs)
def test_every_transaction_comes_once_and_whole_and_in_order(rng: Random) -> None:
    """SUB-3, WRS-22: with splits, merges, added Kafka partitions, duplicates, bad records,
    transactions over several Kafka partitions, staged rows and releases, and restarts at every
    step.
    """
    run(rng)


@examples(50)
@given(rng=rngs)
def test_adjacent_ranges_are_the_whole_range(rng: Random) -> None:
    """SUB-1: in any order of reading, each transaction once."""
    simulation = TransactionSimulation(rng)
    for _ in range(100):
        simulation.step()
    simulation.finish()
    start, middle, end = sorted(rng.randint(0, simulation.clock + 2) for _ in range(3))
    first, second = read_range(simulation, start, middle), read_range(simulation, middle + 1, end)
    whole = read_range(simulation, start, end)
    assert contents([*first, *second]) == contents(whole)
    assert all(start <= one.commit_timestamp <= end for one in whole)
    everything = contents(read_range(simulation, 0, simulation.clock))
    assert contents(whole) == [one for one in everything if start <= one[0] <= end]


def contents(found: list[WholeTransaction]) -> list[tuple[object, ...]]:
    """A transaction without its positions, which may be those of duplicates. Changes without a
    transaction are ordered by their position, and so these are sorted.
    """
    return sorted(
        (
            one.commit_timestamp,
            one.server_transaction_id,
            [change.row_key for change in one.changes],
            one.missing,
        )
        for one in found
    )


class ReleasesTooEarly(TransactionAssembler):
    """Takes the low watermark for greater than it is."""

    def release(self) -> None:
        self._passed += 2
        super().release()


class CountsDuplicates(TransactionAssembler):
    """Takes a duplicate for a part of its own."""

    def _add_part(self, change: DataChange | Release, position: Position, size: int) -> bool:
        return super()._add_part(change, position, size) or True


class ForgetsAsides(TransactionAssembler):
    """The state does not say which records were not parts."""

    def __init__(self, tracker: WatermarkTracker, state: ReaderState | None) -> None:
        super().__init__(tracker, "t", "id", state=state)
        self._asides = {}


class ForgetsRows(TransactionAssembler):
    """The state does not say which staged rows were acknowledged."""

    def __init__(self, tracker: WatermarkTracker, state: ReaderState | None) -> None:
        super().__init__(tracker, "t", "id", state=state)
        self._staged = {}


class ReleasesAtOnce(TransactionAssembler):
    """Does not wait for the low watermark with a release."""

    def add(self, change: DataChange | Release, position: Position, size: int) -> None:
        if isinstance(change, Release) and change.commit_timestamp >= self._passed:
            self._passed = change.commit_timestamp + 1
        super().add(change, position, size)


class ContinuesAtTheEnd(TransactionAssembler):
    """The state says that everything was acknowledged."""

    def _oldest(self, k: int) -> int:
        return self._next[k]


class ReleasesWhatIsReadAgain(TransactionAssembler):
    """Does not wait for the records that are read again."""

    def release(self) -> None:
        self._again = set()
        super().release()


def of(kind: type[TransactionAssembler]) -> MakeAssembler:
    if kind in (ForgetsAsides, ForgetsRows):
        return kind  # type: ignore[return-value]
    return lambda tracker, state: kind(tracker, "t", "id", state=state)


@pytest.mark.parametrize(
    "kind",
    [
        ReleasesTooEarly,
        CountsDuplicates,
        ForgetsAsides,
        ForgetsRows,
        ReleasesAtOnce,
        ContinuesAtTheEnd,
        ReleasesWhatIsReadAgain,
    ],
)
def test_the_simulation_notices_a_wrong_assembler(
    kind: type[TransactionAssembler], seed: int
) -> None:
    """The check is tried itself: each way to get it wrong must be found."""
    with pytest.raises((AssertionError, KeyError)):
        for drawn in draws(seed, range(300)):
            run(Random(drawn), of(kind))
