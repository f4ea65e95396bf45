"""A steady load for `benchmarks.freshness`, in a separate process: `python -m benchmarks.load
SERVERS TOPIC ROWS FOLDER TABLES`.

The rows belong to TABLES source tables in turn. The load sends a change for every row, and prints
`ready` when all are acknowledged. Then it reads rates from its standard input, one a line, in
changes a second. It changes random rows, and 3 % of the changes are deletions. Two stream
partitions send a heartbeat every half second for all acknowledged changes. At the end of its input
it waits for all acknowledgements, and writes two files of 64-bit numbers to FOLDER:

- `sent`: five numbers for each change after the first ones: its Kafka partition and offset, its
  commit timestamp, the time of its acknowledgement, and its row.
- `rows`: the value that the column `visits` of each row must have at the end. -1: there must be no
  row.

It gives changes to the client as `ChangeProducer` would. `ChangeProducer` itself does not report
the acknowledgement of each change.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.workload import COLUMNS, FAMILY, SOURCE
from connector.config.settings import KafkaConfig
from connector.kafka import ChangeProducer, client, topics
from connector.records.codec import encode, frame
from connector.records.model import DataChange, DeleteFamily, Heartbeat, SetCell

PARTITIONS: Final = ("p0", "p1")
HEARTBEAT_S: Final = 0.5
DELETES: Final = 0.03
GONE: Final = -1
SEED: Final = 20241121


def source(table: int, tables: int) -> str:
    """The name of a source table."""
    return SOURCE if tables == 1 else f"{SOURCE}_{table}"


def sent_changes(folder: Path) -> np.ndarray:
    """The file `sent`: a row for each change."""
    return np.fromfile(folder / "sent", np.int64).reshape(-1, 5)


def row_key(row: int) -> str:
    return f"customer#{row:08}"


class Load:
    """The sent changes and their acknowledgements."""

    def __init__(self, kafka: KafkaConfig, topic: str, rows: int, tables: int) -> None:
        self._topic, self._kafka_partitions = topic, topics.describe(kafka, topic).kafka_partitions
        self._client = client.producer(kafka, client.LastError(), {})
        self._control = ChangeProducer(kafka, topic)
        self._tables = tables
        self._chance = random.Random(SEED)
        self._last, self._beat_at = 0, 0.0
        self._under_way: dict[int, None] = {}  # commit timestamps, the oldest first
        self.sent, self.rows = array("q"), array("q", [GONE]) * rows

    def send(self, row: int, *, deletes: bool) -> None:
        """Send one change of one row now."""
        at = self._last = max(self._now(), self._last + 1)
        self.rows[row] = GONE if deletes else at
        texts = (
            b"name %d" % row,
            b"city %d" % (at % 1000),
            b"note %d" % at,
            b"%d" % (at % 1_000_000),
            b"%d" % at,
        )
        cells = (
            ()
            if deletes
            else tuple(
                SetCell(FAMILY, name.encode(), text)
                for name, text in zip(COLUMNS, texts, strict=True)
            )
        )
        key, entries = row_key(row).encode(), (DeleteFamily(FAMILY), *cells)
        partition = PARTITIONS[row // self._tables % len(PARTITIONS)]
        change = DataChange(
            stream_partition=partition,
            table=source(row % self._tables, self._tables),
            row_key=key,
            commit_timestamp=at,
            entries=entries,
        )
        value = frame(encode(change, self._kafka_partitions), None)
        self._under_way[at] = None
        while True:
            try:
                self._client.produce(
                    self._topic, value, key, on_delivery=partial(self._acknowledged, at, row)
                )
                return
            except BufferError:
                self._client.poll(0.05)

    def serve(self, timeout_s: float) -> None:
        """Process acknowledgements, and send heartbeats if it is time."""
        self._client.poll(timeout_s)
        if time.monotonic() - self._beat_at >= HEARTBEAT_S:
            self._beat_at = time.monotonic()
            if not self._under_way:
                self._last = max(self._now(), self._last + 1)
            at = next(iter(self._under_way), self._last + 1) - 1
            for partition in PARTITIONS:
                self._control.send(Heartbeat(partition, at))

    def random(self) -> None:
        """A change of a random row."""
        self.send(self._chance.randrange(len(self.rows)), deletes=self._chance.random() < DELETES)

    def settle(self) -> None:
        """Wait until everything is acknowledged and a heartbeat covers it."""
        self._client.flush()
        assert not self._under_way, f"{len(self._under_way)} changes have no acknowledgement"
        self._beat_at = 0.0
        self.serve(0)
        self._control.flush()

    def close(self) -> None:
        self._control.close()

    def _acknowledged(self, at: int, row: int, error: Any, message: Any) -> None:
        assert error is None, error
        self.sent.extend((message.partition(), message.offset(), at, self._now(), row))
        del self._under_way[at]

    @staticmethod
    def _now() -> int:
        return time.time_ns() // 1000


@contextmanager
def running(
    kafka: KafkaConfig, topic: str, rows: int, folder: Path, tables: int = 1
) -> Iterator[subprocess.Popen[str]]:
    """The load as a process that has sent its rows. It ends with the block."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.load", kafka.bootstrap_servers, topic),
            *(str(rows), str(folder), str(tables)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "the load did not begin"
        yield process
    finally:
        process.kill()
        process.wait()


def main(servers: str, topic: str, rows: int, folder: Path, tables: int) -> None:
    load = Load(KafkaConfig(servers), topic, rows, tables)
    for row in range(rows):
        load.send(row, deletes=False)
        if row % 100 == 0:
            load.serve(0)
    load.settle()
    del load.sent[:]
    print("ready", flush=True)
    rate, is_over = [0.0], threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            rate[0] = float(line)
        is_over.set()

    threading.Thread(target=listen, daemon=True).start()
    due, looked_at = 0.0, time.monotonic()
    while not is_over.is_set():
        load.serve(0.005)
        now = time.monotonic()
        due, looked_at = due + rate[0] * (now - looked_at), now
        while due >= 1:
            load.random()
            due -= 1
    load.settle()
    load.close()
    for name, numbers in (("sent", load.sent), ("rows", load.rows)):
        with (folder / name).open("wb") as file:
            numbers.tofile(file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
