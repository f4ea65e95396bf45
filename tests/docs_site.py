"""The hooks of `mkdocs build` (`make docs`): pages of the repository become pages of the site.

MkDocs reads the pages in `docs/`. These hooks add the pages at the root of the repository, with
README.md as the first page, and the other files that pages link to, for example the schema. They
rewrite the links, so that the same Markdown works as a file and on the site, and replace each
comment `<!-- generated: NAME -->` with what the code says. A page that loads something from another
host is a warning, which stops a strict build: readers may be offline.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from connector.dead_letters.repair import STEPS
from connector.records.model import Rule
from connector.records.rejection import Reason
from connector.reports.metrics import SERIES
from connector.reports.series import PRODUCER_SERIES
from tests.error_codes import errors_list

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PROJECT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""For each page at the root of the repository: its path on the site."""

_LOG = logging.getLogger("mkdocs.hooks.docs_site")
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)((?:#[^)\s]*)?)\)")
_GENERATED = re.compile(r"<!-- generated: (\w+) -->")
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=\"?((?:https?:)?//[^\s\">]+)"
    r"|<link\b(?=[^>]*\brel=\"?(?:stylesheet|preload|preconnect|icon))"
    r"[^>]*?\bhref=\"?((?:https?:)?//[^\s\">]+)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the root, and the files outside `docs/` that pages link to."""
    from mkdocs.structure.files import File

    for name, path in PROJECT_PAGES.items():
        files.append(File.generated(config, path, content=(ROOT / name).read_text("utf-8")))
    pages = [*DOCS.rglob("*.md"), *(ROOT / name for name in PROJECT_PAGES)]
    for target in sorted({target for page in pages for target in _targets(page)}):
        path = site_path(target)
        if target.is_file() and target.suffix != ".md" and files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links to files that are elsewhere on the site than in the repository."""
    path = page.file.src_uri
    names = {path: name for name, path in PROJECT_PAGES.items()}
    return rewritten(generated(markdown), ROOT / names[path] if path in names else DOCS / path)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Warn of everything that the page loads from another host."""
    for host in loaded_elsewhere(output):
        _LOG.warning("%s loads %s", page.file.src_uri, host)
    return output


def generated(markdown: str) -> str:
    """The Markdown with the generated part in place of each comment `<!-- generated: NAME -->`."""
    return _GENERATED.sub(lambda comment: PARTS[comment[1]](), markdown)


def _table(heading: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {heading} |", "|---" * (heading.count("|") + 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _reasons() -> str:
    rows = ((f"`{reason}`", reason.cause, reason.remedy) for reason in Reason)
    return _table("reason | cause | remedy", rows)


def _rules() -> str:
    rows = ((f"`{rule}`", f"`{rule.field}`" if rule.field else "", rule.limit) for rule in Rule)
    return _table("rule | field | must be", rows)


def _steps() -> str:
    rows = (
        (f"`{verb}`", f"`{form}`" if form else "", effect) for verb, (form, effect) in STEPS.items()
    )
    return _table("step | argument | what it does", rows)


def _metrics() -> str:
    rows = (
        (
            f"`{series.name}{'_total' if series.kind == 'counter' else ''}`",
            series.kind,
            ", ".join(f"`{label}`" for label in series.labels),
            series.help,
        )
        for series in (*SERIES, *PRODUCER_SERIES)
    )
    return _table("series | kind | labels | meaning", rows)


PARTS: Mapping[str, Callable[[], str]] = {
    "errors": errors_list,
    "metrics": _metrics,
    "reasons": _reasons,
    "rules": _rules,
    "steps": _steps,
}
"""What makes each generated part of a page, by its name."""


def site_path(target: Path) -> str:
    """The path on the site of a file of the repository."""
    name = target.relative_to(ROOT).as_posix()
    return PROJECT_PAGES.get(name) or name.removeprefix("docs/")


def rewritten(markdown: str, page: Path) -> str:
    """The Markdown of `page` with the links of the site."""
    folder = os.path.dirname(site_path(page))

    def site_link(link: re.Match[str]) -> str:
        target = (page.parent / link[1]).resolve()
        if not target.is_relative_to(ROOT):
            return link[0]
        return f"]({os.path.relpath(site_path(target), folder or '.')}{link[2]})"

    return _LINK.sub(site_link, markdown)


def loaded_elsewhere(html: str) -> list[str]:
    """The addresses on other hosts from which a page loads scripts, styles or pictures."""
    return [script or style for script, style in _LOADED.findall(html)]


def _targets(page: Path) -> list[Path]:
    text = page.read_text("utf-8")
    return [(page.parent / link[1]).resolve() for link in _LINK.finditer(text)]
