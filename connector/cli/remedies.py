"""The command that helps after an error, or with a reason of a status. Packages below `cli` name no
command: their errors and reasons have fields, and this module makes the command of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from connector.dead_letters.envelope import (
    change_topic,
    dead_letter_topic,
    ledger_topic,
    replay_topic,
)
from connector.errors import ConnectorError
from connector.reports.reasons import Reason
from connector.tables.published import topic_of_tables
from connector.write_streams.model import topic_of_catalog


def command_line(words: str, *arguments: str, **options: str | None) -> str:
    """A command line to copy, with its values quoted for a shell.

    `words` are the command and its fixed options, for example `table rebuild`. An option
    without a value is left out. For example, `command_line("dead-letters list", stream="orders")`.
    """
    line = ["connector", *words.split()]
    for name, value in options.items():
        line += [] if value is None else [f"--{name.replace('_', '-')}", value]
    if any(argument.startswith("-") for argument in arguments):
        line.append("--")
    return shlex.join([*line, *arguments])


@contextmanager
def naming_option(option: str) -> Iterator[None]:
    """In errors of the block, the remedy names an option and not the argument of Python that the
    service has: `allow_stale`.
    """
    try:
        yield
    except ConnectorError as error:
        error.remedy = error.remedy.replace("(allow_stale)", f"({option})")
        raise


@dataclass(frozen=True, slots=True)
class Template:
    """A command line without its values.

    - `words` are the command and its fixed options, for example `table rebuild`.
    - `arguments` are fields of the error, and so are `options`, which have the names of options.
      Without one of them there is no command.
    - `may_lack` are further options. One without its field is left out.
    """

    words: str
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    may_lack: tuple[str, ...] = ()

    def line(self, fields: Mapping[str, object]) -> str | None:
        """The command line with the values of an error. None: a needed value is not known."""
        given = {name: str(value) for name, value in fields.items() if value is not None}
        if not given.keys() >= {*self.arguments, *self.options}:
            return None
        options = {name: given.get(name) for name in (*self.options, *self.may_lack)}
        return command_line(self.words, *(given[name] for name in self.arguments), **options)


_OF_STREAM: Final = ("stream",)
_OF_BATCH: Final = ("stream", "ingest_batch")
_STATUS: Final = (Template("status"),)
_REBUILD: Final = (Template("table rebuild", ("table",)),)
_LIST_LETTERS: Final = (Template("dead-letters list", options=_OF_STREAM),)
_LIST_ALL_LETTERS: Final = (
    Template("dead-letters list --state any --json", (), _OF_STREAM, ("group",)),
)
_LIST_WRITE_STREAMS: Final = (Template("write-streams list", options=_OF_STREAM),)

TEMPLATES: Final[Mapping[str, tuple[Template, ...]]] = {
    "AS_OF_TOO_OLD": _STATUS,
    "BROKER_UNREACHABLE": (Template("broker start", options=("port",)),),
    "COMMIT_FOREIGN": _REBUILD,
    "CONFIG_MISSING": (Template("--help"),),
    "CUT_MISSING": _STATUS,
    "DEAD_LETTER_AMBIGUOUS": _LIST_ALL_LETTERS,
    "DEAD_LETTER_MISSING": _LIST_ALL_LETTERS,
    "SPARK_FAILED": (Template("run"),),
    "RECORDS_DELETED": (Template("stream accept-loss", options=_OF_STREAM),),
    "REJECTED_RATIO_EXCEEDED": (
        Template("dead-letters list", options=_OF_BATCH),
        # Without --execute it sends nothing: it shows what a replay would do.
        Template("dead-letters replay", options=_OF_BATCH),
    ),
    "RELEASE_TOO_LATE": _LIST_WRITE_STREAMS,
    "RELEASE_UNKNOWN": _LIST_WRITE_STREAMS,
    "RELEASE_WITHHELD": _LIST_WRITE_STREAMS,
    "ROWS_BLOCKED": _LIST_LETTERS,
    "ROWS_NOT_SHOWN": _STATUS,
    "STREAM_PARTITION_UNKNOWN": (Template("partitions list", options=_OF_STREAM),),
    "TABLES_STOPPED": _STATUS,
    "TABLE_COLUMNS_CHANGED": _REBUILD,
    "TABLE_DAMAGED": _REBUILD,
    "TABLE_MISSING": (Template("run --once"),),
    "TABLE_REJECTS_CHANGES": _REBUILD,
    "TABLE_STALE": _STATUS,
    "TRANSACTION_UNKNOWN": (Template("transactions list", options=_OF_STREAM),),
    "TOPIC_MISSING": (Template("topic create", (), _OF_STREAM, ("group",)),),
}
"""Code -> the commands that help, in order. Each can be run without harm, or stops at once."""

_VALIDATE: Final = Template("validate")
_LIST_PARTITIONS: Final = Template("partitions list", options=_OF_STREAM)
_LIST_TRANSACTIONS: Final = Template("transactions list", options=_OF_STREAM)
_BATCHES_AND_APPLIES: Final = Template("jobs --by hour")
_LAST_JOBS: Final = Template("jobs", options=("table",))
REASONS: Final[Mapping[str, Template]] = {
    "HEADROOM": _VALIDATE,
    "PIPELINE_DOWN": Template("run"),
    "UNREADABLE": _VALIDATE,
    "TABLE_STOPPED": _LAST_JOBS,
    "PIPELINE_WAITS": _VALIDATE,
    "BRIDGE_DOWN": Template("bridge", options=_OF_STREAM),
    "RECORDS_HIDDEN": _LIST_PARTITIONS,
    "TABLE_STALE": _BATCHES_AND_APPLIES,
    "WATERMARK_STALLED": _LIST_PARTITIONS,
    "WATERMARK_UNKNOWN": _LIST_PARTITIONS,
    "KEY_RANGE_UNCOVERED": _LIST_PARTITIONS,
    "UNDECLARED": _LIST_PARTITIONS,
    "NEVER_SEEN": _LIST_PARTITIONS,
    "CHANGES_WAIT": _LIST_PARTITIONS,
    "BRIDGE_WAITS": _VALIDATE,
    "DEAD_LETTERS": _LIST_LETTERS[0],
    "LOSS_UNCONFIRMED": Template("table confirm --help", ("table",)),
    "ROWS_BLOCKED": _LIST_LETTERS[0],
    "RELEASES_WITHHELD": _LIST_WRITE_STREAMS[0],
    "ERASURE_UNFINISHED": Template("erase --help"),
    "TRANSACTIONS_INCOMPLETE": _LIST_TRANSACTIONS,
    "AUDIT_FAILED": Template("audit", options=_OF_STREAM),
    "JOB_FAILED": _LAST_JOBS,
    "MAINTENANCE_FAILED": _BATCHES_AND_APPLIES,
    "RELOAD_REFUSED": _VALIDATE,
    "TWO_PRODUCERS": _LIST_PARTITIONS,
    "PIPELINE_UNKNOWN": _VALIDATE,
    "STORE_UNREACHABLE": _VALIDATE,
    "LETTERS_UNKNOWN": _LIST_LETTERS[0],
}
"""Code of a reason -> the command that helps, if its error has none of its own."""


def command_of_reason(reason: Reason) -> str:
    """The command line that helps with a reason of a status. It is never the status itself."""
    line = command_of(reason.fields.get("error", ""), reason.fields)
    if line in (None, _STATUS[0].line({})):
        line = REASONS[reason.code].line(reason.fields)
    assert line is not None, f"{reason.code} has the values of its command"
    return line


def command_for(error: ConnectorError) -> str | None:
    """The command line that helps after an error, with its arguments quoted for a shell.

    Several commands are joined with `&&`. The `--config` of the failed call is not repeated.

    Returns:
        The command line. None: no command helps, or the error lacks a value for it.
    """
    return command_of(error.code, error.fields)


def command_of(code: str, of_error: Mapping[str, object]) -> str | None:
    """The same for an event, which has the code and the fields of an error."""
    fields = dict(of_error)
    if code == "TOPIC_MISSING" and "topic" in fields:
        topic = str(fields["topic"])
        fields["stream"] = change_topic(topic_of_tables(topic_of_catalog(topic)))
        fields["group"] = _group_of(topic)
    if code == "TABLE_COLUMN_LOST" and fields.keys() >= {"table", "column"}:
        words = (str(fields["table"]), "drop-column", str(fields["column"]))
        return f"{command_line('table alter', *words)} --dry-run"
    lines = [template.line(fields) for template in TEMPLATES.get(code, ())]
    return None if not lines or None in lines else " && ".join(filter(None, lines))


def _group_of(topic: str) -> str | None:
    """The group that a topic of dead letters, of a ledger or of replays belongs to."""
    stream, is_of_group, rest = topic.partition(dead_letter_topic("", ""))
    for name in (ledger_topic, replay_topic):
        group = rest.removesuffix(name("", "").removeprefix(dead_letter_topic("", "")))
        if group != rest and topic == name(stream, group):
            return group
    return rest if is_of_group else None
