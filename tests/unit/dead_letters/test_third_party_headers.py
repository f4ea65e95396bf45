"""What other tools' dead letters say (DLQ-1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.dead_letters.envelope import describe_failure, from_record, is_error_header
from connector.records.rejection import Headers, Position, Reason

CONNECT: Headers = (
    ("__connect.errors.topic", b"orders"),
    ("__connect.errors.partition", b"3"),
    ("__connect.errors.offset", b"17"),
    ("__connect.errors.connector.name", b"sink"),
    ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    ("__connect.errors.exception.message", b"no such field"),
)
STREAMS: Headers = (
    ("__streams.errors.exception", b"java.lang.NumberFormatException"),
    ("__streams.errors.message", b"For input string"),
    ("__streams.errors.topic", b"orders"),
    ("__streams.errors.partition", b"3"),
    ("__streams.errors.offset", b"17"),
)
SHARE_GROUP: Headers = (
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.partition", b"3"),
    ("__dlq.errors.offset", b"17"),
    ("__dlq.errors.message", b"rejected"),
)
SPRING: Headers = (
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", (3).to_bytes(4, "big")),
    ("kafka_dlt-original-offset", (17).to_bytes(8, "big")),
    ("kafka_dlt-exception-fqcn", b"o.s.ListenerExecutionFailedException"),
    ("kafka_dlt-exception-message", b"Listener failed"),
)
SPRING_KEY: Headers = (*SPRING[:3], ("kafka_dlt-key-exception-message", b"bad key"))


@pytest.mark.parametrize(
    ("headers", "description"),
    [
        (
            CONNECT,
            (
                "Kafka Connect: orders, Kafka partition 3, offset 17:"
                " org.apache.kafka.connect.errors.DataException: no such field"
            ),
        ),
        (
            STREAMS,
            (
                "Kafka Streams: orders, Kafka partition 3, offset 17:"
                " java.lang.NumberFormatException: For input string"
            ),
        ),
        (SHARE_GROUP, "A share group: orders, Kafka partition 3, offset 17: rejected"),
        (
            SPRING,
            (
                "Spring Kafka: orders, Kafka partition 3, offset 17:"
                " o.s.ListenerExecutionFailedException: Listener failed"
            ),
        ),
        (SPRING_KEY, "Spring Kafka: orders, Kafka partition 3, offset 17: bad key"),
        ((("trace", b"1"),), None),
    ],
)
def test_the_failure_of_each_tool_is_described(headers: Headers, description: str | None) -> None:
    assert describe_failure((("trace", b"x"), *headers)) == description
    assert all(is_error_header(name) for name, _ in headers) == (description is not None)


def test_a_letter_of_another_tool_has_the_error_of_that_tool() -> None:
    """DLQ-1: and goes by its own coordinates."""
    at = Position("orders.dead-letters", "T", 0, 5)
    letter = from_record(b"k", b"v", SPRING, at=at, record_timestamp=9)
    assert (letter.position, letter.reason, letter.detail) == (
        at,
        Reason.REJECTED,
        describe_failure(SPRING),
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for name, _ in (*CONNECT, *STREAMS, *SPRING)]),
            st.none() | st.binary(max_size=9),
        )
    )
)
def test_no_header_raises_an_error(headers: list[tuple[str, bytes | None]]) -> None:
    assert isinstance(describe_failure(tuple(headers)), str | None)
