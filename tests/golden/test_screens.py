"""The screens of commands that report, on the golden warehouse: with 80 and 120 columns, and where
a program reads (OPR-6).

To change a screen, delete its file and run the test: it writes the file, and fails once.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len

from connector import cli
from tests.golden.make_warehouse import FOLDER

SCREENS = Path(__file__).parent / "screens"
SETTINGS = """
warehouse = "w"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[streams.s]
[tables.accounts]
stream = "s"
source = "t"
max_staleness = "1h"
buckets = 2
key.columns = [{ name = "id", type = "STRING" }]
columns = [
  { name = "name", family = "f", type = "STRING" },
  { name = "amount", family = "f", type = "INT64" },
]
"""
COMMANDS = {
    "status": ["status"],
    "read": ["read", "accounts", "--snapshot"],
    "explain": ["explain", "accounts", "a", "--no-kafka"],
    "history": ["table", "history", "accounts"],
    "partitions": ["partitions", "list"],
    "transactions": ["transactions", "list"],
    "reconcile": ["reconcile", "accounts", "--against", "copy.csv"],
}
NOW_US = 1_714_476_600_000_000


@pytest.mark.parametrize("width", [80, 120, None])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_screen_is_as_it_was_and_fits(
    name: str,
    width: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """OPR-6: no line is wider than the terminal, but commands to copy. With NO_COLOR,
    nothing has a colour.
    """
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FOLDER, tmp_path / "w")
    for file in (tmp_path / "w").rglob("*"):
        os.utime(file, (NOW_US // 10**6, NOW_US // 10**6))
    Path("connector.toml").write_text(SETTINGS)
    Path("copy.csv").write_text("id,name,amount\na,Ada,0\nz,Zoë,1\n")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    for service in ("requests", "status"):
        module = import_module(f"connector.services.{service}")
        monkeypatch.setattr(module, "now_us", lambda: NOW_US)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * 2**30))
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: width is not None)
    code = cli.invoke(COMMANDS[name])
    assert code == (1 if name == "reconcile" else 0)
    printed = capsys.readouterr()
    screen = f"{printed.out}--- standard error, exit code {code}\n{printed.err}"
    screen = re.sub(r"\r\x1b\[K([\d,]+ rows)?", "", screen)  # progress
    assert "\x1b" not in screen
    too_wide = [line for line in screen.splitlines() if width and cell_len(line) > width]
    assert all(line.startswith("run: ") for line in too_wide)
    file = SCREENS / f"{name}.{width or 'piped'}.txt"
    if not file.exists():
        file.write_text(screen, encoding="utf-8")
        pytest.fail(f"{file.name} is new: read it, and commit it")
    assert screen == file.read_text(encoding="utf-8")
