"""Following what was replayed until the tables show it (DLQ-14)."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from connector.dead_letters.envelope import replay_claim
from connector.dead_letters.filter import LetterFilter
from connector.services.events import OnEvent, info, log_event
from connector.services.warehouses import warehouse_of
from connector.text import counted

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.kafka.dead_letters.queue import DeadLetterQueue
    from connector.state.table_state import TableState

LOOK_EVERY_S: Final = 1.0
SAY_EVERY_S: Final = 15.0


def wait_for_tables(
    config: ConnectorConfig,
    stream: StreamConfig,
    queue: DeadLetterQueue,
    began: int,
    selection: str,
    on_event: OnEvent = log_event,
) -> int:
    """Return once all that is in the change topic now is ingested, and in every table of the
    stream: 0. Return 1 as soon as it is ingested if a replay since `began` (microseconds), or one
    of the same `selection`, was rejected again, which is said. Rows that wait for other letters are
    not waited for. Ctrl-C ends the waiting, and nothing else.

    Raises `TableError` if the warehouse cannot be read, `BrokerError`.
    """
    from connector.kafka import topics
    from connector.lake.state_reader import batch_with, table_state_of

    ends = topics.end_offsets(config.kafka, topics.describe(config.kafka, stream.topic))
    tables = [name for name, table in config.tables.items() if table.stream == stream.name]
    said_at = time.monotonic()
    batch, behind = None, list[str]()
    while True:
        if batch is None:
            batch = batch_with(warehouse_of(config), stream.name, ends)
            if batch is not None and _are_rejected_again(queue, began, selection, on_event):
                return 1
        if batch is not None:
            behind = [
                name
                for name in tables
                if not has_batch(table_state_of(warehouse_of(config), name), batch)
            ]
            if not behind:
                break
        waits_for = (
            "ingest; check that the pipeline runs" if batch is None else f"table {behind[0]}"
        )
        if time.monotonic() - said_at > SAY_EVERY_S:
            said_at = time.monotonic()
            on_event(info("WAITING", f"waiting for {waits_for}"))
        time.sleep(LOOK_EVERY_S)
    if _are_rejected_again(queue, began, selection, on_event):
        return 1
    on_event(info("REPLAYS_APPLIED", f"all tables of {stream.name} contain the replayed changes"))
    return 0


def has_batch(table: TableState, batch: int) -> bool:
    """Whether a table contains a batch, without the rows that dead letters block."""
    return table.complete_to_batch >= batch or (
        bool(table.blocked_rows) and table.to_batch >= batch
    )


def _are_rejected_again(
    queue: DeadLetterQueue, began: int, selection: str, on_event: OnEvent
) -> bool:
    """Whether one of the replays since `began`, or of that `selection`, is a letter again, in
    ingest or in a table; it is said.
    """
    ledger, again = queue.ledger(), Counter[str]()
    for letter, _ in queue.letters(LetterFilter(), ledger):
        claim = replay_claim(letter.headers)
        if claim is not None and any(
            entry.at >= began or entry.selection == selection for entry in ledger.history(claim[0])
        ):
            again[letter.reason] += 1
    if again:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in again.most_common())
        on_event(
            info(
                "REJECTED_AGAIN",
                f"{counted(again.total(), 'replay')} rejected again: {reasons}; list the dead"
                " letters to see why",
            )
        )
    return bool(again)
