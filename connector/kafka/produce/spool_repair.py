"""Shows a spool, and accepts its losses. The producer may use the spool meanwhile (PUB-3)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from connector.clock import now_us
from connector.errors import ErrorCode, SpoolError
from connector.kafka.produce.spool_file import (
    MAGIC,
    SUFFIXES,
    Loss,
    SpoolContent,
    SpoolFile,
    check_is_spool,
    connect,
    find_losses,
    lock_of,
    promised_in,
    read_content,
    read_losses,
    readable,
    real_path,
    transaction,
)
from connector.records.spooled import SpooledRecord, missing


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """The content of a spool. `oldest` and `newest` are commit timestamps, in microseconds."""

    path: str
    topic: str
    is_in_use: bool
    records: int
    bytes: int
    oldest: int | None
    newest: int | None
    refused: int
    losses: tuple[Loss, ...]


def status(path: Path) -> SpoolStatus:
    """Read a whole spool, and check it. Nothing is changed. Raises `SpoolError`."""
    path = real_path(path)
    _check_exists(path)
    sizes, times = [0, 0], [0, 0]

    def found(_number: int, record: SpooledRecord) -> None:
        sizes[0] += 1
        sizes[1] += record.size
        times[0] = min(times[0] or record.time, record.time)
        times[1] = max(times[1], record.time)

    with readable(path), closing(connect(path)) as database:
        database.execute("BEGIN")
        content = read_content(database)
        losses = read_losses(database)
        refused = 0
        if content is None and (promised := promised_in(path)):
            losses.append(Loss(1, promised, "missing"))
        if content is not None:
            new, _ = find_losses(database, content, promised_in(path), found)
            losses += new
            ((refused,),) = database.execute("SELECT count(*) FROM refused").fetchall()
    return SpoolStatus(
        str(path),
        "" if content is None else content.topic.topic,
        _is_in_use(path),
        sizes[0],
        sizes[1],
        times[0] or None,
        times[1] or None,
        refused,
        tuple(losses),
    )


def accept(path: Path) -> tuple[Loss, ...]:
    """Accept all losses of a spool, so that heartbeats may pass them. Returns the losses.

    If a producer uses the spool, the losses that it has found are accepted. If the file cannot be
    read, each readable record is copied to a new file, and the old one is kept as PATH.damaged.

    Raises `SpoolError`.
    """
    path = real_path(path)
    _check_exists(path)
    try:
        file = SpoolFile(path)
    except SpoolError as error:
        if error.code == ErrorCode.SPOOL_UNREADABLE:
            return _rescue(path)
        if error.code != ErrorCode.SPOOL_IN_USE:
            raise
    else:
        with closing(file):
            if file.content is None and (promised := file.forget_promise()):
                return (Loss(1, promised, "missing"),)
            if file.content is not None:
                try:
                    file.check(lambda _number, _record: None)
                except SpoolError:
                    file.close()
                    return _rescue(path)
    with readable(path), closing(connect(path)) as database, transaction(database):
        losses = read_losses(database)
        database.execute("UPDATE losses SET accepted_at = ? WHERE accepted_at IS NULL", (now_us(),))
    return tuple(losses)


def _rescue(path: Path) -> tuple[Loss, ...]:
    """Copy what can be read to a new file."""
    lock = lock_of(path)
    try:
        records: list[tuple[int, SpooledRecord]] = []
        refused: list[tuple[int, SpooledRecord, str]] = []
        content: SpoolContent | None = None
        _make_whole(path)
        with suppress(sqlite3.Error, ValueError), closing(connect(path)) as database:
            content = read_content(database, checks=False)
            records.extend(_readable_records(database, content))
            refused.extend(SpoolFile.refused_in(database))
        damaged = _free_name(path)
        for suffix in SUFFIXES:
            if os.path.exists(f"{path}{suffix}"):
                os.replace(f"{path}{suffix}", f"{damaged}{suffix}")
        os.ftruncate(lock, 0)
    finally:
        os.close(lock)
    if content is None:
        return (Loss(0, 0, "unreadable"),)
    numbers = [number for number, _ in records]
    losses = tuple(
        Loss(first, last, "unreadable", now_us())
        for first, last in missing(numbers, content.first, content.next)
    )
    with closing(SpoolFile(path)) as file:
        file.refill(content, records, refused, losses)
    return losses


def _make_whole(path: Path) -> None:
    """Fill a file that was cut with zeros, because SQLite reads nothing of a short one."""
    with suppress(OSError), path.open("r+b") as file:
        head = file.read(32)
        if not head.startswith(MAGIC):
            return
        page_size = int.from_bytes(head[16:18], "big")
        page_size = 65_536 if page_size == 1 else page_size
        size = page_size * int.from_bytes(head[28:32], "big")
        if file.seek(0, os.SEEK_END) < size < 2**40:
            file.truncate(size)


def _readable_records(
    database: sqlite3.Connection, content: SpoolContent | None
) -> Iterator[tuple[int, SpooledRecord]]:
    if content is None:
        return
    for number in range(content.first, content.next):
        with suppress(sqlite3.Error):
            record = SpoolFile.record_of(database, number)
            if record is not None:
                yield number, record


def _free_name(path: Path) -> Path:
    """A name for a damaged file, where no earlier one is."""
    names = (Path(f"{path}.damaged{f'-{n}' if n > 1 else ''}") for n in count(1))
    return next(name for name in names if not name.exists())


def _check_exists(path: Path) -> None:
    check_is_spool(path)
    if not path.exists() and not Path(f"{path}.lock").exists():
        raise SpoolError(
            ErrorCode.SPOOL_MISSING,
            f"There is no spool at {path}",
            "The file does not exist",
            "Check the path. It is the `spool` of the producer",
            spool=str(path),
        )


def _is_in_use(path: Path) -> bool:
    try:
        os.close(lock_of(path))
    except SpoolError:
        return True
    return False
