"""The contents of a Kafka record: whatever a program in any language sent, it is read (DLQ-1)."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

from connector.kafka.client import contents
from tests.unit.mock_cluster import QUICK_FETCH, MockCluster


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        (b"trace", (("trace", b"1"),)),
        ("näme".encode(), (("näme", b"1"),)),
        (b"\xff", ()),
        (b"a\xed\xa0\x80", ()),
    ],
)
def test_a_header_name_that_is_not_utf_8_stops_no_reader(
    cluster: MockCluster, name: bytes, headers: tuple[object, ...]
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
