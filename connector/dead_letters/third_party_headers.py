"""The headers of third-party dead letters. Each tool has its own names for position and failure
(DLQ-1).

                    position                              numbers     failure
Kafka Connect       __connect.errors.topic, partition, …  text        exception.class.name, .message
Kafka Streams       __streams.errors.topic, …             text        exception, message
share groups        __dlq.errors.topic, …                 text        message, delivery.count
Spring Kafka        kafka_dlt-original-topic, …           big-endian  kafka_dlt-exception-fqcn
"""

from __future__ import annotations

from typing import Final

Headers = tuple[tuple[str, bytes | None], ...]

_SPRING: Final = "kafka_dlt-"
_PREFIXES: Final = (
    "__connect.errors.",
    "__streams.errors.",
    "__dlq.errors.",
    _SPRING,
    "retry_topic-",
)
_TOOLS: Final = (
    ("Kafka Connect", "__connect.errors.", "", ("exception.class.name", "exception.message")),
    ("Kafka Streams", "__streams.errors.", "", ("exception", "message")),
    ("A share group", "__dlq.errors.", "", ("message",)),
    ("Spring Kafka", _SPRING, "original-", ("exception-fqcn", "exception-message")),
    ("Spring Kafka", _SPRING, "original-", ("key-exception-fqcn", "key-exception-message")),
)


def is_error_header(name: str) -> bool:
    """Return whether a header is about a failure and was written by one of these tools."""
    return name.startswith(_PREFIXES)


def describe_failure(headers: Headers) -> str | None:
    """Describe the failure in one sentence: the tool, the position and the error. None if no tool
    wrote such headers.

    If a name repeats, the last header counts. Bytes that cannot be decoded are shown unchanged.
    """
    by_name = dict(headers)
    for tool, prefix, original, names in _TOOLS:
        what = [text for name in names if (text := _text(by_name.get(prefix + name)))]
        place = {
            name: by_name.get(f"{prefix}{original}{name}")
            for name in ("topic", "partition", "offset")
        }
        if what or (prefix != _SPRING and any(place.values())):
            partition, offset = (
                _number(place[name]) if prefix == _SPRING else _text(place[name])
                for name in ("partition", "offset")
            )
            parts = (
                _text(place["topic"]),
                partition and f"Kafka partition {partition}",
                offset and f"offset {offset}",
            )
            where = ", ".join(part for part in parts if part)
            return ": ".join(part for part in (tool, where, *what) if part)
    return None


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "backslashreplace")


def _number(value: bytes | None) -> str:
    """A number of Spring Kafka: 4 or 8 bytes, signed."""
    return (
        ""
        if value is None
        else str(int.from_bytes(value, "big", signed=True))
        if len(value) in (4, 8)
        else value.hex()
    )
