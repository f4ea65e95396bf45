"""A producer with an outbox that is killed at a step, as a process of its own (PUB-3).

    python -m tests.unit.kafka.outbox_process SERVERS OUTBOX CHANGES STEP COUNT

STEP is a name of `STEPS`, and the process ends by SIGKILL when this step comes for the COUNT-th
time. With `none` it goes on until all changes are acknowledged. With `full` the disk is full after
200 kB, until a line is on standard input: the process prints what `send` raised.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from connector.config.settings import KafkaConfig
from connector.errors import QueueFullError
from connector.kafka import client
from connector.kafka.produce import outbox_file
from connector.kafka.produce.outbox import OutboxQueue
from connector.kafka.produce.outbox_file import OutboxFile
from connector.kafka.produce.producer import ChangeProducer
from connector.kafka.topics import TopicFacts
from connector.records.model import DataChange, Heartbeat, SetCell

FACTS = TopicFacts("t", "AAAAAAAAAAAAAAAAAAAAAA", 2, 1, "delete", "LogAppendTime", 10**9, 1_000_000)
KEYS = 7
HEARTBEAT_EVERY = 25

STEPS: dict[str, tuple[Any, str, bool]] = {
    "before a record is stored": (OutboxFile, "append", False),
    "after a record is stored": (OutboxFile, "append", True),
    "before a transaction begins": (outbox_file._Transaction, "__enter__", False),
    "inside a transaction": (outbox_file._Transaction, "__exit__", False),
    "after a transaction": (outbox_file._Transaction, "__exit__", True),
    "before a record is sent": (OutboxQueue, "_offer", False),
    "after a record is sent": (OutboxQueue, "_offer", True),
    "before an acknowledgement counts": (OutboxQueue, "_answered", False),
    "after an acknowledgement counts": (OutboxQueue, "_answered", True),
    "before records are deleted": (OutboxFile, "remove_below", False),
    "after records are deleted": (OutboxFile, "remove_below", True),
    "before a position is stored": (OutboxFile, "store_position", False),
    "after a position is stored": (OutboxFile, "store_position", True),
}
"""Step -> where it is, and whether the process ends after it."""


def change(number: int) -> DataChange:
    return DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k%d" % (number % KEYS),
        commit_timestamp=number + 1,
        entries=(SetCell("f", b"q", b"v" * 50),),
    )


def kill_at(step: str, count: int) -> None:
    owner, name, is_after = STEPS[step]
    function = getattr(owner, name)
    left = [count]

    def counted(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if not left[0] and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **named)
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def produce(servers: str, outbox: Path, changes: int) -> None:
    kafka = KafkaConfig(servers, {"reconnect.backoff.max.ms": "100"})
    with ChangeProducer(kafka, FACTS, outbox=outbox, heartbeat_s=1) as producer:
        # The mock cluster cannot be read by time, so only the outbox has a token.
        token = producer._queue.token("p")  # type: ignore[union-attr]
        start = 0 if token is None else int(token)
        print(f"from {start}", flush=True)
        for number in range(start, changes, 5):
            producer.send_many(map(change, range(number, min(number + 4, changes))))
            if number + 4 < changes:
                producer.send(change(number + 4))
            if number % HEARTBEAT_EVERY == HEARTBEAT_EVERY - 5:
                producer.send(Heartbeat("p", number + 5, b"%d" % (number + 5)))
        print("sent", flush=True)
        producer.flush()
        print("done", flush=True)


def fill(servers: str, outbox: Path) -> None:
    client.QUEUE_TIMEOUT_S = 0.3  # type: ignore[misc]
    with ChangeProducer(KafkaConfig(servers), FACTS, outbox=outbox) as producer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        number = 0
        try:
            while True:
                producer.send(change(number))
                number += 1
        except QueueFullError as error:
            print(f"{error.code} {error.cause}", flush=True)
        print(f"undelivered: {[*producer.undelivered()] == [change(number)]}", flush=True)
        sys.stdin.readline()  # the brokers answer again, and the disk has space
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        while True:
            try:
                producer.send(change(number))
                break
            except QueueFullError:
                producer.poll(0.1)  # the client has not reached the brokers yet
        producer.flush()
        print(f"sent {number + 1}", flush=True)


if __name__ == "__main__":
    servers, outbox, changes, step, count = sys.argv[1:]
    if step == "full":
        fill(servers, Path(outbox))
    else:
        if step != "none":
            kill_at(step, int(count))
        produce(servers, Path(outbox), int(changes))
