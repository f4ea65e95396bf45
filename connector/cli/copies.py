"""`connector export` and `connector reconcile`: copies of a table, written and compared (OPR-1,
OPR-3).
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from connector.cli.load import format_option
from connector.cli.parameters import MEMORY, TABLE, config_of, json_option
from connector.cli.progress import Progress
from connector.cli.remedies import naming_option
from connector.cli.terminal import err, escaped, out, show_fact
from connector.records.json_view import to_line
from connector.records.views import view
from connector.services.read import read
from connector.services.rows.export import export as export_rows
from connector.services.rows.reconcile import Difference, Reconciled
from connector.services.rows.reconcile import reconcile as reconcile_rows
from connector.text import counted

SHOWN = 20

_format = format_option("The format of the file. Default: the end of its name says it.")
_snapshot = click.option(
    "--snapshot", is_flag=True, help="Use the newest consistent cut of all tables of the stream."
)


@click.command()
@click.argument("name", metavar="TABLE", type=TABLE)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@_format
@_snapshot
@click.option(
    "--fresh", is_flag=True, help="Merge all changes that are not applied yet. It needs Java."
)
@click.option("--memory", type=MEMORY, help="Heap of the Spark driver, with --fresh.")
@click.pass_context
def export(
    ctx: click.Context,
    name: str,
    file: Path,
    *,
    file_format: str | None,
    snapshot: bool,
    fresh: bool,
    memory: str | None,
) -> None:
    """Write the rows of TABLE to FILE: Parquet, CSV (with a header) or JSON lines.

    The file appears when it is complete, and `connector load` can read it. Without an option, it
    has the rows of the last apply.
    """
    if snapshot and fresh:
        raise click.UsageError("use one of --snapshot and --fresh")
    config, bound = config_of(ctx), 0 if fresh else None
    with (
        naming_option("without --fresh"),
        Progress() as progress,
        read(
            *(config, name),
            max_staleness_s=bound,
            allow_stale=not fresh and not snapshot,
            snapshot=snapshot,
            on_event=progress.on_event,
            memory=memory,
        ) as rows,
    ):
        exported = export_rows(
            *(config, name, rows, file),
            file_format=file_format,
            on_rows=partial(progress.count, "rows written"),
        )
        text = f"{escaped(str(file))}: {counted(exported.rows, 'row')} of {rows.text}"
    err(text)
    if exported.unmapped:
        err(
            f"warning: {counted(exported.unmapped, 'row')} have cells without a column, which are"
            " not in the file"
        )


@click.command()
@click.argument("name", metavar="TABLE", type=TABLE)
@click.option(
    "--against",
    required=True,
    metavar="FILE|TABLE",
    help="A file (Parquet, CSV, JSON lines), or the folder or URI of a Delta table.",
)
@_format
@_snapshot
@click.option(
    "--null", default="", help="The text of a CSV field without a value. Default: an empty field."
)
@json_option("Print one JSON object per line: each difference, then the result.")
@click.pass_context
def reconcile(
    ctx: click.Context,
    name: str,
    *,
    against: str,
    file_format: str | None,
    snapshot: bool,
    null: str,
    as_json: bool,
) -> int:
    """Compare the rows of TABLE with a copy, for example an export of the source.

    Each row that only one of them has, or that is different, is named with its key. Exit code 1:
    the rows are not equal.
    """
    progress, shown = Progress(), 0

    def show(difference: Difference) -> None:
        nonlocal shown
        shown += 1
        with progress.cleared():
            if as_json:
                out(to_line(view(difference)))
            elif shown <= SHOWN:
                columns = f": {', '.join(difference.columns)}" if difference.columns else ""
                key = json.dumps(difference.key, ensure_ascii=False)
                show_fact(difference.kind, f"{key}{columns}", 9)

    with progress:
        result = reconcile_rows(
            *(config_of(ctx), name, against),
            snapshot=snapshot,
            file_format=file_format,
            null=null,
            on_difference=show,
            on_rows=partial(progress.count, "rows compared"),
        )
    if as_json:
        out(to_line(result.to_json()))
    elif shown > SHOWN:
        out(f"{counted(shown - SHOWN, 'more difference')}; use --json for all")
    _print(result)
    return 0 if result.is_equal else 1


def _print(result: Reconciled) -> None:
    err(f"{result.read}, compared with {escaped(result.against)}")
    if result.not_compared:
        err(f"not compared, because the copy lacks them: {', '.join(result.not_compared)}")
    if result.is_equal:
        err(f"equal: {counted(result.rows, 'row')}")
        return
    kinds = ("missing", "extra", "different", "repeated")
    counts = ", ".join(f"{getattr(result, kind):,} {kind}" for kind in kinds)
    err(
        f"not equal: {counts}; the table has {counted(result.rows, 'row')}, the copy"
        f" {result.other_rows:,}. Changes that are not applied yet are not in the table: to see"
        " how many, use `connector status`"
    )
