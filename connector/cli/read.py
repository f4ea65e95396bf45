"""`connector read`: a table, for people and for programs (TBL-16, TBL-22, OPS-10)."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from connector import warehouse as places
from connector.cli import local_spark, settings
from connector.cli.open_letters import open_letters_of
from connector.cli.parameters import DURATION_S
from connector.cli.terminal import console, escaped, out, say, shown_bytes, table
from connector.clock import now_us
from connector.errors import TableError
from connector.records.json_view import to_line
from connector.records.views import view_of_bytes, view_of_time
from connector.state.jobs import Job
from connector.state.overrides import bound_in_force
from connector.state.table_state import TableState
from connector.tables.values import TIMESTAMP_MAX, TIMESTAMP_MIN
from connector.text import counted

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig
    from connector.lake.jobs import History

ROWS_FOR_PEOPLE: Final = 40
_MIDNIGHT: Final = datetime(1970, 1, 1)  # noqa: DTZ001, of UTC; the zone is written by hand
_EPOCH: Final = _MIDNIGHT.date()

View = Callable[[Any], Any]


@click.command()
@click.argument("name", metavar="TABLE")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, every row.")
@click.option(
    "--limit", type=click.IntRange(1, sys.maxsize), help=f"Stop after so many rows; {ROWS_FOR_PEOPLE} without --json, unless given."
)
@click.option(
    "--max-staleness", "bound_s", type=DURATION_S, help="How old the rows may be, as 10m; 0: everything. The table's bound, unless given."
)
@click.option("--allow-stale", is_flag=True, help="Show what there is, however old.")
@click.option("--snapshot", is_flag=True, help="The newest state at which all tables of the stream stood, whole transactions.")
@click.option("--memory", default="2g", show_default=True, help="Heap of the local Spark that merges, where that is needed.")
@click.pass_context
def command(
    ctx: click.Context, name: str, *, as_json: bool, limit: int | None, bound_s: int | None, allow_stale: bool, snapshot: bool, memory: str
) -> None:
    """Print the rows of TABLE: as its last apply left them where that is fresh enough, else merged with what was not applied yet.

    Only the merge needs Java. With --json bytes are text where they are printable UTF-8, else {"base64": "…"}; NUMERIC is text, NULL
    is null, times are ISO 8601 in UTC, and numbers that JSON lacks are "NaN", "Infinity" and "-Infinity".
    """
    from connector.lake.overrides import Overrides

    if snapshot and (bound_s is not None or allow_stale):
        raise click.UsageError("--snapshot is as old as the newest cut: --max-staleness and --allow-stale do not go with it")
    config = settings.load(ctx)
    definition = settings.table(config, name)
    bound = bound_in_force(definition, Overrides(config.warehouse).bounds()) if bound_s is None else bound_s
    with ExitStack() as stack:
        found = _snapshot(config, name) if snapshot else _as_it_stands(config, name, bound, allow_stale=allow_stale)
        found = found or _merged(config, name, bound, stack, allow_stale=allow_stale, memory=memory)
        say(found.said)
        _say_what_is_missing(config, name)
        if as_json:
            _print_json(found, itertools.islice(found.rows, limit))
        else:
            _print_table(found, limit or ROWS_FOR_PEOPLE)


@dataclass(frozen=True, slots=True)
class Found:
    """Rows as tuples of the columns in `types` (Delta's names of types), as `PlainTable.rows` has them, and what they are worth."""

    types: Mapping[str, str]
    rows: Iterator[tuple[Any, ...]]
    said: str


def _as_it_stands(config: ConnectorConfig, name: str, bound: int | None, *, allow_stale: bool) -> Found | None:
    """The table without a JVM, if that will do (TBL-16)."""
    from connector.lake.plain_table import open_table
    from connector.lake.state_reader import progress_of

    now = now_us()
    found = open_table(places.table(config.warehouse, name))
    before, progress = TableState.from_json(found.table_state), progress_of(config.warehouse, config.tables[name].stream)
    try:
        before.check_changelog(name, progress.ingest_batch)
    except TableError as error:  # a table may be read where its changelog is not
        say(f"warning: {error}")
    if not progress.suffices(before, bound, now):
        return None
    as_of = progress.as_of(before)
    if not allow_stale:
        progress.check_age(name, as_of, bound, now, before.blocked_rows)
    worth = _worth(as_of, before.apply_watermark, is_consistent_cut=before.is_consistent_cut)
    return Found(
        found.types, found.rows(), f"{name} as of ingest batch {before.to_batch} (version {found.version} of the Delta table){worth}"
    )


def _snapshot(config: ConnectorConfig, name: str) -> Found:
    """The table at the newest cut of its stream, without a JVM (TBL-17)."""
    from connector.lake.jobs import History
    from connector.lake.plain_table import open_table

    cut = next((cut for cut in History(config.warehouse).cuts(config.tables[name].stream) if name in cut.versions), None)
    if cut is None:
        raise TableError(
            f"No cut was recorded at which {name} stood",
            "The low watermark of its stream is not known yet, or a table of the stream is not a consistent cut",
            "See `connector status`, and read the table without --snapshot meanwhile",
        )
    try:
        found = open_table(places.table(config.warehouse, name), version=cut.versions[name])
    except TableError as error:
        raise TableError(
            f"The cut of {name} at {view_of_time(cut.low_watermark)} cannot be read",
            f"it may have expired: {error.cause}",
            "read the table without --snapshot; a longer snapshot_retention keeps cuts longer",
        ) from error
    revised = f", revision {cut.revision}" if cut.revision else ""
    return Found(found.types, found.rows(), f"{name} at {view_of_time(cut.low_watermark)}, ingest batch {cut.to_batch}{revised}")


def _merged(config: ConnectorConfig, name: str, bound: int | None, stack: ExitStack, *, allow_stale: bool, memory: str) -> Found:
    """The table merged with everything that was ingested, by Spark; the merge is kept in the job history (TBL-16, TBL-19)."""
    from connector.lake.jobs import History
    from connector.spark import read_table
    from connector.spark.reader import plain_rows

    say(f"{name} has changes that are not applied yet: Spark merges them")
    spark = local_spark.start(stack, cores="*", memory=memory)
    jobs: list[Job] = []
    # The job ends when the rows are printed.
    stack.callback(lambda: _keep(History(config.warehouse), jobs))
    reading = read_table(*(spark, config.warehouse, name), max_staleness_s=bound or 0, allow_stale=allow_stale, add_job=jobs.append)
    types, rows = plain_rows(reading.rows)
    worth = _worth(reading.as_of, reading.low_watermark, is_consistent_cut=reading.is_consistent_cut)
    merged = f"{counted(reading.changes, 'change')} merged" if reading.changes is not None else "as it stands"
    return Found(types, rows, f"{name} as of ingest batch {reading.to_batch}, {merged}{worth}")


def _keep(history: History, jobs: Iterable[Job]) -> None:
    """Rows that could be read are worth more than their line in the history (JOB-1)."""
    try:
        for job in jobs:
            history.add_job(replace(job, ended_at=now_us()))
    except TableError as error:
        say(f"warning: {error}")


def _say_what_is_missing(config: ConnectorConfig, name: str) -> None:
    """Rows without a dead letter that may be of them are not called complete (DLQ-7)."""
    from connector.lake.state_reader import progress_of, table_state_of

    stream = config.streams[config.tables[name].stream]
    try:
        of_table = {name: table_state_of(config.warehouse, name)}
        _, letters = open_letters_of(config, stream, progress_of(config.warehouse, stream.name), of_table)
    except TableError:  # rows that could be read are worth more than what is said of them
        return
    missing = letters[name]
    if missing.count:
        number = counted(missing.count, "dead letter")
        at_most = "" if missing.is_known else " at most: Kafka cannot be asked"
        say(f"not complete without {number}{at_most}; see connector dead-letters list")
    elif missing.under_way:
        say("not complete: dead letters were replayed that are not ingested yet")


def _worth(as_of: int | None, low_watermark: int | None, *, is_consistent_cut: bool) -> str:
    arrived = "" if as_of is None else f"; everything that had arrived at {view_of_time(as_of)}"
    below = f", the source's state at {view_of_time(low_watermark)}" if is_consistent_cut and low_watermark is not None else ""
    return f"{arrived}{below or ', not a consistent cut'}"


def _print_json(found: Found, rows: Iterable[tuple[Any, ...]]) -> None:
    views = [(name, _view(type_)) for name, type_ in found.types.items()]
    for row in rows:
        out(to_line({name: None if value is None else view(value) for (name, view), value in zip(views, row, strict=True)}))


def _print_table(found: Found, limit: int) -> None:
    shown = table(
        *found.types, right=frozenset(name for name, type_ in found.types.items() if type_ in {"long", "double"} or "decimal" in type_)
    )
    views = [_view(type_) for type_ in found.types.values()]
    rows = found.rows
    for row in itertools.islice(rows, limit):
        shown.add_row(*(_for_people(value, view) for value, view in zip(row, views, strict=True)))
    if count := shown.row_count:
        console().print(shown)
    more = next(rows, None) is not None
    say(f"the first {counted(count, 'row')}; all of them with --json, more with --limit" if more else counted(count, "row"))


def _for_people(value: Any, view: View) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return shown_bytes(value)
    if isinstance(value, list):
        return ", ".join(f"{escaped(name)}={shown_bytes(cell)}" for name, cell in value)
    return escaped(str(view(value)))


def _view(delta_type: str) -> View:
    """How a value of this Delta type is written as JSON (REC-22)."""
    if delta_type.startswith("decimal"):
        return _numeric
    return _VIEWS.get(delta_type, _itself)


def _itself(value: Any) -> Any:
    return value


def _numeric(value: Any) -> str:
    """Without an exponent, and without zeros at the end that say nothing."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _date(days: int) -> str:
    return (_EPOCH + timedelta(days=days)).isoformat()


def _timestamp(timestamp: int) -> str | int:
    """ISO 8601 in every year that it can write; the microseconds beyond."""
    if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
        return timestamp
    return (_MIDNIGHT + timedelta(microseconds=timestamp)).isoformat(timespec="microseconds") + "Z"


def _map(pairs: list[tuple[str, bytes]]) -> Mapping[str, Any]:
    return {name: None if cell is None else view_of_bytes(cell) for name, cell in pairs}


_VIEWS: Final[Mapping[str, View]] = {
    "binary": view_of_bytes,
    "date": _date,
    "double": _double,
    "float": _double,
    "map": _map,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp,
}
