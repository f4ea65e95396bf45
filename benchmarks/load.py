"""A steady load for `benchmarks.freshness`, in a separate process: `python -m benchmarks.load
SERVERS TOPIC ROWS FOLDER TABLES FORM`.

The rows belong to TABLES source tables in turn. The load sends a change for every row, and prints
`ready` when all are acknowledged. Then it reads rates from its standard input, one a line, in
changes a second. It changes random rows, and 3 % of the changes are deletions. FORM is one of
`benchmarks.forms`. Each stream partition sends heartbeats for all acknowledged changes. At the end
of its input it waits for all acknowledgements, and writes two files of 64-bit numbers to FOLDER:

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.forms import FORMS, PLAIN, Write
from connector.config.settings import KafkaConfig
from connector.kafka import ChangeProducer, client, topics
from connector.kafka.transactions import headers_of
from connector.records.codec import encode, frame
from connector.records.model import Heartbeat

DELETES: Final = 0.03
GONE: Final = -1
SEED: Final = 20241121


def sent_changes(folder: Path) -> np.ndarray:
    """The file `sent`: a row for each change."""
    return np.fromfile(folder / "sent", np.int64).reshape(-1, 5)


class Load:
    """The sent changes and their acknowledgements."""

    def __init__(self, kafka: KafkaConfig, topic: str, rows: int, tables: int, form: str) -> None:
        self._topic, self._kafka_partitions = topic, topics.describe(kafka, topic).kafka_partitions
        self._client = client.producer(kafka, client.LastError(), {})
        self._control = ChangeProducer(kafka, topic)
        self._form = FORMS[form](tables)
        self._chance = random.Random(SEED)
        self._last, self._beat_at = 0, 0.0
        # By the value that a change writes, its commit timestamp, the oldest first.
        self._under_way: dict[int, int] = {}
        self.sent, self.rows = array("q"), array("q", [GONE]) * rows

    @property
    def together(self) -> int:
        """The number of changes of a commit."""
        return self._form.together

    def send(self, rows: Sequence[int], *, deletes: float) -> None:
        """Send the changes of one commit now: one of each row, with this share of deletions."""
        at = max(self._now(), self._last + 1)
        self._last = at + len(rows) - 1
        writes = [
            Write(row, at + number, self._chance.random() < deletes)
            for number, row in enumerate(rows)
        ]
        made = self._form.changes(at, writes)
        for write, (change, headers) in zip(writes, made, strict=True):
            self.rows[write.row] = GONE if write.deletes else write.visits
            value = frame(encode(change, self._kafka_partitions), None)
            self._under_way[write.visits] = at
            answer = partial(self._acknowledged, at, write)
            while True:
                try:
                    self._client.produce(
                        *(self._topic, value, change.row_key),
                        on_delivery=answer,
                        headers=headers_of(headers),
                    )
                    break
                except BufferError:
                    self._client.poll(0.05)

    def serve(self, timeout_s: float) -> None:
        """Process acknowledgements, and send heartbeats if it is time."""
        self._client.poll(timeout_s)
        if time.monotonic() - self._beat_at >= self._form.heartbeat_s:
            self._beat_at = time.monotonic()
            if not self._under_way:
                self._last = max(self._now(), self._last + 1)
            at = next(iter(self._under_way.values()), self._last + 1) - 1
            token = self._form.token()
            for partition in self._form.partitions:
                self._control.send(Heartbeat(partition, at, token))

    def random(self) -> None:
        """A commit that changes random rows."""
        rows = [self._chance.randrange(len(self.rows)) for _ in range(self.together)]
        self.send(rows, deletes=DELETES)

    def settle(self) -> None:
        """Wait until everything is acknowledged and a heartbeat covers it."""
        self._client.flush()
        assert not self._under_way, f"{len(self._under_way)} changes have no acknowledgement"
        self._beat_at = 0.0
        self.serve(0)
        self._control.flush()

    def close(self) -> None:
        self._control.close()

    def _acknowledged(self, at: int, write: Write, error: Any, message: Any) -> None:
        assert error is None, error
        self.sent.extend((message.partition(), message.offset(), at, self._now(), write.row))
        del self._under_way[write.visits]

    @staticmethod
    def _now() -> int:
        return time.time_ns() // 1000


@contextmanager
def running(
    kafka: KafkaConfig, topic: str, rows: int, folder: Path, tables: int = 1, form: str = PLAIN
) -> Iterator[subprocess.Popen[str]]:
    """The load as a process that has sent its rows. It ends with the block."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.load", kafka.bootstrap_servers, topic),
            *(str(rows), str(folder), str(tables), form),
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


def main(servers: str, topic: str, rows: int, folder: Path, tables: int, form: str) -> None:
    load = Load(KafkaConfig(servers), topic, rows, tables, form)
    for first in range(0, rows, 100):
        for row in range(first, min(first + 100, rows), load.together):
            load.send(range(row, min(row + load.together, rows)), deletes=0)
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
        while due >= load.together:
            load.random()
            due -= load.together
    load.settle()
    load.close()
    for name, numbers in (("sent", load.sent), ("rows", load.rows)):
        with (folder / name).open("wb") as file:
            numbers.tofile(file)


if __name__ == "__main__":
    _, servers, topic, rows, folder, tables, form = sys.argv
    main(servers, topic, int(rows), Path(folder), int(tables), form)
