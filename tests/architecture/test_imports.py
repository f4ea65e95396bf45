"""The imports that are allowed, and the modules that are imported only when they are needed."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITH_INPUT_AND_OUTPUT = {
    "__init__",
    "cli",
    "clock",
    "events",
    "console",
    "delta_log",
    "engine",
    "exporter",
    "jars",
    "kafka",
    "lake",
    "services",
    "spark",
}
CLIENTS = {
    *("confluent_kafka", "delta", "deltalake", "httpx", "pandas", "prometheus_client"),
    *("pyarrow", "pyspark"),
}


@pytest.mark.systems
def test_import_contracts_hold() -> None:
    """The layers and the one place of each client, as pyproject.toml has them. `make test` runs the
    same check, `make contracts`.
    """
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_package_without_a_client_is_held_to_purity() -> None:
    """A new package or root module is pure, or it is one of those that do I/O."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    pure = next(contract for contract in contracts if contract["name"].startswith("Pure"))
    places = {
        path.stem
        for path in (ROOT / "connector").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert {
        name.removeprefix("connector.") for name in pure["source_modules"]
    } == places - WITH_INPUT_AND_OUTPUT


def test_examples_use_only_the_public_packages() -> None:
    """OPS-2"""
    imported = {
        node.module
        for path in (ROOT / "examples").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("connector")
    }
    assert {"connector", "connector.kafka", "connector.services"} <= imported
    assert imported <= {
        "connector",
        "connector.errors",
        "connector.jars",
        "connector.kafka",
        "connector.services",
        "connector.spark",
    }


STATEMENTS = (
    "import connector",
    "import connector.services",
    "from connector import cli; cli.invoke(['--help'])",
    "from connector import cli; cli.invoke(['dead-letters', 'replay', '--help'])",
    "from connector import cli; cli.invoke(['load', '--help'])",
    "from connector import cli; cli.invoke(['read', '--help'])",
    "from connector import cli; cli.invoke(['run', '--help'])",
    "from connector import cli; cli.invoke(['status', '--help'])",
    "from connector import cli; cli.invoke(['table', 'set', '--help'])",
    "from connector import cli; cli.invoke(['tail', '--help'])",
)


def test_neither_the_core_nor_help_imports_a_client() -> None:
    """OPS-10: help answers at once, and where a client is not installed."""
    names = "*sorted({name.partition('.')[0] for name in sys.modules})"
    program = "import sys\n" + "".join(
        f"{statement}\nprint('imported:', {names})\n" for statement in STATEMENTS
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("imported:")]
    assert len(lines) == len(STATEMENTS)
    clients = (CLIENTS & {*line.split()} for line in lines)
    assert {text: found for text, found in zip(STATEMENTS, clients, strict=True) if found} == {}


def test_the_kafka_side_imports_neither_spark_nor_the_lake() -> None:
    """A producer installs without Spark."""
    program = (
        "import sys, connector.kafka; print(*sorted({name.partition('.')[0] for name in"
        " sys.modules}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not set(ended.stdout.split()) & (CLIENTS - {"confluent_kafka"})
