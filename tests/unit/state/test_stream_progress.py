"""Whether a table as it stands answers a read, and what is said where nothing does (TBL-16)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.config.settings import StreamConfig
from connector.dead_letters.blocked_rows import BlockingLetter
from connector.dead_letters.ledger import ExternalDeadLetters
from connector.errors import StaleTableError
from connector.records.model import ChildPartition, ChildPartitions
from connector.reports.stream_status import stream_status
from connector.state.overrides import ClosePartition
from connector.state.stream_progress import (
    BatchCounts,
    Cut,
    OpenTransaction,
    Progress,
    StreamRules,
    still_hiding,
)
from connector.state.table_state import TableState
from connector.state.truncations import SourceTruncations
from connector.tables.retention import BatchHorizon, BatchHorizons
from connector.watermarks.freshness import NONE_ASKED, EndOffsets
from connector.watermarks.frontier import UNKNOWN, BatchClaims, Ended, LineageRecord
from connector.write_streams.releases import ReleaseProgress

S = 1_000_000
ONE = Progress().after(
    1, BatchCounts(changes=3), {0: 3}, EndOffsets(100 * S, {0: 3}), StreamRules()
)
TWO = ONE.after(2, BatchCounts(changes=1), {0: 4}, EndOffsets(200 * S, {0: 9}), StreamRules())


def test_stored_progress_is_read_back() -> None:
    """TBL-5"""
    assert Progress.from_json(TWO.to_json(), TWO.frontier) == TWO
    with_outside = replace(TWO, external_dead_letters=ExternalDeadLetters("D", 2, 60, {0: 4}))
    assert Progress.from_json(with_outside.to_json(), TWO.frontier) == with_outside
    assert Progress.from_json(TWO.to_json(), UNKNOWN) == replace(TWO, frontier=UNKNOWN)


@pytest.mark.parametrize(
    ("complete_to_batch", "bound_s", "now_s", "suffices"),
    [
        (1, 60, 160, True),
        (1, 60, 161, False),
        (1, None, 100, False),
        (1, 0, 100, False),
        (2, None, 999, True),
        (2, 60, 999, True),
    ],
)
def test_staleness_is_bounded(
    complete_to_batch: int, bound_s: float | None, now_s: int, suffices: bool
) -> None:
    """TBL-16: the table as it is suffices if it is fresh enough, or if nothing is missing;
    without a bound only if nothing is missing.
    """
    assert (
        TWO.suffices(TableState(complete_to_batch=complete_to_batch), bound_s, now_s * S)
        is suffices
    )


def test_a_table_is_as_old_as_is_known_today_or_was_at_its_apply() -> None:
    """TBL-16"""
    quiet = TWO.refreshed({0: 9}, EndOffsets(300 * S, {0: 9}))
    assert (
        TWO.as_of(TableState(complete_to_batch=2)),
        quiet.as_of(TableState(complete_to_batch=2)),
    ) == (100 * S, 300 * S)
    assert quiet.as_of(TableState(complete_to_batch=1)) == 100 * S
    assert quiet.as_of(TableState(complete_to_batch=1, as_of=150 * S)) == 150 * S
    assert Progress().as_of(TableState()) is None


@pytest.mark.parametrize(
    ("to_batch", "now_s", "is_late"),
    [(2, 999, False), (1, 103, False), (1, 104, True), (0, 103, False), (0, 104, True)],
)
def test_a_table_is_late_if_a_batch_waits_for_long(
    to_batch: int, now_s: int, *, is_late: bool
) -> None:
    """TBL-15: what matters is how long the oldest batch waits. No batch waits for a table that has
    them all, however old it is.
    """
    assert TWO.is_late(TableState(to_batch=to_batch), now_s * S, 3 * S) is is_late
    unknown = replace(TWO, freshness=NONE_ASKED)
    assert not unknown.is_late(TableState(to_batch=1), 0, 3 * S), "how long is not known"


def test_rows_expire_only_once_everything_was_read_that_could_release_them() -> None:
    """WRS-21: batch 2 was read up to offset 4 of 9, so only what arrived before 100 s is known."""
    assert TWO.expires_before(500 * S, 20) == (100 - 2 * 20) * S
    quiet = TWO.refreshed({0: 9}, EndOffsets(300 * S, {0: 9}))
    assert quiet.expires_before(500 * S, 20) == (300 - 2 * 20) * S
    assert quiet.expires_before(250 * S, 20) == (250 - 2 * 20) * S
    assert Progress().expires_before(500 * S, 20) < 0


def test_the_error_of_a_stale_table_names_its_cause() -> None:
    """TBL-16: the error names the lag and who causes it."""
    TWO.check_age("accounts", "s", 100 * S, 60, 160 * S)
    TWO.check_age("accounts", "s", None, None, 160 * S)
    with pytest.raises(
        StaleTableError,
        match=(
            r"accounts is 60\.5 s old, .* the bound is 60 s\. Ingest .*T00:03:20.* 5 offsets"
            r" behind\. Check"
        ),
    ) as error:
        TWO.check_age("accounts", "s", 100 * S, 60, 160 * S + S // 2)
    assert error.value.fields == {"table": "accounts", "as_of": 100 * S}
    waits = BlockingLetter(b"k", 1, (0, 7), 1, (0, 7), table_letter=False, since=90 * S)
    with pytest.raises(StaleTableError, match=r"Ingest last asked"):
        TWO.check_age("accounts", "s", 100 * S, 60, 10**6 * S, (waits,))
    with pytest.raises(
        StaleTableError, match=r"wait for dead letters .* since .*T00:01:30.* replay"
    ):
        ONE.check_age("accounts", "s", 30 * S, 60, 110 * S, (waits,))
    with pytest.raises(StaleTableError, match=r"of unknown age.*Ingest has never run"):
        replace(Progress(), freshness=NONE_ASKED).check_age("accounts", "s", None, 60, 160 * S)


def test_an_operators_end_is_recorded_and_not_taken_twice() -> None:
    """WMK-8"""
    claims = BatchClaims(1, {"p": {0: 5}, "q": {0: 9}})
    overrides = [
        ClosePartition(number, "s", name, "gone", 1, "me") for number, name in ((3, "p"), (4, "q"))
    ]
    asked = EndOffsets(100 * S, {0: 3})
    spoken = Progress().after(
        1, BatchCounts(claims=claims, read_at=7), {0: 3}, asked, StreamRules()
    )
    one = spoken.after(
        2, BatchCounts(claims=BatchClaims(1)), {0: 3}, asked, StreamRules(), overrides[:1]
    )
    assert (one.ends, one.closed_to, list(one.frontier.live), one.frontier.ended) == (
        (overrides[0],),
        3,
        ["q"],
        {"p": Ended(5)},
    )
    assert Progress.from_json(one.to_json(), one.frontier) == one
    both = one.after(3, BatchCounts(claims=BatchClaims(1)), {0: 3}, asked, StreamRules(), overrides)
    assert (both.ends, both.closed_to, list(both.frontier.live)) == ((overrides[1],), 4, [])
    assert (
        both.after(4, BatchCounts(claims=BatchClaims(1)), {0: 3}, asked, StreamRules()).ends == ()
    )


def test_a_batch_without_rows_was_read_when_kafka_was_asked() -> None:
    """WMK-12: no stream partition is stalled because there was nothing to read."""
    claims = BatchClaims(1, {"p": {0: 5}})
    quiet = Progress().after(
        1, BatchCounts(claims=claims), {0: 0}, EndOffsets(100 * S, {0: 0}), StreamRules()
    )
    assert quiet.frontier.last_advance["p"].at == 100 * S


ANNOUNCED = (LineageRecord(0, 1, ChildPartitions("root", 1, 0, (ChildPartition("p"),))),)


def ingested(
    before: Progress, counts: BatchCounts, *, at: int = 0, retention_s: int = 10
) -> Progress:
    """The progress after another batch, before which Kafka was asked at `at`."""
    batch = before.ingest_batch + 1
    return before.after(
        batch, counts, {0: batch}, EndOffsets(at, {0: batch}), StreamRules(retention_s)
    )


def test_records_of_a_batch_are_all_that_were_read() -> None:
    """DLQ-5: what was rejected is a part of them, by every reason; late and unknown changes are
    changes.
    """
    counts = BatchCounts(
        changes=5,
        control=3,
        unknown_tables=2,
        late=1,
        ignored_claims=4,
        rejected={"TOO_LATE": 7, "INVALID/TABLE": 11},
    )
    assert counts.records == 26
    assert BatchCounts().records == 0


def test_counts_of_batches_are_added() -> None:
    """OPS-5: every count, and rejected records by reason."""
    first = BatchCounts(
        changes=1,
        control=2,
        unknown_tables=3,
        late=4,
        ignored_claims=5,
        staged=8,
        rejected={"UNDECODABLE": 6, "TOO_LATE": 7},
    )
    second = BatchCounts(
        changes=10,
        control=20,
        unknown_tables=30,
        late=40,
        ignored_claims=50,
        staged=80,
        rejected={"TOO_LATE": 70, "INVALID/TABLE": 80},
    )
    both = ingested(ingested(Progress(), first), second)
    counts = both.changes, both.control, both.unknown_tables, both.late, both.ignored_claims
    assert (*counts, both.staged) == (11, 22, 33, 44, 55, 88)
    assert both.rejected == {"INVALID/TABLE": 80, "TOO_LATE": 77, "UNDECODABLE": 6}
    assert ingested(both, BatchCounts()).rejected == both.rejected


@pytest.mark.parametrize(
    "changed",
    [
        {"changes": 5},
        {"staged": 1},
        {"rejected": {"TOO_LATE": 1}},
        {"truncations": SourceTruncations(others_to=1)},
        {"releases": ReleaseProgress(released_to=1)},
        {},
    ],
)
def test_a_batch_of_heartbeats_changes_no_row(changed: Mapping[str, Any]) -> None:
    """JOB-2: ingest looks whether a batch may change a row of a table."""
    after = replace(ingested(TWO, BatchCounts(control=1, ignored_claims=1)), **changed)
    assert after.may_change_rows_after(TWO) is bool(changed)


def test_the_first_record_was_rejected_when_its_batch_was_read() -> None:
    """DLQ-7: open dead letters are at most that old."""
    clean = ingested(Progress(), BatchCounts(changes=1, read_at=100), at=99)
    assert clean.rejected_since is None
    poisoned = ingested(clean, BatchCounts(rejected={"UNDECODABLE": 1}, read_at=200), at=199)
    assert poisoned.rejected_since == 200
    later = ingested(poisoned, BatchCounts(rejected={"UNDECODABLE": 1}, read_at=300), at=299)
    assert later.rejected_since == 200
    assert ingested(later, BatchCounts(changes=1, read_at=400)).rejected_since == 200


@pytest.mark.parametrize(
    ("waited_us", "ignores_watermark"), [(60 * S - 1, False), (60 * S, True), (61 * S, True)]
)
def test_a_cut_stops_at_the_low_watermark_until_that_is_stalled(
    waited_us: int, ignores_watermark: bool
) -> None:
    """TBL-10, TBL-11: exactly after `stall_after` everything is applied. The horizons of the batch
    go with the cut.
    """
    claims = BatchClaims(1, {"p": {0: 50 * S}}, ANNOUNCED)
    stands = ingested(Progress(), BatchCounts(claims=claims, read_at=100 * S), at=90 * S)
    now = 100 * S + waited_us
    assert stands.cut(now, stall_after_s=60) == Cut(
        batch=1,
        low_watermark=50 * S,
        ignores_watermark=ignores_watermark,
        horizon=40 * S,
        freshness=stands.freshness,
        chosen_at=now,
        batch_horizons=stands.batch_horizons,
    )
    assert stands.freshness.time_of(1) == 90 * S
    assert stands.batch_horizons.horizon_of(1) == 0


def test_without_a_low_watermark_everything_is_applied() -> None:
    """TBL-11"""
    cut = ingested(
        Progress(), BatchCounts(claims=BatchClaims(1, {"stray": {0: 5}}), read_at=7)
    ).cut(8, stall_after_s=60)
    assert (cut.low_watermark, cut.ignores_watermark, cut.horizon) == (None, True, None)


def test_horizons_are_carried_on_from_batch_to_batch() -> None:
    """MRG-10, MRG-12: one by commit timestamps, one by batches; neither goes back, though the
    retention was raised.
    """
    one = ingested(
        Progress(),
        BatchCounts(claims=BatchClaims(1, {"p": {0: 50 * S}}, ANNOUNCED), read_at=100 * S),
    )
    two = ingested(one, BatchCounts(claims=BatchClaims(1, {"p": {0: 60 * S}}), read_at=120 * S))
    three = ingested(
        two,
        BatchCounts(claims=BatchClaims(1, {"p": {0: 61 * S}}), read_at=140 * S),
        retention_s=1_000,
    )
    assert [stands.horizon for stands in (one, two, three)] == [40 * S, 50 * S, 50 * S]
    horizons = BatchHorizon(1, 100 * S, 0), BatchHorizon(2, 120 * S, 2)
    assert (two.batch_horizons, three.batch_horizons) == (
        BatchHorizons(horizons),
        BatchHorizons(horizons),
    )


def test_ends_below_the_horizon_of_the_previous_batch_are_forgotten() -> None:
    """WMK-9: the horizon of the batch itself is not yet committed."""
    claims = BatchClaims(1, {"p": {0: 5 * S}, "q": {0: 50 * S}})
    override = ClosePartition(1, "s", "p", "gone", 1, "me")
    asked, rules = EndOffsets(1, {0: 1}), StreamRules(10, frozenset({"p", "q"}))
    one = Progress().after(
        1, BatchCounts(claims=claims, read_at=1), {0: 1}, asked, rules, [override]
    )
    assert {name: end.at for name, end in one.frontier.ended.items()} == {"p": 5 * S}
    two = one.after(2, BatchCounts(claims=BatchClaims(1), read_at=2), {0: 1}, asked, rules)
    assert (two.low_watermark, two.horizon, two.frontier.ended) == (50 * S, 40 * S, {})


AT = 1_795_653_500 * S
OPEN = OpenTransaction(0, 7, 3, AT, "p")


def test_the_status_names_its_age_and_its_stream_partition() -> None:
    """OPS-5: and the offsets that it hides are the lag. One of a moment ago is no problem."""
    progress = Progress(ingest_batch=1).refreshed({0: 7}, EndOffsets(AT, {0: 10}), [OPEN])
    assert Progress.from_json(progress.to_json(), UNKNOWN) == progress
    assert not any(
        "transaction" in hint
        for hint in stream_status(
            StreamConfig(name="s", topic="s", stall_after_s=300), progress, AT + S
        ).hints
    )
    status = stream_status(
        StreamConfig(name="s", topic="s", stall_after_s=300), progress, AT + 90 * S
    )
    assert status.lag == 3
    (hint,) = (hint for hint in status.hints if "transaction" in hint)
    assert "hides 3 offsets of Kafka partition 0" in hint
    assert "at offset 7, arrived 1m30s ago" in hint
    assert "of stream partition p" in hint
    assert "kafka_partition" in status.to_json()["open_transactions"][0]


def test_without_open_transactions_nothing_is_stored() -> None:
    assert "open_transactions" not in Progress().to_json()


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_transaction_that_reading_has_passed_or_not_reached_hides_nothing(
    first: int, end: int
) -> None:
    """OPS-5: a transaction hides records only if reading stopped at its first record."""
    result = still_hiding([OPEN._replace(first_offset=first)], {0: end})
    assert bool(result) == (first == end)
