"""The file with the time at which ingest last asked Kafka and had nothing to read (TBL-24)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.state.stream_progress import FreshnessFile, Progress, with_freshness_file
from connector.watermarks.freshness import EndOffsets, FreshnessLog

BATCH = FreshnessLog().after(3, {0: 5, 11: 7}, EndOffsets(100, {0: 5, 11: 7}))
PROGRESS = Progress(ingest_batch=3, freshness=BATCH)
STORED = {"ingest_batch": 3, "topic_id": "T", "end_offsets": {"0": 5, "11": 7}}
FILE = FreshnessFile("T", 200, {0: 5, 11: 7})


def test_the_newer_time_of_file_and_commit_counts() -> None:
    """TBL-24, staleness_is_bounded"""
    assert with_freshness_file(PROGRESS, STORED, FILE.to_text()).freshness.time_of(3) == 200
    assert with_freshness_file(PROGRESS, STORED, None) == PROGRESS
    for at in (99, 100):
        assert with_freshness_file(PROGRESS, STORED, replace(FILE, at=at).to_text()) == PROGRESS


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        pytest.param({**STORED, "topic_id": "another"}, FILE.to_text(), id="topic made again"),
        pytest.param({**STORED, "ingest_batch": 4}, FILE.to_text(), id="batch without progress"),
        pytest.param(STORED, "", id="empty"),
        pytest.param(STORED, FILE.to_text()[:-9], id="cut"),
        pytest.param(STORED, FILE.to_text().replace("200", "900"), id="another digit"),
        pytest.param(STORED, "[" * 100_000, id="nested"),
        pytest.param(STORED, '{"topic_id":"T","at":"soon","ends":{}}', id="another type"),
    ],
)
def test_a_file_that_says_nothing_of_the_batch_is_ignored(stored: Any, text: str) -> None:
    """TBL-24, staleness_is_bounded"""
    assert with_freshness_file(PROGRESS, stored, text) == PROGRESS


@given(st.dictionaries(st.sampled_from([0, 11, 12]), st.integers(0, 10)), st.integers(0, 300))
def test_a_file_makes_no_state_younger_than_it_is(ends: dict[int, int], at: int) -> None:
    """TBL-24, staleness_is_bounded: also one that is newer or older than the changelog, for example
    from a backup.
    """
    read_to = {0: 5, 11: 7}
    result = with_freshness_file(PROGRESS, STORED, FreshnessFile("T", at, ends).to_text())
    known = result.freshness.time_of(3)
    is_contained = all(read_to.get(k, 0) >= end for k, end in ends.items())
    assert known == (at if at > 100 and is_contained else 100)
    assert result.freshness.newest == max(at, 100)
