"""The file of a spool: records that Kafka has not acknowledged, in SQLite (PUB-3).

    PATH             the database, with PATH-wal and PATH-shm while it is open
    PATH.lock        locked by the process that uses the spool. It has the last number that was
                     promised to the application

The numbers of `first` up to `next` are in the table `records`, except the losses. A write is one
transaction, so a process that is killed leaves whole writes. A record that is absent or damaged is
moved to `losses`, and stays there until an operator accepts it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from connector.clock import now_us
from connector.errors import ErrorCode, SpoolError, TopicError
from connector.kafka import topics
from connector.kafka.topics import TopicFacts
from connector.records.spooled import SpooledRecord, checksum, describe_losses, missing
from connector.stored import from_stored, to_stored

if TYPE_CHECKING:
    from connector.records.model import Heartbeat

FORMAT: Final = 1
BUSY_TIMEOUT_S: Final = 5.0
LOCK_ATTEMPTS: Final = 5
LOCK_EVERY_S: Final = 0.02
ROWS_PER_INSERT: Final = 500
"""A statement waits for Python's lock when it ends. With one row each, a busy thread makes a write
many times slower.
"""
SUFFIXES: Final = ("", "-wal", "-shm")
MAGIC: Final = b"SQLite format 3\0"
"""The first bytes of each database of SQLite."""
_PROMISE_DIGITS: Final = 20

_COLUMNS: Final = (
    "number, checksum, spooled_at, kind, stream_partition, time, kafka_partition, key, value,"
    " headers"
)
_PLACES: Final = f"({', '.join('?' for _ in _COLUMNS.split(','))})"
"""The place of a record in a statement."""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS spool (id INTEGER PRIMARY KEY, content TEXT, checksum INTEGER);
CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY, checksum INTEGER,
  spooled_at INTEGER, kind INTEGER, stream_partition BLOB, time INTEGER, kafka_partition INTEGER,
  key BLOB, value BLOB, headers BLOB);
CREATE TABLE IF NOT EXISTS refused AS SELECT *, '' AS error FROM records WHERE 0;
CREATE TABLE IF NOT EXISTS damaged AS SELECT * FROM records WHERE 0;
CREATE TABLE IF NOT EXISTS losses (first INTEGER PRIMARY KEY, last INTEGER, why TEXT,
  found_at INTEGER, accepted_at INTEGER);
CREATE TABLE IF NOT EXISTS positions (stream_partition BLOB PRIMARY KEY, timestamp INTEGER,
  resume_token BLOB, next INTEGER, checksum INTEGER);
"""

Sync = Literal["normal", "full"]
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SpoolContent:
    """The description of a spool: the topic and its facts, the id of the schema in the registry,
    and the numbers. `next` is the number of the next record.
    """

    topic: TopicFacts
    schema_id: int | None = None
    first: int = 1
    next: int = 1
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Loss:
    """A range of numbers whose records are missing or damaged. `accepted_at` is there when an
    operator has accepted it.
    """

    first: int
    last: int
    why: str
    accepted_at: int | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """One transaction. `first` is the first number that is kept. All earlier ones are settled."""

    records: Sequence[tuple[int, SpooledRecord]]
    first: int
    next: int
    positions: Sequence[Heartbeat] = ()
    refused: Sequence[tuple[int, str]] = ()
    repaired: Sequence[int] = ()
    losses: Sequence[Loss] = ()
    is_empty: bool = False


class SpoolFile:
    """An open and locked spool. One thread writes, and one at a time reads.

    - `content` is the description. A new spool has none before `bind` is called.
    - `losses` are those that no operator has accepted. `check_losses` reads them again.
    """

    def __init__(self, path: Path, sync: Sync = "normal") -> None:
        """Open or create the spool. Raises `SpoolError`."""
        self.path = path = real_path(path)
        check_is_spool(path)
        self._is_full_sync = sync == "full"
        self._lock = lock_of(path)
        try:
            with readable(path):
                self._writer = connect(path)
                self._reader = connect(path)
                self._writer.execute("PRAGMA journal_mode = WAL")
                self._writer.execute(f"PRAGMA synchronous = {sync.upper()}")
                self._writer.executescript(_TABLES)
                self.content = read_content(self._reader)
                self.losses = read_losses(self._reader)
                self._promised = promised_in(path)
                self._place = self._place_now()
        except BaseException:
            self.close()
            raise

    def bind(self, facts: TopicFacts) -> None:
        """Make the spool that of a topic, and store the facts. Raises `SpoolError` if it belongs to
        another topic.
        """
        known = self.content
        if known is not None and known.topic.topic != facts.topic:
            raise self._foreign(known.topic.topic, facts.topic)
        if known is not None and known.first < known.next:
            try:
                topics.check_identity(known.topic.topic_id, facts)
            except TopicError as error:
                raise SpoolError(
                    ErrorCode.TOPIC_REPLACED,
                    f"The spool {self.path} has records of an earlier topic {facts.topic}",
                    "The topic was deleted and created again. The new one may lack other changes,"
                    " too",
                    "Move the spool away, and start again with a backfill of the source",
                    spool=str(self.path),
                ) from error
        self.content = SpoolContent(facts) if known is None else replace(known, topic=facts)
        self._store_content()

    def check_topic(self, topic: str) -> None:
        """Raises `SpoolError` if the spool belongs to another topic."""
        if self.content is not None and self.content.topic.topic != topic:
            raise self._foreign(self.content.topic.topic, topic)

    def keep_schema_id(self, schema_id: int | None) -> None:
        """Store the id of the schema in the registry."""
        assert self.content is not None
        self.content = replace(self.content, schema_id=schema_id)
        self._store_content()

    def check(self, found: Callable[[int, SpooledRecord], None]) -> None:
        """Read all records, call `found` for each, and store the losses. Raises `SpoolError`."""
        assert self.content is not None
        with readable(self.path):
            self._set_strays_aside(max(self.content.next, self._promised + 1))
            losses, content = find_losses(self._reader, self.content, self._promised, found)
            if losses or content != self.content:
                self._store_losses(losses, content)

    def read(self, first: int, limit: int) -> list[tuple[int, SpooledRecord | None]]:
        """Return the records from number `first` on. None is a damaged one."""
        rows = self._reader.execute(
            f"SELECT {_COLUMNS} FROM records WHERE number >= ? ORDER BY number LIMIT ?",  # noqa: S608
            (first, limit),
        )
        return [(row[0], _record(row)) for row in rows]

    @staticmethod
    def record_of(database: sqlite3.Connection, number: int) -> SpooledRecord | None:
        """Return one record, or None if it is missing or damaged. Raises `sqlite3.Error`."""
        for row in database.execute(f"SELECT {_COLUMNS} FROM records WHERE number = ?", (number,)):  # noqa: S608
            return _record(row)
        return None

    def refill(
        self,
        content: SpoolContent,
        records: Sequence[tuple[int, SpooledRecord]],
        refused: Sequence[tuple[int, SpooledRecord, str]],
        losses: Sequence[Loss],
    ) -> None:
        """Fill a new spool with what was read from a damaged one. Raises `SpoolError`."""
        self.content = content
        # A refused record is stored as a record first. Those below `first` go then.
        all_records = {number: record for number, record, _ in refused} | dict(records)
        errors = [(number, error) for number, _, error in refused]
        with readable(self.path):
            self.write(
                Write(
                    [*all_records.items()],
                    content.first,
                    content.next,
                    refused=errors,
                    losses=losses,
                )
            )

    def refused(self) -> Iterator[tuple[int, SpooledRecord, str]]:
        """Return the records that Kafka refused, with the error."""
        return self.refused_in(self._reader)

    @staticmethod
    def refused_in(database: sqlite3.Connection) -> Iterator[tuple[int, SpooledRecord, str]]:
        """Yield the records that Kafka refused. Raises `sqlite3.Error`."""
        for row in database.execute(f"SELECT {_COLUMNS}, error FROM refused"):  # noqa: S608
            record = _record(row)
            if record is not None:
                yield row[0], record, _text(row[-1])

    def position(self, stream_partition: str) -> tuple[int, bytes] | None:
        """Return the newest reported time with a resume token, and the token. Behind a loss, it
        does not count.
        """
        with readable(self.path):
            rows = self._reader.execute(
                "SELECT timestamp, resume_token, next, checksum FROM positions"
                " WHERE stream_partition = ?",
                (stream_partition.encode(),),
            ).fetchall()
        for timestamp, token, following, crc in rows:
            if crc != _position_checksum(stream_partition, timestamp, token, following):
                continue
            if all(loss.first >= following for loss in self.losses):
                self.promise(following - 1)
                return timestamp, token
        return None

    def write(self, write: Write) -> None:
        """Write and commit. Raises `sqlite3.Error`, and then nothing was written."""
        assert self.content is not None
        content = replace(self.content, first=write.first, next=write.next)
        now = now_us()
        with transaction(self._writer):
            execute = self._writer.execute
            for start in range(0, len(write.records), ROWS_PER_INSERT):
                some = write.records[start : start + ROWS_PER_INSERT]
                places = ", ".join([_PLACES] * len(some))
                execute(
                    f"INSERT OR REPLACE INTO records ({_COLUMNS}) VALUES {places}",  # noqa: S608
                    [
                        value
                        for number, record in some
                        for value in (number, checksum(number, record), now, *_coded(record))
                    ],
                )
            for number in (*write.repaired, *(number for number, _ in write.refused)):
                execute("DELETE FROM refused WHERE number = ?", (number,))
            for number, error in write.refused:
                execute(
                    "INSERT INTO refused SELECT *, ? FROM records WHERE number = ?",
                    (error, number),
                )
            _add_losses(self._writer, write.losses, now)
            if write.first > self.content.first or write.refused:
                execute("DELETE FROM records WHERE number < ?", (write.first,))
            if write.is_empty:
                execute("DELETE FROM positions")
            for position in write.positions:
                name, time, token = (
                    position.stream_partition,
                    position.timestamp,
                    position.resume_token,
                )
                execute(
                    "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)",
                    (
                        name.encode(),
                        time,
                        token,
                        write.next,
                        _position_checksum(name, time, token, write.next),
                    ),
                )
            _write_content(self._writer, content)
        self.content = content
        if write.losses:
            self.losses = [
                *self.losses,
                *(loss for loss in write.losses if loss.accepted_at is None),
            ]

    def all_losses(self) -> list[Loss]:
        """Return all losses that are known, with those that an operator has accepted."""
        return read_losses(self._reader, accepted=True)

    def promise(self, number: int) -> None:
        """Note that the application may rely on the records up to this number. If they are absent
        later, they are a loss. Raises `SpoolError` if the file was removed or replaced.
        """
        with readable(self.path):
            if self._place_now() != self._place:
                raise ValueError("another process has removed or replaced it")
        if number > self._promised:
            os.pwrite(self._lock, _promise(number), 0)
            if self._is_full_sync:
                os.fsync(self._lock)
            self._promised = number

    def forget_promise(self) -> int:
        """Note that nothing is promised any more. Returns the number that was promised."""
        promised, self._promised = self._promised, 0
        os.ftruncate(self._lock, 0)
        return promised

    def _place_now(self) -> tuple[int, int]:
        return os.stat(self.path).st_ino, os.stat(f"{self.path}.lock").st_ino

    def check_losses(self) -> None:
        """Read again which losses an operator has accepted."""
        with readable(self.path):
            self.losses = read_losses(self._reader)

    def close(self) -> None:
        """Close the database, and unlock the spool."""
        for name in ("_reader", "_writer"):
            database: sqlite3.Connection | None = getattr(self, name, None)
            if database is not None:
                database.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _store_content(self) -> None:
        assert self.content is not None
        with readable(self.path), transaction(self._writer):
            _write_content(self._writer, self.content)

    def _store_losses(self, losses: list[Loss], content: SpoolContent) -> None:
        with transaction(self._writer):
            _add_losses(self._writer, losses, now_us())
            _write_content(self._writer, content)
        self.content = content
        self.losses = [*self.losses, *losses]

    def _set_strays_aside(self, end: int) -> None:
        """Take away rows with numbers that no record has yet: their own numbers are damaged."""
        strays = "FROM records WHERE number >= ?"
        if self._reader.execute(f"SELECT 1 {strays} LIMIT 1", (end,)).fetchone() is not None:
            with transaction(self._writer):
                self._writer.execute(f"INSERT INTO damaged SELECT * {strays}", (end,))
                self._writer.execute(f"DELETE {strays}", (end,))

    def _foreign(self, spools: str, topic: str) -> SpoolError:
        return SpoolError(
            ErrorCode.SPOOL_FOREIGN,
            f"The spool {self.path} belongs to another topic",
            f"It has records of the topic {spools}, and the producer writes to {topic}",
            "Give each topic a spool of its own",
            spool=str(self.path),
        )


def real_path(path: Path) -> Path:
    """The path without symbolic links, so that each of them leads to the same lock. Raises
    `SpoolError`.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise unreadable(path, OSError(str(error))) from error


def connect(path: Path) -> sqlite3.Connection:
    """Open the database. Texts are read as bytes, because damaged ones may not be UTF-8."""
    database = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    database.text_factory = bytes
    return database


def check_is_spool(path: Path) -> None:
    """Raise `SpoolError` if something else is at the path: a folder, or a file of another program.

    Each spool has a file for its lock beside it. Without that file, its description must be whole.
    With it, a damaged file is taken for a spool, but not a database with other tables.
    """
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    if path.is_file():
        if Path(f"{path}.lock").is_file() and not _has_other_tables(path):
            return
        with suppress(sqlite3.Error, ValueError), closing(_read_only(path)) as database:
            if read_content(database) is not None:
                return
    raise SpoolError(
        ErrorCode.FILE_NOT_A_SPOOL,
        f"{path} is not a spool",
        f"It is a folder, or a file of another program: there is no {path}.lock, or it has the"
        " tables of that program",
        "Give the path of a spool, or of a file that does not exist yet",
        spool=str(path),
    )


def _has_other_tables(path: Path) -> bool:
    with suppress(sqlite3.Error), closing(_read_only(path)) as database:
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        names = {bytes(name) for (name,) in rows}
        return bool(names) and b"spool" not in names
    return False


def _read_only(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    database.text_factory = bytes
    return database


def read_content(database: sqlite3.Connection, *, checks: bool = True) -> SpoolContent | None:
    """Return what the spool says of itself. None: it is new.

    Raises `ValueError` if it is damaged, and `SpoolError` if a newer release wrote it. Without
    `checks`, its checksum may be wrong.
    """
    for content, crc in database.execute("SELECT content, checksum FROM spool"):
        if not isinstance(content, bytes) or (checks and crc != zlib.crc32(content)):
            raise ValueError("the checksum of its own description is wrong")
        found: SpoolContent = from_stored(SpoolContent, json.loads(content))
        if found.format != FORMAT:
            raise SpoolError(
                ErrorCode.SPOOL_FORMAT_UNKNOWN,
                "The spool has another format",
                f"Its format is {found.format}, and this release knows {FORMAT}",
                "Use the release that wrote it. Its records are whole",
            )
        return found
    return None


def read_losses(database: sqlite3.Connection, *, accepted: bool = False) -> list[Loss]:
    """Return the losses that no operator has accepted, or all of them."""
    rows = database.execute("SELECT first, last, why, accepted_at FROM losses ORDER BY first")
    return [
        Loss(first, last, _text(why), accepted_at)
        for first, last, why, accepted_at in rows
        if accepted or accepted_at is None
    ]


def find_losses(
    database: sqlite3.Connection,
    content: SpoolContent,
    promised: int,
    found: Callable[[int, SpooledRecord], None],
) -> tuple[list[Loss], SpoolContent]:
    """Return new losses, and the content with numbers that include them.

    `promised` is the last number that an application may rely on. `found` is called for each record
    that is whole.
    """
    known = {
        number
        for first, last in database.execute("SELECT first, last FROM losses")
        for number in range(max(first, content.first), last + 1)
    }
    end = max(content.next, promised + 1)
    numbers: list[tuple[int, int]] = []
    damaged: list[Loss] = []

    def whole() -> Iterator[int]:
        rows = database.execute(
            f"SELECT {_COLUMNS} FROM records WHERE number >= ? AND number < ? ORDER BY number",  # noqa: S608
            (content.first, end),
        )
        for row in rows:
            record = _record(row)
            if record is not None:
                found(row[0], record)
            elif row[0] not in known:
                damaged.append(Loss(row[0], row[0], "damaged"))
            yield row[0]

    numbers.extend(missing(whole(), content.first, end))
    absent = [
        Loss(first, last, "missing")
        for first, last in numbers
        if not known.issuperset(range(first, last + 1))
    ]
    return sorted([*absent, *damaged], key=lambda loss: loss.first), replace(content, next=end)


def transaction(database: sqlite3.Connection) -> _Transaction:
    """A block that is committed as one."""
    return _Transaction(database)


class _Transaction:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            try:
                self._database.execute("COMMIT")
            except sqlite3.Error:
                self._roll_back()
                raise
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")


class readable:  # noqa: N801, a block, used as a function
    """Raises `SpoolError` if SQLite cannot use the file in this block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, sqlite3.Error | ValueError | OSError):
            raise unreadable(self._path, error) from error


def unreadable(path: Path, error: Exception) -> SpoolError:
    """Return the error for a file that SQLite cannot use."""
    return SpoolError(
        ErrorCode.SPOOL_UNREADABLE,
        f"The spool {path} cannot be used",
        str(error),
        "Check the rights and the free space of its folder. If the file is damaged, restore it, or"
        " accept the loss",
        spool=str(path),
    )


def lock_of(path: Path) -> int:
    """Lock the spool of this path, and return the open file. Raises `SpoolError`."""
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        _lock(lock)
    except OSError as error:
        os.close(lock)
        raise SpoolError(
            ErrorCode.SPOOL_IN_USE,
            f"Another producer uses the spool {path}",
            "A spool belongs to one producer at a time",
            "Stop the other producer, or give this one a spool of its own",
            spool=str(path),
        ) from error
    return lock


def _lock(lock: int) -> None:
    """Lock an open file. `connector spool show` holds the lock for a moment. Raises `OSError`."""
    for _ in range(LOCK_ATTEMPTS - 1):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(LOCK_EVERY_S)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def promised_in(path: Path) -> int:
    """Return the last number that an application may rely on. Raises `ValueError`."""
    try:
        stored = Path(f"{path}.lock").read_bytes()
    except FileNotFoundError:
        return 0
    number = int(stored[:_PROMISE_DIGITS] or b"0")
    if stored and stored != _promise(number):
        raise ValueError("the number in its lock file is damaged")
    return number


def _promise(number: int) -> bytes:
    digits = b"%0*d" % (_PROMISE_DIGITS, number)
    return b"%b %010d" % (digits, zlib.crc32(digits))


def _text(stored: bytes | None) -> str:
    return stored.decode(errors="replace") if isinstance(stored, bytes) else ""


def _write_content(database: sqlite3.Connection, content: SpoolContent) -> None:
    text = json.dumps(to_stored(content))
    database.execute(
        "INSERT OR REPLACE INTO spool VALUES (1, ?, ?)", (text, zlib.crc32(text.encode()))
    )


def _add_losses(database: sqlite3.Connection, losses: Sequence[Loss], now: int) -> None:
    for loss in losses:
        database.execute(
            "INSERT OR REPLACE INTO losses VALUES (?, ?, ?, ?, ?)",
            (loss.first, loss.last, loss.why, now, loss.accepted_at),
        )
        # The damaged bytes are kept, for whoever wants to look at them.
        database.execute(
            "INSERT INTO damaged SELECT * FROM records WHERE number BETWEEN ? AND ?",
            (loss.first, loss.last),
        )
        database.execute(
            "DELETE FROM records WHERE number BETWEEN ? AND ?", (loss.first, loss.last)
        )


def _coded(record: SpooledRecord) -> tuple[object, ...]:
    return (record.kind, record.stream_partition.encode(), *record[2:])


def _record(row: Row) -> SpooledRecord | None:
    """Return the record of a row, or None if it is damaged."""
    try:
        kind, name, *rest = row[3:10]
        record = SpooledRecord(kind, name.decode(), *rest)
        return record if checksum(row[0], record) == row[1] else None
    except Exception:  # noqa: BLE001, damaged values may have any type
        return None


def _position_checksum(name: str, timestamp: int, token: bytes, following: int) -> int:
    return zlib.crc32(repr((name, timestamp, bytes(token), following)).encode())


def losses_text(losses: Sequence[Loss]) -> str:
    """Return losses as text for people."""
    return describe_losses((loss.first, loss.last) for loss in losses)
