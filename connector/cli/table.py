"""`connector table`: what was done to a table, its bound and pace, and to make it anew (TBL-19, TBL-20, TBL-21)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from connector import warehouse as places
from connector.cli import local_spark, settings
from connector.cli.parameters import DURATION_S
from connector.cli.status import duration
from connector.cli.terminal import console, escaped, out, say
from connector.cli.terminal import table as empty_table
from connector.clock import now_us
from connector.dead_letters.ledger import LetterState
from connector.errors import ConnectorError
from connector.records.json_view import to_line
from connector.records.views import view_of_time
from connector.state.jobs import MAINTENANCE, RECOMMENDED_OVER_S, Job, JobKind, p95_s, recommended_bound_s
from connector.state.overrides import PaceOverride, StalenessOverride, pace_in_force
from connector.state.status_json import view_of_job
from connector.text import counted, nearest

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig
    from connector.spark.apply.rebuild import Rebuilt

JOBS_FOR_PEOPLE = 40
BOUND = "max_staleness"
PACE = "apply_every"


@click.group()
def command() -> None:
    """What was done to a table, how old its readers let it be, and a new one in its place."""


@command.command()
@click.argument("name", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each job.")
@click.option("--limit", type=click.IntRange(1), help=f"Stop after so many jobs; {JOBS_FOR_PEOPLE} without --json, unless given.")
@click.pass_context
def history(ctx: click.Context, name: str, *, as_json: bool, limit: int | None) -> None:
    """Show the jobs of table NAME, the newest first; then how long its applies take, and the bound that follows."""
    from connector.lake.jobs import History

    config = settings.load(ctx)
    definition = settings.table(config, name)
    kept = History(config.warehouse)
    jobs = kept.jobs(name, limit=limit or (None if as_json else JOBS_FOR_PEOPLE))
    if as_json:
        for job in jobs:
            out(to_line(view_of_job(job)))
    elif jobs:
        _print(jobs)
    p95 = p95_s(kept.durations_us(name, since=now_us() - RECOMMENDED_OVER_S * 1_000_000))
    if p95 is None:
        say(f"{counted(len(jobs), 'job')} of {name}; no apply of the last seven days ended well")
    else:
        bound = duration(recommended_bound_s(p95, config.streams[definition.stream].buffer_s) or 0)
        say(f"{counted(len(jobs), 'job')} of {name}; 95 of 100 applies take at most {p95:.1f} s: a max_staleness of {bound} can be kept")


def _print(jobs: list[Job]) -> None:
    shown = empty_table("job", "ended", "took", "batches", "changes", "letters", "complete below", "error", right=frozenset({"changes"}))
    for job in jobs:
        below = "" if job.watermark_after is None else str(view_of_time(job.watermark_after))
        batches = f"{job.from_batch + 1} to {job.to_batch}" if job.to_batch > job.from_batch else ""
        if job.kind in MAINTENANCE:
            batches = counted(job.files, "file")
        counts = (f"{job.changes:,}", f"{job.letters:,}")
        kind = job.kind.value.replace("_", "-" if job.kind in MAINTENANCE else " ")
        shown.add_row(kind, str(view_of_time(job.ended_at)), f"{job.duration_s:.1f} s", batches, *counts, below, escaped(job.error))
    console().print(shown)


@command.command("set")
@click.argument("name", metavar="NAME")
@click.argument("setting", metavar=f"[{BOUND}=DURATION | {PACE}=DURATION]", required=False)
@click.option("--unset", is_flag=True, help="Have what the configuration says of both hold again.")
@click.pass_context
def set_(ctx: click.Context, name: str, setting: str | None, *, unset: bool) -> None:
    """Set the max_staleness of table NAME, or its apply_every, as 10m or '0-0 0 0:10:0'. It outranks the configuration until --unset.

    Readers see it at once, and a running pipeline within ten seconds; nothing has to be started again.
    """
    from connector.lake.overrides import Overrides

    if (setting is None) is not unset:
        raise click.UsageError(f"say {BOUND}=10m, {PACE}=1h, or --unset")
    wanted = {} if setting is None else _setting(ctx, setting)
    config = settings.load(ctx)
    definition, overrides = settings.table(config, name), Overrides(config.warehouse)
    about = (now_us(), settings.who())
    if unset or BOUND in wanted:
        overrides.set(StalenessOverride(name, wanted.get(BOUND), *about))
    if PACE in wanted or (unset and name in overrides.paces()):
        overrides.set(PaceOverride(name, wanted.get(PACE), *about))
    whose = "of the configuration" if unset else "until it is unset"
    if unset or BOUND in wanted:
        bound = wanted.get(BOUND, definition.max_staleness_s)
        say(f"{name}: {BOUND} {duration(bound)} {whose}" if bound else f"{name}: no {BOUND}, every read merges what is not applied")
    every = pace_in_force(definition, overrides.bounds(), overrides.paces())
    say(f"{name}: applied every {duration(every)}{f', {whose}' if PACE in wanted else ''}")


def _setting(ctx: click.Context, setting: str) -> dict[str, int]:
    name, is_given, text = setting.partition("=")
    name, known = name.strip(), [BOUND, PACE]
    if name not in known or not is_given:
        hint = nearest(name, known)
        can = f"only {BOUND}=DURATION and {PACE}=DURATION can be set so"
        raise click.UsageError(f"{escaped(setting)!r} is none; {can}. {hint}".rstrip())
    seconds = DURATION_S.convert(text, None, ctx)
    if name == PACE and seconds < 1:
        raise click.UsageError(f"{PACE} is at least 1s; --unset has what the configuration says hold again")
    return {name: seconds}


@command.command()
@click.argument("name", metavar="NAME")
@click.option("--cores", default="*", show_default=True, help="Threads of a local Spark; * for as many as there are processors.")
@click.option("--memory", default="2g", show_default=True, help="Heap of a local Spark driver.")
@click.pass_context
def rebuild(ctx: click.Context, name: str, *, cores: str, memory: str) -> None:
    """Make table NAME anew from the changelog, with the columns that it is declared with, and put it in the place of the old one.

    Stop `connector run` first. Readers see the old table until the new one is whole. Kill it at any instant: the old one stays.
    """
    from connector.lake.jobs import History

    config = settings.load(ctx)
    settings.table(config, name)
    history, started_at = History(config.warehouse), now_us()
    job = Job(JobKind.REBUILD, name, started_at, started_at)
    with ExitStack() as stack:
        try:
            made = _rebuild(config, name, stack, cores=cores, memory=memory)
        except ConnectorError as error:
            history.add_job(replace(job, ended_at=now_us(), error=error.problem))
            raise
    before, after = made.before, made.table_state
    done = replace(job, ended_at=now_us(), to_batch=after.to_batch, changes=made.changes, letters=made.letters)
    history.add_job(replace(done, watermark_before=before.apply_watermark, watermark_after=after.apply_watermark))
    say(f"{name} is rebuilt from {counted(made.changes, 'change')}, up to batch {after.to_batch}")
    if made.misfits:
        say(f"{counted(made.misfits, 'cell')} of new columns cannot be read as they are declared, and stay in _unmapped")


def _rebuild(config: ConnectorConfig, name: str, stack: ExitStack, *, cores: str, memory: str) -> Rebuilt:
    from connector.kafka.dead_letters.ledger_topic import read_ledger
    from connector.kafka.dead_letters.topic import DeadLetterPublisher
    from connector.spark.apply.rebuild import rebuild
    from connector.spark.storage.changelog import Changelog

    definition = config.tables[name]
    stream = config.streams[definition.stream]
    # Kafka is needed for letters only.
    publisher = stack.enter_context(DeadLetterPublisher(config.kafka, stream.topic))
    spark = local_spark.start(stack, cores=cores, memory=memory)
    changelog = Changelog(spark, places.changelog(config.warehouse, stream.name), stream.name)
    cut = changelog.progress().cut(now_us(), stream.stall_after_s)
    return rebuild(
        *(spark, places.table_folder(config.warehouse, name), definition, changelog, cut),
        publish=publisher.publish,
        discarded=lambda: read_ledger(config.kafka, stream.topic).ids(LetterState.DISCARDED),
    )
