"""Decodes the records of Debezium (SRC-3).

    record                                    event
    c, u, r with a key                        Row
    d with a key                              Row, deleted
    t                                         TruncatedTable
    any of these without a key                Skipped, NO_KEY: the table has no primary key
    a row of the heartbeat table              Skipped, HEARTBEAT
    m: a message of pg_logical_emit_message   Skipped, MESSAGE
    END of the transaction topic              End
    BEGIN                                     Skipped, BEGIN
    no value                                  Skipped, TOMBSTONE
    of Debezium's heartbeat topic             Skipped, HEARTBEAT
    of a transaction topic that is not set    Skipped, TRANSACTION
    DDL, in MySQL's topic of schema changes   Skipped, SCHEMA_CHANGE

The key of a row is that of the record. A value that PostgreSQL did not send (TOAST) has a
placeholder: an update becomes a row that is not whole, and in another row it is `missing`. A value
for which null was sent, which may be NULL, is `missing` in both. See `connector.sources.unsent`.

Positions: in PostgreSQL, `source.sequence` begins with the end of the transaction before, and the
id of END has that of its transaction. In the binary log of MySQL and MariaDB without GTIDs, the id
of a transaction has its file and position. With GTIDs, it has a number in the log of a server
(MySQL) or of a domain (MariaDB).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from connector.sources import doubts
from connector.sources.columns import source_name
from connector.sources.model import (
    BINLOG,
    LSN,
    Commit,
    End,
    Event,
    ForeignRecord,
    LogPosition,
    Poison,
    Row,
    Skipped,
    TruncatedTable,
)
from connector.sources.records import (
    UNREADABLE,
    Cells,
    Format,
    JsonFormat,
    Schema,
    Targets,
    poison_of,
)
from connector.sources.rows import Plan, RowReader
from connector.sources.tables import KnownTables
from connector.sources.unsent import PLACEHOLDERS, may_lack_values
from connector.sources.values import MYSQL

LEAST_VERSION: Final = (3, 6, 1)
"""The oldest version of Debezium whose counts of transactions are right after each restart."""

HEARTBEAT_TOPIC: Final = "__debezium-heartbeat."


class _Source(Struct):
    """Where an event is from."""

    version: str | None = None
    connector: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    ts_ms: int | None = None
    ts_us: int | None = None
    snapshot: Any = None
    sequence: str | None = None
    lsn: int | None = None
    gtid: str | None = None
    file: str | None = None
    pos: int | None = None
    row: int | None = None


class _TransactionOf(Struct):
    id: str
    total_order: int


class _RowBefore(Struct):
    """The row before an event. Its fields are not read."""


class _Envelope(Struct):
    op: str | None = None
    before: _RowBefore | None = None
    after: Any = None
    source: _Source | None = None
    transaction: _TransactionOf | None = None
    ts_ms: int | None = None
    ddl: Any = None
    status: Any = None


class _JsonEnvelope(_Envelope):
    after: dict[str, msgspec.Raw] | None = None


class _Count(Struct):
    data_collection: str
    event_count: int


class _Boundary(Struct):
    status: str
    id: str
    event_count: int | None = None
    data_collections: list[_Count] | None = None
    ts_ms: int | None = None
    ts_us: int | None = None


class DebeziumDecoder:
    """Reads Debezium's records of PostgreSQL, MySQL and MariaDB.

    Args:
        format: JSON or Avro.
        tables: The tables of the source. New columns are in its news.
        transactions: The topic of the boundaries of transactions, or empty.
        heartbeats: The heartbeat table, for example `public.beat`, or empty.
    """

    def __init__(
        self,
        format: Format,  # noqa: A002 - the word of the field
        tables: KnownTables,
        *,
        transactions: str = "",
        heartbeats: str = "",
    ) -> None:
        self._rows = RowReader(format, tables, has_zone=False)
        self._transactions = transactions
        self._heartbeats = source_name(heartbeats) if heartbeats else ""
        self._shape = _JsonEnvelope if isinstance(format, JsonFormat) else _Envelope
        self._version: str | None = None
        self._counts_again = False

    def decode(self, record: ForeignRecord) -> Event:
        """Return the event of a record. For data, it never raises."""
        value = record.value
        if value is None:
            return Skipped("TOMBSTONE")
        commit, table = Commit(), ""
        try:
            if record.topic == self._transactions:
                return self._boundary(value)
            envelope, schema = self._rows.format.event(value, self._shape)
            if envelope.op is None or envelope.source is None:
                return self._without_event(record, envelope)
            source = envelope.source
            if source.version != self._version:
                self._take_version(source.version)
            table = source_name(source.schema or source.db or "", source.table or "")
            commit = _commit(envelope, source, counts_again=self._counts_again)
            return self._event(record, envelope, schema, commit, table)
        except UNREADABLE as error:
            if not table:
                commit = _salvaged(value, counts_again=self._counts_again)
            return poison_of(error, commit, table)

    def _take_version(self, version: str | None) -> None:
        self._version = version
        numbers = tuple(map(int, re.findall(r"[0-9]+", version or "")[:3]))
        self._counts_again = numbers < LEAST_VERSION
        if self._transactions and numbers and self._counts_again:
            self._rows.tables.doubt(doubts.old_version(str(version)))

    def _without_event(self, record: ForeignRecord, envelope: _Envelope) -> Event:
        if envelope.source is not None and envelope.ddl is not None:
            return Skipped("SCHEMA_CHANGE")
        if record.topic.startswith(HEARTBEAT_TOPIC):
            return Skipped("HEARTBEAT")
        if envelope.status in ("BEGIN", "END"):
            return Skipped("TRANSACTION")
        detail = 'it has no op and no source. For rows alone, set format = "upsert-json"'
        return Poison("UNREADABLE", detail)

    def _event(
        self,
        record: ForeignRecord,
        envelope: _Envelope,
        schema: Schema | None,
        commit: Commit,
        table: str,
    ) -> Event:
        op = envelope.op
        if op == "m":
            return Skipped("MESSAGE", commit)
        if table == self._heartbeats:
            return Skipped("HEARTBEAT", commit, table)
        if self._rows.tables.is_left_out(table):
            # A truncation of MariaDB names a transaction, and has no end.
            has_end = op != "t" or commit.log == LSN
            return Skipped("NOT_DECLARED", commit if has_end else Commit(), table)
        if op == "t":
            return TruncatedTable(table, commit)
        if record.key is None:
            return Skipped("NO_KEY", commit, table)
        if op not in ("c", "u", "d", "r"):
            raise ValueError(f"the operation {op!r} is not known")
        key = self._rows.format.fields(record.key)
        if key is None:
            return Skipped("NO_KEY", commit, table)
        assert envelope.source is not None
        connector = envelope.source.connector or ""
        plan = self._rows.plan(table, key, schema, "after", connector)
        key_values = self._rows.key(key, plan)
        if op == "d":
            return Row(table=table, commit=commit, key=key_values, deleted=True)
        if envelope.after is None:
            raise ValueError(f"an event with the operation {op} has no row")
        cells = self._rows.cells(table, envelope.after, plan)
        assert record.value is not None
        absent = []
        if may_lack_values(record.value):
            absent = self._take_placeholders(envelope.after, cells, plan)
        is_partial = bool(absent) and op == "u"
        hidden: list[str] = []
        if plan.hidden and connector not in MYSQL:
            hidden = self._hidden(record, envelope, table, cells, plan)
        return Row(
            table=table,
            commit=commit,
            key=key_values,
            cells=cells,
            whole=not is_partial,
            missing=tuple(hidden if is_partial else [*absent, *hidden]),
            is_snapshot=op == "r",
            is_incremental=envelope.source.snapshot == "incremental",
        )

    def _hidden(
        self, record: ForeignRecord, envelope: _Envelope, table: str, cells: Cells, plan: Plan
    ) -> list[str]:
        """The fields that are NULL, or have a value that was not sent. Their cells become NULL."""
        if envelope.op == "u" and envelope.before is None:
            self._rows.tables.doubt(doubts.hidden_values(table, plan.hidden))
        elif envelope.op != "c" or not record.is_moved:
            return []
        fields = []
        for field in sorted(plan.hidden):
            target = plan.targets[field]
            if target is not None and target.cell in cells and not cells[target.cell]:
                fields.append(field)
                cells[target.cell] = None
        return fields

    def _take_placeholders(self, values: Mapping[str, Any], cells: Cells, plan: Plan) -> list[str]:
        """Remove the cells whose value is a placeholder. Return the names of their fields."""
        absent = []
        for field, text in self._rows.format.cells(values, _AS_THEY_ARE).items():
            target = plan.targets[field]
            if target is not None and text in PLACEHOLDERS:
                absent.append(field)
                del cells[target.cell]
        if absent:  # other columns of a field whose type has changed are NULL in this row
            for cell in list(cells):
                for other in plan.others.get(cell, ()):
                    cells[other] = None
        return absent

    def _boundary(self, value: bytes) -> Event:
        boundary, _ = self._rows.format.event(value, _Boundary)
        if boundary.status == "BEGIN":
            return Skipped("BEGIN")
        if boundary.status != "END":
            raise ValueError(f"the status {boundary.status!r} is not known")
        if boundary.event_count is None:
            raise ValueError("the end of a transaction has no event_count")
        position = _position(boundary.id)
        return End(
            Commit(
                time=_micros(boundary.ts_us, boundary.ts_ms),
                transaction=position.transaction,
                log=position.log,
                after=position.end,
                log_position=position.text,
            ),
            boundary.event_count,
            {
                source_name(count.data_collection): count.event_count
                for count in boundary.data_collections or ()
            },
        )


class _Position(NamedTuple):
    """The parts of the id of a transaction: its first part, which is the same in each event, its
    log, the position that its events come after, its end, and its text.
    """

    transaction: str
    log: str = ""
    begin: LogPosition = ()
    end: LogPosition = ()
    text: str = ""


_postgres_id = re.compile(r"([0-9]+):([0-9]+)", re.ASCII).fullmatch
_binlog_id = re.compile(r"file=(?:.*\.)?([0-9]+),pos=([0-9]+)", re.ASCII | re.DOTALL).fullmatch
_mysql_gtid = re.compile(r"([0-9A-Fa-f-]{36}(?::[^:]+)?):([0-9]+)", re.ASCII).fullmatch
_mariadb_gtid = re.compile(r"([0-9]+)-[0-9]+-([0-9]+)", re.ASCII).fullmatch
_first_lsn = re.compile(r'\["([0-9]{1,20})"', re.ASCII).match
_file_number = re.compile(r"(?:.*\.)?([0-9]+)", re.ASCII | re.DOTALL).fullmatch


@lru_cache(maxsize=64)
def _position(transaction_id: str) -> _Position:
    if parts := _postgres_id(transaction_id):
        lsn = int(parts[2])
        return _Position(parts[1], LSN, (), (lsn,), lsn_text(lsn))
    log, begin = "", LogPosition()
    if parts := _binlog_id(transaction_id):
        log, begin = BINLOG, (int(parts[1]), int(parts[2]))
    elif parts := _mysql_gtid(transaction_id) or _mariadb_gtid(transaction_id):
        log, begin = parts[1], (int(parts[2]),)
    else:
        return _Position(transaction_id, text=transaction_id)
    end = (*begin[:-1], begin[-1] + 1)
    return _Position(transaction_id, log, begin, end, transaction_id)


def _at(source: _Source) -> LogPosition:
    """The position of an event itself."""
    if source.lsn is not None:
        return (source.lsn,)
    file = _file_number(source.file or "")
    return () if file is None else (int(file[1]), source.pos or 0, source.row or 0)


def lsn_text(lsn: int) -> str:
    """Return a position in PostgreSQL's log as PostgreSQL writes it. For example, 16/B374D848."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _commit(envelope: _Envelope, source: _Source, *, counts_again: bool) -> Commit:
    time, at = _micros(source.ts_us, source.ts_ms), _at(source)
    # Rows of incremental snapshots have a sequence, and no position of their own.
    first = None if source.sequence is None else _first_lsn(source.sequence)
    log, after = "", LogPosition()
    if first is not None:
        log, after = LSN, (int(first[1]),)
    if source.lsn is not None:
        text = lsn_text(source.lsn)
    else:
        text = source.gtid or (f"{source.file}:{source.pos}" if source.file else "")
    transaction = envelope.transaction
    if transaction is None or envelope.op == "r":
        if source.gtid and envelope.op == "r":  # the newest transaction that was sent before
            position = _position(source.gtid)
            log, after = position.log, position.end
        elif source.file and envelope.op != "r":
            position = _position(source.gtid or f"file={source.file},pos={source.pos}")
            log, after = position.log, position.begin
        return Commit(time=time, log=log, after=after, at=at, log_position=text)
    position = _position(transaction.id)
    return Commit(
        time=time,
        transaction=position.transaction,
        sequence=transaction.total_order,
        log=log or position.log,
        after=after or position.begin,
        at=at,
        log_position=text,
        counts_again=counts_again,
    )


def _micros(micros: int | None, millis: int | None) -> int:
    return micros if micros is not None else (millis or 0) * 1_000


_salvage_transaction = re.compile(
    rb'"transaction":\{"id":"([^"\\]{1,200})","total_order":([0-9]{1,18})[,}]'
).search
_salvage_sequence = re.compile(rb'"sequence":"\[\\"([0-9]{1,20})\\"').search
_salvage_time = re.compile(rb'"ts_us":([0-9]{1,18})').search


def _salvaged(value: bytes, *, counts_again: bool) -> Commit:
    """The commit in damaged JSON, as far as it can be read. A quote within a text is escaped, so no
    text of a row looks like this.
    """
    transaction = _salvage_transaction(value)
    if transaction is None:
        return Commit()
    position = _position(transaction[1].decode("utf-8", "replace"))
    sequence, time = _salvage_sequence(value), _salvage_time(value)
    return Commit(
        time=int(time[1]) if time else 0,
        transaction=position.transaction,
        sequence=int(transaction[2]),
        log=position.log,
        after=(int(sequence[1]),) if sequence else position.begin,
        counts_again=counts_again,
    )


_AS_THEY_ARE: Final = Targets()
"""Each value is its natural text."""
