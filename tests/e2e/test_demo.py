"""`connector demo` on a small repository: it ends well, and it would not if the tables were another
repository's.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from random import Random

import pytest

from connector.demo import source, story
from connector.demo.folder import DemoFolder
from connector.demo.publish import Published
from connector.demo.report import Outcome
from connector.demo.repository import find_history
from connector.demo.source import choose_input
from connector.demo.story import Choices
from connector.lake.jobs import History
from connector.lake.plain_table import open_table
from connector.services.load_config import load_config
from connector.services.rows.explain import explain
from connector.tables.explain import Outcome as OfEntry
from connector.warehouse import table as table_of
from tests.spark.conftest import QUICK_PROCESS
from tests.unit.demo.test_truth import odd_paths, renames_and_returns, submodules
from tests.unit.git_repository import Repository


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "is_full", [False, pytest.param(True, marks=pytest.mark.long)], ids=["short", "full"]
)
def test_what_comes_out_is_the_truth_and_a_difference_would_be_seen(
    is_full: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seed: int,
) -> None:
    """OPS-2: nothing_lost, nothing_invented, newest_wins, deletes_stay_deleted,
    poison_is_contained, across a SIGKILL; TBL-11, TBL-16, TBL-17: cut_is_consistent at watermarks
    in the middle, through a split and a merge, and a stall that the table tells of; SUB-6: the
    explanation of a row is the row
    """
    monkeypatch.setattr(source, "TRANSFERS", 1000)
    for name, value in QUICK_PROCESS.items():
        monkeypatch.setenv(name, value)
    repository = Repository(tmp_path / "repository")
    renames_and_returns(repository)
    odd_paths(repository)
    submodules(repository)
    output = tmp_path / "output"

    assert story.tell(Choices(repository.folder, output, is_full=is_full)), capsys.readouterr().out

    said = capsys.readouterr()
    assert "EQUAL: " in said.out
    assert "killed the pipeline with SIGKILL" in said.err
    for told in ("files-1", "files-0", "files-2"):
        assert f"stream partition {told} ends" in said.err
    assert len(re.findall("snapshot .* equals", said.err)) >= 2 + is_full
    if is_full:
        for in_this_order in (
            (
                "a dead letter: ",
                "KEY_MISMATCH",
                "row today",
                "without it the table differs",
                "repaired and replayed",
                "with it the table equals",
                "falls silent",
            ),
            ("falls silent", "files as of ingest batch", "sends again"),
            (
                "falls silent",
                "files has not been a consistent cut",
                "sends again",
                "killed the pipeline",
                "a consistent cut again",
            ),
        ):
            assert re.search(".*".join(in_this_order), said.err, re.DOTALL), said.err
    cuts = History(str(output / "warehouse")).cuts("demo")
    assert len({cut.low_watermark for cut in cuts}) >= 2 + is_full
    assert (output / "connector.toml").exists()
    assert (
        subprocess.run(["pgrep", "-f", str(output)], capture_output=True, check=False).stdout == b""
    ), "a process was left behind"

    check_explanations(output, Random(seed))

    # The canary: one more commit, which the tables have not seen.
    repository.write("a", "the truth has moved on\n")
    repository.git("add", "a")
    repository.git("commit", "--quiet", "-m", "the tables have not seen this")
    chosen, outcome = choose_input(repository.folder, now=time.time_ns() // 1000, seed=1), Outcome()
    story._compare(DemoFolder(output), chosen, Published(), outcome)
    assert {difference.split(": ")[0] for difference in outcome.differences} == {"files a"}


def check_explanations(output: Path, rng: Random) -> None:
    """For 200 rows, the entries that won make the row of the table."""
    config = load_config(output / "connector.toml", {})
    count = 0
    for name, definition in config.tables.items():
        found = open_table(table_of(config.warehouse, name))
        columns = list(found.types)
        rows = {
            tuple(row[columns.index(part.name)] for part in definition.key.parts): dict(
                zip(columns, row, strict=True)
            )
            for row in found.rows()
        }
        for key in rng.sample(sorted(rows), min(100, len(rows))):
            explained = explain(config, name, key, ask_kafka=False)
            assert explained.is_confirmed is True
            names = [one.name for one in (*definition.key.parts, *definition.columns)]
            assert explained.row is not None
            assert {of: explained.row[of] for of in names} == {of: rows[key][of] for of in names}
            won = {
                (column.family, column.qualifier)
                for column in explained.explanation.columns
                for entry in column.entries
                if entry.outcome is OfEntry.WON
            }
            shown = {column.cell for column in definition.columns if rows[key][column.name]}
            assert shown <= won
            count += 1
    assert count >= 50


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_real_history_read_at_twenty_low_watermarks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """cut_is_consistent (TBL-10, TBL-17): each snapshot equals the tree of a commit, through splits
    and merges of stream partitions
    """
    history = find_history(Path(__file__).parents[2])
    if history.commits < 100:
        pytest.skip(f"the history of this checkout has {history.commits} commits only")

    assert story.tell(Choices(history.folder, tmp_path / "output", snapshots=20)), (
        capsys.readouterr().out
    )

    seen = set(re.findall(r"snapshot \d+, .* equals ([0-9a-f]{12})", capsys.readouterr().err))
    assert len(seen) >= 20
