"""The status of streams and tables as values. tests/unit/cli/test_status.py tests their output."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from connector.config.settings import StreamConfig
from connector.dead_letters.blocked_rows import BlockingLetter
from connector.dead_letters.ledger import NO_EXTERNAL, ExternalDeadLetters, Totals
from connector.records.model import ChildPartition, ChildPartitions
from connector.records.views import view
from connector.reports.source_status import facts_of_checks, hints_of_checks
from connector.reports.stream_status import (
    OpenLetters,
    open_letters,
    partition_statuses,
    stream_status,
)
from connector.reports.table_status import TableJobs, TablePace, table_status
from connector.state.jobs import Job, JobKind
from connector.state.source_checks import (
    NOTHING_FOUND,
    Ignored,
    KeyPlacement,
    Misplaced,
    SchemaFields,
    SourceChecks,
    TwoProducers,
)
from connector.state.stream_progress import BatchCounts, Progress, StreamRules
from connector.state.table_state import TableState
from connector.tables.definition import TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType
from connector.text import summarize_names
from connector.watermarks.advance import advance
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    Ended,
    LineageRecord,
    Stall,
)
from connector.watermarks.stream_partition import KeyRange

S = 1_000_000
NOW = 1_000 * S
TABLE = TableDefinition(
    name="one",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.STRING),), KeyForm.ROW_KEY),
    columns=(),
    max_staleness_s=600,
)
APPLIED = TableState(
    apply_number=3,
    to_batch=2,
    complete_to_batch=1,
    apply_watermark=50,
    highest_applied=40,
    as_of=400 * S,
    letters=2,
)


def announced(
    *names: str, ranges: tuple[tuple[bytes | None, bytes | None], ...] = ()
) -> tuple[LineageRecord, ...]:
    children = tuple(
        ChildPartition(name, start_key=keys[0], end_key=keys[1])
        for name, keys in zip(names, ranges or [(None, None)] * len(names), strict=True)
    )
    return tuple(LineageRecord(k, 2, ChildPartitions("root", 1, 0, children)) for k in (0, 1))


def progress(
    claims: BatchClaims,
    *,
    at: int = 0,
    ends: int = 3,
    high: int = 8,
    roots: frozenset[str] = frozenset(),
    **counts: object,
) -> Progress:
    counted = BatchCounts(claims=claims, read_at=at, **counts)  # type: ignore[arg-type]
    return Progress().after(
        1, counted, {0: ends}, EndOffsets(900 * S, {0: high}), StreamRules(roots=roots)
    )


def test_the_stream_partition_with_the_least_claim_delays_the_low_watermark() -> None:
    """WMK-3, WMK-12: by stream partition, Kafka partition, and since when."""
    frontier = advance(
        UNKNOWN,
        BatchClaims(2, {"a": {0: 50, 1: 70}, "b": {0: 60, 1: 40}}, announced("a", "b")),
        now=7,
    )
    assert frontier.lagging_partition == Stall("b", 1, 40, 7)
    assert UNKNOWN.lagging_partition is None


def test_a_stream_has_its_progress_and_what_delays_it() -> None:
    """OPS-5, WMK-8, WMK-12, DLQ-7"""
    claims = BatchClaims(2, {"a": {0: 50, 1: 50}, "stray": {0: 9, 1: 0}}, announced("a"))
    after_batch = progress(
        claims, at=600 * S, changes=5, late=2, rejected={"BAD_FRAMING": 3, "INVALID/ROW_KEY": 1}
    )
    status = stream_status(
        StreamConfig(name="s", topic="s", stall_after_s=400),
        after_batch,
        NOW,
        dead_letters=OpenLetters(6, is_known=False),
    )
    assert (status.ingest_batch, status.changes, status.late) == (1, 5, 2)
    assert (status.lag, status.topic_read_at, status.low_watermark) == (
        5,
        900 * S,
        after_batch.low_watermark,
    )
    assert status.undeclared == ("stray",)
    assert [stall.stream_partition for stall in status.stalled] == ["a", "stray"]
    assert (
        stream_status(
            StreamConfig(name="s", topic="s", stall_after_s=401), after_batch, NOW
        ).stalled
        == ()
    )
    assert [hint.partition(": ")[0] for hint in status.hints] == [
        "the low watermark is unknown, so no table is a consistent cut and no tombstone expires",
        "no announcement names stray",
        "a, stray stalled",
        "the ledger could not be read, so replayed and discarded dead letters are counted as open",
    ]


def test_a_stalled_stream_partition_without_a_claim_is_named_with_the_remedy() -> None:
    """PUB-2: not one that sends heartbeats and lags, and not while ingest may be the cause."""
    claims = BatchClaims(2, {"a": {0: 50, 1: 50}, "b": {0: 9}}, announced("a", "b", "c"))
    after_batch = progress(claims, at=600 * S)
    for stall_after_s, is_verified in ((300, True), (301, False)):
        status = stream_status(
            StreamConfig(name="s", topic="s", stall_after_s=stall_after_s), after_batch, NOW
        )
        found = [hint for hint in status.hints if "neither a heartbeat nor an estimated" in hint]
        assert bool(found) == is_verified
        assert all(" from b, c: call reached in the producer" in hint for hint in found)


def test_ignored_claims_are_counted_and_explained_where_the_low_watermark_does_not_move() -> None:
    """ING-4: the count is always there, the remedy where the claims may be why nothing is
    complete.
    """
    waiting = progress(BatchClaims(2, {"a": {0: 5, 1: 5}}), at=600 * S, ignored_claims=1_200)
    hints = stream_status(StreamConfig(name="s", topic="s", stall_after_s=9999), waiting, NOW).hints
    (hint,) = (hint for hint in hints if "claim" in hint)
    assert hint.startswith(
        "1,200 watermark claims without effect, for example in the future or below an earlier one"
    )
    assert "let producers send 0 if they know no low watermark" in hint
    moving = progress(
        BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a")), at=600 * S, ignored_claims=1
    )
    status = stream_status(StreamConfig(name="s", topic="s", stall_after_s=9999), moving, NOW)
    assert (status.ignored_claims, status.to_json()["ignored_claims"]) == (1, 1)
    assert status.hints == []
    assert any(
        "1 watermark claim without effect" in hint
        for hint in stream_status(
            StreamConfig(name="s", topic="s", stall_after_s=400), moving, NOW
        ).hints
    )


def tables_with(**letters: int) -> dict[str, TableState]:
    return {name: TableState(letters=count) for name, count in letters.items()}


def test_a_table_is_not_complete_without_its_open_letters() -> None:
    """DLQ-7: rejected records may be of any table, table letters are of theirs; what is replayed or
    discarded counts no more.
    """
    totals = Totals({("T", ""): 3, ("T", "one"): 1, ("other", ""): 9}, open_since=70)
    stream, tables = open_letters(5, tables_with(one=2, two=0), NO_EXTERNAL, "T", totals, 40)
    assert (stream, tables) == (
        OpenLetters(3, 70),
        {"one": OpenLetters(3, 70), "two": OpenLetters(2, 70)},
    )
    assert open_letters(5, tables_with(one=2), NO_EXTERNAL, "T", None, 40) == (
        OpenLetters(7, 40),
        {"one": OpenLetters(7, 40)},
    )
    assert open_letters(3, tables_with(one=1), NO_EXTERNAL, "T", totals, 40) == (
        OpenLetters(),
        {"one": OpenLetters()},
    )
    # Nine of those that others made are closed.
    for count, left in ((9, OpenLetters()), (11, OpenLetters(2, 70))):
        assert open_letters(
            3, tables_with(one=1), ExternalDeadLetters("other", count, 40), "T", totals, 40
        ) == (left, {"one": left})

    after_batch = progress(BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a")))
    status = table_status(TABLE, APPLIED, after_batch, NOW, dead_letters=tables["one"])
    assert (status.is_consistent_cut, status.is_complete) == (True, False)
    assert "not complete without 3 dead letters" in status.hints[-1]
    assert table_status(TABLE, APPLIED, after_batch, NOW).is_complete
    on_their_way = OpenLetters(under_way=True)
    assert not table_status(TABLE, APPLIED, after_batch, NOW, dead_letters=on_their_way).is_complete
    assert (
        "not ingested yet"
        in stream_status(
            StreamConfig(name="s", topic="s", stall_after_s=9999),
            after_batch,
            NOW,
            dead_letters=on_their_way,
        ).hints[-1]
    )


def test_a_stall_names_ingest_or_the_producer_as_its_cause() -> None:
    """WMK-12: what ingest has not asked for says nothing of the producer."""
    after_batch = progress(BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a")), at=600 * S)
    unasked, never_seen = "ingest has not asked Kafka", "send heartbeats"
    for stall_after_s, now_s, remedy in (
        (301, 902, unasked),
        (299, 1_199, never_seen),
        (299, 1_200, unasked),
    ):
        status = stream_status(
            StreamConfig(name="s", topic="s", stall_after_s=stall_after_s), after_batch, now_s * S
        )
        assert status.topic_read_at == 900 * S
        assert remedy in status.hints[-1]


def test_a_hole_in_the_key_space_is_shown() -> None:
    """WMK-9"""
    claims = BatchClaims(
        2, {"a": {0: 50, 1: 50}}, announced("a", "b", ranges=((None, b"g"), (b"m\xff", None)))
    )
    status = stream_status(
        StreamConfig(name="s", topic="s", stall_after_s=400), progress(claims), NOW
    )
    assert status.uncovered == ("root", KeyRange(b"g", b"m\xff"))
    assert status.to_json()["uncovered"] == {
        "root": "root",
        "start_key": "g",
        "end_key": {"base64": "bf8="},
    }
    assert any("hole" in hint for hint in status.hints)


def test_an_empty_end_key_leaves_no_hole() -> None:
    """ING-5, WMK-9: it is the end of the key space, as in Bigtable."""
    for ranges in (((b"", b"g"), (b"g", b"")), ((None, b"g"), (b"g", b""))):
        claims = BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a", "b", ranges=ranges))
        assert (
            stream_status(
                StreamConfig(name="s", topic="s", stall_after_s=400), progress(claims), NOW
            ).uncovered
            is None
        )
    whole = BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a", ranges=((b"", b""),)))
    assert (
        stream_status(
            StreamConfig(name="s", topic="s", stall_after_s=400), progress(whole), NOW
        ).uncovered
        is None
    )


FIRST, SECOND, LAST = (None, b"g"), (b"e", b"m"), (b"m", None)
NO_RANGE = (None, None)


@pytest.mark.parametrize(
    ("said", "hole", "may_fill"),
    [
        ({"root": {"a": FIRST, "b": LAST, "c": NO_RANGE}}, KeyRange(b"g", b"m"), ("c",)),
        ({"root": {"a": FIRST, "b": NO_RANGE, "c": NO_RANGE}}, KeyRange(b"g", None), ("b", "c")),
        ({"root": {"b": LAST, "a": NO_RANGE}}, KeyRange(b"", b"m"), ("a",)),
        ({"root": {"a": FIRST, "b": LAST}}, KeyRange(b"g", b"m"), ()),
        ({"root": {"a": FIRST, "b": SECOND, "c": NO_RANGE}}, KeyRange(b"e", b"g"), ()),
        ({"root": {"a": FIRST, "b": (None, b"m"), "c": NO_RANGE}}, KeyRange(b"", b"g"), ()),
        ({"root": {"a": FIRST, "b": LAST}, "other": {"c": NO_RANGE}}, KeyRange(b"g", b"m"), ()),
        (
            {"root": {"a": FIRST, "b": LAST}, "second": {"c": NO_RANGE, "d": (b"n", None)}},
            KeyRange(b"g", b"m"),
            (),
        ),
        (
            {"root": {"a": FIRST}, "second": {"a": FIRST, "b": LAST, "c": NO_RANGE}},
            KeyRange(b"g", b"m"),
            ("c",),
        ),
        ({"root": {"a": FIRST}, "other": {"b": (None, b"m"), "d": LAST}}, KeyRange(b"g", None), ()),
        ({"root": {"a": NO_RANGE, "b": NO_RANGE}}, None, ()),
    ],
    ids=[
        "between",
        "behind",
        "before",
        "no other",
        "overlap",
        "from one key",
        "of another root",
        "of another root with a hole",
        "of a root that shares",
        "elsewhere",
        "no ranges at all",
    ],
)
def test_a_hole_may_belong_to_stream_partitions_without_a_key_range(
    said: dict[str, dict[str, tuple[bytes | None, bytes | None]]],
    hole: KeyRange | None,
    may_fill: tuple[str, ...],
) -> None:
    """WMK-9: those of the same key space are named, and what to do; an overlap is not theirs."""
    lineage = tuple(
        LineageRecord(
            0,
            1,
            ChildPartitions(
                root, 1, 0, tuple(ChildPartition(name, (), *keys) for name, keys in live.items())
            ),
        )
        for root, live in said.items()
    )
    claims = BatchClaims(1, {"undeclared": {0: 5}}, lineage)
    status = stream_status(
        StreamConfig(name="s", topic="s", stall_after_s=9999), progress(claims), NOW
    )
    assert status.uncovered == (None if hole is None else ("root", hole))
    assert status.without_key_range == may_fill
    assert status.to_json()["without_key_range"] == list(may_fill)
    hints = [hint for hint in status.hints if "the low watermark does not advance" in hint]
    if hole is None:
        assert not hints
    elif may_fill:
        wanted = (
            f"no key range of the root root covers {hole}; announce these stream partitions with a"
            f" key range: {', '.join(may_fill)}"
        )
        assert wanted in hints[0]
    else:
        assert f"leave a hole in {hole}, or overlap there" in hints[0]
        assert "with a key range" not in hints[0]


def test_a_stream_without_ingest_and_roots_without_records_are_hints() -> None:
    """WMK-6"""
    never = stream_status(StreamConfig(name="s", topic="s", stall_after_s=1), Progress(), NOW)
    assert never.hints == ["nothing was ingested yet"]
    assert (never.lag, never.topic_read_at, never.stalls_unverified) == (None, None, True)
    waiting = stream_status(
        StreamConfig(name="s", topic="s", partitions=("a", "b"), stall_after_s=9999),
        progress(BatchClaims(2, {"a": {0: 5, 1: 5}}), roots=frozenset("ab")),
        NOW,
    )
    assert waiting.never_seen == ("b",)
    assert waiting.low_watermark is None
    assert [hint.partition(": ")[0] for hint in waiting.hints[1:]] == [
        "stream partitions of the configuration have sent no record"
    ]
    known = replace(UNKNOWN, ended={"ended": Ended(9, frozenset(), frozenset())})
    once = Progress(ingest_batch=1, frontier=known)
    roots = ("ended", "never")
    assert stream_status(
        StreamConfig(name="s", topic="s", partitions=roots, stall_after_s=1), once, NOW
    ).never_seen == ("never",)
    others = progress(BatchClaims(2, {"a": {0: 5, 1: 5}}, announced("a")))
    assert stream_status(
        StreamConfig(name="s", topic="s", partitions=("b", "root"), stall_after_s=9999), others, NOW
    ).never_seen == ("b",), "another's announcement is not its own"


def test_a_table_has_its_age_its_watermark_and_its_pending_batches() -> None:
    """TBL-11, TBL-19, TBL-20"""
    after_batch = replace(
        progress(BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a"))), ingest_batch=4
    )
    merge = Job(JobKind.RUNTIME_MERGE, "one", NOW - 9 * S, NOW, error="full")
    status = table_status(
        TABLE,
        APPLIED,
        after_batch,
        NOW,
        pace=TablePace(max_staleness_s=179, buffer_s=7),
        jobs=TableJobs(last=merge, durations_us=[90 * S]),
    )
    assert (
        status.upsert_stream_apply_watermark,
        status.is_consistent_cut,
        status.lagging_partition,
    ) == (50, True, None)
    assert (status.age_s, status.is_older_than_its_bound, status.pending_batches) == (
        600.0,
        True,
        3,
    )
    assert (status.declared_max_staleness_s, status.max_staleness_s) == (600, 179)
    assert (status.p95_s, status.recommended_max_staleness_s, status.last_job) == (90.0, 187, merge)
    assert len(status.hints) == 3
    assert (
        "take up to 90.0 s, more than half of max_staleness: set max_staleness to at least 187 s"
        in status.hints[1]
    )
    at_its_bound = table_status(
        TABLE, APPLIED, after_batch, NOW, pace=TablePace(max_staleness_s=600)
    )
    assert not at_its_bound.hints, "exactly at the bound is fresh enough"


def test_the_last_maintenance_is_shown_and_its_failure_is_a_hint() -> None:
    """TBL-15, JOB-1, OPS-5: of a table and of a stream."""
    after_batch = progress(BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a")))
    done = Job(JobKind.COMPACTION, "one", NOW - 9 * S, NOW, files=30)
    failed = Job(JobKind.CLEAN_UP, "one", NOW - 9 * S, NOW, error="disk hiccup")
    table = table_status(
        TABLE,
        replace(APPLIED, as_of=NOW),
        after_batch,
        NOW,
        jobs=TableJobs(maintenance=[done, failed]),
    )
    stream = stream_status(
        StreamConfig(name="s", topic="s", stall_after_s=600), after_batch, NOW, maintenance=[failed]
    )
    assert table.hints == ["the last clean-up failed and will be repeated: disk hiccup"]
    assert stream.hints[-1:] == table.hints
    assert [
        (job["kind"], job["files"], job["error"]) for job in table.to_json()["maintenance"]
    ] == [
        ("compaction", 30, None),
        ("clean_up", 0, "disk hiccup"),
    ]
    assert [job["kind"] for job in stream.to_json()["maintenance"]] == ["clean_up"]


def test_a_bound_that_applies_keep_is_not_warned_of() -> None:
    """JOB-4: a small bound is no fault, nor one below the recommended: only one in whose half the
    applies do not fit.
    """
    after_batch = progress(BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a")))
    for bound_s, applies_s, hints in (
        (60, 2, 0),
        (60, 30, 0),
        (60, 31, 1),
        (7 * 60, 2, 0),
        (None, 99, 0),
    ):
        fresh = replace(APPLIED, as_of=NOW)
        status = table_status(
            TABLE,
            fresh,
            after_batch,
            NOW,
            pace=TablePace(max_staleness_s=bound_s, buffer_s=420),
            jobs=TableJobs(durations_us=[applies_s * S]),
        )
        assert len(status.hints) == hints, (bound_s, applies_s)


def test_a_table_has_the_time_of_its_next_apply() -> None:
    """JOB-2: its pace after the start of its last apply, not after its end; one that is rarer than
    its bound is hinted at.
    """
    after_batch = progress(BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a")))
    job = Job(JobKind.APPLY, "one", NOW - 9 * S, NOW)
    fresh = replace(APPLIED, as_of=NOW)
    status = table_status(
        TABLE,
        fresh,
        after_batch,
        NOW,
        pace=TablePace(max_staleness_s=60, apply_every_s=30),
        jobs=TableJobs(last=job),
    )
    assert (status.apply_every_s, status.due_at, status.hints) == (30, NOW + 21 * S, [])
    never = table_status(TABLE, TableState(), after_batch, NOW)
    assert (never.apply_every_s, never.due_at, never.to_json()["due_at"]) == (2, None, None)
    rare = table_status(
        TABLE,
        fresh,
        after_batch,
        NOW,
        pace=TablePace(max_staleness_s=60, apply_every_s=3600),
        jobs=TableJobs(last=job),
    )
    (hint,) = rare.hints
    assert hint.startswith("an apply runs every 3600 s, which is more than max_staleness: reads")


def test_a_table_that_is_no_cut_names_the_lagging_partition() -> None:
    """TBL-11"""
    after_batch = progress(BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a")), at=7)
    status = table_status(
        TABLE, replace(APPLIED, highest_applied=50, inconsistent_since=8), after_batch, NOW
    )
    assert (status.is_consistent_cut, status.inconsistent_since, status.lagging_partition) == (
        False,
        8,
        Stall("a", 0, 50, 7),
    )
    empty = table_status(TABLE, TableState(), after_batch, NOW)
    assert (empty.inconsistent_since, empty.lagging_partition, empty.age_s) == (None, None, None)
    assert empty.hints == ["nothing was applied yet"]


def test_a_table_hints_at_nothing_that_is_as_it_should_be() -> None:
    """OPS-5, TBL-19: a bound that is what its applies can keep, a job that went well."""
    after_batch = progress(BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a")))
    fine = Job(JobKind.APPLY, "one", NOW - 9 * S, NOW)
    status = table_status(
        TABLE,
        APPLIED,
        after_batch,
        NOW,
        pace=TablePace(max_staleness_s=600),
        jobs=TableJobs(last=fine, durations_us=[90 * S]),
    )
    assert (status.recommended_max_staleness_s, status.hints) == (180, [])
    below = table_status(
        TABLE,
        replace(APPLIED, as_of=NOW),
        after_batch,
        NOW,
        pace=TablePace(max_staleness_s=179),
        jobs=TableJobs(last=fine, durations_us=[90 * S]),
    )
    assert below.hints == [
        (
            "95 of 100 applies take up to 90.0 s, more than half of max_staleness: set"
            " max_staleness to at least 180 s"
        )
    ]
    unbounded = table_status(
        TABLE,
        replace(APPLIED, as_of=1),
        after_batch,
        NOW,
        jobs=TableJobs(last=fine, durations_us=[90 * S]),
    )
    assert (unbounded.is_older_than_its_bound, unbounded.hints) == (False, [])


def test_a_table_counts_its_blocked_rows_and_its_open_letters() -> None:
    """DLQ-3, DLQ-7: rows, not dead changes; a replay on its way makes it no less incomplete."""
    after_batch = progress(BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a")), at=7)
    first = BlockingLetter(b"k", 1, (0, 1), 1, (0, 1), table_letter=False, since=300)
    waits = (
        first,
        first._replace(first=(0, 2), since=200),
        first._replace(row_key=b"l", since=400),
    )
    status = table_status(
        TABLE,
        replace(APPLIED, blocked_rows=waits, inconsistent_since=8),
        after_batch,
        NOW,
        dead_letters=OpenLetters(1, 200),
    )
    assert (status.blocked_rows, status.blocked_since, status.letters) == (2, 200, 2)
    assert (status.is_consistent_cut, status.is_complete, status.inconsistent_since) == (
        False,
        False,
        8,
    )
    assert status.hints == [
        "2 rows wait for dead letters: repair and replay the dead letters, or discard them",
        "the table is not complete without 1 dead letter: list the dead letters of the stream",
    ]
    view = status.to_json()
    assert (view["blocked_since"], view["lagging_partition"]["stream_partition"]) == (
        "1970-01-01T00:00:00.000200Z",
        "a",
    )
    none = table_status(TABLE, APPLIED, after_batch, NOW).to_json()
    assert (
        none["blocked_rows"],
        none["blocked_since"],
        none["lagging_partition"],
        none["last_job"],
    ) == (0, None, None, None)


def test_a_table_that_is_ahead_of_its_stream_has_no_pending_batches() -> None:
    """OPS-5: its bookkeeping is read after the stream's progress, and may be newer."""
    assert (
        table_status(TABLE, replace(APPLIED, complete_to_batch=9), Progress(), NOW).pending_batches
        == 0
    )


def test_stream_partitions_are_listed_as_they_hold_the_low_watermark() -> None:
    """WMK-3, WMK-7, WMK-12: the least first, of equal ones by name; then those that wait for their
    parents.
    """
    merged = ChildPartitions(
        "d", 40, 1, (ChildPartition("both", ("d", "c"), b"m", None), ChildPartition("e", ("d",)))
    )
    lineage = (*announced("d", "c", "b"), LineageRecord(0, 2, merged), LineageRecord(1, 2, merged))
    claims = BatchClaims(
        2,
        {"b": {0: 30, 1: 20}, "c": {0: 20, 1: 30}, "stray": {0: 5, 1: 5}, "mute": {0: 0, 1: 9}},
        lineage,
    )
    frontier = advance(UNKNOWN, claims, now=7 * S)
    listed = partition_statuses(frontier, 67 * S, stall_after_s=60)
    shown = [
        (one.name, one.low_watermark, one.lagging_partition, one.waits_for, one.is_over)
        for one in listed
    ]
    assert shown == [
        ("mute", None, 0, (), False),
        ("stray", 5, 0, (), False),
        ("b", 20, 1, (), False),
        ("c", 20, 0, (), False),
        ("d", 40, 0, (), True),
        ("e", 40, 0, (), False),
        ("both", 40, 0, ("c", "d"), False),
    ]
    assert {one.advanced_at for one in listed} == {7 * S}
    assert [one.is_stalled for one in listed] == [True] * 6 + [False], "who waits is not stalled"
    assert not any(
        one.is_stalled for one in partition_statuses(frontier, 67 * S - 1, stall_after_s=60)
    )
    assert [one.roots for one in listed] == [(), (), *[("root",)] * 5]
    assert listed[0].to_json() == {
        "stream_partition": "mute",
        "low_watermark": None,
        "kafka_partition": 0,
        "since": "1970-01-01T00:00:07.000000Z",
        "is_stalled": True,
        "is_declared": False,
        "roots": [],
        "key_range": None,
        "waits_for": [],
        "is_over": False,
    }
    both = listed[-1].to_json()
    assert (both["is_declared"], both["key_range"]) == (True, {"start_key": "m", "end_key": None})
    assert (both["low_watermark"], both["waits_for"]) == ("1970-01-01T00:00:00.000040Z", ["c", "d"])


def test_of_equal_stream_partitions_the_first_by_name_is_the_lagging_one() -> None:
    """OPS-5: so that the status does not change to and fro."""
    frontier = advance(UNKNOWN, BatchClaims(1, {"b": {0: 5}, "a": {0: 5}, "c": {0: 9}}), now=7)
    assert frontier.lagging_partition == Stall("a", 0, 5, 7)


def test_a_stream_partition_without_a_watermark_is_shown_as_such() -> None:
    """WMK-12: 0 is no time."""
    view = stream_status(
        StreamConfig(name="s", topic="s", stall_after_s=400),
        progress(BatchClaims(1, {"a": {0: 0}}), at=600 * S),
        NOW,
    ).to_json()
    since = "1970-01-01T00:10:00.000000Z"
    assert view["lagging_partition"] == {
        "stream_partition": "a",
        "kafka_partition": 0,
        "watermark": None,
        "since": since,
    }
    assert view["stalled"] == [view["lagging_partition"]]
    assert (view["low_watermark"], view["low_watermark_age_s"], view["horizon"]) == (
        None,
        None,
        None,
    )


def test_an_unreadable_ledger_is_reported_for_the_stream_and_its_tables() -> None:
    """DLQ-7: letters of another table, or of a topic that was replaced, close none of this
    one's.
    """
    totals = Totals({("T", "two"): 5, ("other", "one"): 1}, open_since=None)
    stream, tables = open_letters(
        0, tables_with(one=2, two=7), NO_EXTERNAL, "T", totals, 40, is_known=False, under_way=True
    )
    assert stream == OpenLetters(4, 40, is_known=False, under_way=True)
    assert tables == {
        "one": OpenLetters(2, 40, False, True),
        "two": OpenLetters(2, 40, False, True),
    }


def test_names_for_programs_are_stable() -> None:
    """OPS-5: who reads `status --json` relies on them."""
    after_batch = progress(
        BatchClaims(2, {"a": {0: 50, 1: 50}}, announced("a")), rejected={"BAD_FRAMING": 1}
    )
    stream = stream_status(
        StreamConfig(name="s", topic="s", stall_after_s=1), after_batch, NOW
    ).to_json()
    table = table_status(
        TABLE,
        replace(APPLIED, highest_applied=99),
        after_batch,
        NOW,
        jobs=TableJobs(last=Job(JobKind.APPLY, "one", 1, 2)),
    ).to_json()
    assert json.loads(json.dumps([stream, table])) == [stream, table]
    assert stream.keys() == {
        *(
            "bridge",
            "last_audit",
            "topic_read_at",
            "open_transactions",
            "changes",
            "lagging_partition",
            "headroom",
            "hints",
            "horizon",
            "ignored_claims",
            "ingest_batch",
            "lag",
            "late",
        ),
        *("low_watermark", "low_watermark_age_s"),
        *(
            "dead_letters_since",
            "is_ledger_known",
            "stalls_unverified",
            "open_dead_letters",
            "rejected",
            "replays_under_way",
            "uncounted_tables",
            "withheld_releases",
        ),
        *(
            "never_seen",
            "stalled",
            "uncovered",
            "undeclared",
            "undefined_sources",
            "unknown_tables",
            "without_key_range",
            "maintenance",
            "losses",
            "unfinished_erasures",
            "other_commits",
            "write_streams",
        ),
        *(
            "ignored_claims_by_partition",
            "transactions",
            "two_producers",
            "row_image_mismatches",
            "unknown_fields",
            "key_placement",
        ),
    }
    assert table.keys() == {
        *(
            "dead_letters_since",
            "blocked_rows",
            "blocked_since",
            "is_complete",
            "is_ledger_known",
            "open_dead_letters",
            "replays_under_way",
            "withheld_releases",
        ),
        *(
            "age_s",
            "apply",
            "apply_every_s",
            "as_of",
            "declared_max_staleness_s",
            "due_at",
            "lagging_partition",
            "hints",
        ),
        *("is_consistent_cut", "last_job", "letters", "misfits"),
        *(
            "max_staleness_s",
            "inconsistent_since",
            "p95_s",
            "pending_batches",
            "recommended_max_staleness_s",
            "stream",
            "to_batch",
        ),
        *(
            "upsert_stream_apply_watermark",
            "maintenance",
            "waiting_changes",
            "lacks_lost_records",
            "other_commits",
        ),
    }
    assert (stream["topic_read_at"], stream["low_watermark_age_s"]) == (
        "1970-01-01T00:15:00.000000Z",
        999.99995,
    )
    assert stream["lagging_partition"] == {
        "stream_partition": "a",
        "kafka_partition": 0,
        "watermark": "1970-01-01T00:00:00.000050Z",
        "since": "1970-01-01T00:15:00.000000Z",
    }
    assert (table["last_job"]["kind"], table["last_job"]["error"]) == ("apply", None)


def test_many_names_are_counted() -> None:
    assert (summarize_names("abc"), summarize_names("abcde")) == ("a, b, c", "a, b, c and 2 more")


FOUND = SourceChecks(
    ignored={
        "p": {Ignored.BACKWARDS: 1_200, Ignored.IN_FUTURE: 1},
        "q": {Ignored.OLDER_ANNOUNCEMENT: 2, Ignored.ENDED: 1},
    },
    two_producers={"p": TwoProducers(1, 3 * S, 5 * S, batches=2, last_at=NOW - 60 * S)},
    row_images={"DELETE": 3, "INSERT": 1},
    unknown_fields={7: SchemaFields(("ChangeRecord.note", "DataChange.colour"), 9)},
    placement=KeyPlacement(NOW, 2_000, 1_500, Misplaced(b"k\xff", 0, 41, 1, 2)),
)


def test_faults_of_producers_are_reported_with_the_remedy() -> None:
    """PUB-4, ING-1"""
    status = stream_status(
        StreamConfig(name="s", topic="s", stall_after_s=9),
        replace(progress(BatchClaims(2)), checks=FOUND),
        NOW,
    )
    two, placed = (hint for hint in status.hints if "two producers" in hint or "samples" in hint)
    assert two.startswith(
        "two producers write stream partition p: one that began at 1970-01-01T00:00:03"
    )
    assert "stop one of them" in two
    assert placed.startswith("1,500 of 2,000 changes in samples are not in the Kafka partition")
    assert "base64:a/8= in Kafka partition 0 at offset 41, not in 1" in placed
    assert "a producer has another partitioner" in placed
    assert json.loads(json.dumps(status.to_json())) == status.to_json()


def test_the_findings_have_names_for_programs() -> None:
    """OPS-5, PUB-4, ING-1, ING-3, ING-4, ING-7: all of them, those with the most claims first."""
    more = replace(FOUND, unknown_fields={**FOUND.unknown_fields, 8: SchemaFields((), 1)})
    assert view(more) == {
        "ignored_claims_by_partition": [
            {"stream_partition": "p", "reason": "backwards", "count": 1_200},
            {"stream_partition": "p", "reason": "in_future", "count": 1},
            {"stream_partition": "q", "reason": "older_announcement", "count": 2},
            {"stream_partition": "q", "reason": "ended", "count": 1},
        ],
        "two_producers": [
            {
                "stream_partition": "p",
                "kafka_partition": 1,
                "older_epoch": 3 * S,
                "newer_epoch": 5 * S,
                "batches": 2,
                "last_at": "1970-01-01T00:15:40.000000Z",
            }
        ],
        "row_image_mismatches": {"DELETE": 3, "INSERT": 1},
        "unknown_fields": [
            {
                "schema_id": 7,
                "fields": ["ChangeRecord.note", "DataChange.colour"],
                "records": 9,
            },
            {"schema_id": 8, "fields": [], "records": 1},
        ],
        "key_placement": {
            "sampled_at": "1970-01-01T00:16:40.000000Z",
            "sampled": 2_000,
            "misplaced": 1_500,
            "example": {
                "key": {"base64": "a/8="},
                "kafka_partition": 0,
                "offset": 41,
                "right_partition": 1,
                "kafka_partitions": 2,
            },
        },
    }
    assert view(NOTHING_FOUND)["key_placement"] == {
        "sampled_at": None,
        "sampled": 0,
        "misplaced": 0,
        "example": None,
    }
    assert (
        "unknown fields",
        "fields of schema 8, in 1 record: kept in the changelog, not in tables",
    ) in [*facts_of_checks(more, NOW)]


def test_two_producers_are_no_hint_for_ever() -> None:
    """PUB-4: a producer that was stopped an hour ago needs nothing; the fact stays."""
    later = NOW + 3540 * S
    assert any("two producers" in hint for hint in hints_of_checks(FOUND, later - 1))
    assert not any("two producers" in hint for hint in hints_of_checks(FOUND, later))
    later += 60 * S
    assert not any("two producers" in hint for hint in hints_of_checks(FOUND, later))
    assert ("two producers", "p in Kafka partition 1, in 2 batches, the last one 1h1m ago") in [
        *facts_of_checks(FOUND, later)
    ]


def test_each_finding_is_a_fact() -> None:
    """ING-1, ING-3, ING-4, ING-7"""
    assert [*facts_of_checks(FOUND, NOW)] == [
        ("ignored claims", "of p: 1,200 below an earlier claim, 1 later than their arrival"),
        (
            "ignored claims",
            "of q: 2 announcements older than one before, 1 of an ended stream partition",
        ),
        ("two producers", "p in Kafka partition 1, in 2 batches, the last one 1m ago"),
        (
            "row images",
            (
                "changes whose row image contradicts their entries (a DELETE sets cells: 3, an"
                " INSERT sets no cell: 1)"
            ),
        ),
        (
            "unknown fields",
            (
                "ChangeRecord.note, DataChange.colour of schema 7, in 9 records: kept in the"
                " changelog, not in tables"
            ),
        ),
        (
            "key placement",
            "1,500 of 2,000 changes in samples are not in the Kafka partition of their key",
        ),
    ]
    assert [*facts_of_checks(NOTHING_FOUND, NOW)] == [*hints_of_checks(NOTHING_FOUND, NOW)] == []


def test_of_many_names_a_few_are_shown() -> None:
    """OPS-5: the others are counted."""
    many = SourceChecks(
        ignored={f"p{n}": {Ignored.ENDED: n} for n in range(1, 10)},
        two_producers={f"p{n}": TwoProducers(0, 1, 2, 1, NOW - n) for n in reversed(range(9))},
        unknown_fields={n: SchemaFields(("f",), n) for n in range(1, 6)},
    )
    shown = [*facts_of_checks(many, NOW)]
    assert shown[:4] == [
        ("ignored claims", f"of p{n}: {n} of an ended stream partition") for n in (9, 8, 7)
    ] + [("ignored claims", "and 6 more")]
    assert [text.split()[0] for _, text in shown[4:8]] == ["p0", "p1", "p2", "and"]
    assert shown[7] == ("two producers", "and 6 more")
    assert [text.split(",")[0] for _, text in shown[8:]] == [
        *(f"f of schema {n}" for n in (5, 4, 3)),
        "and 2 more",
    ]
    hints = [*hints_of_checks(many, NOW)]
    assert [hint.split(":")[0].split()[-1] for hint in hints[:3]] == ["p0", "p1", "p2"]
    assert hints[3:] == ["two producers write each of 6 more stream partitions"]


def test_a_horizon_of_0_is_not_shown() -> None:
    """MRG-10: the low watermark has not passed `delete_retention`. No time is shown for it."""
    began = replace(progress(BatchClaims(1, {"a": {0: 61}}), at=600 * S), horizon=0)
    assert (
        stream_status(StreamConfig(name="s", topic="s", stall_after_s=400), began, NOW).to_json()[
            "horizon"
        ]
        is None
    )
