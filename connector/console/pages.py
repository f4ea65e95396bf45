"""The values of each page, from the services (WEB-1). A page changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from connector.cli import explain as explain_command
from connector.cli import letter_view
from connector.cli.layout import Table
from connector.cli.remedies import command_line, command_of_reason
from connector.cli.status import add_column, cut, facts, pipelines, to_the_second
from connector.cli.streams import table_of_partitions
from connector.clock import now_us
from connector.config.settings import ConnectorConfig, find_stream, find_table
from connector.console.charts import HOURS, charts_of_stream, charts_of_table
from connector.console.latest import Batches
from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.filter import LetterFilter, grouped
from connector.dead_letters.ledger import LetterStatus
from connector.errors import argument_invalid
from connector.records import rejection
from connector.reports.reasons import Reason
from connector.services.dead_letters import DeadLetters
from connector.services.requests import partitions
from connector.services.rows.explain import explain
from connector.services.rows.values import row_key_of
from connector.services.status import StatusReport
from connector.services.tables import batches, jobs
from connector.state.jobs import Job
from connector.text import duration, is_secret, without_credentials

LETTERS_COUNTED: Final = 10_000
LETTERS_LISTED: Final = 200
LETTERS_READ_S: Final = 10.0
JOBS_LISTED: Final = 20
CHART_US: Final = HOURS * 3_600_000_000
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
        self._batches: dict[str, Batches] = {}
        self._reads_letters = threading.Lock()  # each read may have many large ones in memory

    def overview(self) -> Page:
        """The reasons why a person is needed, and all streams and tables."""
        report = self._report()
        values = {
            "title": "Overview",
            "needs": _needs(report),
            "report": report,
            "pipelines": [f"{name}: {text}" for name, text in pipelines(report)],
            "age_s": max(0, now_us() - report.at) // 1_000_000,
            "time": to_the_second,
            "duration": _duration,
            "cut": cut,
        }
        return Page("overview", values)

    def stream(self, name: str) -> Page:
        """One stream: its facts, and the stream partitions that delay it first."""
        report, config = self._report(), self._config()
        stream, now = find_stream(config, name), now_us()
        of_stream = report.streams.get(stream.name)
        read = partial(self._read_batches, stream.name)
        done = self._batches.setdefault(stream.name, Batches(read))
        shown, is_whole = done.since(now - CHART_US, now)
        about = _about(report, stream=stream.name)
        values = {
            "title": f"Stream {stream.name}",
            "name": stream.name,
            "needs": _needs(about),
            "hints": [] if of_stream is None else of_stream.hints,
            "facts": [] if of_stream is None else _facts(facts(of_stream), but="hint"),
            "charts": charts_of_stream(shown, now),
            "is_whole": is_whole,
            "partitions": _grid(table_of_partitions(partitions(config, stream.name))),
            "tables": sorted(config.tables_of(stream.name)),
        }
        return Page("stream", values)

    def table(self, name: str) -> Page:
        """One table: its age against its bound, its applies as charts, and its columns."""
        report, config = self._report(), self._config()
        definition = find_table(config, name)
        status, now = report.tables.get(name), now_us()
        bound = None if status is None else status.max_staleness_s
        about = _about(report, table=name)
        values = {
            "title": f"Table {name}",
            "definition": definition,
            "needs": _needs(about),
            "hints": [] if status is None else status.hints,
            "status": status,
            "charts": charts_of_table(jobs(config, name, since=now - CHART_US), now, bound),
            "jobs": jobs(config, name, limit=JOBS_LISTED),
            "time": to_the_second,
            "duration": _duration,
            "cut": cut,
            "unmapped": [] if status is None else status.cells_without_column,
            "commands": [] if status is None else add_column(status),
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
            "command": command_line("explain", definition.name, key),
            "messages": [_cut(message) for message in explain_command.messages(history)],
            "facts": _facts(explain_command.facts(history)) if history.is_known else [],
            "grids": [_grid(shown) for shown in explain_command.tables(history)],
        }
        return Page("row", values)

    def letters(self, given: Mapping[str, str]) -> Page:
        """The open letters of a stream by reason; those of one reason with `reason` and `rule`."""
        letters, reason = self._letters(given["stream"]), given.get("reason", "")
        which = LetterFilter(reasons=_reasons(reason), rule=given.get("rule", ""))
        opened = OpenedLetters(letters.list(which), LETTERS_LISTED if reason else 0)
        with self._reads_letters:
            groups = list(grouped(opened, ("reason", "rule", "table"), letters.schemas))
        values = {
            "title": f"Dead letters of {given['stream']}",
            "stream": given["stream"],
            "reason": reason,
            "groups": groups,
            "letters": opened.first,
            "is_cut": opened.is_cut,
            "counted": sum(group.letters for _, group in groups),
            "listed": LETTERS_LISTED,
            "time": to_the_second,
            "commands": _commands_for_letters(given["stream"], reason),
        }
        return Page("letters", values)

    def letter(self, given: Mapping[str, str]) -> Page:
        """One letter: its facts, its bytes beside the decoded record, the verdict of a replay."""
        stream, letters = given["stream"], self._letters(given["stream"])
        with self._reads_letters:
            letter, status, history = letters.find(given["letter"])
        report = letters.report(letter, status, history)
        hexes, decoded = list[str](), list[str]()
        if letter.value is not None:
            hexes, decoded = letter_view.value_lines(letter.value, letter.reason, letters.schemas)
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
                command_line(f"dead-letters {words}", letter.id, stream=stream)
                for words in ("show --all", "replay --execute --why …")
            ],
        }
        return Page("letter", values)

    def configuration(self) -> Page:
        """The configuration without its secrets."""
        entries = Grid(("setting", "value"), list(_entries(self._config())))
        return Page("configuration", {"title": "Configuration", "entries": entries})

    def _read_batches(self, stream: str, since: int) -> Iterator[Job]:
        return batches(self._config(), stream, since=since)

    def _letters(self, stream: str) -> DeadLetters:
        return DeadLetters(self._config(), stream)


class OpenedLetters:
    """Yields letters, up to a number and for some seconds, and keeps the `first` of them without
    their bytes.
    """

    def __init__(self, letters: Iterator[tuple[DeadLetter, LetterStatus]], keep: int) -> None:
        self._letters, self._keep, self.is_cut = letters, keep, False
        self.first: list[tuple[DeadLetter, LetterStatus]] = []

    def __iter__(self) -> Iterator[tuple[DeadLetter, LetterStatus]]:
        until = time.monotonic() + LETTERS_READ_S
        for number, (letter, status) in enumerate(self._letters):
            if number == LETTERS_COUNTED or time.monotonic() > until:
                self.is_cut = True
                return
            if number < self._keep:
                self.first.append((replace(letter, key=None, value=None, headers=()), status))
            yield letter, status


def _needs(report: StatusReport) -> list[tuple[str, Reason, str]]:
    """The reasons of a report, each with the path of its page, and its command."""
    return [(_path(reason), reason, command_of_reason(reason)) for reason in report.reasons]


def _path(reason: Reason) -> str:
    """The page of the table or the stream of a reason, otherwise the configuration."""
    for kind in ("table", "stream"):
        if name := reason.fields.get(kind):
            return f"/{kind}s/{quote(name, safe='')}"
    return "/configuration"


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
    words = "dead-letters replay" if reason else "dead-letters replay --all"
    return [
        command_line(f"{words}{execute}", stream=stream, reason=reason or None)
        for execute in ("", " --execute --why …")
    ]


def _reasons(reason: str) -> frozenset[rejection.Reason]:
    try:
        return frozenset({rejection.Reason(reason)}) if reason else frozenset()
    except ValueError:
        raise argument_invalid("reason", reason, ", ".join(rejection.Reason)) from None


def _facts(pairs: Iterator[tuple[str, str]], but: str = "") -> list[tuple[str, str]]:
    return [(name, _cut(text)) for name, text in pairs if name != but]


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


def _entries(value: object, path: str = "", name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each setting. A secret is `***`. Of a list, the names of its
    items: the page of a table has its columns.
    """
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entries(item, f"{path}.{key}".removeprefix("."), str(key))
        return
    if isinstance(value, tuple | list):
        value = ", ".join(str(getattr(item, "name", item)) for item in value)
    text = "" if value is None else str(value)
    if text:
        is_hidden = is_secret(name) or ("=" in text and is_secret(text))
        yield path, "***" if is_hidden else _cut(without_credentials(text))
