"""The processes of fault tests are killed whole, and none is left behind. In place of the pipeline,
a shell that starts a child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults import process
from tests.faults.process import Folder, ProcessFailedError, running

pytestmark = pytest.mark.systems

TWO_PROCESSES = (
    "import os, subprocess, sys; print('working', flush=True); subprocess.run(['sleep', '600'])"
)
FAILS = "import sys; sys.exit('no broker')"


def lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_kill_ends_every_process_of_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """resumable: no process of a killed run may still write when the next run starts"""
    monkeypatch.setattr(process, "_ENTRY", TWO_PROCESSES)
    with running(Folder(tmp_path), 1) as run:
        run.wait(lambda: run.tail() == "working")
        run.kill()
        assert not lives(run.process.pid)


def test_end_of_the_block_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_ENTRY", TWO_PROCESSES)
    with pytest.raises(ZeroDivisionError), running(Folder(tmp_path), 1) as run:
        _ = 1 / 0
    assert not lives(run.process.pid)


def test_process_that_fails_is_an_error_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_ENTRY", FAILS)
    with running(Folder(tmp_path), 1) as run, pytest.raises(ProcessFailedError, match="no broker"):
        run.finish()
    with running(Folder(tmp_path), 2) as run, pytest.raises(ProcessFailedError, match="code 1"):
        run.wait(lambda: False)


def test_process_ends_when_the_test_is_killed(tmp_path: Path) -> None:
    script = f"""
import os, pathlib, signal
from tests.faults import process
process._ENTRY = {TWO_PROCESSES!r}
with process.running(process.Folder(pathlib.Path({str(tmp_path)!r})), 1) as run:
    run.wait(lambda: run.tail() == "working")
    print(run.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    test = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, check=False, cwd=root
    )
    assert test.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while lives(int(test.stdout)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not lives(int(test.stdout))
