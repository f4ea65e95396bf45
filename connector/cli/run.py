"""`connector run`: ingest and apply everything that is configured, in one process (OPS-4)."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TextIO

import click

from connector.cli import settings, terminal
from connector.cli.parameters import CORES, MEMORY
from connector.services.run import run


@click.command("run")
@click.option(
    "--once", is_flag=True, help="Ingest up to the current end of every topic, apply, and stop."
)
@click.option(
    "--cores",
    type=CORES,
    help="Threads of a local Spark; * means one per processor. Default: as in [spark].",
)
@click.option(
    "--memory", type=MEMORY, help="Heap of the Spark driver, such as 2g. Default: as in [spark]."
)
@click.option(
    "--trace",
    type=click.File("a"),
    help="Append to this file how long each step of a batch and of an apply takes, as JSON lines.",
)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    once: bool,
    cores: str | None,
    memory: str | None,
    trace: TextIO | None,
) -> None:
    """Ingest all streams and apply them to their tables. SIGTERM or Ctrl-C stops the command after
    the current batch.

    You can kill the command at any time and start it again: it continues where it was.
    """
    config, stop = settings.load(ctx), threading.Event()
    # py4j logs each call to a JVM that has died. The command prints one error.
    logging.getLogger().addHandler(logging.NullHandler())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    run(
        config,
        once=once,
        stop=stop,
        on_event=terminal.tell,
        cores=cores,
        memory=memory,
        trace=trace,
    )
