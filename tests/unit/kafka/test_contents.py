"""The contents of a Kafka record: whatever a program in any language sent, it is read (DLQ-1)."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import Consumer

from connector.kafka.client import contents
from connector.kafka.ranges import RangeReader
from tests.unit.mock_cluster import QUICK_FETCH, MockCluster


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        (b"trace", (("trace", b"1"),)),
        ("näme".encode(), (("näme", b"1"),)),
        (b"\xff", None),
        (b"a\xed\xa0\x80", None),
    ],
)
def test_a_header_name_that_is_not_utf_8_stops_no_reader(
    cluster: MockCluster, name: bytes, headers: tuple[object, ...] | None
) -> None:
    """DLQ-1: the key and the value of such a record are read."""
    records = 50  # after some, the interpreter calls in another way
    cluster.produce("t", b"value", name, records)
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        **QUICK_FETCH,
    }
    consumer = Consumer(settings)
    try:
        consumer.subscribe(["t"])
        for _ in range(records):
            message = consumer.poll(30)
            assert message is not None
            assert contents(message)[:3] == (None, b"value", headers)
    finally:
        consumer.close()


@pytest.mark.parametrize(("name", "is_read"), [(b"trace", True), (b"\xff", False)])
def test_a_small_batch_leaves_headers_that_it_cannot_read_to_spark(
    cluster: MockCluster, name: bytes, is_read: bool
) -> None:
    """DLQ-10, ENG-4: also the mark of a replay is among them."""
    cluster.create_topic("one", 1)
    cluster.produce("one", b"value", name, 3)
    with closing(RangeReader(cluster.kafka, "one")) as reader:
        columns = reader.read({0: (0, 3)}, 1)
    assert (columns is not None) == is_read
    assert columns is None or columns["headers"] == [[{"key": "trace", "value": b"1"}]] * 3
