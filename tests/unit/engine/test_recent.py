"""The changes of small batches in memory are those of their files (ENG-6, nothing_lost)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.engine.recent import MOST_FILES, RecentFiles
from connector.engine.schema import CHANGELOG, OF_CHANGE

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["change", "staged", "truncate", "control", "rejected"]),
            "table": st.sampled_from(["a", "b", "b ", "ä"]),
            "row_key": st.binary(max_size=2),
            "ingest_batch": st.integers(1, 3),
        }
    ),
    max_size=12,
)


def sorted_rows(rows: list[dict[str, Any]]) -> pa.Table:
    rows = [row | {"table": None} if row["kind"] == "rejected" else row for row in rows]
    return pa.Table.from_pylist(rows, CHANGELOG).sort_by([("table", "ascending")])


@given(st.lists(ROWS, max_size=4), st.integers(0, 2_000))
def test_changes_are_those_of_the_file_or_are_not_in_memory(
    files: list[list[dict[str, Any]]], most: int
) -> None:
    recent = RecentFiles(most)
    for number, rows in enumerate(files):
        recent.keep(f"f{number}", sorted_rows(rows))
    held = 0
    for number, rows in enumerate(files):
        of_file = sorted_rows(rows)
        if recent.changes(f"f{number}", "a") is not None:
            held += of_file.filter(pc.equal(of_file["kind"], "change")).select(OF_CHANGE).nbytes
        for table in ("a", "b", "b ", "ä", "none"):
            changes = recent.changes(f"f{number}", table)
            if changes is None:
                assert recent.changes(f"f{number}", "a") is None
                continue
            is_ours = pc.and_(
                pc.equal(of_file["kind"], "change"), pc.equal(of_file["table"], table)
            )
            assert changes.equals(of_file.filter(is_ours).select(OF_CHANGE))
    assert held <= most
    assert recent.changes("other", "a") is None


@pytest.mark.parametrize("kind", ["change", "control"])
def test_the_newest_files_stay(kind: str) -> None:
    recent, names = RecentFiles(), [str(number) for number in range(MOST_FILES + 2)]
    for name in names:
        recent.keep(name, sorted_rows([{"kind": kind, "table": "a"}]))
    assert [name for name in names if recent.changes(name, "a") is not None] == names[2:]
