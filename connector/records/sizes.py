"""How many bytes a Kafka record has."""

from __future__ import annotations

from connector.records.rejection import Headers


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The bytes of a record's contents, without what Kafka needs to tell them apart."""
    return len(key or b"") + len(value or b"") + sum(len(name.encode()) + len(text or b"") for name, text in headers)
