"""Waits until a table shows the rows of a load (PUB-6)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from connector.errors import ConnectorError, ErrorCode
from connector.services.dead_letters.wait import LOOK_EVERY_S, SAY_EVERY_S, has_batch
from connector.services.events import OnEvent, info
from connector.services.warehouses import warehouse_of
from connector.write_streams.releases import Withheld

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig


def wait_for_rows(
    config: ConnectorConfig,
    stream: StreamConfig,
    table: str,
    write_stream: str,
    on_event: OnEvent,
) -> None:
    """Return once a table contains the released rows of a write stream.

    Raises `ConnectorError` if ingest withholds them, `TableError` if the warehouse cannot be read,
    `BrokerError`.
    """
    from connector.kafka import topics
    from connector.lake.state_reader import batch_with, table_state_of

    ends = topics.end_offsets(config.kafka, topics.describe(config.kafka, stream.topic))
    batch: int | None = None
    said_at = time.monotonic()
    while True:
        if batch is None:
            found = batch_with(warehouse_of(config), stream.name, ends)
            is_visible = found is not None and not _is_open(config, stream, write_stream)
            batch = found if is_visible else None
        if batch is not None and has_batch(table_state_of(warehouse_of(config), table), batch):
            return
        if time.monotonic() - said_at > SAY_EVERY_S:
            said_at = time.monotonic()
            is_read = batch is not None
            waits_for = f"table {table}" if is_read else "ingest; check that the pipeline runs"
            on_event(info("WAITING", f"waiting for {waits_for}"))
        time.sleep(LOOK_EVERY_S)


def _is_open(config: ConnectorConfig, stream: StreamConfig, write_stream: str) -> bool:
    """Whether a release of the write stream lacks rows. Raises `ConnectorError` if it is
    withheld.
    """
    from connector.lake.state_reader import progress_of

    of_stream = [
        release
        for release in progress_of(warehouse_of(config), stream.name).releases.open
        if any(one.stream == write_stream for one in release.ranges)
    ]
    if any(release.withheld is not Withheld.NO for release in of_stream):
        is_late = any(release.withheld is Withheld.TOO_LATE for release in of_stream)
        raise ConnectorError(
            ErrorCode.LOAD_WITHHELD,
            f"The rows of {write_stream} are committed, but ingest withholds all of them",
            "The horizon passed the time of the rows before they were ingested"
            if is_late
            else "Ingest rejected some of the rows",
            "Export the rows again, and load them while the pipeline runs"
            if is_late
            else "Look at the dead letters of the stream. Repair and replay them, or release the"
            " rows without them",
            stream=stream.name,
            write_stream=write_stream,
        )
    return bool(of_stream)
