"""The status of the bridge of a stream (SRC-8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from connector.records.views import Hidden, TimeOrNull, Viewed
from connector.reports.pipeline_status import PipelineStatus
from connector.sources.model import SourceFormat, Waiting
from connector.text import counted, duration, summarize_names

STALE_S = 60.0
"""A bridge without a heartbeat for so long does not run, or cannot reach Kafka."""

PROVIDE_TRANSACTIONS: Final = (
    "Such rows belong to no cut, and the low watermark stays where it is: set"
    " provide.transaction.metadata in Debezium"
)
"""What follows from a row without a transaction, and the remedy."""

ADD_KEY: Final = (
    "Give the table a primary key. If it has one, it was renamed or dropped before Debezium had"
    " read these rows: read it again with an incremental snapshot"
)
"""The remedy for rows without a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeStatus(Viewed):
    """How far a bridge has published its source.

    - `format` is that of the source.
    - `is_known`: Kafka has answered. Otherwise nothing else is known, and `problem` says why.
    - `lag` is the number of offsets in its topics that are not published.
    - `records_per_s` is the rate at which it published, by its last heartbeats.
    - `position_time` is the commit timestamp up to which everything is published, and
      `heartbeat_at` the time of its newest heartbeat (µs).
    - `waiting` says what it waits for, in words. `lacking` is the id of the transaction that lacks
      events, if it waits for one.
    - `missing_defaults` are fields by table that were added with a default: their older rows get no
      event.
    - `lost_promises` says which promises do not hold for such a source, or is empty.
    - `process` is whether it runs, by its record. A bridge that cannot write to the warehouse has
      none (RUN-1).
    """

    format: SourceFormat
    is_known: bool = False
    problem: Hidden[str] = "Kafka did not answer"
    lag: int = 0
    records_per_s: float | None = None
    position_time: TimeOrNull = 0
    heartbeat_at: TimeOrNull = 0
    waiting: str = ""
    lacking: str = ""
    missing_defaults: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lost_promises: str = ""
    process: PipelineStatus | None = None

    def down(self, now: int) -> str:
        """Return why it does not publish, although there is something to read. Empty: it does, or
        there is nothing.
        """
        if not self.lag:
            return ""
        process, sign_at, stale_us = self.process, self.heartbeat_at, STALE_S * 1e6
        if process is not None and process.is_running is False:
            # Heartbeats long after its end are those of a bridge without a record.
            is_other = now - sign_at <= stale_us < sign_at - (process.since or 0)
            return "" if process.is_done or is_other else process.text
        if process is not None and process.is_running:
            sign_at = max(sign_at, process.since or 0)
        is_silent = bool(sign_at) and now - sign_at > stale_us
        return f"no heartbeat for {duration((now - sign_at) / 1e6)}" if is_silent else ""

    def facts(self, now: int) -> Iterator[tuple[str, str]]:
        """Yield what `status` shows, as a name and a text."""
        if not self.is_known:
            yield "bridge", f"{self.format}: {self.problem}"
        elif not self.heartbeat_at:
            yield "bridge", f"{self.format}: it has published nothing yet"
        else:
            lag = f"{counted(self.lag, 'record')} behind"
            rate = "" if self.records_per_s is None else f", {self.records_per_s:,.0f} records/s"
            ago = duration(max(0, now - self.heartbeat_at) / 1e6)
            yield "bridge", f"{self.format}: {lag}{rate}, last heartbeat {ago} ago"
        if self.process is not None:
            yield "bridge", self.process.text_with("publishes")
        if self.waiting:
            yield "bridge waits", self.waiting
        if self.lost_promises:
            yield "bridge", self.lost_promises

    def hints(self, now: int) -> Iterator[str]:
        """Yield the problems that an operator must solve, with their remedies."""
        if why := self.down(now):
            yield f"the bridge does not publish: {why}"
        for table, fields in self.missing_defaults.items():
            yield (
                f"{table} has new columns with a default ({summarize_names(fields)}), and its older"
                " rows have none of these values, because the source sends no event for them:"
                f" signal an incremental snapshot of {table} to Debezium"
            )


def text_of_waiting(waiting: Waiting, now: int) -> str:
    """Return what a bridge waits for, and what an operator can do."""
    since = duration(max(0, now - waiting.since) / 1_000_000)
    what = f"transaction {waiting.transaction}, which ended {since} ago"
    if waiting.reason == "topic":
        return (
            f"there is no topic of transactions {waiting.transaction}: set"
            " provide.transaction.metadata in Debezium, and compare transactions of the source with"
            " the name of the topic"
        )
    if waiting.reason == "clock":
        return (
            f"{what}, has a commit time ahead of the clock of this machine: compare the clocks of"
            " the database, of Kafka and of this machine"
        )
    if waiting.reason == "snapshot":
        return f"{what}, waits until all is read that may come before it, such as a snapshot"
    if waiting.reason == "row":
        return (
            f"the row {waiting.transaction} of a snapshot, written {since} ago, waits until all is"
            " read that may come before it"
        )
    if waiting.reason == "end":
        return (
            f"transaction {waiting.transaction}, written {since} ago, has no end in the topic of"
            " transactions, so it is not known whether it is whole. If its end does not come,"
            " publish the transaction as it is"
        )
    if waiting.reason == "count":
        return (
            f"{what}, has other events than its end says, or two events with one number. Debezium"
            " before 3.6.1 counts again after a restart within a transaction, and a log that began"
            " again (RESET MASTER) uses ids again. Publish the transaction as it is, and then read"
            " its tables again with an incremental snapshot"
        )
    if waiting.reason == "again":
        return (
            f"Debezium sends old transactions again, from {waiting.transaction} on, and has not"
            " come to one that the bridge remembers. Nothing is lost. If it does not end, the log"
            " of the database began again: give Debezium another topic.prefix, and name the new"
            " topics in the source"
        )
    lacking = [
        f"{table} ({waiting.arrived.get(table, 0):,} of {count:,})"
        for table, count in waiting.counts.items()
        if waiting.arrived.get(table, 0) < count
    ]
    return (
        f"{what}, lacks {counted(waiting.missing, 'event')}"
        f"{f' of {summarize_names(lacking)}' if lacking else ''}: check that topics names the"
        " topics of all tables that Debezium captures, and that they have their records. If the"
        " events are lost, publish the transaction without them"
    )


def lost_promises(format_: SourceFormat, transactions: str) -> str:
    """Return which promises a source does not have, or an empty text (SRC-4)."""
    if not format_.is_debezium:
        return (
            "an upsert topic has the order of arrival: no cut over several tables is consistent,"
            " and times are those of Kafka"
        )
    if not transactions:
        return (
            "without a topic of transactions, no cut over several tables is consistent, the"
            " watermark of several Kafka partitions is that of arrival, and a truncation has no"
            " order with rows of other Kafka partitions. Set"
            " provide.transaction.metadata in Debezium, and transactions in the source"
        )
    return ""
