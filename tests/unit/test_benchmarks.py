"""The page of figures: what misses its bar is marked where users see it."""

from __future__ import annotations

import re

from benchmarks import cluster
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


def test_a_missed_bar_stays_marked_until_it_is_measured_again() -> None:
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


def test_the_benchmark_of_a_cluster_compares_executors_and_local_cores() -> None:
    """SCL-10: the best round of ingest and of apply counts, and the page has each figure."""
    cases = {
        "1_executor": cluster.Rates([90, 100], [10]),
        "2_executors": cluster.Rates([150, 120], [30]),
        "local": cluster.Rates([300, 200], [40]),
    }
    assert cases.keys() == cluster.CASES.keys()
    found = {figure.name: figure.value for figure in cluster.figures_of(cases)}
    assert found == {
        "ingest_1_executor_changes_per_s": 100,
        "ingest_2_executors_changes_per_s": 150,
        "ingest_local_changes_per_s": 300,
        "ingest_gain_of_second_executor": 1.5,
        "ingest_cluster_to_local": 0.5,
        "apply_1_executor_changes_per_s": 10,
        "apply_2_executors_changes_per_s": 30,
        "apply_local_changes_per_s": 40,
        "apply_gain_of_second_executor": 3,
        "apply_cluster_to_local": 0.75,
    }
    kept = (ROOT / "docs/reference/performance.md").read_text("utf-8")
    assert [name for name in found if f"| `{name}` |" not in kept] == []
