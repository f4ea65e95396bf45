"""`connector explain`: why a row is as it is, for people and for programs (SUB-6, OPS-10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click

from connector.cli.parameters import TABLE, config_of, json_option, row_key_in
from connector.cli.remedies import command_line
from connector.cli.terminal import err, escaped, out, show_fact, show_table, shown_bytes
from connector.cli.terminal import table as empty_table
from connector.dead_letters.filter import text_of_bytes
from connector.records.json_view import to_line
from connector.records.model import DeleteFamily, Entry, SetCell
from connector.records.ordering import ChangeOrder
from connector.records.views import Json, view_of_time
from connector.services.rows.explain import RowChange, RowHistory, explain
from connector.services.rows.letters import RowLetter
from connector.tables.column_names import unmapped_name
from connector.tables.explain import ROW_MARK, Outcome, SetEntry
from connector.text import counted

if TYPE_CHECKING:
    from connector.cli.layout import Table

ENTRIES_SHOWN: Final = 20
"""Of one change, in the table for people."""


@click.command()
@click.argument("name", metavar="TABLE", type=TABLE)
@click.argument("key", metavar="KEY")
@json_option("Print one JSON object.")
@click.option(
    "--no-kafka", is_flag=True, help="Do not read the dead-letter topic. The result says so."
)
@click.pass_context
def command(ctx: click.Context, name: str, key: str, *, as_json: bool, no_kafka: bool) -> None:
    """Explain why the row of TABLE with this KEY is as it is.

    KEY is the row key as text or base64:…, or a JSON array with the values of the key columns, for
    example '[7, "2024-04-30"]'. The command needs no Java. It looks at every change of the source
    table in the changelog.
    """
    config = config_of(ctx)
    row_key = row_key_in(config, name, key)
    history = explain(config, name, row_key, ask_kafka=not no_kafka)
    if as_json:
        out(to_line(history.to_json()))
    elif history.is_known:
        _print(history)
    for message in messages(history):
        err(message)


def messages(history: RowHistory) -> Iterator[str]:
    """Yield what limits the explanation."""
    for source in history.not_looked_at:
        yield f"not looked at: {source}"
    if history.is_confirmed is False:
        rebuild = command_line("table rebuild", history.table)
        yield (
            f"warning: the table has another row than the changelog gives; {rebuild} makes it from"
            " the changelog"
        )
    if not history.is_known:
        reason = "it may have left the changelog" if history.trimmed_to else "it never existed"
        if history.erased_to is not None:
            reason = _erased(history.erased_to)
        yield f"{history.table} has no change of {text_of_bytes(history.row_key)}: {reason}"


def _print(history: RowHistory) -> None:
    for name, fact in facts(history):
        show_fact(name, fact, 11)
    for shown in tables(history):
        out("")
        show_table(shown)


def facts(history: RowHistory) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each fact about the row."""
    view, since = history.to_json(), history.shown_since
    version = "no version of the table shows it yet"
    if history.erased_to is not None and history.row is None:
        version = f"no version of the table shows it: {_erased(history.erased_to)}"
    if since is not None:
        earlier = ", or an earlier one that the log no longer has" if since.or_earlier else ""
        version = f"version {since.version} ({view_of_time(since.committed_at)}){earlier}"
    yield "row key", shown_bytes(history.row_key, 200)
    yield "row", _shown_row(view["row"])
    yield "last apply", _shown_row(view["applied_row"])
    yield "shown since", version
    for truncation in history.explanation.truncations:
        at = view_of_time(truncation.truncate.commit_timestamp)
        yield "truncated", f"{at}: hides {counted(truncation.hides, 'entry', 'entries')}"


def tables(history: RowHistory) -> list[Table]:
    """The columns, the changes and the dead letters of the row, without those that are empty."""
    shown = (_columns(history), _changes(history), _letters(history.dead_letters))
    return [of_row for of_row in shown if of_row.row_count]


def _erased(to: int) -> str:
    return f"it was erased, and changes up to {view_of_time(to)} are refused"


def _shown_row(row: Json | None) -> str:
    return "(none)" if row is None else escaped(to_line(row))


def _columns(history: RowHistory) -> Table:
    shown = empty_table("column", "value", "won by", "lost")
    for column in history.explanation.columns:
        winner = column.winner
        lost = sum(entry.outcome is not Outcome.WON for entry in column.entries)
        shown.add_row(
            escaped(column.column or unmapped_name(column.family, column.qualifier)),
            "(none)" if winner is None else shown_bytes(winner.value),
            "" if winner is None else str(winner.order),
            counted(lost, "entry", "entries") if lost else "",
        )
    return shown


def _changes(history: RowHistory) -> Table:
    entries = {
        entry.order: entry for column in history.explanation.columns for entry in column.entries
    }
    hides = {
        deletion.order: counted(deletion.hides, "entry", "entries")
        for deletion in history.explanation.deletions
    }
    shown = empty_table("position", "commit timestamp", "change", "entries")
    for change in history.changes:
        shown.add_row(
            str(change.position),
            str(view_of_time(change.change.commit_timestamp)),
            escaped(_state_of(change)),
            "\n".join(_shown_entries(change, entries, hides, history.definition.presence.cell)),
        )
    return shown


def _state_of(change: RowChange) -> str:
    if change.dead_letter is not None:
        return f"dead letter {change.dead_letter}"
    states = ["applied" if change.is_applied else "not applied yet"]
    states += ["late"] * (change.is_late is True) + ["replay"] * change.is_replay
    states += [] if change.blocked_by is None else [f"waits for {change.blocked_by}"]
    states += [] if change.source_record is None else [f"from {change.source_record}"]
    return ", ".join(states)


def _shown_entries(
    change: RowChange,
    entries: Mapping[ChangeOrder, SetEntry],
    hides: Mapping[ChangeOrder, str],
    mark: tuple[str, bytes],
) -> list[str]:
    every = change.change.entries
    lines = []
    for index, entry in enumerate(every[:ENTRIES_SHOWN]):
        text = _shown_entry(entry, mark)
        if change.order is not None and change.dead_letter is None:
            order = change.order._replace(entry_index=index)
            if order in entries:
                text += f": {_shown_outcome(entries[order])}"
            elif not isinstance(entry, SetCell):
                text += f": hides {hides[order]}" if order in hides else ": without effect"
        lines.append(text)
    more = len(every) - ENTRIES_SHOWN
    return [*lines, f"… {more:,} more; --json has them"] if more > 0 else lines


def _shown_outcome(entry: SetEntry) -> str:
    lost_to = "" if entry.lost_to is None else f" by {entry.lost_to}"
    if entry.outcome is Outcome.OLDER_VERSION and entry.lost_to is not None:
        lost_to = f" than {entry.lost_to}"
    return f"{entry.outcome}{lost_to}"


def _shown_entry(entry: Entry, mark: tuple[str, bytes]) -> str:
    if isinstance(entry, DeleteFamily):
        return f"delete {escaped(entry.family)}"
    is_mark = (entry.family, entry.qualifier) == mark
    name = ROW_MARK if is_mark else escaped(unmapped_name(entry.family, entry.qualifier))
    if isinstance(entry, SetCell):
        at = f" at {view_of_time(entry.cell_timestamp)}" if entry.cell_timestamp else ""
        return f"{name} = {shown_bytes(entry.value)}{at}"
    if not entry.range_start and not entry.range_end:
        return f"delete {name}"
    end = view_of_time(entry.range_end) if entry.range_end else "the end"
    return f"delete {name} from {view_of_time(entry.range_start)} to {end}"


def _letters(letters: tuple[RowLetter, ...]) -> Table:
    shown = empty_table("dead letter", "reason", "state", "position", "detail")
    for letter in letters:
        certain = "" if letter.is_certain else "the Kafka key is that of the row; "
        replayed = "replayed" if letter.is_replayed else "not known"
        shown.add_row(
            escaped(letter.id),
            f"{letter.reason} {letter.rule}".rstrip(),
            replayed if letter.state is None else letter.state.value,
            escaped(letter.order_position),
            escaped(f"{certain}{letter.detail}".removesuffix("; ")),
        )
    return shown
