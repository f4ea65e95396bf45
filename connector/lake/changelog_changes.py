"""The changes and the rejected records in a changelog, read without a JVM (SUB-6, DLQ-9, WRS-19).

Staged rows count as changes of the batch that completed their release, as in `Changelog.changes`.
Only the slots that can have the rows are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from connector import warehouse as paths
from connector.errors.tables import entry_unknown
from connector.lake.plain_table import PlainTable, open_table
from connector.lake.small_tables import quoted
from connector.records.model import (
    ChangeType,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    SetCell,
    Transaction,
    Truncate,
)
from connector.records.ordering import OrderPosition
from connector.records.rejection import Headers, Position, Reason
from connector.state.damage import reading
from connector.state.table_state import TableState
from connector.state.truncations import SourceTruncations
from connector.stored import from_stored
from connector.tables.definition import TableDefinition
from connector.warehouse import (
    CONTROL_SLOT,
    REJECTED_SLOT,
    RELEASED_SLOT,
    STAGED_SLOT,
    in_slot,
    table_slot,
)

CHANGE_COLUMNS: Final = """
    "table", row_key, arrow_cast(commit_timestamp, 'Int64'), tie_breaker, "transaction",
    change_sequence_number, entries, order_position, stream_partition, change_type,
    source_cluster_id
"""
"""The columns that `change_of` takes, as SQL."""
_COORDINATES: Final = """
    topic, topic_id, ingest_batch, kafka_partition, "offset",
    arrow_cast(record_timestamp, 'Int64')
"""
_REJECTED: Final = f"""
    SELECT {_COORDINATES}, order_position, letter_id, reason, rule, "key", value FROM t
    WHERE {in_slot(REJECTED_SLOT)} AND kind = 'rejected'
        AND ("key" = {{key}} OR strpos(encode(value, 'hex'), '{{digits}}') > 0)
"""  # noqa: S608, names of columns
_COORDINATE_COLUMNS: Final = 6
SOURCES_OF_BATCHES: Final = 100
"""The number of newest batches that are searched for source tables. A changelog may be large."""
_SOURCES: Final = """
    SELECT DISTINCT "table" FROM t
    WHERE kind IN ('change', 'staged', 'truncate')
        AND ingest_batch > {after} AND ingest_batch <= {to} {but}
"""
CELLS_OF_BATCHES: Final = 10
"""The same for cells without a column. At most `_MAX_CHANGES` changes are searched."""
_MAX_CHANGES: Final = 20_000
_CELLS: Final = f"""
    SELECT DISTINCT entry['family'], entry['qualifier'] FROM (
        SELECT unnest(entries) AS entry FROM (
            SELECT entries FROM t
            WHERE {{in_slot}} AND kind = 'change' AND "table" = {{source}}
                AND ingest_batch > {{after}} AND ingest_batch <= {{to}}
            LIMIT {_MAX_CHANGES}))
    WHERE entry['kind'] = 'SET_CELL' LIMIT 1000
"""  # noqa: S608, numbers
_WAITING: Final = """
    ingest_batch > {after} AND ingest_batch <= {to}
    AND arrow_cast(commit_timestamp, 'Int64') >= {low_watermark}
"""
_CHANGES: Final = """
    SELECT {columns} FROM t
    WHERE {in_slot} AND kind = 'change' AND "table" = {source} AND {where}
"""
_RELEASED: Final = f"""
    WITH ranges AS (
        SELECT release['ranges'][1]['stream'] AS stream, release['ranges'][1]['first'] AS first,
            release['ranges'][1]['upto'] AS upto, commit_timestamp, released_from,
            ingest_batch, stream_partition
        FROM t WHERE slot = {RELEASED_SLOT} AND kind = 'released'),
    staged AS (
        SELECT *, write_stream['stream'] AS stream, write_stream['offset'] AS row FROM t
        WHERE {in_slot(STAGED_SLOT)} AND kind = 'staged' AND "table" = {{source}}),
    released AS (
        SELECT topic, topic_id, ranges.ingest_batch AS ingest_batch, kafka_partition, "offset",
            record_timestamp, "table", row_key, ranges.commit_timestamp AS commit_timestamp,
            tie_breaker, named_struct('server_transaction_id', '', 'record_sequence', row)
                AS "transaction",
            change_sequence_number, entries, order_position,
            ranges.stream_partition AS stream_partition, change_type, source_cluster_id, headers
        FROM staged JOIN ranges ON staged.stream = ranges.stream
            AND row >= ranges.first AND row < ranges.upto
            AND staged.ingest_batch BETWEEN ranges.released_from AND ranges.ingest_batch)
    SELECT {{columns}} FROM released WHERE {{where}}
"""  # noqa: S608, numbers of slots


def visible_changes(
    changelog: PlainTable, columns: str, source: str, where: str = "true"
) -> Iterator[tuple[Any, ...]]:
    """These columns, as SQL, of the visible changes of a source table for which `where` is true.

    Raises `TableError` if the changelog cannot be read.
    """
    parts = {"columns": columns, "source": quoted(source), "where": where}
    yield from changelog.query(_CHANGES.format(in_slot=in_slot(table_slot(source)), **parts))
    if _has_released(changelog):
        yield from changelog.query(_RELEASED.format(**parts))


def _has_released(changelog: PlainTable) -> bool:
    """Whether some rows may have been released."""
    if not changelog.stored:
        return True
    with reading(changelog.path):
        releases = changelog.stored["progress"].get("releases", {})
        return from_stored(int, releases.get("released_to", 0)) > 0


_TRUNCATIONS: Final = f"""
    SELECT stream_partition, "table", arrow_cast(commit_timestamp, 'Int64'), tie_breaker,
        "transaction", change_sequence_number, ingest_batch FROM t
    WHERE {in_slot(CONTROL_SLOT)} AND kind = 'truncate' AND "table" = {{source}}
        AND ingest_batch > {{after}}
"""  # noqa: S608, number of a slot


def truncations_of(
    changelog: PlainTable, source: str, *, after: int = 0
) -> dict[Truncate, tuple[int, ...]]:
    """The truncations of a source table, and the ingest batches with their copies, in ascending
    order, from the batches after this one (EVO-13). Raises `TableError`.
    """
    if changelog.stored:
        with reading(changelog.path):
            stored = changelog.stored["progress"].get("truncations", {})
            if from_stored(SourceTruncations, stored).last_batch(source) <= after:
                return {}
    copies = dict[Truncate, set[int]]()
    for row in changelog.query(_TRUNCATIONS.format(source=quoted(source), after=after)):
        (name, table, at, tie_breaker, transaction, number, batch) = row
        transaction = transaction and Transaction(**transaction)
        copy = Truncate(name, table, at, tie_breaker, transaction, number)
        copies.setdefault(copy, set()).add(batch)
    return {truncate: tuple(sorted(batches)) for truncate, batches in copies.items()}


def waiting_changes(warehouse: str, definition: TableDefinition, table: TableState) -> int:
    """The number of changes that the last apply of a table deferred, because they are not below the
    low watermark (TBL-10). Only ingest batches with such changes are read.
    """
    if table.apply_watermark is None or table.complete_to_batch >= table.to_batch:
        return 0
    is_waiting = _WAITING.format(
        after=table.complete_to_batch,
        to=table.to_batch,
        low_watermark=table.apply_watermark,
    )
    changelog = open_table(paths.changelog(warehouse, definition.stream))
    counts = visible_changes(changelog, "count(*)", definition.source, is_waiting)
    return sum(int(row[0]) for row in counts)


def has_changes(warehouse: str, definition: TableDefinition, *, after: int, to: int) -> bool:
    """Whether batches after `after`, up to `to`, change a table. Others have only control records
    and changes of other tables. Raises `TableError`.
    """
    changelog = open_table(paths.changelog(warehouse, definition.stream))
    where = f"ingest_batch > {after} AND ingest_batch <= {to}"
    counts = visible_changes(changelog, "count(*)", definition.source, where)
    if any(row[0] for row in counts):
        return True
    copies = truncations_of(changelog, definition.source, after=after).values()
    return any(batch <= to for batches in copies for batch in batches)


def undefined_sources(
    warehouse: str, stream: str, defined: Iterable[str], to_batch: int
) -> tuple[str, ...]:
    """The source tables of changes in the newest `SOURCES_OF_BATCHES` batches up to `to_batch` that
    are not `defined`, sorted (TBL-7). Raises `TableError` if the changelog cannot be read.
    """
    named = ", ".join(map(quoted, sorted(defined)))
    but = f'AND "table" NOT IN ({named})' if named else ""
    query = _SOURCES.format(after=to_batch - SOURCES_OF_BATCHES, to=to_batch, but=but)
    rows = open_table(paths.changelog(warehouse, stream)).query(query)
    return tuple(sorted(row[0] for row in rows))


def recent_cells(
    warehouse: str, stream: str, source: str, to_batch: int
) -> list[tuple[str, bytes]]:
    """The families and qualifiers of cells that changes of a source table set, in some of its
    changes of the newest `CELLS_OF_BATCHES` batches up to `to_batch`. Raises `TableError`.
    """
    query = _CELLS.format(
        in_slot=in_slot(table_slot(source)),
        source=quoted(source),
        after=to_batch - CELLS_OF_BATCHES,
        to=to_batch,
    )
    changelog = open_table(paths.changelog(warehouse, stream))
    if "entries" not in changelog.types:
        return []
    return [(family, bytes(qualifier)) for family, qualifier in changelog.query(query)]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where and when a record arrived. `record_timestamp` is in microseconds."""

    position: Position
    ingest_batch: int
    record_timestamp: int


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A change in the changelog. `position` is its place in the order of the table. `headers` are
    those of its record.
    """

    arrival: Arrival
    change: DataChange
    position: OrderPosition
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A rejected record in the changelog."""

    arrival: Arrival
    position: OrderPosition
    letter_id: str
    reason: Reason
    rule: str
    key: bytes | None
    value: bytes | None


def changes_of(changelog: PlainTable, source: str, row_key: bytes) -> Iterator[LoggedChange]:
    """The changes of a row, in no particular order. Raises `TableError`."""
    of_row = f"row_key = {bytes_literal(row_key)}"
    columns = f"{_COORDINATES}, {CHANGE_COLUMNS}, headers"
    for row in visible_changes(changelog, columns, source, of_row):
        change, position = change_of(row[_COORDINATE_COLUMNS:-1])
        headers = tuple(
            (header["key"], None if header["value"] is None else bytes(header["value"]))
            for header in row[-1] or ()
        )
        yield LoggedChange(_arrival(row), change, position, headers)


def rejected_of(changelog: PlainTable, row_key: bytes) -> Iterator[RejectedRecord]:
    """The rejected records with this Kafka key, and those whose value has these bytes."""
    named = {"key": bytes_literal(row_key), "digits": row_key.hex()}
    for row in changelog.query(_REJECTED.format(**named)):
        position, letter_id, reason, rule, key, value = row[_COORDINATE_COLUMNS:]
        yield RejectedRecord(
            _arrival(row),
            OrderPosition(**position),
            letter_id or "",
            Reason(reason),
            rule or "",
            None if key is None else bytes(key),
            None if value is None else bytes(value),
        )


def _arrival(row: tuple[Any, ...]) -> Arrival:
    topic, topic_id, ingest_batch, kafka_partition, offset, record_timestamp = row[
        :_COORDINATE_COLUMNS
    ]
    position = Position(topic, topic_id, kafka_partition, offset)
    return Arrival(position, ingest_batch, record_timestamp)


def change_of(row: tuple[Any, ...]) -> tuple[DataChange, OrderPosition]:
    """A change and its order position, from `CHANGE_COLUMNS`. It has all that the order and the
    merge of a row need. Raises `TableError` for an entry of a later release.
    """
    (table, row_key, at, tie_breaker, transaction, number, entries, position, *others) = row
    stream_partition, change_type, source_cluster_id = others
    change = DataChange(
        stream_partition=stream_partition,
        table=table,
        row_key=bytes(row_key),
        commit_timestamp=at,
        tie_breaker=tie_breaker,
        transaction=transaction
        and Transaction(
            transaction["server_transaction_id"],
            record_sequence=transaction["record_sequence"],
        ),
        change_sequence_number=number,
        change_type=ChangeType(change_type),
        source_cluster_id=source_cluster_id,
        entries=tuple(map(entry_of, entries)),
    )
    return change, OrderPosition(**position)


def entry_of(stored: Mapping[str, Any]) -> Entry:
    family, qualifier = stored["family"], bytes(stored["qualifier"] or b"")
    match stored["kind"]:
        case "SET_CELL":
            return SetCell(family, qualifier, bytes(stored["value"]), stored["cell_timestamp"])
        case "DELETE_CELLS":
            return DeleteCells(family, qualifier, stored["range_start"], stored["range_end"])
        case "DELETE_FAMILY":
            return DeleteFamily(family)
        case kind:
            raise entry_unknown(kind)


def bytes_literal(value: bytes) -> str:
    """Bytes as SQL."""
    return f"X'{value.hex()}'"
