"""`connector partitions`: which partitions delay the low watermark of a stream; close one that does
not end by itself (WMK-8, WMK-12).

Names and keys came from outside: all of it is escaped before it reaches the terminal.
"""

from __future__ import annotations

import click

from connector.cli import settings
from connector.cli.terminal import console, escaped, out, say, shown_bytes, table
from connector.records.json_view import to_line
from connector.records.views import view_of_time
from connector.reports.stream_status import PartitionStatus
from connector.services.partitions import close_partition, partitions
from connector.text import counted, duration
from connector.watermarks.stream_partition import KeyRange


@click.group()
def command() -> None:
    """List the stream partitions of a stream; close one that does not end by itself."""


@command.command("list")
@click.argument("stream", required=False)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per line for each stream partition.",
)
@click.pass_context
def list_(ctx: click.Context, stream: str | None, as_json: bool) -> None:
    """Show the active stream partitions of STREAM: the low watermark of each, its last move, and
    the partitions that it waits for.
    """
    found = partitions(settings.load(ctx), stream)
    if as_json:
        for status in found.partitions:
            out(to_line(status.to_json()))
    elif found.partitions:
        _print(found.partitions, found.now)
    low = found.low_watermark
    complete = "no low watermark yet" if low is None else f"complete below {view_of_time(low)}"
    say(
        f"{counted(len(found.partitions), 'stream partition')} of {found.stream}, {complete}, by"
        f" ingest batch {found.ingest_batch}"
    )


def _print(found: list[PartitionStatus], now: int) -> None:
    shown = table(
        "stream partition", "low watermark", "delayed by", "since", "roots", "row keys", "waits for"
    )
    for status in found:
        since = duration(max(0, now - status.advanced_at) / 1_000_000)
        shown.add_row(
            escaped(status.name),
            "" if status.low_watermark is None else str(view_of_time(status.low_watermark)),
            str(status.lagging_partition),
            f"{since}, stalled" if status.is_stalled else since,
            escaped(", ".join(status.roots)) or "undeclared",
            _range(status.key_range),
            "ended" if status.is_over else escaped(", ".join(status.waits_for)),
        )
    console().print(shown)


def _range(keys: KeyRange | None) -> str:
    if keys is None:
        return ""
    return (
        f"{shown_bytes(keys.start, 20) or 'first'} to"
        f" {'last' if keys.end is None else shown_bytes(keys.end, 20)}"
    )


@command.command()
@click.argument("stream")
@click.argument("name", metavar="NAME")
@click.option("--why", required=True, help="The reason. It is kept with your name and the time.")
@click.pass_context
def close(ctx: click.Context, stream: str, name: str, why: str) -> None:
    """Close stream partition NAME of STREAM: it no longer delays the low watermark. A closed
    partition cannot come back.

    Ingest closes it with its next batch, within ten seconds (90 in an object store) if there is
    nothing to read, or when it runs again. Records that the partition still sends are late, and
    are applied.
    """
    if not why.strip():
        raise click.UsageError("give the reason with --why")
    asked = close_partition(settings.load(ctx), stream, name, why=why)
    before = asked.request
    if asked.is_new:
        say(
            f"{name} of {before.stream} closes with the next batch; to check it: connector"
            f" partitions list {before.stream}"
        )
    else:
        say(
            f"{before.made_by} requested this at {view_of_time(before.made_at)}"
            f" ({before.reason or 'without a reason'}); ingest has not closed it yet"
        )
