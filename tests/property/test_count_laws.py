"""The rows of a batch are counted in its files as a fold over the rows counts them (TBL-5).

The files are real ones, with the columns of a changelog that Spark has written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from connector.errors import TableError
from connector.lake import batch_counts
from connector.lake.batch_counts import count_rows, count_table
from connector.records.codec import frame
from connector.records.model import (
    MAX_LONG,
    MAX_TIMESTAMP,
    ChildPartition,
    ChildPartitions,
    OffsetRange,
    Release,
    Transaction,
    Truncate,
)
from connector.state.batch_counts import BatchRows, RowCounts
from connector.state.source_checks import SampledChange
from connector.state.unapplied import TableChanges
from connector.warehouse import (
    CONTROL_SLOT,
    FRONTIER_SLOT,
    MIXED_SLOT,
    REJECTED_SLOT,
    RELEASED_SLOT,
    STAGED_SLOT,
)
from connector.watermarks.frontier import LineageRecord, is_claim
from connector.watermarks.producer_epoch import EPOCH_HEADER, EpochRun
from tests.examples import examples

Row = dict[str, Any]

CHANGELOG: Final = Path(__file__).parents[1] / "golden/warehouse/streams/s/changelog"
SCHEMA: Final = parquet.read_schema(next(CHANGELOG.glob("slot=-1/*.parquet")))

BATCH: Final = 7
AT: Final = 1_000_000
SKEW: Final = 500
SIZE: Final = 11
LOW: Final = 900_000
ALL: Final = BatchRows(
    changelog="",
    files=(),
    ingest_batch=BATCH,
    known_tables=frozenset({"t"}),
    low_watermark=LOW,
    max_clock_skew=SKEW,
    with_schemas=True,
    sample=3,
)


def row(kind: str, slot: int, **others: Any) -> Row:
    known = dict.fromkeys(SCHEMA.names)
    common = {
        "kind": kind,
        "slot": slot,
        "ingest_batch": BATCH,
        "kafka_partition": 0,
        "offset": 0,
        "order_position": {"attempt": 0},
        "record_timestamp": AT,
        "ingest_time": AT + 5,
        "stream_partition": "p",
        "kafka_partitions": 2,
    }
    found = {**known, **common, **others}
    assert found.keys() == known.keys()
    return found


def change(**others: Any) -> Row:
    given = {
        "table": "t",
        "row_key": b"k",
        "commit_timestamp": AT,
        "estimated_low_watermark": 0,
        "entries": [{"kind": "SET_CELL"}],
    }
    return row("change", 3, **{**given, **others})


def staged(**others: Any) -> Row:
    given = {"table": "t", "estimated_low_watermark": 0, "write_stream": {"stream": "a/b"}}
    return row("staged", STAGED_SLOT, **{**given, **others})


def control(**others: Any) -> Row:
    return row("control", CONTROL_SLOT, **others)


def truncate(**others: Any) -> Row:
    given = {"table": "t", "commit_timestamp": AT, "tie_breaker": 0, "transaction": None}
    return row("truncate", CONTROL_SLOT, **{**given, **others})


def heartbeat(at: int = 10, **others: Any) -> Row:
    return control(heartbeat={"timestamp": at}, **others)


def rejected(reason: str, rule: str | None = None, **others: Any) -> Row:
    lacking = dict.fromkeys(("stream_partition", "kafka_partitions"))
    return row("rejected", REJECTED_SLOT, reason=reason, rule=rule, **lacking, **others)


def epoch(*values: bytes | None) -> list[Row]:
    return [{"key": EPOCH_HEADER, "value": value} for value in values]


REPLAY: Final[Row] = {"order_position": {"attempt": 1}}
LINEAGE: Final[Row] = {
    "start_timestamp": 4,
    "record_sequence": 2,
    "children": [
        {"token": "c", "parent_partition_tokens": ["p"], "start_key": b"", "end_key": None}
    ],
}
CHILDREN: Final = ChildPartitions("p", 4, 2, (ChildPartition("c", ("p",), b"", None),))
RELEASE: Final[Row] = {
    "commit_timestamp": 5,
    "ranges": [{"stream": "a/b", "first": 0, "upto": 3}],
}
IMAGE: Final[Row] = {"value_capture_type": "", "column_types": [], "old_cells": []}


def write(folder: Path, rows: Iterable[Row], *, at_once: int, files: int = 1) -> tuple[str, ...]:
    """Write rows to `files` files of each slot, in row groups of `at_once` rows. Returns the
    actions that add the files.
    """
    by_file: dict[tuple[int, int], list[Row]] = {}
    for number, one in enumerate(rows):
        by_file.setdefault((one["slot"], number % files), []).append(one)
    actions = []
    for (slot, number), of_file in by_file.items():
        name = f"slot={slot}/part {number}.parquet"
        (folder / f"slot={slot}").mkdir(exist_ok=True)
        schema = pa.schema([one for one in SCHEMA if one.name != "slot"])
        parquet.write_table(
            pa.Table.from_pylist(of_file, schema=schema), folder / name, row_group_size=at_once
        )
        path = name.replace(" ", "%20")
        add = {"path": path, "size": SIZE, "partitionValues": {"slot": str(slot)}}
        actions.append(json.dumps({"add": add}))
    return tuple(actions)


def counted(rows: Sequence[Row], *, at_once: int = 100, files: int = 1) -> RowCounts:
    with TemporaryDirectory() as folder:
        actions = write(Path(folder), rows, at_once=at_once, files=files)
        counts = count_rows(replace(ALL, changelog=folder, files=actions))
    assert counts.written == SIZE * len(actions)
    return replace(counts, written=0)


def told(rows: Iterable[Row]) -> RowCounts:
    """The counts, one row after the other. The sample has all changes that may be in it."""
    found = RowCounts()
    for one in rows:
        if one["ingest_batch"] == BATCH and one["slot"] > FRONTIER_SLOT:
            tell(one, found)
    return found


def tell(one: Row, found: RowCounts) -> None:
    found.read_at = max(found.read_at, one["ingest_time"])
    if one["reason"] is not None:
        rule = "" if one["rule"] is None else f"/{one['rule']}"
        found.rejected[one["reason"] + rule] += 1
        return
    place = one["stream_partition"], one["kafka_partition"]
    is_replay, arrival = one["order_position"]["attempt"] > 0, one["record_timestamp"]
    found.kafka_partitions = max(found.kafka_partitions, one["kafka_partitions"])
    if one["value"] is not None:
        found.schemas[int.from_bytes(one["value"][1:5])] += 1
    if one["kind"] in ("change", "staged") and one["table"] not in ALL.known_tables:
        found.unknown_tables += 1
    match one["kind"]:
        case "change":
            found.changes += 1
            tell_table(one, 1, found)
            found.late += one["commit_timestamp"] < LOW
            transaction = one["transaction"] or {"number_of_records_in_transaction": 1}
            found.declared += transaction["number_of_records_in_transaction"] > 1
            low = one["estimated_low_watermark"]
            counts = is_claim(low, arrival, SKEW)
            found.in_future[place[0]] += low > 0 and not counts
            if not is_replay:
                found.claim(*place, low if counts else 0)
                found.sample.append(
                    SampledChange(one["row_key"], place[1], one["kafka_partitions"], one["offset"])
                )
            tell_image(one, found)
        case "staged":
            found.staged += 1
            found.streams.add(one["write_stream"]["stream"])
        case "control" | "truncate":
            found.control += 1
            tell_control(one, place, found, is_replay=is_replay)


def tell_image(one: Row, found: RowCounts) -> None:
    mod_type = one["row_image"] and one["row_image"]["mod_type"]
    kinds = {entry["kind"] for entry in one["entries"]}
    if (mod_type == "DELETE" and "SET_CELL" in kinds) or (
        mod_type == "INSERT" and "SET_CELL" not in kinds
    ):
        found.row_images[mod_type] += 1


def tell_table(one: Row, changes: int, found: RowCounts) -> None:
    at = (one["record_timestamp"], one["commit_timestamp"])
    is_delete = all(entry["kind"] != "SET_CELL" for entry in one["entries"] or ())
    before = found.tables.get(one["table"], TableChanges())
    since = [time for time in (before.deletes_since, at[0] if is_delete else None) if time]
    to = max(before.deletes_to, at[1] if is_delete else 0)
    found.tables[one["table"]] = TableChanges(
        before.changes + changes, min(since, default=None), to
    )


def tell_control(one: Row, place: tuple[str, int], found: RowCounts, *, is_replay: bool) -> None:
    if one["kind"] == "truncate":
        transaction = one["transaction"] and Transaction(**one["transaction"])
        tell_table(one, 0, found)
        fields = (place[0], one["table"], one["commit_timestamp"], one["tie_breaker"])
        truncation = Truncate(*fields, transaction, one["change_sequence_number"])
        if truncation not in found.truncations:
            found.unknown_tables += one["table"] != "t"
            found.late += one["commit_timestamp"] < LOW
        found.truncations[truncation] = None
    if one["release"] is not None:
        ranges = tuple(OffsetRange(**a_range) for a_range in one["release"]["ranges"])
        found.releases[Release(place[0], one["release"]["commit_timestamp"], ranges)] = None
    if is_replay:
        return
    values = [header["value"] for header in one["headers"] or () if header["key"] == EPOCH_HEADER]
    if values and values[0] in (b"0", b"12", b"13"):
        found.epoch(*place, int(values[0]), one["offset"])
    if one["heartbeat"] is not None:
        found.claim(*place, one["heartbeat"]["timestamp"] + 1)
    if one["child_partitions"] is not None:
        record = replace(CHILDREN, stream_partition=place[0])
        found.lineage[LineageRecord(place[1], one["kafka_partitions"], record)] = None


PLACES = st.fixed_dictionaries(
    {
        "stream_partition": st.sampled_from(("p", "q")),
        "kafka_partition": st.integers(0, 2),
        "offset": st.integers(0, 2**40),
        "kafka_partitions": st.integers(1, 9),
        "ingest_time": st.integers(AT, AT + 9),
        "record_timestamp": st.integers(AT - 1, AT + 1),
        "ingest_batch": st.sampled_from((BATCH, BATCH, BATCH, BATCH - 1)),
    }
)
ATTEMPTS = st.sampled_from(({}, {}, REPLAY))
VALUES = st.sampled_from((None, None, frame(b"x", 1), frame(b"", 2**31)))
CLAIMS = st.sampled_from(
    (0, 1, AT, AT + SKEW, AT + SKEW + 1, MAX_TIMESTAMP, MAX_TIMESTAMP + 1, MAX_LONG)
)
SET, DELETE = {"kind": "SET_CELL"}, {"kind": "DELETE_CELLS"}
CHANGES = st.builds(
    change,
    table=st.sampled_from(("t", "u")),
    row_key=st.binary(min_size=1, max_size=3),
    commit_timestamp=st.sampled_from((1, LOW - 1, LOW, MAX_TIMESTAMP)),
    estimated_low_watermark=CLAIMS,
    entries=st.lists(st.sampled_from((SET, DELETE)), min_size=1, max_size=3),
    transaction=st.none()
    | st.builds(lambda n: {"number_of_records_in_transaction": n}, st.integers(-1, 3)),
    row_image=st.none()
    | st.builds(
        lambda name: {**IMAGE, "mod_type": name}, st.sampled_from(("INSERT", "UPDATE", "DELETE"))
    ),
    value=VALUES,
)
CONTROLS = st.builds(
    lambda said, headers, value: control(**said, headers=headers, value=value),
    st.sampled_from(
        ({"child_partitions": LINEAGE}, {"release": RELEASE}, {"heartbeat": {"timestamp": 8}})
    ),
    st.none() | st.builds(epoch, st.sampled_from((b"0", b"12", b"13", b"x", None)), st.just(b"13")),
    VALUES,
)
TX: Final[Row] = {
    "server_transaction_id": "x",
    "record_sequence": 1,
    "is_last_record_in_transaction_in_partition": False,
    "number_of_records_in_transaction": 2,
    "number_of_partitions_in_transaction": 1,
    "transaction_tag": "",
    "is_system_transaction": False,
}
TRUNCATIONS = st.builds(
    truncate,
    table=st.sampled_from(("t", "u")),
    commit_timestamp=st.sampled_from((1, LOW - 1, LOW)),
    tie_breaker=st.integers(0, 1),
    transaction=st.none() | st.just(TX),
    change_sequence_number=st.none() | st.just("A"),
    headers=st.none() | st.just(epoch(b"12")),
    value=VALUES,
)
OTHERS = st.one_of(
    TRUNCATIONS,
    st.builds(staged, table=st.sampled_from(("t", "u")), value=VALUES),
    st.builds(rejected, st.sampled_from(("A", "B")), st.none() | st.just("R"), value=VALUES),
    st.just(row("frontier", FRONTIER_SLOT, frontier="{}")),
    st.just(row("released", RELEASED_SLOT, release=RELEASE)),
)


def placed(rows: Mapping[str, Any], place: Row, attempt: Row) -> Row:
    of_kind = dict(place)
    if rows["kind"] == "rejected":
        del of_kind["stream_partition"], of_kind["kafka_partitions"]
    return {**rows, **of_kind, **attempt}


ROWS = st.lists(
    st.builds(placed, CHANGES | CONTROLS | OTHERS, PLACES, ATTEMPTS),
    max_size=30,
    unique_by=lambda one: (one["kafka_partition"], one["offset"]),
)


@examples(100, quick=6)
@given(rows=ROWS, at_once=st.integers(1, 10), files=st.integers(1, 3))
def test_files_are_counted_as_their_rows(rows: list[Row], at_once: int, files: int) -> None:
    """TBL-5, ING-1, ING-2, ING-3, ING-4, ING-7, WRS-17, PUB-4, MET-1: whatever the files and their
    row groups.
    """
    expected = told(rows)
    found = counted(rows, at_once=at_once, files=files)
    assert len(found.sample) == min(ALL.sample, len(expected.sample))
    assert set(found.sample) <= set(expected.sample)
    assert replace(found, sample=[]) == replace(expected, sample=[])
    again = counted([*reversed(rows)], at_once=at_once + 1)
    assert again == found


@examples(100, quick=6)
@given(ROWS, st.integers(1, 3))
def test_a_small_batch_is_counted_as_its_rows(rows: list[Row], at_once: int) -> None:
    """ENG-4, ENG-10: in a file with rows of all kinds, and in memory."""
    mixed = [one | {"slot": max(one["slot"], MIXED_SLOT)} for one in rows if is_mixed(one)]
    expected, found = told(mixed), counted(mixed, at_once=at_once)
    of_batch = [one for one in mixed if one["ingest_batch"] == BATCH]
    schema = pa.schema([one for one in SCHEMA if one.name != "slot"])
    table = pa.Table.from_pylist(of_batch, schema=schema)
    assert count_table(table, ALL) == found
    assert set(found.sample) <= set(expected.sample)
    assert len(found.sample) == min(ALL.sample, len(expected.sample))
    assert replace(found, sample=[]) == replace(expected, sample=[])


def is_mixed(one: Row) -> bool:
    return bool(one["slot"] > FRONTIER_SLOT)


def test_a_count_that_forgets_the_batch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law above can fail."""
    rows = [change(), change(ingest_batch=BATCH - 1)]
    assert counted(rows).changes == 1
    read = batch_counts._read
    monkeypatch.setattr(
        batch_counts, "_read", lambda file, n, batch, columns: read(file, n, BATCH - 1, columns)
    )
    assert replace(counted(rows), sample=[]) == replace(told(rows), sample=[])
    assert replace(counted(rows[:1]), sample=[]) != replace(told(rows[:1]), sample=[])


CASES: Final[Mapping[str, tuple[list[Row], Row]]] = {
    "nothing": ([], {}),
    "a sentinel is no claim": ([change()], {"claims": {"p": {0: 0}}, "in_future": {"p": 0}}),
    "the greatest claim counts": (
        [change(estimated_low_watermark=n) for n in (3, 9, 4)],
        {"claims": {"p": {0: 9}}},
    ),
    "a claim may be ahead by the skew": (
        [change(estimated_low_watermark=AT + SKEW)],
        {"claims": {"p": {0: AT + SKEW}}, "in_future": {"p": 0}},
    ),
    "and not more": (
        [change(estimated_low_watermark=AT + SKEW + 1)],
        {"claims": {"p": {0: 0}}, "in_future": {"p": 1}},
    ),
    "a heartbeat claims the next microsecond": ([heartbeat(10)], {"claims": {"p": {0: 11}}}),
    "a replay makes no claim": (
        [change(estimated_low_watermark=5, **REPLAY), heartbeat(**REPLAY)],
        {"changes": 1, "control": 1, "claims": {}, "sample": []},
    ),
    "a change at the low watermark is not late": (
        [change(commit_timestamp=LOW), change(commit_timestamp=LOW - 1)],
        {"late": 1},
    ),
    "a transaction of one record declares none": (
        [change(transaction={"number_of_records_in_transaction": n}) for n in (0, 1, 2)],
        {"declared": 1},
    ),
    "the first epoch of a record counts": (
        [heartbeat(headers=epoch(b"12", b"13"), offset=n) for n in (4, 2)],
        {"epochs": {"p": {0: {12: EpochRun(12, 2, 4)}}}},
    ),
    "0 is an epoch, and no number is none": (
        [heartbeat(headers=epoch(value)) for value in (b"0", b"x", b"\xff", None, b"1" * 19)],
        {"epochs": {"p": {0: {0: EpochRun(0, 0, 0)}}}},
    ),
    "a replay, and a change, have no epoch": (
        [heartbeat(headers=epoch(b"12"), **REPLAY), change(headers=epoch(b"12"))],
        {"epochs": {}},
    ),
    "lineage is counted once for each Kafka partition": (
        [control(child_partitions=LINEAGE, kafka_partition=k) for k in (0, 1, 1)],
        {"lineage": {LineageRecord(k, 2, CHILDREN): None for k in (0, 1)}},
    ),
    "but not that of a replay": (
        [control(child_partitions=LINEAGE, **REPLAY)],
        {"lineage": {}, "control": 1},
    ),
    "a release is counted once, also of a replay": (
        [control(release=RELEASE), control(release=RELEASE, **REPLAY)],
        {"releases": {Release("p", 5, (OffsetRange("a/b", 0, 3),)): None}, "control": 2},
    ),
    "the copies of a truncation are one, which makes no claim": (
        [truncate(kafka_partition=k, table="u", commit_timestamp=5) for k in (0, 1, 1)],
        {
            "truncations": {Truncate("p", "u", 5): None},
            "control": 3,
            "unknown_tables": 1,
            "late": 1,
            "claims": {},
        },
    ),
    "staged rows make no claim": (
        [staged(), staged(write_stream={"stream": "a/c"}, table="u")],
        {"staged": 2, "streams": {"a/b", "a/c"}, "unknown_tables": 1, "claims": {}},
    ),
    "rejected records are counted by reason and rule": (
        [rejected("A"), rejected("A", "R"), rejected("A", "R", value=frame(b"", 3))],
        {"rejected": {"A": 1, "A/R": 2}, "schemas": {}, "read_at": AT + 5},
    ),
    "a schema id is counted where the value is kept": (
        [change(value=frame(b"x", 2**31)), change(), heartbeat(value=frame(b"x", 3))],
        {"schemas": {2**31: 1, 3: 1}},
    ),
    "a change that sets no cell, and a truncation, are deletes": (
        [
            change(entries=[DELETE, SET], record_timestamp=AT - 3),
            change(entries=[DELETE], record_timestamp=AT + 2, commit_timestamp=AT - 1),
            change(table="u"),
            truncate(record_timestamp=AT + 1),
        ],
        {"tables": {"t": TableChanges(2, AT + 1, AT), "u": TableChanges(1)}},
    ),
    "row images that contradict": (
        [
            change(row_image={**IMAGE, "mod_type": mod_type}, entries=entries)
            for mod_type in ("INSERT", "UPDATE", "DELETE")
            for entries in ([SET], [DELETE], [DELETE, SET])
        ],
        {"row_images": {"INSERT": 1, "DELETE": 2}},
    ),
    "a frontier and released ranges are no records": (
        [row("frontier", FRONTIER_SLOT), row("released", RELEASED_SLOT, release=RELEASE)],
        {"control": 0, "releases": {}, "read_at": 0},
    ),
    "rows of another batch are not counted": (
        [change(ingest_batch=BATCH + 1), heartbeat(ingest_batch=BATCH - 1)],
        {"changes": 0, "control": 0, "claims": {}, "read_at": 0},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_counts_are_those_of_the_records(name: str) -> None:
    """TBL-5."""
    rows, expected = CASES[name]
    found = counted(rows)
    assert {field: getattr(found, field) for field in expected} == expected
    assert replace(found, sample=[]) == replace(told(rows), sample=[])


def test_values_and_samples_are_read_on_request(tmp_path: Path) -> None:
    """ING-1, ING-3."""
    files = write(tmp_path, [change(value=frame(b"", 1))], at_once=1)
    few = replace(ALL, changelog=str(tmp_path), files=files, with_schemas=False, sample=0)
    found = count_rows(few)
    assert (found.changes, found.schemas, found.sample) == (1, {}, [])


def test_a_sample_has_all_kafka_partitions_and_tables() -> None:
    """ING-1."""
    rows = [
        change(
            row_key=table.encode(), table=table, kafka_partition=k, offset=2 * n + (table == "u")
        )
        for k in range(3)
        for table in ("t", "u")
        for n in range(1000)
    ]
    with TemporaryDirectory() as folder:
        files = write(Path(folder), rows, at_once=500, files=2)
        found = count_rows(replace(ALL, changelog=folder, files=files, sample=600)).sample
    for k in range(3):
        for key in (b"t", b"u"):
            of_both = [one for one in found if (one.key, one.kafka_partition) == (key, k)]
            assert 80 <= len(of_both) <= 120


def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    """TBL-14."""
    files = write(tmp_path, [change()], at_once=1)
    (path,) = tmp_path.rglob("*.parquet")
    path.write_bytes(b"PAR1")
    with pytest.raises(TableError, match="cannot be read"):
        count_rows(replace(ALL, changelog=str(tmp_path), files=files))
