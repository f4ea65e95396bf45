"""Types of arguments that several commands take. An invalid value is a wrong call (exit code 2)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

import click

from connector.clock import now_us
from connector.config.settings_reader import parse_duration_ms
from connector.state.pace import LEAST_RATE, MOST_RATE

if TYPE_CHECKING:
    from connector.dead_letters.repair import Step

_LEAST_DIGITS, _MOST_DIGITS = 15, 18
"""Microseconds from 1973 on; fewer digits are rather a year, or seconds."""
_LEAST_HEAP_MB: Final = 512
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DurationS(click.ParamType[int]):
    """A duration in whole seconds, as in the configuration (OPS-1)."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            return -(-parse_duration_ms(str(value)) // 1000)
        except ValueError as error:
            self.fail(
                f"{value!r} is not a duration ({error}); write for example 30s, 10m or 2d",
                param,
                ctx,
            )


class Moment(click.ParamType[int]):
    """A time in microseconds: with a time zone, in microseconds, or as an age."""

    name = "time"
    words = ""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        if text.isascii() and text.isdigit() and _LEAST_DIGITS <= len(text) <= _MOST_DIGITS:
            return int(text)
        try:
            return now_us() - parse_duration_ms(text) * 1000
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{text!r} is not {self.words}a time with a time zone, microseconds, or an"
                " age such as 10m",
                param,
                ctx,
            )
        if moment.tzinfo is None:
            self.fail(f"{text!r} has no time zone; write {text}Z for UTC", param, ctx)
        return max((moment - _EPOCH) // timedelta(microseconds=1), 0)


class Start(click.ParamType[Literal["beginning", "end"] | int]):
    """Where to begin in a topic: a record timestamp in microseconds, or one of the two words."""

    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Literal["beginning", "end"] | int:
        if value == "beginning":
            return "beginning"
        if value == "end":
            return "end"
        return _START_TIME.convert(value, param, ctx)


class Span(click.ParamType[tuple[int, int]]):
    """Numbers from one to another, both included: `7`, `3..9`, `3..`, `..9`."""

    name = "from..to"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        first, dots, last = str(value).partition("..")
        if not dots:
            last = first
        are_numbers = all(
            not end or (end.isascii() and end.isdigit() and len(end) < 20) for end in (first, last)
        )
        span = (
            (int(first or 0), int(last or 2**63 - 1)) if are_numbers and (first or last) else (1, 0)
        )
        if span[0] > span[1]:
            self.fail(
                f"{value!r} is not a range of numbers; write for example 7, 3..9, 3.. or ..9",
                param,
                ctx,
            )
        return span


class Rate(click.ParamType[float]):
    """So many a second, from one in a quarter of an hour to a million."""

    name = "rate"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            rate = float(str(value))
        except ValueError:
            rate = 0.0
        if not LEAST_RATE <= rate <= MOST_RATE:  # which NaN is not, either
            self.fail(
                f"{value!r} is not a rate; write a number from {LEAST_RATE:g} to"
                f" {MOST_RATE:,.0f}, for example 200",
                param,
                ctx,
            )
        return rate


class Cores(click.ParamType[str]):
    """Threads of a local Spark: a number, or `*` for one per processor."""

    name = "cores"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        text = str(value)
        if text != "*" and not (re.fullmatch(r"[1-9][0-9]{0,3}", text)):
            self.fail(
                f"{text!r} is not a number of threads; write for example 2, or * for one per"
                " processor",
                param,
                ctx,
            )
        return text


class Memory(click.ParamType[str]):
    """The heap of a local Spark driver, as Spark takes it: a number with `m` or `g`. With less than
    `_LEAST_HEAP_MB`, Spark does not start.
    """

    name = "memory"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        text = str(value)
        found = re.fullmatch(r"([0-9]{1,7})([mMgG])", text)
        megabytes = int(found[1]) * (1024 if found[2] in "gG" else 1) if found else 0
        if megabytes < _LEAST_HEAP_MB:
            self.fail(
                f"{text!r} is not a size of a heap; write a number with m or g, at least"
                f" {_LEAST_HEAP_MB}m, for example 2g",
                param,
                ctx,
            )
        return text


class KeyBytes(click.ParamType[bytes]):
    """Bytes as text, or `base64:` and that."""

    name = "bytes"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        from connector.dead_letters.filter import BASE64, bytes_of_text

        if isinstance(value, bytes):
            return value
        try:
            return bytes_of_text(str(value))
        except UnicodeEncodeError:
            self.fail(
                f"{value!r} is not UTF-8; write bytes that are not text as base64 after {BASE64}",
                param,
                ctx,
            )
        except ValueError as error:
            self.fail(f"{value!r} has no valid base64 after {BASE64} ({error})", param, ctx)


class RepairStep(click.ParamType["Step"]):
    """A repair step, as `connector.dead_letters.repair` has them."""

    name = "step"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Step:
        from connector.dead_letters.repair import Step

        if isinstance(value, Step):
            return value
        try:
            return Step.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _StartTime(Moment):
    words = "beginning, end, "


_START_TIME: Final = _StartTime()
DURATION_S: Final = DurationS()
MOMENT: Final = Moment()
START: Final = Start()
SPAN: Final = Span()
BYTES: Final = KeyBytes()
STEP: Final = RepairStep()
RATE: Final = Rate()
CORES: Final = Cores()
MEMORY: Final = Memory()
