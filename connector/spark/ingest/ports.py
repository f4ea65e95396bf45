"""The functions that ingest needs from Kafka, the clock and the requests of operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from connector.dead_letters.envelope import ClaimedLetter, DeadLetter
from connector.dead_letters.ledger import ExternalDeadLetters
from connector.records.ordering import OrderPosition
from connector.spark.ingest.source import Topic
from connector.spark.storage.changelog import FoldBatches, WriteRows
from connector.spark.storage.logged_batch import BatchRange
from connector.state.accepted_losses import AcceptLoss
from connector.state.batch_counts import BatchRows, CountRows, RowCounts
from connector.state.erased_keys import ErasedKeys
from connector.state.incomplete_transactions import ReleaseTransaction
from connector.state.overrides import ClosePartition
from connector.state.stream_progress import OpenTransaction
from connector.validation import KafkaRecord
from connector.write_streams.releases import ReleaseRows

if TYPE_CHECKING:
    import pyarrow as pa

LoggedPositions = Callable[[str, Collection[ClaimedLetter]], Mapping[ClaimedLetter, OrderPosition]]


@dataclass(frozen=True, slots=True)
class IngestPorts:
    """Functions that ingest needs from Kafka, the clock and the files of a changelog, because other
    packages know these.

    - `publish` delivers dead letters, or raises. It returns how many there were.
    - `now` is the time in microseconds.
    - `high_watermarks` returns the end of every Kafka partition, including open transactions.
    - `schema_by_id` reads a schema from the registry, as JSON. It returns None if there is no such
      id, and raises if the registry does not answer. None: no registry is configured.
    - `closed_partitions` (WMK-8), `releases` (ING-2) and `row_releases` (WRS-18) return the
      requests of operators with numbers greater than the given one.
    - `discarded` returns the ids of discarded dead letters (DLQ-3), and `published_letters` those
      of a table, as `LetterRules.published`.
    - `external_dead_letters` continues their count. The second argument is how many ingest has
      published since (DLQ-7).
    - `partition_of` returns the Kafka partition of a key among so many. None: it is not checked
      (ING-1).
    - `accepted_losses` returns the decisions about lost records, as `releases` (RUN-7).
    - `first_arrivals` returns when the first record from these offsets on arrived (µs), where it is
      known.
    - `erased` returns the erased rows (OPR-2).
    - `open_transactions` returns the oldest open transaction of each Kafka partition that has one.
    - `read` returns the committed records of a range, where Spark cannot read it (REC-25), or need
      not (TBL-24).
    - `read_few` returns the same of a small range, as columns with the names of
      `engine.schema.KAFKA`, in one thread (ENG-4). The second argument is when Kafka was asked for
      the range (µs). None: Spark must read it.
    - `count_table` counts rows in memory as `count_rows` does, `write_rows` writes them,
      and `fold_batches` moves those of small batches to their slots.
    - `logged_positions` returns the order positions of dead letters in the changelog at a path, as
      far as it has them (DLQ-10).
    - `committed_ends` returns the end of every Kafka partition for a reader of committed records.
    """

    topic: Callable[[], Topic]
    publish: Callable[[Iterable[DeadLetter]], int]
    now: Callable[[], int]
    high_watermarks: Callable[[], Mapping[int, int]]
    count_rows: CountRows
    write_rows: WriteRows
    fold_batches: FoldBatches
    logged_positions: LoggedPositions
    count_table: Callable[[pa.Table, BatchRows], RowCounts]
    earliest: Callable[[], Mapping[int, int]]
    schema_by_id: Callable[[int], str | None] | None = None
    closed_partitions: Callable[[int], Sequence[ClosePartition]] = lambda taken_to: ()
    releases: Callable[[int], Sequence[ReleaseTransaction]] = lambda taken_to: ()
    row_releases: Callable[[int], Sequence[ReleaseRows]] = lambda taken_to: ()
    accepted_losses: Callable[[int], Sequence[AcceptLoss]] = lambda taken_to: ()
    first_arrivals: Callable[[Mapping[int, int]], Mapping[int, int]] = lambda offsets: {}
    discarded: Callable[[], frozenset[str]] = frozenset
    published_letters: Callable[[str, int], Mapping[str, str] | None] = lambda table, above: None
    external_dead_letters: Callable[[ExternalDeadLetters, int], ExternalDeadLetters] = (
        lambda count, published: count
    )
    partition_of: Callable[[bytes, int], int] | None = None
    open_transactions: Callable[[], Iterable[OpenTransaction]] = tuple
    erased: Callable[[], ErasedKeys] = ErasedKeys
    read: Callable[[BatchRange], Iterator[KafkaRecord]] | None = None
    read_few: Callable[[BatchRange, int], Mapping[str, Sequence[Any]] | None] = (
        lambda offsets, asked_at: None
    )
    committed_ends: Callable[[], Mapping[int, int]] = dict
