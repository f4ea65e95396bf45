"""A program that ends without `close`, as a process of its own (PUB-8).

    python -m tests.unit.kafka.unclosed_process SERVERS WHAT HOW

WHAT is a name of `OPENED`: what the program leaves open. HOW is one of `ENDINGS`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from connector.config.settings import KafkaConfig
from connector.dead_letters.envelope import consumer_letter, dead_letter_topic
from connector.kafka import (
    Batching,
    ChangeConsumer,
    ChangeProducer,
    DeadLetterPublisher,
    Group,
    WriteSession,
)
from connector.kafka.produce.producer import CopyingProducer
from connector.records.model import DataChange, SetCell
from connector.records.rejection import Position
from connector.validation import KafkaRecord
from connector.write_streams.model import catalog_topic
from tests.changes import part
from tests.unit.mock_cluster import FACTS, answer_topic_requests

ROWS = 50
CATALOG = replace(FACTS, topic=catalog_topic("t"), kafka_partitions=1, cleanup_policy="compact")
LETTERS = replace(FACTS, topic=dead_letter_topic("t"), max_message_bytes=2_000_000)


def producer(kafka: KafkaConfig) -> ChangeProducer:
    made = CopyingProducer(kafka, FACTS)
    for number in range(ROWS):
        made.send(part(number + 1))
    return made


def producer_with_outbox(kafka: KafkaConfig) -> ChangeProducer:
    made = CopyingProducer(kafka, FACTS, outbox=os.environ["OUTBOX"])
    for number in range(ROWS):
        made.send(part(number + 1))
    return made


def transaction(kafka: KafkaConfig) -> Any:
    made = CopyingProducer(kafka, FACTS, transactional_id="job")
    block = made.transaction()
    block.__enter__()
    for number in range(ROWS):
        made.send(part(number + 1))
    return made, block


def closed_producer(kafka: KafkaConfig) -> ChangeProducer:
    made = producer(kafka)
    made.close()
    return made


def session(kafka: KafkaConfig) -> WriteSession:
    made = WriteSession(kafka, FACTS, "job", batching=Batching(linger_s=5))
    stream = made.stream("rows", kind="pending")
    stream.append([row(stream, number) for number in range(ROWS)], 0)
    return made


def row(stream: Any, number: int) -> DataChange:
    change: DataChange = stream.row(
        table="t", row_key=b"k%d" % number, entries=[SetCell("f", b"q", b"v", 1)]
    )
    return change


def dead_letters(kafka: KafkaConfig) -> DeadLetterPublisher:
    made = DeadLetterPublisher(kafka, FACTS.topic)

    def letters() -> Any:
        for number in range(ROWS):
            source = KafkaRecord(Position("t", FACTS.topic_id, 0, number), 1, b"k", b"v", ())
            yield consumer_letter(source, "g", "why", now=1)
        raise EOFError("the source of the letters failed")

    try:
        made.publish(letters())
    except EOFError:
        print("publish has failed", flush=True)
    return made


def reader(kafka: KafkaConfig) -> ChangeConsumer:
    sent = producer(kafka)
    sent.close()
    made = ChangeConsumer(kafka, FACTS.topic, start=Group("g"))
    read = 0
    while read < ROWS:
        read += made.poll(1) is not None
        if read == ROWS - 7:
            made.commit()
    return made


OPENED: dict[str, Callable[[KafkaConfig], Any]] = {
    "producer": producer,
    "producer with an outbox": producer_with_outbox,
    "transaction": transaction,
    "closed producer": closed_producer,
    "session": session,
    "dead letters": dead_letters,
    "reader": reader,
}


def ends(how: str, opened: Callable[[], Any]) -> None:
    if how == "dropped":
        opened()
        return
    if how == "thread":
        kept: list[Any] = []
        thread = threading.Thread(target=lambda: kept.append(opened()))
        thread.start()
        thread.join()
        globals()["kept"] = kept
        return
    if how == "worker":
        context = multiprocessing.get_context("fork")
        worker = context.Process(target=ends, args=("last line", opened))
        worker.start()
        worker.join()
        sys.exit(worker.exitcode)
    globals()["kept"] = opened()
    if how == "interrupted":
        raise KeyboardInterrupt
    if how == "exception":
        raise LookupError("the program has a bug")
    if how == "sys.exit":
        sys.exit(0)
    if how == "forked":
        if os.fork() == 0:
            del globals()["kept"]
            sys.exit(0)
        os.wait()
        os._exit(0)  # this process finishes nothing, so what arrives is from its child


ENDINGS = ("last line", "dropped", "thread", "worker", "exception", "sys.exit", "forked")


def main(servers: str, what: str, how: str) -> None:
    kafka = KafkaConfig(servers, {"linger.ms": "3000", "reconnect.backoff.max.ms": "100"})
    answer_topic_requests(FACTS, CATALOG, LETTERS, patch=setattr)
    ends(how, lambda: OPENED[what](kafka))


if __name__ == "__main__":
    main(*sys.argv[1:])
