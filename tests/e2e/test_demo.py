"""The demo on a small repository: it ends well, and it would not if the table were another
repository's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from random import Random

import httpx
import pytest

from connector.config.settings import ConnectorConfig
from connector.console.app import console_app, paths
from connector.console.pages import Pages
from connector.console.server import Address, serving
from connector.kafka import LocalBroker
from connector.services import explain, load_config, read, status
from connector.tables.explain import Outcome
from examples.demo.compare import row_differences, rows_of, tree
from examples.demo.history import TABLE
from tests import machine
from tests.broker import jar_store
from tests.spark.conftest import QUICK_PROCESS
from tests.unit.demo.histories import odd_paths, renames_and_returns, submodules
from tests.unit.git_repository import Repository

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_the_table_equals_git_and_a_difference_is_reported(tmp_path: Path, seed: int) -> None:
    """OPS-2: nothing_lost, nothing_invented, newest_wins, deletes_stay_deleted, resumable,
    poison_is_contained, across a SIGKILL; TBL-17: cut_is_consistent at a commit in the middle;
    SUB-6: the explanation of a row is the row
    """
    repository = Repository(tmp_path / "repository")
    for number in range(60):
        repository.write(f"{chr(ord('a') + number % 26)}{number}", str(number))
    renames_and_returns(repository)
    odd_paths(repository)
    submodules(repository)
    output = tmp_path / "output"

    options = ("--repository", str(repository.folder), "--output", str(output))
    ended = subprocess.run(
        [sys.executable, "-m", "examples.demo", *options],
        cwd=ROOT,
        env=os.environ | QUICK_PROCESS,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    in_order = ("a snapshot with", "SIGKILL ended", "--once", "git ls-tree", "EQUAL: ")
    places = [ended.stdout.find(text) for text in in_order]
    assert -1 not in places, ended.stdout
    assert places == sorted(places)
    left = subprocess.run(["pgrep", "-f", str(output)], capture_output=True, check=False)
    assert left.stdout == b"", "a process was left behind"

    config = load_config(output / "connector.toml", {})
    with read(config, TABLE, snapshot=True) as table:
        rows = list(rows_of(table))
    check_explanations(output, rows, Random(seed))
    with LocalBroker.start(output / "broker", jar_store()):
        check_console(config)

    # The table lacks one more commit.
    repository.write("a", "a change that is not published\n")
    repository.git("add", "a")
    repository.git("commit", "--quiet", "-m", "one more")
    (difference,) = row_differences(tree(repository.folder, "HEAD"), rows)
    assert difference.startswith("b'a' is ")


def check_console(config: ConnectorConfig) -> None:
    """WEB-1: links and the form for a row lead from the first page to pages of every kind."""
    pages = Pages(lambda: config, lambda: status(config))
    patterns = {re.compile(re.sub(r"\{.*?\}", "[^/]+", path)): path for path in paths(pages)}
    opened, listed = set[tuple[str | None, bool]](), ["/"]
    with (
        serving(console_app(pages), Address(port=0)) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client,
    ):
        while listed:
            path, _, query = (whole := listed.pop()).partition("?")
            kind = next((patterns[it] for it in patterns if it.fullmatch(path)), None)
            if (kind, bool(query)) in opened:
                continue
            opened.add((kind, bool(query)))
            page = client.get(whole)
            assert page.status_code == 200, (whole, page.text)
            for link in re.findall(r'(?:href|action)="(.*?)"', page.text):
                link = unescape(link) if link.startswith("/") else path + unescape(link)
                listed.append(f"{link}?key=a0" if link.endswith("/row") else link)
    assert {kind for kind, _ in opened} - {None} == set(paths(pages))


def check_explanations(
    output: Path, rows: list[tuple[bytes, dict[str, object]]], rng: Random
) -> None:
    """The entries that won make the row of the table."""
    config = load_config(output / "connector.toml", {})
    definition = config.tables[TABLE]
    for path, row in rng.sample(rows, 50):
        explained = explain(config, TABLE, (path,), ask_kafka=False)
        assert explained.is_confirmed is True
        assert explained.row is not None
        assert {name: explained.row[name] for name in ("mode", "blob", "size")} == {
            name: row[name] for name in ("mode", "blob", "size")
        }
        won = {
            (column.family, column.qualifier)
            for column in explained.explanation.columns
            for entry in column.entries
            if entry.outcome is Outcome.WON
        }
        assert {column.cell for column in definition.columns if row[column.name]} <= won


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(bool(machine.why_no_postgres()), reason=machine.why_no_postgres())
def test_tables_equal_postgresql_after_each_part_was_killed(tmp_path: Path) -> None:
    """SRC-12: nothing_lost, cut_is_consistent, resumable, from PostgreSQL to the tables."""
    if why := machine.why_no_debezium(jar_store()):
        pytest.skip(why)
    ended = subprocess.run(
        [sys.executable, "-m", "examples.demo_postgres", "--output", str(tmp_path / "output")],
        cwd=ROOT,
        env=os.environ | QUICK_PROCESS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("killed, and started again: ") == 5
    assert "EQUAL: " in ended.stdout
