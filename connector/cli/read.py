"""`connector read`: a table, for people and for programs (TBL-16, TBL-22, OPS-10)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from connector.cli import settings
from connector.cli.terminal import console, counted, escaped, out, say, shown_bytes, table
from connector.errors import ConfigError
from connector.json_view import to_line, view_of_bytes
from connector.sections import nearest, one_of
from connector.values import TIMESTAMP_MAX, TIMESTAMP_MIN

if TYPE_CHECKING:
    from connector.lake.plain_table import PlainTable

ROWS_FOR_PEOPLE: Final = 40
_MIDNIGHT: Final = datetime(1970, 1, 1)  # noqa: DTZ001, of UTC; the zone is written by hand
_EPOCH: Final = _MIDNIGHT.date()

View = Callable[[Any], Any]


@click.command()
@click.argument("name", metavar="TABLE")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, every row.")
@click.option("--limit", type=click.IntRange(1), help=f"Stop after so many rows; {ROWS_FOR_PEOPLE} without --json, unless given.")
@click.pass_context
def command(ctx: click.Context, name: str, as_json: bool, limit: int | None) -> None:
    """Print the rows of TABLE as its last apply left them; changes that are not applied yet are not looked for.

    With --json bytes are text where they are printable UTF-8, else {"base64": "…"}; NUMERIC is text, NULL is null, times are
    ISO 8601 in UTC, and numbers that JSON lacks are "NaN", "Infinity" and "-Infinity".
    """
    from connector.lake.plain_table import open_table

    config = settings.load(ctx)
    if name not in config.tables:
        remedy = nearest(name, config.tables) or f"add a section [tables.{name}] to the configuration"
        raise ConfigError(f'there is no table "{name}"', f"the configuration has {one_of(config.tables)}", remedy)
    found = open_table(f"{config.warehouse}/tables/{name}/data")
    say(_as_of(name, found))
    if as_json:
        _print_json(found, itertools.islice(found.rows(), limit))
    else:
        _print_table(found, limit or ROWS_FOR_PEOPLE)


def _as_of(name: str, found: PlainTable) -> str:
    batch = found.bookkeeping.get("to_batch")
    what = f"{name} as of ingest batch {batch}" if batch is not None else f"{name} as of its last commit"
    return f"{what} (version {found.version} of the Delta table)"


def _print_json(found: PlainTable, rows: Iterable[tuple[Any, ...]]) -> None:
    views = [(name, _view(type_)) for name, type_ in found.types.items()]
    for row in rows:
        out(to_line({name: None if value is None else view(value) for (name, view), value in zip(views, row, strict=True)}))


def _print_table(found: PlainTable, limit: int) -> None:
    shown = table(
        *found.types, right=frozenset(name for name, type_ in found.types.items() if type_ in {"long", "double"} or "decimal" in type_)
    )
    views = [_view(type_) for type_ in found.types.values()]
    rows = found.rows()
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
