"""`connector audit`: that nothing is lost, shown from the changelog, the topic and the dead-letter
topic (TBL-6, `nothing_lost`).
"""

from __future__ import annotations

import time

import click

from connector.cli.parameters import config_of
from connector.cli.terminal import Progress, console, out, say, show_error, show_event, table
from connector.records.json_view import to_line
from connector.records.views import view_of_time
from connector.reports.audit import StreamAudit, count
from connector.services.audit import audit
from connector.text import FEW, counted


@click.command()
@click.argument("stream", required=False)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line for each stream."
)
@click.pass_context
def command(ctx: click.Context, stream: str | None, *, as_json: bool) -> int:
    """Check that each offset of STREAM is once in its changelog, and that each rejected record has
    its dead letter.

    Without STREAM, all streams are checked. Offsets without a row are read in Kafka: they must have
    no visible record. Results are kept, so they count after Kafka's retention. Exit code 1: a
    record is lost or duplicated, a dead letter is missing, or another program wrote to a table of
    the stream. If retention removed the evidence first, the exit code is 0, with a warning.
    """
    progress, faults = Progress("rows"), 0
    for found in audit(
        config_of(ctx),
        stream,
        on_event=show_event,
        on_rows=lambda rows: progress.show(rows, time.monotonic()),
    ):
        progress.clear()
        if as_json:
            out(to_line(found.to_json()))
        else:
            _print_table(found)
        faults += _verdict(found)
    return 1 if faults else 0


def _verdict(found: StreamAudit) -> int:
    """Say what was found; 1 if the promise is broken."""
    if found.unverified:
        kinds = (
            (found.counted("unverified"), "offset"),
            (len(found.letters.unverified), "dead letter"),
        )
        parts = " and ".join(counted(number, noun) for number, noun in kinds if number)
        say(
            f"warning: {found.stream}: {parts} cannot be checked, because Kafka no longer has"
            " the records"
        )
    for one in found.incomplete[:FEW]:
        say(
            f"warning: {found.stream}: transaction {one.server_transaction_id} of"
            f" {view_of_time(one.commit_timestamp)} lacks {counted(one.missing, 'record')}"
        )
    if (more := len(found.incomplete) - FEW) > 0:
        say(f"warning: {found.stream}: {counted(more, 'more transaction')} with missing records")
    for text in found.warnings:
        say(f"warning: {found.stream}: {text}")
    if fault := found.fault():
        show_error(fault)
        return 1
    offsets = sum(partition.end - partition.begin for partition in found.partitions.values())
    compared = found.letters.compared
    letters = f", {counted(compared, 'further dead letter')} compared" if compared else ""
    limit = ", as far as Kafka still has the records" if found.unverified else ""
    say(
        f"{found.stream}: no record is lost or duplicated{limit}: {counted(offsets, 'offset')} up"
        f" to batch {found.to_batch}{letters}"
    )
    return 0


def _print_table(found: StreamAudit) -> None:
    numbers = (
        "from",
        "to",
        "rows",
        "no record",
        "lost",
        "duplicated",
        "not read",
        "unverified",
    )
    shown = table("Kafka partition", *numbers, right=frozenset({"Kafka partition", *numbers}))
    for number, of in sorted(found.partitions.items()):
        offsets = (
            count(ranges) for ranges in (of.lost, of.duplicated, of.unexpected, of.unverified)
        )
        shown.add_row(
            str(number),
            *(f"{value:,}" for value in (of.begin, of.end, of.rows, of.empty, *offsets)),
        )
    if shown.row_count:
        console().print(shown)
