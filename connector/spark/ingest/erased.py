"""Refuses records of erased rows (OPR-2): their offsets and times are logged, but no content.
Staged rows that a release with an old commit timestamp makes visible lose theirs then.

Without an erased row, the plan of ingest is unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from connector.records.rejection import Reason
from connector.state.erased_keys import ErasedKeys
from connector.warehouse import STAGED_SLOT, in_slot
from connector.write_streams.releases import ReleasedRange

_BLOCK_BYTES: Final = 64
_REMOVED: Final = ("entries", "change_sequence_number", "row_image", "resume_token")
_ARRIVAL: Final = "unix_micros(timestamp)"
_COMMITTED: Final = "nullif(data_change.commit_timestamp, 0)"
"""A staged change has no commit timestamp: its arrival in Kafka counts."""
_IS_VALID: Final = f"(verdict IS NULL OR verdict = '{Reason.TOO_LATE}')"
_UNREADABLE: Final = (
    *(Reason.TOO_LARGE, Reason.UNKNOWN_FRAMING, Reason.UNKNOWN_SCHEMA, Reason.UNDECODABLE),
)
_NOT_DECODED: Final = ", ".join(f"'{reason}'" for reason in _UNREADABLE)


def refused_staged(ranges: Iterable[ReleasedRange], erased: ErasedKeys) -> tuple[str, str] | None:
    """Whether a row of a changelog is a staged row of one of these ranges that its release makes a
    change of an erased row up to the erasure, and its hash, as SQL. None: no row can be one.
    """
    newest, hmac = max(erased.erased_to.values(), default=-1), _hmac(erased.secret)
    of_ranges = [
        f"(write_stream.stream = '{name}' AND write_stream.offset >= {first}L"
        f" AND write_stream.offset < {upto}L AND ingest_batch >= {since}L"
        f" AND {_erased_to(erased, hmac)} >= {committed}L)"
        for name, first, upto, committed, since, _ in ranges
        if committed <= newest
    ]
    if not of_ranges:
        return None
    is_in_range = " OR ".join(of_ranges)
    where = f"{in_slot(STAGED_SLOT)} AND kind = 'staged' AND coalesce({is_in_range}, false)"
    return where, f"unhex({hmac})"


def _erased_to(erased: ErasedKeys, hmac: str) -> str:
    """The time up to which records with a hash are refused, as SQL. Null: none is."""
    # One constant, however many rows were erased.
    pairs = ",".join(f"{name}:{to}" for name, to in sorted(erased.erased_to.items()))
    return f"cast(try_element_at(str_to_map('{pairs}'), {hmac}) AS bigint)"


def _hmac(secret: bytes, table: str = "`table`", row_key: str = "row_key") -> str:
    """`state.erased_keys.key_hash` of a row, as SQL."""
    key = hashlib.sha256(secret).digest() if len(secret) > _BLOCK_BYTES else secret
    inner, outer = (
        bytes(byte ^ pad for byte in key.ljust(_BLOCK_BYTES, b"\0")).hex() for pad in (0x36, 0x5C)
    )
    message = f"cast({table} AS binary), X'00', {row_key}"
    return f"sha2(concat(X'{outer}', unhex(sha2(concat(X'{inner}', {message}), 256))), 256)"
