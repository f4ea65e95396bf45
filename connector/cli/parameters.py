"""The arguments that several commands take: their types, the configuration, and the reason of an
action. An invalid value is a wrong call (exit code 2).
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import click
from click.shell_completion import CompletionItem

from connector.clock import now_us
from connector.config.settings_reader import parse_duration_ms
from connector.errors import ConnectorError, InvalidChangeError
from connector.errors.settings import stream_unknown
from connector.state.pace import LEAST_RATE, MOST_RATE
from connector.text import one_of

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.dead_letters.repair import Step
    from connector.services.reload import ConfigFile

_LEAST_DIGITS, _MOST_DIGITS = 15, 18
"""Microseconds from 1973 on; fewer digits are rather a year, or seconds."""
_LEAST_HEAP_MB: Final = 512
_Value = TypeVar("_Value")
Function = TypeVar("Function", bound=Callable[..., object])
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def config_of(ctx: click.Context, *, source_tables: bool = True) -> ConnectorConfig:
    """The configuration of a call: `--config FILE`, or connector.toml in this folder, with
    environment variables over it (OPS-1). `source_tables` is as for `load_config`. Raises
    `ConfigError`.
    """
    from connector.services.load_config import load_config

    file = ctx.find_root().obj
    assert file is None or isinstance(file, Path)
    return load_config(file, source_tables=source_tables)


def config_file_of(ctx: click.Context) -> ConfigFile:
    """The same as a file that can be read again. Raises `ConfigError`."""
    from connector.services.reload import ConfigFile

    file = ctx.find_root().obj
    assert file is None or isinstance(file, Path)
    return ConfigFile(file)


def config_and_stream(
    ctx: click.Context, name: str | None, *, source_tables: bool = True
) -> tuple[ConnectorConfig, StreamConfig]:
    """The configuration as `config_of` returns it, and the stream that `stream_option` names, by
    its name or topic. Without a name, the only stream. Raises `ConfigError`.
    """
    from connector.config.settings import find_stream

    config = config_of(ctx, source_tables=source_tables)
    if name is None and len(config.streams) > 1:
        remedy = f"Add --stream with one of them, for example --stream {min(config.streams)}"
        raise stream_unknown(None, one_of(config.streams), remedy)
    return config, find_stream(config, name)


def row_key_in(config: ConnectorConfig, table: str, text: str) -> bytes:
    """The row key that the argument KEY means in a table. Raises `ConfigError` if there is no such
    table.
    """
    from connector.config.settings import find_table
    from connector.services.rows.values import row_key_of

    try:
        return row_key_of(find_table(config, table).key, text)
    except InvalidChangeError as error:
        raise click.UsageError(f"KEY: {error.problem}") from None


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and Ctrl-C set from now on."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def check_why(why: str | None) -> None:
    if not (why or "").strip():
        raise click.UsageError("give the reason with --why: it is kept with your name and the time")


class Parsed(click.ParamType[_Value]):
    """A type of arguments. `parse` raises `ValueError` with a message for the user."""

    def __init__(self, name: str, parse: Callable[[str], _Value]) -> None:
        self.name, self._parse = name, parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> _Value:
        if not isinstance(value, str):
            return value  # type: ignore[return-value]
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Configured(click.ParamType[str]):
    """A name of the configuration. A shell completes it, if the configuration can be read."""

    def __init__(self, name: str, names: Callable[[ConnectorConfig], Iterable[str]]) -> None:
        self.name, self._names = name, names

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002, click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        """The names that begin so."""
        from connector.services.load_config import load_config

        with suppress(ConnectorError):
            # A completion calls no command, so `ctx.obj` is not set.
            file = ctx.find_root().params["config_file"]
            names = self._names(load_config(file, source_tables=False))
            return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
        return []


def _address(text: str) -> tuple[str, int]:
    """A host and a port, such as 127.0.0.1:9464 or [::1]:9464."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address; write for example 127.0.0.1:9464")
    return host, int(port)


def _duration_s(text: str) -> int:
    """A duration in whole seconds, as in the configuration (OPS-1)."""
    try:
        return -(-parse_duration_ms(text) // 1000)
    except ValueError as error:
        problem = f"{text!r} is not a duration ({error}); write for example 30s, 10m or 2d"
        raise ValueError(problem) from None


def _time(text: str, also: str = "") -> int:
    """A time in microseconds: with a time zone, in microseconds, or as an age."""
    if text.isascii() and text.isdigit() and _LEAST_DIGITS <= len(text) <= _MOST_DIGITS:
        return int(text)
    with suppress(ValueError):
        return now_us() - parse_duration_ms(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        allowed = f"{also}a time with a time zone, microseconds, or an age such as 10m"
        raise ValueError(f"{text!r} is not {allowed}") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write {text}Z for UTC")
    return max((moment - _EPOCH) // timedelta(microseconds=1), 0)


def _start(text: str) -> Literal["beginning", "end"] | int:
    """A start in a topic: a record timestamp in microseconds, or a word."""
    if text == "beginning":
        return "beginning"
    return "end" if text == "end" else _time(text, "beginning, end, ")


def _span(text: str) -> tuple[int, int]:
    """Numbers from one to another, both included: `7`, `3..9`, `3..`, `..9`."""
    first, dots, last = text.partition("..")
    ends = (first, last if dots else first)
    are_numbers = all(
        not end or (end.isascii() and end.isdigit() and len(end) < 20) for end in ends
    )
    if any(ends) and are_numbers:
        span = int(ends[0] or 0), int(ends[1] or 2**63 - 1)
        if span[0] <= span[1]:
            return span
    raise ValueError(f"{text!r} is not a range of numbers; write for example 7, 3..9, 3.. or ..9")


def _rate(text: str) -> float:
    """A number per second, from one in a quarter of an hour to a million."""
    with suppress(ValueError):
        if LEAST_RATE <= (rate := float(text)) <= MOST_RATE:  # not for NaN
            return rate
    raise ValueError(
        f"{text!r} is not a rate; write a number from {LEAST_RATE:g} to {MOST_RATE:,.0f}, for"
        " example 200"
    )


def _cores(text: str) -> str:
    if text != "*" and not (re.fullmatch(r"[1-9][0-9]{0,3}", text)):
        raise ValueError(
            f"{text!r} is not a number of threads; write for example 2, or * for one per processor"
        )
    return text


def _memory(text: str) -> str:
    """The heap of a local Spark driver: a number with `m` or `g`, of at least `_LEAST_HEAP_MB`."""
    size = re.fullmatch(r"([0-9]{1,7})([mMgG])", text)
    megabytes = int(size[1]) * (1024 if size[2] in "gG" else 1) if size else 0
    if megabytes < _LEAST_HEAP_MB:
        raise ValueError(
            f"{text!r} is not a size of a heap; write a number with m or g, at least"
            f" {_LEAST_HEAP_MB}m, for example 2g"
        )
    return text


def _bytes(text: str) -> bytes:
    from connector.dead_letters.filter import BASE64, bytes_of_text

    try:
        return bytes_of_text(text)
    except UnicodeEncodeError:
        problem = f"is not UTF-8; write bytes that are not text as base64 after {BASE64}"
    except ValueError as error:
        problem = f"has no valid base64 after {BASE64} ({error})"
    raise ValueError(f"{text!r} {problem}")


def _step(text: str) -> Step:
    from connector.dead_letters.repair import Step

    return Step.parse(text)


DURATION_S: Final = Parsed("duration", _duration_s)
MOMENT: Final = Parsed("time", _time)
START: Final = Parsed("start", _start)
SPAN: Final = Parsed("from..to", _span)
BYTES: Final = Parsed("bytes", _bytes)
STEP: Final = Parsed("step", _step)
RATE: Final = Parsed("rate", _rate)
CORES: Final = Parsed("cores", _cores)
MEMORY: Final = Parsed("memory", _memory)
STREAM: Final = Configured("stream", lambda config: config.streams)
TABLE: Final = Configured("table", lambda config: config.tables)
ADDRESS: Final = Parsed("address", _address)


def json_option(text: str) -> Callable[[Function], Function]:
    return click.option("--json", "as_json", is_flag=True, help=text)


def _stream_option(text: str) -> Callable[[Function], Function]:
    return click.option("--stream", type=STREAM, help=text)


stream_option: Final = _stream_option(
    "The name or topic of the stream. You can leave it out if there is only one."
)
"""Adds `--stream` to a command that is for one stream: see `stream_of`."""
streams_option: Final = _stream_option("Only this stream, by its name or topic. Default: all.")
"""Adds `--stream` to a command that is for all streams."""


def spark_options(function: Function) -> Function:
    cores = "Threads of a local Spark; * means one per processor. Default: as in [spark]."
    memory = "Heap of the Spark driver, such as 2g. Default: as in [spark]."
    function = click.option("--memory", type=MEMORY, help=memory)(function)
    return click.option("--cores", type=CORES, help=cores)(function)


def why_option(function: Function) -> Function:
    """Adds `--why`, a reason that is not empty."""

    def check(ctx: click.Context, param: click.Parameter, why: str) -> str:  # noqa: ARG001
        check_why(why)
        return why

    text = "The reason. It is kept with your name and the time."
    return click.option("--why", required=True, callback=check, help=text)(function)
