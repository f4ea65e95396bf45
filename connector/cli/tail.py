"""`connector tail`: records of a stream as the JSON view (REC-21, REC-22, SUB-1)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from connector.cli.parameters import MOMENT, START, config_and_stream, stream_option
from connector.cli.terminal import err, out
from connector.config.settings import ConnectorConfig, StreamConfig, UnknownTables
from connector.dead_letters.envelope import letter_id
from connector.records.json_view import to_json
from connector.records.rejection import Rejection
from connector.text import counted

if TYPE_CHECKING:
    from connector.kafka import (
        ChangeConsumer,
        ConsumerRecord,
        Late,
        Released,
        Staged,
        StreamSettings,
        WatermarkConsumer,
    )


@click.command()
@stream_option
@click.option(
    "--from",
    "start",
    type=START,
    default="beginning",
    show_default=True,
    help="beginning, end, a time with a time zone, or an age such as 10m.",
)
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Wait for more records instead of stopping at the current end.",
)
@click.option(
    "--start-commit",
    type=MOMENT,
    help="Only changes from this commit timestamp on. Use it instead of --from.",
)
@click.option(
    "--end-commit",
    type=MOMENT,
    help="Only changes up to this commit timestamp. Wait until the stream is complete up to it.",
)
@click.option(
    "--staged",
    is_flag=True,
    help="Also rows of write streams that wait for their release. Not with --start-commit.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many records.")
@click.pass_context
def command(
    ctx: click.Context,
    stream: str | None,
    start: Literal["beginning", "end"] | int,
    follow: bool,
    start_commit: int | None,
    end_commit: int | None,
    staged: bool,
    limit: int | None,
) -> None:
    """Print the records of a stream, one JSON object per line. `connector publish` can read them,
    except rows of write streams and releases.

    Records of one Kafka partition are in order. A release or truncation is printed once, although
    each Kafka partition has a copy of it. Records that would be rejected go to standard error, with
    the reason.

    With --end-commit, the command ends when the low watermark is above this time. For example,
    `--start-commit 2h --end-commit 1h` prints the changes that were committed in this hour.
    """
    from connector.kafka import ChangeConsumer, CommitRange, WatermarkConsumer

    config, source = config_and_stream(ctx, stream)
    options: dict[str, Any] = {
        "start": start,
        "staged": staged,
        "stream": _settings(config, source),
    }
    consumer: ChangeConsumer | WatermarkConsumer
    if start_commit is None and end_commit is None:
        consumer = ChangeConsumer(config.kafka, source.topic, bounded=not follow, **options)
    else:
        consumer = WatermarkConsumer(
            *(config.kafka, source.topic),
            commits=CommitRange(start_commit, end_commit),
            bounded=not follow and end_commit is None,
            **options,
        )
    with consumer:
        for warning in consumer.warnings:
            err(f"warning: {warning}")
        records, rejections = _print_records(consumer, limit)
    rejected = f"; would be rejected: {rejections:,}" if rejections else ""
    err(f"{counted(records, 'record')} of {source.topic}{rejected}")


def _print_records(
    consumer: ChangeConsumer | WatermarkConsumer, limit: int | None
) -> tuple[int, int]:
    """Print records until the end or the limit. Return their number, and that of rejections."""
    from connector.kafka import Watermark

    records = rejections = 0
    while not consumer.finished and (limit is None or records + rejections < limit):
        received = consumer.poll(0.2)
        if received is None:
            sys.stdout.flush()
        elif isinstance(received, Watermark):
            continue
        elif _print_record(received):
            records += 1
        else:
            rejections += 1
    return records, rejections


def _settings(config: ConnectorConfig, source: StreamConfig) -> StreamSettings:
    """The settings of the stream that decide which records would be rejected. Without declared
    tables, changes of all source tables are accepted (TBL-7).
    """
    from connector.kafka import StreamSettings

    declared = None
    if source.unknown_tables is not UnknownTables.KEEP:
        declared = frozenset(table.source for table in config.tables_of(source.name).values())
    roots = frozenset(source.partitions)
    return StreamSettings(config.registry, source.limits, declared, roots)


def _print_record(received: ConsumerRecord | Late | Released | Staged) -> bool:
    """Print a record; a rejection goes to standard error, and is False."""
    from connector.kafka import ConsumerRecord, Late

    if not isinstance(received, ConsumerRecord):
        out(to_json(received.change if isinstance(received, Late) else received.record, None))
        return True
    if isinstance(received.record, Rejection):
        reason = f"{received.record.reason} {received.record.rule}".rstrip()
        err(
            f"rejected: {letter_id(received.position)} {reason}: {received.record.detail}".replace(
                "\n", "\\n"
            )
        )
        return False
    out(to_json(received.record, received.kafka_partitions))
    return True
