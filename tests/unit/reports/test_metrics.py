"""The samples of a pipeline, and that a scrape is quick (MET-1)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.config.settings import StreamConfig
from connector.reports.headroom import Headroom
from connector.reports.metrics import (
    MAX_STREAM_PARTITIONS,
    SERIES,
    ProcessFigures,
    StreamFigures,
    TableFigures,
)
from connector.reports.series import (
    BUCKETS_S,
    NO_ACKNOWLEDGEMENTS,
    PRODUCER_SERIES,
    Histogram,
)
from connector.reports.stream_status import OpenLetters
from connector.state.jobs import Job, JobKind
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from connector.state.unapplied import BatchContents, TableChanges
from connector.watermarks.freshness import Contained, EndOffsets, FreshnessLog
from connector.watermarks.frontier import Frontier, LastAdvance
from connector.watermarks.stream_partition import StreamPartition

S = 1_000_000
NOW = 1_000 * S
STREAM = StreamConfig(name="s", topic="t", stall_after_s=60)


def by_name(samples: object) -> dict[tuple[str, ...], object]:
    """The values by series, without its prefix, and labels."""
    values = {}
    for sample in samples:  # type: ignore[attr-defined]
        key = (sample.series.name.removeprefix("lowmark_"), *sample.labels)
        assert key not in values, f"{key} has two samples"
        values[key] = sample.value
    return values


def frontier(*advanced_at: int, low: int | None = None) -> Frontier:
    names = [f"p{number:05}" for number in range(len(advanced_at))]
    partition = StreamPartition(claims={0: 900 * S}, roots=frozenset({"root"}))
    return Frontier(
        kafka_partitions=1,
        partitions=dict.fromkeys(names, partition),
        last_advance={
            name: LastAdvance(900 * S, at) for name, at in zip(names, advanced_at, strict=True)
        },
        low_watermark=low,
        low_advanced_at=max(advanced_at, default=0),
    )


def test_names_follow_the_rules_of_prometheus() -> None:
    """MET-1: base units, no suffix of a counter in a declaration, labels of the allowed set, and a
    text for each series.
    """
    names = [series.name for series in (*SERIES, *PRODUCER_SERIES)]
    assert len(set(names)) == len(names)
    for series in (*SERIES, *PRODUCER_SERIES):
        assert re.fullmatch(r"lowmark_[a-z_]+", series.name)
        assert not re.search(
            r"_(total|ms|us|minutes|hours|days|kb|mb|ratio_percent)\b", series.name
        )
        assert set(series.labels) <= {
            *("stream", "table", "kafka_partition", "stream_partition", "reason", "kind", "topic"),
        }
        assert series.help.endswith(".")
        if series.kind == "histogram":
            assert series.name.endswith("_seconds")


def test_the_samples_of_a_stream() -> None:
    """MET-1: lag, watermark and who delays it, letters, with ages at the time of the scrape."""
    progress = Progress(
        ingest_batch=3,
        changes=10,
        control=4,
        late=1,
        ignored_claims=2,
        unknown_tables=5,
        rejected={"TOO_LATE": 2, "UNDECODABLE": 1},
        freshness=FreshnessLog((Contained(3, 980 * S),), 7),
        frontier=frontier(910 * S, 990 * S, low=900 * S),
    )
    figures = StreamFigures(STREAM, progress, {0: 5, 1: 9}, Histogram().with_value(2.0))
    values = by_name(figures.samples(NOW))
    assert values["stream_lag_seconds", "s"] == 20
    assert values["stream_changes", "s"] == 10
    assert values["stream_rejected_records", "s", "TOO_LATE"] == 2
    assert values["stream_low_watermark_age_seconds", "s"] == 100
    assert values["stream_low_watermark_held_seconds", "s", "p00000"] == 90
    assert values["stream_partition_advance_age_seconds", "s", "p00001"] == 10
    assert values["stream_stalled_partitions", "s"] == 1
    assert values["stream_live_partitions", "s"] == 2
    assert ("stream_lag_offsets", "s", "0") not in values, "Kafka was not asked yet"

    letters = OpenLetters(3, 400 * S, withheld=1)
    asked = figures.answered(EndOffsets(999 * S, {0: 8, 1: 9}), letters, None)
    values = by_name(asked.samples(NOW))
    assert values["stream_lag_offsets", "s", "0"] == 3
    assert values["stream_lag_offsets", "s", "1"] == 0
    assert values["stream_lag_seconds", "s"] == 20, "not everything was read"
    assert values["stream_open_dead_letters", "s"] == 3
    assert values["stream_oldest_dead_letter_age_seconds", "s"] == 600
    assert values["stream_withheld_releases", "s"] == 1
    assert values["stream_refresh_age_seconds", "s"] == 1
    assert ("stream_audit_age_seconds", "s") not in values, "it was not audited"
    audit = Job(JobKind.AUDIT, "", 0, 900 * S, stream="s", error="1 offset is lost")
    for error, is_failed in ((audit.error, 1), ("", 0)):
        audited = by_name(replace(asked, audit=replace(audit, error=error)).samples(NOW))
        assert audited["stream_audit_age_seconds", "s"] == 100
        assert audited["stream_audit_is_failed", "s"] == is_failed

    unknown = OpenLetters(99, 1, is_known=False)
    asked = asked.answered(EndOffsets(999 * S, {0: 5, 1: 9}), unknown, None)
    values = by_name(asked.samples(NOW))
    assert values["stream_lag_seconds", "s"] == 1, "everything was read"
    assert values["stream_open_dead_letters", "s"] == 3, "the ledger did not answer"


def test_the_headroom_is_that_of_the_first_unread_records() -> None:
    """RUN-7: a record that ingest has read since has none."""
    unread = (Headroom(0, 5, 900 * S, NOW + 60 * S), Headroom(1, 8, 900 * S, NOW + 60 * S))
    figures = StreamFigures(STREAM, None, {0: 5, 1: 9}, asked=EndOffsets(NOW, {0: 7, 1: 9}))
    values = by_name(figures.with_headroom(unread, 160_000, NOW).samples(NOW + 20 * S))
    assert values["stream_headroom_seconds", "s", "0"] == 40
    assert ("stream_headroom_seconds", "s", "1") not in values
    assert values["stream_retention_seconds", "s"] == 160
    values = by_name(figures.with_headroom((), -1, NOW).samples(NOW))
    assert ("stream_retention_seconds", "s") not in values, "kept for ever"


def test_the_samples_of_a_table() -> None:
    """MET-1: age on the clock of Kafka, bound, pending batches and letters."""
    progress = Progress(ingest_batch=3, freshness=FreshnessLog((Contained(2, 950 * S),)))
    state = TableState(
        merged=7,
        letters=2,
        misfits={"credit": 3, "limit": 1},
        complete_to_batch=2,
        apply_watermark=940 * S,
        highest_applied=930 * S,
    )
    cleaned = Job(JobKind.CLEAN_UP, "t", 0, 1, live_bytes=10, disk_bytes=30)
    figures = TableFigures("s", "t", state, 60, OpenLetters(2), cleaned)
    values = by_name(figures.samples("t", progress, NOW))
    assert values == {
        ("table_is_stopped", "t"): 0,
        ("table_bound_seconds", "t"): 60,
        ("table_live_bytes", "t"): 10,
        ("table_disk_bytes", "t"): 30,
        ("table_age_seconds", "t"): 50,
        ("table_pending_batches", "t"): 1,
        ("table_pending_changes", "t"): 0,
        ("table_oldest_unapplied_delete_age_seconds", "t"): 0,
        ("table_apply_watermark_age_seconds", "t"): 60,
        ("table_is_consistent_cut", "t"): 1,
        ("table_merged_changes", "t"): 7,
        ("table_removed_rows", "t"): 0,
        ("table_written_rows", "t"): 0,
        ("table_written_bytes", "t"): 0,
        ("table_dead_letters", "t"): 2,
        ("table_open_dead_letters", "t"): 2,
        ("table_blocked_rows", "t"): 0,
        ("table_misfits", "t"): 4,
    }
    apply = Job(JobKind.APPLY, "t", 0, 1, deletes=2, rows_written=3, bytes_written=5)
    values = by_name(figures.with_job(apply).with_job(apply).samples("t", progress, NOW))
    assert values["table_removed_rows", "t"] == 4
    assert values["table_written_rows", "t"] == 6
    assert values["table_written_bytes", "t"] == 10
    assert values["table_disk_bytes", "t"] == 30, "an apply is no clean-up"
    stopped = TableFigures("s", "t", is_stopped=True).samples("t", progress, NOW)
    assert by_name(stopped) == {("table_is_stopped", "t"): 1}


def test_changes_are_pending_until_the_table_has_their_batch() -> None:
    """MET-1, MET-3: of several tables, each has those of its own source."""
    state = TableState(complete_to_batch=2, to_batch=2)
    progress = Progress(ingest_batch=4, freshness=FreshnessLog((Contained(2, 700 * S),)))
    batches = {
        3: BatchContents(9, {"t": TableChanges(5, 800 * S, 7), "u": TableChanges(1, 1, 8)}),
        4: BatchContents(9, {"t": TableChanges(2)}),
    }

    def values(figures: TableFigures) -> tuple[object, object]:
        samples = by_name(figures.samples("t", progress, NOW))
        names = ("table_pending_changes", "table_oldest_unapplied_delete_age_seconds")
        return samples.get((names[0], "t")), samples[names[1], "t"]

    figures = TableFigures("s", "t", state).with_batches(replace(progress, ingest_batch=2), {}, NOW)
    lacking = figures.with_batches(progress, batches, NOW)
    assert values(lacking) == (7, 200)
    assert values(lacking.with_state(replace(state, complete_to_batch=3))) == (2, 0)
    assert values(lacking.with_state(replace(state, complete_to_batch=4))) == (0, 0)
    started = TableFigures("s", "t", state).with_batches(progress, {}, NOW)
    assert values(started) == (None, 300), "all since the state of the table may be a delete"


def test_the_samples_of_the_process() -> None:
    """MET-1: what runs, and jobs by kind, of which the last maintenance may have failed."""
    apply = Job(JobKind.APPLY, "t", 0, 3 * S, cpu_us=S // 2)
    compaction = Job(JobKind.COMPACTION, "", 0, S, stream="s", error="no space")
    figures = ProcessFigures(is_running=True, warnings={"TOPIC_SETTING": 2}, errors={"X": 990 * S})
    for job in (apply, apply, compaction):
        figures = figures.with_job(job)
    values = by_name(figures.samples(NOW))
    assert values["running",] == 1
    assert values["warnings", "TOPIC_SETTING"] == 2
    assert values["last_error_age_seconds", "X"] == 10
    assert values["job_duration_seconds", "apply"] == Histogram().with_value(3.0).with_value(3.0)
    assert values["failed_jobs", "compaction"] == 1
    assert values["failed_jobs", "apply"] == 0
    assert values["job_cpu_seconds", "apply"] == 1
    assert [key for key in values if key[0] == "job_cpu_seconds"] == [("job_cpu_seconds", "apply")]
    assert values["maintenance_is_failing", "s", ""] == 1
    figures = figures.with_job(replace(compaction, kind=JobKind.CLEAN_UP, error=""))
    assert by_name(figures.samples(NOW))["maintenance_is_failing", "s", ""] == 1
    repaired = figures.with_job(replace(compaction, error=""))
    assert by_name(repaired.samples(NOW))["maintenance_is_failing", "s", ""] == 0


@pytest.mark.parametrize("empty", [Histogram(), NO_ACKNOWLEDGEMENTS])
@given(durations=st.lists(st.floats(0, 10_000) | st.sampled_from(BUCKETS_S)))
def test_a_duration_is_in_each_bucket_that_is_not_below_it(
    empty: Histogram, durations: list[float]
) -> None:
    """MET-1: the buckets of OpenMetrics are cumulative, and a bound belongs to its bucket."""
    counted = empty.with_values(durations)
    assert counted.sum == pytest.approx(sum(durations))
    for bound, count in counted.cumulative:
        assert count == sum(seconds <= float(bound) for seconds in durations)


def test_the_series_of_stream_partitions_are_bounded() -> None:
    """MET-1: of more live stream partitions, those that have not advanced for longest are shown."""
    many = frontier(*range(MAX_STREAM_PARTITIONS + 50))
    figures = StreamFigures(STREAM, Progress(frontier=many))
    samples = list(figures.samples(NOW))
    shown = [one for one in samples if one.series.name.endswith("_partition_advance_age_seconds")]
    assert len(shown) == MAX_STREAM_PARTITIONS
    assert shown[0].labels == ("s", "p00000")
    assert shown[-1].labels == ("s", f"p{MAX_STREAM_PARTITIONS - 1:05}")
    (live,) = [one.value for one in samples if one.series.name.endswith("_live_partitions")]
    assert live == MAX_STREAM_PARTITIONS + 50
