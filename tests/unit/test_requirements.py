"""docs/reference/requirements.md defines every id that code, tests and documents name, once, and a
test names every id that it defines: one that runs without `--long`. The same is true of the
promises.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.documents import ROOT, promises

PAGE = ROOT / "docs/reference/requirements.md"
PLACES = (
    "connector",
    "tests",
    "benchmarks",
    "schemas",
    "docs",
    "README.md",
    "docker-compose.yml",
    "Makefile",
    "pyproject.toml",
)
TEXTS = {"", ".avsc", ".md", ".py", ".toml", ".xml", ".yml"}
NOT_OURS = {"CRC", "ISO", "SHA", "UTF"}

_NAMED = re.compile(r"\b([A-Z]{3})-(\d+)\b(?:\s+to\s+\1-(\d+)\b)?")
_DEFINED = re.compile(r"^\*\*([A-Z]{3}-\d+)\*\* ", re.MULTILINE)


def named(text: str) -> set[str]:
    """The ids that a text names; a range such as TBL-1 to TBL-5 names each id in it."""
    return {
        f"{area}-{number}"
        for area, first, last in _NAMED.findall(text)
        if area not in NOT_OURS
        for number in range(int(first), int(last or first) + 1)
    }


def faults(
    page: str, code: Iterable[str], tests: Iterable[str], documents: Iterable[str]
) -> list[str]:
    """What is wrong with the page, a sentence for each id; the others are the texts that name
    ids.
    """
    defined = Counter(_DEFINED.findall(page))
    in_code, in_tests, in_documents = (
        set[str]().union(*map(named, texts)) for texts in (code, tests, documents)
    )
    found = {
        "is named and not defined": (
            (in_code | in_tests | in_documents | named(page)) - defined.keys()
        ),
        "is defined more than once": {id_ for id_, times in defined.items() if times > 1},
        "is defined, and neither code nor tests name it": defined.keys() - in_code - in_tests,
        "is defined, and no test names it": defined.keys() - in_tests,
    }
    return [f"{id_} {what}" for what, ids in found.items() for id_ in sorted(ids)]


def texts(*places: str) -> list[str]:
    """The texts of the repository below these places, without the page and this file."""
    roots = [ROOT / place for place in places]
    files = [
        file for root in roots for file in ([root] if root.is_file() else sorted(root.rglob("*")))
    ]
    wanted = (
        file
        for file in files
        if file.is_file() and file.suffix in TEXTS and file not in (PAGE, Path(__file__))
    )
    return [file.read_text("utf-8") for file in wanted]


def test_every_id_that_is_named_is_defined_once_and_named_by_a_test() -> None:
    others = texts(*(place for place in PLACES if place not in ("connector", "tests")))
    assert faults(PAGE.read_text("utf-8"), texts("connector"), texts("tests"), others) == []


@dataclass(frozen=True, slots=True)
class Proofs:
    """What a file of tests says, divided by the tests that say it.

    Attributes:
        default: The tests that run without `--long`, and what belongs to no single test.
        only_long: The tests that need `--long`.
    """

    default: str
    only_long: str

    def names(self, words: Callable[[str], set[str]]) -> set[str]:
        """What a default test names. If a long test names what the head of the file names, then the
        long test is the proof.
        """
        tests, _, rest = self.default.partition(_REST)
        return words(tests) | (words(rest) - words(self.only_long))


_REST = "\x00"
_LONG = "pytest.mark.long"


def proofs(source: str) -> Proofs:
    """The proofs in a file. A test with a parameter that is not long runs without `--long`."""
    if _LONG not in source:
        return Proofs(f"{source}{_REST}", "")
    module = ast.parse(source)
    assigned = [
        (ast.unparse(node.targets[0]), node.value)
        for node in module.body
        if isinstance(node, ast.Assign)
    ]
    long_names = {_LONG} | {name for name, value in assigned if ast.unparse(value) == _LONG}
    is_long_file = any(
        name == "pytestmark" and _LONG in map(ast.unparse, ast.walk(value))
        for name, value in assigned
    )
    tests: dict[bool, list[str]] = {True: [], False: []}
    lines = source.splitlines()
    rest = list(lines)
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            at = slice(node.lineno - 1, node.end_lineno)
            is_long = any(ast.unparse(by) in long_names for by in node.decorator_list)
            tests[is_long or is_long_file] += lines[at]
            rest[at] = [""] * len(lines[at])
    if is_long_file:
        return Proofs(_REST, "\n".join([*tests[True], *rest]))
    return Proofs("\n".join([*tests[False], _REST, *rest]), "\n".join(tests[True]))


def test_each_id_is_named_by_a_test_that_runs_by_default() -> None:
    files = [proofs(file.read_text("utf-8")) for file in (ROOT / "tests").rglob("test_*.py")]
    found = set[str]().union(*(file.names(named) for file in files))
    assert set(_DEFINED.findall(PAGE.read_text("utf-8"))) - found == set()


def test_each_promise_names_files_with_tests_of_it_that_run_by_default() -> None:
    """README and docs/reference/guarantees.md name the same files (test_docs.py)."""
    rows = promises()
    assert rows
    for promise, _, tests in rows:
        for file in re.findall(r"`([^`]+)`", tests):
            found = proofs((ROOT / file).read_text("utf-8"))
            assert found.names(lambda text, name=promise: {name} if name in text else set()), (
                f"{file} has no test of {promise} that runs without --long"
            )


def test_a_requirement_of_long_tests_alone_is_not_proved() -> None:
    """A canary: made-up tests."""
    head, short, long = (
        '"""XYZ-1, XYZ-2"""\n',
        'def test_a():\n    """XYZ-3"""\n',
        '@pytest.mark.long\ndef test_b():\n    """XYZ-2, XYZ-4"""\n',
    )
    assert proofs(head + short + long).names(named) == {"XYZ-1", "XYZ-3"}
    alias = f"SLOW = pytest.mark.long\n{long.replace('pytest.mark.long', 'SLOW')}"
    assert proofs(alias).names(named) == set()
    whole = "pytestmark = [pytest.mark.long]\n"
    assert proofs(head + whole + short).names(named) == set()
    some = '@pytest.mark.parametrize("n", [0, pytest.param(1, marks=pytest.mark.long)])\n'
    assert proofs(some + short).names(named) == {"XYZ-3"}


def test_all_places_are_looked_at() -> None:
    """Without texts there would be no faults."""
    assert all(texts(place) for place in PLACES)
    assert len(_DEFINED.findall(PAGE.read_text("utf-8"))) > 100


def test_a_range_names_each_id_in_it() -> None:
    assert named("XYZ-9 to\n    XYZ-11, XYZ-2, UTF-8 and SHA-256; XYZ-4 to ABC-6") == {
        "XYZ-9",
        "XYZ-10",
        "XYZ-11",
        "XYZ-2",
        "XYZ-4",
        "ABC-6",
    }


def test_faults_are_found() -> None:
    """A canary: made-up ids in made-up texts."""
    page = "**XYZ-1** One.\n\n**XYZ-2** Two.\n\n**XYZ-3** Three; see XYZ-7.\n"
    assert faults(page, ["(XYZ-1)"], ['"""XYZ-1 to XYZ-3"""'], ["XYZ-7"]) == [
        "XYZ-7 is named and not defined"
    ]
    assert faults(page.replace("; see XYZ-7", ""), ["(XYZ-1)"], ["XYZ-1 to XYZ-3"], []) == []
    assert faults("**XYZ-1** One.\n\n**XYZ-1** Two.", [], ["XYZ-1"], []) == [
        "XYZ-1 is defined more than once"
    ]
    assert faults("**XYZ-1** One.", ["XYZ-1"], [], ["XYZ-1"]) == [
        "XYZ-1 is defined, and no test names it"
    ]
    assert faults("**XYZ-1** One.", [], [], ["XYZ-1"]) == [
        "XYZ-1 is defined, and neither code nor tests name it",
        "XYZ-1 is defined, and no test names it",
    ]
    assert faults("**XYZ-1** One.", [], ["XYZ-1", "XYZ-999"], []) == [
        "XYZ-999 is named and not defined"
    ]


def test_no_id_is_in_a_text_that_people_see() -> None:
    """OPS-10: ids are for readers of the code and of the page. Errors and help have none."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value!r:.80}"
        for path in sorted((ROOT / "connector").rglob("*.py"))
        if may_show_ids(source := path.read_text("utf-8"))
        for node in texts_in(ast.parse(source))
        if named(node.value)
    ]
    assert found == []
    source = """
'REC-1'
class A:
    'REC-2'
TEXT: str = f"REC-3 {A}"
'REC-4'
@click.command("x")
def command():
    'REC-5'
"""
    assert [node.value for node in texts_in(ast.parse(source))] == ["REC-3 ", "REC-5", "x"]


def may_show_ids(source: str) -> bool:
    """Whether a module has ids outside docstrings and comments, or commands, whose docstrings are
    shown.
    """
    code = re.sub(r'"""(?:.|\n)*?"""|#.*', "", source)
    return ".command(" in source or bool(named(code))


def texts_in(module: ast.Module) -> list[ast.Constant]:
    """The texts that people see: all but documentation. The docstring of a command is its help."""
    documentation = {
        id(statement.value)
        for node in ast.walk(module)
        if not any(".command(" in ast.unparse(by) for by in getattr(node, "decorator_list", ()))
        for statement in ast.iter_child_nodes(node)
        if isinstance(statement, ast.Expr)
    }
    return [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
    ]
