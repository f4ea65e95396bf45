"""`make mutants`: which changes of code it makes, which it draws, what it says of them, and that it
leaves the working tree alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.mutants import __main__ as tool
from tests.mutants.operators import apply, edits

ROOT = Path(__file__).parents[2]

WHOLE = """
def clamped(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)
"""
WHOLE_TEST = """
import pytest
from connector.whole import clamped

def test_random_choices_are_the_same_in_each_run(pytestconfig):
    assert pytestconfig.getoption("--seed") == "1"

@pytest.mark.parametrize("value, seen", [(-9, -1), (-1, -1), (1, 1), (2, 2), (9, 2)])
def test_clamped(value, seen):
    assert clamped(value, -1, 2) == seen
"""
HOLED = """
def is_of_age(age: int) -> bool:
    return age >= 18
"""
HOLED_TEST = """
from connector.holed import is_of_age

def test_is_of_age():
    assert is_of_age(30) is True
    assert is_of_age(5) is False
"""
EMPTIED = """
def empty(queue: list[int]) -> None:
    while queue:
        queue.pop()
"""
EMPTIED_TEST = """
from connector.emptied import empty

def test_empty():
    queue = [1, 2]
    empty(queue)
    assert queue == []
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toy")
    files = {
        "connector/__init__.py": "",
        "connector/whole.py": WHOLE,
        "connector/holed.py": HOLED,
        "connector/emptied.py": EMPTIED,
    }
    files |= {
        "tests/conftest.py": "def pytest_addoption(parser): parser.addoption('--seed')",
        "tests/unit/test_whole.py": WHOLE_TEST,
        "tests/unit/test_holed.py": HOLED_TEST,
        "tests/unit/test_emptied.py": EMPTIED_TEST,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def started(toy: Path, temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.mutants", "--seed", "7", "--grace", "1", *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(temporary),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.Popen(
        command,
        cwd=toy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(run: subprocess.Popen[str]) -> str:
    try:
        return run.communicate(timeout=120)[0]
    finally:
        run.terminate()


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def changed(text: str) -> list[str]:
    """What each edit makes of a function's body, or of a module."""
    return [after for edit in edits(text) if (after := apply(text, edit)) is not None]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a == b", ["a != b"]),
        ("a not in b", ["a in b"]),
        ("a is b", ["a is not b"]),
        ("a < b == c", ["a <= b == c", "a >= b == c", "a < b != c"]),
        ("a and b", ["(b)", "(a)", "a or b"]),
        (
            "a or b or c",
            [
                "False or b or c",
                "a and b or c",
                "a or False or c",
                "a or b and c",
                "a or b or False",
            ],
        ),
        ("x if a else y", ["x if not (a) else y"]),
        ("x if not a else y", ["x if a else y"]),
        ("-a", ["a"]),
        ("a + b", ["a - b"]),
        ("a // b", ["a * b"]),
        ("a | b", ["(a)", "(b)", "a & b"]),
        ("'a' + b", []),
        ("a[3]", ["a[2]", "a[4]"]),
        ("True", ["False"]),
        ("min(a)", ["max(a)"]),
        ("a.any(b)", ["a.all(b)"]),
        ("f(a, key=b)", ["f(a)"]),
        ("f(key=b)", ["f()"]),
        ("f(a, *b, **c)", []),
        ("{a, b, c}", ["{b, c}", "{a, c}", "{a, b}"]),
        ("[a, b]", ["[b]", "[a]"]),
        ("(a, b)", ["(a,)", "(b,)"]),
        ("(a, b, c,)", ["(b, c,)", "(a, c,)", "(a, b,)"]),
        ("{a: b, c: d}", ["{c: d}", "{a: b}"]),
        ("[a for a in b if c]", ["[a for a in b if not (c)]"]),
        ("'a'", []),
        ("f'{a < b}'", []),
    ],
)
def test_each_operator_makes_its_change_once(before: str, after: list[str]) -> None:
    assert sorted(changed(f"x: T = {before}")) == sorted(f"x: T = {one}" for one in after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a)", ["pass"]),
        ("a[b] = c", ["pass"]),
        ("a = b", []),
        ("a += b", ["pass", "a -= b"]),
        ("raise E(a < b, 3)", ["pass"]),
        ("assert a < b, 3", []),
        ("yield a", ["pass"]),
        ("return a", ["return bool()"]),
        ("return (a, b)", ["return bool()"]),
        ("return None", []),
        ("a: tuple[int, 3] = b", []),
        ("a, b = b, a", []),
    ],
)
def test_each_operator_changes_statements_once(before: str, after: list[str]) -> None:
    text = "def f(a: 3 = b) -> bool:\n    "
    assert sorted(changed(text + before)) == sorted(text + one for one in after)


@pytest.mark.parametrize(
    ("annotation", "empty"),
    [
        ("int", "int()"),
        ("tuple[int, ...]", "tuple()"),
        ("Mapping[str, int]", "{}"),
        ("Row | None", "None"),
        ("Row", "None"),
    ],
)
def test_the_returned_value_of_a_mutant_has_the_type_if_it_has_an_empty_value(
    annotation: str, empty: str
) -> None:
    assert changed(f"def f() -> {annotation}: return a") == [
        f"def f() -> {annotation}: return {empty}"
    ]


def test_nothing_is_changed_that_only_people_or_tools_read() -> None:
    text = '''
        """Text."""
        if TYPE_CHECKING:
            from a import b
        Place = tuple[int, 3]
        Entry = Put | Delete
        T = TypeVar("T", bound=3)

        @dataclass(frozen=True)
        class Row:
            """Text."""
            __slots__ = ("a", "b")

            @overload
            def f(self, a: int = 0) -> int: ...
        '''
    assert changed(dedent(text)) == []


def test_places_are_right_where_characters_have_more_than_one_byte() -> None:
    assert changed("x: T = 'é×' in a") == ["x: T = 'é×' not in a"]


def test_the_sample_is_a_function_of_the_seed(toy: Path) -> None:
    assert tool.draw(toy, ["holed", "whole"], 9, seed=1) == tool.draw(
        toy, ["holed", "whole"], 9, seed=1
    )
    assert tool.draw(toy, ["holed", "whole"], 9, seed=1) != tool.draw(
        toy, ["holed", "whole"], 9, seed=2
    )
    drawn, total = tool.draw(toy, ["holed"], 100, seed=1)
    assert sorted(mutant.diff[1].strip("+ ") for mutant in drawn) == [
        *(
            "return age < 18",
            "return age > 18",
            "return age >= 17",
            "return age >= 19",
            "return bool()",
        ),
    ]
    assert total == len(drawn)


def test_tests_of_a_module_are_its_own_the_laws_and_those_of_its_only_importer() -> None:
    freshness = set(tool.tests_of(ROOT, "watermarks/freshness"))
    assert {
        "tests/unit/watermarks/test_freshness.py",
        "tests/property/test_freshness_laws.py",
    } <= freshness
    encoder = set(tool.tests_of(ROOT, "records/avro_encoder"))
    assert {
        "tests/unit/records/test_avro_encoder.py",
        "tests/property/test_codec_roundtrip.py",
    } <= encoder


def test_tests_of_a_package_without_a_folder_and_of_a_module_that_no_test_imports(
    tmp_path: Path,
) -> None:
    files = {
        "connector/lake/used.py": "",
        "connector/lake/inner.py": "",
        "connector/lake/outer.py": "from connector.lake.inner import a\n",
        "connector/lake/other.py": "from connector.lake.inner import a\n",
        "tests/unit/cli/test_used.py": "from connector.lake.used import a\n",
        "tests/unit/state/test_outer.py": "from connector.lake.outer import a\n",
        "tests/property/test_other_laws.py": "from connector.lake.other import a\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert tool.tests_of(tmp_path, "lake/used") == ["tests/unit/cli/test_used.py"]
    assert tool.tests_of(tmp_path, "lake/inner") == [
        "tests/unit/state/test_outer.py",
        "tests/property/test_other_laws.py",
    ]
    (tmp_path / "tests/unit/lake").mkdir()
    assert tool.tests_of(tmp_path, "lake/used") == []


def test_the_copy_has_all_that_quick_tests_read(tmp_path: Path) -> None:
    copy = tool.copied(ROOT, tmp_path / "copy")
    of_pages = {"deploy", "docs", "examples", "benchmarks", "schemas"}
    assert {"connector", "tests", "Makefile", "README.md", *of_pages} <= {
        path.name for path in copy.iterdir()
    }
    assert not (copy / ".git").exists()


@pytest.mark.systems
def test_unnoticed_mutants_are_reported_and_tests_that_do_not_end_have_noticed(
    toy: Path, tmp_path: Path
) -> None:
    before = content(toy)
    run = started(toy, tmp_path, "--sample", "100")
    output = output_of(run)
    assert run.returncode == 0, output
    lines = output.splitlines()
    assert "holed: 2 of 5 noticed" in lines
    found = lines[lines.index("holed: 2 of 5 noticed") + 1 : lines.index("whole: 3 of 3 noticed")]
    assert found == [
        *(
            "  connector/holed.py:3: boundary",
            "    -    return age >= 18",
            "    +    return age > 18",
        ),
        *(
            "  connector/holed.py:3: constant",
            "    -    return age >= 18",
            "    +    return age >= 17",
        ),
        *(
            "  connector/holed.py:3: constant",
            "    -    return age >= 18",
            "    +    return age >= 19",
        ),
    ]
    assert "emptied: 2 of 2 noticed" in lines
    assert "7 of 10 changes noticed (70.0%): 6 by a failed test, 1 by the time it takes" in lines
    assert content(toy) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_run_that_is_ended_half_way_leaves_nothing(toy: Path, tmp_path: Path) -> None:
    before = content(toy)
    # One of these changes makes the tests compute until somebody ends them.
    with started(toy, tmp_path, "--sample", "100", "--grace", "600", "emptied") as run:
        assert run.stdout is not None
        next(line for line in run.stdout if line.startswith("all tests pass"))
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=60) == 128 + signal.SIGTERM
    assert content(toy) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.systems
def test_tests_that_fail_on_the_code_as_it_is_are_an_error(toy: Path, tmp_path: Path) -> None:
    test = toy / "tests/unit/test_holed.py"
    try:
        test.write_text(HOLED_TEST.replace("5", "50"))
        run = started(toy, tmp_path, "holed")
        output = output_of(run)
    finally:
        test.write_text(HOLED_TEST)
    assert run.returncode == 1
    assert "tests/unit/test_holed.py fails on the code as it is, so it can notice nothing" in output
