"""`connector bridge`: publish the records of foreign topics as the changes of a stream (SRC-1)."""

from __future__ import annotations

import signal
import threading

import click

from connector.cli.parameters import config_of
from connector.cli.terminal import err, show_event
from connector.services.bridge import run_bridge
from connector.text import counted


@click.command()
@click.argument("stream")
@click.option(
    "--once", is_flag=True, help="Publish up to the current end of every source topic, and stop."
)
@click.option(
    "--skip-transaction",
    "skip",
    metavar="ID",
    default="",
    help="Publish this transaction without the events that it lacks. `connector status` names it.",
)
@click.pass_context
def command(ctx: click.Context, *, stream: str, once: bool, skip: str) -> None:
    """Publish the records of the source of a stream as its changes. SIGTERM or Ctrl-C stops the
    command.

    You can kill the command at any time and start it again: it goes on where it was. It needs no
    access to the warehouse. Run it once for each stream.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    config = config_of(ctx, source_tables=False)
    counts = run_bridge(config, stream, once=once, skip=skip, stop=stop, on_event=show_event)
    left_out = f", {counted(sum(counts.left_out.values()), 'record')} left out"
    letters = counted(counts.letters, "dead letter")
    err(f"{counted(counts.changes, 'change')} and {letters} published{left_out}")
