"""The catalogue of errors: each function helps the reader and is used, and each code that is
compared with exists.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector import errors
from connector.cli.remedies import TEMPLATES
from connector.errors import ConnectorError, InvalidChangeError, JsonViewError
from connector.records.model import Rule
from tests.documents import PAGES
from tests.error_codes import MODULES, PACKAGE, ROOT, Entry, entries, entries_of, errors_list

CATALOGUE = PACKAGE / "errors"
CLASSES = {
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, ConnectorError)
}
FOLDERS = ("connector", "tests", "examples", "benchmarks")
RULES = {
    *(rule.value for rule in Rule),
    *re.findall(r"`([A-Z_]+)`", InvalidChangeError.__doc__ or ""),
}
"""The codes of an `InvalidChangeError`: the rules."""


EVENTS = {
    code
    for path in PACKAGE.rglob("*.py")
    for code in re.findall(
        r"(?:\binfo|\bwarning|\bEvent|\._warn)\(\s*(?:[^,\n]+, )?\"([A-Z_]+)\"",
        path.read_text("utf-8"),
    )
}
"""The codes of events."""


@pytest.fixture(scope="module")
def sources() -> dict[str, ast.Module]:
    """The modules of the package by their paths. They are parsed once."""
    return dict(_sources("connector"))


def _sources(*folders: str, pattern: str = "") -> Iterator[tuple[str, ast.Module]]:
    """The files below the folders that have the pattern."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if re.search(pattern, text := path.read_text("utf-8")):
                yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def compared_codes(tree: ast.AST) -> set[str]:
    """The texts that an attribute `code` is compared with."""
    codes: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Attribute) and side.attr == "code" for side in sides):
                texts = (part for side in sides for part in (side, *getattr(side, "elts", ())))
                codes |= {
                    part.value
                    for part in texts
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                }
    return codes


def constructed(tree: ast.AST) -> list[str]:
    """The classes of errors that are called, but for `InvalidChangeError`, which has a rule."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = (getattr(called, "attr", getattr(called, "id", "")) for called in calls)
    return [name for name in names if name in CLASSES - {InvalidChangeError.__name__}]


def test_the_page_has_every_module_of_the_catalogue() -> None:
    """A new module has its index in `MODULES` of tests/error_codes.py."""
    assert sorted(MODULES) == sorted(path.stem for path in CATALOGUE.glob("[a-z]*.py"))


def test_every_error_has_a_problem_and_a_remedy() -> None:
    assert len(entries()) > 100
    assert [entry.name for entry in entries() if not entry.error.problem] == []
    # The problem of a field of JSON says what it must be.
    without = {entry.name for entry in entries() if not entry.error.remedy}
    assert without == {e.name for e in entries() if isinstance(e.error, JsonViewError)} & without


def test_the_page_lists_each_code_once() -> None:
    listed = re.findall(r"^### (\w+)$", errors_list(), re.MULTILINE)
    assert sorted(listed) == sorted({entry.error.code for entry in entries()})


def test_every_error_is_used(sources: dict[str, ast.Module]) -> None:
    used = {
        name
        for tree in sources.values()
        for node in ast.walk(tree)
        for name in (getattr(node, "id", None), getattr(node, "attr", None))
    }
    assert [f"{entry.module}.{entry.name}" for entry in entries() if entry.name not in used] == []


def test_errors_are_made_in_the_catalogue_alone(sources: dict[str, ast.Module]) -> None:
    made = {
        path: classes
        for path, tree in sources.items()
        if ROOT / path not in CATALOGUE.glob("*.py") and (classes := constructed(tree))
    }
    assert made == {}


def test_every_code_that_is_compared_with_exists() -> None:
    codes = {entry.error.code for entry in entries()} | RULES | EVENTS
    unknown = {
        path: codes_of_file - codes
        for path, tree in _sources(
            *FOLDERS, pattern=r"\.code\s*(?:==|!=|in\b|not\b)|[=!]=\s*[\w.]+\.code\b"
        )
        if (codes_of_file := compared_codes(tree)) - codes
    }
    assert unknown == {}
    assert set(TEMPLATES) - codes == set()


def test_every_code_of_a_page_exists() -> None:
    codes = {entry.error.code for entry in entries()} | RULES | EVENTS
    named = {
        (page.relative_to(ROOT).as_posix(), code)
        for page in PAGES
        for text in [page.read_text("utf-8")]
        for code in [
            *re.findall(r"\bcodes? +`([A-Z_]{4,})`", " ".join(text.split())),
            *re.findall(r"\.code [!=]= \"(\w+)\"", text),
            *re.findall(r"^code: +(\w+)$", text, re.MULTILINE),
        ]
    }
    assert len(named) > 5
    assert {(page, code) for page, code in named if code not in codes} == set()


# ── canaries ──────────────────────────────────────────────────────────────────────────────────────

MADE_UP = '''\
"""Made-up errors."""

from connector.errors import TopicError


def made_up(topic: str, seconds: float, name: str = "") -> TopicError:
    return TopicError("MADE_UP", f"no {topic!r}", f"{seconds:,.1f} s", f"{name} or", topic=topic)


def _helper(topic: str) -> str:
    return topic
'''


def _entries(tmp_path: Path, source: str) -> list[Entry]:
    from importlib.util import module_from_spec, spec_from_file_location

    (tmp_path / "made_up.py").write_text(source, "utf-8")
    spec = spec_from_file_location("made_up", tmp_path / "made_up.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return entries_of(module)


def test_a_made_up_error_is_shown_with_its_parameters(tmp_path: Path) -> None:
    (entry,) = _entries(tmp_path, MADE_UP)
    assert entry.texts == ("no {topic}", "{seconds} s", "{name} or")
    assert (entry.error.code, [*entry.error.fields]) == ("MADE_UP", ["topic"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("def f(names): return TopicError('X', ', '.join(names[9].x))", "cannot be called"),
        ("def f(topic): return topic", "does not return an error"),
        ("def f(*topics): return TopicError('X', '')", "cannot be called"),
    ],
)
def test_a_function_that_the_page_cannot_show_is_refused(
    tmp_path: Path, line: str, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        _entries(tmp_path, f"{MADE_UP}\n\n{line}\n")


def test_codes_and_errors_are_found_in_made_up_code() -> None:
    tree = ast.parse(
        "if error.code in ('A', 'B') or 'C' == e.error.code or name == 'D':\n"
        "    raise errors.TopicError('E', 'x') from InvalidChangeError('F', '', '', 1)\n"
    )
    assert compared_codes(tree) == {"A", "B", "C"}
    assert constructed(tree) == ["TopicError"]
