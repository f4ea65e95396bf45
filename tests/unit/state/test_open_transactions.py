"""What is known of a transaction that hides records (OPS-5)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.reports.stream_status import stream_status
from connector.state.stream_progress import OpenTransaction, Progress, still_hiding
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import UNKNOWN

S = 1_000_000
AT = 1_795_653_500 * S
OPEN = OpenTransaction(0, 7, 3, AT, "p")


def test_the_status_names_its_age_and_its_stream_partition() -> None:
    """OPS-5: and the offsets that it hides are the lag. One of a moment ago is no problem."""
    progress = Progress(ingest_batch=1).refreshed({0: 7}, EndOffsets(AT, {0: 10}), [OPEN])
    assert Progress.from_json(progress.to_json(), UNKNOWN) == progress
    assert not any(
        "transaction" in hint
        for hint in stream_status("s", progress, AT + S, stall_after_s=300).hints
    )
    status = stream_status("s", progress, AT + 90 * S, stall_after_s=300)
    assert status.lag == 3
    (hint,) = (hint for hint in status.hints if "transaction" in hint)
    assert "hides 3 offsets of Kafka partition 0" in hint
    assert "at offset 7, arrived 1m30s ago" in hint
    assert "of stream partition p" in hint
    assert "kafka_partition" in status.to_json()["open_transactions"][0]


def test_without_one_nothing_is_stored() -> None:
    assert "open_transactions" not in Progress().to_json()


@given(st.integers(0, 20), st.integers(0, 20))
def test_one_that_reading_has_passed_or_not_reached_hides_nothing(first: int, end: int) -> None:
    """OPS-5: reading stands exactly at the first record of a transaction that hides something."""
    found = still_hiding([OPEN._replace(first_offset=first)], {0: end})
    assert bool(found) == (first == end)
