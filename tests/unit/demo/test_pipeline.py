"""The pipeline's process: killed whole, its end noticed, and never left behind. In place of the
pipeline, a shell that starts a child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from connector.demo import pipeline
from connector.demo.folder import DemoFolder
from connector.errors import ConnectorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TWO_PROCESSES = (
    "import os, subprocess, sys; print('working', flush=True); subprocess.run(['sleep', '600'])"
)
FAILS = "import sys; sys.exit('no broker')"
ENDS_WELL = "print('applied')"


def lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def eventually(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def test_kill_takes_every_process_of_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """resumable: nothing of a killed run may still be writing when the next one starts"""
    monkeypatch.setattr(pipeline, "_ENTRY", TWO_PROCESSES)
    with pipeline.running(DemoFolder(tmp_path), 1) as run:
        run.wait(lambda: run.last_line() == "working", lambda _: None)
        run.kill()
        assert not lives(run.process.pid)


def test_end_of_the_block_ends_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_ENTRY", TWO_PROCESSES)
    with pytest.raises(ZeroDivisionError), pipeline.running(DemoFolder(tmp_path), 1) as run:
        _ = 1 / 0
    assert not lives(run.process.pid)


def test_pipeline_that_fails_is_an_error_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_ENTRY", FAILS)
    with (
        pipeline.running(DemoFolder(tmp_path), 1) as run,
        pytest.raises(ConnectorError, match="no broker"),
    ):
        run.finish(lambda _: None)
    with (
        pipeline.running(DemoFolder(tmp_path), 2) as run,
        pytest.raises(ConnectorError, match="ended with code 1"),
    ):
        run.wait(lambda: False, lambda _: None)


def test_pipeline_that_ends_well_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_ENTRY", ENDS_WELL)
    with pipeline.running(DemoFolder(tmp_path), 1) as run:
        run.finish(lambda _: None)
        assert run.last_line() == "applied"


def test_fresh_read_gives_the_rows_and_what_they_are_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = (
        "print('Picked up', file=sys.stderr); print('files as of ingest batch 3', file=sys.stderr);"
        " print('bye', file=sys.stderr)"
    )
    monkeypatch.setattr(pipeline, "_ENTRY", f"import sys; print('1'); print('2'); {talk}")
    assert pipeline.fresh_read(DemoFolder(tmp_path), "files", lambda _: None) == (
        ["1", "2"],
        "files as of ingest batch 3",
    )
    monkeypatch.setattr(pipeline, "_ENTRY", FAILS)
    with pytest.raises(ConnectorError, match="connector read ended with code 1"):
        pipeline.fresh_read(DemoFolder(tmp_path), "files", lambda _: None)


def test_settings_of_the_users_shell_do_not_reach_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-1: variables outrank the file, which is the demo's own"""
    monkeypatch.setenv("CONNECTOR__WAREHOUSE", "/elsewhere")
    monkeypatch.setattr(
        pipeline,
        "_ENTRY",
        "import os; print([n for n in os.environ if n.startswith('CONNECTOR__')])",
    )
    with pipeline.running(DemoFolder(tmp_path), 1, settings={"CONNECTOR__OURS": "1"}) as run:
        run.finish(lambda _: None)
        assert run.last_line() == "['CONNECTOR__OURS']"


def test_pipeline_ends_when_the_demo_is_killed(tmp_path: Path) -> None:
    script = f"""
import os, pathlib, signal
from connector.demo import pipeline
from connector.demo.folder import DemoFolder
pipeline._ENTRY = {TWO_PROCESSES!r}
with pipeline.running(DemoFolder(pathlib.Path({str(tmp_path)!r})), 1) as run:
    run.wait(lambda: run.last_line() == "working", lambda _: None)
    print(run.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    demo = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False)
    assert demo.returncode == -signal.SIGKILL
    assert eventually(lambda: not lives(int(demo.stdout)))


def test_changelog_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert pipeline.records_ingested(DemoFolder(tmp_path), "demo") == 0
