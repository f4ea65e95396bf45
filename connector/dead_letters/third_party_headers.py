"""What the dead letters of other tools say of themselves: each has headers of its own for where, what and why (DLQ-1).

                    where                                 numbers     what
Kafka Connect       __connect.errors.topic, partition, …  text        exception.class.name, exception.message
Kafka Streams       __streams.errors.topic, …             text        exception, message
share groups        __dlq.errors.topic, …                 text        message, delivery.count
Spring Kafka        kafka_dlt-original-topic, …           big-endian  kafka_dlt-exception-fqcn, -message; or of the key
"""

from __future__ import annotations

from typing import Final

Headers = tuple[tuple[str, bytes | None], ...]

_SPRING: Final = "kafka_dlt-"
_PREFIXES: Final = ("__connect.errors.", "__streams.errors.", "__dlq.errors.", _SPRING, "retry_topic-")
_TOOLS: Final = (
    ("Kafka Connect", "__connect.errors.", "", ("exception.class.name", "exception.message")),
    ("Kafka Streams", "__streams.errors.", "", ("exception", "message")),
    ("A share group", "__dlq.errors.", "", ("message",)),
    ("Spring Kafka", _SPRING, "original-", ("exception-fqcn", "exception-message")),
    ("Spring Kafka", _SPRING, "original-", ("key-exception-fqcn", "key-exception-message")),
)


def is_error_header(name: str) -> bool:
    """Whether a header tells of a failure, in the words of one of these tools, and is none of the record's own."""
    return name.startswith(_PREFIXES)


def describe_failure(headers: Headers) -> str | None:
    """What the headers say, in one sentence: which tool, where the record was, and what went wrong; None if no tool wrote them.

    Of a name that repeats the last one counts. Bytes that are not what they should be are shown as they are.
    """
    said = dict(headers)
    for tool, prefix, original, names in _TOOLS:
        what = [text for name in names if (text := _text(said.get(prefix + name)))]
        place = {name: said.get(f"{prefix}{original}{name}") for name in ("topic", "partition", "offset")}
        if what or (prefix != _SPRING and any(place.values())):
            partition, offset = (_number(place[name]) if prefix == _SPRING else _text(place[name]) for name in ("partition", "offset"))
            parts = (_text(place["topic"]), partition and f"Kafka partition {partition}", offset and f"offset {offset}")
            where = ", ".join(part for part in parts if part)
            return ": ".join(part for part in (tool, where, *what) if part)
    return None


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "backslashreplace")


def _number(value: bytes | None) -> str:
    """Spring's numbers: 4 or 8 bytes, signed."""
    return "" if value is None else str(int.from_bytes(value, "big", signed=True)) if len(value) in (4, 8) else value.hex()
