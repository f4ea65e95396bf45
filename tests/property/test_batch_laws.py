"""The rows of a batch are those of its records one by one, wherever it is cut (ENG-2, TBL-4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from connector.dead_letters.envelope import ClaimedLetter, replay_claim
from connector.engine import batch, erased, replays
from connector.engine.batch import IngestJob, arrivals, changelog_rows, of_unseen_schemas
from connector.engine.replays import replays_in
from connector.engine.rules import RecordRules
from connector.engine.schema import KAFKA
from connector.engine.slots import by_key
from connector.records.codec import SCHEMA, Schemas, confluent_id, frame, framed
from connector.records.model import DataChange, Truncate, kafka_key
from connector.records.ordering import OrderPosition
from connector.records.rejection import Headers, Position
from connector.state.erased_keys import ErasedKeys, key_hash
from connector.validation import EARLIEST_ARRIVAL, MAX_AHEAD_US, Limits, arrival
from tests.changes import NEWER_SCHEMA
from tests.examples import tries
from tests.record_cases import (
    CHANGE,
    SKEW_S,
    STAGED,
    TOPIC_PARTITIONS,
    Case,
    aged_cases,
    cases_of_every_kind,
    key_cases,
    settings_cases,
)

SECRET = b"secret"
LOGGED = {ClaimedLetter(0, 7, of_table=False): OrderPosition(1, 0, 7)}
Rows = Sequence[dict[str, Any]]
CLAIMS = (b"id-0-7/3", b"id-0-7-accounts/3", b"id-0-8/1", b"id-0-7/0", b"other-0-7/2", b"", None)


def records_of(cases: Sequence[Case], rng: Random) -> pa.RecordBatch:
    def header() -> list[dict[str, object]] | None:
        claims = [{"key": "connector.replay", "value": value} for value in rng.sample(CLAIMS, 2)]
        return rng.choice((None, None, [{"key": "x", "value": b"y"}], claims))

    rows = [
        {
            "kafka_partition": number % 3,
            "offset": number,
            "record_timestamp": case.arrival_ms * 1000,
            "key": case.key,
            "value": case.value,
            "headers": header(),
        }
        for number, case in enumerate(cases)
    ]
    return pa.RecordBatch.from_pylist(rows, KAFKA)


def erased_keys(cases: Sequence[Case], rng: Random) -> ErasedKeys:
    keys = sorted({case.key for case in cases if case.key is not None})
    some = rng.sample(keys, min(len(keys), 3))
    times = (CHANGE.commit_timestamp - 1, CHANGE.commit_timestamp, 2**62)
    hashes = {key_hash(SECRET, "t", key): rng.choice(times) for key in some}
    hashes[key_hash(SECRET, "t", CHANGE.row_key)] = CHANGE.commit_timestamp
    return ErasedKeys(SECRET, hashes, frozenset({"t"}))


def job(records: pa.RecordBatch, rules: RecordRules, schemas: Schemas) -> IngestJob:
    return IngestJob(
        records=records,
        rules=rules,
        schemas=schemas,
        topic="t",
        topic_id="id",
        ingest_batch=5,
        ingest_time=9,
        logged=LOGGED,
    )


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows with times as numbers: some are after the year 9999."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in table.columns
    ]
    rows: list[dict[str, Any]] = pa.table(columns, names=table.column_names).to_pylist()
    return rows


def assert_law(
    cases: Sequence[Case], rng: Random, rules: RecordRules, schemas: Schemas
) -> set[str]:
    """Returns the kinds of the rows."""
    cases = rng.sample(cases, len(cases))
    rules = replace(rules, erased=erased_keys(cases, rng))
    records = records_of(cases, rng)
    whole = by_key(changelog_rows(job(records, rules, schemas)))
    whole.validate(full=True)
    assert sorted(whole["offset"].to_pylist()) == [*range(len(cases))]
    parts, start = [], 0
    while start < len(cases):
        part = records.slice(start, rng.choice((1, 1, 2, 7, 100)))
        parts.append(changelog_rows(job(part, rules, schemas)))
        start += len(part)
    rows = plain_rows(whole)
    is_same = plain_rows(by_key(pa.concat_tables(parts))) == rows
    assert is_same, "a batch that is cut has other rows"
    assert_erased(rows, records, rules.erased)
    assert_positions(rows, records)
    return {row["kind"] for row in rows}


def assert_erased(rows: Rows, records: pa.RecordBatch, erased: ErasedKeys) -> None:
    """OPR-2: no row has a refused key, and an erased row has no content."""
    sent = {row["offset"]: row for row in records.to_pylist()}
    for row in rows:
        time, arrived = row["commit_timestamp"], sent[row["offset"]]["record_timestamp"]
        if row["kind"] in ("change", "staged"):
            at = arrived if time is None else time
            assert erased.refused(row["table"], row["row_key"], at) is None
        elif row["kind"] == "rejected" and row["key"] is not None:
            is_decoded = row["reason"] not in ("UNDECODABLE", "TOO_LARGE", "UNKNOWN_FRAMING")
            assert is_decoded or erased.refused("t", row["key"], arrived) is None
        elif row["kind"] == "erased":
            assert row["row_key"].hex() in erased.erased_to
            content = ("entries", "change_sequence_number", "row_image", "resume_token")
            nothing = (*content, "key", "value", "headers", "reason", "letter_id")
            assert not any(row[name] for name in nothing), row


def assert_positions(rows: Rows, records: pa.RecordBatch) -> None:
    """DLQ-10: `replay_claim` is the definition."""
    sent = {row["offset"]: row for row in records.to_pylist()}
    for row in rows:
        own = OrderPosition(5, row["kafka_partition"], row["offset"])
        headers = sent[row["offset"]]["headers"] or ()
        claim = replay_claim(tuple((one["key"], one["value"]) for one in headers))
        if claim is not None:
            letter, attempt = claim
            own = (LOGGED_IDS.get(letter) or own)._replace(attempt=attempt)
        assert OrderPosition(**row["order_position"]) == own


LOGGED_IDS = {"id-0-7": OrderPosition(1, 0, 7)}
LIMITS = Limits(max_clock_skew_s=SKEW_S)
RULES = RecordRules(LIMITS, TOPIC_PARTITIONS)


def kinds_of(rng: Random, seed: int) -> set[str]:
    """The kinds of the rows of a batch, for which the law is true."""
    cases = [*cases_of_every_kind(seed)[:50], *key_cases(), *settings_cases(seed)]
    truncate = Truncate("p", "t", CHANGE.commit_timestamp)
    staged = replace(STAGED, row_key=b"another")
    cases += aged_cases() * 2
    cases += [Case("valid", kafka_key(one), framed(one, 2)) for one in (truncate, staged)]
    horizon = rng.choice((None, CHANGE.commit_timestamp))
    limits = replace(LIMITS, max_record_bytes=rng.choice((300, 10_000)))
    rules = replace(RULES, limits=limits, horizon=horizon)
    return assert_law(cases, rng, rules, Schemas({7: SCHEMA, 9: NEWER_SCHEMA}))


def test_a_batch_may_be_cut_anywhere(seed: int) -> None:
    """ENG-2, TBL-4, DLQ-10, OPR-2"""
    kinds = set[str]().union(
        *(kinds_of(Random(f"{seed}/{number}"), seed) for number in tries(20, quick=2))
    )
    assert kinds == {"change", "staged", "truncate", "control", "rejected", "erased"}


def one(change: DataChange, value: bytes | None = None, **names: object) -> Case:
    framed_ = framed(change, 1) if value is None else value
    return Case("one", change.row_key, framed_, EARLIEST_ARRIVAL // 1000 + 5, **names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "rule", "wrong"),
    [
        (batch, "without_erased", lambda rows, arrivals, erased: (rows, [False] * len(rows))),
        (batch, "without_letter", lambda record, rejection, schemas, erased: rejection),
        (batch, "positions_with", lambda positions, replays, logged: positions),
        (replays, "coordinates_of", lambda letter, topic_id: ClaimedLetter(0, 7, of_table=False)),
        (erased, "_CONTENT", ("entries", "row_image")),
    ],
)
def test_a_wrong_rule_is_noticed(
    module: object, rule: str, wrong: object, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, rule, wrong)
    with pytest.raises((AssertionError, TypeError)):
        for number in range(100):
            kinds_of(Random(f"{seed}/{number}"), seed)


def test_a_replay_names_its_letter() -> None:
    """DLQ-10: on rubbish, too, and on the last of several headers."""
    cases: dict[tuple[bytes | None, ...], tuple[int, ClaimedLetter | None] | None] = {
        (None,): None,
        (b"id-1-5/1",): (1, ClaimedLetter(1, 5, of_table=False)),
        (b"id-1-5-t-u/12",): (12, ClaimedLetter(1, 5, of_table=True)),
        (b"id-1-5-a/b/12",): (12, ClaimedLetter(1, 5, of_table=True)),
        (b"id-1-5-/1",): (1, None),
        (b"id-1/1",): (1, None),
        (b"id-1-5/1", b"no"): None,
        (b"no", b"id-1-5/1"): (1, ClaimedLetter(1, 5, of_table=False)),
        ("id-1-٣/1".encode(),): (1, None),
        (b"id-1234567890-1/1",): (1, None),
        (b"x-1-5/1",): (1, None),
    }
    for values, found in cases.items():
        headers: Headers = tuple(("connector.replay", value) for value in values)
        row = {"headers": [{"key": key, "value": value} for key, value in headers]}
        records = pa.RecordBatch.from_pylist([row], KAFKA)
        assert replays_in(records, "id").get(0) == found, values


def test_arrivals_are_those_of_the_definition(seed: int) -> None:
    """REC-25"""
    rng, read_at = Random(seed), 1_714_475_000_000_000
    edges = (EARLIEST_ARRIVAL, read_at, read_at + MAX_AHEAD_US, 253_402_300_799_999_000, 0)
    cases = [
        (edge // 1000 + away, by_broker)
        for edge in edges
        for away in (-1, 0, 1, rng.randrange(-(10**6), 10**6))
        for by_broker in (False, True)
    ]
    times = pa.array([milliseconds * 1000 for milliseconds, _ in cases], pa.int64())
    by_broker = pa.array([by_broker for _, by_broker in cases])
    wanted = [arrival(ms, by_broker=by, read_at=read_at) for ms, by in cases]
    found = arrivals(times, by_broker, read_at).to_pylist()
    assert found == [read_at if one is None else one for one in wanted]


def test_schemas_that_were_not_asked_for_are_unseen() -> None:
    """REC-11, DLQ-4: an id that the registry does not have is seen."""
    values = [frame(b"body", 8), frame(b"", 0), frame(b"x", 9), b"\0\0\0\0", b"", None]
    values += [framed(CHANGE, 1), framed(STAGED, 1, 2**32 - 1)]
    records = pa.RecordBatch.from_pylist([{"value": value} for value in values], KAFKA)
    unseen = of_unseen_schemas(records, Schemas({8: None, 0: SCHEMA})).to_pylist()
    assert unseen == [confluent_id(value) in (9, 2**32 - 1) for value in values]


def test_a_letter_is_at_its_position() -> None:
    """DLQ-1: a rejected record has the id of its coordinates."""
    records = records_of([one(CHANGE, b"rubbish")], Random(1))
    (row,) = changelog_rows(job(records, RULES, Schemas())).to_pylist()
    assert row["letter_id"] == f"id-{Position('t', 'id', 0, 0).kafka_partition}-0"
