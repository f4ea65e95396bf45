"""What is found out about producers, by example (PUB-4, ING-1, ING-3, ING-4, ING-7)."""

from __future__ import annotations

import json
from dataclasses import replace

from connector.records.model import ChildPartition, ChildPartitions
from connector.state.source_checks import (
    MAX_FIELDS,
    MAX_NAMES,
    NOTHING_FOUND,
    BatchFindings,
    Ignored,
    KeyPlacement,
    SampledChange,
    SchemaFields,
    SourceChecks,
    ignored_claims,
)
from connector.state.stream_progress import BatchCounts, Progress, StreamRules
from connector.watermarks.advance import advance
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    LineageRecord,
)
from connector.watermarks.producer_epoch import OlderProducer

S = 1_000_000


def announced(*names: str, at: int, k: int = 0) -> LineageRecord:
    children = tuple(ChildPartition(name) for name in names)
    return LineageRecord(k, 1, ChildPartitions("root", at, 0, children))


def after(checks: SourceChecks, result: BatchFindings, now: int = 0) -> SourceChecks:
    return checks.after(result, checks.placement, now)


def test_every_ignored_claim_has_its_reason() -> None:
    """ING-4: backwards, in the future, of an ended partition, of an older announcement."""
    claims = BatchClaims(1, {"p": {0: 50}, "gone": {0: 9}}, (announced("p", "gone", at=5),))
    before = advance(UNKNOWN, claims, now=0)
    before = advance(before, BatchClaims(1), now=0, ends=["gone"])
    batch = BatchClaims(1, {"p": {0: 40}, "gone": {0: 60}}, (announced("p", at=4),))
    assert ignored_claims({"p": 2, "q": 0}, batch, before) == {
        "gone": {Ignored.ENDED: 1},
        "p": {Ignored.IN_FUTURE: 2, Ignored.BACKWARDS: 1},
        "root": {Ignored.OLDER_ANNOUNCEMENT: 1},
    }


def test_parts_and_repetitions_of_an_announcement_are_not_older() -> None:
    """ING-4, WMK-6: they have the same start timestamp, whatever their record sequence."""
    before = advance(UNKNOWN, BatchClaims(1, lineage=(announced("p", at=5),)), now=0)
    part = announced("q", at=5)
    part = replace(part, record=replace(part.record, record_sequence=-7))
    assert ignored_claims({}, BatchClaims(1, lineage=(part,)), before) == {}


def test_different_starts_of_one_child_are_counted() -> None:
    """ING-4, WMK-7: in one batch, of the parent that names the later one. In two, of the parent
    that is read second, in both orders.
    """
    children = (ChildPartition("x", ("p", "q")),)
    reports = {
        name: LineageRecord(0, 1, ChildPartitions(name, at, 0, children))
        for name, at in (("p", 100), ("q", 130))
    }
    start = advance(UNKNOWN, BatchClaims(1, lineage=(announced("p", "q", at=5),)), now=0)
    counted = {"q": {Ignored.LATER_START: 1}}
    assert ignored_claims({}, BatchClaims(1, lineage=tuple(reports.values())), start) == counted
    for one, other in (("p", "q"), ("q", "p")):
        first = BatchClaims(1, lineage=(reports[one],))
        assert ignored_claims({}, first, start) == {}
        after_first = advance(start, first, now=0)
        assert ignored_claims({}, first, after_first) == {}, "a repetition"
        second = BatchClaims(1, lineage=(reports[other],))
        assert ignored_claims({}, second, after_first) == {other: {Ignored.LATER_START: 1}}


def test_claims_that_count_or_say_nothing_are_not_ignored() -> None:
    """ING-4: a larger claim, none at all, and an announcement that is repeated."""
    claims = BatchClaims(1, {"p": {0: 50}, "gone": {0: 9}}, (announced("p", "gone", at=5),))
    before = advance(UNKNOWN, claims, now=0)
    before = advance(before, BatchClaims(1), now=0, ends=["gone"])
    for claims in (
        {"p": {0: 50}},
        {"p": {0: 60}},
        {"p": {0: 0}},
        {"gone": {0: 0}},
        {"new": {0: 1}},
    ):
        assert ignored_claims({}, BatchClaims(1, claims, (announced("p", at=5),)), before) == {}


def test_findings_add_up_from_batch_to_batch() -> None:
    """PUB-4, ING-3, ING-4, ING-7"""
    result = BatchFindings(
        ignored={"p": {Ignored.BACKWARDS: 2}},
        older_producers={"p": OlderProducer(1, 5, 7)},
        row_images={"DELETE": 3},
        unknown_fields={9: SchemaFields(("DataChange.colour",), 10)},
    )
    more = replace(
        result,
        ignored={"p": {Ignored.BACKWARDS: 1, Ignored.ENDED: 1}},
        row_images={"INSERT": 1},
    )
    checks = after(after(NOTHING_FOUND, result, now=1), more, now=2)
    assert checks.ignored == {"p": {Ignored.BACKWARDS: 3, Ignored.ENDED: 1}}
    assert (checks.two_producers["p"].batches, checks.two_producers["p"].last_at) == (2, 2)
    assert checks.row_images == {"DELETE": 3, "INSERT": 1}
    assert checks.unknown_fields == {9: SchemaFields(("DataChange.colour",), 20)}


def test_the_stored_form_stays_small_whatever_producers_send() -> None:
    """ING-3, ING-4, PUB-4: the names with the most, or with the newest findings stay."""
    checks = NOTHING_FOUND
    fields = tuple(f"DataChange.{'x' * 1_000}{n}" for n in range(100))
    for n in range(3 * MAX_NAMES):
        result = BatchFindings(
            ignored={f"p{n}": {Ignored.ENDED: n + 1}},
            older_producers={f"p{n}": OlderProducer(0, 1, 2)},
            unknown_fields={n: SchemaFields(fields, n + 1)},
        )
        checks = after(checks, result, now=n)
    last = {f"p{n}" for n in range(2 * MAX_NAMES, 3 * MAX_NAMES)}
    assert checks.ignored.keys() == checks.two_producers.keys() == last
    assert len(last) == 50, "as docs/reference/on-disk-format.md says"
    assert set(checks.unknown_fields) == set(range(2 * MAX_NAMES, 3 * MAX_NAMES))
    assert all(len(of.fields) == MAX_FIELDS for of in checks.unknown_fields.values())
    assert len(json.dumps(replace(Progress(), checks=checks).to_json())) < 100_000


def test_a_sample_is_compared_with_the_kafka_partitions_of_its_keys() -> None:
    """ING-1: over the number of Kafka partitions that the record names."""
    sample = [
        SampledChange(b"\0" * 100, kafka_partition=1, kafka_partitions=2, offset=3),
        SampledChange(b"ab", kafka_partition=0, kafka_partitions=1, offset=7),
        SampledChange(b"abc", kafka_partition=0, kafka_partitions=2, offset=9),
    ]
    placement = KeyPlacement().after(sample, lambda key, n: len(key) % n, 60 * S)
    assert (placement.sampled, placement.misplaced, placement.sampled_at) == (3, 2, 60 * S)
    assert placement.example is not None
    assert (placement.example.key, placement.example.right_partition) == (b"abc", 1)
    again = placement.after(sample[1:2], lambda key, n: len(key) % n, 120 * S)
    assert (again.sampled, again.misplaced, again.example) == (4, 2, placement.example)
    assert not placement.is_due(120 * S - 1)
    assert placement.is_due(120 * S)
    assert len(KeyPlacement().after(sample[:1], lambda key, n: 0, 1).example.key) == 64  # type: ignore[union-attr]


def test_progress_without_findings_is_stored_as_before() -> None:
    """TBL-5: an older release reads it, and its progress is read here."""
    assert "checks" not in Progress().to_json()
    counts = BatchCounts(findings=BatchFindings(ignored={"p": {Ignored.ENDED: 1}}))
    result = Progress().after(1, counts, {}, EndOffsets(1, {}), StreamRules())
    stored = json.loads(json.dumps(result.to_json()))
    assert Progress.from_json(stored, result.frontier) == result
    del stored["checks"]
    assert Progress.from_json(stored, result.frontier) == replace(result, checks=NOTHING_FOUND)
