"""The page of figures: what misses its bar is marked where users see it."""

from __future__ import annotations

import re

from benchmarks.__main__ import MISSED, NAMES, page
from benchmarks.report import Figure, figures
from tests.documents import ROOT

OUTPUT = """command: python -m benchmarks.sparse
machine: 2 cores
a round: 3 s
slow_ratio 1.28 2
quick_ratio 2.19 2
slow_s 91.8 <90
quick_s 89 <90
unjudged 4 -
"""


def test_the_page_marks_each_missed_bar_and_names_it_at_its_top() -> None:
    made = page("", {"sparse": OUTPUT})
    top, _, section = made.partition("\n## sparse\n")
    for row in ("| `slow_ratio` | 1.28 | 2 **missed** |", "| `slow_s` | 91.8 | <90 **missed** |"):
        assert row in section
    assert section.count(MISSED) == 2
    assert "* `slow_ratio` is 1.28, the bar is `2`\n* `slow_s` is 91.8, the bar is `<90`\n" in top
    assert "No bar is missed" not in top


def test_what_an_earlier_run_missed_stays_marked_until_it_is_measured_again() -> None:
    both = page(page("", {"sparse": OUTPUT}), {"read": "ratio 1.5 <2\n"})
    assert both.count("`slow_ratio`") == 2
    again = page(both, {"sparse": "slow_ratio 2.5 2\n"})
    assert "No bar is missed." in again
    assert MISSED not in again
    assert "| `ratio` | 1.5 | <2 |" in again


def test_the_page_that_is_kept_hides_no_missed_bar() -> None:
    kept = (ROOT / "docs/reference/performance.md").read_text()
    assert page(kept, {}) == kept, "as the benchmarks would write it"
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+)( \*\*missed\*\*)? \|$", kept, re.MULTILINE)
    assert len(rows) >= len(NAMES)
    for name, value, bar, mark in rows:
        assert Figure(name, float(value), bar).holds is not bool(mark), name


def test_figures_are_the_last_lines() -> None:
    assert [figure.name for figure in figures(OUTPUT)] == [
        "slow_ratio",
        "quick_ratio",
        "slow_s",
        "quick_s",
        "unjudged",
    ]
