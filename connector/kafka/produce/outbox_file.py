"""The file of an outbox: records that Kafka has not acknowledged, in SQLite (PUB-3).

The database is in WAL mode, with the file PATH-wal while it is open. Its process has it for itself:
SQLite keeps its lock, and so needs few calls of the system for a write. Records have consecutive
numbers. Each write is one transaction, so a process that is killed leaves whole writes. A row with
a wrong checksum, or without its neighbour, is damage.
"""

from __future__ import annotations

import ctypes
import json
import os
import sqlite3
import struct
import weakref
import zlib
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from connector.errors import OutboxError, TopicError
from connector.errors.producers import (
    not_an_outbox,
    outbox_damaged,
    outbox_in_use,
    outbox_of_another_topic,
    outbox_unusable,
)
from connector.kafka import topics
from connector.kafka.topics import TopicFacts
from connector.stored import from_stored, to_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from connector.kafka.transactions import HeaderList
    from connector.records.model import Heartbeat

APPLICATION_ID: Final = 0x6C6F7762
FORMAT: Final = 1
BUSY_TIMEOUT_S: Final = 0.2
PAGE_BYTES: Final = 1_024
"""Each write stores whole pages, and most records are small."""
CHECKPOINT_PAGES: Final = 16_384
EVERYWHERE: Final = -1
"""The Kafka partition of a control record: it goes to all of them."""

_TABLES: Final = f"""
CREATE TABLE outbox (id INTEGER PRIMARY KEY, content TEXT, checksum INTEGER);
CREATE TABLE records (number INTEGER PRIMARY KEY, checksum INTEGER, kind INTEGER,
  kafka_partition INTEGER, key BLOB, value BLOB, headers BLOB);
CREATE TABLE positions (stream_partition TEXT, is_delivered INTEGER, timestamp INTEGER,
  resume_token BLOB, checksum INTEGER, PRIMARY KEY (stream_partition, is_delivered));
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""
_APPEND: Final = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)"
_POSITION: Final = "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)"
_FIXED: Final = struct.Struct(">qqiqqq")
_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_headers_decoder: Final = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]])

Sync = Literal["normal", "full"]


class Kind(IntEnum):
    """The kinds of rows. Only changes and the control records of the application count as
    delivered records. An announcement of the producer makes no claim.
    """

    CHANGE = 0
    ANNOUNCEMENT = 1
    HEARTBEAT = 2
    CHILD_PARTITIONS = 3
    AUTOMATIC_HEARTBEAT = 4
    TRUNCATION = 5


class Row(NamedTuple):
    """A record as the outbox stores it. `key`, `value` and `headers` are those of the Kafka record.
    The Kafka partition is that of the key, or `EVERYWHERE`.
    """

    number: int
    checksum: int
    kind: int
    kafka_partition: int
    key: bytes
    value: bytes
    headers: bytes


def row_of(
    number: int, kind: int, kafka_partition: int, key: bytes, value: bytes, headers: HeaderList
) -> Row:
    as_bytes = [(name, text.encode() if isinstance(text, str) else text) for name, text in headers]
    packed = msgspec.msgpack.encode(as_bytes) if headers else b""
    checksum = _checksum(number, kind, kafka_partition, key, value, packed)
    return Row(number, checksum, kind, kafka_partition, key, value, packed)


def headers_of(row: Row) -> HeaderList:
    return list(_headers_decoder.decode(row.headers)) if row.headers else []


@dataclass(frozen=True, slots=True)
class Content:
    """The facts of the topic of an outbox, and the id of its schema in the registry."""

    topic: TopicFacts
    schema_id: int | None = None


class OutboxFile:
    """An open and locked outbox.

    - `content` is the description. A new outbox has none before `bind`.
    - `first` is the number of the first record, and `next` is that of the next one.

    Each method raises `OutboxError` if the file is damaged or cannot be used.
    """

    def __init__(self, path: Path, max_bytes: int, sync: Sync) -> None:
        """Open or create the outbox. A file that is not an outbox is not changed."""
        self.path = path
        self._database: sqlite3.Connection | None = None
        with self._usable():
            self.path = path = path.resolve()
            self._check_is_outbox()
        try:
            with self._usable():
                self._database = _connect(path)
                self._insert = self._database.execute
                self._open(max_bytes, sync)
        except BaseException:
            self.close()
            raise
        _opened.add(self)

    def _open(self, max_bytes: int, sync: Sync) -> None:
        execute = self._execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute(f"PRAGMA page_size = {PAGE_BYTES}")
        execute("PRAGMA journal_mode = WAL")
        execute(f"PRAGMA synchronous = {sync.upper()}")
        execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        ((version,),) = execute("PRAGMA user_version")
        if not version:
            assert self._database is not None
            self._database.executescript(f"BEGIN; {_TABLES} COMMIT;")
        execute(f"PRAGMA max_page_count = {max_bytes // PAGE_BYTES}")
        ((verdict,),) = execute("PRAGMA quick_check(1)")
        if verdict != "ok":
            raise ValueError(verdict)
        self.content = self._read_content()
        ((first, last),) = execute("SELECT min(number), max(number) FROM records")
        self.next: int = 1 if last is None else last + 1
        self.first: int = self.next if first is None else first
        ((free,),) = execute("PRAGMA freelist_count")
        if self.first == self.next and free > CHECKPOINT_PAGES:
            execute("VACUUM")

    def bind(self, facts: TopicFacts) -> None:
        """Make the outbox that of a topic, and store the facts. Raises `OutboxError` if it belongs
        to another topic.
        """
        before = self.content
        if before is not None:
            self.check_topic(facts.topic)
            if self.first < self.next:
                try:
                    topics.check_identity(before.topic.topic_id, facts)
                except TopicError as error:
                    path, stored = str(self.path), f"an earlier topic {facts.topic}"
                    raise outbox_of_another_topic(path, stored, facts.topic) from error
        self._write_content(Content(facts, None if before is None else before.schema_id))

    def check_topic(self, topic: str) -> None:
        """Raises `OutboxError` if the outbox belongs to another topic."""
        if self.content is not None and self.content.topic.topic != topic:
            stored = f"the topic {self.content.topic.topic}"
            raise outbox_of_another_topic(str(self.path), stored, topic)

    def store_schema_id(self, schema_id: int | None) -> None:
        """Store the id of the schema in the registry."""
        assert self.content is not None
        if schema_id != self.content.schema_id:
            self._write_content(replace(self.content, schema_id=schema_id))

    def append(self, rows: Sequence[Row]) -> str:
        """Write records with the next numbers in one transaction. Returns why the outbox or the
        disk is full, and then nothing is written. Empty: they are written.
        """
        if len(rows) == 1:
            with suppress(sqlite3.Error):  # the other way finds out what it means
                self._insert(_APPEND, rows[0])
                self.next += 1
                return ""

        def write() -> None:
            with self._transaction() as database:
                database.executemany(_APPEND, rows)

        if cause := self._write(write):
            return cause
        self.next += len(rows)
        return ""

    def read(self, first: int, limit: int) -> list[Row]:
        """Return the records from number `first` on."""
        with self._usable():
            rows = [
                Row(*row)
                for row in self._execute(
                    "SELECT * FROM records WHERE number >= ? ORDER BY number LIMIT ?",
                    (first, limit),
                )
            ]
            for number, row in enumerate(rows, first):
                if row.number != number or not _is_whole(row):
                    raise ValueError(f"record {number} is missing or damaged")
            if len(rows) != min(limit, self.next - first):
                raise ValueError(f"record {first + len(rows)} is missing")
        return rows

    def remove_below(self, number: int, delivered: Iterable[Heartbeat] = ()) -> bool:
        """Delete the records with smaller numbers, and keep the positions that Kafka has. Returns
        False if the disk is full. Then nothing is deleted.
        """

        def write() -> None:
            with self._transaction() as database:
                database.execute("DELETE FROM records WHERE number < ?", (number,))
                for position in delivered:
                    database.execute(_POSITION, _position(position, is_delivered=True))

        if self._write(write):
            return False
        self.first = max(self.first, number)
        return True

    def store_position(self, position: Heartbeat) -> None:
        """Store the newest position that the application has reported. A full disk keeps the one
        before, which is true, too.
        """
        self._write(lambda: self._execute(_POSITION, _position(position, is_delivered=False)))

    def token(self, stream_partition: str) -> bytes | None:
        """Return the newest resume token that the application has reported."""
        with self._usable():
            return self._tokens(is_delivered=False).get(stream_partition)

    def close(self) -> None:
        """Close the database."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None

    def leave(self) -> None:
        """Never close the database in this process, which was forked: it does not have the lock."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._database))
        self._database = None

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        assert self._database is not None
        return self._database.execute(statement, values)

    def _write(self, write: Callable[[], object]) -> str:
        """Write. Returns why the disk is full, and then nothing is written. Empty: it is written.

        A full disk may still have room in the database for what is in the log of SQLite.
        """
        cause = ""
        for _ in range(2):
            with self._usable():
                try:
                    write()
                except sqlite3.OperationalError as error:
                    if not _is_full(error):
                        raise
                    cause = str(error)
                else:
                    return ""
            with suppress(sqlite3.Error):
                self._execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return cause

    def _transaction(self) -> _Transaction:
        assert self._database is not None
        return _Transaction(self._database)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Raise `OutboxError` if SQLite or the system cannot use the file in this block."""
        try:
            yield
        except (sqlite3.Error, ValueError, OSError, RuntimeError) as error:
            raise self._error(error) from error

    def _check_is_outbox(self) -> None:
        """Raises `OutboxError` if something else is at the path."""
        if not self.path.exists() or (self.path.is_file() and not self.path.stat().st_size):
            return
        content = "a folder"
        if self.path.is_file():
            content = "a database of another program, or of another release"
            uri = f"{self.path.as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)) as database:
                try:
                    ((application,),) = database.execute("PRAGMA application_id")
                    ((version,),) = database.execute("PRAGMA user_version")
                    ((tables,),) = database.execute("SELECT count(*) FROM sqlite_master")
                except sqlite3.DatabaseError as error:
                    if _code_of(error) != sqlite3.SQLITE_NOTADB:
                        raise
                    content = f"a file of another program, or its beginning is damaged: {error}"
                else:
                    if (application, version) == (APPLICATION_ID, FORMAT) or not tables:
                        return
        raise not_an_outbox(str(self.path), content)

    def _read_content(self) -> Content | None:
        for content, checksum in self._execute("SELECT content, checksum FROM outbox"):
            if checksum != zlib.crc32(content.encode()):
                raise ValueError("the checksum of its own description is wrong")
            stored: Content = from_stored(Content, json.loads(content))
            return stored
        return None

    def _write_content(self, content: Content) -> None:
        text = json.dumps(to_stored(content))
        with self._usable():
            self._execute(
                "INSERT OR REPLACE INTO outbox VALUES (1, ?, ?)", (text, zlib.crc32(text.encode()))
            )
        self.content = content

    def _tokens(self, *, is_delivered: bool) -> dict[str, bytes]:
        rows = self._execute("SELECT * FROM positions WHERE is_delivered = ?", (is_delivered,))
        return {row[0]: row[3] for row in rows if row[4] == _crc_of_position(*row[:4])}

    def _error(self, error: Exception) -> OutboxError:
        path, code = str(self.path), _code_of(error) if isinstance(error, sqlite3.Error) else None
        if isinstance(error, ValueError) or code in _DAMAGE:
            tokens: dict[str, bytes] = {}
            with suppress(sqlite3.Error, AssertionError, ValueError, TypeError):
                tokens = self._tokens(is_delivered=True)
            return outbox_damaged(path, str(error), _described(tokens), tokens)
        if code == sqlite3.SQLITE_BUSY:
            return outbox_in_use(path)
        return outbox_unusable(path, str(error))


_opened: Final = weakref.WeakSet[OutboxFile]()


def _after_fork() -> None:
    for file in list(_opened):
        file.leave()


os.register_at_fork(after_in_child=_after_fork)


class _Transaction:
    """A block that is committed as one."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> sqlite3.Connection:
        self._database.execute("BEGIN IMMEDIATE")
        return self._database

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._database.execute("COMMIT")
        finally:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")


def _connect(path: Path) -> sqlite3.Connection:
    # Python may collect a producer in any thread, and closes the file there.
    return sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


def _code_of(error: sqlite3.Error) -> int | None:
    """Return the primary error code of SQLite."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _is_full(error: sqlite3.Error) -> bool:
    """Whether the outbox or the disk takes no more bytes."""
    code = getattr(error, "sqlite_errorcode", None)
    return _code_of(error) == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE


def _is_whole(row: Row) -> bool:
    try:
        return row.checksum == _checksum(row.number, *row[2:])
    except (TypeError, struct.error):  # a damaged value may have any type
        return False


def _checksum(
    number: int, kind: int, kafka_partition: int, key: bytes, value: bytes, headers: bytes
) -> int:
    fixed = _FIXED.pack(number, kind, kafka_partition, len(key), len(value), len(headers))
    return zlib.crc32(b"".join((fixed, key, value, headers)))


def _position(position: Heartbeat, *, is_delivered: bool) -> tuple[object, ...]:
    row = position.stream_partition, is_delivered, position.timestamp, position.resume_token
    return (*row, _crc_of_position(*row))


def _crc_of_position(name: str, is_delivered: int, timestamp: int, token: bytes) -> int:
    return zlib.crc32(repr((name, int(is_delivered), timestamp, token)).encode())


def _described(tokens: dict[str, bytes]) -> str:
    if not tokens:
        return "`resume_token`, which the new producer reads from the topic"
    return ", ".join(f"{token!r} ({name})" for name, token in sorted(tokens.items()))
