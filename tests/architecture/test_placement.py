"""Where things are: each pure module has a quick test, each test is in a suite, each command has a
module.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from connector import cli
from tests.mutants import __main__ as mutants

ROOT = Path(__file__).parents[2]
MODULES = mutants.core_of(ROOT)


@pytest.mark.parametrize("module", MODULES)
def test_every_pure_module_has_a_quick_test(module: str) -> None:
    """A test of its package imports it, or the laws do."""
    assert mutants.tests_of(ROOT, module)


def test_every_test_file_is_in_a_suite_that_runs() -> None:
    suites = {"unit", "property", "golden", "architecture", "spark", "integration", "faults", "e2e"}
    suites |= {"incidents"}
    assert {
        path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")
    } <= suites


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_that_is_named_exists(name: str) -> None:
    """OPS-10."""
    assert importlib.util.find_spec(cli.COMMANDS[name][0].partition(":")[0]) is not None


def test_services_open_a_warehouse_with_its_storage_settings() -> None:
    """STO-1: through `warehouse_of`; a path that is only looked at or shown is no table."""
    only_looked_at = {"load_config.py", "local_spark.py", "validate_config.py"}
    direct = {
        path.name
        for path in (ROOT / "connector/services").rglob("*.py")
        if "config.warehouse" in path.read_text("utf-8")
    }
    assert direct <= only_looked_at | {"warehouses.py"}


RUNS_PYTHON = {
    *("applyInArrow", "applyInPandas", "applyInPandasWithState", "cogroup", "foreach"),
    *("foreachPartition", "mapInArrow", "mapInPandas", "mapPartitions", "pandas_udf"),
    *("parallelize", "toDF", "transformWithState"),
    *("transformWithStateInPandas", "udf", "udtf", "createDataFrame"),
}
"""Functions of pyspark that may start Python on an executor."""


def test_python_runs_on_executors_in_one_module() -> None:
    """SCL-3. Rows that the driver knows become frames in one place, with Arrow data."""
    calls = {
        (path.name, ast.unparse(node.func))
        for path in (ROOT / "connector").rglob("*.py")
        if "pyspark" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in RUNS_PYTHON
    }
    # The others are methods of Delta's log, and of a session, in the JVM.
    assert calls == {
        ("tasks.py", "rows.mapInArrow"),
        ("sql.py", "spark.createDataFrame"),
        ("files.py", "self.log.createDataFrame"),
        ("sql.py", "spark._jsparkSession.udf"),
    }
