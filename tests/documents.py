"""The documents as tests read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs/tutorial/first-table.md"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_CODE_BLOCK = re.compile(
    r"(?:^<!-- example: (?P<note>[^\n]*) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Example:
    """A code block of a page.

    Attributes:
        line: The line of its first line of code.
        before: The paragraph above it.
        note: What the comment `<!-- example: … -->` directly above it says.
    """

    page: Path
    line: int
    language: str
    text: str
    before: str
    note: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def examples(page: Path) -> Iterator[Example]:
    """All code blocks of a page, in order."""
    markdown = page.read_text("utf-8")
    for block in _CODE_BLOCK.finditer(markdown):
        yield Example(
            page=page,
            line=markdown.count("\n", 0, block.start("text")) + 1,
            language=block["language"],
            text=block["text"],
            before=markdown[: block.start()].rstrip("\n").rpartition("\n\n")[2],
            note=block["note"] or "",
        )


def pages() -> list[Path]:
    """The tutorial, then all other pages with examples, in the order of the navigation."""
    named = re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    ordered = [TUTORIAL, ROOT / "README.md", *(ROOT / "docs" / name for name in named)]
    return [page for page in dict.fromkeys(ordered) if page.exists() and any(examples(page))]


def code_blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language, in order."""
    return [example.text for example in examples(page) if example.language == language]


def promises() -> list[tuple[str, str, str]]:
    """Each promise of the README, whether it is kept, and its tests."""
    return re.findall(
        r"^\| `(\w+)` \|[^|]*\|([^|]*)\|([^|]*)\|$",
        (ROOT / "README.md").read_text("utf-8"),
        re.MULTILINE,
    )
