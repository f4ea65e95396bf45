"""Records that columns decide are those that `validate_record` accepts, with the same fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from connector.engine import decode as columns
from connector.engine.avro import ALWAYS_READ, ENOUGH, Cursor
from connector.engine.decode import Decoded, decode
from connector.engine.record_rows import rows_of
from connector.engine.rules import RecordRules
from connector.engine.schema import RECORD
from connector.records.codec import SCHEMA, ChangeRecord, Schemas, confluent_id, framed
from connector.records.model import (
    MAX_LONG,
    MAX_TIMESTAMP,
    ColumnType,
    DataChange,
    Heartbeat,
    ModType,
    OldCell,
    RowImage,
    Transaction,
    WriteStreamOffset,
    kafka_key,
)
from connector.records.rejection import Rejection
from connector.validation import Limits, RowImages, UnknownFields, validate_record
from tests.changes import NEWER_SCHEMA, delete_cells, delete_family, put
from tests.damaged_cases import (
    LATE_MS,
    block_cases,
    damaged,
    damaged_cases,
    length_cases,
    schema_cases,
    text_cases,
)
from tests.examples import tries
from tests.record_cases import (
    ARRIVAL_MS,
    CHANGE,
    HEARTBEAT,
    ROW,
    SKEW_S,
    STAGED,
    TOPIC_PARTITIONS,
    Case,
    aged_cases,
    cases_of_every_kind,
    cases_of_two_rules,
    key_cases,
    limit_cases,
    old_cases,
    records_of_every_kind,
    settings_cases,
)

LIMITS = Limits(max_clock_skew_s=SKEW_S)
EVERY_FIELD = replace(
    CHANGE,
    entries=(delete_family(), put("é", cell_timestamp=5), delete_cells(3, 7), delete_cells(4)),
    tie_breaker=-(2**63),
    resume_token=b"r" * 70,
    estimated_low_watermark=MAX_LONG,
    transaction=Transaction("571:1", 2**62, True, -1, 2**31 - 1, "tag", True),
    change_sequence_number="FFFFFFFFFFFFFFFF/a/0",
    row_image=RowImage(
        ModType.UPDATE,
        "NEW_AND_OLD",
        (ColumnType("id", "INT64", True, 1), ColumnType("ä", "STRING")),
        (OldCell("f", b"q", b"v", -1), OldCell("", b"", b"")),
    ),
)
"""A change outside write streams with every field, and values of every size."""


class Batch:
    """Records and what columns and the definition say of them."""

    def __init__(self, cases: Sequence[Case], schemas: Schemas, rules: RecordRules) -> None:
        self.cases = cases
        self.schemas = schemas
        around = [Case("around", CHANGE.row_key, framed(CHANGE, 1))] * 2  # not a part of the batch
        keys, values = (
            pa.array([getattr(case, name) for case in (*around, *cases, *around)], pa.binary())
            for name in ("key", "value")
        )
        self.decoded: Decoded = decode(
            keys.slice(2, len(cases)),
            values.slice(2, len(cases)),
            np.array([case.arrival_ms * 1000 for case in cases], np.int64),
            rules,
            schemas,
        )
        self.verdicts = [
            validate_record(
                case.record,
                schemas=schemas,
                limits=rules.limits,
                kafka_partitions=rules.kafka_partitions,
                tables=rules.tables,
                horizon=rules.horizon,
            )
            for case in cases
        ]

    def assert_law(self) -> None:
        """What columns decide, the definition accepts with the same fields. What is in the form in
        which our encoder writes changes and heartbeats, columns decide.
        """
        records, is_decided = self.decoded
        records.validate(full=True)
        accepted = []
        for case, verdict, is_one in zip(self.cases, self.verdicts, is_decided, strict=True):
            if is_one:
                assert not isinstance(verdict, Rejection), (case.name, case.value, verdict)
                accepted.append(verdict)
            elif isinstance(verdict, ChangeRecord):
                assert not self.is_plain(case, verdict), (case.name, case.value, verdict)
        wanted = rows_of(accepted)
        if not records.equals(wanted):
            assert records.to_pylist() == wanted.to_pylist()
        assert records.equals(wanted)

    def is_plain(self, case: Case, decoded: ChangeRecord) -> bool:
        id_ = confluent_id(case.value)
        if id_ is not None and self.schemas.by_id[id_] != SCHEMA:
            return False
        return _are_few_items(decoded) and case.value == framed(
            decoded.record, decoded.kafka_partitions, id_
        )


def _are_few_items(decoded: ChangeRecord) -> bool:
    match decoded.record:
        case Heartbeat():
            return True
        case DataChange(entries=entries, row_image=image):
            lists = (entries, () if image is None else (*image.column_types, *image.old_cells))
            return all(len(items) <= ALWAYS_READ for items in lists)
    return False


def assert_law(
    cases: Sequence[Case],
    *,
    schemas: Schemas | None = None,
    limits: Limits = LIMITS,
    tables: frozenset[str] | None = None,
    horizon: int | None = None,
) -> set[str]:
    """The law holds for the cases, in batches of any size. Returns the names of those that columns
    decide.
    """
    rng = Random(len(cases))
    rules = RecordRules(limits, TOPIC_PARTITIONS, tables, horizon=horizon)
    shuffled = rng.sample(cases, len(cases))
    found: set[str] = set()
    start = 0
    while start < len(cases):
        size = rng.choice((0, 1, 3, 30, 300, 300, 3000))
        batch = Batch(shuffled[start : start + size], schemas or Schemas(), rules)
        batch.assert_law()
        found |= {
            case.name
            for case, is_one in zip(batch.cases, batch.decoded.is_decided, strict=True)
            if is_one
        }
        start += size
    return found


def test_records_of_every_kind(seed: int) -> None:
    """TBL-3, ENG-2: good ones, and such as lie at the edge of a limit or beyond."""
    assert {"legal", "edge"} <= assert_law(cases_of_every_kind(seed))


def test_each_rule_on_both_sides_of_its_limit(seed: int) -> None:
    """REC-10, REC-14, REC-16, WRS-4, WRS-16."""
    assert_law(limit_cases())
    assert_law(cases_of_two_rules(seed, 500), tables=frozenset({"t"}))


def test_keys_clocks_sizes_and_tables() -> None:
    """REC-1, REC-3, REC-15, TBL-7."""
    limits = Limits(max_clock_skew_s=SKEW_S, max_record_bytes=300)
    for tables in (frozenset({"t", "v.1"}), frozenset[str](), None):
        assert_law(key_cases(), limits=limits, tables=tables)
    for skew in (0, 2**63):
        assert_law(key_cases(), limits=Limits(max_clock_skew_s=skew))


@pytest.mark.parametrize("record", [CHANGE, HEARTBEAT])
def test_a_record_of_the_largest_size(record: DataChange | Heartbeat) -> None:
    """REC-14: key and value count."""
    case = Case("size", kafka_key(record), framed(record, 4), LATE_MS)
    assert case.key
    assert case.value
    size = len(case.key) + len(case.value)
    for most, decided in ((size - 1, set[str]()), (size, {"size"})):
        assert assert_law([case], limits=Limits(max_record_bytes=most)) == decided


def test_times_that_are_too_old_or_too_late() -> None:
    """ING-6, MRG-11."""
    assert_law(aged_cases(), horizon=CHANGE.commit_timestamp)
    least = ARRIVAL_MS * 1000
    for limits in (Limits(min_commit_timestamp=least), Limits(min_commit_timestamp=1), Limits()):
        for horizon in (None, least + 1):
            assert_law(old_cases(least), limits=limits, horizon=horizon)


def test_rules_of_a_stream(seed: int) -> None:
    """ING-7, EVO-10."""
    schemas = Schemas({7: SCHEMA, 9: NEWER_SCHEMA})
    strict = Limits(unknown_fields=UnknownFields.REJECT, row_images=RowImages.REJECT)
    for limits in (LIMITS, strict):
        assert "image" in assert_law(settings_cases(seed), schemas=schemas, limits=limits)


def test_damaged_bytes(seed: int) -> None:
    """REC-13, ENG-2: flips, cuts, rubbish and numbers that lie."""
    cases = damaged_cases(seed)
    rng = Random(seed)
    for record in (EVERY_FIELD, ROW, STAGED, HEARTBEAT):
        cases += damaged(rng, record, len(tries(2000)))
    assert "damaged" in assert_law(cases)


def test_text_blocks_and_lengths() -> None:
    """REC-12, REC-13."""
    assert assert_law(text_cases())
    assert "one block" in assert_law(block_cases())
    assert assert_law(length_cases(), limits=Limits(max_record_bytes=2**26))


def test_other_schemas_and_framings(seed: int) -> None:
    """REC-11, REC-12: only records in the newest schema are decided, under any id."""
    schemas, cases = schema_cases(seed)
    decided = assert_law(cases, schemas=schemas)
    assert {"id 7", f"id {2**32 - 1}"} <= decided
    assert not decided & {"newer", "head", "null", "id 8", "id 10"}


@pytest.mark.parametrize("record", [EVERY_FIELD, ROW, STAGED, HEARTBEAT])
def test_a_record_ends_with_its_bytes(record: DataChange | Heartbeat) -> None:
    """ENG-2: of a record that was cut, the next bytes in memory are the rest, or there are none."""
    key, value = kafka_key(record), framed(record, 4)
    cuts = range(1, len(value))
    halves = [half for length in cuts for half in (value[:length], value[length:])]
    assert _decided(key, [value, *halves]) == [True, *[False] * len(halves)]
    for length in cuts:
        assert _decided(key, [value[:length]]) == [False], length


def _decided(key: bytes, values: Sequence[bytes]) -> list[bool]:
    keys = pa.array([key] * len(values), pa.binary())
    arrivals = np.full(len(values), MAX_TIMESTAMP)
    rules = RecordRules(LIMITS, TOPIC_PARTITIONS)
    decoded = decode(keys, pa.array(values, pa.binary()), arrivals, rules, Schemas())
    is_decided: list[bool] = decoded.is_decided.tolist()
    return is_decided


def test_no_records() -> None:
    rules = RecordRules(LIMITS, TOPIC_PARTITIONS)
    empty = pa.array([], pa.binary())
    decoded = decode(empty, empty, np.empty(0, np.int64), rules, Schemas())
    assert (decoded.records, len(decoded.is_decided)) == (RECORD.empty_table(), 0)


def test_a_null_is_not_decided_though_its_bytes_are_a_record() -> None:
    value = framed(CHANGE, 1)
    _, offsets, content = pa.array([value, value], pa.binary()).buffers()
    values = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, content])
    keys = pa.array([CHANGE.row_key] * 2, pa.binary())
    rules = RecordRules(LIMITS, TOPIC_PARTITIONS)
    decoded = decode(keys, values, np.full(2, MAX_TIMESTAMP), rules, Schemas())
    assert decoded.is_decided.tolist() == [False, True]


def _wide(entries: int) -> Case:
    change = replace(CHANGE, entries=tuple(put("v", qualifier=b"%d" % n) for n in range(entries)))
    return Case(f"{entries} entries", change.row_key, framed(change, 4), LATE_MS)


def test_long_arrays_are_decided_if_enough_records_have_them() -> None:
    """ENG-2: else each entry of one record costs a pass."""
    long = ALWAYS_READ + 1
    few = [_wide(ALWAYS_READ), *[_wide(long)] * (ENOUGH - 1)]
    many = [_wide(1), _wide(long + 2), *[_wide(long)] * ENOUGH, _wide(long + 1)]
    rules = RecordRules(LIMITS, TOPIC_PARTITIONS)
    for cases, decided in ((few, {ALWAYS_READ}), (many, {1, long})):
        batch = Batch(cases, Schemas(), rules)
        batch.assert_law()
        names = {
            case.name
            for case, is_one in zip(cases, batch.decoded.is_decided, strict=True)
            if is_one
        }
        assert names == {f"{count} entries" for count in decided}


def test_a_change_has_no_more_than_the_most_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """REC-14: the limit is too large to be tried."""
    monkeypatch.setattr(columns, "MAX_ENTRIES", 3)
    rules = RecordRules(LIMITS, TOPIC_PARTITIONS)
    batch = Batch([_wide(3), _wide(4)], Schemas(), rules)
    assert batch.decoded.is_decided.tolist() == [True, False]


ANYTHING = re.compile(rb"(?s).*").fullmatch
LOOSE: dict[str, Any] = {
    **dict.fromkeys(("_is_table", "_is_family", "_is_write_stream"), ANYTHING),
    "_is_sequence_number": ANYTHING,
    **dict.fromkeys(("MAX_ROW_KEY_BYTES", "MAX_QUALIFIER_BYTES", "MAX_TIMESTAMP"), MAX_LONG),
    **dict.fromkeys(("MAX_STREAM_PARTITION_BYTES", "MAX_RESUME_TOKEN_BYTES"), MAX_LONG),
    "CONTROL_KEY": b"other",
}


@pytest.mark.parametrize("name", LOOSE)
def test_columns_that_accept_too_much_are_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, name, LOOSE[name])
    with pytest.raises(AssertionError):
        assert_law(limit_cases())


def test_columns_that_accept_any_time_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_has_passed", lambda time, given: np.ones(len(time), np.bool_))
    with pytest.raises(AssertionError):
        assert_law(key_cases())


def test_columns_that_accept_any_schema_are_noticed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    schemas, cases = schema_cases(seed)
    monkeypatch.setattr(columns, "_has_our_bodies", lambda schema: True)
    with pytest.raises(AssertionError):
        assert_law(cases, schemas=schemas)


@pytest.mark.parametrize("name", ["require_end", "_end_block"])
def test_a_cursor_that_accepts_too_much_is_noticed(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = list(damaged(Random(seed), ROW, 500))
    monkeypatch.setattr(Cursor, name, lambda *arguments, **names: None)
    with pytest.raises(AssertionError):
        assert_law(cases)


def test_a_change_of_a_write_stream_has_its_offset() -> None:
    """WRS-16: of visible and of staged changes."""
    rows = [replace(ROW, write_stream=WriteStreamOffset("job/rows", n)) for n in (0, MAX_LONG)]
    cases = [
        Case("row", row.row_key, framed(row, 4), LATE_MS) for row in (*rows, STAGED, CHANGE, ROW)
    ]
    batch = Batch(cases, Schemas(), RecordRules(LIMITS, TOPIC_PARTITIONS))
    batch.assert_law()
    streams = batch.decoded.records["write_stream"].to_pylist()
    assert [stream and stream["offset"] for stream in streams] == [0, MAX_LONG, 7, None, 7]
    assert batch.decoded.records["kind"].to_pylist()[2:4] == ["staged", "change"]


def test_records_of_every_kind_in_one_batch_keep_their_order(seed: int) -> None:
    cases = [
        Case("mixed", kafka_key(record), framed(record, 4), LATE_MS)
        for record in [*records_of_every_kind(seed), EVERY_FIELD, HEARTBEAT]
    ]
    Batch(cases, Schemas(), RecordRules(LIMITS, TOPIC_PARTITIONS)).assert_law()
