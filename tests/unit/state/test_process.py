"""The record of a process (RUN-1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.state.process import Failure, ProcessRecord
from connector.stored import from_stored, to_stored

MINE = ProcessRecord("h", "m", 7, "1", since=100, heartbeat_at=100, heartbeat_s=10)


def test_a_record_is_read_as_it_was_stored() -> None:
    error = Failure("A", "text", 3)
    full = replace(
        MINE, ended_at=9, waiting=error, batches={"s": 1}, stopped={"t": error}, last_error=error
    )
    assert from_stored(ProcessRecord, to_stored(full)) == full
    first = {name: to_stored(MINE)[name] for name in ("host", "machine", "pid", "version")}
    times = {"since": 100, "heartbeat_at": 100, "heartbeat_s": 10}
    assert from_stored(ProcessRecord, first | times) == MINE, "the other keys are optional"


@pytest.mark.parametrize(
    ("there", "is_at_work"),
    [
        (MINE, False),
        (replace(MINE, heartbeat_at=300), False),
        (replace(MINE, pid=8, heartbeat_at=300), True),
        (replace(MINE, machine="n", heartbeat_at=300), True),
        (replace(MINE, since=200, heartbeat_at=300), True),
        (replace(MINE, pid=8, since=20, heartbeat_at=300), True),
        (replace(MINE, pid=8, since=20, heartbeat_at=90), False),
        (replace(MINE, pid=8, since=200, heartbeat_at=300, ended_at=300), False),
    ],
)
def test_another_process_is_at_work_if_it_has_written_since(
    there: ProcessRecord, is_at_work: bool
) -> None:
    """RUN-1: the record of a killed process, or of one that has ended, is replaced."""
    assert there.is_at_work_beside(MINE) is is_at_work
