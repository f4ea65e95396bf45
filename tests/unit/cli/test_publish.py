"""How `connector publish` sends (PUB-7)."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from connector.cli.publish import _send_all
from connector.errors import ConnectorError
from connector.kafka.produce.producer import ChangeProducer
from connector.records.model import Record
from connector.state.pace import RateLimit
from tests.unit.mock_cluster import FACTS, running_cluster


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


ROW = {
    "table": "t",
    "row_key": "k",
    "commit_timestamp": 0,
    "entries": [{"kind": "DELETE_FAMILY", "family": "f"}],
    "write_stream": {"stream": "job/a", "offset": 3},
}
RELEASE = {"commit_timestamp": 5, "ranges": [{"stream": "job/a", "first": 0, "upto": 4}]}


@pytest.mark.parametrize(
    ("branch", "shown"),
    [
        ({"data_change": ROW}, "write_stream is 'job/a'"),
        ({"data_change": ROW | {"commit_timestamp": 5}}, "write_stream is 'job/a'"),
        ({"release": RELEASE}, r"release is \['job/a'\]"),
    ],
    ids=["staged", "row", "release"],
)
def test_records_of_write_sessions_are_refused_with_their_line(
    branch: dict[str, object], shown: str
) -> None:
    """WRS-2: the lines before are delivered."""
    lines = [
        {"stream_partition": "p", "heartbeat": {"timestamp": 5}},
        {"stream_partition": "p", **branch},
    ]
    numbered = [(number, json.dumps(line).encode()) for number, line in enumerate(lines, start=1)]
    with running_cluster() as cluster, ChangeProducer(cluster.kafka, FACTS) as producer:
        with pytest.raises(ConnectorError, match=f"Line 2: {shown}, but must be none") as caught:
            _send_all(producer, iter(numbered))
        assert caught.value.code == "LINE_REFUSED"
        assert "only a write session sends" in caught.value.problem
        assert caught.value.cause.startswith("Delivered before this line: 1 record")
