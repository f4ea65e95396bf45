"""`connector run`: ingest and apply all that is configured, in one process (OPS-4). `connector
validate`: check whether the configuration would work here (OPS-1).
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal, TextIO

import click

from connector.cli.log_lines import LogLines, log_options
from connector.cli.parameters import (
    ADDRESS,
    config_file_of,
    config_of,
    json_option,
    spark_options,
    stop_on_signals,
)
from connector.cli.progress import Progress
from connector.cli.remedies import command_for
from connector.cli.terminal import err, escaped, out, show_error
from connector.events import Level, info
from connector.records.json_view import to_line
from connector.services.bridge import bridges
from connector.services.metrics import Metrics
from connector.services.run import run
from connector.services.validate_config import Finding, validate_config
from connector.text import counted


@click.command("run")
@click.option(
    "--once", is_flag=True, help="Ingest up to the current end of every topic, apply, and stop."
)
@click.option(
    "--bridge", is_flag=True, help="Publish the sources of all streams, too, in this process."
)
@spark_options
@log_options
@click.option(
    "--metrics",
    "address",
    type=ADDRESS,
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus at this address, for example 127.0.0.1:9464.",
)
@click.option(
    "--trace",
    type=click.File("a"),
    help="Append to this file how long each step of a batch and of an apply takes, as JSON lines.",
)
@click.pass_context
def run_command(
    ctx: click.Context,
    *,
    once: bool,
    bridge: bool,
    cores: str | None,
    memory: str | None,
    address: tuple[str, int] | None,
    trace: TextIO | None,
    log_format: Literal["text", "json"],
    log_level: Level,
) -> None:
    """Ingest all streams and apply them to their tables. SIGTERM or Ctrl-C stops the command after
    the current batch.

    You can kill the command at any time and start it again: it continues where it was. It reads its
    configuration again on SIGHUP, and within 30 seconds of a change: new tables, columns, bounds
    and paces need no restart.

    With --bridge, the sources of all streams are published in the same process, as connector bridge
    does it. If a bridge fails, the command stops.
    """
    log = LogLines(log_format, log_level, trace)
    progress = Progress(log.show, ends_with="" if once else "BATCH_LOGGED")
    # py4j logs each call to a JVM that has died. The command prints one error.
    logging.getLogger().addHandler(logging.NullHandler())
    stop = stop_on_signals()
    with log.showing_error(), progress, ExitStack() as beside:
        config = config_file_of(ctx)
        signal.signal(signal.SIGHUP, lambda *_: config.ask())
        metrics = None if address is None else beside.enter_context(_exported(address, log))
        if bridge:
            of_bridges = config_of(ctx, source_tables=False)
            show = progress.on_event
            on_event = show if metrics is None else metrics.noting(show)
            beside.enter_context(bridges(of_bridges, once=once, stop=stop, on_event=on_event))
        run(
            config,
            once=once,
            stop=stop,
            on_event=progress.on_event,
            cores=cores,
            memory=memory,
            metrics=metrics,
        )


@contextmanager
def _exported(address: tuple[str, int], log: LogLines) -> Iterator[Metrics]:
    """Metrics that are served at the address during the block."""
    from connector.exporter import exporting

    metrics = Metrics()
    with exporting(metrics, *address) as port:
        log.show(info("METRICS", f"metrics are at http://{address[0]}:{port}/metrics", port=port))
        yield metrics


@click.command()
@json_option("Print one JSON object per line for each check.")
@click.pass_context
def validate(ctx: click.Context, *, as_json: bool) -> int:
    """Check the configuration with the running Kafka, the registry and the warehouse. The command
    starts, creates and writes nothing.

    It prints a line for each successful check. Every fault goes to standard error, and the exit
    code is then 1.
    """
    faults = 0
    for finding in validate_config(config_of(ctx)):
        faults += finding.error is not None
        if as_json:
            out(to_line(_view(finding)))
        elif finding.error is not None:
            show_error(finding.error)
        elif finding.level == "warning":
            err(f"warning: {finding.text}")
        else:
            out(escaped(finding.text))
    err(counted(faults, "fault") if faults else "no faults")
    return 1 if faults else 0


def _view(finding: Finding) -> dict[str, str | None]:
    """A finding as JSON. A fault has the names of an error in the log."""
    view: dict[str, str | None] = {"level": finding.level, "text": finding.text}
    if (error := finding.error) is not None:
        view |= {"cause": error.cause, "remedy": error.remedy}
        view |= {"run": command_for(error), "code": error.code}
    return view
