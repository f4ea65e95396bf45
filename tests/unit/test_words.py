"""The words of pages, docstrings, identifiers and tests: some are refused. Pages for users speak to
the reader and give examples.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from connector import cli
from tests.documents import PAGES, ROOT
from tests.error_codes import entries

# `make test` runs this file with the other checks of style, `make lint`.
pytestmark = pytest.mark.systems

PACKAGE = ROOT / "connector"
PROSE_PAGES = [page for page in PAGES if ROOT / "docs/decisions" not in page.parents]
PROSE_PAGES += [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES_FOR_USERS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs/tutorial").glob("*.md")),
    *sorted((ROOT / "docs/howto").glob("*.md")),
]

_REFUSED = re.compile(
    r"\b(nobody|somebody|anybody|anew|bears|whoever|mend(?:s|ed|ing)?|lies|stands|let go|who"
    r" holds|is over|is none)\b",
    re.IGNORECASE,
)
_WHAT_FIRST = re.compile(r"(?:\A|\n\n\s*|[.!?:] +|^[ \t]*[*-] +|\| *)(What)\b", re.MULTILINE)
_READER, _EXAMPLE = (
    re.compile(r"\byou(?:r|rs)?\b", re.IGNORECASE),
    re.compile(r"\bexamples?\b", re.IGNORECASE),
)
_WHOLE_NAMES = frozenset(
    {
        *(
            "found",
            "heard",
            "known",
            "of",
            "one",
            "place",
            "places",
            "said",
            "seen",
            "told",
            "trip",
        ),
    }
)
"""Words that are no name of a thing. As a part of a name, such as `last_seen`, they are."""

_PARTS_OF_NAMES = re.compile(
    r"(?:^|_)(?:told|said|heard|let_go|give_up|bury|buried|worlds?|journals?|complaints?|shut_out)"
    r"(?:_|$)|^_[a-z]\d$"
)
_TEST_NAMES = re.compile(
    r"^(?:what|who)(?:m|ever)?\b|\b(?:told|said|heard|hears?|seen|bur(?:y|ied)|worlds?|journals?"
    r"|stor(?:y|ies)|front doors?|rubbish|whom|speaks?|spoke|complaints?|shut out|give up)\b"
)
YOU_PER_1000, EXAMPLE_PER_1000 = 8, 3

STORED_NAMES = {
    ("connector/state/incomplete_transactions.py", "found"): "a JSON key of the stored progress",
}
"""The only refused identifiers: each has the name of what is stored."""


def prose(page: str) -> str:
    """The prose of a page in Markdown: no code blocks, no code in backticks, no headings, and each
    paragraph on one line.
    """
    text = re.sub(r"^([ \t]*)(```|~~~).*?^\1\2[ \t]*$", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?:\A|(?<=\n\n))(?: {4}.*\n)+", "", text)
    text = re.sub(r"`+[^`]*`+", "`", text)
    text = re.sub(r"^#+ .*$", "", text, flags=re.MULTILINE)
    return re.sub(r"(?<=[^\n|])\n(?=[^\n|*#\s-])", " ", text)


def refused(text: str) -> list[str]:
    """The refused words in prose: those in lower case, and each `What` that is the first word of a
    sentence.
    """
    return [
        word.lower() for word in _REFUSED.findall(" ".join(text.split()))
    ] + _WHAT_FIRST.findall(text)


def rate(words: re.Pattern[str], text: str) -> float:
    """How often the words are in a text, per 1,000 words."""
    return 1000 * len(words.findall(text)) / max(1, len(re.findall(r"[A-Za-z]+", text)))


def docstrings(module: ast.Module) -> list[str]:
    """All docstrings of a module, without code in backticks."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node) for node in ast.walk(module) if isinstance(node, documented))
    return [re.sub(r"`+[^`]*`+", "`", text) for text in texts if text]


def faults(counts: dict[str, int]) -> list[str]:
    """Where there are refused words: a sentence for each page or package."""
    return [f"{name}: {count} refused words" for name, count in sorted(counts.items()) if count]


def identifiers(tree: ast.AST) -> Iterator[str]:
    """The names that a module gives to functions, classes, parameters, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name


def is_refused_name(identifier: str) -> bool:
    """Whether an identifier is of the words that are refused: whole, or as a part."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower()
    return snake.strip("_") in _WHOLE_NAMES or bool(_PARTS_OF_NAMES.search(snake))


def refused_in_test(name: str, docstring: str) -> list[str]:
    """The refused words in the name of a test, and in its docstring."""
    words = name.removeprefix("test_").replace("_", " ")
    return [*_TEST_NAMES.findall(words), *_REFUSED.findall(words), *refused(docstring)]


@pytest.fixture(scope="module")
def package() -> dict[Path, ast.Module]:
    """The modules of the package. They are parsed once."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def _refused_identifiers(package: dict[Path, ast.Module]) -> Iterator[tuple[str, str]]:
    for path, module in package.items():
        name_of_module = path.relative_to(ROOT).as_posix()
        names = set(identifiers(module))
        yield from ((name_of_module, name) for name in names if is_refused_name(name))


def _refused_tests() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                text = re.sub(r"`+[^`]*`+", "`", ast.get_docstring(node) or "")
                if refused_in_test(node.name, text):
                    yield path.relative_to(ROOT).as_posix(), node.name


def _in_pages() -> dict[str, int]:
    return {
        page.relative_to(ROOT).as_posix(): len(refused(prose(page.read_text("utf-8"))))
        for page in PROSE_PAGES
    }


def _in_docstrings(package: dict[Path, ast.Module]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for path, module in package.items():
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        counted[name] += sum(len(refused(text)) for text in docstrings(module))
    return counted


def _in_errors() -> dict[str, int]:
    counted: Counter[str] = Counter()
    for entry in entries():
        texts = (re.sub(r"`[^`]+`", "`", text) for text in entry.texts)
        counted[entry.module] += sum(len(refused(text)) for text in texts)
    return counted


def helps(command: click.Command, name: str) -> list[tuple[str, str]]:
    """The help texts of a command, of its options and of the commands below it, each with its
    name.
    """
    texts = [
        (name, re.sub(r"`[^`]*`", "`", text)) for text in (command.help, command.epilog) if text
    ]
    texts += [
        (f"{name} {option.opts[0]}", re.sub(r"`[^`]*`", "`", option.help))
        for option in command.params
        if isinstance(option, click.Option) and option.help
    ]
    if isinstance(command, click.Group):
        with click.Context(command) as ctx:
            for below in command.list_commands(ctx):
                subcommand = command.get_command(ctx, below)
                assert subcommand is not None
                texts += helps(subcommand, f"{name} {below}")
    return texts


def test_pages_have_no_refused_words() -> None:
    assert faults(_in_pages()) == []


def test_docstrings_have_no_refused_words(package: dict[Path, ast.Module]) -> None:
    assert faults(_in_docstrings(package)) == []


def test_texts_of_errors_have_no_refused_words() -> None:
    assert faults(_in_errors()) == []


def test_help_texts_have_no_refused_words() -> None:
    texts = [
        *helps(cli.cli, "connector"),
        *((name, text) for name, (_, text) in cli.COMMANDS.items()),
    ]
    assert len(texts) > 100
    assert [(name, refused(text)) for name, text in texts if refused(text)] == []


def test_identifiers_have_no_refused_words(package: dict[Path, ast.Module]) -> None:
    assert set(_refused_identifiers(package)) == STORED_NAMES.keys()


def test_names_and_docstrings_of_tests_have_no_refused_words() -> None:
    assert list(_refused_tests()) == []


@pytest.mark.parametrize(
    ("words", "least"),
    [(_READER, YOU_PER_1000), (_EXAMPLE, EXAMPLE_PER_1000)],
    ids=["you", "example"],
)
def test_pages_for_users_address_the_reader_and_give_examples(
    words: re.Pattern[str], least: float
) -> None:
    text = "\n\n".join(prose(page.read_text("utf-8")) for page in PAGES_FOR_USERS)
    assert rate(words, text) >= least


def test_all_pages_and_packages_are_looked_at(package: dict[Path, ast.Module]) -> None:
    """Without texts there would be no faults."""
    assert len(PROSE_PAGES) > 20
    assert len(PAGES_FOR_USERS) > 8
    assert all(prose(page.read_text("utf-8")).strip() for page in PROSE_PAGES)
    assert sum(len(docstrings(module)) for module in package.values()) > 500


# ── canaries ──────────────────────────────────────────────────────────────────────────────────────

MADE_UP = """\
# What a heading may say

What it does. It lists what is there: What now? `nobody` and `What` are code.

```python
anybody = "bears"
```

    somebody lies in an indented block

- What a list says
- The alliesbears standstill mends

| a table | What it is |
|---|---|
| Whoever | the low watermark is
over, and is none |
"""


def test_refused_words_are_found_in_a_made_up_page() -> None:
    text = prose(MADE_UP.replace("watermark is\nover", "watermark is over"))
    assert sorted(refused(text)) == [
        "What",
        "What",
        "What",
        "What",
        "is none",
        "is over",
        "mends",
        "whoever",
    ]
    assert refused(prose("The stream partition is\nover, and they let\ngo.\n")) == [
        "is over",
        "let go",
    ]
    assert refused(prose("It says what is there.\nWhat follows is new.\n")) == ["What"]
    assert refused(prose("It says\nWhat the field `What` is.\n")) == []


def test_refused_words_are_found_in_made_up_docstrings() -> None:
    source = (
        '"""What it is."""\n\ndef f():\n    """It lies `somebody` in\n    wait. Nobody stands."""\n'
        '    x = "anew"\n'
    )
    assert [word for text in docstrings(ast.parse(source)) for word in refused(text)] == [
        "What",
        "lies",
        "nobody",
        "stands",
    ]


def test_each_place_with_refused_words_is_a_fault() -> None:
    assert faults({"a": 0, "b": 0}) == []
    assert faults({"b": 1, "a": 2, "c": 0}) == ["a: 2 refused words", "b: 1 refused words"]


def test_refused_words_are_found_in_made_up_help() -> None:
    command = click.Command(
        "c", help="What it is.", params=[click.Option(["--x"], help="It lies, `stands`.")]
    )
    assert [(name, refused(text)) for name, text in helps(command, "c")] == [
        ("c", ["What"]),
        ("c --x", ["lies"]),
    ]


def test_refused_names_are_found_in_made_up_code() -> None:
    source = (
        "class BuriedRow:\n"
        "    def f(self, one, last_seen, *, told_by, _i3):\n"
        "        self.found, _places = one, [last_seen for of in one]\n"
        "        try: known_ids = {}\n"
        "        except E as heard: pass\n"
    )
    names = [name for name in identifiers(ast.parse(source)) if is_refused_name(name)]
    assert sorted(names) == sorted(
        ["BuriedRow", "one", "told_by", "_i3", "found", "_places", "of", "heard"]
    )
    assert refused_in_test("test_what_is_told", "It lies.") == ["what", "told", "lies"]
    assert refused_in_test("test_a_letter_of_another_program", "`What`") == []


def test_a_rate_is_per_thousand_words() -> None:
    assert rate(_READER, "You and your table, young one " + "word " * 94) == 20
    assert rate(_EXAMPLE, "For example: exemplary. " + "word " * 97) == 10
