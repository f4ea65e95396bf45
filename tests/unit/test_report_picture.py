"""The picture of the demo's report."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from tests.report_picture import picture

REPORT = """\
──────────────────────────────────────────────────────── what came out ─────────────────────────────
files        1,759   <387> & more
EQUAL: 387 rows of files are what the truth says
──────────────────────────────────────────────────────── next steps ──────────────────────────
/home/someone/connector read files
"""


def test_the_picture_has_every_line_of_the_report_but_the_commands_at_its_end() -> None:
    shown = "".join(ET.fromstring(picture(REPORT)).itertext()).replace("\xa0", " ")
    for line in REPORT.splitlines()[1:3]:
        assert line in shown
    assert "──── what came out ────" in shown
    assert "next steps" not in shown
    assert "/home/someone" not in shown


def test_the_picture_loads_nothing_and_is_always_the_same() -> None:
    made = picture(REPORT)
    assert re.findall(r"url\((?!#)|https?://(?!www\.w3\.org|www\.textualize\.io)", made) == []
    assert "@font-face" not in made
    assert picture(REPORT) == made


def test_lines_are_coloured_by_their_kind() -> None:
    assert picture("EQUAL: 1\n") != picture("EQUAL: 1\n").replace("EQUAL", "DIFFERENT")
    assert picture("DIFFERENT: 1\n").count("fill: #98a84b") == 0
    assert picture("EQUAL: 1\n").count("fill: #98a84b") == 1
