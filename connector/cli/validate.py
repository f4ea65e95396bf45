"""`connector validate`: would this configuration work here and now? Nothing is started, created or
written (OPS-1).
"""

from __future__ import annotations

import click

from connector.cli import settings
from connector.cli.terminal import escaped, out, say, show_error
from connector.services.validate_config import validate_config
from connector.text import counted


@click.command()
@click.pass_context
def command(ctx: click.Context) -> int:
    """Check the configuration against the running Kafka, the registry and the warehouse; starts,
    creates and writes nothing.

    Prints a line for each thing that is well; every fault goes to standard error. Exit code 1 if
    there is one.
    """
    faults = 0
    for finding in validate_config(settings.load(ctx)):
        if finding.error is not None:
            faults += 1
            show_error(finding.error)
        elif finding.level == "warning":
            say(f"warning: {finding.text}")
        else:
            out(escaped(finding.text))
    say(counted(faults, "fault") if faults else "all is well")
    return 1 if faults else 0
