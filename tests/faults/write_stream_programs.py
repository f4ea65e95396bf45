"""The programs of the fault test of write streams. Each is a process that may be killed at any time
and started again.

    python -m tests.faults.write_stream_programs NAME '{"servers": …, …}'

- `load` appends the rows of one write stream. It opens its session at the first line of its
  standard input. Further lines are the number of rows that it may have appended. The last line is
  `finalize`.
- `app` publishes live changes from a log of its own. The line `commit KILL` on its standard input
  commits the write streams, and `close` ends it.

Both write what they know to a file of JSON lines, before they go on. `kill` is a point at which the
process ends by SIGKILL: `start`, `before` or `after`, and a number. It is the number-th call that
starts a transactional client, or the time before or after the number-th commit of a transaction.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections import deque
from pathlib import Path
from random import Random
from typing import Any

from connector.clock import now_us
from connector.config.settings import KafkaConfig
from connector.errors import (
    BrokerError,
    ConnectorError,
    DeliveryError,
    OffsetError,
    TopicError,
    WriterConflictError,
)
from connector.kafka import Batching, ChangeProducer, WriteSession, transactions
from connector.kafka.write_streams.commit import commit_streams
from connector.kafka.write_streams.queue import Append
from connector.records.model import SERVER_TIME, DataChange, SetCell
from tests.changes import change, delete_family, put
from tests.integration.write_stream_process import kill_at

TOPIC = "t"
STREAM = "rows"
WORKERS = 4
TAKEN_OVER = 3
SHARED_ROWS = 20
"""So many rows of each write stream have keys that live changes have, too."""


def row_key(session: str, offset: int) -> bytes:
    return f"{session}-{offset}".encode()


def names() -> list[str]:
    return [f"w{number}/{STREAM}" for number in range(WORKERS)]


class Said:
    """A file of JSON lines. A line is in the file when `say` returns."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(self, what: str, **facts: object) -> None:
        os.write(self._file, (json.dumps({"what": what, "at": now_us(), **facts}) + "\n").encode())


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def prepare(kill: str) -> None:
    """Make the process end at the point `kill`. Empty: it has none."""
    # Readers wait for the transaction of a dead program, which ends by this time-out.
    transactions.TIMEOUT_S = 15.0  # type: ignore[misc]
    when, _, count = kill.partition(" ")
    if when in ("before", "after"):
        kill_at(when, int(count))
    elif when == "start":
        start, left = transactions.start, [int(count)]

        def counted(*arguments: Any) -> None:
            start(*arguments)
            left[0] -= 1
            if not left[0]:
                _die()

        transactions.start = counted


# ── a worker ──────────────────────────────────────────────────────────────────────────────────────


class Loader:
    """One start of a worker. Its number is in the values of its rows, so that the topic shows which
    start appended a row.
    """

    def __init__(self, session: WriteSession, start: int, size: int, said: Said) -> None:
        self._stream = session.stream(STREAM, kind="pending")
        self._name, self._start, self._size, self._said = session.name, start, size, said
        self._flying: deque[tuple[int, Append]] = deque()
        said.say("opened", end=self._stream.next_offset(), state=str(self._stream.state))

    def rows(self, offset: int) -> list[DataChange]:
        return [
            self._stream.row(
                table=TOPIC,
                row_key=row_key(self._name, number),
                entries=[
                    SetCell("f", b"q", b"loaded", SERVER_TIME),
                    SetCell("g", b"q", f"{self._name} {number} {self._start}".encode()),
                ],
            )
            for number in range(offset, offset + self._size)
        ]

    def try_other_rows(self) -> None:
        """The rows of an earlier start at the offset of its last append are other rows."""
        end = self._stream.next_offset()
        if not end or self._stream.state != "open":
            return
        try:
            self._stream.append(self.rows(end - self._size), end - self._size)
        except OffsetError:
            return
        raise AssertionError("other rows were accepted at an offset that has rows")

    def append(self, in_flight: int, *, is_repeated: bool) -> None:
        """Append rows at the end. `is_repeated`: twice."""
        offset = self._stream.next_offset()
        rows = self.rows(offset)
        self._flying.append((offset, self._stream.append(rows, offset)))
        if is_repeated:
            again = self._stream.append(rows, offset)
            assert again.result(240).repeated == self._size
        while len(self._flying) > in_flight:
            self._answered()

    def _answered(self) -> None:
        offset, append = self._flying.popleft()
        try:
            append.result(240)
        except ConnectorError as error:
            self._said.say("failed", offset=offset, outcome=error.fields["outcome"])
            raise
        self._said.say("taken", offset=offset, rows=self._size)

    def settle(self) -> None:
        """Write the outcome of every append."""
        failure: ConnectorError | None = None
        while self._flying:
            try:
                self._answered()
            except ConnectorError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def load(self, rng: Random, in_flight: int) -> None:
        """Append and finalize, as standard input says."""
        self.try_other_rows()
        for line in sys.stdin:
            if line.strip() == "finalize":
                rows = self._stream.finalize()
                assert self._stream.finalize() == rows
                self._said.say("finalized", rows=rows)
                return
            while self._stream.next_offset() < int(line):
                self.append(in_flight, is_repeated=rng.random() < 0.1)
            self.settle()
        raise SystemExit("the driver has ended")


def load(
    servers: str, session: str, start: int, size: int, seed: int, said: str, kill: str
) -> None:
    prepare(kill)
    log, rng = Said(said), Random(seed)
    log.say("ready")
    sys.stdin.readline()
    # With a point of its death, each append is a transaction of its own, so that the point is met.
    in_flight = 0 if kill else rng.randint(0, 6)
    try:
        with WriteSession(
            KafkaConfig(servers), TOPIC, session, batching=Batching(linger_s=0)
        ) as opened:
            loader = Loader(opened, start, size, log)
            try:
                loader.load(rng, in_flight)
            except ConnectorError:
                loader.settle()
                raise
    except WriterConflictError:
        log.say("taken over")
        raise SystemExit(TAKEN_OVER) from None


# ── the application with live changes ─────────────────────────────────────────────────────────────


class SourceLog:
    """The changes that the source has committed, in a file. It survives the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.changes = read_source(path)

    def commit(self) -> DataChange:
        """Another change, with a later commit timestamp than all before."""
        number = len(self.changes)
        at = max(now_us(), self.changes[-1].commit_timestamp + 1 if self.changes else 0)
        with self._path.open("a") as file:
            file.write(f"{at}\n")
        self.changes.append(live_change(number, at))
        return self.changes[-1]


def live_change(number: int, at: int) -> DataChange:
    """Half of the changes are of loaded rows, and a few delete."""
    rng = Random(number)
    shared = row_key(f"w{rng.randrange(WORKERS)}", rng.randrange(SHARED_ROWS))
    key = rng.choice((shared, f"live-{rng.randrange(50)}".encode()))
    entry = delete_family("f") if rng.random() < 0.1 else put(f"live {number}")
    return change(entry, at=at, row_key=key)


def read_source(path: Path) -> list[DataChange]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [live_change(number, int(line)) for number, line in enumerate(lines)]


def app(servers: str, source: str, said: str) -> None:
    kafka, log, known = KafkaConfig(servers), Said(said), SourceLog(Path(source))
    commands: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            commands.put(line.strip())
        _die()  # the driver has ended

    threading.Thread(target=listen, daemon=True).start()
    with ChangeProducer(kafka, TOPIC, heartbeat_s=1) as producer:
        try:
            sent = int(producer.resume_token("p"))
        except TopicError:
            sent = 0
        log.say("opened", sent=sent)
        while True:
            for number in range(sent, len(known.changes)):
                _publish(producer, known.changes[number], number)
            known.commit()
            sent = len(known.changes) - 1
            try:
                command = commands.get(timeout=0.05)
            except queue.Empty:
                continue
            if command == "close":
                break
            prepare(command.removeprefix("commit").strip())
            threading.Thread(target=_commit, args=(kafka, producer, log), daemon=True).start()
        _publish(producer, known.changes[-1], sent)
        producer.flush()
    log.say("closed")


def _publish(producer: ChangeProducer, one: DataChange, number: int) -> None:
    producer.send(one)
    producer.reached("p", one.commit_timestamp, b"%d" % (number + 1))


def _commit(kafka: KafkaConfig, producer: ChangeProducer, log: Said) -> None:
    """Commit the write streams. A failed commit is repeated, as its error asks for."""
    while True:
        try:
            at = commit_streams(kafka, TOPIC, names(), through=producer)
            log.say("committed", commit_timestamp=at)
            return
        except (BrokerError, DeliveryError) as error:
            log.say("commit failed", error=str(error))
        except BaseException as error:
            log.say("broken", error=repr(error))
            raise


if __name__ == "__main__":
    arguments = json.loads(sys.argv[2])
    {"load": load, "app": app}[sys.argv[1]](**arguments)
