"""The program as a shell sees it: exit codes, what goes where, how it ends (OPS-10)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from connector import cli

ROOT = Path(__file__).parents[3]
CONNECTOR = [sys.executable, "-c", "from connector.cli import main; main()"]


def connector(*arguments: str, cwd: Path, **further: object) -> subprocess.CompletedProcess[str]:
    command = [*CONNECTOR, *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        **further,
    )  # type: ignore[call-overload, no-any-return]


def test_help_names_every_command_without_importing_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        name in shown
        for name in ("broker", "dead-letters", "publish", "read", "tail", "topic", "validate")
    )


@pytest.mark.parametrize("command", sorted(set(cli.COMMANDS) - {"run"}))
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke([command, "--help"]) == 0
    assert f"Usage: connector {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"],
        ["nonsense"],
        ["read"],
        ["tail", "--from", "yesterday"],
        ["tail", "--start-commit", "beginning"],
        ["tail", "--end-commit", "2024-05-01T10:00:00"],
        ["topic", "create", "--retention", "7"],
    ],
)
def test_a_wrong_call_has_exit_code_2_and_shows_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Usage: connector" in said.err


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_an_error_of_the_environment_exits_with_1_without_a_traceback(tmp_path: Path) -> None:
    ended = connector("read", "files", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines() == [
        "error:  There is no file connector.toml",
        "remedy: Create this file, or give the path of your configuration",
        "run:    connector --help",
        "code:   CONFIG_MISSING",
    ]


def test_an_unknown_table_is_named_with_the_nearest(tmp_path: Path) -> None:
    text = (
        'warehouse = "wh"\n[kafka]\nbootstrap_servers = "h:1"\n[streams.s]\n[tables.files]\nstream'
        ' = "s"\n'
    )
    (tmp_path / "connector.toml").write_text(text)
    ended = connector("read", "fles", cwd=tmp_path)
    assert ended.returncode == 1
    assert "Did you mean files?" in ended.stderr
    ended = connector("read", "files", "--json", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "There is no table at" in ended.stderr


def test_an_unknown_command_is_named_with_the_nearest(tmp_path: Path) -> None:
    """OPS-10"""
    ended = connector("stauts", cwd=tmp_path)
    assert ended.returncode == 2
    assert "No such command 'stauts'. Did you mean status?" in ended.stderr
    assert "No such command 'zzz'." in connector("zzz", cwd=tmp_path).stderr


CONFIG = """
warehouse = "w"
kafka.bootstrap_servers = "127.0.0.1:1"
[streams.orders]
[streams.other]
[tables.accounts]
stream = "orders"
"""


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("connector dead", ["dead-letters"]),
        ("connector --conf", ["--config"]),
        ("connector table se", ["set"]),
        ("connector read ''", ["accounts"]),
        ("connector --config settings.toml partitions list --stream or", ["orders"]),
        ("connector dead-letters replay --stream o", ["orders", "other"]),
        ("connector dead-letters list --table a", ["accounts"]),
        ("connector --config missing.toml read a", []),
        ("connector --config broken.toml read a", []),
    ],
)
def test_a_shell_completes_commands_and_names(
    line: str, completed: list[str], tmp_path: Path
) -> None:
    """OPR-6: names are those of the configuration. If it cannot be read, nothing is completed."""
    for name in ("connector.toml", "settings.toml"):
        (tmp_path / name).write_text(CONFIG)
    (tmp_path / "broken.toml").write_text(CONFIG + "columns = 7")
    program = tmp_path / "connector"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{CONNECTOR[2]}' \"$@\"\n")
    program.chmod(0o755)
    script = (
        f"{connector('completion', 'bash', cwd=tmp_path).stdout}\n"
        f"COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}\n"
        "_connector_completion connector\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.stdout.split(), ended.stderr) == (completed, "")


def test_each_check_is_an_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPR-6, OPS-1."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(CONFIG)
    assert cli.invoke(["validate", "--json"]) == 1
    *checks, fault = map(json.loads, capsys.readouterr().out.splitlines())
    assert checks[0] == {"level": "ok", "text": "configuration: 2 streams, 1 table"}
    text = "streams.other has no table: its changes go to the changelog only"
    assert {"level": "warning", "text": text} in checks
    assert fault["text"] == "No Kafka broker answers at 127.0.0.1:1"
    assert fault["run"] == "connector broker start --port 1"
    assert (fault["level"], fault["code"]) == ("fault", "BROKER_UNREACHABLE")
    assert fault["cause"]
    assert fault["remedy"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["completion", shell]) == 0
    assert f"_CONNECTOR_COMPLETE={shell}_complete" in capfd.readouterr().out


def test_a_command_is_completed_without_an_import(tmp_path: Path) -> None:
    code = (
        "import atexit, sys; from connector.cli import main;"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    )
    further = {"COMP_WORDS": "connector re", "COMP_CWORD": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT), "_CONNECTOR_COMPLETE": "bash_complete", **further},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout.split() == ["plain,read", "plain,reconcile"]
    imported = {name for name in ended.stderr.split() if name.startswith("connector.cli")}
    assert imported == {"connector.cli"}
    assert "connector.services" not in ended.stderr.split()


def test_the_version_is_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("importlib.metadata")
    assert cli.invoke(["--version"]) == 0
    assert capsys.readouterr().out.startswith("connector, version ")


STOPPED = """
import click, os, signal, sys
from connector import cli
@click.command()
def command():
    {body}
cli.cli.add_command(command, "command")
cli.Commands.get_command = lambda self, ctx, name: command
cli.main(["command"])
"""


def run_body(body: str, cwd: Path, **further: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", STOPPED.format(body=body)],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT)},
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The producer side installs without Spark."""

    @click.command()
    def command() -> None:
        raise ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql")

    monkeypatch.setattr(cli.Commands, "get_command", lambda *_: command)
    assert cli.invoke(["run"]) == 1
    assert "pip install 'lowmark[spark]'" in capsys.readouterr().err


def test_a_bridge_and_the_pipeline_start_in_one_process(tmp_path: Path) -> None:
    """SRC-1, RUN-2: both threads import the package of Kafka's client, and wait for Kafka."""
    (tmp_path / "connector.toml").write_text(
        """warehouse = "w"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[streams.shop]
topic = "shop"
[streams.shop.source]
format = "debezium-json"
topics = ["dbz.public.*"]
"""
    )
    command = [*CONNECTOR, "run", "--bridge"]
    environment = {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        waiting = {process.stderr.readline().partition(" WAITING ")[2] for _ in range(2)}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "stopped: " in process.stderr.read()
    what = "waits, and goes on by itself: No Kafka broker"
    begins = (f"stream shop: the bridge {what}", f"the pipeline {what}")
    assert all(any(line.startswith(begin) for line in waiting) for begin in begins)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_without_a_traceback(tmp_path: Path, name: str) -> None:
    # A test run in the background hands an ignored SIGINT down.
    listen = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    process = run_body(f"{listen}; os.kill(os.getpid(), signal.{name}); signal.pause()", tmp_path)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "interrupted\n")


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    process = run_body("[print('x' * 1000) for _ in range(100_000)]", tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_closed_pipe_does_not_hide_the_exit_code(tmp_path: Path) -> None:
    """RUN-1: `status --check | head -1` of a shell with `pipefail`."""
    body = "print('DEAD_LETTERS'); return 1"
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED.format(body=body)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        stdout=writer,
        timeout=60,
    )
    os.close(writer)
    assert ended.returncode == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_output_is_utf_8_whatever_the_locale_is(tmp_path: Path, encoding: str) -> None:
    """OPS-10: so that programs read it, and no character ends a command."""
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED.format(body="print('区─é\\udc80')")],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (0, "区─é\\udc80\n".encode())


def test_a_full_disk_is_an_error_of_the_environment(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", STOPPED.format(body="print('x' * 100_000)")],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 1
    assert "error:  The operating system refused an operation: [Errno 28]" in ended.stderr
    assert "Traceback" not in ended.stderr
