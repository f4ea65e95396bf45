"""Refuses changes of erased rows (OPR-2): their offsets and times are logged, but no content.

A record that is valid, or only too late, keeps its times. One that would become a dead letter keeps
nothing but a hash of its key. Where a record cannot be decoded, its Kafka key decides.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.engine.values import Flags, Numbers, flags_of
from connector.records import codec
from connector.records.codec import ChangeRecord
from connector.records.rejection import Reason, Rejection
from connector.state.erased_keys import ErasedKeys
from connector.validation import KafkaRecord

_CONTENT: Final = ("entries", "change_sequence_number", "row_image", "resume_token")


def without_erased(rows: pa.Table, arrivals: Numbers, erased: ErasedKeys) -> tuple[pa.Table, Flags]:
    """Return rows of valid records, with the schema `RECORD`, without the content of erased rows,
    and which rows these are. A staged change has no commit timestamp: its arrival counts.
    """
    is_erased = np.zeros(len(rows), np.bool_)
    newest = max(erased.erased_to.values(), default=-1)
    is_change = pc.is_in(rows["kind"], pa.array(["change", "staged"]))
    times = pc.fill_null(rows["commit_timestamp"].cast(pa.int64()), pa.array(arrivals))
    of_source = pc.is_in(rows["table"], pa.array(sorted(erased.sources), pa.string()))
    may_be = pc.and_(pc.and_(is_change, of_source), pc.less_equal(times, newest))
    few = np.flatnonzero(flags_of(may_be))
    chosen = rows.select(["table", "row_key"]).take(pa.array(few))
    of_few = zip(
        few.tolist(), chosen.to_pylist(), times.take(pa.array(few)).to_pylist(), strict=True
    )
    hashes = {
        index: hash_
        for index, row, time in of_few
        if (hash_ := erased.refused(row["table"], row["row_key"], time)) is not None
    }
    if not hashes:
        return rows, is_erased
    is_erased[[*hashes]] = True
    mask = pa.array(is_erased)
    keys = pa.array([hashes.get(index) for index in range(len(rows))], pa.binary())
    new = {"kind": pa.scalar("erased"), "row_key": keys}
    new |= {name: pa.scalar(None, rows[name].type) for name in _CONTENT}
    columns = [
        pc.if_else(mask, new[name], rows[name]) if name in new else rows[name]
        for name in rows.column_names
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema), is_erased


def without_letter(
    record: KafkaRecord, rejection: Rejection, schemas: codec.Schemas, erased: ErasedKeys
) -> ChangeRecord | Rejection | bytes:
    """Return the rejection of a record, unless the record is of an erased row. Then return the hash
    of its key or, if it is only too late, the record, which is left to `without_erased`.
    """
    if not erased.erased_to:
        return rejection
    is_large = rejection.reason is Reason.TOO_LARGE
    datum = rejection if is_large else codec.read(record.value, schemas)
    if isinstance(datum, Rejection):
        refused = (
            erased.refused(source, record.key, record.record_timestamp)
            for source in sorted(erased.sources)
            if record.key is not None
        )
        return next((hash_ for hash_ in refused if hash_ is not None), rejection)
    if (change := datum["data_change"]) is None:
        return rejection
    time = change["commit_timestamp"] or record.record_timestamp
    if rejection.reason is not Reason.TOO_LATE:
        time = min(time, record.record_timestamp)
    hash_ = erased.refused(change["table"], change["row_key"], time)
    if hash_ is None:
        return rejection
    if rejection.reason is not Reason.TOO_LATE:
        return hash_
    decoded = codec.decode(record.value, schemas)
    assert isinstance(decoded, ChangeRecord)
    return decoded
