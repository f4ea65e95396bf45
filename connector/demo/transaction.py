"""Commits as a source makes them: all changes of a transaction have one commit timestamp, and
numbers (REC-24).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.records.model import DataChange, Entry, RowImage, Transaction

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class RowWrite:
    """The change of one row in a transaction."""

    stream_partition: str
    row_key: bytes
    entries: tuple[Entry, ...]
    row_image: RowImage | None = None


def commit(
    table: str, transaction_id: str, commit_timestamp: int, writes: Sequence[RowWrite]
) -> tuple[DataChange, ...]:
    """The changes of one transaction, in the order of `writes`. Raises `InvalidChangeError`."""
    last_of = {write.stream_partition: sequence for sequence, write in enumerate(writes)}
    return tuple(
        DataChange(
            stream_partition=write.stream_partition,
            table=table,
            row_key=write.row_key,
            commit_timestamp=commit_timestamp,
            entries=write.entries,
            source_cluster_id="demo",
            transaction=Transaction(
                server_transaction_id=transaction_id,
                record_sequence=sequence,
                is_last_record_in_transaction_in_partition=last_of[write.stream_partition]
                == sequence,
                number_of_records_in_transaction=len(writes),
                number_of_partitions_in_transaction=len(last_of),
            ),
            row_image=write.row_image,
        )
        for sequence, write in enumerate(writes)
    )
