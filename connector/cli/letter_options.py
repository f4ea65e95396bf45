"""Which dead letters a command is for: ids, or the filter options that all of its verbs share
(DLQ-8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from connector.cli import settings
from connector.cli.parameters import BYTES, SPAN, START
from connector.cli.terminal import tell
from connector.dead_letters.filter import LetterFilter
from connector.dead_letters.ledger import LetterState
from connector.records.rejection import Reason
from connector.services.dead_letters.service import DeadLetters, dead_letters

ANY: Final = "any"
_Function = TypeVar("_Function", bound=Callable[..., object])
_OPTIONS: Final = (
    click.option(
        "--reason",
        "reasons",
        type=click.Choice(list(Reason), case_sensitive=False),
        multiple=True,
        help="Only letters with this reason; you can repeat the option.",
    ),
    click.option("--rule", default="", help="Only letters that broke this rule (reason INVALID)."),
    click.option(
        "--state",
        "states",
        type=click.Choice([*(state.value for state in LetterState), ANY]),
        multiple=True,
        help="Only letters in this state. Default: open.",
    ),
    click.option("--table", help="Only letters of this table, or of this source table."),
    click.option(
        "--key-prefix",
        type=BYTES,
        default=b"",
        help="Only letters whose row key starts with this: text, or base64:…",
    ),
    click.option(
        "--since",
        type=START,
        help=(
            "Only letters that first failed at this time or later: a time with a zone, or an age"
            " such as 2d."
        ),
    ),
    click.option("--until", type=START, help="Only letters that first failed before this time."),
    click.option(
        "--kafka-partition",
        type=click.IntRange(0),
        help="Only letters whose record was in this Kafka partition.",
    ),
    click.option(
        "--offsets",
        type=SPAN,
        help="Only letters whose record had one of these offsets, for example 3..9.",
    ),
    click.option(
        "--ingest-batch", type=click.IntRange(1), help="Only letters of this ingest batch."
    ),
    click.option(
        "--attempts", type=SPAN, help="Only letters replayed this often, for example `1..`."
    ),
)


def stream_option(function: _Function) -> _Function:
    """Adds `--stream`."""
    return click.option("--stream", help="The stream; you can leave it out if there is only one.")(
        function
    )


def group_option(function: _Function) -> _Function:
    """Adds `--group`."""
    return click.option(
        "--group",
        help="The letters that programs of this group of readers set aside, not those of ingest.",
    )(function)


def filter_options(function: _Function) -> _Function:
    """Adds the filter options; the command gets them as keyword arguments, which `filter_of`
    takes.
    """
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def filter_of(
    given: dict[str, Any],
    ids: tuple[str, ...] = (),
    usual: frozenset[LetterState] = frozenset({LetterState.OPEN}),
) -> LetterFilter:
    """The filter that the options say. Without `--state` letters that were named by their ids are
    meant however they stand.
    """
    states: tuple[str, ...] = given.pop("states")
    if ANY in states:
        of = frozenset[LetterState]()
    elif states:
        of = frozenset(LetterState(state) for state in states)
    else:
        of = frozenset() if ids else usual
    for name in ("since", "until"):  # beginning and end bound nothing
        given[name] = given[name] if isinstance(given[name], int) else None
    reasons = frozenset(Reason(reason) for reason in given.pop("reasons"))
    return LetterFilter(ids=frozenset(ids), reasons=reasons, states=of, **given)


def check_chosen(which: LetterFilter, everything: bool) -> None:
    """Acting on all letters there are must be asked for. Raises a wrong call."""
    if not which.has_conditions and not everything:
        raise click.UsageError("give ids, a filter such as --reason, or --all")
    if which.has_conditions and everything:
        raise click.UsageError(
            "--all means all dead letters: use it without ids, and with no filter but --state"
        )


def letters_of(ctx: click.Context, stream: str | None, group: str | None = None) -> DeadLetters:
    """The dead letters of the stream, or of the group of readers, that a call is for."""
    return dead_letters(settings.load(ctx), stream, group=group, on_event=tell)
