"""The decisions about appends, commits and discards, case by case (WRS-7, WRS-13 to WRS-15,
WRS-21). Their laws are in `tests/property/test_write_stream_laws.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.records.model import OffsetRange
from connector.write_streams.model import LastAppend, StreamEntry, StreamKind, StreamState
from connector.write_streams.rules import (
    Fault,
    Placing,
    append_fault,
    commit,
    commit_fault,
    discard_fault,
    fault_error,
    is_expired,
    placing_of,
    recorded_commit,
    refused,
    release_timestamp,
)

LAST = LastAppend(5, 3, "the rows", 1)
RETENTION = 100
FINAL = StreamEntry(StreamKind.PENDING, StreamState.FINALIZED, 5, changed_at=1)


@pytest.mark.parametrize(
    ("offset", "rows", "digest", "placing"),
    [
        (None, 3, "others", Placing.TAKEN),
        (8, 1, "others", Placing.TAKEN),
        (9, 1, "others", Placing.OUT_OF_RANGE),
        (7, 2, "others", Placing.OVERLAP),
        (0, 9, "others", Placing.OVERLAP),
        (5, 3, "the rows", Placing.REPEATED),
        (5, 3, "others", Placing.DIFFERENT),
        (5, 2, "others", Placing.REPEATED),
        (4, 3, "others", Placing.REPEATED),
        (0, 8, "others", Placing.REPEATED),
    ],
)
def test_an_append_is_compared_with_the_end_and_the_last_append(
    offset: int | None, rows: int, digest: str, placing: Placing
) -> None:
    """WRS-7: the last append has the offsets 5 to 7. Only its rows can be compared."""
    assert placing_of(8, LAST, offset, rows, digest) is placing
    if placing is Placing.DIFFERENT:
        assert placing_of(8, None, offset, rows, digest) is Placing.REPEATED


def test_a_write_stream_expires_after_the_retention() -> None:
    """WRS-21: one that is not recorded yet is not expired, and neither is one that waits for
    nothing.
    """
    assert not is_expired(FINAL, RETENTION, RETENTION)
    assert is_expired(FINAL, 1 + RETENTION, RETENTION)
    assert not is_expired(replace(FINAL, changed_at=0), 1 + RETENTION, RETENTION)
    for settled in (StreamState.COMMITTED, StreamState.DISCARDED):
        assert not is_expired(replace(FINAL, state=settled), 1 + RETENTION, RETENTION)
    of_kind = replace(FINAL, kind=StreamKind.COMMITTED, state=StreamState.OPEN)
    assert not is_expired(of_kind, 1 + RETENTION, RETENTION)


@pytest.mark.parametrize(
    ("kind", "state", "expired", "faults"),
    [
        ("pending", "open", False, (None, Fault.NOT_FINALIZED, Fault.NOT_FINALIZED)),
        ("pending", "open", True, (Fault.EXPIRED, Fault.EXPIRED, None)),
        ("pending", "finalized", False, (Fault.FINALIZED, None, None)),
        ("pending", "finalized", True, (Fault.FINALIZED, Fault.EXPIRED, None)),
        ("pending", "committed", True, (Fault.ALREADY_COMMITTED,) * 3),
        ("pending", "discarded", True, (Fault.DISCARDED, Fault.DISCARDED, None)),
        ("buffered", "open", False, (None, Fault.WRONG_KIND, Fault.NOT_FINALIZED)),
        ("buffered", "finalized", False, (Fault.FINALIZED, Fault.WRONG_KIND, None)),
        ("committed", "open", True, (None, Fault.WRONG_KIND, Fault.WRONG_KIND)),
        ("committed", "finalized", True, (Fault.FINALIZED, Fault.WRONG_KIND, Fault.WRONG_KIND)),
    ],
)
def test_a_write_stream_refuses_an_append_a_commit_or_a_discard_for_one_reason(
    kind: str, state: str, expired: bool, faults: tuple[Fault | None, ...]
) -> None:
    """WRS-12 to WRS-14, WRS-21."""
    entry = StreamEntry(StreamKind(kind), StreamState(state), 5, changed_at=1)
    now = 1 + RETENTION if expired else RETENTION
    found = [fault(entry, now, RETENTION) for fault in (append_fault, commit_fault, discard_fault)]
    assert tuple(found) == faults


def test_a_missing_write_stream_has_the_fault_not_found() -> None:
    """WRS-14."""
    assert commit_fault(None, 1, 1) is discard_fault(None, 1, 1) is Fault.NOT_FOUND


def test_only_exactly_the_same_set_was_committed_before() -> None:
    """WRS-14: `w/empty` has no rows, so the release has no range of it."""
    streams = {"w/a": FINAL, "w/empty": replace(FINAL, end=0), "w/other": FINAL}
    committed, ranges = commit(streams, ["w/a", "w/empty"], 70)
    assert ranges == [OffsetRange("w/a", 0, 5)]
    assert committed.keys() == {"w/a", "w/empty"}
    one = committed["w/a"]
    assert (one.state, one.flushed, one.commit_timestamp) == (StreamState.COMMITTED, 5, 70)
    streams |= committed
    assert recorded_commit(streams, ["w/empty", "w/a"]) == 70
    for others in (["w/a"], ["w/a", "w/empty", "w/other"], ["w/a", "w/none"], ["w/other"]):
        assert recorded_commit(streams, others) is None


def test_a_release_is_after_the_last_heartbeat_and_the_last_release() -> None:
    """WRS-15: now 50, last heartbeat 60, no release: 61."""
    assert release_timestamp(50, 60, 0) == 61
    assert release_timestamp(50, 0, 60) == 61
    assert release_timestamp(62, 60, 60) == 62


@pytest.mark.parametrize("fault", list(Fault))
def test_the_error_of_a_write_stream_has_its_fault(fault: Fault) -> None:
    """WRS-12 to WRS-14."""
    error = fault_error(fault, "w1/p")
    assert (error.stream, error.fault) == ("w1/p", fault)
    assert "w1/p" in error.problem
    assert error.remedy


def test_a_refused_commit_names_each_write_stream() -> None:
    """WRS-14: `faults` has all of them, and the text the first five."""
    error = refused("committed", {f"w{n}/p": Fault.NOT_FINALIZED for n in range(7)})
    assert error.faults == tuple((f"w{n}/p", "NOT_FINALIZED") for n in range(7))
    assert "w4/p: NOT_FINALIZED, and 2 more" in error.cause
