"""Two producers are found, whatever the batches (PUB-4)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from connector.watermarks.producer_epoch import EpochRun, newest_epochs, older_producer

EPOCHS = st.lists(st.integers(1, 5), max_size=12)


@given(EPOCHS, st.sets(st.integers(1, 11)))
def test_an_older_epoch_behind_a_newer_one_is_found_in_its_batch(
    epochs: list[int], cuts: set[int]
) -> None:
    """PUB-4: a batch names a second producer if, and only if, one of its records has an older
    epoch than a record before it.
    """
    bounds = sorted({0, *(cut for cut in cuts if cut < len(epochs)), len(epochs)})
    newest = 0
    for start, end in pairwise(bounds):
        offsets: dict[int, list[int]] = {}
        for offset in range(start, end):
            offsets.setdefault(epochs[offset], []).append(offset)
        runs = [EpochRun(epoch, places[0], places[-1]) for epoch, places in offsets.items()]
        behind = {
            epochs[offset]
            for offset in range(start, end)
            if epochs[offset] < max(epochs[:offset], default=0)
        }
        found = older_producer(4, runs, newest)
        assert (found is not None) == bool(behind)
        if found is not None:
            assert found.older == max(behind)
            assert found.older < found.newer <= max(epochs[:end])
        newest = max(newest, newest_epochs({4: runs})[4])
