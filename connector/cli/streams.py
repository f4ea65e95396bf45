"""`connector partitions` and `connector transactions`: what delays a stream and its tables, and how
to end that (WMK-8, WMK-12, ING-2). `connector stream`: how it goes on behind lost records (RUN-7).

Names, ids and keys come from outside: they are escaped before they reach the terminal.
"""

from __future__ import annotations

import click

from connector.cli.layout import Table
from connector.cli.parameters import (
    MOMENT,
    check_why,
    config_and_stream,
    json_option,
    stream_option,
    why_option,
)
from connector.cli.remedies import command_line
from connector.cli.terminal import err, escaped, out, show_table, shown_bytes, table
from connector.records.json_view import to_line
from connector.records.views import view, view_of_time
from connector.services.requests import (
    PartitionList,
    accept_loss,
    close_partition,
    incomplete_transactions,
    lost_records,
    release_transaction,
)
from connector.services.requests import partitions as partitions_of
from connector.state.accepted_losses import text_of
from connector.text import counted, duration
from connector.watermarks.stream_partition import KeyRange


@click.group()
def partitions() -> None:
    """List the stream partitions of a stream; close one that does not end by itself."""


@partitions.command("list")
@stream_option
@json_option("Print one JSON object per line for each stream partition.")
@click.pass_context
def list_partitions(ctx: click.Context, stream: str | None, *, as_json: bool) -> None:
    """Show the active stream partitions of a stream: the low watermark of each, its last move, and
    the partitions that it waits for.
    """
    config, of_stream = config_and_stream(ctx, stream)
    listed = partitions_of(config, of_stream.name)
    if as_json:
        for status in listed.partitions:
            out(to_line(status.to_json()))
    elif listed.partitions:
        show_table(table_of_partitions(listed))
    low = listed.low_watermark
    complete = "no low watermark yet" if low is None else f"complete below {view_of_time(low)}"
    err(
        f"{counted(len(listed.partitions), 'stream partition')} of {listed.stream}, {complete}, by"
        f" ingest batch {listed.ingest_batch}"
    )


def table_of_partitions(listed: PartitionList) -> Table:
    """The stream partitions as a table, those that delay the low watermark first."""
    shown = table(
        "stream partition", "low watermark", "delayed by", "since", "roots", "row keys", "waits for"
    )
    for status in listed.partitions:
        since = duration(max(0, listed.now - status.advanced_at) / 1_000_000)
        shown.add_row(
            escaped(status.name),
            "" if status.low_watermark is None else str(view_of_time(status.low_watermark)),
            str(status.lagging_partition),
            f"{since}, stalled" if status.is_stalled else since,
            escaped(", ".join(status.roots)) or "undeclared",
            _range(status.key_range),
            "ended" if status.is_over else escaped(", ".join(status.waits_for)),
        )
    return shown


def _range(keys: KeyRange | None) -> str:
    if keys is None:
        return ""
    return (
        f"{shown_bytes(keys.start, 20) or 'first'} to"
        f" {'last' if keys.end is None else shown_bytes(keys.end, 20)}"
    )


@partitions.command()
@stream_option
@click.argument("name", metavar="NAME")
@why_option
@click.pass_context
def close(ctx: click.Context, stream: str | None, name: str, why: str) -> None:
    """Close stream partition NAME: it no longer delays the low watermark. A closed partition cannot
    come back.

    Ingest closes it with its next batch, within ten seconds (90 in an object store) if there is
    nothing to read, or when it runs again. Records that the partition still sends are late, and
    are applied.
    """
    config, of_stream = config_and_stream(ctx, stream)
    request, is_new = close_partition(config, of_stream.name, name, why=why)
    if is_new:
        check = command_line("partitions list", stream=request.stream)
        err(f"{name} of {request.stream} closes with the next batch; to check it: {check}")
    else:
        err(
            f"{request.made_by} requested this at {view_of_time(request.made_at)}"
            f" ({request.reason or 'without a reason'}); ingest has not closed it yet"
        )


@click.group()
def transactions() -> None:
    """List the transactions that lack records; release one that tables wait for."""


@transactions.command("list")
@stream_option
@json_option("Print one JSON object per line for each transaction.")
@click.pass_context
def list_transactions(ctx: click.Context, stream: str | None, *, as_json: bool) -> None:
    """Show the transactions of a stream that lack records, the oldest first.

    Ingest looks for them once a minute, below the low watermark of the stream.
    """
    config, of_stream = config_and_stream(ctx, stream)
    incomplete = incomplete_transactions(config, of_stream.name)
    if as_json:
        for transaction in incomplete:
            out(to_line(view(transaction)))
    elif incomplete:
        shown = table("transaction", "commit timestamp", "missing", "found", "released")
        for transaction in incomplete:
            shown.add_row(
                escaped(transaction.server_transaction_id),
                str(view_of_time(transaction.commit_timestamp)),
                f"{transaction.missing:,}",
                str(view_of_time(transaction.found_at)),
                "yes" if transaction.is_released else "",
            )
        show_table(shown)
    err(counted(len(incomplete), "incomplete transaction"))


@transactions.command()
@stream_option
@click.argument("transaction", metavar="ID")
@click.option(
    "--commit-timestamp",
    type=MOMENT,
    help="That of the transaction, if several incomplete ones have this ID.",
)
@why_option
@click.pass_context
def release(
    ctx: click.Context,
    stream: str | None,
    transaction: str,
    commit_timestamp: int | None,
    why: str,
) -> None:
    """Have no table wait for transaction ID any more. Tables then show the records that are there.

    Ingest takes the request within ten seconds (90 in an object store), or when it runs again.
    """
    config, of_stream = config_and_stream(ctx, stream)
    request = release_transaction(
        config,
        of_stream.name,
        transaction,
        commit_timestamp=commit_timestamp,
        why=why,
    )
    check = command_line("transactions list", stream=request.stream)
    err(f"{escaped(transaction)} is released with the next check; to check it: {check}")


@click.group()
def stream() -> None:
    """Go on behind records of a stream that Kafka deleted unread."""


@stream.command("accept-loss")
@stream_option
@click.option("--why", help="The reason. Without it, the lost offsets are only shown.")
@click.pass_context
def accept_loss_command(ctx: click.Context, stream: str | None, why: str | None) -> None:
    """Have ingest of a stream go on behind the records that Kafka deleted before they were read.

    `status` and `audit` show the loss from then on. No table of the stream is a consistent cut
    until you confirm it: connector table confirm.
    """
    config, of_stream = config_and_stream(ctx, stream)
    name = of_stream.name
    if why is None:
        out(text_of(lost_records(config, name)))
        err("nothing is accepted yet: to go on without these records, give the reason with --why")
        return
    check_why(why)
    request = accept_loss(config, name, why=why)
    err(f"accepted: {text_of(request.lost)}; ingest goes on behind them when it starts again")
