"""Makes the picture of the demo from what it prints.

    python -m examples.demo > build/demo.txt
    python -m tests.report_picture build/demo.txt

This writes docs/pictures/demo.svg. Without a file, the text comes from standard input. The picture
loads no fonts from another host.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs/pictures/demo.svg"
TITLE = "make demo"
_RULE = re.compile(r"^─+ (.*) ─+$")
_NEXT = " next steps "
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
STYLES = (
    (_RULE, "bold cyan"),
    (re.compile(r"^EQUAL: "), "bold green"),
    (re.compile(r"^DIFFERENT: "), "bold red"),
)
"""The styles of lines: the text of a report has no colours."""


def picture(report: str, title: str = TITLE) -> str:
    """The SVG of a report, as wide as its longest line. The same text gives the same picture.

    The last section, with commands to try next, is left out: it has the paths of one machine.
    """
    lines = report.split(_NEXT)[0].rstrip("─ \n").splitlines()
    width = max(cell_len(line) for line in lines if not _RULE.search(line))
    console = Console(record=True, width=width, file=io.StringIO())
    for line in lines:
        heading = _RULE.search(line)
        shown = f" {heading[1]} ".center(width, "─") if heading else line
        console.print(Text(shown, style=_style(shown)), no_wrap=True, crop=False)
    drawn = _FONT_FACE.sub("", console.export_svg(title=title, unique_id="report"))
    drawn = drawn.replace("font-family: Fira Code, monospace", "font-family: monospace")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def _style(line: str) -> str:
    return next((style for pattern, style in STYLES if pattern.search(line)), "")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.report_picture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "report", nargs="?", type=Path, help="the text; standard input if not given"
    )
    parser.add_argument("--output", type=Path, default=PICTURE, help="the picture")
    given = parser.parse_args()
    text = sys.stdin.read() if given.report is None else given.report.read_text("utf-8")
    if not text.strip():
        parser.error("the report is empty")
    given.output.write_text(picture(text), "utf-8")


if __name__ == "__main__":
    main()
