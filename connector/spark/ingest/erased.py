"""Refuses records of erased rows (OPR-2): their offsets and times are logged, but no content.
Staged rows that a release with an old commit timestamp makes visible lose theirs then.

Without an erased row, the plan of ingest is unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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


def without_erased(rows: DataFrame, erased: ErasedKeys, record: Iterable[str]) -> DataFrame:
    """`rows` with the `verdict` and the fields `record` of a record. A record of an erased row up
    to the erasure becomes valid and loses its content. It has the hash as its row key, and no
    entries.

    A change that is valid, or only too late, keeps its times. A record that would become a dead
    letter keeps nothing else: its offset stays in the slot of rejected records. Where a record
    cannot be decoded, its Kafka key decides. Only records as old as the newest erasure are hashed.
    """
    newest, types = max(erased.erased_to.values()), rows.schema["data_change"].dataType
    fields = {field.name: field.dataType for field in types}  # type: ignore[attr-defined]
    time = (
        f"CASE WHEN {_IS_VALID} THEN coalesce({_COMMITTED}, {_ARRIVAL})"
        f" ELSE least({_COMMITTED}, {_ARRIVAL}) END"
    )
    hashed = rows.withColumn("_time", F.expr(time)).withColumn(
        "_hash", F.expr(f"CASE WHEN _time <= {newest}L THEN {_hash_of(erased)} END")
    )
    marked = hashed.withColumn("_is_bare", F.expr(f"_hash IS NOT NULL AND NOT {_IS_VALID}"))
    change = F.col("data_change").withField("row_key", F.expr("unhex(_hash)"))
    for name in _REMOVED:
        change = change.withField(name, F.lit(None).cast(fields[name]))
    bare = F.struct(
        *(
            (F.expr("unhex(_hash)") if name == "row_key" else F.lit(None).cast(type_)).alias(name)
            for name, type_ in fields.items()
        )
    )
    for name in ("verdict", "key", "value", "headers"):
        marked = marked.withColumn(name, F.expr(f"CASE WHEN _hash IS NULL THEN {name} END"))
    for name in record:
        if name != "data_change":
            marked = marked.withColumn(name, F.expr(f"CASE WHEN NOT _is_bare THEN {name} END"))
    change = F.when(F.col("_is_bare"), bare).when(F.col("_hash").isNotNull(), change)
    change = change.otherwise(F.col("data_change"))
    return marked.withColumn("data_change", change).drop("_time", "_hash", "_is_bare")


def _hash_of(erased: ErasedKeys) -> str:
    """The hash of the erased row that a record is of, as SQL over `_time`. Null: it is of none."""
    own = _hmac(erased.secret, "data_change.table", "data_change.row_key")
    of_key = ", ".join(_hmac(erased.secret, f"'{name}'", "key") for name in sorted(erased.sources))
    is_refused = f"coalesce({_erased_to(erased, 'h')} >= _time, false)"
    return f"""CASE WHEN {_erased_to(erased, own)} >= _time THEN {own}
        WHEN verdict IN ({_NOT_DECODED}) THEN get(filter(array({of_key}), h -> {is_refused}), 0)
        END"""


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
