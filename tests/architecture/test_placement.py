"""Where things lie: a root module has its test, a test of a part of the world lies where that part is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector import cli

ROOT = Path(__file__).parents[2]
ROOT_MODULES = sorted(path.stem for path in (ROOT / "connector").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("module", ROOT_MODULES)
def test_every_root_module_has_its_test_file(module: str) -> None:
    assert (ROOT / f"tests/unit/test_{module}.py").is_file()


def test_every_test_file_lies_in_a_suite_that_runs() -> None:
    suites = {"unit", "property", "golden", "architecture", "spark", "integration", "faults", "e2e"}
    assert {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")} <= suites


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_that_is_named_exists(name: str) -> None:
    """OPS-10."""
    module = cli.COMMANDS[name][0]
    assert any((ROOT / "connector/cli" / place).is_file() for place in (f"{module}.py", f"{module}/__init__.py"))
