"""How `connector publish` sends (PUB-7)."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from connector.cli.publish import _send_all
from connector.records.model import Record
from connector.state.rate import RateLimit


class Sink:
    """Takes records in place of a producer."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def send(self, record: Record) -> None:
        self.records.append(record)


def test_a_limit_spreads_the_records_of_a_file() -> None:
    """PUB-7: each record waits for its place. Here the waits do not take place, so they grow."""
    beat = {"stream_partition": "p", "heartbeat": {"timestamp": 5}}
    lines = [(number, json.dumps(beat).encode()) for number in range(1, 6)]
    sink, waits = Sink(), list[float]()
    began = time.monotonic()
    _send_all(sink, iter(lines), RateLimit(2), waits.append)  # type: ignore[arg-type]
    spent = time.monotonic() - began
    assert len(sink.records) == 5
    assert [round(wait - first, 2) for wait, first in zip(waits, waits[:1] * 4, strict=True)] == (
        pytest.approx([0, 0.5, 1, 1.5], abs=0.1 + spent)
    )
    assert all(later > earlier for earlier, later in pairwise(waits))
