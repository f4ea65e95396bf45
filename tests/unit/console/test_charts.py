"""Charts of the job history (WEB-2)."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from connector.console.charts import BARS, HOURS, Chart, charts_of_stream, charts_of_table
from connector.state.jobs import Job, JobKind

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
ages = st.integers(0, 2 * HOURS * 3600 * SECOND)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    ended = NOW - draw(ages)
    return Job(
        draw(st.sampled_from(JobKind)),
        "t",
        ended - draw(st.integers(0, 10**9)),
        ended,
        changes=draw(st.integers(0, 10**12)),
        watermark_before=draw(st.none() | st.integers(1, ended)),
        error=draw(st.sampled_from(["", "<script>"])),
    )


@given(st.lists(jobs()), st.none() | st.integers(1, 10**6))
def test_a_chart_is_an_image_with_a_text(history: list[Job], bound: int | None) -> None:
    """WEB-2: each is valid XML inside its area, and says in words what it shows."""
    for chart in (*charts_of_table(history, NOW, bound), *charts_of_stream(history, NOW)):
        image = ET.fromstring(chart.svg())
        assert image.attrib["aria-label"] == chart.summary
        assert len(chart.values) == BARS
        for bar in image.iter("rect"):
            assert 0 <= float(bar.attrib["y"]) <= 82
            assert 0 <= float(bar.attrib["x"]) + float(bar.attrib["width"]) <= 360.1


@given(st.lists(jobs()))
def test_each_change_of_the_last_hours_is_in_one_bar(history: list[Job]) -> None:
    """WEB-2: failed jobs changed nothing, and maintenance is no apply."""
    changes = charts_of_table(history, NOW, None)[2]
    first = NOW - HOURS * 3600 * SECOND
    applies = [job for job in history if job.kind in (JobKind.APPLY, JobKind.REBUILD)]
    expected = sum(job.changes for job in applies if not job.error and first <= job.ended_at < NOW)
    assert sum(value or 0 for value in changes.values) == expected


def test_a_stream_shows_its_records_its_rejected_ones_and_the_slowest_batch() -> None:
    """WEB-2: of five minutes, the sums, and the longest duration."""
    batch = Job(JobKind.BATCH, "", NOW - 4 * SECOND, NOW - SECOND, rows_read=1000, letters=2)
    before = replace(batch, started_at=NOW - 2 * SECOND, rows_read=5)
    assert [chart.summary for chart in charts_of_stream([batch, before], NOW)] == [
        "Records per five minutes: newest 1,005, highest 1,005",
        "Rejected records per five minutes: newest 4, highest 4",
        "Duration of batches: newest 3.0 s, highest 3.0 s",
    ]


def test_an_age_over_the_bound_is_marked() -> None:
    """WEB-1: age against bound."""
    chart = Chart("age", [None, 5.0, 15.0], str, 10.0)
    image = ET.fromstring(chart.svg())
    assert [bar.attrib["class"] for bar in image.iter("rect")] == ["area", "bar", "over"]
    assert [line.attrib["class"] for line in image.iter("line")] == ["bound"]
    assert chart.summary == "age: newest 15.0, highest 15.0, bound 10.0"


def test_a_chart_without_a_job_has_a_text() -> None:
    """WEB-2: right after the start."""
    assert "no value" in charts_of_table([], NOW, 60)[0].summary
