"""Rows that operators erased (OPR-2). Only a keyed hash of the key is stored."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from connector.records.views import view_of_time


@dataclass(frozen=True, slots=True)
class EraseKey:
    """The record of an erasure. Its begin and its end have a row each.

    - `key_hash` is that of the row key, in hexadecimal.
    - `erased_to`: ingest refuses changes of the row up to this commit timestamp.
    - `ended_at` 0: it has begun.

    Times are microseconds.
    """

    number: int
    stream: str
    source: str
    key_hash: str
    erased_to: int
    reason: str
    made_at: int
    made_by: str
    ended_at: int = 0


@dataclass(frozen=True, slots=True)
class ErasedKeys:
    """The erased rows of a stream: by hash, the commit timestamp up to which changes are refused,
    for ever. `secret` is the key of the hashes, and `sources` are the source tables of the rows.
    """

    secret: bytes = b""
    erased_to: Mapping[str, int] = field(default_factory=dict)
    sources: frozenset[str] = frozenset()

    def refused(self, source: str, row_key: bytes, time: int) -> bytes | None:
        """Return the hash of a row, if its changes of this time (µs) are refused."""
        hash_ = key_hash(self.secret, source, row_key)
        erased_to = self.erased_to.get(hash_)
        return None if erased_to is None or erased_to < time else bytes.fromhex(hash_)


def erased_by(secret: bytes, records: Iterable[EraseKey]) -> ErasedKeys:
    """Return the erased rows of the records of one stream."""
    erased_to, sources = dict[str, int](), set[str]()
    for record in records:
        before = erased_to.get(record.key_hash, 0)
        erased_to[record.key_hash] = max(before, record.erased_to)
        sources.add(record.source)
    return ErasedKeys(secret, erased_to, frozenset(sources))


def unfinished(records: Iterable[EraseKey]) -> tuple[str, ...]:
    """Return the erasures of the records of one stream that have begun and not ended, as text."""
    newest = {record.key_hash: record for record in records}
    return tuple(
        f"the erasure by {record.made_by} at {view_of_time(record.made_at)} has not ended:"
        f" {record.reason}"
        for record in newest.values()
        if not record.ended_at
    )


def key_hash(secret: bytes, source: str, row_key: bytes) -> str:
    """Return the keyed hash (HMAC-SHA256) of a row key of a source table.

    `spark.ingest.erased` computes the same in SQL, for staged rows that are released.
    """
    return hmac.new(secret, source.encode() + b"\0" + row_key, "sha256").hexdigest()
