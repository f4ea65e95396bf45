"""Arguments that several commands take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from connector import cli
from connector.cli.parameters import (
    BYTES,
    CORES,
    DURATION_S,
    MEMORY,
    SPAN,
    START,
    STEP,
    STREAM,
    stream_option,
)


@pytest.mark.parametrize(("text", "expected_s"), [("7d", 604_800), ("1500ms", 2), (5, 5)])
def test_durations_are_whole_seconds(text: object, expected_s: int) -> None:
    assert DURATION_S.convert(text, None, None) == expected_s


def test_a_start_in_a_topic_is_a_word_or_a_time() -> None:
    """REC-21: from the beginning, the end, a timestamp."""
    assert START.convert("beginning", None, None) == "beginning"
    assert START.convert("end", None, None) == "end"
    assert START.convert("1714475984000000", None, None) == 1_714_475_984_000_000
    assert START.convert("2024-04-30T11:19:44Z", None, None) == 1_714_475_984_000_000
    assert START.convert("2024-04-30T13:19:44.000001+02:00", None, None) == 1_714_475_984_000_001
    assert START.convert("1960-01-01T00:00:00Z", None, None) == 0


def test_a_duration_is_how_long_ago() -> None:
    found = START.convert("10m", None, None)
    assert isinstance(found, int)
    assert abs(time.time_ns() // 1000 - 600_000_000 - found) < 60_000_000


@pytest.mark.parametrize(
    "text", ["", "now", "2024", "1714475984", "2024-04-30T11:19:44", "٣", "9" * 25]
)
def test_anything_else_is_a_wrong_call(text: str) -> None:
    """OPS-10: exit code 2. Few digits are rather a year or seconds than microseconds."""
    with pytest.raises(click.BadParameter):
        START.convert(text, None, None)


def test_a_wrong_duration_is_a_wrong_call() -> None:
    with pytest.raises(click.BadParameter):
        DURATION_S.convert("10", None, None)


@pytest.mark.parametrize(
    ("text", "span"),
    [("7", (7, 7)), ("3..9", (3, 9)), ("3..", (3, 2**63 - 1)), ("..9", (0, 9)), ("0", (0, 0))],
)
def test_a_span_has_both_its_ends(text: str, span: tuple[int, int]) -> None:
    """DLQ-8."""
    assert SPAN.convert(text, None, None) == span


@pytest.mark.parametrize("text", ["", "..", "9..3", "a", "-1", "1..2..3", "١"])
def test_an_invalid_span_is_a_wrong_call(text: str) -> None:
    with pytest.raises(click.UsageError, match="not a range"):
        SPAN.convert(text, None, None)


def test_bytes_are_text_or_base_64() -> None:
    assert (BYTES.convert("u#1", None, None), BYTES.convert("base64:/w==", None, None)) == (
        b"u#1",
        b"\xff",
    )
    with pytest.raises(click.UsageError, match="valid base64"):
        BYTES.convert("base64:?", None, None)
    with pytest.raises(click.UsageError, match="not UTF-8"):
        BYTES.convert("\udcff", None, None)


def test_an_invalid_step_is_a_wrong_call() -> None:
    """DLQ-12."""
    assert STEP.convert("reframe 3", None, None).verb == "reframe"
    with pytest.raises(click.UsageError, match="is not a step"):
        STEP.convert("guess", None, None)
    with pytest.raises(click.UsageError, match="is not UTF-8") as caught:
        STEP.convert("set headers.\udcff=1", None, None)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["*", "1", "16"])
def test_a_number_of_threads_is_passed_to_spark(text: str) -> None:
    assert CORES.convert(text, None, None) == text


@pytest.mark.parametrize("text", ["512m", "2g", "64G", "4096m"])
def test_a_size_of_a_heap_is_passed_to_spark(text: str) -> None:
    assert MEMORY.convert(text, None, None) == text


MEMORY_COMMANDS = (["run"], ["read", "t"], ["table", "rebuild", "t"])
BAD_CORES = ["", "0", "-1", "x", "1.5", "2]", "**", "\u0663", "9" * 5000, "\udc80"]
BAD_MEMORY = ["", "2", "x", "2gb", "1k", "511m", "0g", "-2g", "1.5g", "2g\n", "9" * 5000 + "g"]


@pytest.mark.parametrize(
    "words",
    [
        *(["run", "--cores", text] for text in BAD_CORES),
        *(["table", "rebuild", "t", "--cores", text] for text in BAD_CORES),
        *([*command, "--memory", text] for text in BAD_MEMORY for command in MEMORY_COMMANDS),
    ],
)
def test_cores_and_memory_that_spark_refuses_are_a_wrong_call(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-10: exit code 2, before a file is read or a JVM is started."""
    assert cli.invoke(words) == 2
    assert "write" in capsys.readouterr().err


# ── the stream of a command ───────────────────────────────────────────────────────────────────────


def commands_in(command: click.Command, *words: str) -> Iterator[tuple[str, click.Command]]:
    """Each command that is not a group, by its words."""
    if not isinstance(command, click.Group):
        yield " ".join(words), command
        return
    for name in command.list_commands(ctx := click.Context(command)):
        found = command.get_command(ctx, name)
        assert found is not None
        yield from commands_in(found, *words, name)


COMMANDS = dict(commands_in(cli.cli))
OF_A_STREAM = {
    words for words, each in COMMANDS.items() if "stream" in {param.name for param in each.params}
}


def is_named_as_everywhere(param: click.Parameter) -> bool:
    """Whether a parameter that names a stream is an option `--stream` that can be left out."""
    if param.type is not STREAM and param.name != "stream" and "--stream" not in param.opts:
        return True
    return (
        isinstance(param, click.Option)
        and (param.opts, param.secondary_opts) == (["--stream"], [])
        and not param.required
        and param.type is STREAM
    )


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_names_a_stream_in_the_same_way(words: str) -> None:
    """OPS-10."""
    assert [param for param in COMMANDS[words].params if not is_named_as_everywhere(param)] == []


def test_another_way_to_name_a_stream_is_noticed() -> None:
    @click.command()
    @click.argument("stream", type=STREAM, required=False)
    @click.argument("name", type=STREAM)
    @click.option("-s", "--stream", "other", type=STREAM)
    @click.option("--stream", "free")
    @stream_option
    def command() -> None: ...

    assert [is_named_as_everywhere(param) for param in command.params] == [False] * 4 + [True]


TWO_STREAMS = """
warehouse = "w"
kafka.bootstrap_servers = "127.0.0.1:1"
streams.orders.topic = "orders"
streams.other.topic = "other"
"""
FURTHER = {"--why": ["--why", "x"], "--from": ["--from", "t"]}
CHOICES = {
    "dead-letters discard": ["--all"],
    "dead-letters park": ["--all"],
    "dead-letters reopen": ["--all"],
    "dead-letters replay": ["--all"],
    "publish": ["/dev/null"],
    "write-streams release": ["--again"],
}


@pytest.mark.parametrize("words", sorted(OF_A_STREAM - {"audit"}))
def test_of_several_streams_a_command_needs_one(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """OPS-10: the error names the streams, and what to add."""
    monkeypatch.chdir(tmp_path)
    Path("connector.toml").write_text(TWO_STREAMS)
    call = [*words.split(), *CHOICES.get(words, [])]
    for param in COMMANDS[words].params:
        if param.required:
            call += FURTHER.get(param.opts[-1], ["x"])
    assert cli.invoke(call) == 1
    said = capsys.readouterr().err
    assert "error:  No stream is named" in said
    assert "orders, other" in said
    assert "Add --stream with one of them, for example --stream orders" in said


def test_the_streams_of_a_command_are_all_of_them_or_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TBL-6: `audit` is for all streams."""
    monkeypatch.chdir(tmp_path)
    Path("connector.toml").write_text(TWO_STREAMS)
    for call, streams in ([], {"orders", "other"}), (["--stream", "other"], {"other"}):
        assert cli.invoke(["audit", *call]) == 0
        said = capsys.readouterr().err
        assert {name for name in ("orders", "other") if name in said} == streams


def test_a_configuration_without_streams_needs_a_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("connector.toml").write_text(TWO_STREAMS.partition("streams.")[0])
    assert cli.invoke(["tail"]) == 1
    assert "remedy: Add a section [streams.NAME]" in capsys.readouterr().err
