"""`connector erase`: the data of a person leaves a table and everything behind it (OPR-2)."""

from __future__ import annotations

import click

from connector.cli.parameters import TABLE, config_of, json_option, row_key_in
from connector.cli.terminal import err, escaped, out, show_event
from connector.records.json_view import to_line
from connector.records.views import view_of_time
from connector.services.erase import EraseReport, erase
from connector.text import counted, offsets_text


@click.command()
@click.argument("name", metavar="TABLE", type=TABLE)
@click.argument("key", metavar="KEY")
@click.option("--why", required=True, help="The reason. It is stored: write no data into it.")
@click.option("--dry-run", is_flag=True, help="Change nothing. Say which tables have the row.")
@json_option("Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context, name: str, key: str, *, why: str, dry_run: bool, as_json: bool
) -> None:
    """Erase the row of TABLE with this KEY from all tables of its source table, the changelog, and
    all old versions. Its dead letters are closed.

    Stop `connector run` first. Cuts and versions from before cannot be read any more. Changes of
    the row up to now are refused; later ones are applied. If you kill the command, run it again.

    KEY is as in `connector explain`.
    """
    config = config_of(ctx)
    row_key = row_key_in(config, name, key)
    report = erase(config, name, row_key, why=why, dry_run=dry_run, on_event=show_event)
    if as_json:
        out(to_line(report.to_json()))
    _print(report, dry_run=dry_run)


def _print(report: EraseReport, *, dry_run: bool) -> None:
    tables = ", ".join(map(escaped, report.tables)) or "no table"
    where = (
        f"{counted(report.changelog_records, 'record')} in the changelog, and the row in"
        f" {', '.join(map(escaped, report.found_in)) or 'no table'}"
    )
    if not report.is_known:
        err(f"nothing has this key: no record in the changelog or in Kafka, no row in {tables}")
    if dry_run:
        if report.is_known:
            err(f"would be erased: {where}")
        err(f"would be deleted: all old versions of the changelog and {tables}")
    else:
        if report.is_known:
            err(f"erased: {where}")
        err(f"deleted: all old versions of the changelog and {tables}")
        err(f"changes of this key up to {view_of_time(report.erased_to)} are refused")
        err(f"{counted(report.letters, 'dead letter')} closed as erased")
    for topic, offsets in report.deleted_to.items():
        for number, offset in offsets.items():
            err(f"Kafka partition {number} of {escaped(topic)}: deleted below offset {offset}")
    for records in report.kafka:
        until = (
            "for ever"
            if records.kept_until is None
            else f"until {view_of_time(records.kept_until)}"
        )
        err(
            f"Kafka still has {counted(records.records, 'record')} of it in"
            f" {escaped(records.topic)} {until}: Kafka partition {records.kafka_partition},"
            f" {offsets_text(records.first_offset, records.last_offset)}"
        )
        if records.kept_by is not None:
            err(
                f"cause: the dead letter {escaped(records.kept_by)} of another row is open and"
                " comes before them, and Kafka deletes a partition only from its begin"
            )
            err(
                "remedy: replay or discard all open letters before offset"
                f" {records.last_offset}, then run this command again"
            )
