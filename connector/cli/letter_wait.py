"""Following what was replayed until the tables show it (DLQ-14)."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from connector.cli.terminal import counted, say
from connector.deadletter import replay_claim
from connector.letter_filter import LetterFilter

if TYPE_CHECKING:
    from connector.config import ConnectorConfig, StreamConfig
    from connector.kafka.dead_letter_queue import DeadLetterQueue

LOOK_EVERY_S: Final = 1.0
SAY_EVERY_S: Final = 15.0


def wait_for_tables(config: ConnectorConfig, stream: StreamConfig, queue: DeadLetterQueue, began: int) -> int:
    """Return once all that is in the change topic now is ingested, and in every table of the stream: 0, or 1 if a replay since `began`
    (microseconds) was rejected again, which is said. Ctrl-C ends the waiting, and nothing else.

    Raises `TableError` if the warehouse cannot be read, `BrokerError`.
    """
    from connector.kafka import topics
    from connector.lake.standing import batch_with, bookkeeping_of

    ends = topics.end_offsets(config.kafka, topics.describe(config.kafka, stream.topic))
    tables = [name for name, table in config.tables.items() if table.stream == stream.name]
    waits_for, said_at = "ingest", time.monotonic()
    while True:
        batch = batch_with(config.warehouse, stream.name, ends)
        behind = [] if batch is None else [name for name in tables if bookkeeping_of(config.warehouse, name).complete_to_batch < batch]
        if batch is not None and not behind:
            break
        waits_for = "ingest: is `connector run` at work?" if batch is None else f"table {behind[0]}"
        if time.monotonic() - said_at > SAY_EVERY_S:
            said_at = time.monotonic()
            say(f"waiting for {waits_for}")
        time.sleep(LOOK_EVERY_S)
    ledger = queue.ledger()
    again: Counter[str] = Counter()
    for letter, _ in queue.letters(LetterFilter(since=began), ledger):
        claim = replay_claim(letter.headers)
        if claim is not None and any(entry.at >= began for entry in ledger.story(claim[0])):
            again[letter.reason] += 1
    if again:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in again.most_common())
        say(f"{counted(again.total(), 'replay')} rejected again: {reasons}; see connector dead-letters list")
        return 1
    say(f"all tables of {stream.name} have what was replayed")
    return 0
