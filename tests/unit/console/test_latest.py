"""What a page does not wait for (WEB-2)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.console import latest
from connector.console.latest import Batches, Latest
from connector.errors.tables import store_unreachable
from connector.services.status import StatusReport
from connector.state.jobs import Job, JobKind

NOW = 1_800_000_000_000_000
SINCE = NOW - 1_000
times = st.sets(st.integers(NOW - 2_000, NOW), max_size=30)


@pytest.mark.parametrize("error", [RuntimeError("a fault"), store_unreachable("s3://b", "away")])
def test_a_read_that_failed_is_shown_and_repeated(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WEB-1: also after a fault, a later page shows a new status."""
    monkeypatch.setattr(latest, "_EVERY_S", 0.01)
    is_over, results = threading.Event(), iter([error])

    def read() -> StatusReport:
        for first in results:
            raise first
        assert is_over.wait(10)
        return StatusReport(NOW)

    newest = Latest(read)
    with newest.reading():
        with pytest.raises(type(error)):
            newest.report()
        is_over.set()
        until = time.monotonic() + 10
        while isinstance(newest._result, Exception) and time.monotonic() < until:
            time.sleep(0.01)
        assert newest.report().at == NOW


def test_a_slow_read_does_not_make_the_status_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """WEB-1: the pause after a read has a limit, however long the read took."""
    monkeypatch.setattr(latest, "_EVERY_S", 0.0)
    monkeypatch.setattr(latest, "_AT_LEAST_EVERY_S", 0.01)
    monkeypatch.setattr(latest, "_SHARE", 10**6)
    is_read_again, reads = threading.Event(), [False, True]

    def read() -> StatusReport:
        time.sleep(0.001)
        if reads.pop(0):
            is_read_again.set()
        reads.append(True)
        return StatusReport(NOW)

    with Latest(read).reading():
        assert is_read_again.wait(10)


class History:
    """Batches that ended at some times. One that has no end raises an error."""

    def __init__(self, ended: set[int]) -> None:
        self.ended, self.fails = ended, False

    def read(self, since: int) -> Iterator[Job]:
        for at in sorted(self.ended, reverse=True):
            if at < since:
                return
            if self.fails:
                raise store_unreachable("s3://b", "away")
            yield Job(JobKind.BATCH, "", at - 1, at)


@given(times, st.lists(times, min_size=1, max_size=6))
def test_each_batch_is_read_once_whatever_the_calls(first: set[int], later: list[set[int]]) -> None:
    """WEB-2: a call reads all new batches and a part of the old ones; in the end all are there."""
    history = History(first)
    batches = Batches(history.read)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latest, "_READING_S", -1.0)  # one old batch a call
        for added in later:
            shown, _ = batches.since(SINCE, NOW)
            ended = [job.ended_at for job in shown]
            assert ended == sorted(set(ended), reverse=True)
            assert set(ended) <= history.ended
            if ended:
                history.ended |= {at for at in added if at > ended[0]}
        is_whole = False
        while not is_whole:
            shown, is_whole = batches.since(SINCE, NOW)
    assert [job.ended_at for job in shown] == sorted(
        (at for at in history.ended if at >= SINCE), reverse=True
    )


def test_after_an_error_all_batches_are_read_again() -> None:
    """WEB-2: otherwise the chart would lack those behind the error."""
    history = History({NOW - 3, NOW - 2, NOW - 1})
    batches = Batches(history.read)
    history.fails = True
    with pytest.raises(type(store_unreachable("s3://b", "away"))):
        batches.since(SINCE, NOW)
    history.fails = False
    shown, is_whole = batches.since(SINCE, NOW)
    assert (len(shown), is_whole) == (3, True)
