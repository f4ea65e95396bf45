"""A program that fills a pending write stream and commits it, and that may be killed on the way
(WRS-5 to WRS-8, WRS-13, WRS-14).

    python -m tests.integration.write_stream_process SERVERS TOPIC WHEN COUNT

WHEN is `before` or `after`: the process ends by SIGKILL around the COUNT-th call that commits a
Kafka transaction. With `never` it goes on, and prints the commit timestamp.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from connector.config.settings import KafkaConfig
from connector.kafka import Batching, WriteSession, transactions
from connector.kafka.write_streams.commit import commit_streams
from connector.records.model import SetCell

ROWS = 50
ROWS_PER_APPEND = 10


def kill_at(when: str, count: int) -> None:
    # Readers wait for the transaction of a dead program, which ends by this time-out.
    transactions.TIMEOUT_S = 5.0  # type: ignore[misc]
    commit = transactions.commit
    left = [count]

    def counted(producer: Any) -> Any:
        left[0] -= 1
        if not left[0] and when == "before":
            producer.flush(10)  # the records are in the topic, and no reader sees them
            os.kill(os.getpid(), signal.SIGKILL)
        result = commit(producer)
        if not left[0] and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    transactions.commit = counted


def produce(servers: str, topic: str) -> int:
    kafka = KafkaConfig(servers)
    with WriteSession(kafka, topic, "job", batching=Batching(linger_s=0)) as session:
        stream = session.stream("rows", kind="pending")
        for offset in range(stream.next_offset(), ROWS, ROWS_PER_APPEND):
            rows = [
                stream.row(
                    table="t", row_key=b"%d" % number, entries=[SetCell("f", b"q", b"%d" % number)]
                )
                for number in range(offset, offset + ROWS_PER_APPEND)
            ]
            stream.append(rows, offset).result(60)
        assert stream.finalize() == ROWS
    return commit_streams(kafka, topic, ["job/rows"])


if __name__ == "__main__":
    servers, topic, when, count = sys.argv[1:]
    if when != "never":
        kill_at(when, int(count))
    print(produce(servers, topic))
