"""The screens of commands that report, on the golden warehouse: with 80 and 120 columns, and where
a program reads (OPR-6).

To change a screen, delete its file and run the test: it writes the file, and fails once.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len

from connector import cli
from connector.dead_letters.envelope import dead_letter_topic
from connector.kafka import DeadLetterPublisher
from connector.records.rejection import Position, Reason
from tests.golden.make_warehouse import FOLDER
from tests.unit.dead_letters.test_envelope import letter
from tests.unit.mock_cluster import FACTS, answer_topic_requests, running_cluster

SCREENS = Path(__file__).parent / "screens"
SETTINGS = """
warehouse = "w"
[kafka]
bootstrap_servers = "{kafka}"
[streams.s]
[tables.accounts]
stream = "s"
source = "t"
max_staleness = "1h"
buckets = 2
key.form = "row_key"
key.columns = [{{ name = "id", type = "STRING" }}]
columns = [
  {{ name = "name", family = "f", type = "STRING" }},
  {{ name = "amount", family = "f", type = "INT64" }},
]
"""
COMMANDS = {
    "status": ["status"],
    "read": ["read", "accounts", "--snapshot"],
    "explain": ["explain", "accounts", "a", "--no-kafka"],
    "partitions": ["partitions", "list"],
    "transactions": ["transactions", "list"],
    "reconcile": ["reconcile", "accounts", "--against", "copy.csv"],
    "check": ["status", "--check"],
    "jobs": ["jobs"],
    "jobs-of-a-table": ["jobs", "--table", "accounts"],
    "sums": ["jobs", "--by", "day"],
}
OF_LETTERS = {
    "letters": ["dead-letters", "list"],
    "letters-of-a-rule": ["dead-letters", "list", "--rule", "FAMILY"],
    "letter": ["dead-letters", "show", "A-0-4"],
    "letter-missing": ["dead-letters", "show", "B"],
    "letter-ambiguous": ["dead-letters", "show", "A"],
    "replay": ["dead-letters", "replay", "--all"],
}
FAILS = {"reconcile", "check", "letter-missing", "letter-ambiguous", "replay"}
"""Their exit code is 1."""
TOPICS = (
    replace(FACTS, topic="s"),
    replace(FACTS, topic=dead_letter_topic("s"), kafka_partitions=1, max_message_bytes=3_000_000),
)
NOW_US = 1_714_476_600_000_000


@pytest.fixture(scope="module")
def letters() -> Iterator[str]:
    """The address of Kafka with three dead letters: with control characters in the detail, with
    long key and value, and of a rule.
    """
    topic_id = FACTS.topic_id
    at_3, at_4, at_20 = (Position("s", topic_id, *place) for place in ((0, 3), (0, 4), (1, 20)))
    detail = "amount of table accounts is not an INT64: 'seven hundred and seventy-seven'"
    with running_cluster() as running, pytest.MonkeyPatch.context() as patch:
        answer_topic_requests(*TOPICS, patch=patch.setattr)
        for facts in TOPICS:
            running.create_topic(facts.topic, facts.kafka_partitions)
        with DeadLetterPublisher(running.kafka, "s") as publisher:
            publisher.publish(
                [
                    letter(position=at_3, detail="the value begins with \x1b[31m"),
                    letter(position=at_4, key=b"a key" * 30, value=bytes(range(200))),
                    letter(position=at_20, reason=Reason.INVALID, rule="FAMILY", detail=detail),
                ]
            )
        patch.undo()
        yield running.bootstrap_servers


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
    _check_screen(name, "127.0.0.1:1", width, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("width", [80, 120, None])
@pytest.mark.parametrize("name", OF_LETTERS)
def test_a_screen_of_dead_letters_is_as_it_was_and_fits(
    name: str,
    width: int | None,
    letters: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """OPR-6, DLQ-9."""
    answer_topic_requests(*TOPICS, patch=monkeypatch.setattr)
    _check_screen(name, letters, width, tmp_path, monkeypatch, capsys)


def _check_screen(
    name: str,
    kafka: str,
    width: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FOLDER, tmp_path / "w")
    for file in (tmp_path / "w").rglob("*"):
        os.utime(file, (NOW_US // 10**6, NOW_US // 10**6))
    Path("connector.toml").write_text(SETTINGS.format(kafka=kafka))
    Path("copy.csv").write_text("id,name,amount\na,Ada,0\nz,Zoë,1\n")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    for module_name in ("services.requests", "services.status", "cli.parameters", "cli.table"):
        module = import_module(f"connector.{module_name}")
        monkeypatch.setattr(module, "now_us", lambda: NOW_US)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5 * 2**30))
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: width is not None)
    code = cli.invoke((COMMANDS | OF_LETTERS)[name])
    assert code == (1 if name in FAILS else 0)
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
