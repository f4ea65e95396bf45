"""The parts of the documents that are generated from code, and the documents as tests read them.

`python -m tests.documents` writes docs/reference/api.md, docs/reference/errors.md, and the
generated part of docs/reference/dead-letters.md.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from connector.dead_letters.repair import STEPS
from connector.records.model import Rule
from connector.records.rejection import Reason
from connector.records.views import Viewed
from tests.error_codes import ERRORS, errors_page

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs/tutorial/first-table.md"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
API = ROOT / "docs/reference/api.md"
DEAD_LETTERS = ROOT / "docs/reference/dead-letters.md"

_BEGIN, _END = "<!-- from the code: python -m tests.documents -->\n", "<!-- end -->\n"
_CODE_BLOCK = re.compile(
    r"(?:^<!-- example: (?P<note>[^\n]*) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Example:
    """A code block of a page.

    Attributes:
        line: The line of its first line of code.
        before: The paragraph above it.
        note: What the comment `<!-- example: … -->` directly above it says.
    """

    page: Path
    line: int
    language: str
    text: str
    before: str
    note: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def examples(page: Path) -> Iterator[Example]:
    """All code blocks of a page, in order."""
    whole = page.read_text("utf-8")
    for found in _CODE_BLOCK.finditer(whole):
        yield Example(
            page=page,
            line=whole.count("\n", 0, found.start("text")) + 1,
            language=found["language"],
            text=found["text"],
            before=whole[: found.start()].rstrip("\n").rpartition("\n\n")[2],
            note=found["note"] or "",
        )


def pages() -> list[Path]:
    """The tutorial, then all other pages with examples, in the order of the navigation."""
    named = re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    found = [TUTORIAL, ROOT / "README.md", *(ROOT / "docs" / name for name in named)]
    return [page for page in dict.fromkeys(found) if page.exists() and any(examples(page))]


def code_blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language, in order."""
    return [example.text for example in examples(page) if example.language == language]


def promises() -> list[tuple[str, str, str]]:
    """Each promise of the README, whether it is kept, and its tests."""
    return re.findall(
        r"^\| `(\w+)` \|[^|]*\|([^|]*)\|([^|]*)\|$",
        (ROOT / "README.md").read_text("utf-8"),
        re.MULTILINE,
    )


def reasons() -> str:
    """Markdown of every reason with cause and remedy, every rule of INVALID with its condition, and
    every repair step.
    """
    lines = ["| reason | cause | remedy |", "|---|---|---|"]
    lines += [f"| `{reason}` | {reason.cause} | {reason.remedy} |" for reason in Reason]
    lines += [
        "",
        (
            "The rules of `INVALID`, in the order in which they are checked. A rule without a field"
            " is a condition of the whole record or entry:"
        ),
        "",
        "| rule | field | must be |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{rule}` | {f'`{rule.field}`' if rule.field else ''} | {rule.limit} |" for rule in Rule
    ]
    lines += [
        "",
        (
            "The steps of a repair. Write a step as `VERB` or `VERB=ARGUMENT`. lowmark takes the"
            " steps in the order in which you give them:"
        ),
        "",
    ]
    lines += ["| step | argument | what it does |", "|---|---|---|"]
    lines += [
        f"| `{verb}` | {f'`{form}`' if form else ''} | {what} |"
        for verb, (form, what) in STEPS.items()
    ]
    return "\n".join(lines) + "\n"


def with_reasons(page: str) -> str:
    """The page with a new generated part."""
    head, rest = page.split(_BEGIN)
    return head + _BEGIN + reasons() + _END + rest.split(_END)[1]


API_MODULES = {
    "connector": (
        "Values: changes, definitions of tables, configuration, dead letters. No extra is needed."
    ),
    "connector.kafka": (
        "Publish changes, read streams, dead letters, a local broker. No extra is needed."
    ),
    "connector.spark": "Read tables with Spark. Install `lowmark[spark]`.",
    "connector.services": (
        "Run and operate the pipeline from a Python program: the use cases of the commands. Install"
        " `lowmark[spark]`."
    ),
    "connector.errors": (
        "The errors. Each has `code`, `problem`, `cause`, `remedy` and `fields`. The page"
        " [Errors](errors.md) lists all codes."
    ),
}


def api_page() -> str:
    """The reference of the Python API: signature and docstring of each public name."""
    lines = [
        "# Python API",
        "",
        (
            "Documents and programs import from these modules alone. All other modules are internal"
            " and may change."
        ),
    ]
    for module, summary in API_MODULES.items():
        found = importlib.import_module(module)
        names = getattr(found, "__all__", None) or [
            name for name, one in vars(found).items() if _is_error(one)
        ]
        lines += ["", f"## {module}", "", summary]
        for name in names:
            lines += _entry(name, getattr(found, name))
    return "\n".join(lines) + "\n"


def _is_error(one: object) -> bool:
    return (
        isinstance(one, type)
        and issubclass(one, Exception)
        and one.__module__ == "connector.errors"
    )


def _entry(name: str, one: Any) -> list[str]:
    lines = ["", f"### {name}", "", "```text", _signature(name, one), "```", "", *_text(one)]
    if isinstance(one, type) and issubclass(one, Enum):
        return [*lines, "", "Values: " + ", ".join(f"`{member.name}`" for member in one) + "."]
    if isinstance(one, type) and not issubclass(one, tuple):
        # What a private class, or `Viewed`, defines belongs to the public classes below it.
        shared = [
            base for base in one.__mro__[1:] if base is Viewed or base.__name__.startswith("_")
        ]
        members = {
            name: each for base in reversed([one, *shared]) for name, each in vars(base).items()
        }
        for method, function in members.items():
            if not method.startswith("_") and (
                callable(function) or isinstance(function, staticmethod)
            ):
                target = getattr(one, method)
                lines += [
                    "",
                    f"#### {name}.{method}",
                    "",
                    "```text",
                    _signature(method, target),
                    "```",
                    "",
                    *_text(target),
                ]
    return lines


def _signature(name: str, one: Any) -> str:
    """One line, or a parameter a line; annotations without quotes."""
    if isinstance(one, type) and issubclass(one, Enum):
        return f"class {name}({one.__mro__[1].__name__})"
    head = f"class {name}" if isinstance(one, type) else name
    try:
        signature = inspect.signature(one)
    except (TypeError, ValueError):
        return f"{head}(...)"
    parts, is_keyword = list[str](), False
    for parameter in signature.parameters.values():
        if parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            parts.append("*")
        is_keyword = is_keyword or parameter.kind in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        )
        text, has_default, default = str(parameter).partition(" = ")
        parts.append(_plain(text) + (f" = {_default(default)}" if has_default else ""))
    ends = isinstance(one, type) or signature.return_annotation is signature.empty
    returns = "" if ends else f" -> {_plain(str(signature.return_annotation))}"
    line = f"{head}({', '.join(parts)}){returns}"
    return (
        line
        if len(line) <= 100
        else f"{head}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"
    )


def _plain(annotation: str) -> str:
    """Without quotes, and without ranges and forms of settings."""
    return _without_marks(
        re.sub(
            r"ForwardRef\('([^']*)'\)|'([^']*)'",
            lambda found: found[1] or found[2] or "",
            annotation,
        )
    )


_MARKED = re.compile(r"\b(?:Hidden|Flat|OrNull|Always|AsText|AsList|Shown|Annotated)\[")


def _without_marks(annotation: str) -> str:
    """The types alone, without how `connector.records.views` shows them as JSON."""
    while found := _MARKED.search(annotation):
        depth, stop, end = 0, 0, found.end()
        while depth >= 0:
            depth += {"[": 1, "]": -1}.get(annotation[end], 0)
            if depth == 0 and annotation[end] == "," and not stop:
                stop = end
            end += 1
        kind = annotation[found.end() : stop or end - 1]
        annotation = annotation[: found.start()] + kind + annotation[end:]
    return re.sub(r"\bTime(OrNull)?\b", "int", annotation)


def _default(text: str) -> str:
    shown = re.sub(r"<factory>|<function .*? at 0x[0-9a-f]+>", "...", text)
    return re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", shown)


def _text(one: Any) -> list[str]:
    """The docstring; its sections as they are, in a block of text."""
    text = inspect.getdoc(one) or ""
    summary, _, rest = text.partition("\n\n")
    lines = [line.rstrip() for line in summary.splitlines()]
    return [*lines, "", "```text", *rest.rstrip().splitlines(), "```"] if rest.strip() else lines


if __name__ == "__main__":
    DEAD_LETTERS.write_text(with_reasons(DEAD_LETTERS.read_text("utf-8")), "utf-8")
    API.write_text(api_page(), "utf-8")
    ERRORS.write_text(errors_page(), "utf-8")
