"""The hooks of `make docs`: links, and what a page loads from elsewhere."""

from __future__ import annotations

import re

from connector.dead_letters.repair import STEPS
from connector.records.model import Rule
from connector.records.rejection import Reason
from tests.docs_site import PARTS, PROJECT_PAGES, generated, loaded_elsewhere, rewritten, site_path
from tests.documents import ROOT

README, TUTORIAL = ROOT / "README.md", ROOT / "docs/tutorial/first-table.md"
CONFIGURATION = (ROOT / "mkdocs.yml").read_text("utf-8")


def test_links_of_a_page_lead_to_the_same_page_on_the_site() -> None:
    for page, before, after in (
        (README, "docs/tutorial/first-table.md", "tutorial/first-table.md"),
        (README, "CHANGELOG.md#unreleased", "changelog.md#unreleased"),
        (README, "#promises", "#promises"),
        (TUTORIAL, "../../README.md#support", "../index.md#support"),
        (TUTORIAL, "../howto/read-a-table.md", "../howto/read-a-table.md"),
        (TUTORIAL, "../../schemas/a.avsc", "../schemas/a.avsc"),
        (TUTORIAL, "https://made.up/README.md", "https://made.up/README.md"),
    ):
        assert rewritten(f"see [a\npage]({before}).", page) == f"see [a\npage]({after})."


def test_generated_parts_are_on_the_pages() -> None:
    """DLQ-2: reasons, rules and steps of a repair are documented in the words of the code."""
    pages = [path.read_text("utf-8") for path in (ROOT / "docs/reference").glob("*.md")]
    assert sorted(re.findall(r"<!-- generated: (\w+) -->", "".join(pages))) == sorted(PARTS)
    page = generated((ROOT / "docs/reference/dead-letters.md").read_text("utf-8"))
    assert [name for name in (*Reason, *Rule, *STEPS) if f"\n| `{name}` | " not in page] == []
    assert Reason.UNDECODABLE.remedy in page


def test_everything_that_a_page_loads_from_another_host_is_found() -> None:
    assert loaded_elsewhere('<script src="https://a.b/c.js"></script><img src=//d.e/f.png>') == [
        "https://a.b/c.js",
        "//d.e/f.png",
    ]
    assert loaded_elsewhere('<link rel="stylesheet" href="https://a.b/c.css">') == [
        "https://a.b/c.css"
    ]
    assert loaded_elsewhere('<script src="../a.js"></script><a href="https://a.b">a</a>') == []
    assert loaded_elsewhere('<link rel="canonical" href="https://a.b/"><img src="a.svg">') == []


def test_every_page_but_the_records_of_decisions_is_in_the_navigation() -> None:
    """`make docs` is strict about it, too."""
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    named = set(re.findall(r"^ +- (?:[\w ]+: )?([\w/-]+\.md)$", CONFIGURATION, re.MULTILINE))
    wanted = {page for page in pages if not re.match(r"decisions/\d", page)}
    assert named == wanted | set(PROJECT_PAGES.values())
    assert site_path(README) == "index.md"
