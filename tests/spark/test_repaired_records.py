"""Poison of every kind, mended and replayed: the table is as if it had never been bad (DLQ-2,
DLQ-10, DLQ-12).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import parse_schema
from pyspark.sql import SparkSession

from connector.dead_letters.envelope import DeadLetter
from connector.dead_letters.ledger import LetterState, LetterStatus
from connector.dead_letters.repair import Step
from connector.dead_letters.replay import ReplayTarget, Verdict, decide
from connector.records.codec import SCHEMA, Schemas, encode, frame
from connector.records.json_view import to_json
from connector.records.model import DataChange, Heartbeat, kafka_key
from connector.records.rejection import Reason
from connector.validation import KafkaRecord, Limits, validate_record
from tests.fastavro_encoder import to_datum
from tests.spark.streams import STREAM, Stream, account, definition, shown

PARSED = parse_schema(json.loads(SCHEMA))
FUTURE = 4_000_000_000_000_000


@dataclass(frozen=True)
class Case:
    """What came in place of a good change, and the steps that make it good again."""

    reason: Reason
    bad: Callable[[DataChange], tuple[bytes, bytes]]
    steps: Callable[[DataChange], tuple[str, ...]] = lambda good: ()


def framed(change: DataChange) -> bytes:
    return frame(encode(change, 2), None)


def altered(change: DataChange, alter: Callable[[dict[str, Any]], object]) -> bytes:
    """The framed value of the change's datum, once `alter` has been at it; no constructor of ours
    would take it.
    """
    datum = copy.deepcopy(to_datum(change, 2))
    alter(datum["data_change"])
    body = BytesIO()
    fastavro.schemaless_writer(body, PARSED, datum)
    return frame(body.getvalue(), None)


def as_json(good: DataChange) -> tuple[str, ...]:
    """What an editor would make of it."""
    return (f"set record={to_json(good, 2)}",)


CASES = {
    "bare": Case(
        Reason.UNKNOWN_FRAMING,
        lambda c: (c.row_key, encode(c, 2)),
        lambda c: ("reframe single-object",),
    ),
    "foreign": Case(
        Reason.UNKNOWN_FRAMING,
        lambda c: (c.row_key, b"MAGIC" + framed(c)),
        lambda c: ("reframe own@5",),
    ),
    "schema": Case(
        Reason.UNKNOWN_SCHEMA,
        lambda c: (c.row_key, frame(encode(c, 2), 4711)),
        lambda c: ("reframe single-object",),
    ),
    "cut": Case(Reason.UNDECODABLE, lambda c: (c.row_key, framed(c)[:-2]), as_json),
    "family": Case(
        Reason.INVALID,
        lambda c: (c.row_key, altered(c, lambda d: d["entries"][0].update(family="no family"))),
        lambda c: ('set record.data_change.entries[0].family="f"',),
    ),
    "key": Case(
        Reason.KEY_MISMATCH, lambda c: (b"another row", framed(c)), lambda c: ("unset key",)
    ),
    "future": Case(
        Reason.COMMIT_TIMESTAMP_IN_FUTURE,
        lambda c: (c.row_key, framed(replace(c, commit_timestamp=FUTURE))),
        lambda c: (f"set record.data_change.commit_timestamp={c.commit_timestamp}",),
    ),
    "entry": Case(
        Reason.UNKNOWN_ENTRY,
        lambda c: (c.row_key, altered(c, lambda d: d["entries"][0].update(kind="UNKNOWN"))),
        as_json,
    ),
    "number": Case(
        Reason.INVALID_SEQUENCE_NUMBER,
        lambda c: (c.row_key, altered(c, lambda d: d.update(change_sequence_number="no number"))),
        lambda c: ('set record.data_change.change_sequence_number="A"',),
    ),
    "value": Case(
        Reason.UNREADABLE_VALUE,
        lambda c: (c.row_key, framed(replace(c, entries=account("x", 1, amount="many").entries))),
        as_json,
    ),
    "table": Case(
        Reason.UNKNOWN_TABLE, lambda c: (c.row_key, framed(replace(c, table="other"))), as_json
    ),
    "large": Case(
        Reason.TOO_LARGE,
        lambda c: (
            c.row_key,
            framed(replace(c, entries=account("x", 1, note="n" * 5_000).entries)),
        ),
        as_json,
    ),
}
"""By name: of a row of that name. What no step mends and an editor does is given as an editor gives
it.
"""


def good(name: str, at: int) -> DataChange:
    return account(name, at, name=f"{name} at {at}", amount=str(at))


def test_a_table_is_as_if_its_bad_records_had_been_good(
    spark: SparkSession, tmp_path: Path
) -> None:
    """poison_is_contained, replay_is_safe: whatever newer or older changes of the row came between,
    and each letter once.
    """
    config = replace(STREAM, limits=Limits(max_record_bytes=2_000))
    stream, clean = (
        Stream(spark, tmp_path / name, config, reject_unknown_tables=True)
        for name in ("poisoned", "clean")
    )
    for name, case in CASES.items():
        stream.topic.raw(case.bad(good(name, 5)))
        clean.topic.send(good(name, 5))
    for each in (stream, clean):
        each.ingest()
        each.apply(each.table())
        # Between: a newer change of half of a row, and an older one of another half.
        for place, name in enumerate(CASES):
            each.topic.send(
                account(name, 7, name="newer")
                if place % 2
                else account(name, 3, amount="3", name="older")
            )
        each.ingest()
        each.apply(each.table())
    by_reason = sorted((letter.reason for letter in stream.letters), key=str)
    assert by_reason == sorted((case.reason for case in CASES.values()), key=str)

    again = stream.one_letter_each()
    for letter in again.values():
        replay(stream, letter)
    stream.ingest()
    stream.apply(stream.table())
    assert stream.one_letter_each() == again, "a mended one was rejected again"
    assert shown(stream.table()) == shown(clean.table())
    assert len(shown(clean.table())) == len(CASES)


def replay(stream: Stream, letter: DeadLetter) -> None:
    """As the tool does it, with the steps of its case."""
    name = list(CASES)[letter.position.offset]
    steps = [Step.parse(text) for text in CASES[name].steps(good(name, 5))]
    wanted = definition()

    def validated(record: KafkaRecord, schemas: Schemas) -> object:
        return validate_record(
            record,
            schemas=schemas,
            limits=Limits(),
            kafka_partitions=2,
            tables=frozenset({"t"}),
            horizon=None,
        )

    door = ReplayTarget(STREAM.topic, 2, 10_000_000, validated, {wanted.name: wanted})  # type: ignore[arg-type]
    decision = decide(
        letter, LetterStatus(LetterState.OPEN, 0, 0), door, Schemas(), now=stream.clock, steps=steps
    )
    assert decision.verdict is Verdict.REPLAY, (name, decision.why)
    assert decision.content is not None
    stream.topic.headers[1, len(stream.topic.records[1])] = decision.content.headers
    stream.topic.raw((decision.content.key, decision.content.value), at=1)


def test_a_false_heartbeat_is_never_replayed(spark: SparkSession, tmp_path: Path) -> None:
    """DLQ-2, watermark_is_honest: a claim of a wrong clock does not become true."""
    stream = Stream(spark, tmp_path / "w")
    beat = Heartbeat("p", FUTURE)
    stream.topic.raw((kafka_key(beat), frame(encode(beat, 2), None)))
    stream.ingest()
    (letter,) = stream.letters
    assert letter.reason is Reason.WATERMARK_IN_FUTURE
    door = ReplayTarget(STREAM.topic, 2, 10_000_000, lambda record, schemas: None, {})  # type: ignore[arg-type, return-value]
    assert (
        decide(letter, LetterStatus(LetterState.OPEN, 0, 0), door, Schemas(), now=FUTURE).verdict
        is Verdict.REFUSE
    )
