"""The commands: the only place that reads the user's files, the environment and argv (OPS-10).

    terminal    output: data on standard output, messages on standard error, all of it escaped
    parameters  the arguments that several commands take
    …           the commands: a module is imported when you call its command, which calls a service
                and prints the result

`connector --help` imports none of these modules, so it answers at once, also on a machine without
Kafka's client or Spark.

Exit codes: 0 done, 1 a problem (with cause and remedy on standard error), 2 a wrong call, 130
interrupted.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem, shell_complete

from connector.errors import ConnectorError
from connector.errors.settings import extra_missing, system_error

COMMANDS: Final = {
    "audit": ("connector.cli.audit:command", "Check that no record is lost."),
    "bridge": (
        "connector.cli.bridge:command",
        "Publish the topics of another program as the changes of a stream.",
    ),
    "broker": (
        "connector.cli.kafka:broker",
        "Start or stop a local Kafka broker, for development.",
    ),
    "completion": ("connector.cli:completion", "Print the script for completion in a shell."),
    "dead-letters": (
        "connector.cli.dead_letters:command",
        "List, explain, repair and replay rejected records.",
    ),
    "erase": ("connector.cli.erase:command", "Erase a row, with all its old versions."),
    "explain": ("connector.cli.explain:command", "Explain why a row is as it is."),
    "export": ("connector.cli.copies:export", "Write the rows of a table to a file."),
    "jobs": (
        "connector.cli.table:jobs_command",
        "Show what batches, applies and other jobs did, and their sums by hour.",
    ),
    "load": ("connector.cli.load:command", "Load existing rows into a table, all at once."),
    "partitions": (
        "connector.cli.streams:partitions",
        "Show which stream partitions delay the low watermark; close one.",
    ),
    "publish": ("connector.cli.publish:command", "Publish changes from JSON, one object per line."),
    "read": ("connector.cli.read:command", "Read a table."),
    "reconcile": (
        "connector.cli.copies:reconcile",
        "Compare a table with a copy of its rows.",
    ),
    "run": ("connector.cli.run:run_command", "Ingest all streams and apply them to their tables."),
    "serve": (
        "connector.console.command:command",
        "Show streams, tables, dead letters and rows in a browser.",
    ),
    "status": (
        "connector.cli.status:command",
        "Show lag, staleness and dead letters of streams and tables.",
    ),
    "stream": (
        "connector.cli.streams:stream",
        "Go on behind records that Kafka deleted unread.",
    ),
    "table": (
        "connector.cli.table:command",
        "Set the staleness bound of a table; change its columns; rebuild it.",
    ),
    "tail": (
        "connector.cli.tail:command",
        "Show the records of a stream, one JSON object per line.",
    ),
    "topic": ("connector.cli.kafka:topic", "Create the topics of a stream."),
    "transactions": (
        "connector.cli.streams:transactions",
        "List the transactions that lack records; release one.",
    ),
    "validate": (
        "connector.cli.run:validate",
        "Check the configuration with a running Kafka. It starts nothing.",
    ),
    "write-streams": (
        "connector.cli.write_streams:command",
        "List the write streams of a stream; finalize, commit, discard and release them.",
    ),
}
"""Command -> its module and name there, imported when it is called, and its summary in `--help`."""

_NAME: Final = "connector"
_COMPLETE: Final = "_CONNECTOR_COMPLETE"
"""The variable with which the script of `connector completion` asks for completions."""
EXTRAS: Final = {
    "delta": "spark",
    "deltalake": "lake",
    "httpx": "registry",
    "jinja2": "console",
    "pandas": "spark",
    "prometheus_client": "metrics",
    "pyarrow": "load",
    "pyspark": "spark",
    "starlette": "console",
    "uvicorn": "console",
}
"""Package -> the extra of this distribution that brings it."""


class Commands(click.Group):
    """The group of all commands, each imported when it is called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002, click's signature
        """The names of the commands whose modules are installed."""
        return [
            name
            for name, (path, _) in sorted(COMMANDS.items())
            if importlib.util.find_spec(path.partition(":")[0])
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now, or None."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command), f"{module} has no command {name}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first argument. An unknown one is an error with the nearest name."""
        from connector.errors import as_sentence
        from connector.text import nearest

        is_unknown = not args[0].startswith("-") and self.get_command(ctx, args[0]) is None
        if is_unknown and (similar := nearest(args[0], self.list_commands(ctx))):
            ctx.fail(f"No such command '{args[0]}'. {as_sentence(similar)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that begin so, without importing a command."""
        return [
            CompletionItem(name, help=COMMANDS[name][1])
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summaries without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="The configuration file. Default: connector.toml in this folder.",
)
@click.version_option(package_name="lowmark", prog_name=_NAME)
@click.pass_context
def cli(ctx: click.Context, config_file: Path | None) -> None:
    """Change data capture over Kafka and Spark into Delta tables.

    Data goes to standard output, messages to standard error. Exit code 0: done; 1: a problem, with
    cause and remedy; 2: a wrong call.
    """
    ctx.obj = config_file


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, streams and tables in SHELL.

    For example, write `eval "$(connector completion bash)"` into ~/.bashrc.
    """
    shell_complete(cli, {}, _NAME, _COMPLETE, f"{shell}_source")


def main(arguments: Sequence[str] | None = None) -> None:
    """The `connector` program: run one command, then exit. Never returns."""
    if instruction := os.environ.get(_COMPLETE):
        with suppress(ModuleNotFoundError):  # the package of an extra: then nothing is completed
            shell_complete(cli, {}, _NAME, _COMPLETE, instruction)
        sys.exit()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: files are removed
    sys.exit(invoke(sys.argv[1:] if arguments is None else arguments))


def invoke(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. A problem goes to standard error."""
    if sys.stdout is None:  # closed, as daemons have it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # whatever the locale says
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    code: object = 0
    try:
        # Not `cli.main`, which would take a closed pipe for a failure.
        with cli.make_context(_NAME, list(arguments)) as ctx:
            code = cli.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ConnectorError as error:
        return _failed(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        return _failed(extra_missing(package, EXTRAS[package]))
    except BrokenPipeError:  # the reader of the output has ended
        _discard_output()
    except OSError as error:
        _discard_output()
        return _failed(system_error(str(error)))
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 130
    return code if isinstance(code, int) else 0


def _failed(error: ConnectorError) -> int:
    from connector.cli.terminal import show_error

    show_error(error)
    return 1


def _discard_output() -> None:
    """Discard the rest of the output, which Python flushes at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
