"""Reads a nested document of settings, and reports all errors together (OPS-1).

A `Section` returns each setting once, checked, and remembers the names that were read. A setting
that was not read is unknown: it is an error that names the nearest known name. An error is a
`ConfigError` that is collected, not raised. The reader continues with the default, so that one run
shows all errors. The values of secrets are never shown.

`apply_environment` replaces values of a document by environment variables. Such a value is text and
is parsed as the setting's type. A value of the document must have the type itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Final, Self, TypeVar, overload

from connector.errors import ConfigError, ErrorCode, shown_value
from connector.records.model import MAX_INT
from connector.text import is_secret, is_utf_8, nearest, one_of

ENVIRONMENT_PREFIX: Final = "CONNECTOR__"

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+", re.ASCII)
_DURATION_STEP = re.compile(r"(\d+)(?:\.(\d+))?(ms|s|m|h|d|w)")
_INTERVAL = re.compile(r"(\d+)-(\d+) (\d+) (\d+):(\d+):(\d+)", re.ASCII)
_UNIT_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_MAX_DURATION_MS: Final = 36_500 * _UNIT_MS["d"]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WORDS: Final = {"true": True, "false": False}

_Choice = TypeVar("_Choice", bound=StrEnum)


class FromEnvironment(str):
    """A value from an environment variable. `variable` is its name."""

    __slots__ = ("variable",)
    variable: str

    def __new__(cls, value: str, variable: str) -> Self:
        made = super().__new__(cls, value)
        made.variable = variable
        return made


def is_plain(text: str, *, with_nul: bool = False) -> bool:
    """Whether a text has neither lone surrogates nor NUL characters."""
    return is_utf_8(text) and (with_nul or "\0" not in text)


def escaped(text: str) -> str:
    """A text in which NUL characters and lone surrogates are their escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def written(value: object) -> str:
    """A value as text. Python does not write an integer of thousands of digits."""
    try:
        return str(value)
    except ValueError:
        return shown_value(value)


def parse_duration_ms(text: str) -> int:
    """The milliseconds of a duration.

    For example `10m`, `1h30m`, `500ms`, `2d`, `0`, or an interval `0-0 0 0:10:0` (years-months days
    h:m:s). Raises ValueError for any other text, for more than 100 years, and for an interval with
    years or months, because their length varies.
    """
    text = text.strip()
    if interval := _INTERVAL.fullmatch(text):
        years, months, days, hours, minutes, seconds = (int(part) for part in interval.groups())
        if years or months:
            raise ValueError("years and months have no fixed length")
        total = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    elif text == "0":
        total = 0
    elif _DURATION.fullmatch(text):
        total = 0
        for whole, fraction, unit in _DURATION_STEP.findall(text):
            part, rest = divmod(int(whole + fraction) * _UNIT_MS[unit], 10 ** len(fraction))
            if rest:
                raise ValueError("more precise than a millisecond")
            total += part
    else:
        raise ValueError("not a number with a unit")
    if total > _MAX_DURATION_MS:
        raise ValueError("longer than 100 years")
    return total


def parse_time_us(value: object) -> int:
    """The microseconds since 1970 of a day or a time, for example `2000-01-01`.

    It is a date or a time of TOML, or text in ISO 8601. A day begins at midnight in UTC. Raises
    ValueError for any other value, a time without a time zone, and a time before 1970.
    """
    if isinstance(value, str):
        value = datetime.fromisoformat(value) if "T" in value else date.fromisoformat(value)
    if not isinstance(value, date):
        raise ValueError("not a day or a time")
    if not isinstance(value, datetime):
        value = datetime.combine(value, time(), UTC)
    if value.tzinfo is None:
        raise ValueError("without a time zone")
    if value < _EPOCH:
        raise ValueError("before 1970")
    return (value - _EPOCH) // timedelta(microseconds=1)


def _plainly(name: str) -> str:
    return re.sub(r"[- ]", "_", name.lower())


class Section:
    """One table of the document. `path` is its name from the root. All sections of a document share
    `faults`.
    """

    def __init__(
        self,
        path: str,
        content: Mapping[str, object],
        faults: list[ConfigError],
        *,
        is_given: bool = True,
    ) -> None:
        self.path = path
        self.is_given = is_given
        self.faults = faults
        self._content = content
        self._known: list[str] = []

    def has(self, key: str) -> bool:
        """Whether the setting was given. The name is known from then on."""
        self._known.append(key)
        return key in self._content

    def fault(self, key: str, value: object, allowed: str, remedy: str) -> None:
        """Collect an error of one setting of this section."""
        self.faults.append(fault(self._full(key), value, allowed, remedy, secret=is_secret(key)))

    @overload
    def text(self, key: str, default: str, *, with_nul: bool = False) -> str: ...
    @overload
    def text(self, key: str, *, allowed: str, remedy: str, with_nul: bool = False) -> str: ...
    def text(
        self,
        key: str,
        default: str | None = None,
        *,
        allowed: str = "text",
        remedy: str = "put the value in quotes",
        with_nul: bool = False,
    ) -> str:
        """A text. Without a default, it must be given and must not be empty.

        NUL characters are not allowed in most texts, because no path, URL or setting of Kafka may
        have one. `with_nul` allows them.
        """
        if not self.has(key):
            if default is None:
                self.faults.append(
                    ConfigError(
                        ErrorCode.SETTING_MISSING,
                        f"{self._full(key)} is not set",
                        f"It is required: {allowed}",
                        remedy,
                    )
                )
            return default or ""
        value = self._content[key]
        if isinstance(value, str) and not is_plain(value, with_nul=with_nul):
            remedy = "remove the character"
            allowed = "text without NUL characters and lone surrogates"
        elif isinstance(value, str) and (value or default is not None):
            return str(value)
        self.fault(key, value, allowed, remedy)
        return default or ""

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of different texts that are not empty. In an environment variable, they are
        separated by commas.
        """
        if not self.has(key):
            return ()
        value = self._content[key]
        items = (
            [item.strip() for item in value.split(",")]
            if isinstance(value, FromEnvironment)
            else value
        )
        if (
            isinstance(items, list)
            and all(isinstance(item, str) and item and is_utf_8(item) for item in items)
            and len(set(items)) == len(items)
        ):
            return tuple(items)
        self.fault(key, value, "a list of different texts", f'write {key} = ["first", "second"]')
        return ()

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        if not self.has(key):
            return default
        value = self._content[key]
        if isinstance(value, FromEnvironment):
            value = _WORDS.get(value.lower(), value)
        if isinstance(value, bool):
            return value
        self.fault(key, value, "true or false", f"write {key} = {str(default).lower()}")
        return default

    def number(self, key: str, default: int, least: int, most: int) -> int:
        """A whole number from `least` to `most`."""
        if not self.has(key):
            return default
        value = self._content[key]
        if isinstance(value, FromEnvironment) and re.fullmatch(r"-?\d{1,30}", value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self.fault(key, value, f"a whole number from {least} to {most}", f"write {key} = {default}")
        return default

    def ratio(self, key: str, default: float) -> float:
        """A number from 0 to 1."""
        if not self.has(key):
            return default
        value = self._content[key]
        if isinstance(value, FromEnvironment) and re.fullmatch(r"\d{1,3}(\.\d{1,18})?", value):
            value = float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        self.fault(key, value, "a number from 0 to 1", f"write {key} = {default}")
        return default

    @overload
    def duration_s(self, key: str, default: int, *, least_s: int = 0) -> int: ...
    @overload
    def duration_s(self, key: str, default: None, *, least_s: int = 0) -> int | None: ...
    def duration_s(self, key: str, default: int | None, *, least_s: int = 0) -> int | None:
        """A duration in whole seconds, at least `least_s`."""
        if not self.has(key):
            return default
        duration_ms = self._duration_ms(key, least_s * 1000)
        if duration_ms is not None and duration_ms % 1000:
            self.fault(
                key,
                self._content[key],
                "whole seconds",
                f'write {key} = "{duration_ms // 1000 + 1}s"',
            )
        return default if duration_ms is None else duration_ms // 1000

    def duration_ms(self, key: str, default: int, *, least_ms: int = 0) -> int:
        """A duration in milliseconds, at least `least_ms`."""
        duration_ms = self._duration_ms(key, least_ms) if self.has(key) else None
        return default if duration_ms is None else duration_ms

    def _duration_ms(self, key: str, least_ms: int) -> int | None:
        value = self._content[key]
        why = ""
        try:
            if isinstance(value, str) or (value == 0 and not isinstance(value, bool)):
                duration_ms = parse_duration_ms(str(value))
                if duration_ms >= least_ms:
                    return duration_ms
                why = f" of at least {least_ms} ms"
        except ValueError as error:
            why = f" ({escaped(value):.40} is {error})" if isinstance(value, str) else ""
        as_seconds = (
            f'"{value}s"'
            if isinstance(value, int)
            and not isinstance(value, bool)
            and max(1, least_ms / 1000) <= value <= MAX_INT
            else '"10m"'
        )
        self.fault(
            key,
            value,
            f"a duration such as 500ms, 30s, 10m, 1h30m, 2d{why}",
            f"write {key} = {as_seconds}",
        )
        return None

    def time_us(self, key: str, default: int) -> int:
        """A day or a time, in microseconds since 1970."""
        if not self.has(key):
            return default
        value = self._content[key]
        try:
            return parse_time_us(value)
        except ValueError as error:
            allowed = f"a day, or a time with a time zone ({error})"
            self.fault(key, value, allowed, f"write {key} = 2000-01-01")
            return default

    def choice(
        self,
        key: str,
        choices: type[_Choice],
        default: _Choice,
        synonyms: Mapping[str, _Choice] | None = None,
        offered: Sequence[_Choice] | None = None,
    ) -> _Choice:
        """One of the values of an enumeration, compared without case. `-` and a space are the same
        as `_`.

        `synonyms` are names that other systems use, in upper case and without a part in brackets.
        The error then names the value that is meant. It names no other value than those that are
        `offered`: all, or those that fit the other settings.
        """
        if not self.has(key):
            return default
        if (found := self.spelt(key, choices)) is not None:
            return found
        value = self._content[key]
        known = [choice.value for choice in offered or choices]
        text = written(value)
        meant = (synonyms or {}).get(text.partition("(")[0].strip().upper())
        remedy = (
            f"did you mean {meant.value}?"
            if meant and meant.value in known
            else nearest(text, known)
            or f'write {key} = "{default.value if default.value in known else known[0]}"'
        )
        self.fault(key, value, one_of(known), remedy)
        return default

    def spelt(self, key: str, choices: type[_Choice]) -> _Choice | None:
        """The value that `choice` finds, without an error. None: it is missing or wrong."""
        value = self._content.get(key)
        if not isinstance(value, str):
            return None
        plain = _plainly(value)
        return next((choice for choice in choices if _plainly(choice.value) == plain), None)

    def section(self, key: str, *, remedy: str = "") -> Section:
        """The section below this one. If it is missing or not a section, the result is empty and an
        error is collected.
        """
        given = self.has(key)
        value = self._content.get(key, {})
        if not isinstance(value, Mapping):
            self.fault(
                key,
                value,
                "a section",
                remedy or f"write [{self._full(key)}] and its settings below",
            )
            value = {}
        elif not given and remedy:
            self.faults.append(
                ConfigError(
                    ErrorCode.SETTING_MISSING,
                    f"The section [{self._full(key)}] is missing",
                    "It is required",
                    remedy,
                )
            )
        return Section(self._full(key), value, self.faults, is_given=given)

    def named(self, key: str, pattern: str) -> Iterator[tuple[str, Section]]:
        """The sections below `key`, with their names. Names must match `pattern` and differ in more
        than case.
        """
        section = self.section(key)
        seen: dict[str, str] = {}
        for name in section._content:
            if not re.fullmatch(pattern, name):
                section.fault(
                    name,
                    name,
                    f"a name that matches {pattern}",
                    "rename it: it is also the name of a folder",
                )
            elif (other := seen.setdefault(name.lower(), name)) != name:
                section.fault(
                    name,
                    name,
                    f"names that differ from {other} not only in case",
                    "rename one of them: each is also the name of a folder",
                )
            else:
                yield name, section.section(name)

    def sections(self, key: str, remedy: str) -> list[Section]:
        """A list of sections, `[[path.key]]` in the document."""
        value = self._content.get(key, []) if self.has(key) else []
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            self.fault(key, value, "a list of sections", remedy)
            return []
        return [
            Section(f"{self._full(key)}[{position}]", item, self.faults)
            for position, item in enumerate(value)
        ]

    def rest(self) -> Iterator[tuple[str, object]]:
        """The settings that were not read, for a section that passes them on. They are known from
        then on.
        """
        for key, value in self._content.items():
            if key not in self._known:
                self._known.append(key)
                yield key, value

    def raw(self, key: str) -> object:
        """The value as it was given, or None, for a setting with its own form. The name is known
        from then on.
        """
        return self._content[key] if self.has(key) else None

    def finish(self) -> None:
        """Collect an error for every setting that was not read."""
        for key, value in self._content.items():
            if key not in self._known:
                what = "section" if isinstance(value, Mapping) else "setting"
                remedy = (
                    nearest(key, self._known)
                    or f"remove it, or use one of: {one_of(set(self._known))}"
                )
                self.faults.append(
                    ConfigError(
                        ErrorCode.SETTING_UNKNOWN,
                        f"{self._full(key, value)} is not a known {what}",
                        "",
                        remedy,
                    )
                )

    def _full(self, key: str, value: object = None) -> str:
        name = f"{self.path}.{key}" if self.path else key
        given = self._content.get(key, value)
        return f"{name} (from {given.variable})" if isinstance(given, FromEnvironment) else name


def fault(
    setting: str, value: object, allowed: str, remedy: str, *, secret: bool = False
) -> ConfigError:
    """The error of one setting."""
    shown = (
        "***"
        if secret
        else (
            str(value).lower()
            if isinstance(value, bool)
            else f'"{value}"'
            if isinstance(value, str)
            else written(value)
        )
    )
    shown = escaped(shown)
    shown = shown if len(shown) <= 120 else f"{shown[:117]}..."
    return ConfigError(
        ErrorCode.SETTING_INVALID, f"{setting} is {shown}", f"allowed: {allowed}", remedy
    )


def all_in_one(faults: Sequence[ConfigError]) -> ConfigError:
    """One error with the texts of all errors."""
    if len(faults) == 1:
        return faults[0]
    listed = "\n".join(f"  - {fault}" for fault in faults)
    return ConfigError(
        ErrorCode.SETTINGS_INVALID,
        f"{len(faults)} settings are wrong:\n{listed}",
        "",
        "Correct all of them. Nothing was started",
    )


def apply_environment(
    document: Mapping[str, object], environment: Mapping[str, str], faults: list[ConfigError]
) -> dict[str, object]:
    """A copy of `document` in which the variables `CONNECTOR__SECTION__KEY` of `environment`
    replace or add values.

    Names are compared without case. In a variable's name, `_` is the same as `-` and `.`.
    """
    merged = {key: _copied(value) for key, value in document.items()}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        *path, last = variable.removeprefix(ENVIRONMENT_PREFIX).split("__")
        level: object = merged
        for part in path:
            level = level.setdefault(_spelt(part, level), {}) if isinstance(level, dict) else None
        if not isinstance(level, dict) or not all((*path, last)):
            allowed = (
                f"{ENVIRONMENT_PREFIX}KEY, {ENVIRONMENT_PREFIX}SECTION__KEY or"
                f" {ENVIRONMENT_PREFIX}SECTION__NAME__KEY"
            )
            faults.append(
                ConfigError(
                    ErrorCode.ENVIRONMENT_VARIABLE_UNKNOWN,
                    f"The environment variable {variable} is not the name of a setting",
                    f"allowed: {allowed}",
                    "Rename the variable, or unset it",
                )
            )
            continue
        level[_spelt(last, level)] = FromEnvironment(environment[variable], variable)
    return merged


def flat(section: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested tables with dotted names. For example, `tomllib` reads `security.protocol = "SSL"` as
    a table in a table.
    """
    found: dict[str, object] = {}
    for key, value in section.items():
        found |= (
            flat(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{key}": value}
        )
    return found


def _copied(value: object) -> object:
    return (
        {key: _copied(below) for key, below in value.items()}
        if isinstance(value, Mapping)
        else value
    )


def _spelt(part: str, level: Mapping[str, object]) -> str:
    """The key of `level` that a part of a variable's name means, or a new one."""
    wanted = part.lower()
    return next((key for key in level if re.sub(r"[-.]", "_", key.lower()) == wanted), wanted)
