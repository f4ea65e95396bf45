"""`connector dead-letters`: list, explain, export and repair rejected records (DLQ-8, DLQ-9).

The content of a letter comes from outside: it is escaped before it reaches the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any, Final, TextIO

import click

from connector.cli import letter_actions
from connector.cli.letter_actions import (
    filter_of,
    filter_options,
    group_option,
    letters_of,
)
from connector.cli.letter_view import print_letter, summary
from connector.cli.parameters import json_option, stream_option
from connector.cli.remedies import command_line
from connector.cli.terminal import err, escaped, out, show_fact, show_table, show_text, table
from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.filter import GROUPINGS, Group, grouped
from connector.dead_letters.ledger import LetterStatus
from connector.errors import ConnectorError
from connector.errors.dead_letters import new_change_impossible
from connector.records.codec import Schemas, read
from connector.records.json_view import to_json, to_line
from connector.records.model import DataChange
from connector.records.views import view_of_time
from connector.services.dead_letters import DeadLetters
from connector.text import counted

LETTERS_FOR_PEOPLE: Final = 40


@click.group()
def command() -> None:
    """List and explain rejected records; replay, park, discard or reopen them."""


for _action in (
    letter_actions.replay,
    letter_actions.discard,
    letter_actions.park,
    letter_actions.reopen,
):
    command.add_command(_action)


@command.command("list")
@stream_option
@group_option
@filter_options
@click.option("--by", help=f"Count them by these, separated by commas: {', '.join(GROUPINGS)}.")
@json_option("Print one JSON object per line for each letter, or with --by for each group.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"Stop after this many lines. Default: {LETTERS_FOR_PEOPLE} letters without --json.",
)
@click.pass_context
def list_(
    ctx: click.Context,
    /,
    stream: str | None,
    group: str | None,
    by: str | None,
    as_json: bool,
    limit: int | None,
    **given: Any,
) -> None:
    """Count the open dead letters by reason. With a filter or --json, list each letter. A letter
    counts once, by its id.
    """
    names = tuple((by or "reason,rule").split(","))
    if unknown := [name for name in names if name not in GROUPINGS]:
        raise click.UsageError(f"--by cannot be {unknown[0]!r}; use {', '.join(GROUPINGS)}")
    letters, which = letters_of(ctx, stream, group), filter_of(given)
    if by is None and (as_json or which.has_conditions):
        limit = limit or (None if as_json else LETTERS_FOR_PEOPLE)
        number = _print_one_by_one(letters.list(which), as_json, limit)
        left_out = max(0, number - (limit or number))
    else:
        groups = list(grouped(letters.list(which), names, letters.schemas))
        _print_groups(names, groups[:limit], as_json)
        number = sum(group.letters for _, group in groups)
        left_out = sum(group.letters for _, group in groups[limit or len(groups) :])
    show = command_line("dead-letters show", "ID", stream=letters.stream, group=group)
    hint = f"; to explain one: {show}" if number and not as_json else ""
    err(
        f"{counted(number, 'dead letter')} of"
        f" {letters.topic}{', in any state' if which.states == frozenset() else ''}{hint}"
    )
    if left_out:
        err(f"{counted(left_out, 'dead letter')} left out; use --limit for more")


def _print_one_by_one(
    letters: Iterator[tuple[DeadLetter, LetterStatus]], as_json: bool, limit: int | None
) -> int:
    """Print letters up to the limit. Return how many there are."""
    number = 0
    for letter, status in letters:
        number += 1
        if limit is not None and number > limit:
            continue
        if as_json:
            out(to_line(summary(letter, status)))
        else:
            why = f"{letter.reason} {letter.rule}".rstrip()
            facts = f"{why}  {status.state}, attempt {status.attempt}  {letter.detail}"
            show_text(escaped(f"{letter.id}  {facts}"))
    return number


def _print_groups(
    names: tuple[str, ...], groups: Iterable[tuple[tuple[str, ...], Group]], as_json: bool
) -> None:
    shown = table(*names, "letters", "first", "last", "for example", right=frozenset({"letters"}))
    for texts, group in groups:
        first, last = (view_of_time(moment) for moment in (group.oldest, group.newest))
        if as_json:
            times = {"first_failed": first, "last_failed": last}
            facts = {"letters": group.letters, **times, "examples": group.examples}
            out(to_line(dict(zip(names, texts, strict=True)) | facts))
        examples = "\n".join(escaped(example) for example in group.examples)
        count = f"{group.letters:,}"
        shown.add_row(*map(escaped, texts), count, str(first), str(last), examples)
    if shown.row_count and not as_json:
        show_table(shown)


@command.command()
@click.argument("letter_id", metavar="ID")
@stream_option
@group_option
@json_option("Print one JSON object with key, value and headers.")
@click.option("--all", "everything", is_flag=True, help="Print the whole value, also a long one.")
@click.option(
    "--new-change",
    is_flag=True,
    help="Print only a new change with the effect of the letter on its row now, for `publish`.",
)
@click.pass_context
def show(
    ctx: click.Context,
    letter_id: str,
    stream: str | None,
    group: str | None,
    as_json: bool,
    everything: bool,
    new_change: bool,
) -> None:
    """Explain one dead letter: its origin, its fault, the remedy, its history, and its content."""
    if as_json and new_change:
        raise click.UsageError("--new-change excludes --json: it prints a line of JSON itself")
    letters = letters_of(ctx, stream, group)
    if new_change:
        out(_line_of(letter_id, letters.show(letter_id).new_change))
        return
    letter, status, history = letters.find(letter_id)
    if as_json:
        out(to_line(summary(letter, status, history, whole=True)))
        return
    print_letter(letter, _schemas(letters, letter), status, history, everything=everything)
    report = letters.report(letter, status, history)
    for name, row in report.rows.items():
        view = "there is none" if row is None else to_line(row)
        show_fact("row today", f"{name}: {view}", 14)
    verdict, why = report.decision.verdict, report.decision.why
    effects = [f"the row would be {effect} in {name}" for name, effect in report.effects.items()]
    text = f"{verdict}: {why}" if why else "; ".join(effects) or verdict
    show_fact("a replay", text, 14)
    if report.decision.is_too_late:
        change = report.new_change
        none = f"there is no such change: {change}"
        show_fact("a new change", none if isinstance(change, str) else to_json(change, None), 14)


def _line_of(letter_id: str, change: DataChange | str) -> str:
    if isinstance(change, str):
        raise new_change_impossible(letter_id, change[:1].upper() + change[1:])
    return to_json(change, None)


@command.command()
@stream_option
@group_option
@filter_options
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True),
    help="A new file. Default: standard output.",
)
@click.pass_context
def export(
    ctx: click.Context, /, stream: str | None, group: str | None, output: str | None, **given: Any
) -> None:
    """Write dead letters to a file, one JSON object per line: the unchanged key, value and headers,
    and the history of each letter.
    """
    letters, which = letters_of(ctx, stream, group), filter_of(given)
    ledger, number = letters.ledger(), 0
    with nullcontext(sys.stdout) if output is None else _new_file(output) as file:
        for letter, status in letters.list(which, ledger):
            file.write(
                to_line(summary(letter, status, ledger.history(letter.id), whole=True)) + "\n"
            )
            number += 1
    err(f"{counted(number, 'dead letter')} of {letters.topic}")


def _new_file(name: str) -> TextIO:
    try:
        return open(name, "x", encoding="utf-8")
    except FileExistsError:
        raise click.UsageError(f"{name} exists; give --output the name of a new file") from None


def _schemas(letters: DeadLetters, letter: DeadLetter) -> Schemas:
    """The schemas that decode a letter. None, with a warning, if the registry does not answer."""
    try:
        read(letter.value, letters.schemas)
    except ConnectorError as error:
        err(f"warning: the record was not decoded with the schema of the registry: {error}")
        return Schemas()
    return letters.schemas
