"""The page of figures: what misses its bar is marked where users see it."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import cluster
from benchmarks.__main__ import MISSED, NAMES, page
from benchmarks.forms import FORMS, TOGETHER, Write
from benchmarks.report import Figure, figures
from connector.engine.decode import decode
from connector.engine.rules import RecordRules
from connector.records.codec import Schemas, framed
from connector.records.model import DataChange, Heartbeat, kafka_key
from connector.sources.changes import POSITION_HEADER, RECORD_HEADER
from connector.sources.position import SourcePosition
from connector.validation import Limits
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


TIME = 1_714_475_984_000_000
TABLES = 3


@pytest.mark.parametrize("form", FORMS)
def test_columns_decide_the_records_of_a_load(form: str) -> None:
    """ENG-2: values and deletions, and heartbeats with their resume tokens."""
    load, records = FORMS[form](TABLES), list[DataChange | Heartbeat]()
    for number in range(20):
        at = TIME + 10 * number
        writes = [Write(at + row, at + row, row % 4 == 0) for row in range(load.together)]
        records += [change for change, _ in load.changes(at, writes)]
        records += [Heartbeat(name, at, load.token()) for name in load.partitions]
    keys, values = (
        pa.array(column, pa.binary())
        for column in zip(*((kafka_key(one), framed(one, 4)) for one in records), strict=True)
    )
    arrivals = np.full(len(records), TIME + 10_000)
    decoded = decode(keys, values, arrivals, RecordRules(Limits(), 4), Schemas())
    assert decoded.is_decided.all()


def test_a_load_in_the_form_of_a_bridge_sends_transactions_over_several_tables() -> None:
    """ING-2, SRC-7: each declares the number of its changes, which have the places 1 to n."""
    load = FORMS["bridge"](TABLES)
    both = [
        list(load.changes(TIME + n, [Write(n + row, TIME + row, False) for row in range(TOGETHER)]))
        for n in (0, TOGETHER)
    ]
    ids = set()
    for made in both:
        changes = [change for change, _ in made]
        transactions = [change.transaction for change in changes]
        assert [one and one.record_sequence for one in transactions] == [1, 2, 3, 4, 5]
        assert {one and one.number_of_records_in_transaction for one in transactions} == {TOGETHER}
        assert len({change.commit_timestamp for change in changes}) == 1
        assert len({change.table for change in changes}) == TABLES
        ids.add(transactions[0] and transactions[0].server_transaction_id)
    assert len(ids) == len(both)
    headers = [headers for made in both for _, headers in made]
    assert {tuple(name for name, _ in of_one) for of_one in headers} == {
        (RECORD_HEADER, POSITION_HEADER)
    }
    assert len({dict(of_one)[RECORD_HEADER] for of_one in headers}) == len(headers)
    assert SourcePosition.parse(load.token()).time == TIME + TOGETHER
