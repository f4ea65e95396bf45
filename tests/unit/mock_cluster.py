"""librdkafka's mock cluster, in process: for producer errors that a real broker does not make on
demand.

It knows nothing of transactions' visibility, topic administration or retention; no test may claim
these from it. Its functions are experimental: a test is skipped if this wheel lacks them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, TopicPartition

from connector.config.settings import KafkaConfig
from connector.errors import BrokerError
from connector.errors.kafka import topic_missing
from connector.kafka import client, topics
from connector.kafka.topics import TopicFacts

QUICK_FETCH = {"fetch.wait.max.ms": "10"}
"""The mock cluster answers a fetch at the end of a topic after the whole wait, which is 500 ms by
default, also if records arrive meanwhile.
"""
DEAD = KafkaConfig("127.0.0.1:1", {"message.timeout.ms": "60000"})
FACTS = TopicFacts("t", "AAAAAAAAAAAAAAAAAAAAAA", 2, 1, "delete", "LogAppendTime", 10**9, 1_000_000)
PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TRANSACTION = 0, 22, 24, 26
OFFSET_FETCH, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 9, 11, 12, 14
OUT_OF_ORDER_SEQUENCE, NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE = 45, 19, 10
CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_EPOCH, INVALID_STATE, FORBIDDEN_ID = 51, 47, 48, 53


def _library() -> ctypes.CDLL | None:
    root = Path(confluent_kafka.__file__).parent
    found = [
        *root.parent.glob("confluent_kafka.libs/librdkafka*"),
        *root.glob(".dylibs/librdkafka*"),
    ]
    return ctypes.CDLL(os.fspath(found[0])) if found else None


class MockCluster:
    def __init__(self, library: ctypes.CDLL, cluster: int) -> None:
        self._library, self._cluster = library, cluster
        self.bootstrap_servers: str = _function(
            library, "rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p, ctypes.c_void_p
        )(cluster).decode()

    @property
    def kafka(self) -> KafkaConfig:
        return KafkaConfig(self.bootstrap_servers, QUICK_FETCH)

    def create_topic(self, topic: str, kafka_partitions: int) -> None:
        create = _function(
            self._library,
            "rd_kafka_mock_topic_create",
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_int,
        )
        assert create(self._cluster, topic.encode(), kafka_partitions, 1) == 0

    def produce(self, topic: str, value: bytes, header_name: bytes, count: int) -> None:
        """Send equal records as a program in C can: the name of the header is any bytes."""
        error = ctypes.create_string_buffer(512)
        configuration = _function(self._library, "rd_kafka_conf_new", ctypes.c_void_p)()
        self._library.rd_kafka_conf_set(
            ctypes.c_void_p(configuration),
            b"bootstrap.servers",
            self.bootstrap_servers.encode(),
            error,
            ctypes.c_size_t(512),
        )
        handle = ctypes.c_void_p(
            _function(self._library, "rd_kafka_new", ctypes.c_void_p)(
                0, ctypes.c_void_p(configuration), error, ctypes.c_size_t(512)
            )
        )
        topic_is, value_is, flags_are, header_is, end = (ctypes.c_int(n) for n in (1, 4, 7, 9, 0))
        for _ in range(count):
            self._library.rd_kafka_producev(
                handle,
                *(topic_is, ctypes.c_char_p(topic.encode())),
                *(value_is, ctypes.c_char_p(value), ctypes.c_size_t(len(value))),
                *(flags_are, ctypes.c_int(2)),  # copy the value
                *(header_is, ctypes.c_char_p(header_name), ctypes.c_char_p(b"1")),
                ctypes.c_ssize_t(1),
                end,
            )
        assert self._library.rd_kafka_flush(handle, 10_000) == 0
        self._library.rd_kafka_destroy(handle)

    def answer_with(self, request: int, *errors: int) -> None:
        """The next requests of this kind fail, one for each error."""
        push = _function(
            self._library,
            "rd_kafka_mock_push_request_errors_array",
            None,
            ctypes.c_void_p,
            ctypes.c_int16,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_int),
        )
        push(self._cluster, request, len(errors), (ctypes.c_int * len(errors))(*errors))

    def stop(self) -> None:
        """The broker closes its connections, and takes no new ones, until `start`."""
        self._set("rd_kafka_mock_broker_set_down")

    def start(self) -> None:
        self._set("rd_kafka_mock_broker_set_up")

    def _set(self, name: str) -> None:
        function = _function(self._library, name, ctypes.c_int, ctypes.c_void_p, ctypes.c_int32)
        assert function(self._cluster, 1) == 0


def offsets(kafka: KafkaConfig, facts: TopicFacts) -> list[dict[int, int]]:
    """The first and the end offset of each Kafka partition."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "test"})
    found: list[dict[int, int]] = [{}, {}]
    try:
        for number in range(facts.kafka_partitions):
            ends = consumer.get_watermark_offsets(TopicPartition(facts.topic, number), timeout=5)
            if ends is None:
                raise BrokerError("BROKER_UNREACHABLE", "no answer")
            for which in (0, 1):
                found[which][number] = ends[which]
    finally:
        consumer.close()
    return found


def answer_topic_requests(*facts: TopicFacts, patch: Callable[[Any, str, Any], object]) -> None:
    """Answer the requests of topic administration, which the mock cluster does not know, for these
    topics.
    """
    described = {one.topic: one for one in facts}
    patch(client, "admin", lambda *_: None)

    def describe(kafka: KafkaConfig, topic: str, *_: object) -> TopicFacts:
        if topic not in described:
            raise topic_missing(topic, kafka.bootstrap_servers)
        return described[topic]

    patch(topics, "describe", describe)
    patch(topics, "beginning_offsets", lambda kafka, facts: offsets(kafka, facts)[0])
    patch(topics, "end_offsets", lambda kafka, facts: offsets(kafka, facts)[1])
    patch(topics, "high_watermarks", lambda kafka, facts: offsets(kafka, facts)[1])


@contextmanager
def running_cluster() -> Iterator[MockCluster]:
    library = _library()
    if library is None or not hasattr(library, "rd_kafka_mock_cluster_new"):
        pytest.skip("this librdkafka has no mock cluster")
    error = ctypes.create_string_buffer(512)
    configuration = _function(library, "rd_kafka_conf_new", ctypes.c_void_p)()
    new = _function(
        library,
        "rd_kafka_new",
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    )
    handle = new(0, configuration, error, 512)
    cluster = _function(
        library, "rd_kafka_mock_cluster_new", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
    )(handle, 1)
    # The first member of a group waits three seconds for others by default.
    first_wait = "rd_kafka_mock_group_initial_rebalance_delay_ms"
    _function(library, first_wait, None, ctypes.c_void_p, ctypes.c_int32)(cluster, 10)
    try:
        yield MockCluster(library, cluster)
    finally:
        _function(library, "rd_kafka_mock_cluster_destroy", None, ctypes.c_void_p)(cluster)
        _function(library, "rd_kafka_destroy", None, ctypes.c_void_p)(handle)


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, list(arguments)
    return function
