"""`connector read`: a table, for people and for programs (TBL-16, TBL-22, OPS-10)."""

from __future__ import annotations

import base64
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import click

from connector.cli.parameters import DURATION_S, MEMORY, TABLE, config_of, json_option
from connector.cli.remedies import command_line, naming_option
from connector.cli.terminal import err, escaped, out, show_event, show_table, shown_bytes, table
from connector.records.json_view import to_line
from connector.records.views import EPOCH, MICROSECOND, view_of_bytes
from connector.reports.stream_status import OpenLetters
from connector.services.read import TableRead, read
from connector.services.rows.values import of_arrow
from connector.tables.values import DataType, view_of_value
from connector.text import counted

ROWS_FOR_PEOPLE: Final = 40

View = Callable[[Any], Any]


@click.command()
@click.argument("name", metavar="TABLE", type=TABLE)
@json_option("Print one JSON object per line, for every row.")
@click.option(
    "--limit",
    type=click.IntRange(1, sys.maxsize),
    help=f"Stop after this many rows. Default: {ROWS_FOR_PEOPLE} without --json, all with it.",
)
@click.option(
    "--max-staleness",
    "bound_s",
    type=DURATION_S,
    help=(
        "The maximum age of the rows, for example 10m. 0: merge all changes. Default: the"
        " max_staleness of the table."
    ),
)
@click.option(
    "--allow-stale", is_flag=True, help="Print the rows also if they are older than the bound."
)
@click.option(
    "--snapshot",
    is_flag=True,
    help="Read the newest consistent cut of all tables of the stream.",
)
@click.option(
    "--memory",
    type=MEMORY,
    help="Heap of the Spark driver, if a merge is needed. Default: as in [spark].",
)
@click.pass_context
def command(
    ctx: click.Context,
    name: str,
    *,
    as_json: bool,
    limit: int | None,
    bound_s: int | None,
    allow_stale: bool,
    snapshot: bool,
    memory: str | None,
) -> None:
    """Print the rows of TABLE. If the last apply is too old, the rows are merged with the changes
    that are not applied yet.

    Only the merge needs Java. With --json, bytes are text if they are printable UTF-8, and
    {"base64": "…"} otherwise. NUMERIC is text, NULL is null, and times are ISO 8601 in UTC. Numbers
    that JSON does not have are "NaN", "Infinity" and "-Infinity".
    """
    if snapshot and (bound_s is not None or allow_stale):
        raise click.UsageError(
            "do not use --max-staleness or --allow-stale with --snapshot: a snapshot has the"
            " age of the newest cut"
        )
    config = config_of(ctx)
    options: dict[str, Any] = {
        "max_staleness_s": bound_s,
        "allow_stale": allow_stale,
        "snapshot": snapshot,
    }
    with (
        naming_option("--allow-stale"),
        read(config, name, **options, on_event=show_event, memory=memory) as table_read,
    ):
        err(table_read.text)
        _report_missing(table_read.missing, config.tables[name].stream)
        if as_json:
            _print_json(table_read, itertools.islice(table_read.rows, limit))
        else:
            _print_table(table_read, limit or ROWS_FOR_PEOPLE)


def _report_missing(missing: OpenLetters, stream: str) -> None:
    """Report the dead letters and releases whose changes the rows may lack (DLQ-7)."""
    if missing.count:
        number = counted(missing.count, "dead letter")
        at_most = (
            "" if missing.is_known else f" at most ({missing.problem or 'Kafka cannot be reached'})"
        )
        letters = command_line("dead-letters list", stream=stream)
        err(f"the changes in {number}{at_most} are not in these rows; to see them: {letters}")
    elif missing.under_way:
        err(
            "the changes in some replayed dead letters are not in these rows: ingest has not read"
            " them yet"
        )
    if missing.withheld:
        releases = counted(missing.withheld, "release")
        why = command_line("write-streams list", stream=stream)
        err(f"{releases} of write streams may have rows that are not shown; to see why: {why}")


def _print_json(table_read: TableRead, rows: Iterable[tuple[Any, ...]]) -> None:
    views = [(name, _view(type_)) for name, type_ in table_read.columns.items()]
    for row in rows:
        out(
            to_line(
                {
                    name: None if value is None else view(value)
                    for (name, view), value in zip(views, row, strict=True)
                }
            )
        )


def _print_table(table_read: TableRead, limit: int) -> None:
    shown = table(
        *table_read.columns,
        right=frozenset(
            name
            for name, type_ in table_read.columns.items()
            if type_ in {"long", "double"} or "decimal" in type_
        ),
    )
    views = [_view(type_) for type_ in table_read.columns.values()]
    rows = table_read.rows
    for row in itertools.islice(rows, limit):
        shown.add_row(*(_for_people(value, view) for value, view in zip(row, views, strict=True)))
    if count := shown.row_count:
        show_table(shown)
    more = next(rows, None) is not None
    err(
        f"the first {counted(count, 'row')}; use --limit for more, or --json for all"
        if more
        else counted(count, "row")
    )


def _for_people(value: Any, view: View) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return shown_bytes(value)
    if view is _map:
        return ", ".join(f"{escaped(name)}={shown_bytes(cell)}" for name, cell in value)
    if view is _parts:
        return escaped(to_line(view(value)).rstrip())
    return escaped(str(view(value)))


def _view(delta_type: str) -> View:
    """How a value of this Delta type is written as JSON (REC-22)."""
    if delta_type == "map":
        return _map
    if delta_type in ("array", "struct"):
        return _parts
    type_ = DataType.NUMERIC if delta_type.startswith("decimal") else _TYPES.get(delta_type)
    if type_ is None:
        return lambda value: value
    return lambda value: view_of_value(type_, of_arrow(type_, value))


def _map(pairs: list[tuple[str, bytes]]) -> Mapping[str, Any]:
    return {name: view_of_bytes(cell) for name, cell in pairs}


def _parts(value: Any) -> Any:
    """A value with parts, which have Python's types: as in a cell (`connector.tables.nested`)."""
    match value:
        case list():
            return [_parts(item) for item in value]
        case dict():
            return {name: _parts(item) for name, item in value.items()}
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return view_of_value(DataType.NUMERIC, value)
        case datetime() if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        case datetime():
            return view_of_value(DataType.TIMESTAMP, (value - EPOCH) // MICROSECOND)
        case date():
            return value.isoformat()
        case float():
            return view_of_value(DataType.FLOAT64, value)
        case _:
            return value


_TYPES: Final[Mapping[str, DataType]] = {
    "binary": DataType.BYTES,
    "date": DataType.DATE,
    "double": DataType.FLOAT64,
    "float": DataType.FLOAT64,
    "timestamp": DataType.TIMESTAMP,
    "timestamp_ntz": DataType.DATETIME,
}
