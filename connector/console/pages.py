"""The values of each page, from the services (WEB-1). A page changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

from connector.cli import explain as explain_command
from connector.cli import letter_view
from connector.cli.layout import Table
from connector.cli.status import commands, cut, facts
from connector.cli.streams import table_of_partitions
from connector.clock import now_us
from connector.config.settings import ConnectorConfig, find_stream, find_table
from connector.console.charts import charts_of_table
from connector.dead_letters.filter import LetterFilter, grouped
from connector.errors import argument_invalid
from connector.records import rejection
from connector.records.views import view_of_time
from connector.reports.reasons import Reason
from connector.services.dead_letters import DeadLetters
from connector.services.requests import partitions
from connector.services.rows.explain import explain
from connector.services.rows.values import row_key_of
from connector.services.status import StatusReport
from connector.services.tables import jobs
from connector.text import duration, is_secret, without_credentials

LETTERS_COUNTED: Final = 10_000
LETTERS_LISTED: Final = 200
JOBS_READ: Final = 5_000
ROWS_SHOWN: Final = 500
VALUE_SHOWN: Final = 2_000
"""The number of characters of a cell. `connector … --json` has the whole."""


@dataclass(frozen=True, slots=True)
class Page:
    """The name of a template, and its values."""

    template: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of a page: its header, the texts of its first rows, and how many `more` there are."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    more: int = 0


class Pages:
    """The pages of a configuration, which is read again for each page."""

    def __init__(
        self, config: Callable[[], ConnectorConfig], report: Callable[[], StatusReport]
    ) -> None:
        """Both may raise `ConnectorError`, as each page."""
        self._config, self._report = config, report

    def overview(self) -> Page:
        """The reasons why a person is needed, and all streams and tables."""
        report = self._report()
        values = {
            "title": "Overview",
            "needs": _needs(report),
            "report": report,
            "commands": commands(report),
            "time": view_of_time,
            "duration": _duration,
            "cut": cut,
        }
        return Page("overview", values)

    def stream(self, name: str) -> Page:
        """One stream: its facts, and the stream partitions that delay it first."""
        report, config = self._report(), self._config()
        stream = find_stream(config, name)
        of_stream = report.streams.get(stream.name)
        about = _about(report, stream=stream.name)
        values = {
            "title": f"Stream {stream.name}",
            "name": stream.name,
            "needs": _needs(about),
            "hints": [] if of_stream is None else of_stream.hints,
            "commands": commands(about),
            "facts": [] if of_stream is None else _facts(facts(of_stream)),
            "partitions": _grid(table_of_partitions(partitions(config, stream.name))),
            "tables": sorted(config.tables_of(stream.name)),
        }
        return Page("stream", values)

    def table(self, name: str) -> Page:
        """One table: its age against its bound, its applies as charts, and its columns."""
        report, config = self._report(), self._config()
        definition = find_table(config, name)
        status, now = report.tables.get(name), now_us()
        done = jobs(config, name, limit=JOBS_READ)
        bound = None if status is None else status.max_staleness_s
        about = _about(report, table=name)
        values = {
            "title": f"Table {name}",
            "definition": definition,
            "needs": _needs(about),
            "hints": [] if status is None else status.hints,
            "commands": commands(about),
            "status": status,
            "charts": charts_of_table(done, now, bound),
            "jobs": done[:20],
            "time": view_of_time,
            "duration": _duration,
            "cut": cut,
            "unmapped": [] if status is None else status.cells_without_column,
        }
        return Page("table", values)

    def row(self, given: Mapping[str, str]) -> Page:
        """Why a row is as it is. `given` has `table` and `key`, as `connector explain` takes it."""
        config, key = self._config(), given.get("key", "")
        definition = find_table(config, given["table"])
        history = explain(config, definition.name, row_key_of(definition.key, key))
        values = {
            "title": f"Row of {definition.name}",
            "table": definition.name,
            "key": key,
            "command": shlex.join(["connector", "explain", definition.name, key]),
            "messages": [_cut(message) for message in explain_command.messages(history)],
            "facts": _facts(explain_command.facts(history)) if history.is_known else [],
            "grids": [_grid(shown) for shown in explain_command.tables(history)],
        }
        return Page("row", values)

    def letters(self, given: Mapping[str, str]) -> Page:
        """The open letters of a stream by reason; those of one reason with `reason` and `rule`."""
        letters, reason = self._letters(given["stream"]), given.get("reason", "")
        which = LetterFilter(reasons=_reasons(reason), rule=given.get("rule", ""))
        opened = list(islice(letters.list(which), LETTERS_COUNTED + 1))
        groups = grouped(opened[:LETTERS_COUNTED], ("reason", "rule", "table"), letters.schemas)
        values = {
            "title": f"Dead letters of {given['stream']}",
            "stream": given["stream"],
            "reason": reason,
            "groups": [(texts, group) for texts, group in groups],
            "letters": opened[:LETTERS_LISTED] if reason else [],
            "is_cut": len(opened) > LETTERS_COUNTED,
            "counted": LETTERS_COUNTED,
            "listed": LETTERS_LISTED,
            "time": view_of_time,
            "commands": _commands_for_letters(given["stream"], reason),
        }
        return Page("letters", values)

    def letter(self, given: Mapping[str, str]) -> Page:
        """One letter: its facts, its bytes beside the decoded record, the verdict of a replay."""
        stream, letters = given["stream"], self._letters(given["stream"])
        letter, status, history = letters.find(given["letter"])
        report = letters.report(letter, status, history)
        hexes, decoded = list[str](), list[str]()
        if letter.value is not None:
            hexes, decoded = letter_view.value_lines(letter.value, letter.reason, letters.schemas)
        of_letter = ["--stream", stream, "--", letter.id]
        values = {
            "title": f"Dead letter {letter.id}",
            "stream": stream,
            "facts": _facts(letter_view.facts(letter, status, history)),
            "verdict": report.decision.verdict,
            "why": report.decision.why,
            "effects": report.effects,
            "size": len(letter.value or b""),
            "hexes": hexes,
            "decoded": decoded,
            "commands": [
                shlex.join(["connector", "dead-letters", *words, *of_letter])
                for words in (["show", "--all"], ["replay", "--execute", "--why", "…"])
            ],
        }
        return Page("letter", values)

    def configuration(self) -> Page:
        """The configuration without its secrets."""
        entries = list(_entries(self._config()))
        return Page("configuration", {"title": "Configuration", "entries": entries})

    def _letters(self, stream: str) -> DeadLetters:
        return DeadLetters(self._config(), stream)


def _needs(report: StatusReport) -> list[tuple[str, Reason]]:
    """The reasons of a report, each with the path of its page."""
    return [(_path(reason.subject), reason) for reason in report.reasons]


def _path(subject: str) -> str:
    """The page about the subject of a reason, `stream orders` or `streams.orders`. A reason of
    several, or of none, has the first page.
    """
    for kind in ("stream", "table"):
        for start in (f"{kind} ", f"{kind}s."):
            if subject.startswith(start):
                return f"/{kind}s/{quote(subject.removeprefix(start), safe='')}"
    return "/"


def _about(report: StatusReport, *, stream: str = "", table: str = "") -> StatusReport:
    """The part of a report about one stream or table."""
    path = f"tables.{table}" if table else f"streams.{stream}"
    return replace(
        report,
        streams={name: it for name, it in report.streams.items() if name == stream},
        tables={name: it for name, it in report.tables.items() if name == table},
        pipelines={name: it for name, it in report.pipelines.items() if name == stream},
        errors={name: error for name, error in report.errors.items() if name == path},
        reload_refused=[],
    )


def _commands_for_letters(stream: str, reason: str) -> list[str]:
    which = ["--reason", reason] if reason else ["--all"]
    replay = ["connector", "dead-letters", "replay", "--stream", stream, *which]
    return [shlex.join(replay), shlex.join([*replay, "--execute", "--why", "…"])]


def _reasons(reason: str) -> frozenset[rejection.Reason]:
    try:
        return frozenset({rejection.Reason(reason)}) if reason else frozenset()
    except ValueError:
        raise argument_invalid("reason", reason, ", ".join(rejection.Reason)) from None


def _facts(pairs: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, _cut(text)) for name, text in pairs]


def _cut(text: str) -> str:
    if len(text) <= VALUE_SHOWN:
        return text
    return f"{text[:VALUE_SHOWN]}… ({len(text):,} characters)"


def _grid(shown: Table) -> Grid:
    """A table for the terminal as one of a page."""
    rows = [[_cut(cell) for cell in row] for row in shown.rows[:ROWS_SHOWN]]
    return Grid(shown.columns, rows, max(0, len(shown.rows) - ROWS_SHOWN))


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def _entries(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each setting. A secret is `***`."""
    if is_dataclass(value):
        for field in fields(value):
            below = f"{path}.{field.name}".removeprefix(".")
            item = getattr(value, field.name)
            yield from _entries("***" if item and is_secret(field.name) else item, below)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _entries("***" if is_secret(str(name)) else item, f"{path}.{name}")
    elif value is not None and value != () and value != "":
        yield path, _cut(without_credentials(str(value)))
