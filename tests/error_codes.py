"""The catalogue `connector.errors`: each of its functions is called with the names of its
parameters as texts, and the errors that they return are the list of docs/reference/errors.md.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

from connector.errors import ConnectorError

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "connector"
MODULES: Final = (
    *("settings", "definitions", "records", "kafka", "sources", "producers", "write_streams"),
    *("spark", "changelog", "tables", "dead_letters"),
)
"""The modules of the catalogue, in the order of the page."""

PARTS: Final = ("problem", "cause", "remedy")


class Parameter(str):
    """The text `{name}`, which stays the same in every format."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def __format__(self, spec: str) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Entry:
    """A function of the catalogue, and the error that it returns."""

    module: str
    name: str
    error: ConnectorError

    @property
    def texts(self) -> tuple[str, str, str]:
        return self.error.problem, self.error.cause, self.error.remedy


def modules() -> list[ModuleType]:
    """The modules of the catalogue, in the order of the page."""
    return [importlib.import_module(f"connector.errors.{name}") for name in MODULES]


def entries_of(module: ModuleType) -> list[Entry]:
    """The errors of a module, in the order of its source.

    Raises:
        AssertionError: A function does not return an error if its parameters are texts. Further
            fields, `**fields`, are left out.
    """
    functions = [
        (name, function)
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
    ]
    return [Entry(module.__name__, name, _call(function)) for name, function in functions]


@cache
def entries() -> list[Entry]:
    """All errors, in the order of the page."""
    return [entry for module in modules() for entry in entries_of(module)]


def _call(function: Callable[..., object]) -> ConnectorError:
    where = f"{function.__module__}.{function.__name__}"
    parameters = inspect.signature(function).parameters.values()
    texts = {
        parameter.name: Parameter(f"{{{parameter.name}}}")
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    try:
        error = function(**texts)
    except Exception as reason:
        raise AssertionError(
            f"{where} cannot be called with texts. Let it only put its parameters into texts, and"
            " make lists, times and numbers of them where it is called"
        ) from reason
    assert isinstance(error, ConnectorError), (
        f"{where} does not return an error. A function beside the catalogue starts with _, or is in"
        " connector/errors/__init__.py"
    )
    return error


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


def errors_list() -> str:
    """All errors as Markdown: a section for each module, and in it each code. A code of several
    modules is in the section of the first one.
    """
    by_code: dict[str, list[Entry]] = {}
    for entry in entries():
        by_code.setdefault(entry.error.code, []).append(entry)
    lines = []
    for module in modules():
        heading = (module.__doc__ or "").partition("\n")[0].removesuffix(".")
        lines += [f"## {heading}", ""]
        for code, same_code in by_code.items():
            if same_code[0].module == module.__name__:
                lines += [f"### {code}", "", *_section(same_code)]
    return "\n".join(lines)


def _section(same_code: list[Entry]) -> list[str]:
    classes = dict.fromkeys(f"`{type(entry.error).__name__}`" for entry in same_code)
    fields = dict.fromkeys(f"`{name}`" for entry in same_code for name in entry.error.fields)
    lines = [" or ".join(classes) + (f". Fields: {', '.join(fields)}." if fields else "."), ""]
    for texts in dict.fromkeys(entry.texts for entry in same_code):
        lines += [
            f"- **{part.capitalize()}**: {_in_markdown(text)}"
            for part, text in zip(PARTS, texts, strict=True)
            if text
        ]
        lines.append("")
    return lines


def _in_markdown(text: str) -> str:
    """A text as Markdown on one line. Nothing outside backticks is markup."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        piece if index % 2 else re.sub(r"([*<]|\b_|_\b|(?<!\w)_(?!\w))", r"\\\1", piece)
        for index, piece in enumerate(pieces)
    )
