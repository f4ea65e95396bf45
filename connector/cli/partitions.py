"""`connector partitions`: who holds the low watermark of a stream, and the end of one that does not end by itself (WMK-8, WMK-12).

Names and keys came from outside: all of it is escaped before it reaches the terminal.
"""

from __future__ import annotations

import click

from connector.cli import settings
from connector.cli.status import duration
from connector.cli.terminal import console, escaped, out, say, shown_bytes, table
from connector.clock import now_us
from connector.errors import ConfigError
from connector.records.json_view import to_line
from connector.records.views import view_of_time
from connector.state.overrides import ClosePartition
from connector.state.stream_status import PartitionStatus, partition_statuses
from connector.text import counted, nearest
from connector.watermarks.stream_partition import KeyRange


@click.group()
def command() -> None:
    """List the stream partitions of a stream; end one that does not end by itself."""


@command.command("list")
@click.argument("stream", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each stream partition.")
@click.pass_context
def list_(ctx: click.Context, stream: str | None, as_json: bool) -> None:
    """Show the stream partitions of STREAM that are not over: how far each is, who holds it, since when, and whom it waits for."""
    from connector.lake.state_reader import progress_of

    config = settings.load(ctx)
    of, now = settings.stream(config, stream), now_us()
    progress = progress_of(config.warehouse, of.name, with_frontier=True)
    found = partition_statuses(progress.frontier, now, of.stall_after_s)
    if as_json:
        for status in found:
            out(to_line(status.to_json()))
    elif found:
        _print(found, now)
    low = progress.low_watermark
    complete = "no low watermark yet" if low is None else f"complete below {view_of_time(low)}"
    say(f"{counted(len(found), 'stream partition')} of {of.name}, {complete}, by ingest batch {progress.ingest_batch}")


def _print(found: list[PartitionStatus], now: int) -> None:
    shown = table("stream partition", "low watermark", "held by", "since", "roots", "row keys", "waits for")
    for status in found:
        since = duration(max(0, now - status.advanced_at) / 1_000_000)
        shown.add_row(
            escaped(status.name),
            "" if status.low_watermark is None else str(view_of_time(status.low_watermark)),
            str(status.lagging_partition),
            f"{since}, stalled" if status.is_stalled else since,
            escaped(", ".join(status.roots)) or "undeclared",
            _range(status.key_range),
            "over" if status.is_over else escaped(", ".join(status.waits_for)),
        )
    console().print(shown)


def _range(keys: KeyRange | None) -> str:
    if keys is None:
        return ""
    return f"{shown_bytes(keys.start, 20) or 'first'} to {'last' if keys.end is None else shown_bytes(keys.end, 20)}"


@command.command()
@click.argument("stream")
@click.argument("name", metavar="NAME")
@click.option("--reason", required=True, help="Why; it is kept, with who and when.")
@click.pass_context
def end(ctx: click.Context, stream: str, name: str, reason: str) -> None:
    """End stream partition NAME of STREAM: it holds the low watermark no more, and a name that has ended does not come back.

    Ingest takes the end with its next batch, where nothing is to be read within ten seconds, or when it runs again. What the stream
    partition still sends is late, and applied.
    """
    from connector.lake.overrides import Overrides
    from connector.lake.state_reader import progress_of

    if not reason.strip():
        raise click.UsageError("say why with --reason")
    config = settings.load(ctx)
    of, overrides = settings.stream(config, stream), Overrides(config.warehouse)
    progress = progress_of(config.warehouse, of.name, with_frontier=True)
    frontier = progress.frontier
    known = {*frontier.partitions, *of.partitions} - frontier.ended.keys()
    if name not in known:
        has_ended = f", it ended at {view_of_time(frontier.ended[name].at)}" if name in frontier.ended else ""
        remedy = nearest(name, known) or f"connector partitions list {of.name} shows those that are not over"
        raise ConfigError(f'"{name}" is no stream partition of {of.name} that is not over{has_ended}', "", remedy)
    before = next((override for override in overrides.ends(of.name, above=progress.closed_to) if override.stream_partition == name), None)
    if before is not None:
        say(f"its end was asked for at {view_of_time(before.made_at)} by {before.made_by} ({before.reason}); ingest has not taken it yet")
        return
    overrides.add_closed(ClosePartition(progress.closed_to + 1, of.name, name, reason, now_us(), settings.who()))
    say(f"{name} of {of.name} ends with the next batch; connector partitions list {of.name} shows when it is gone")
