"""`connector jobs` (TBL-19, JOB-1), and `connector table`: the bound of a table, its pace and its
rebuild (TBL-20, TBL-21).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click

from connector.cli.parameters import (
    DURATION_S,
    TABLE,
    config_and_stream,
    config_of,
    json_option,
    spark_options,
    stream_option,
    why_option,
)
from connector.cli.progress import Progress
from connector.cli.terminal import err, escaped, out, show_event, show_table
from connector.cli.terminal import table as empty_table
from connector.clock import now_us
from connector.config.settings import find_table
from connector.records.json_view import to_line
from connector.records.views import view, view_of_time
from connector.services import tables
from connector.services.alter import AlterReport, alter_table, publish_table
from connector.services.drop_table import drop_table, orphaned_tables
from connector.services.requests import confirm_table
from connector.sources.columns import table_name
from connector.sources.define import tables_of, toml_of
from connector.state.jobs import (
    MAINTENANCE,
    Job,
    JobKind,
    JobSum,
    Period,
    sums_by,
)
from connector.tables.definition import Column
from connector.tables.nested import type_of
from connector.tables.values import Encoding
from connector.text import counted, duration, nearest

JOBS_FOR_PEOPLE = 40
BOUND = "max_staleness"
PACE = "apply_every"


@click.group()
def command() -> None:
    """Set the bound of a table; change its columns; rebuild it; drop it."""


def _print(jobs: list[Job], *, with_owner: bool) -> None:
    shown = empty_table(
        *(("of",) if with_owner else ()),
        "job",
        "ended",
        "took",
        "batches",
        "changes",
        "letters",
        "complete below",
        "misfits",
        "error",
        right=frozenset({"changes"}),
    )
    for job in jobs:
        below = "" if job.watermark_after is None else str(view_of_time(job.watermark_after))
        batches = f"{job.from_batch + 1} to {job.to_batch}" if job.to_batch > job.from_batch else ""
        if job.kind in MAINTENANCE:
            batches = "" if job.error else counted(job.files, "file")
        sums = JobSum(job.ended_at, job.kind).with_job(job)
        counts = (
            f"{getattr(sums, name):,}" if sums.knows(name) else ""
            for name in ("changes", "letters")
        )
        shown.add_row(
            *((escaped(job.table or job.stream),) if with_owner else ()),
            _kind(job.kind),
            str(view_of_time(job.ended_at)),
            f"{job.duration_s:.1f} s",
            batches,
            *counts,
            below,
            escaped(job.misfits),
            escaped(job.error),
        )
    show_table(shown)


@click.command()
@json_option("Print one JSON object per line for each job, or for each sum.")
@click.option(
    "--by",
    type=click.Choice([period.value for period in Period]),
    help="Print the sums of the jobs of each kind by this period.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in JobKind]),
    help="Only jobs of this kind. You can repeat it. Default: all kinds.",
)
@click.option(
    "--within", type=DURATION_S, default="1d", help="Only jobs that ended since. Default: 1d."
)
@click.option("--table", "name", type=TABLE, help="Only jobs of this table.")
@click.option("--limit", type=click.IntRange(1), help="Stop after this many jobs.")
@click.pass_context
def jobs_command(
    ctx: click.Context,
    *,
    as_json: bool,
    by: str | None,
    kinds: tuple[str, ...],
    within: int,
    name: str | None,
    limit: int | None,
) -> None:
    """Show the jobs of all streams and tables, the newest first: batches, applies, rebuilds, reads
    that merge, maintenance and audits.
    """
    wanted = [JobKind(kind) for kind in kinds] or list(JobKind)
    since = now_us() - within * 1_000_000
    jobs = tables.jobs(config_of(ctx), name, since=since, kinds=wanted)
    sums = [] if by is None else sums_by(Period(by), jobs)
    if as_json:
        for row in (jobs if by is None else sums)[:limit]:
            out(to_line(row.to_json()))
    elif sums:
        _print_sums(sums[:limit])
    elif jobs:
        _print(jobs[: limit or JOBS_FOR_PEOPLE], with_owner=name is None)
    err(f"{counted(len(jobs), 'job')} within {duration(within)}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


_FIGURES: Final[Mapping[str, Callable[[int], str]]] = {
    "cpu_us": lambda cpu_us: f"{cpu_us / 1e6:,.1f} s",
    "changes": "{:,}".format,
    "letters": "{:,}".format,
    "bytes_read": _megabytes,
    "bytes_written": _megabytes,
}


def _print_sums(sums: list[JobSum]) -> None:
    columns = ("jobs", "failed", "took", "cpu", "changes", "letters", "read", "written")
    shown = empty_table("since", "job", *columns, right=frozenset(columns))
    for row in sums:
        shown.add_row(
            str(view_of_time(row.since)).replace(":00.000000", ""),
            _kind(row.kind),
            *(f"{row.jobs:,}", f"{row.failed:,}", f"{row.duration_us / 1e6:,.1f} s"),
            *(
                shown_as(getattr(row, name)) if row.knows(name) else ""
                for name, shown_as in _FIGURES.items()
            ),
        )
    show_table(shown)


def _kind(kind: JobKind) -> str:
    return kind.value.replace("_", "-" if kind in MAINTENANCE else " ")


@command.command()
@click.argument("name", metavar="[NAME]", required=False)
@json_option("Print one JSON object per line for each table without a section.")
@click.pass_context
def drop(ctx: click.Context, name: str | None, *, as_json: bool) -> None:
    """Delete table NAME, which the configuration does not have any more. Without NAME: list the
    tables of the warehouse that have no section.

    The changelog keeps the changes. If you add the table to the configuration again, it is made
    from them.
    """
    config = config_of(ctx)
    if name is not None:
        dropped = drop_table(config, name)
        err(f"{escaped(name)}: {counted(dropped.files, 'file')} deleted, {dropped.bytes:,} bytes")
        return
    orphans = orphaned_tables(config)
    if as_json:
        for orphan in orphans:
            out(to_line(view(orphan)))
    elif orphans:
        shown = empty_table("table", "files", "bytes", right=frozenset({"files", "bytes"}))
        for orphan in orphans:
            shown.add_row(escaped(orphan.name), f"{orphan.files:,}", f"{orphan.bytes:,}")
        show_table(shown)
    err(f"{counted(len(orphans), 'table')} without a section of the configuration")


@command.command()
@click.argument("name", metavar="NAME", type=TABLE)
@why_option
@click.pass_context
def confirm(ctx: click.Context, name: str, why: str) -> None:
    """Declare that table NAME is right, although Kafka deleted records of its stream unread. Its
    next applies can be consistent cuts again.

    Compare it with the source first, for example with `connector reconcile`. Ingest takes the
    request within ten seconds (90 in an object store), or when it runs again.
    """
    request = confirm_table(config_of(ctx), name, why=why)
    err(f"{escaped(name)} of {request.stream} is confirmed with the next batch")


@command.command("set")
@click.argument("name", metavar="NAME", type=TABLE)
@click.argument("setting", metavar=f"[{BOUND}=DURATION | {PACE}=DURATION]", required=False)
@click.option("--unset", is_flag=True, help="Use both settings of the configuration again.")
@click.pass_context
def set_(ctx: click.Context, name: str, setting: str | None, *, unset: bool) -> None:
    """Set the max_staleness or apply_every of table NAME, for example to 10m. It replaces the
    configuration until --unset.

    Readers see it at once, and a running pipeline within ten seconds (90 in an object store).
    You need not restart anything.
    """
    if (setting is None) is not unset:
        raise click.UsageError(f"give {BOUND}=10m, {PACE}=1h, or --unset")
    wanted = {} if setting is None else _setting(ctx, setting)
    config = config_of(ctx)
    definition = find_table(config, name)
    if unset:
        tables.set_max_staleness(config, name, None)
        tables.set_apply_every(config, name, None)
    elif BOUND in wanted:
        tables.set_max_staleness(config, name, wanted[BOUND])
    else:
        tables.set_apply_every(config, name, wanted[PACE])
    whose = "of the configuration" if unset else "until --unset"
    if unset or BOUND in wanted:
        bound = wanted.get(BOUND, definition.max_staleness_s)
        err(
            f"{name}: {BOUND} {duration(bound)} {whose}"
            if bound
            else f"{name}: no {BOUND}; every read merges the changes that are not applied"
        )
    every = tables.apply_every_s(config, name)
    err(f"{name}: applied every {duration(every)}{f', {whose}' if PACE in wanted else ''}")


def _setting(ctx: click.Context, setting: str) -> dict[str, int]:
    name, has_value, text = setting.partition("=")
    name, names = name.strip(), [BOUND, PACE]
    if name not in names or not has_value:
        if name in names:
            problem, hint = f"{name} has no value", f"write {name}=DURATION, for example {name}=10m"
        else:
            problem = f'a table has no setting "{escaped(name)}" that you can set'
            hint = nearest(name, names) or f"write {BOUND}=DURATION or {PACE}=DURATION"
        raise click.UsageError(f"{problem}; {hint}")
    seconds = DURATION_S.convert(text, None, ctx)
    if name == PACE and seconds < 1:
        raise click.UsageError(
            f"{PACE} must be at least 1s; use --unset to return to the configuration"
        )
    return {name: seconds}


@command.command()
@click.option(
    "--from",
    "given",
    required=True,
    metavar="FILE|TOPIC",
    help="A file with records or schemas of the source, one JSON object per line, or - for standard"
    " input. Otherwise a topic of the stream's source: its newest records are read.",
)
@click.option("--key", multiple=True, help="A key column, for lines that have no keys. Repeatable.")
@stream_option
@click.pass_context
def define(ctx: click.Context, given: str, key: tuple[str, ...], stream: str | None) -> None:
    """Print sections [tables.NAME] for the tables that a file or a topic shows, to edit.

    A line of a file is a schema of Kafka Connect or Avro, a value of Debezium, a row, or a record
    with key and value, as kcat -J writes it.
    """
    config, of_stream = config_and_stream(ctx, stream)
    if given == "-" or Path(given).exists():
        try:
            with click.open_file(given, encoding="utf-8-sig") as file:
                defined = tables_of(file, key)
        except ValueError as error:
            raise click.UsageError(f"{escaped(given)}, {escaped(str(error))}") from None
    else:
        defined = tables.tables_of_topic(config, of_stream.name, given)
    names: list[str] = []
    for each in defined:
        if not each.key:
            raise click.UsageError(f"{each.source}: name its key columns with --key")
        here = of_stream.name, each.source
        others = [n.lower() for n, t in config.tables.items() if (t.stream, t.source) != here]
        out(toml_of(each, of_stream.name, names + others))
        names.append(table_name(each.source, names + others).lower())
    err(f"{counted(len(defined), 'table')}; add to connector.toml what you want to keep")


_dry_run = click.option(
    "--dry-run", is_flag=True, help="Change nothing. Count the rows and values. It starts Spark."
)


@command.group("alter")
@click.argument("name", metavar="NAME", type=TABLE)
def alter(name: str) -> None:
    """Add, drop or change a column of table NAME, while the pipeline runs.

    The pipeline takes the change before the next apply of the table, and within 30 seconds. The
    change replaces the configuration until that says the same.
    """


@alter.command("add-column")
@click.argument("column", metavar="COLUMN")
@click.argument("type_", metavar="TYPE")
@click.option("--family", help="The family of its cell. Default: that of the first column.")
@click.option("--qualifier", help="The qualifier of its cell. Default: the name of the column.")
@click.option("--encoding", type=click.Choice(list(map(str, Encoding))), default=str(Encoding.TEXT))
@click.option("--default", help="The value that writers of rows give to a field without a value.")
@_dry_run
@click.pass_context
def add_column(
    ctx: click.Context,
    column: str,
    type_: str,
    *,
    family: str | None,
    qualifier: str | None,
    encoding: str,
    default: str | None,
    dry_run: bool,
) -> None:
    """Add COLUMN, with the values that the table has of its cell in _unmapped.

    For example: connector table alter orders add-column note STRING.
    """
    config, name = config_of(ctx), _table_of(ctx)
    columns = find_table(config, name).columns
    if family is None and not columns:
        raise click.UsageError("give the family of the cell with --family: the table has no column")
    try:
        cell = (column if qualifier is None else qualifier).encode()
    except UnicodeEncodeError:
        raise click.UsageError("the name of a column and a qualifier are UTF-8") from None
    added = Column(
        column,
        family or columns[0].family,
        cell,
        type_of(type_),
        Encoding(encoding),
        default=default,
    )
    report = alter_table(config, name, add=added, dry_run=dry_run, on_event=show_event)
    _show_altered(name, f"{column} is added", report, dry_run=dry_run)


@alter.command("drop-column")
@click.argument("column", metavar="COLUMN")
@_dry_run
@click.pass_context
def drop_column(ctx: click.Context, column: str, *, dry_run: bool) -> None:
    """Drop COLUMN. Its values return to _unmapped."""
    name = _table_of(ctx)
    report = alter_table(config_of(ctx), name, drop=column, dry_run=dry_run, on_event=show_event)
    _show_altered(name, f"{column} is dropped", report, dry_run=dry_run)


@alter.command("set-default")
@click.argument("column", metavar="COLUMN")
@click.argument("value", metavar="VALUE", required=False)
@click.option("--none", is_flag=True, help="Remove the default.")
@click.pass_context
def set_default(ctx: click.Context, column: str, value: str | None, *, none: bool) -> None:
    """Set the value that writers of rows give to COLUMN if a row lacks it."""
    if (value is None) is not none:
        raise click.UsageError("give a VALUE, or --none")
    name = _table_of(ctx)
    report = alter_table(config_of(ctx), name, default=(column, value), on_event=show_event)
    _show_altered(name, f"the default of {column} is set", report, dry_run=False)


def _table_of(ctx: click.Context) -> str:
    assert ctx.parent is not None
    return str(ctx.parent.params["name"])


def _show_altered(name: str, what: str, report: AlterReport, *, dry_run: bool) -> None:
    if not dry_run:
        err(f"{name}: {what} before the next apply, within 30s if the pipeline runs")
        return
    rows = counted(report.rows, "row")
    err(f"{name}: {rows} would be written again, about {report.size:,} bytes")
    for column, values in report.values.items():
        misfits = counted(report.misfits[column], "value does not fit", "values do not fit")
        stay = " and stay in _unmapped" if report.misfits[column] else ""
        err(f"{name}: {column} would get {counted(values, 'value')}; {misfits}{stay}")
    features = ", ".join(report.reader_features) or "none"
    err(f"{name}: new features of Delta that readers must know: {features}")


@command.command()
@click.argument("name", metavar="NAME", type=TABLE)
@click.option(
    "--take-over",
    is_flag=True,
    help="Replace the definition of another warehouse's table, and a newer version.",
)
@click.pass_context
def publish(ctx: click.Context, name: str, *, take_over: bool) -> None:
    """Publish the definition of table NAME for producers, as `connector run` does."""
    publish_table(config_of(ctx), name, take_over=take_over, on_event=show_event)
    err(f"{name}: the definition is published")


@command.command()
@click.argument("name", metavar="NAME", type=TABLE)
@click.option(
    "--from",
    "start_from",
    metavar="TABLE",
    help="Copy another table of the stream. Later applies add what it lacks.",
)
@spark_options
@click.pass_context
def rebuild(
    ctx: click.Context, name: str, *, start_from: str | None, cores: str | None, memory: str | None
) -> None:
    """Rebuild table NAME from the changelog, with the columns that are declared now.

    Stop `connector run` first. Readers see the old table until the new one is complete. If you kill
    the command, the old table stays.
    """
    with Progress() as progress:
        report = tables.rebuild(
            config_of(ctx),
            name,
            on_event=progress.on_event,
            cores=cores,
            memory=memory,
            start_from=start_from,
        )
    origin = counted(report.changes, "change") if start_from is None else f"table {start_from}"
    err(f"{name} is rebuilt from {origin}, up to batch {report.to_batch}")
    if report.misfits:
        err(
            f"{counted(report.misfits, 'cell')} of new columns do not have the declared type, and"
            " stay in _unmapped"
        )
    if report.covered:
        err(f"{counted(report.covered, 'dead letter')} closed as covered")
