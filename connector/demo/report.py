"""The report at the end of the demo: input, result, rates, rejected records, and commands to try
next.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from connector.cli.terminal import console, escaped, shown_bytes, table
from connector.records.rejection import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from connector.dead_letters.envelope import DeadLetter
    from connector.demo.folder import DemoFolder
    from connector.demo.publish import Published

DIFFERENCES_SHOWN = 20


@dataclass(slots=True)
class Outcome:
    """The results of the demo. `rates` has for each stage a count, the name of what was counted,
    and seconds.
    """

    notes: list[str] = field(default_factory=list)
    rates: list[tuple[str, int, str, float]] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    total_s: float = 0.0

    @property
    def is_equal(self) -> bool:
        return not self.differences


def show(outcome: Outcome, published: Published, folder: DemoFolder) -> None:
    """Print the whole report to standard output."""
    to = console()
    to.rule("input")
    to.print(_what_went_in(outcome, published))
    to.rule("rejected records")
    to.print(_what_was_rejected(published, outcome.letters))
    to.rule("speed")
    to.print(_how_fast(outcome))
    to.rule("result")
    for line in _what_came_out(outcome, published):
        to.print(line)
    to.rule("next steps")
    for line in what_next(folder, outcome):
        to.print(line)


def _what_went_in(outcome: Outcome, published: Published) -> object:
    made = table(
        "table",
        "changes",
        "sent again",
        "rows at the end",
        right=frozenset({"changes", "sent again", "rows at the end"}),
    )
    for name, changes in published.changes.items():
        made.add_row(
            name,
            f"{changes:,}",
            f"{published.deliveries[name] - changes:,}",
            f"{outcome.rows.get(name, 0):,}",
        )
    made.add_row("(control records)", f"{published.control_records:,}", "", "")
    made.add_row("(poison)", f"{len(published.poison):,}", "", "")
    return made


def _what_was_rejected(published: Published, letters: Sequence[DeadLetter]) -> object:
    details = {letter.id: letter.detail for letter in letters}
    found = Counter(
        (one.poison.reason, one.poison.rule) for one in published.poison if one.id in details
    )
    made = table("reason", "letters", "for example", "because", right=frozenset({"letters"}))
    for (reason, rule), count in sorted(found.items()):
        first = next(
            one
            for one in published.poison
            if (one.poison.reason, one.poison.rule) == (reason, rule) and one.id in details
        )
        detail = shown_bytes(details[first.id].encode(), limit=110)
        made.add_row(f"{reason} {rule}".strip(), f"{count:,}", first.poison.kind, detail)
    return made


def _how_fast(outcome: Outcome) -> object:
    made = table(
        "stage",
        "count",
        "seconds",
        "per second",
        right=frozenset({"count", "seconds", "per second"}),
    )
    for stage, count, what, seconds in outcome.rates:
        made.add_row(
            stage,
            f"{count:,} {what}" if count else "",
            f"{seconds:.1f}",
            f"{count / seconds:,.0f}" if count and seconds else "",
        )
    made.add_row("everything", "", f"{outcome.total_s:.1f}", "")
    return made


def _what_came_out(outcome: Outcome, published: Published) -> list[str]:
    if outcome.is_equal:
        rows = " and ".join(f"{count:,} rows of {name}" for name, count in outcome.rows.items())
        return [
            *map(escaped, outcome.notes),
            f"EQUAL: {rows} have the expected value in every row and column,",
            (
                f"and exactly the {len(published.poison):,} bad records are dead letters, each"
                " once, with its bytes and reason."
            ),
        ]
    more = len(outcome.differences) - DIFFERENCES_SHOWN
    return [
        *map(escaped, outcome.notes),
        *(f"DIFFERENT: {escaped(line)}" for line in outcome.differences[:DIFFERENCES_SHOWN]),
        *([f"… and {more:,} more"] if more > 0 else []),
        (f"{len(outcome.differences):,} differences. This is a defect of lowmark or of the demo."),
    ]


def what_next(folder: DemoFolder, outcome: Outcome) -> list[str]:
    """Commands for the result of the demo, as you can type them here."""
    program = _as_typed("connector")
    connector = f"{program} --config {shlex.quote(str(folder.config))}"
    broker = f"--folder {shlex.quote(str(folder.broker))}"
    query = f"{_as_typed('python')} {shlex.quote(str(folder.query))}"
    damaged = [letter.id for letter in outcome.letters if letter.reason is Reason.UNDECODABLE]
    lines = ["# the tables, without a broker and without Java:"]
    lines += [f"{connector} read {name} --limit 10" for name in outcome.rows]
    lines += ["# SQL on them, in Spark:"]
    lines += [f'{query} "{_QUERIES[name]}"' for name in outcome.rows]
    lines += [
        "# the stream and what was rejected, once the broker runs again:",
        f"{program} broker start {broker}",
    ]
    lines += [f"{connector} tail --limit 5", f"{connector} dead-letters list"]
    lines += [f"{connector} dead-letters show {damaged[0]}"] if damaged else []
    return [*lines, f"{program} broker stop {broker}"]


def _as_typed(program: str) -> str:
    """A program of this environment: its name, if the shell finds this one, else its path."""
    ours = Path(sys.executable).parent / program
    found = shutil.which(program)
    if found is not None and ours.exists() and Path(found).absolute() == ours.absolute():
        return program
    inside = ours.is_relative_to(Path.cwd())
    return shlex.quote(str(ours.relative_to(Path.cwd()) if inside else ours))


_QUERIES: Mapping[str, str] = {
    "files": (
        "SELECT author, count(*) AS files, sum(size) AS bytes FROM files GROUP BY author ORDER BY"
        " files DESC"
    ),
    "accounts": (
        "SELECT count(*) AS accounts, sum(balance) / 100 AS money, min(balance) / 100 AS"
        " deepest_debt FROM accounts"
    ),
}
