"""Refuses changes of erased rows (OPR-2): their offsets and times are logged, but no content.
Staged rows that a release with an old commit timestamp makes visible lose theirs then.

Where no erased row is in force, the plan of ingest is unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.records.rejection import Reason
from connector.state.erased_keys import ErasedKeys
from connector.warehouse import STAGED_SLOT
from connector.write_streams.releases import ReleasedRange

_BLOCK_BYTES: Final = 64
_REMOVED: Final = ("entries", "change_sequence_number", "row_image", "resume_token")
_TIME: Final = "coalesce(nullif(data_change.commit_timestamp, 0), unix_micros(timestamp))"
"""A staged change has no commit timestamp: its arrival in Kafka counts."""


def without_erased(rows: DataFrame, erased: ErasedKeys) -> DataFrame:
    """`rows` with the `verdict` of a record. A change of an erased row up to the erasure becomes
    valid and loses its content. It has the hash as its row key, and no entries.
    """
    hmac = _hmac(erased.secret, "data_change.table", "data_change.row_key")
    hashed = rows.withColumn("_hash", F.expr(hmac))
    is_refused = (
        f"coalesce((verdict IS NULL OR verdict = '{Reason.TOO_LATE}')"
        f" AND {_erased_to(erased, '_hash')} >= {_TIME}, false)"
    )
    marked = hashed.withColumn("_is_erased", F.expr(is_refused))
    fields = {field.name: field.dataType for field in rows.schema["data_change"].dataType}  # type: ignore[attr-defined]
    change = F.col("data_change").withField("row_key", F.expr("unhex(_hash)"))
    for name in _REMOVED:
        change = change.withField(name, F.lit(None).cast(fields[name]))
    for name in ("verdict", "key", "value", "headers"):
        marked = marked.withColumn(name, F.expr(f"CASE WHEN NOT _is_erased THEN {name} END"))
    change = F.when(F.col("_is_erased"), change).otherwise(F.col("data_change"))
    return marked.withColumn("data_change", change).drop("_hash", "_is_erased")


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
    where = f"slot = {STAGED_SLOT} AND kind = 'staged' AND coalesce({is_in_range}, false)"
    return where, f"unhex({hmac})"


def _erased_to(erased: ErasedKeys, hmac: str) -> str:
    """The time up to which changes with a hash are refused, as SQL. Null: none is."""
    pairs = ", ".join(f"'{name}', {to}L" for name, to in sorted(erased.erased_to.items()))
    return f"try_element_at(map({pairs}), {hmac})"


def _hmac(secret: bytes, table: str = "`table`", row_key: str = "row_key") -> str:
    """`state.erased_keys.key_hash` of a row, as SQL."""
    key = hashlib.sha256(secret).digest() if len(secret) > _BLOCK_BYTES else secret
    inner, outer = (
        bytes(byte ^ pad for byte in key.ljust(_BLOCK_BYTES, b"\0")).hex() for pad in (0x36, 0x5C)
    )
    message = f"cast({table} AS binary), X'00', {row_key}"
    return f"sha2(concat(X'{outer}', unhex(sha2(concat(X'{inner}', {message}), 256))), 256)"
