"""`connector dead-letters replay | discard | park | reopen`, and the options that select the dead
letters of a command (DLQ-8, DLQ-10 to DLQ-14).

Each action is done once. The ledger keeps who did it, when and why. Contents of a letter are
escaped before they are shown.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, Final

import click

from connector.cli.letter_view import view_of_content
from connector.cli.parameters import (
    BYTES,
    MOMENT,
    RATE,
    SPAN,
    STEP,
    TABLE,
    Function,
    check_why,
    config_and_stream,
    json_option,
    stream_option,
    why_option,
)
from connector.cli.progress import Progress
from connector.cli.remedies import command_line
from connector.cli.terminal import err, escaped, out, show_event, show_table, table
from connector.clock import now_us
from connector.dead_letters.envelope import dead_letter_topic
from connector.dead_letters.filter import EXAMPLES, LetterFilter
from connector.dead_letters.ledger import Action, LetterState
from connector.dead_letters.repair import Step, Unrepairable, content_of, edited, repair
from connector.dead_letters.replay import ALREADY_REPLAYED, MAX_ATTEMPTS, Decision, Tally, Verdict
from connector.errors.dead_letters import dead_letter_missing, repair_impossible
from connector.records.codec import Schemas, read
from connector.records.json_view import to_line, view_of_datum
from connector.records.rejection import Reason, Rejection
from connector.services.dead_letters import DeadLetters
from connector.text import counted


class _Reasons(click.Choice[Reason]):
    """The reasons of letters."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """An unknown name may be that of a rule, such as `ROW_KEY`."""
        return f"{super().get_invalid_choice_message(value, ctx)} If it is a rule, use --rule."


ANY: Final = "any"
_OPTIONS: Final = (
    click.option(
        "--reason",
        "reasons",
        type=_Reasons(list(Reason), case_sensitive=False),
        multiple=True,
        help="Only letters with this reason; you can repeat the option.",
    ),
    click.option("--rule", default="", help="Only letters that broke this rule."),
    click.option(
        "--state",
        "states",
        type=click.Choice([*(state.value for state in LetterState), ANY]),
        multiple=True,
        help="Only letters in this state. Default: open, what an action can change, or any id.",
    ),
    click.option("--table", type=TABLE, help="Only letters of this table or source table."),
    click.option(
        "--key-prefix",
        type=BYTES,
        default=b"",
        help="Only letters whose row key starts with this: text, or base64:…",
    ),
    click.option(
        "--since",
        type=MOMENT,
        help=(
            "Only letters that first failed at this time or later: a time with a zone, or an age"
            " such as 2d."
        ),
    ),
    click.option("--until", type=MOMENT, help="Only letters that first failed before this time."),
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
MAX_WHY: Final = 300
_ids = click.argument("ids", metavar="[ID]...", nargs=-1)
_everything = click.option(
    "--all", "everything", is_flag=True, help="All dead letters in these states."
)


def group_option(function: Function) -> Function:
    return click.option(
        "--group",
        help="The letters that programs of this group of readers set aside, not those of ingest.",
    )(function)


def filter_options(function: Function) -> Function:
    """Adds the filter options, as the keyword arguments that `filter_of` takes."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def filter_of(given: dict[str, Any], ids: tuple[str, ...] = ()) -> LetterFilter:
    """The filter of the options, of which `ids` are the arguments."""
    named: tuple[str, ...] = given.pop("states")
    states = None
    if named:
        states = frozenset(LetterState(state) for state in named if ANY not in named)
    reasons = frozenset(Reason(reason) for reason in given.pop("reasons"))
    return LetterFilter(ids=frozenset(ids), reasons=reasons, states=states, **given)


def check_chosen(which: LetterFilter, everything: bool) -> None:
    """Refuse a call for all letters without `--all`."""
    if not which.has_conditions and not everything:
        raise click.UsageError("give ids, a filter such as --reason, or --all")
    if which.has_conditions and everything:
        raise click.UsageError(
            "--all means all dead letters: use it without ids, and with no filter but --state"
        )


def letters_of(ctx: click.Context, stream: str | None, group: str | None = None) -> DeadLetters:
    """The dead letters of the stream, or of the group of readers, that a call is for."""
    config, of_stream = config_and_stream(ctx, stream)
    return DeadLetters(config, of_stream.name, group=group, on_event=show_event)


@click.command()
@_ids
@stream_option
@group_option
@filter_options
@_everything
@click.option(
    "--repair",
    "steps",
    type=STEP,
    multiple=True,
    help="A step of the repair, for example 'unset key'. Steps are taken in the order given.",
)
@click.option(
    "--edit",
    is_flag=True,
    help="Repair one letter in your editor ($VISUAL, $EDITOR), as its JSON view.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1),
    default=MAX_ATTEMPTS,
    help="Park a letter after this many attempts.",
)
@click.option("--max-changes-per-s", type=RATE, help="Limit of letters per second, without bursts.")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until every table contains the replayed changes, or one was rejected again.",
)
@click.option("--execute", is_flag=True, help="Send them. Without this option, nothing is sent.")
@click.option(
    "--why",
    default="",
    help="The reason. The ledger keeps it with your name and the time. Required with --execute.",
)
@json_option("Print one JSON object per line for each letter of the dry run.")
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    ids: tuple[str, ...],
    stream: str | None,
    group: str | None,
    everything: bool,
    steps: tuple[Step, ...],
    edit: bool,
    max_attempts: int,
    max_changes_per_s: float | None,
    wait: bool,
    execute: bool,
    why: str,
    as_json: bool,
    **given: Any,
) -> int:
    """Send dead letters to the change topic again, or with --group to the readers of the group.
    Without --execute it only shows the effect on each letter and on its row.

    Each letter takes effect once. You can stop the command and run it again: it continues with the
    rest.
    """
    which = filter_of(given, ids)
    check_chosen(which, everything)
    if execute:
        check_why(why)
    if edit and len(ids) != 1:
        raise click.UsageError("--edit needs exactly one id of a dead letter")
    if wait and not execute:
        raise click.UsageError("--wait needs --execute: a dry run sends nothing")
    if group is not None and wait:
        raise click.UsageError("--group excludes --wait: its letters do not go to tables")
    letters = letters_of(ctx, stream, group)
    which = replace(which, ids=letters.whole_ids(which.ids))
    if edit:
        steps = (*steps, *_edit(letters, which, ids[0], steps))
    started_at = now_us()
    if execute:
        send = partial(
            letters.replay,
            which,
            why=why,
            steps=steps,
            max_attempts=max_attempts,
            max_changes_per_s=max_changes_per_s,
        )
        tally = _execute(letters, send, wait=wait)
    else:
        tally = _show_plan(letters, which, steps, max_attempts, as_json=as_json)
    _check_exist(which.ids, tally.verdicts.total(), letters)
    _print_next_step(letters, tally, execute=execute, wait=wait)
    # The command may be run again to continue waiting.
    replayed_before = tally.refused[ALREADY_REPLAYED] if wait else 0
    is_applied = not wait or letters.wait(which, since=started_at)
    return 1 if not is_applied or tally.verdicts[Verdict.REFUSE] > replayed_before else 0


def _print_next_step(letters: DeadLetters, tally: Tally, *, execute: bool, wait: bool) -> None:
    if not execute:
        _print_new_change_hint(letters, tally)
        if tally.verdicts[Verdict.REPLAY] or tally.verdicts[Verdict.PARK]:
            err('nothing was sent: this was a dry run; add --execute --why "…" to send')
    elif tally.verdicts[Verdict.REPLAY] and letters.group is not None:
        err(f"a consumer of the group {letters.group} with replays=True reads the replayed records")
    elif tally.verdicts[Verdict.REPLAY] and not wait:
        err(
            "the replayed records are in the change topic; `connector run` ingests and applies"
            " them; --wait waits for this"
        )


def _show_plan(
    letters: DeadLetters,
    which: LetterFilter,
    steps: tuple[Step, ...],
    max_attempts: int,
    *,
    as_json: bool,
) -> Tally:
    tally = Tally()
    rows = dict[tuple[str, str, str], list[str]]()
    counts = Counter[tuple[str, str, str]]()
    for decision, effects in letters.plan(which, steps=steps, max_attempts=max_attempts):
        tally.add(decision)
        if as_json:
            view = _decision_view(decision, letters.schemas)
            if effects:
                view["effects"] = {name: effect.value for name, effect in effects.items()}
            out(to_line(view))
            continue
        # Without the details, which differ from letter to letter.
        in_words = ", ".join(f"would be {effect} in {name}" for name, effect in effects.items())
        row = (decision.verdict.value, decision.why.partition(":")[0], in_words)
        counts[row] += 1
        if len(examples := rows.setdefault(row, [])) < EXAMPLES:
            examples.append(
                f"{decision.letter.id}: {decision.why[:MAX_WHY]}"
                if decision.verdict is Verdict.REFUSE
                else decision.letter.id
            )
    if rows:
        columns = ("decision", "because", "effect on the row", "letters", "for example")
        shown = table(*columns, right=frozenset({"letters"}))
        for row, number in counts.most_common():
            verdict, because, in_words = row
            examples_text = "\n".join(escaped(example) for example in rows[row])
            shown.add_row(
                f"would {verdict}",
                escaped(because),
                escaped(in_words),
                f"{number:,}",
                examples_text,
            )
        show_table(shown)
    _print_tally(letters, tally, "would be ")
    return tally


def _execute(letters: DeadLetters, send: Callable[..., Tally], *, wait: bool) -> Tally:
    """Call `send` with progress and until a signal, and print its result. SIGTERM and SIGINT end it
    after the current transaction, a second one at once, because Kafka may never answer.
    """
    total = letters.at_most()
    stop = threading.Event()

    def request_stop(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {
        number: signal.signal(number, request_stop) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        with Progress() as progress:
            progress.count("letters checked", 0, total)
            tally = send(
                stop=stop,
                on_progress=lambda read, done: progress.count("letters checked", read, total),
            )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _print_tally(letters, tally)
    for because, count in tally.refused.most_common():
        if wait and because == ALREADY_REPLAYED:
            err(f"{count:,} were replayed before")
            continue
        err(f"refused {count:,}: {escaped(because)}; run it without --execute to see each letter")
    _print_new_change_hint(letters, tally)
    if stop.is_set():
        err("stopped after the current transaction; run it again to continue with the rest")
        raise KeyboardInterrupt
    return tally


def _print_new_change_hint(letters: DeadLetters, tally: Tally) -> None:
    if tally.too_late:
        which = {"stream": letters.stream, "group": letters.group}
        show = command_line("dead-letters show --new-change", "ID", **which)
        err(f"to publish the effect of a change that is too late: {show}")


def _print_tally(letters: DeadLetters, tally: Tally, would_be: str = "") -> None:
    sent, parked, refused = (
        tally.verdicts[verdict] for verdict in (Verdict.REPLAY, Verdict.PARK, Verdict.REFUSE)
    )
    err(
        f"{counted(tally.verdicts.total(), 'dead letter')} of {letters.topic}: {would_be}replayed"
        f" {sent:,}, parked after too many attempts {parked:,}, refused {refused:,}"
    )


def _decision_view(decision: Decision, schemas: Schemas) -> dict[str, Any]:
    view: dict[str, Any] = {
        "id": decision.letter.id,
        "verdict": decision.verdict.value,
        "why": decision.why,
        "attempt": decision.attempt,
    }
    if decision.content is not None:
        record = read(decision.content.value, schemas)
        view |= {} if isinstance(record, Rejection) else {"record": view_of_datum(record)}
        view |= view_of_content(
            decision.content.key, decision.content.value, decision.content.headers
        )
        view |= {"repair": list(decision.repair_note.steps)} if decision.repair_note else {}
    return view


def _edit(
    letters: DeadLetters, which: LetterFilter, letter_id: str, steps: tuple[Step, ...]
) -> tuple[Step, ...]:
    """The steps that an editor makes of the letter as it is after the steps before."""
    contents = [
        repair(content_of(letter), steps, letters.schemas) for letter, _ in letters.list(which)
    ]
    _check_exist(which.ids, len(contents), letters)
    content = contents[0]
    if isinstance(content, Unrepairable):
        raise repair_impossible(letter_id, content.why)
    try:
        edits = edited(content, letters.schemas, lambda text: click.edit(text, extension=".json"))
    except (click.ClickException, OSError, UnicodeError) as error:
        cause = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise repair_impossible(letter_id, f"The editor returned no text: {cause}") from error
    if isinstance(edits, Unrepairable):
        raise repair_impossible(letter_id, edits.why)
    if not edits:
        raise repair_impossible(letter_id, "You changed nothing in the editor")
    return edits


def _check_exist(ids: Collection[str], number: int, letters: DeadLetters) -> None:
    if missing := max(0, len(ids) - number):
        named = f"{missing:,} of the dead letters that you named"
        topic = dead_letter_topic(letters.topic, letters.group)
        raise dead_letter_missing(topic, named, letters.stream, letters.group)


def _verb(action: Action, name: str, summary: str) -> click.Command:
    @click.command(name, help=summary)
    @_ids
    @stream_option
    @group_option
    @filter_options
    @_everything
    @why_option
    @click.pass_context
    def verb(
        ctx: click.Context,
        /,
        ids: tuple[str, ...],
        stream: str | None,
        group: str | None,
        everything: bool,
        why: str,
        **given: Any,
    ) -> int:
        which = filter_of(given, ids)
        check_chosen(which, everything)
        letters = letters_of(ctx, stream, group)
        which = replace(which, ids=letters.whole_ids(which.ids))
        done, refused = getattr(letters, name)(which, why=why)
        _check_exist(which.ids, done + refused.total(), letters)
        err(f"{counted(done, 'dead letter')} of {letters.topic} {action}")
        for state, number in refused.items():
            err(f"{counted(number, 'letter')} unchanged: already {state}")
        return 1 if refused else 0

    return verb


discard: Final = _verb(
    Action.DISCARDED,
    "discard",
    "Mark dead letters so that they are not replayed. The records are kept; `reopen` undoes it.",
)
park: Final = _verb(
    Action.PARKED, "park", "Set dead letters aside. They are not replayed until you reopen them."
)
reopen: Final = _verb(
    Action.REOPENED,
    "reopen",
    "Open parked or discarded dead letters again. The count of attempts starts at 0.",
)
