from __future__ import annotations

from functools import reduce
from typing import Any

import fastavro
import pytest

from connector.records.avro_decoder import MAX_ITEMS, MAX_LENGTH_BYTES, DamagedError
from connector.records.avro_plan import UnreadableSchemaError, compile_plan


def reader(writer: Any, wanted: Any = None) -> Any:
    parsed = fastavro.parse_schema(writer)
    reader = parsed if wanted is None else fastavro.parse_schema(wanted)
    return compile_plan(parsed, reader).read


def damage(writer: Any, data: bytes) -> tuple[int, str]:
    with pytest.raises(DamagedError) as caught:
        reader({"type": "record", "name": "R", "fields": [{"name": "x", "type": writer}]})(data, 0)
    assert caught.value.path[-1] == "x"
    return caught.value.offset, caught.value.what


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("long", b"\x00", 0),
        ("long", b"\x01", -1),
        ("long", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 2**63 - 1),
        ("long", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", -(2**63)),
        ("long", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 2**63 - 1),
        ("long", b"\x80\x80\x00", 0),
        ("int", b"\xfe\xff\xff\xff\x0f", 2**31 - 1),
        ("int", b"\xfe\xff\xff\xff\x7f", 2**31 - 1),
        ("boolean", b"\x01", True),
        ("boolean", b"\x02", False),
        ("bytes", b"\x04ab", b"ab"),
        ("bytes", b"\x84\x00ab", b"ab"),
        ("string", b"\x04\xc3\xa4", "ä"),
        (["null", "long"], b"\x00", None),
        ({"type": "array", "items": "int"}, b"\x02\x02\x03\x04\x04\x06\x00", [1, 2, 3]),
        (
            {"type": "array", "items": "int"},
            b"\x03\x02\x00\x02\x00",
            [0, 1],
        ),  # two items, said to be one byte
        ({"type": "map", "values": "int"}, b"\x02\x02a\x02\x01\x06\x02b\x04\x00", {"a": 1, "b": 2}),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x02", "B"),
    ],
    ids=str,
)
def test_legal_avro_is_read_also_where_it_is_written_in_an_unusual_way(
    kind: Any, data: bytes, value: Any
) -> None:
    """REC-12, REC-13: numbers with spare bytes, several blocks, sizes of blocks; surplus bits fall
    off as in Avro for Java.
    """
    assert reader(kind)(b"??" + data, 2) == (value, len(data) + 2)


@pytest.mark.parametrize(
    ("kind", "data", "offset", "what"),
    [
        ("long", b"", 0, "the end of the bytes"),
        ("long", b"\x80", 1, "the end of the bytes"),
        ("long", b"\x80" * 10 + b"\x00", 0, "a number of more than 10 bytes"),
        ("int", b"\x80" * 5 + b"\x00", 0, "a number of more than 5 bytes"),
        ("bytes", b"\x80" * 10 + b"\x00", 0, "a number of more than 10 bytes"),
        ("boolean", b"", 0, "the end of the bytes"),
        ("bytes", b"\x01", 0, "a negative length, -1"),
        ("bytes", b"\x06ab", 0, "3 bytes announced, 2 left"),
        (
            "bytes",
            b"\x82\x80\x80\x10",
            0,
            f"a length of {MAX_LENGTH_BYTES + 1} bytes, above the limit of {MAX_LENGTH_BYTES}",
        ),
        ("bytes", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 0, f"a negative length, {-(2**63)}"),
        ("string", b"\x06a\xffb", 2, "text that is not UTF-8"),
        ("string", b"\x06\xed\xa0\x80", 1, "text that is not UTF-8"),
        (["null", "long"], b"\x04", 0, "branch 2 of a union with 2"),
        (["null", "long"], b"\x01", 0, "branch -1 of a union with 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", 0, "symbol 1 of an enum with 1"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            b"\x01",
            0,
            "symbol -1 of an enum with 1",
        ),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab", 0, "3 bytes needed, 2 left"),
        ("double", b"1234567", 0, "8 bytes needed, 7 left"),
        (
            {"type": "array", "items": "int"},
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00",
            0,
            f"{2**63 - 1} items, above the limit of {MAX_ITEMS}",
        ),
        (
            {"type": "map", "values": "int"},
            b"\xfe\xff\xff\xff\x0f\x00",
            0,
            f"{2**31 - 1} items, above the limit of {MAX_ITEMS}",
        ),
    ],
    ids=str,
)
def test_damage_is_named_with_its_byte(kind: Any, data: bytes, offset: int, what: str) -> None:
    """REC-13, DLQ-9."""
    assert damage(kind, data) == (offset, what)


def test_the_limit_of_items_holds_over_all_blocks() -> None:
    million = fastavro.parse_schema({"type": "array", "items": "int"})
    block = b"\x80\x92\xf4\x01" + b"\x00" * 2_000_000  # a count of 2,000,000
    with pytest.raises(DamagedError, match="2000000 items"):
        compile_plan(million, million).read(block, 0)
    half = b"\xc0\xcf\x24"  # 300,000
    with pytest.raises(DamagedError, match="1200000 items"):
        compile_plan(million, million).read((half + b"\x00" * 300_000) * 4 + b"\x00", 0)


def test_damage_inside_of_lists_and_records_says_where() -> None:
    """DLQ-9."""
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "y", "type": "string"}]}
    outer = {
        "type": "record",
        "name": "Outer",
        "fields": [{"name": "xs", "type": {"type": "array", "items": inner}}],
    }
    with pytest.raises(DamagedError) as caught:
        reader(outer)(b"\x04\x02a\x02", 0)
    assert list(reversed(caught.value.path)) == ["xs", "[1]", "y"]


NULLS = {"type": "record", "name": "Nulls", "fields": [{"name": "a", "type": "null"}]}
DEEP: Any = "int"
for level in range(12):
    DEEP = {
        "type": "record",
        "name": f"L{level}",
        "fields": [
            {"name": "a", "type": DEEP},
            {"name": "b", "type": DEEP if level == 0 else f"L{level - 1}"},
        ],
    }


@pytest.mark.parametrize(
    ("writer", "why"),
    [
        ({"type": "array", "items": "null"}, "items have no bytes"),
        ({"type": "array", "items": NULLS}, "items have no bytes"),
        (
            {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
            "items have no bytes",
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]},
            "contains itself",
        ),
        (DEEP, "more than 1000 types"),
        (
            reduce(lambda inner, _: {"type": "array", "items": inner}, range(64), "int"),
            "more than 64 of them within each other",
        ),
    ],
    ids=["nulls", "records of nulls", "empty fixed", "recursive", "exponential", "deep"],
)
def test_schemas_that_ask_for_unbounded_work_are_refused(writer: Any, why: str) -> None:
    """REC-12: a count of 2^62 items that take no bytes would keep a reader busy for ever."""
    parsed = fastavro.parse_schema(
        {"type": "record", "name": "Top", "fields": [{"name": "x", "type": writer}]}
    )
    nothing = fastavro.parse_schema({"type": "record", "name": "Top", "fields": []})
    with pytest.raises(UnreadableSchemaError, match=why):
        compile_plan(parsed, nothing)


E_AB = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
E_A = {"type": "enum", "name": "E", "symbols": ["A"]}
E_A_DEFAULT = E_A | {"default": "A"}


@pytest.mark.parametrize(
    ("writer", "wanted", "data", "value"),
    [
        ("int", "long", b"\x02", 1),
        ("string", "bytes", b"\x02a", b"a"),
        ("bytes", "string", b"\x02a", "a"),
        (E_AB, E_A_DEFAULT, b"\x02", "A"),
        ("long", ["null", "long"], b"\x02", 1),
        (["null", "long"], "long", b"\x02\x02", 1),
        (["string", "null"], ["null", "string"], b"\x00\x02a", "a"),
        ("int", ["null", "long"], b"\x02", 1),
        ("string", ["bytes", "string"], b"\x02a", "a"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "long", b"\x02", 1),
    ],
    ids=str,
)
def test_schema_differences_that_avro_allows_are_resolved(
    writer: Any, wanted: Any, data: bytes, value: Any
) -> None:
    """REC-12."""
    assert reader(writer, wanted)(data, 0) == (value, len(data))


def record(name: str, *fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def test_a_type_is_known_by_its_name_wherever_it_was_declared() -> None:
    """REC-12: in a union, a list or a field."""
    for declared, data, value in (
        (["null", record("S", {"name": "y", "type": "int"})], b"\x02\x02", {"y": 1}),
        (
            {"type": "array", "items": record("S", {"name": "y", "type": "int"})},
            b"\x02\x02\x00",
            [{"y": 1}],
        ),
        (record("S", {"name": "y", "type": "int"}), b"\x02", {"y": 1}),
    ):
        read = reader(record("R", {"name": "a", "type": declared}, {"name": "b", "type": "S"}))
        assert read(data + b"\x04", 0) == ({"a": value, "b": {"y": 2}}, len(data) + 1)


@pytest.mark.parametrize(
    ("writer", "why"),
    [
        (["null", ["int"]], "a union within a union"),
        (["int", "int"], "two types that cannot be distinguished"),
        (
            [{"type": "map", "values": "int"}, {"type": "map", "values": "long"}],
            "two types that cannot be distinguished",
        ),
        (
            record("R", {"name": "a", "type": "int"}, {"name": "a", "type": "int"}),
            "two fields with the same name in R",
        ),
        (record("R", {"name": "a-b", "type": "int"}), "the name 'a-b', which Avro does not allow"),
        (record("int"), "the name 'int', which Avro does not allow"),
    ],
    ids=str,
)
def test_a_schema_that_other_readers_refuse_is_refused(writer: Any, why: str) -> None:
    """REC-12: what Avro forbids, also in a field that is dropped and in a branch that is not
    used.
    """
    for place in (writer, {"type": "array", "items": writer}):
        for wanted in (None, record("Top")):
            with pytest.raises(UnreadableSchemaError, match=why):
                reader(record("Top", {"name": "x", "type": place}), wanted)


def test_fields_are_matched_by_name_or_alias_and_defaults_fill_what_is_missing() -> None:
    """REC-12."""
    writer = record(
        "ns.R",
        {"name": "dropped", "type": "string"},
        {"name": "old", "type": "int"},
        {"name": "b", "type": "int"},
    )
    wanted = record(
        "R",
        {"name": "b", "type": "long"},
        {"name": "a", "type": "int", "aliases": ["old"]},
        {"name": "c", "type": "bytes", "default": "\xff"},
        {"name": "d", "type": {"type": "array", "items": "int"}, "default": []},
    )
    read = reader(writer, wanted)
    assert read(b"\x02x\x02\x04", 0) == ({"a": 1, "b": 2, "c": b"\xff", "d": []}, 4)
    first, second = read(b"\x02x\x02\x04", 0)[0], read(b"\x02x\x02\x04", 0)[0]
    assert first["d"] is not second["d"]


@pytest.mark.parametrize(
    ("writer", "wanted", "why"),
    [
        (record("R"), record("R", {"name": "a", "type": "int"}), "does not have the field a"),
        (record("R"), record("S"), "has R where S is needed"),
        ("long", "int", "has long where int is needed"),
        ("string", ["null", "long"], "where one of null, long is needed"),
    ],
    ids=["missing field", "other name", "narrowing", "no branch"],
)
def test_schemas_that_do_not_fit_are_refused_before_any_bytes_are_read(
    writer: Any, wanted: Any, why: str
) -> None:
    """REC-12."""
    with pytest.raises(UnreadableSchemaError, match=why):
        reader(writer, wanted)


def test_a_branch_that_does_not_fit_is_damage_only_where_it_is_used() -> None:
    """REC-12: a newer producer may have a kind of record that this release lacks."""
    writer = record(
        "R", {"name": "x", "type": ["null", "long", record("New", {"name": "y", "type": "int"})]}
    )
    wanted = record("R", {"name": "x", "type": ["null", "long"]})
    read = reader(writer, wanted)
    assert read(b"\x02\x02", 0) == ({"x": 1}, 2)
    with pytest.raises(DamagedError, match="has New where one of null, long is needed"):
        read(b"\x04\x02", 0)


def test_a_symbol_without_a_default_is_damage_only_where_it_is_used() -> None:
    """REC-12."""
    read = reader(record("R", {"name": "x", "type": E_AB}), record("R", {"name": "x", "type": E_A}))
    assert read(b"\x00", 0) == ({"x": "A"}, 1)
    with pytest.raises(DamagedError, match="does not know"):
        read(b"\x02", 0)


LEAST = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
"""-2^63, of which Java has no negative."""


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ({"type": "array", "items": "int"}, b"\x02\x06"),
        ({"type": "map", "values": "int"}, b"\x02\x02a\x06"),
    ],
    ids=str,
)
def test_a_later_block_of_as_many_items_as_no_number_can_say_is_damage(
    kind: Any, first: bytes
) -> None:
    """REC-13: at the byte of the block; as the first block it is an empty list, as in Avro for
    Java.
    """
    assert damage(kind, first + LEAST + b"\x00\x00") == (
        len(first),
        f"{2**63 + 1} items, above the limit of {MAX_ITEMS}",
    )
    assert damage(kind, b"\x01\x02" + first[1:] + LEAST + b"\x00\x00")[0] == len(first) + 1
    read, end = reader(kind)(LEAST + b"\x00\x00", 0)
    assert (len(read), end) == (0, len(LEAST) + 1)


DROPPED: list[tuple[Any, bytes]] = [
    ("bytes", b"\x01"),
    ("string", LEAST),
    ("string", b"\x04\xff\xff"),
    ({"type": "array", "items": "bytes"}, b"\x04\x01\x01\x00"),
    ({"type": "array", "items": "int"}, b"\x02\x06" + LEAST + b"\x00\x00"),
    ({"type": "array", "items": "int"}, b"\x03\x04\xff\xff\x00"),
    ({"type": "array", "items": "int"}, b"\x01\x01\x00"),
    ({"type": "map", "values": "int"}, b"\x02\x01\x06" + LEAST + b"\x01\x00"),
    ({"type": "map", "values": "int"}, b"\x02\x02a\x06\x00"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x7f"),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
    ("float", b"1234"),
    ("double", b"12345678"),
    ("boolean", b"\x07"),
    (["null", "bytes"], b"\x02\x01"),
]


@pytest.mark.parametrize(("kind", "data"), DROPPED, ids=str)
def test_a_field_that_is_dropped_is_skipped_and_never_gone_back_in(kind: Any, data: bytes) -> None:
    """REC-12, REC-13: a length or a size of a block below 0 counts as 0, so that the rest is
    read from its own offset.
    """
    writer = record(
        "R",
        {"name": "before", "type": "int"},
        {"name": "dropped", "type": kind},
        {"name": "x", "type": "int"},
    )
    wanted = record("R", {"name": "x", "type": "int"}, {"name": "before", "type": "int"})
    written = b"\x08" + data + b"\x06"
    assert reader(writer, wanted)(written, 0) == ({"before": 4, "x": 3}, len(written))
    for length in range(len(written)):
        with pytest.raises(DamagedError):
            reader(writer, wanted)(written[:length], 0)


@pytest.mark.parametrize(
    ("kind", "data", "offset", "what"),
    [
        ("bytes", b"\x06ab", 0, "3 bytes announced, 2 left"),
        ({"type": "array", "items": "int"}, b"\x01\x06ab", 1, "3 bytes announced, 2 left"),
        (
            {"type": "array", "items": "int"},
            b"\x02\x06" + LEAST + b"\x06ab",
            12,
            "3 bytes announced, 2 left",
        ),
        ({"type": "map", "values": "int"}, b"\x02\x06ab", 1, "3 bytes announced, 2 left"),
        (
            {"type": "array", "items": "int"},
            b"\x02" + b"\x80" * 6,
            1,
            "a number of more than 5 bytes",
        ),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab", 0, "3 bytes needed, 2 left"),
        (["null", "int"], b"\x04", 0, "branch 2 of a union with 2"),
    ],
    ids=str,
)
def test_damage_in_a_field_that_is_dropped_is_named_with_its_byte(
    kind: Any, data: bytes, offset: int, what: str
) -> None:
    """REC-13, DLQ-9."""
    read = reader(record("R", {"name": "dropped", "type": kind}), record("R"))
    with pytest.raises(DamagedError) as caught:
        read(data, 0)
    assert (caught.value.offset, caught.value.what, caught.value.path) == (
        offset,
        what,
        ["dropped"],
    )


def test_the_lengths_and_items_that_are_allowed_reach_the_limit() -> None:
    """REC-13: 16 MiB and a million items, and not one more."""
    assert (MAX_LENGTH_BYTES, MAX_ITEMS) == (16_777_216, 1_000_000)
    assert (
        len(reader("bytes")(b"\x80\x80\x80\x10" + bytes(MAX_LENGTH_BYTES), 0)[0])
        == MAX_LENGTH_BYTES
    )
    booleans = {"type": "array", "items": "boolean"}
    assert len(reader(booleans)(b"\x80\x89\x7a" + bytes(MAX_ITEMS) + b"\x00", 0)[0]) == MAX_ITEMS
    assert damage(booleans, b"\x82\x89\x7a") == (
        0,
        f"{MAX_ITEMS + 1} items, above the limit of {MAX_ITEMS}",
    )
