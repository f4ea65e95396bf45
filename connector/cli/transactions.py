"""`connector transactions`: the transactions that lack records, and the release of one (ING-2).

Ids came from outside: all of them are escaped before they reach the terminal.
"""

from __future__ import annotations

import click

from connector.cli import settings
from connector.cli.parameters import MOMENT
from connector.cli.terminal import console, escaped, out, say, table
from connector.records.json_view import to_line
from connector.records.views import view, view_of_time
from connector.services.transactions import incomplete_transactions, release_transaction
from connector.text import counted


@click.group()
def command() -> None:
    """List the transactions that lack records; release one that tables wait for."""


@command.command("list")
@click.argument("stream", required=False)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line for each transaction."
)
@click.pass_context
def list_(ctx: click.Context, stream: str | None, as_json: bool) -> None:
    """Show the transactions of STREAM that lack records, the oldest first.

    Ingest looks for them once a minute, below the low watermark of the stream.
    """
    found = incomplete_transactions(settings.load(ctx), stream)
    if as_json:
        for one in found:
            out(to_line(view(one)))
    elif found:
        shown = table("transaction", "commit timestamp", "missing", "found", "released")
        for one in found:
            shown.add_row(
                escaped(one.server_transaction_id),
                str(view_of_time(one.commit_timestamp)),
                f"{one.missing:,}",
                str(view_of_time(one.found_at)),
                "yes" if one.is_released else "",
            )
        console().print(shown)
    say(counted(len(found), "incomplete transaction"))


@command.command()
@click.argument("stream")
@click.argument("transaction", metavar="ID")
@click.option(
    "--commit-timestamp",
    type=MOMENT,
    help="That of the transaction, if several incomplete ones have this ID.",
)
@click.option("--why", required=True, help="The reason. It is kept with your name and the time.")
@click.pass_context
def release(
    ctx: click.Context, stream: str, transaction: str, commit_timestamp: int | None, why: str
) -> None:
    """Have no table wait for transaction ID of STREAM any more. Tables then show the records that
    are there.

    Ingest takes the request within ten seconds (90 in an object store), or when it runs again.
    """
    if not why.strip():
        raise click.UsageError("give the reason with --why")
    release_transaction(
        settings.load(ctx), stream, transaction, commit_timestamp=commit_timestamp, why=why
    )
    say(
        f"{escaped(transaction)} is released with the next check; to check it: connector"
        f" transactions list {stream}"
    )
