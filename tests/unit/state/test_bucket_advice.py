"""The recommended number of buckets (SCL-6)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.state.bucket_advice import (
    LEAST_BYTES,
    MIB,
    MOST_BYTES,
    BucketAdvice,
    advise,
    median_changes,
)
from connector.tables.definition import MAX_BUCKETS

GIB = 1024 * MIB


def advice(size_bytes: int, **others: Any) -> BucketAdvice:
    given = {"changes_per_apply": None, "cores": None, "has_vectors": True, **others}
    return advise("t", size_bytes=size_bytes, **given)


@pytest.mark.parametrize(
    ("size", "buckets"),
    [
        (0, 1),
        (MOST_BYTES - 1, 1),
        (MOST_BYTES + 1, 2),
        (4 * GIB, 16),
        (5 * GIB, 32),
        (2**40, MAX_BUCKETS),
        (2**50, MAX_BUCKETS),
    ],
)
def test_the_size_asks_for_buckets_of_at_most_256_mib(size: int, buckets: int) -> None:
    assert advice(size).buckets == buckets


def test_dense_applies_give_each_core_a_bucket() -> None:
    """An apply that rewrites whole buckets has a task for each of them."""
    dense = {"changes_per_apply": 10_000_000, "cores": 64}
    assert advice(4 * GIB, **dense).buckets == 64
    assert advice(GIB, **dense).buckets == GIB // LEAST_BYTES
    assert advice(4 * GIB, **{**dense, "cores": 8}).buckets == 16
    assert advice(4 * GIB, **{**dense, "cores": None}).buckets == 16
    assert "rewrite whole buckets, which is work for 64 cores" in advice(4 * GIB, **dense).reason


def test_sparse_applies_need_no_more_buckets_than_they_have_work() -> None:
    sparse = {"changes_per_apply": 12_000, "cores": 64}
    assert advice(4 * GIB, **sparse).buckets == 16
    assert (
        "12,000 changes replace single rows, which needs no more"
        in advice(4 * GIB, **sparse).reason
    )
    assert advice(4 * GIB, **{**sparse, "changes_per_apply": 620_000}).buckets == 32
    without = advice(4 * GIB, **sparse, has_vectors=False)
    assert (without.buckets, "rewrite whole buckets" in without.reason) == (64, True)


@given(
    st.integers(0, 2**50),
    st.none() | st.integers(1, 2**40),
    st.none() | st.integers(1, 100_000),
    st.booleans(),
)
def test_it_is_a_power_of_two_whose_buckets_are_neither_large_nor_small(
    size: int, changes: int | None, cores: int | None, has_vectors: bool
) -> None:
    found = advice(size, changes_per_apply=changes, cores=cores, has_vectors=has_vectors)
    assert 1 <= found.buckets <= MAX_BUCKETS
    assert found.buckets.bit_count() == 1
    assert (found.buckets == 1) is (size <= MOST_BYTES) or changes is not None
    if found.buckets < MAX_BUCKETS:
        assert size <= found.buckets * MOST_BYTES
    if found.buckets > 1:
        assert size >= found.buckets * LEAST_BYTES
    assert found.reason.count(". ") == 0, "one sentence"


@pytest.mark.parametrize(
    ("present", "is_worth"), [(None, False), (4, True), (8, False), (16, False), (32, False)]
)
def test_a_number_that_is_near_is_kept(present: int | None, is_worth: bool) -> None:
    """A rebuild for a factor of two costs more than it brings."""
    assert advice(4 * GIB, present=present).is_change_worthwhile is is_worth
    assert advice(4 * GIB, present=64).is_change_worthwhile


def test_applies_without_changes_do_not_count() -> None:
    assert median_changes([0, 5, 0, 9, 7]) == 7
    assert median_changes([0, 0]) is None
