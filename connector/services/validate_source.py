"""Check whether the bridge of a stream would work here and now (SRC-8). `validate_config` yields
these findings, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from connector.errors import ConnectorError
from connector.errors.kafka import source_foreign, source_transactions_split
from connector.reports.bridge_status import PROVIDE_TRANSACTIONS, lost_promises
from connector.text import FEW, counted

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig

SourceFinding = tuple[Literal["ok", "warning"], str] | ConnectorError


def source_findings(config: ConnectorConfig, stream: StreamConfig) -> Iterator[SourceFinding]:
    """Yield the findings about the source of a stream: a level and a text, or an error."""
    from connector.kafka.bridge.checks import check_source

    if (source := stream.source) is None:
        return
    name = f"streams.{stream.name}.source"
    if lost := lost_promises(source.format, source.transactions):
        yield "warning", f"{name}: {lost}"
    elif not source.heartbeats:
        yield (
            "warning",
            (
                f"{name}: without a heartbeat table, the low watermark stays where it is while the"
                " database is silent. Set heartbeat.action.query in Debezium, and heartbeats here"
            ),
        )
    check = check_source(config, source)
    for pattern in source.topics:
        if not any(source.matches(pattern, topic) for topic in check.topics):
            text = f"{name}: no topic is {pattern} yet. The bridge reads it when it appears"
            yield "warning", text
    if source.transactions and not check.ends:
        text = f"{name}: there is no topic {source.transactions} yet: no transaction is published"
        yield "warning", text
    elif check.ends > 1:
        yield source_transactions_split(source.transactions, check.ends)
    if check.without_transaction and source.transactions:
        row = check.without_transaction[0]
        yield "warning", f"{name}: {row} has no transaction. {PROVIDE_TRANSACTIONS}"
    if check.compacted and source.format.is_debezium:
        names = ", ".join(check.compacted[:FEW])
        yield (
            "warning",
            (
                f"{name}: compaction may delete events of {names} before they are read. Set"
                " cleanup.policy=delete"
            ),
        )
    if check.unreadable and len(check.unreadable) == check.newest:
        yield source_foreign(stream.name, source.format, check.unreadable[0])
    elif check.unreadable:
        yield (
            "warning",
            (
                f"{name}: {len(check.unreadable)} of {check.newest} newest records cannot be read,"
                f" for example {check.unreadable[0]}. They become dead letters"
            ),
        )
    else:
        topics, records = (
            counted(len(check.topics), "topic"),
            counted(check.newest, "newest record"),
        )
        yield "ok", f"{name}: {topics}, and the {records} can be read"
