"""`connector load`: existing rows into a table, all at once (PUB-6, PUB-7)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TextIO

import click

from connector.cli.parameters import MOMENT, RATE, TABLE, Function, config_of
from connector.cli.progress import Progress
from connector.cli.terminal import err, escaped
from connector.records.json_view import to_line
from connector.records.views import view, view_of_time
from connector.services.rows.files import FileFormat
from connector.services.rows.load import LoadOptions, LoadProgress, LoadReport, RejectedRow, load
from connector.text import counted

REJECTED_SHOWN: Final = 20


def format_option(text: str) -> Callable[[Function], Function]:
    """Adds `--format`, the format of files of rows, as `file_format`."""
    formats = click.Choice(list(map(str, FileFormat)))
    return click.option("--format", "file_format", type=formats, help=text)


@click.command()
@click.argument("name", metavar="TABLE", type=TABLE)
@click.argument(
    "files",
    metavar="FILE…",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@click.option(
    "--as-of",
    type=MOMENT,
    help=(
        "The time at which the rows were exported. Changes that are newer stay. Without it, the"
        " table must be empty."
    ),
)
@format_option("The format of the files. Default: the end of each name says it.")
@click.option(
    "--null",
    default="",
    help=(
        "The text of a CSV field without a value. Default: an empty field. A field in quotes"
        " always has a value."
    ),
)
@click.option("--max-changes-per-s", type=RATE, help="Limit of rows per second, without bursts.")
@click.option(
    "--rejected",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the rows that cannot be published to this file, one JSON object per line.",
)
@click.option("--skip-rejected", is_flag=True, help="Commit without these rows.")
@click.option("--session", help="The name of the write session. Give each parallel worker its own.")
@click.option(
    "--no-commit", is_flag=True, help="Finalize the write stream. You commit it with others later."
)
@click.option("--wait", is_flag=True, help="Return when the table contains the rows.")
@click.pass_context
def command(
    ctx: click.Context,
    name: str,
    files: tuple[Path, ...],
    *,
    as_of: int | None,
    file_format: str | None,
    null: str,
    max_changes_per_s: float | None,
    rejected: Path | None,
    skip_rejected: bool,
    session: str | None,
    no_commit: bool,
    wait: bool,
) -> None:
    """Load existing rows of TABLE from CSV (with a header), JSON lines or Parquet. All rows become
    visible together, when the load is complete.

    If the command is killed, run it again: it goes on after the last row that Kafka has. If there
    are rows that cannot be published, it names them and commits nothing, unless you use
    --skip-rejected.
    """
    if wait and no_commit:
        raise click.UsageError("do not use --wait with --no-commit: the rows are not committed")
    config = config_of(ctx)
    options = LoadOptions(
        session=session,
        file_format=file_format,
        null=null,
        max_changes_per_s=max_changes_per_s,
        skip_rejected=skip_rejected,
        commit=not no_commit,
        wait=wait,
    )
    started_at = time.monotonic()
    with Progress() as progress, ExitStack() as stack:
        shown = _Shown(progress)
        report = load(
            config,
            name,
            files,
            as_of=as_of,
            options=options,
            on_event=progress.on_event,
            on_progress=shown.progress,
            on_rejected=_rejections(rejected, shown, stack),
        )
    if rejected is not None and shown.has_read and not report.rejected:
        rejected.write_text("")
    _print_report(report, time.monotonic() - started_at)


class _Shown:
    """The progress and the first rejected rows, on standard error."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._rejected = progress, 0
        self.has_read = False

    def progress(self, progress: LoadProgress) -> None:
        self.has_read = True
        self._progress.count("rows sent", progress.rows)

    def rejected(self, row: RejectedRow) -> None:
        self._rejected += 1
        with self._progress.cleared():
            if self._rejected <= REJECTED_SHOWN:
                err(f"rejected: {row}")
            elif self._rejected == REJECTED_SHOWN + 1:
                err("further rejected rows are only counted, and in the file of --rejected")


def _rejections(
    file: Path | None, shown: _Shown, stack: ExitStack
) -> Callable[[RejectedRow], None]:
    """Receives rejected rows. The first one replaces the file of an earlier call."""
    if file is None:
        return shown.rejected
    file.open("a").close()  # an error of the path comes before the load
    written: TextIO | None = None

    def reject(row: RejectedRow) -> None:
        nonlocal written
        shown.rejected(row)
        if written is None:
            written = stack.enter_context(file.open("w", buffering=1, encoding="utf-8"))
        written.write(f"{to_line(view(row))}\n")

    return reject


def _print_report(report: LoadReport, seconds: float) -> None:
    new = report.rows - report.repeated
    if report.rejected:
        err(f"left out: {counted(report.rejected, 'row')}")
    rate = f"{new / seconds:,.0f} rows/s" if seconds > 0 else ""
    if not report.was_committed:
        err(f"{counted(report.rows, 'row')}, {new:,} of them now, in {seconds:.1f} s ({rate})")
    at = report.commit_timestamp
    if at is None:
        stream = escaped(report.write_stream)
        err(f"{stream} is finalized and not committed; its rows are not visible yet")
    else:
        err(f"committed to {report.table} at {view_of_time(at)}: {counted(report.rows, 'row')}")
