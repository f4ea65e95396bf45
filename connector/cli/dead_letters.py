"""`connector dead-letters`: what was rejected, and why (DLQ-8, DLQ-9).

Whatever a letter says of itself came from outside: all of it is escaped before it reaches the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from connector.cli import settings
from connector.cli.letter_view import print_letter, summary
from connector.cli.terminal import console, counted, escaped, out, say, table
from connector.config import KafkaConfig
from connector.deadletter import DeadLetter, Reason, dead_letter_topic
from connector.errors import ConnectorError, TopicError
from connector.json_view import to_line, view_of_time

EXAMPLES = 2

_stream = click.option("--stream", help="The stream that they are of; may be left out where there is one only.")


@click.group()
def command() -> None:
    """List and explain what was rejected."""


@dataclass(slots=True)
class _Group:
    """The letters that share a reason, and with INVALID a rule."""

    letters: int = 0
    oldest: int = 0
    newest: int = 0
    examples: tuple[str, ...] = ()

    def add(self, letter: DeadLetter) -> None:
        self.oldest = min(self.oldest or letter.first_failed_at, letter.first_failed_at)
        self.newest = max(self.newest, letter.first_failed_at)
        self.letters += 1
        self.examples = (*self.examples, letter.id)[:EXAMPLES]


@command.command("list")
@_stream
@click.option("--reason", type=click.Choice(list(Reason), case_sensitive=False), help="Only these, one by one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each letter.")
@click.pass_context
def list_(ctx: click.Context, stream: str | None, reason: Reason | None, as_json: bool) -> None:
    """Count the dead letters by reason, each letter once by its id; with --reason, or as JSON, letter by letter."""
    config = settings.load(ctx)
    of = settings.stream(config, stream)
    groups: dict[tuple[str, str], _Group] = {}
    for letter in _letters(config.kafka, of.topic):
        if reason is not None and letter.reason is not reason:
            continue
        groups.setdefault((letter.reason, letter.rule), _Group()).add(letter)
        if as_json:
            out(to_line(summary(letter)))
        elif reason is not None:
            out(f"{escaped(letter.id)}  {letter.reason} {escaped(letter.rule)}".rstrip() + f"  {escaped(letter.detail)}")
    if not as_json and reason is None and groups:
        _print_groups(groups)
    letters = sum(group.letters for group in groups.values())
    say(
        f"{counted(letters, 'dead letter')} of {of.topic}"
        + ("; connector dead-letters show ID explains one" if letters and not as_json else "")
    )


def _print_groups(groups: dict[tuple[str, str], _Group]) -> None:
    shown = table("reason", "rule", "letters", "first", "last", "for example", right=frozenset({"letters"}))
    for (reason, rule), group in sorted(groups.items(), key=lambda item: -item[1].letters):
        times = (str(view_of_time(moment)) for moment in (group.oldest, group.newest))
        shown.add_row(reason, escaped(rule), f"{group.letters:,}", *times, "\n".join(escaped(example) for example in group.examples))
    console().print(shown)


@command.command()
@click.argument("letter_id", metavar="ID")
@_stream
@click.option("--json", "as_json", is_flag=True, help="One JSON object, key, value and headers included.")
@click.option("--all", "everything", is_flag=True, help="The whole value, however long.")
@click.pass_context
def show(ctx: click.Context, letter_id: str, stream: str | None, as_json: bool, everything: bool) -> None:
    """Explain one dead letter: where it came from, what is wrong with it, what can be done, and what it says."""
    config = settings.load(ctx)
    of = settings.stream(config, stream)
    letter = next((letter for letter in _letters(config.kafka, of.topic) if letter.id == letter_id), None)
    if letter is None:
        cause = f"none in {dead_letter_topic(of.topic)} has this id"
        raise ConnectorError(
            f"There is no dead letter {letter_id}", cause, f"connector dead-letters list --json --stream {of.name} has their ids"
        )
    if as_json:
        out(to_line(summary(letter, whole=True)))
    else:
        print_letter(letter, _schemas(config, letter), everything=everything)


def _letters(kafka: KafkaConfig, topic: str) -> Iterator[DeadLetter]:
    """The letters of a change topic; none where their topic was not made yet. Raises `TopicError` if the change topic is missing, too."""
    from connector.kafka import topics
    from connector.kafka.dead_letter_topic import read_letters

    try:
        topics.describe(kafka, dead_letter_topic(topic))
    except TopicError:
        topics.describe(kafka, topic)
        return
    for letter, _ in read_letters(kafka, topic):
        yield letter


def _schemas(config: Any, letter: DeadLetter) -> Any:
    """The schemas to decode a letter with; that of a registry only if there is one and it answers."""
    from connector.codec import Schemas, confluent_id
    from connector.errors import RegistryError

    schema_id = confluent_id(letter.value)
    if schema_id is None or config.registry is None:
        return Schemas()
    from connector.kafka.registry import RegistryClient

    try:
        with RegistryClient(config.registry) as registry:
            return Schemas({schema_id: registry.schema(schema_id)})
    except RegistryError as error:
        say(f"warning: not decoded with the registry's schema: {error}")
        return Schemas()
