"""The size of a Kafka record in bytes."""

from __future__ import annotations

from connector.records.rejection import Headers


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the bytes of key, value, header names and header values, without Kafka's own
    overhead.
    """
    return (
        len(key or b"")
        + len(value or b"")
        + sum(
            len(name.encode("utf-8", "surrogatepass")) + len(text or b"") for name, text in headers
        )
    )
