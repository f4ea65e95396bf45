"""The stream partitions of the demo's files: who follows whom, and that a reader's low watermark
comes through.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from connector.demo.delivery import Disorder, Mark, steps
from connector.demo.lineage import FILES_LAYOUTS, ends, holder, layout_at
from connector.demo.transaction import RowWrite, commit
from connector.records.model import ChildPartitions, DataChange, Heartbeat, SetCell
from connector.watermarks.frontier import UNKNOWN, BatchClaims, Frontier, LineageRecord, advance

PATHS = (
    b"\x00",
    b"Makefile",
    b"a",
    b"connector/records/model.py",
    b"docs/x",
    b"m",
    b"pyproject.toml",
    b"t",
    b"tests/y",
    b"\xff\xff",
)


def history(rng: Random, commits: int) -> list[tuple[DataChange, ...]]:
    """A few paths a commit, each with the stream partition that the layout of the time gives it."""
    made = []
    for index in range(commits):
        layout = layout_at(index, commits)
        paths = rng.sample(PATHS, rng.randint(1, 4))
        writes = [
            RowWrite(holder(layout, path), path, (SetCell("f", b"blob", b"%d" % index),))
            for path in paths
        ]
        made.append(commit("files", str(index), 100 + 10 * index, writes))
    return made


def test_every_layout_covers_all_keys_once() -> None:
    """WMK-9"""
    for layout in FILES_LAYOUTS:
        edges = [(one.start_key, one.end_key) for one in layout]
        assert edges[0][0] == b""
        assert edges[-1][1] is None
        assert all(before[1] == after[0] for before, after in pairwise(edges))


def test_there_is_a_split_and_a_merge_and_a_name_has_one_life() -> None:
    """WMK-7, WMK-9"""
    born = [{one.token for one in layout} for layout in FILES_LAYOUTS]
    reports = [
        report for before, after in pairwise(FILES_LAYOUTS) for report in ends(before, after, 1)
    ]
    assert any(len(report.children) > 1 for report in reports), "a split"
    assert any(
        len(child.parent_partition_tokens) > 1 for report in reports for child in report.children
    ), "a merge"
    for before, after in pairwise(born):
        gone, new = before - after, after - before
        assert {report.stream_partition for report in reports} >= gone
        assert not any(new & earlier for earlier in born[: born.index(after)])


@given(
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.integers(1, 9),
    st.lists(st.integers(0, 60), max_size=3),
)
def test_disorder_stays_within_the_lives_of_stream_partitions_and_parts(
    seed: int, commits: int, window: int, parts: list[int]
) -> None:
    """REC-18, WMK-7: nothing of who has not begun or has ended, nothing at or below a mark; where a
    mark says so, all is out
    """
    made = history(Random(seed), commits)
    live = {one.token for one in FILES_LAYOUTS[0]}
    handed_out: set[tuple[bytes, int]] = set()
    mark, all_at = 0, [0]
    for step in steps(
        made, FILES_LAYOUTS, Disorder(transactions=window), seed, tuple(sorted(parts))
    ):
        match step:
            case DataChange():
                assert step.stream_partition in live
                assert step.commit_timestamp > mark
                handed_out.add((step.row_key, step.commit_timestamp))
            case ChildPartitions():
                assert mark < step.start_timestamp
                live = live - {step.stream_partition} | {child.token for child in step.children}
            case Mark():
                mark = step.timestamp
                due = {
                    (change.row_key, change.commit_timestamp)
                    for one in made
                    for change in one
                    if change.commit_timestamp <= mark
                }
                assert due <= handed_out
                if step.is_all:
                    assert due == handed_out
                    all_at.append(sum(one[0].commit_timestamp <= mark for one in made))
    assert {min(part, commits) for part in parts} <= set(all_at)
    assert all_at[-1] == commits


@given(st.integers(0, 2**32), st.integers(4, 60))
def test_low_watermark_reaches_every_mark(seed: int, commits: int) -> None:
    """WMK-3, WMK-7: through split and merge, with the heartbeats that the demo sends; and never a
    change behind it
    """
    frontier = advance(
        UNKNOWN,
        heard(ChildPartitions("files", 1, 0, FILES_LAYOUTS[0])),
        now=1,
        roots=frozenset(["files"]),
    )
    live = {one.token for one in FILES_LAYOUTS[0]}
    for step in steps(
        history(Random(seed), commits), FILES_LAYOUTS, Disorder(transactions=3), seed
    ):
        match step:
            case DataChange():
                assert step.commit_timestamp >= (frontier.low_watermark or 0)
            case ChildPartitions():
                live = live - {step.stream_partition} | {child.token for child in step.children}
                frontier = told(frontier, step)
            case Mark():
                for name in live:
                    frontier = told(frontier, Heartbeat(name, step.timestamp))
                assert frontier.low_watermark == step.timestamp + 1
    assert frontier.live.keys() == live


def told(frontier: Frontier, record: Heartbeat | ChildPartitions) -> Frontier:
    return advance(frontier, heard(record), now=1, roots=frozenset(["files"]))


def heard(record: Heartbeat | ChildPartitions) -> BatchClaims:
    """A batch of one record, of a topic with one Kafka partition."""
    if isinstance(record, ChildPartitions):
        return BatchClaims(1, lineage=(LineageRecord(0, 1, record),))
    return BatchClaims(1, {record.stream_partition: {0: record.timestamp + 1}})
