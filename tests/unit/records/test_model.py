from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from connector.errors import InvalidChangeError
from connector.records import codec
from connector.records.field_types import wrong_field
from connector.records.model import (
    CONTROL_KEY,
    MAX_LONG,
    MAX_TIMESTAMP,
    SERVER_TIME,
    UNENCODABLE,
    ChangeType,
    ChildPartition,
    ChildPartitions,
    ColumnType,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Heartbeat,
    ModType,
    OldCell,
    RowImage,
    Rule,
    SetCell,
    Transaction,
    kafka_key,
)


def change(**fields: Any) -> DataChange:
    legal: dict[str, Any] = {
        "stream_partition": "p",
        "table": "t",
        "row_key": b"k",
        "commit_timestamp": 5,
        "entries": (DeleteFamily("f"),),
    }
    return DataChange(**legal | fields)


LEGAL = [
    ("row_key", b"k" * 4096),
    ("table", "A-z_0.9" + "t" * 121),
    ("stream_partition", "ä" * 512),
    ("resume_token", b"r" * 65536),
    ("commit_timestamp", 1),
    ("commit_timestamp", MAX_TIMESTAMP),
    ("tie_breaker", -(2**63)),
    ("estimated_low_watermark", MAX_LONG),
    ("entries", (DeleteFamily("f"),) * 100_000),
    ("change_sequence_number", "0123456789abcdef/F/0/1"),
]
ILLEGAL = [
    (Rule.ROW_KEY, "row_key", b""),
    (Rule.ROW_KEY, "row_key", b"k" * 4097),
    (Rule.ROW_KEY, "row_key", CONTROL_KEY),
    (Rule.TABLE, "table", ""),
    (Rule.TABLE, "table", "t" * 129),
    (Rule.TABLE, "table", "users\n"),
    (Rule.TABLE, "table", "düsen"),
    (Rule.STREAM_PARTITION, "stream_partition", ""),
    (Rule.STREAM_PARTITION, "stream_partition", "ä" * 513),
    (Rule.RESUME_TOKEN, "resume_token", b"r" * 65537),
    (Rule.COMMIT_TIMESTAMP, "commit_timestamp", 0),
    (Rule.COMMIT_TIMESTAMP, "commit_timestamp", MAX_TIMESTAMP + 1),
    (Rule.COMMIT_TIMESTAMP, "commit_timestamp", 1.5e15),
    (Rule.ESTIMATED_LOW_WATERMARK, "estimated_low_watermark", -1),
    (Rule.ESTIMATED_LOW_WATERMARK, "estimated_low_watermark", 2**63),
    (Rule.SOURCE_CLUSTER_ID, "source_cluster_id", ""),
    (Rule.SOURCE_CLUSTER_ID, "change_type", ChangeType.GARBAGE_COLLECTION),
    (Rule.ENTRY_COUNT, "entries", ()),
    (Rule.ENTRY_COUNT, "entries", (DeleteFamily("f"),) * 100_001),
    ("INVALID_SEQUENCE_NUMBER", "change_sequence_number", ""),
    ("INVALID_SEQUENCE_NUMBER", "change_sequence_number", "1/2/3/4/5"),
    ("INVALID_SEQUENCE_NUMBER", "change_sequence_number", "0" * 17),
    ("INVALID_SEQUENCE_NUMBER", "change_sequence_number", "0x1F"),
    (UNENCODABLE, "tie_breaker", 2**63),
    (UNENCODABLE, "source_cluster_id", "\ud800"),
    (UNENCODABLE, "stream_partition", "\ud800"),
    (UNENCODABLE, "row_key", "text"),
]


@pytest.mark.parametrize(("field", "value"), LEGAL, ids=lambda value: repr(value)[:20])
def test_a_value_at_its_limit_is_legal(field: str, value: object) -> None:
    """REC-14."""
    assert getattr(change(**{field: value}), field) == value


@pytest.mark.parametrize(("rule", "field", "value"), ILLEGAL, ids=lambda value: repr(value)[:20])
def test_a_value_beyond_its_limit_names_rule_and_field(
    rule: str, field: str, value: object
) -> None:
    """REC-9, REC-14, REC-16: before anything is sent."""
    with pytest.raises(InvalidChangeError) as caught:
        change(**{field: value})
    assert caught.value.rule == rule
    assert field in (caught.value.field, "change_type")
    assert caught.value.limit


@pytest.mark.parametrize(
    ("rule", "build"),
    [
        (Rule.FAMILY, lambda: DeleteFamily("")),
        (Rule.FAMILY, lambda: DeleteFamily("f" * 65)),
        (Rule.FAMILY, lambda: SetCell("f\n", b"", b"")),
        (Rule.FAMILY, lambda: DeleteCells("f:g", b"")),
        (Rule.QUALIFIER, lambda: SetCell("f", b"q" * 16385, b"")),
        (Rule.QUALIFIER, lambda: DeleteCells("f", b"q" * 16385)),
        (Rule.CELL_TIMESTAMP, lambda: SetCell("f", b"", b"", -2)),
        (Rule.CELL_TIMESTAMP, lambda: SetCell("f", b"", b"", 2**63)),
        (Rule.CELL_RANGE, lambda: DeleteCells("f", b"", 5, 5)),
        (Rule.CELL_RANGE, lambda: DeleteCells("f", b"", 6, 5)),
        (Rule.CELL_RANGE, lambda: DeleteCells("f", b"", -1, 5)),
        (Rule.CELL_RANGE, lambda: DeleteCells("f", b"", 0, -5)),
        (Rule.TRANSACTION, lambda: Transaction("tx", -1)),
        (Rule.HEARTBEAT_TIMESTAMP, lambda: Heartbeat("p", 0)),
        (Rule.RESUME_TOKEN, lambda: Heartbeat("p", 1, b"r" * 65537)),
        (Rule.START_TIMESTAMP, lambda: ChildPartitions("p", MAX_TIMESTAMP + 1, 0, ())),
        (Rule.CHILDREN, lambda: ChildPartitions("p", 1, 0, (ChildPartition(""),))),
        (Rule.CHILDREN, lambda: ChildPartitions("p", 1, 0, (ChildPartition("c", ("",)),))),
        (Rule.CHILDREN, lambda: ChildPartitions("p", 1, 0, (ChildPartition("c", (), b"m", b"a"),))),
        (UNENCODABLE, lambda: SetCell("f", b"", "text")),  # type: ignore[arg-type]
        (UNENCODABLE, lambda: Transaction("tx", 0, number_of_records_in_transaction=2**31)),
        (UNENCODABLE, lambda: ColumnType("\ud800", "STRING")),
        (UNENCODABLE, lambda: OldCell("f", b"", b"", 2**63)),
        (UNENCODABLE, lambda: ChildPartitions("p", 1, 2**63, ())),
        (UNENCODABLE, lambda: RowImage("INSERT", "\udfff")),  # type: ignore[arg-type]
    ],
)
def test_a_part_beyond_its_limit_cannot_be_built(rule: str, build: Any) -> None:
    """REC-14."""
    with pytest.raises(InvalidChangeError) as caught:
        build()
    assert caught.value.rule == rule


def test_an_empty_qualifier_and_an_empty_value_are_legal() -> None:
    """REC-16."""
    assert SetCell("f", b"", b"", 0) == SetCell("f", b"", b"", 0)


def test_a_range_without_an_end_and_a_whole_column_are_legal() -> None:
    """REC-7."""
    assert DeleteCells("f", b"q") == DeleteCells("f", b"q", 0, 0)
    assert DeleteCells("f", b"q", 5).range_end == 0


def test_a_cell_without_a_timestamp_gets_that_of_the_commit_and_the_others_keep_theirs() -> None:
    """REC-14."""
    entries = (SetCell("f", b"a", b"1"), SetCell("f", b"b", b"2", 0), DeleteCells("f", b"c"))
    assert change(entries=entries).entries == (SetCell("f", b"a", b"1", 5), *entries[1:])


def test_a_cell_that_two_changes_share_gets_the_time_of_each() -> None:
    """REC-14: the cell that was given stays as it is."""
    cell = SetCell("f", b"a", b"1")
    built = change(entries=(cell,)), change(entries=[cell], commit_timestamp=6)
    assert [one.entries for one in built] == [
        (SetCell("f", b"a", b"1", 5),),
        (SetCell("f", b"a", b"1", 6),),
    ]
    assert cell == SetCell("f", b"a", b"1", SERVER_TIME)


def test_a_list_of_entries_is_taken_as_it_is_now() -> None:
    entries = [DeleteFamily("f")]
    built = change(entries=entries)
    entries.append(DeleteFamily("g"))
    assert built.entries == (DeleteFamily("f"),)


def test_a_column_is_not_part_of_the_primary_key_by_default() -> None:
    """REC-8."""
    assert ColumnType("name", "STRING") == ColumnType(
        "name", "STRING", is_primary_key=False, ordinal_position=0
    )


def test_garbage_collection_has_no_cluster() -> None:
    """REC-9."""
    assert (
        change(change_type=ChangeType.GARBAGE_COLLECTION, source_cluster_id="").source_cluster_id
        == ""
    )


def test_control_records_share_the_key_that_no_row_may_have() -> None:
    """REC-1, REC-3."""
    assert kafka_key(change()) == b"k"
    assert (
        kafka_key(Heartbeat("p", 1))
        == kafka_key(ChildPartitions("p", 1, 0, ()))
        == CONTROL_KEY
        == b"\x00connector.control"
    )


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        change().row_key = b"other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("entries", "shown"),
    [
        (SetCell("f", b"q", b"v"), "entries is SetCell("),
        (5, "entries is 5"),
        (None, "entries is None"),
        ("f", "entries is 'f'"),
        ((DeleteFamily("f"), None), "entries is None"),
        ([("f", b"q", b"v")], "entries is ('f'"),
    ],
)
def test_entries_of_another_type_are_refused_with_an_example(entries: Any, shown: str) -> None:
    """REC-14: the parentheses of a tuple are forgotten easily."""
    with pytest.raises(InvalidChangeError) as caught:
        change(entries=entries)
    assert caught.value.problem.startswith(shown)
    assert "must be a tuple of SetCell" in caught.value.problem


@pytest.mark.parametrize("at", [1795563812.8, "2026-01-01", None])
def test_a_time_of_another_type_is_refused_with_its_type(at: Any) -> None:
    """REC-14."""
    for build in (lambda: change(commit_timestamp=at), lambda: Heartbeat("p", at)):
        with pytest.raises(InvalidChangeError, match="must be an int, the number of microseconds"):
            build()


FULL = change(
    transaction=Transaction("tx", 1),
    change_sequence_number="1/2",
    row_image=RowImage(
        ModType.UPDATE, "NEW_ROW", (ColumnType("id", "INT64"),), (OldCell("f", b"q", b"v"),)
    ),
)
PARTS: list[tuple[Any, Any]] = [
    (FULL, lambda part: part),
    (Heartbeat("p", 1), lambda part: part),
    (ChildPartitions("p", 1, 0, (ChildPartition("c", ("p",)),)), lambda part: part),
    (ChildPartition("c", ("p",), b"", b""), lambda part: ChildPartitions("p", 1, 0, (part,))),
    (SetCell("f", b"q", b"v", 5), lambda part: change(entries=(part,))),
    (DeleteCells("f", b"q", 1, 2), lambda part: change(entries=(part,))),
    (DeleteFamily("f"), lambda part: change(entries=(part,))),
    (FULL.transaction, lambda part: change(transaction=part)),
    (FULL.row_image, lambda part: change(row_image=part)),
    (
        ColumnType("id", "INT64"),
        lambda part: change(row_image=RowImage(ModType.INSERT, "", (part,))),
    ),
    (
        OldCell("f", b"q", b"v", 5),
        lambda part: change(row_image=RowImage(ModType.INSERT, "", (), (part,))),
    ),
]
FIELDS = [
    (part, record, field.name)
    for part, record in PARTS
    for field in dataclasses.fields(part)
    if not str(field.type).startswith("bool")  # any value is true or false
]


@pytest.mark.parametrize("wrong", [object(), [], {"a": 1}, 1.5, "ab", b"ab", 5, None, True])
@pytest.mark.parametrize(("part", "record", "field"), FIELDS)
def test_a_value_of_another_type_is_refused_with_the_name_of_its_field(
    part: Any, record: Any, field: str, wrong: Any
) -> None:
    """REC-14: when the record is made, or when it is encoded to be sent."""
    allowed = wrong_field(dataclasses.replace(part, **{field: getattr(part, field)}))
    assert allowed is None
    try:
        codec.encode(record(dataclasses.replace(part, **{field: wrong})), 1)
    except InvalidChangeError as error:
        last = error.field.rpartition(".")[2].partition("[")[0]
        assert last in (field, "range_start, range_end", "token", "children")
    else:
        assert wrong in (True, 5, "ab", b"ab", [], None), "the type is right, or the value is empty"


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: SetCell(["f"], b"q", b"v"), "family is ['f'], but must be text (str)"),  # type: ignore[arg-type]
        (
            lambda: SetCell("f", b"q", b"v", "1"),  # type: ignore[arg-type]
            "cell_timestamp is '1', but must be a whole number (int)",
        ),
        (
            lambda: codec.encode(change(entries=(SetCell("f", b"q", b"v", 1.5),)), 1),  # type: ignore[arg-type]
            "entries[0].cell_timestamp is 1.5, but must be a whole number (int)",
        ),
        (
            lambda: codec.encode(change(transaction="tx"), 1),
            "transaction is 'tx', but must be a Transaction or None",
        ),
        (
            lambda: ChildPartitions("p", 1, 0, ChildPartition("c")),  # type: ignore[arg-type]
            "children is ChildPartition(",
        ),
        (
            lambda: ChildPartitions("p", 1, 0, (ChildPartition(5),)),  # type: ignore[arg-type]
            "children[0].token is 5, but must be text (str)",
        ),
        (
            lambda: change(change_type="USER"),
            "change_type is 'USER', but must be a ChangeType such as ChangeType.USER",
        ),
    ],
)
def test_the_field_of_another_type_and_its_type_are_named(
    build: Callable[[], object], problem: str
) -> None:
    """REC-14."""
    with pytest.raises(InvalidChangeError) as caught:
        build()
    assert caught.value.problem.startswith(problem)
