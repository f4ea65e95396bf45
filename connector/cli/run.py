"""`connector run`: ingest and apply everything that is configured, in one process (OPS-4)."""

from __future__ import annotations

import signal
import threading

import click

from connector.cli import settings, terminal
from connector.services.run import run


@click.command("run")
@click.option(
    "--once", is_flag=True, help="Ingest to the present end of every topic, apply, and stop."
)
@click.option(
    "--cores",
    default="*",
    show_default=True,
    help="Threads of a local Spark; * for as many as there are processors.",
)
@click.option("--memory", default="2g", show_default=True, help="Heap of a local Spark driver.")
@click.pass_context
def command(ctx: click.Context, *, once: bool, cores: str, memory: str) -> None:
    """Ingest all streams and apply them to their tables, until SIGTERM or Ctrl-C: then the batch in
    flight ends first.

    Kill it at any instant and start it again: it goes on where it was.
    """
    config, stop = settings.load(ctx), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    run(config, once=once, stop=stop, on_event=terminal.tell, cores=cores, memory=memory)
