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
    """Check the configuration with the running Kafka, the registry and the warehouse. The command
    starts, creates and writes nothing.

    It prints a line for each successful check. Every fault goes to standard error, and the exit
    code is then 1.
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
    say(counted(faults, "fault") if faults else "no faults")
    return 1 if faults else 0
