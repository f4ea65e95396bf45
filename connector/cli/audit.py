"""`connector audit`: that nothing is lost, shown from the changelog, the topic and the dead-letter
topic (TBL-6, `nothing_lost`).
"""

from __future__ import annotations

import click

from connector.cli.parameters import config_of, json_option, streams_option
from connector.cli.progress import Progress
from connector.cli.terminal import (
    err,
    escaped,
    out,
    show_error,
    show_table,
    show_text,
    table,
)
from connector.records.json_view import to_line
from connector.records.views import view_of_time
from connector.reports.audit import StreamAudit, count
from connector.services.audit import audit
from connector.sources.audit import SourceTopicAudit
from connector.text import FEW, counted


@click.command()
@streams_option
@json_option("Print one JSON object per line for each stream.")
@click.pass_context
def command(ctx: click.Context, stream: str | None, *, as_json: bool) -> int:
    """Check that each offset of a stream is once in its changelog, and that each rejected record
    has its dead letter.

    Offsets without a row are read in Kafka: they must have no visible record. Results are kept, so
    they count after Kafka's retention. Exit code 1: a record is lost or duplicated, a dead letter
    is missing, or another program wrote to a table of the stream. If retention removed the evidence
    first, the exit code is 0, with a warning.
    """
    faults = 0
    with Progress() as progress:
        for result in audit(config_of(ctx), stream, on_event=progress.on_event):
            with progress.cleared():
                if as_json:
                    out(to_line(result.to_json()))
                else:
                    _print_table(result)
                faults += _verdict(result)
    return 1 if faults else 0


def _verdict(result: StreamAudit) -> int:
    """Print the verdict. Return 1 if a promise is broken."""
    if result.unverified:
        kinds = (
            (result.counted("unverified"), "offset"),
            (len(result.letters.unverified), "dead letter"),
            (sum(topic.unverified for topic in result.source), "record of the source"),
        )
        parts = " and ".join(counted(number, noun) for number, noun in kinds if number)
        err(
            f"warning: {result.stream}: {parts} cannot be checked, because Kafka no longer has"
            " the records"
        )
    for transaction in result.incomplete[:FEW]:
        at, missing = view_of_time(transaction.commit_timestamp), transaction.missing
        name = f"transaction {transaction.server_transaction_id} of {at}"
        err(f"warning: {result.stream}: {name} lacks {counted(missing, 'record')}")
    if (more := len(result.incomplete) - FEW) > 0:
        err(f"warning: {result.stream}: {counted(more, 'more transaction')} with missing records")
    for text in result.warnings:
        err(f"warning: {result.stream}: {text}")
    if fault := result.fault():
        show_error(fault)
        return 1
    offsets = sum(partition.end - partition.begin for partition in result.partitions.values())
    compared = result.letters.compared
    letters = f", {counted(compared, 'further dead letter')} compared" if compared else ""
    limit = ", as far as Kafka still has the records" if result.unverified else ""
    err(
        f"{result.stream}: no record is lost or duplicated{limit}: {counted(offsets, 'offset')} up"
        f" to batch {result.to_batch}{letters}"
    )
    return 0


def _print_table(result: StreamAudit) -> None:
    columns = ["Kafka partition", "from", "to", "rows", "no record"]
    columns += ["lost", "duplicated", "not read", "unverified"]
    shown = table(*columns, right=frozenset(columns))
    for number, partition in sorted(result.partitions.items()):
        offsets = (
            count(getattr(partition, name))
            for name in ("lost", "duplicated", "unexpected", "unverified")
        )
        shown.add_row(
            str(number),
            *(f"{value:,}" for value in (partition.begin, partition.end)),
            *(f"{value:,}" for value in (partition.rows, partition.empty, *offsets)),
        )
    if shown.row_count:
        show_table(shown)
    for topic in result.source:
        show_text(_of_source(topic))


def _of_source(topic: SourceTopicAudit) -> str:
    """A line about a topic of the source."""
    kinds = {"change": topic.changes, "mark": topic.marks, "dead letter": topic.letters}
    parts = [counted(number, kind) for kind, number in kinds.items() if number]
    parts += [f"{number:,} left out ({rule})" for rule, number in sorted(topic.left_out.items())]
    faults = {"missing": topic.missing, "doubled": topic.doubled, "disordered": topic.disordered}
    parts += [f"{number:,} {kind}" for kind, number in faults.items() if number]
    return escaped(f"{topic.topic}: {counted(topic.records, 'record')}: {', '.join(parts)}")
