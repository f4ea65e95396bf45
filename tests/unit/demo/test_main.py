"""The folder and the configuration of the demo, and its report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connector.jars import JarStore
from connector.services import load_config
from examples.demo.__main__ import CONFIG, Demo, new_folder
from examples.demo.history import FAMILY, STREAM_PARTITIONS, TABLE
from examples.demo.pipeline import DemoError, own_environment


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    (tmp_path / "connector.toml").write_text(CONFIG.format(warehouse='"w"', servers="h:1"))
    config = load_config(tmp_path / "connector.toml", {})
    return Demo(tmp_path, [], tmp_path, config)


def test_configuration_is_accepted_and_has_the_source(demo: Demo) -> None:
    """OPS-1"""
    assert set(demo.config.streams["demo"].partitions) == set(STREAM_PARTITIONS)
    columns = demo.config.tables[TABLE].columns
    assert [(column.name, column.family) for column in columns] == [
        ("mode", FAMILY),
        ("blob", FAMILY),
        ("size", FAMILY),
    ]


def test_a_folder_with_files_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(DemoError, match="not empty"):
        new_folder(tmp_path, JarStore.from_environment(os.environ))
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_only_settings_of_an_object_store_are_taken_from_the_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OPS-1, STO-2: variables outrank the file, which is the demo's own"""
    monkeypatch.setenv("CONNECTOR__WAREHOUSE", "/elsewhere")
    monkeypatch.setenv("CONNECTOR__STORAGE__ENDPOINT", "e")
    found = {name for name in own_environment() if name.startswith("CONNECTOR__")}
    assert found == {"CONNECTOR__STORAGE__ENDPOINT"}


def test_report_ends_with_the_verdict(demo: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    demo.check("2 rows are the tree", [])
    demo.check("1 dead letter is the bad record", [])
    demo.report()
    assert "EQUAL: 2 rows are the tree;\n" in capsys.readouterr().out
    demo.check("3 records are in the changelog", ["one is missing"])
    demo.report()
    shown = capsys.readouterr().out
    assert "EQUAL" not in shown
    assert "DIFFERENT: one is missing" in shown
