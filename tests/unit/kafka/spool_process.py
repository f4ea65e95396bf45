"""A producer with a spool that is killed at a step, as a process of its own (PUB-3).

    python -m tests.unit.kafka.spool_process SERVERS SPOOL CHANGES STEP COUNT

STEP is a name of `STEPS`, and the process ends by SIGKILL when this step comes for the COUNT-th
time. With `none` it goes on until all changes are acknowledged. With `full` the disk is full after
200 kB: the process prints what `send` raised.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from connector.config.settings import KafkaConfig
from connector.errors import SpoolFullError
from connector.kafka.produce import spool_file
from connector.kafka.produce.producer import ChangeProducer
from connector.kafka.produce.spool_file import SpoolFile
from connector.kafka.produce.spool_queue import SpoolQueue
from connector.kafka.produce.spool_rows import Rows
from connector.kafka.produce.spool_sender import SpoolSender
from connector.kafka.topics import TopicFacts
from connector.records.model import DataChange, Heartbeat, SetCell

FACTS = TopicFacts("t", "AAAAAAAAAAAAAAAAAAAAAA", 2, 1, "delete", "LogAppendTime", 10**9, 1_000_000)
KEYS = 7
HEARTBEAT_EVERY = 25

STEPS: dict[str, tuple[Any, str, bool]] = {
    "before a write": (SpoolFile, "write", False),
    "after a write": (SpoolFile, "write", True),
    "inside a write": (spool_file, "_write_content", False),
    "before the commit": (spool_file, "_write_content", True),
    "before the move to the spool": (SpoolQueue, "_trip", False),
    "after the move to the spool": (SpoolQueue, "_trip", True),
    "before a record is sent from the spool": (SpoolSender, "_send_one", False),
    "after a record was sent from the spool": (SpoolSender, "_send_one", True),
    "before an acknowledgement counts": (Rows, "acknowledged", False),
    "after an acknowledgement counted": (Rows, "acknowledged", True),
    "before the low number moves": (Rows, "advance", False),
    "before records go directly again": (SpoolQueue, "_send_directly_again", False),
    "after records go directly again": (SpoolQueue, "_send_directly_again", True),
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
    place, name, is_after = STEPS[step]
    function = getattr(place, name)
    left = [count]

    def counted(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if not left[0] and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **named)
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(place, name, counted)


def produce(servers: str, spool: Path, changes: int) -> None:
    kafka = KafkaConfig(servers, {"message.timeout.ms": "20000", "reconnect.backoff.max.ms": "100"})
    with ChangeProducer(
        kafka, FACTS, spool=spool, spool_after_s=0.1, heartbeat_s=1, queue_timeout_s=10
    ) as producer:
        assert producer._spool is not None
        # The mock cluster cannot be read by time, so only the spool has a token.
        position = producer._spool.file.position("p")
        start = 0 if position is None else int(position[1])
        print(f"from {start}", flush=True)
        for number in range(start, changes):
            producer.send(change(number))
            if number % HEARTBEAT_EVERY == HEARTBEAT_EVERY - 1:
                producer.send(Heartbeat("p", number + 1, b"%d" % (number + 1)))
            if number % 100 == 99:
                producer.flush(to_disk=True)
        print("sent", flush=True)
        producer.flush()
        print("done", flush=True)


def fill(servers: str, spool: Path) -> None:
    with ChangeProducer(
        KafkaConfig(servers), FACTS, spool=spool, spool_after_s=0.1, spool_full="raise"
    ) as producer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        number = 0
        try:
            while True:
                producer.send(change(number))
                number += 1
                producer.poll(0.0005)
        except SpoolFullError as error:
            print(f"{error.code} {error.cause}", flush=True)
        failed = producer.undelivered()
        print(f"all there: {change(number) in failed}", flush=True)
        sys.stdin.readline()  # the brokers answer again
        for record in sorted(
            (one for one in failed if isinstance(one, DataChange)), key=lambda c: c.commit_timestamp
        ):
            while True:
                try:
                    producer.send(record)
                    break
                except SpoolFullError:
                    producer.poll(0.1)  # the client has not reached the brokers yet
        producer.flush()
        print(f"sent {number + 1}", flush=True)


if __name__ == "__main__":
    servers, spool, changes, step, count = sys.argv[1:]
    if step == "full":
        fill(servers, Path(spool))
    else:
        if step != "none":
            kill_at(step, int(count))
        produce(servers, Path(spool), int(changes))
