"""The forms in which `benchmarks.load` sends changes of rows.

- `plain`: a change has its own commit timestamp, and nothing but its entries.
- `bridge`: as `connector bridge` sends them. `TOGETHER` changes of rows of any tables are one
  transaction. They have one commit timestamp, their places in the transaction, the presence mark
  and two headers. A heartbeat has the position of the bridge as its resume token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from benchmarks.workload import COLUMNS, FAMILY, SOURCE, definition
from connector.kafka.bridge.session import CHECKPOINT_S
from connector.records.model import DataChange, DeleteFamily, SetCell
from connector.sources.changes import STREAM_PARTITION, Changes, Headers, headers
from connector.sources.debezium import lsn_text
from connector.sources.finished import RECENT, Remembered
from connector.sources.model import LSN, Commit, ForeignRecord, Released, Row
from connector.sources.position import SourcePosition
from connector.tables.definition import TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.values import DataType

TOGETHER: Final = 5
"""The changes of a transaction of a source."""
_ID: Final = "dG9waWMtb2YtYS1zb3VyY2U"
_BYTES_OF_EVENT: Final = 208
"""How far the log of a source grows with a change."""


class Write(NamedTuple):
    """A new value of a row, which its column `visits` has, or its deletion."""

    row: int
    visits: int
    deletes: bool


class Plain:
    """Changes with nothing but their entries.

    - `partitions` are the stream partitions, and `heartbeat_s` the interval of their heartbeats.
    - `together` is the number of changes with one commit timestamp.
    """

    partitions = ("p0", "p1")
    heartbeat_s = 0.5
    together = 1

    def __init__(self, tables: int) -> None:
        self._tables = tables

    def changes(
        self, commit_timestamp: int, writes: Sequence[Write]
    ) -> Iterator[tuple[DataChange, Headers]]:
        """Return the changes of a commit with their headers, in the order of `writes`."""
        for write in writes:
            cells = (
                SetCell(FAMILY, name.encode(), text) for name, text in values_of(write).items()
            )
            yield (
                DataChange(
                    stream_partition=self.partitions[write.row // self._tables % 2],
                    table=source(write.row % self._tables, self._tables),
                    row_key=row_key(write.row).encode(),
                    commit_timestamp=commit_timestamp,
                    entries=(DeleteFamily(FAMILY), *cells),
                ),
                [],
            )

    def token(self) -> bytes:
        """Return the resume token of a heartbeat for all changes so far."""
        return b""


class Bridged:
    """As `Plain`, but as a bridge makes changes from transactions of PostgreSQL that Debezium has
    sent. Each table has a topic with one Kafka partition.
    """

    partitions = (STREAM_PARTITION,)
    heartbeat_s = CHECKPOINT_S
    together = TOGETHER

    def __init__(self, tables: int) -> None:
        self._tables = tables
        definitions = {
            source(table, tables): table_definition(table, tables) for table in range(tables)
        }
        self._changes = Changes(definitions.get)
        self._offsets = [0] * tables
        self._time, self._lsn, self._transaction = 0, 26_500_000_000, 700_000
        self._recent = deque[Remembered](maxlen=RECENT)

    def changes(
        self, commit_timestamp: int, writes: Sequence[Write]
    ) -> Iterator[tuple[DataChange, Headers]]:
        self._time, begin = commit_timestamp, self._lsn
        self._transaction += 1
        transaction = str(self._transaction)
        self._lsn += _BYTES_OF_EVENT * (len(writes) + 1)
        self._recent.append(Remembered(transaction, commit_timestamp // 1000, LSN, (self._lsn,)))
        for order, write in enumerate(writes, 1):
            table = write.row % self._tables
            name, offset = source(table, self._tables), self._offsets[table]
            self._offsets[table] = offset + 1
            lsn = begin + _BYTES_OF_EVENT * order
            commit = Commit(
                time=commit_timestamp,
                transaction=transaction,
                sequence=order,
                log=LSN,
                after=(begin,),
                at=(lsn,),
                log_position=lsn_text(lsn),
            )
            row = Row(
                table=name,
                commit=commit,
                key={"row_key": row_key(write.row)},
                cells=values_of(write),
                deleted=write.deletes,
            )
            record = ForeignRecord(topic_of(name), 0, offset, commit_timestamp, b"{}", None)
            released = Released(record, row, commit_timestamp, order, len(writes))
            change = self._changes.change(released)
            assert isinstance(change, DataChange), change
            yield change, headers(released)

    def token(self) -> bytes:
        names = [source(table, self._tables) for table in range(self._tables)]
        starts = {topic_of(name): {0: at} for name, at in zip(names, self._offsets, strict=True)}
        return SourcePosition(
            starts=starts,
            topic_ids=dict.fromkeys(starts, _ID),
            time=self._time,
            ends={LSN: (self._lsn,)},
            recent=tuple(self._recent),
        ).token()


PLAIN: Final = "plain"
FORMS: Final[Mapping[str, type[Plain | Bridged]]] = {PLAIN: Plain, "bridge": Bridged}


def source(table: int, tables: int) -> str:
    """The name of a source table."""
    return SOURCE if tables == 1 else f"{SOURCE}_{table}"


def topic_of(name: str) -> str:
    """The topic in which Debezium writes a table."""
    return f"dbz.{name}"


def row_key(row: int) -> str:
    return f"customer#{row:08}"


def values_of(write: Write) -> dict[str, bytes]:
    """The values of the columns of a row, as text."""
    at = write.visits
    texts = (
        b"name %d" % write.row,
        b"city %d" % (at % 1000),
        b"note %d" % at,
        b"%d" % (at % 1_000_000),
        b"%d" % at,
    )
    return {} if write.deletes else dict(zip(COLUMNS, texts, strict=True))


def table_definition(table: int, tables: int) -> TableDefinition:
    """The table of a source table, as `benchmarks.freshness` configures it."""
    key = Key((KeyPart("row_key", DataType.STRING),))
    return replace(definition(), source=source(table, tables), key=key)
