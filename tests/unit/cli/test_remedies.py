"""The commands that errors lead to exist, and packages below `cli` name none."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress

import click
import pytest

from connector import cli
from connector.cli.parameters import STREAM
from connector.cli.remedies import (
    REASONS,
    TEMPLATES,
    Template,
    command_for,
    command_line,
    command_of_reason,
    naming_option,
)
from connector.errors import ConnectorError, InvalidChangeError
from connector.errors.tables import table_stale
from connector.reports.reasons import Reason
from tests.error_codes import PACKAGE

FIELDS = {
    "group": "index",
    "ingest_batch": 7,
    "port": 9092,
    "stream": "orders",
    "table": "orders",
    "topic": "orders",
}
WITHOUT_COMMANDS = {
    path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()
} - {"cli"}
"""The packages whose texts name no command: all below `cli`."""


def parses(line: str) -> bool:
    """Whether click takes a command line, which names its stream if the command has one."""
    command: click.Command = cli.cli
    program, *words = shlex.split(line)
    if program != "connector" or words == ["--help"]:
        return program == "connector"
    while isinstance(command, click.Group):
        with command.make_context("connector", words) as ctx:
            _, found, words = command.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        assert found is not None
        command = found
    with suppress(click.exceptions.Exit), command.make_context("connector", words) as ctx:
        of_stream = [param.name for param in command.params if param.type is STREAM]
        return None not in [ctx.params[name or ""] for name in of_stream]
    return True


@pytest.mark.parametrize("code", TEMPLATES)
def test_every_command_exists_and_names_its_stream(code: str) -> None:
    """OPS-10: also if the error lacks a field: then there is no command, or one without it."""
    for lacking in ("", *FIELDS, "all"):
        fields = {name: value for name, value in FIELDS.items() if lacking not in (name, "all")}
        line = command_for(ConnectorError(code, "problem", **fields))
        assert line is not None or lacking
        assert line is None or all(parses(one) for one in line.split(" && ")), line


@pytest.mark.parametrize("code", REASONS)
def test_the_command_of_a_reason_names_its_stream(code: str) -> None:
    """RUN-1: a reason about a stream or a table has both names, and others have none."""
    fields = {name: FIELDS[name] for name in ("stream", "table")}
    lines = [REASONS[code].line({}) or REASONS[code].line({"stream": "orders"})]
    line = lines[0] or REASONS[code].line(fields)
    assert line is not None
    assert parses(line)


@pytest.mark.parametrize("code", REASONS)
def test_the_command_of_a_reason_leads_on(code: str) -> None:
    """RUN-1: `connector status` has just shown the reason, so it is no help, whatever the error."""
    for error in ("", *TEMPLATES):
        reason = Reason(code, "x", "y", {"stream": "orders", "table": "orders", "error": error})
        assert command_of_reason(reason) != "connector status"


def test_a_command_without_its_stream_is_noticed() -> None:
    assert parses("connector dead-letters list --stream s")
    for line in ("connector dead-letters list", "connector partitions list"):
        assert not parses(line)
    assert Template("dead-letters list", may_lack=("stream",)).line({}) == (
        "connector dead-letters list"
    )


def test_a_command_line_is_quoted() -> None:
    transaction = "file=b.1; rm -r /"
    assert command_line("bridge", stream="s", skip_transaction=transaction, log_level=None) == (
        "connector bridge --stream s --skip-transaction 'file=b.1; rm -r /'"
    )
    assert command_line("explain", "t", "-7") == "connector explain -- t -7"


def test_a_command_has_the_values_of_its_error() -> None:
    def command(code: str, **fields: object) -> str | None:
        return command_for(ConnectorError(code, "problem", **fields))

    assert command("REJECTED_RATIO_EXCEEDED", stream="S", ingest_batch=7) == (
        "connector dead-letters list --stream S --ingest-batch 7"
        " && connector dead-letters replay --stream S --ingest-batch 7"
    )
    assert command("TABLE_MISSING") == "connector run --once"
    assert command("TABLE_COLUMNS_CHANGED", table="T") == "connector table rebuild T"
    line = command("TABLE_COLUMN_LOST", table="a b", column="note")
    assert line == "connector table alter 'a b' drop-column note --dry-run"
    assert parses(line)
    assert command("TABLE_COLUMN_LOST", table="a b") is None
    assert command("TABLE_DAMAGED", table="a b") == "connector table rebuild 'a b'"
    assert (
        command("STREAM_PARTITION_UNKNOWN", stream="-s") == "connector partitions list --stream -s"
    )
    assert command("BROKER_UNREACHABLE", port=9092) == "connector broker start --port 9092"
    assert command("BROKER_UNREACHABLE", port=None) is None
    assert command("BROKER_FOLDER_IN_USE", folder="f") is None, "the broker may be in use"
    assert command("TOPIC_MISSING", topic="orders.dead-letters.ledger") == (
        "connector topic create --stream orders"
    )
    for suffix in ("", ".ledger", ".replays"):
        topic = f"orders.dead-letters.group.index{suffix}"
        assert command("TOPIC_MISSING", topic=topic) == (
            "connector topic create --stream orders --group index"
        )
    assert command("DEAD_LETTER_MISSING", stream="S", group="index") == (
        "connector dead-letters list --state any --json --stream S --group index"
    )
    for topic in ("orders", "orders.write-streams"):
        assert command("TOPIC_MISSING", topic=topic) == "connector topic create --stream orders"
    assert command("JAVA_UNUSABLE") is None
    assert command_for(InvalidChangeError("ROW_KEY", "row_key", "short", b"")) is None


def test_a_command_that_does_not_exist_is_refused() -> None:
    for line in ("connector runn", "connector table rebuild", "connector status --all", "rm T"):
        try:
            assert not parses(line)
        except click.UsageError:
            continue


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────

_COMMAND = rf"\bconnector (?:--\w+|(?:{'|'.join(cli.COMMANDS)})\b)"
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def commands_named(source: str, before: str = "") -> Iterator[str]:
    """The commands and options in strings of a module that are not docstrings, and `before` which
    this pattern is.
    """
    tree = ast.parse(source)
    alone = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield from re.findall(before + _COMMAND, node.value)


def options_named(source: str) -> Iterator[str]:
    """The options in the texts of calls that make an error."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and call.args and _is_code(call.args[0]):
            for node in ast.walk(call):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield from _OPTION.findall(node.value)


def _is_code(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and re.fullmatch("[A-Z_]+", str(node.value)) is not None


@pytest.mark.parametrize("package", sorted(WITHOUT_COMMANDS))
def test_texts_below_the_command_line_name_no_command(package: str) -> None:
    found = [
        (path.name, text)
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for source in [path.read_text("utf-8")]
        for text in [*commands_named(source), *options_named(source)]
    ]
    assert found == []


@pytest.mark.parametrize("package", ["cli", "console"])
def test_command_lines_to_copy_are_made_in_one_place(package: str) -> None:
    """OPS-10: `command_line` quotes, and the other texts name commands as `connector run`."""
    found = [
        (path.name, text)
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for text in commands_named(path.read_text("utf-8"), "(?<!`)")
    ]
    assert found == []


def test_commands_are_found_in_a_made_up_module() -> None:
    source = (
        '"""connector run"""\n\nE("CODE", f"see connector table rebuild {x} --execute")\n'
        'say("connector running, `connector --config F status`")\n'
    )
    assert sorted(commands_named(source)) == ["connector --config", "connector table"]
    assert [*options_named(source)] == ["--execute"]


def test_a_stale_table_leads_to_the_option_and_not_to_an_argument() -> None:
    """OPS-10"""
    error = table_stale("T", "90 s old", "60", "ingest is behind", None)
    with pytest.raises(ConnectorError) as caught, naming_option("--allow-stale"):
        raise error
    assert caught.value.remedy.endswith("or read the table as it is (--allow-stale)")
