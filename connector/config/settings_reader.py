"""Reads a nested document of settings, and reports all errors together (OPS-1).

A setting is a field of a dataclass. Its name, type, default, range and form are declared there
alone. `Section.read` makes the instance. The type says how a value is written:

    bool               true or false
    int, float         a number. The field `name_s` is the setting `name`, a duration in seconds. A
                       field `…_timestamp` is a day or a time, in microseconds since 1970
    str                text, in the `Form` with which the field is annotated
    tuple[str, ...]    a list of texts
    StrEnum            one of its values

An error is a `ConfigError` that is collected, not raised. The reader continues with the default, so
that one run shows all errors. A setting that was not read is unknown: it is an error that names the
nearest known name. The values of secrets are never shown.

`apply_environment` replaces values of a document by environment variables. Such a value is text and
is parsed as the setting's type. A value of the document must have the type itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import MISSING, fields
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from types import NoneType
from typing import Any, Final, NamedTuple, Self, TypeVar, get_args, get_type_hints

from connector.errors import ConfigError, shown_value
from connector.errors.settings import (
    setting_invalid,
    setting_missing,
    setting_unknown,
    settings_invalid,
)
from connector.records.field_types import Between
from connector.records.model import MAX_INT
from connector.text import is_plain, is_secret, nearest, one_of, without_credentials

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

_T = TypeVar("_T")
_Choice = TypeVar("_Choice", bound=StrEnum)


class FromEnvironment(str):
    """A value from an environment variable. `variable` is its name."""

    __slots__ = ("variable",)
    variable: str

    def __new__(cls, value: str, variable: str) -> Self:
        made = super().__new__(cls, value)
        made.variable = variable
        return made


class Form(NamedTuple):
    """The form of a text: a pattern, the form in words, and an example."""

    pattern: str = "(?s).*"
    allowed: str = "text"
    example: str = ""

    def remedy(self, key: str) -> str:
        return f'write {key} = "{self.example}"' if self.example else "put the value in quotes"


_TEXT: Final = Form()


class Setting(NamedTuple):
    """A setting of a field. `kind` is its type, without None. A text needs a value or a default."""

    field: str
    kind: Any
    default: Any
    bounds: Between
    form: Form

    @property
    def key(self) -> str:
        return self.field.removesuffix("_s")


class NotAllowedError(Exception):
    """A value that a setting cannot have: the allowed values, and an example as TOML."""

    def __init__(self, allowed: str, example: object) -> None:
        super().__init__(allowed)
        self.allowed = allowed
        self.example = example


def settings_of(declared: type) -> Iterator[Setting]:
    hints = get_type_hints(declared, include_extras=True)
    for field in fields(declared):
        hint = hints[field.name]
        if NoneType in get_args(hint):
            hint = next(kind for kind in get_args(hint) if kind is not NoneType)
        marks = getattr(hint, "__metadata__", ())
        yield Setting(
            field.name,
            get_args(hint)[0] if marks else hint,
            None if field.default is MISSING else field.default,
            next((mark for mark in marks if isinstance(mark, Between)), Between()),
            next((mark for mark in marks if isinstance(mark, Form)), _TEXT),
        )


def written(value: object) -> str:
    """A value as text. Python does not write an integer of thousands of digits."""
    try:
        return str(value).lower() if isinstance(value, bool) else str(value)
    except ValueError:
        return shown_value(value)


def _escaped(text: str) -> str:
    """A text in which NUL characters and lone surrogates are their escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


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


def _duration(value: object, setting: Setting) -> float:
    least_s = max(0, setting.bounds.least)
    why = ""
    try:
        if isinstance(value, str) or (value == 0 and not isinstance(value, bool)):
            duration_ms = parse_duration_ms(str(value))
            if setting.kind is int and duration_ms % 1000:
                raise NotAllowedError("whole seconds", f'"{duration_ms // 1000 + 1}s"')
            if duration_ms >= least_s * 1000:
                return duration_ms // 1000 if setting.kind is int else duration_ms / 1000
            why = f" of at least {least_s} s"
    except ValueError as error:
        why = f" ({_escaped(str(value)):.40} is {error})" if isinstance(value, str) else ""
    is_seconds = type(value) is int and max(1, least_s) <= value <= MAX_INT
    raise NotAllowedError(
        f"a duration such as 500ms, 30s, 10m, 1h30m, 2d{why}",
        f'"{value}s"' if is_seconds else '"10m"',
    )


def _time_us(value: object) -> int:
    try:
        return parse_time_us(value)
    except ValueError as error:
        allowed = f"a day, or a time with a time zone ({error})"
        raise NotAllowedError(allowed, "2000-01-01") from None


def _number(value: Any, setting: Setting) -> float:
    is_whole = setting.kind is int
    if isinstance(value, FromEnvironment) and re.fullmatch(r"-?[0-9]{1,30}(\.[0-9]{1,18})?", value):
        with suppress(ValueError):  # a fraction is no whole number
            value = setting.kind(value)
    is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
    if is_number and setting.bounds.has(value):
        return setting.kind(value)  # type: ignore[no-any-return]
    example = setting.bounds.least if setting.default is None else setting.default
    raise NotAllowedError(f"a {'whole ' if is_whole else ''}number{setting.bounds.words}", example)


def _flag(value: object, setting: Setting) -> bool:
    if isinstance(value, FromEnvironment):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if isinstance(value, bool):
        return value
    raise NotAllowedError("true or false", written(bool(setting.default)))


def _texts(value: object) -> tuple[str, ...]:
    """A list of different texts. In an environment variable, they are separated by commas."""
    if isinstance(value, FromEnvironment):
        value = [item.strip() for item in value.split(",")]
    if (
        isinstance(value, list)
        and all(isinstance(item, str) and item and is_plain(item, with_nul=True) for item in value)
        and len(set(value)) == len(value)
    ):
        return tuple(value)
    raise NotAllowedError("a list of different texts", '["first", "second"]')


_SAME_SOURCE: Final = "A table keeps its name at the source with source, and a stream with topic"


class Section:
    """One table of the document. All sections of a document share `faults`."""

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
        self._allowed_keys: list[str] = []

    @property
    def content(self) -> Mapping[str, object]:
        """The section as it was given."""
        return self._content

    def has(self, key: str) -> bool:
        """Whether the setting was given. The name is known from then on."""
        self._allowed_keys.append(key)
        return key in self._content

    def fault(self, key: str, value: object, allowed: str, remedy: str) -> None:
        """Collect an error of one setting of this section."""
        shown = f'"{without_credentials(value)}"' if isinstance(value, str) else written(value)
        shown = "***" if is_secret(key) else _escaped(shown)
        shown = shown if len(shown) <= 120 else f"{shown[:117]}..."
        self.faults.append(setting_invalid(self._full(key), shown, allowed, remedy))

    def missing(self, key: str, allowed: str, remedy: str) -> None:
        """Collect an error of a required setting, unless its whole section is missing."""
        if self.is_given:
            self.faults.append(setting_missing(self._full(key), allowed, remedy))

    def read(self, declared: type[_T], **given: object) -> _T:
        """An instance of a dataclass. Its fields, but those given, are settings of this section."""
        return declared(**self.values(declared, given), **given)

    def values(self, declared: type, given: Mapping[str, object]) -> dict[str, Any]:
        """The values of the fields of a dataclass, but those that are given."""
        settings = [setting for setting in settings_of(declared) if setting.field not in given]
        return {setting.field: self._value(setting) for setting in settings}

    def _value(self, setting: Setting) -> object:
        key, kind, value = setting.key, setting.kind, self._content.get(setting.key)
        if kind is str:
            return self.text(key, setting.default, setting.form)
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            return self.choice(key, kind, setting.default)
        if not self.has(key):
            return setting.default
        try:
            if kind is bool:
                return _flag(value, setting)
            if kind not in (int, float):
                return _texts(value)
            if setting.field.endswith("_timestamp"):
                return _time_us(value)
            return (_number if key == setting.field else _duration)(value, setting)
        except NotAllowedError as error:
            self.fault(key, value, error.allowed, f"write {key} = {error.example}")
            return setting.default

    def text(
        self, key: str, default: str | None, form: Form = _TEXT, *, with_nul: bool = False
    ) -> str:
        """A text in its form, or the default. Without a default, the text is required.

        NUL characters are not allowed in most texts, because no path, URL or setting of Kafka may
        have one. `with_nul` allows them.
        """
        if not self.has(key):
            if default is None:
                self.missing(key, form.allowed, form.remedy(key))
            return default or ""
        value = self._content[key]
        if isinstance(value, str) and not is_plain(value, with_nul=with_nul):
            allowed = "text without NUL characters and lone surrogates"
            self.fault(key, value, allowed, "remove the character")
        elif isinstance(value, str) and (value == default or re.fullmatch(form.pattern, value)):
            return str(value)
        else:
            self.fault(key, value, form.allowed, form.remedy(key))
        return default or ""

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
        if (choice := self.spelt(key, choices)) is not None:
            return choice
        value = self._content[key]
        values = [choice.value for choice in offered or choices]
        text = written(value)
        meant = (synonyms or {}).get(text.partition("(")[0].strip().upper())
        remedy = (
            f"did you mean {meant.value}?"
            if meant and meant.value in values
            else nearest(text, values)
            or f'write {key} = "{default.value if default.value in values else values[0]}"'
        )
        self.fault(key, value, one_of(values), remedy)
        return default

    def spelt(self, key: str, choices: type[_Choice]) -> _Choice | None:
        """The value that `choice` returns, without an error. None: it is missing or wrong."""
        value = self._content.get(key)
        if not isinstance(value, str):
            return None
        plain = _plainly(value)
        return next((choice for choice in choices if _plainly(choice.value) == plain), None)

    def section(self, key: str, *, remedy: str = "") -> Section:
        """The section below this one. If it is not a section, or is missing and has a `remedy`, the
        result is empty and an error is collected.
        """
        is_given = self.has(key)
        value = self._content.get(key, {})
        if not isinstance(value, Mapping):
            remedy = remedy or f"write [{self._full(key)}] and its settings below"
            self.fault(key, value, "a section", remedy)
            value = {}
        elif not is_given and remedy:
            missing = setting_missing(f"The section [{self._full(key)}]", "a section", remedy)
            self.faults.append(missing)
        return Section(self._full(key), value, self.faults, is_given=is_given)

    def named(self, key: str, pattern: str) -> Iterator[tuple[str, Section]]:
        """The sections below `key`. Names must match `pattern` and differ in more than case."""
        section = self.section(key)
        names: dict[str, str] = {}
        remedy = "rename it: it is also the name of a folder"
        for name in section._content:
            if not re.fullmatch(pattern, name):
                section.fault(name, name, f"a name that matches {pattern}", remedy)
            elif (other := names.setdefault(name.lower(), name)) != name:
                allowed = f"names that differ from {other} not only in case"
                section.fault(name, name, allowed, f"{remedy}. {_SAME_SOURCE}")
            else:
                yield name, section.section(name)

    def sections(self, key: str, remedy: str) -> list[Section]:
        """A list of sections, `[[path.key]]` in the document."""
        value = self._content.get(key, []) if self.has(key) else []
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            self.fault(key, value, "a list of sections", remedy)
            return []
        return [
            Section(f"{self._full(key)}[{index}]", item, self.faults)
            for index, item in enumerate(value)
        ]

    def rest(self) -> Iterator[tuple[str, object]]:
        """The settings that were not read, for a section that passes them on, with dotted names.
        They are known from then on. For example, `tomllib` reads `security.protocol = "SSL"` as a
        table in a table.
        """
        for key, value in self._content.items():
            if key not in self._allowed_keys:
                self._allowed_keys.append(key)
                yield from _flat(key, value)

    def raw(self, key: str) -> object:
        """The value as it was given, or None. The name is known from then on."""
        return self._content[key] if self.has(key) else None

    def finish(self) -> None:
        """Collect an error for every setting that was not read."""
        for key, value in self._content.items():
            if key not in self._allowed_keys:
                what = "section" if isinstance(value, Mapping) else "setting"
                others = f"remove it, or use one of: {one_of(set(self._allowed_keys))}"
                remedy = nearest(key, self._allowed_keys) or others
                self.faults.append(setting_unknown(f"The {what} {self._full(key)}", remedy))

    def _full(self, key: str) -> str:
        name = f"{self.path}.{key}" if self.path else key
        value = self._content.get(key)
        return f"{name} (from {value.variable})" if isinstance(value, FromEnvironment) else name


def all_in_one(faults: Sequence[ConfigError]) -> ConfigError:
    if len(faults) == 1:
        return faults[0]
    listed = "\n".join(f"  - {fault}" for fault in faults)
    return settings_invalid(len(faults), listed)


def apply_environment(
    document: Mapping[str, object], environment: Mapping[str, str], faults: list[ConfigError]
) -> dict[str, object]:
    """A copy of `document` in which the variables `CONNECTOR__SECTION__KEY` of `environment`
    replace or add values.

    Names are compared without case. In a variable's name, `_` is the same as `-` and `.`.
    """
    merged = deepcopy(dict(document))
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        *path, last = variable.removeprefix(ENVIRONMENT_PREFIX).split("__")
        level: object = merged
        for part in path:
            level = level.setdefault(_spelt(part, level), {}) if isinstance(level, dict) else None
        if isinstance(level, dict) and all((*path, last)):
            level[_spelt(last, level)] = FromEnvironment(environment[variable], variable)
            continue
        remedy = (
            f"rename it to {ENVIRONMENT_PREFIX}KEY, {ENVIRONMENT_PREFIX}SECTION__KEY or"
            f" {ENVIRONMENT_PREFIX}SECTION__NAME__KEY, or unset it"
        )
        faults.append(setting_unknown(f"The environment variable {variable}", remedy))
    return merged


def _flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _flat(f"{name}.{key}", below)
    else:
        yield name, value


def _spelt(part: str, level: Mapping[str, object]) -> str:
    """The key of `level` that a part of a variable's name means, or a new one."""
    wanted = part.lower()
    return next((key for key in level if re.sub(r"[-.]", "_", key.lower()) == wanted), wanted)


def _plainly(name: str) -> str:
    return re.sub(r"[- ]", "_", name.lower())
