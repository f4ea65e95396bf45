"""`connector write-streams`: what the catalog and ingest know of the write streams of a stream, and
the actions of an operator (WRS-23).
"""

from __future__ import annotations

from typing import Final

import click

from connector.cli.parameters import (
    DURATION_S,
    MOMENT,
    check_why,
    config_and_stream,
    json_option,
    stream_option,
)
from connector.cli.remedies import command_line
from connector.cli.terminal import err, escaped, out, show_event, show_table, table
from connector.errors import as_sentence
from connector.records.json_view import to_line
from connector.records.views import view_of_time
from connector.reports.write_stream_status import ReleaseStatus, named
from connector.services.write_streams import (
    WriteStreamList,
    commit_write_streams,
    discard_write_streams,
    finalize_write_stream,
    list_write_streams,
    release_again,
    release_rows,
)
from connector.text import counted, duration, nearest
from connector.write_streams.releases import Withheld
from connector.write_streams.rules import Fault, fault_error


@click.group()
def command() -> None:
    """List the write streams of a stream; finalize, commit, discard and release them."""


@command.command("list")
@stream_option
@json_option("Print one JSON object per line for each write stream.")
@click.pass_context
def list_(ctx: click.Context, stream: str | None, *, as_json: bool) -> None:
    """Show the write streams of a stream, the sessions that have probably died, and the releases
    that are not complete.
    """
    config, of_stream = config_and_stream(ctx, stream)
    listed = list_write_streams(config, of_stream.name)
    if as_json:
        for status in listed.write_streams.values():
            out(to_line(status.to_json()))
    elif listed.write_streams:
        _print(listed)
    _print_remedies(listed)
    err(
        f"{counted(len(listed.write_streams), 'write stream')} of {listed.stream}, by ingest batch"
        f" {listed.ingest_batch}"
    )


def _print(listed: WriteStreamList) -> None:
    right = frozenset({"end", "released"})
    shown = table(
        "write stream", "kind", "state", "end", "released", "last append", "expires", right=right
    )
    for status in listed.write_streams.values():
        shown.add_row(
            escaped(status.name),
            str(status.kind),
            status.state,
            f"{status.end:,}",
            "" if status.released_rows is None else f"{status.released_rows:,}",
            "" if status.last_append is None else _ago(listed.now, status.last_append),
            "" if status.expires_at is None else _in(listed.now, status.expires_at),
        )
    show_table(shown)


def _ago(now: int, then: int) -> str:
    return f"{duration(max(0, now - then) / 1_000_000)} ago"


def _in(now: int, then: int) -> str:
    return f"in {duration((then - now) / 1_000_000)}" if then > now else _ago(now, then)


def _print_remedies(listed: WriteStreamList) -> None:
    for session in listed.sessions:
        since = duration(max(0, listed.now - session.since) / 1_000_000)
        err(
            f"session {session.name} has probably died: its stream partition"
            f" {session.stream_partition} has not moved for {since}, and delays the low watermark"
        )
        if session.write_streams:
            name, words = session.write_streams[0], "write-streams finalize"
            end = command_line(words, name, stream=listed.stream)
            err(f"to end it: {end}")
    if any(release.withheld is Withheld.NO for release in listed.releases):
        err(f"to ingest the rows: {command_line('run')}")
    for release in listed.releases:
        state = "incomplete" if release.withheld is Withheld.NO else "withheld"
        err(
            f"the release of {named(release)} is {state}: {release.problem}; {release.remedy}"
            + (" (requested)" if release.is_requested else "")
        )
        if release.withheld in _RELEASES and not release.is_requested:
            err(f"to release it: {request_of(release, listed)}")


_RELEASES: Final = {Withheld.ROWS: "--without-rejected --why …", Withheld.TOO_LATE: "--again"}


def request_of(release: ReleaseStatus, listed: WriteStreamList) -> str:
    """The command that releases a withheld release. It names a write stream, and the commit
    timestamp if the write stream has several releases that are withheld for the same reason.
    """
    name = release.write_streams[0]
    alike = [
        other
        for other in listed.releases
        if other.withheld is release.withheld and name in other.write_streams
    ]
    time = str(view_of_time(release.commit_timestamp)) if len(alike) > 1 else None
    words = f"write-streams release {_RELEASES[release.withheld]}"
    return command_line(words, name, stream=listed.stream, commit_timestamp=time)


@command.command()
@stream_option
@click.argument("name", metavar="NAME")
@click.pass_context
def show(ctx: click.Context, stream: str | None, name: str) -> None:
    """Print write stream NAME as one JSON object."""
    config, of_stream = config_and_stream(ctx, stream)
    streams = list_write_streams(config, of_stream.name).write_streams
    if name not in streams:
        if similar := nearest(name, streams):
            err(as_sentence(similar))
        raise fault_error(Fault.NOT_FOUND, name)
    out(to_line(streams[name].to_json()))


@command.command()
@stream_option
@click.argument("name", metavar="NAME")
@click.pass_context
def finalize(ctx: click.Context, stream: str | None, name: str) -> None:
    """Finalize write stream NAME, whose session is lost: it takes no rows any more.

    This ends the session. If its process is still alive, its next call fails. The stream partitions
    of the session end, too. This may take a minute.
    """
    config, of_stream = config_and_stream(ctx, stream)
    rows = finalize_write_stream(config, of_stream.name, name)
    err(f"{escaped(name)} is finalized, with {counted(rows, 'row')}")


@command.command()
@stream_option
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--as-of",
    type=MOMENT,
    help="The commit timestamp of a backfill: a time at or before its export. Newer changes keep"
    " their values.",
)
@click.option("--wait", is_flag=True, help="Wait until every table of the stream shows the rows.")
@click.option("--timeout", type=DURATION_S, help="How long --wait waits. Default: for ever.")
@click.pass_context
def commit(
    ctx: click.Context,
    stream: str | None,
    names: tuple[str, ...],
    *,
    as_of: int | None,
    wait: bool,
    timeout: int | None,
) -> None:
    """Commit the pending write streams NAME...: all their rows become visible together. They must
    be finalized. Print the commit timestamp.

    If you repeat the command with the same write streams, it prints the same commit timestamp.
    """
    if timeout is not None and not wait:
        raise click.UsageError("use --timeout with --wait")
    config, of_stream = config_and_stream(ctx, stream)
    commit_timestamp = commit_write_streams(
        config,
        of_stream.name,
        names,
        as_of=as_of,
        wait=wait,
        timeout_s=timeout,
        on_event=show_event,
    )
    out(str(view_of_time(commit_timestamp)))
    shown = f", and applied to every table of {of_stream.name}" if wait else ""
    err(f"{counted(len(set(names)), 'write stream')} committed{shown}")


@command.command()
@stream_option
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.pass_context
def discard(ctx: click.Context, stream: str | None, names: tuple[str, ...]) -> None:
    """Discard the pending or buffered write streams NAME...: their rows that are not released never
    become visible. They must be finalized or expired. You cannot undo this.
    """
    config, of_stream = config_and_stream(ctx, stream)
    discard_write_streams(config, of_stream.name, names)
    err(f"{counted(len(set(names)), 'write stream')} discarded")


@command.command()
@stream_option
@click.argument("name", metavar="NAME")
@click.option(
    "--commit-timestamp",
    type=MOMENT,
    help="That of the release. NAME may have several releases that are withheld.",
)
@click.option(
    "--without-rejected",
    is_flag=True,
    help="Release the rows that are there, without those that were rejected. You cannot undo this.",
)
@click.option(
    "--again", is_flag=True, help="Release the rows with a new commit timestamp: the present time."
)
@click.option("--why", help="The reason, with --without-rejected. It is kept with your name.")
@click.pass_context
def release(
    ctx: click.Context,
    stream: str | None,
    name: str,
    *,
    commit_timestamp: int | None,
    without_rejected: bool,
    again: bool,
    why: str | None,
) -> None:
    """Make the rows of a withheld release visible. NAME is a write stream of the release, as
    `connector write-streams list` shows it. All write streams of the release become visible.

    Ingest takes the request within ten seconds (90 in an object store), or when it runs again.
    """
    if without_rejected == again:
        raise click.UsageError("use --without-rejected or --again, and not both")
    if without_rejected:
        check_why(why)
    if again and why is not None:
        raise click.UsageError("use --why with --without-rejected only")
    config, source = config_and_stream(ctx, stream)
    of_stream = source.name
    if again:
        new = release_again(config, of_stream, name, commit_timestamp=commit_timestamp)
        out(str(view_of_time(new)))
        err("the rows have a new commit timestamp")
    else:
        release_rows(config, of_stream, name, commit_timestamp=commit_timestamp, why=why or "")
        err("the release becomes visible without the rejected rows")
    err(f"to check it: {command_line('write-streams list', stream=of_stream)}")
