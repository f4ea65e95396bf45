from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from connector.errors import JsonViewError
from connector.records.json_view import JsonRecord, from_json, read_value, to_json
from connector.records.model import (
    MAX_LONG,
    MAX_TIMESTAMP,
    ChangeType,
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Heartbeat,
    ModType,
    OffsetRange,
    OldCell,
    Release,
    RowImage,
    SetCell,
    Transaction,
    Truncate,
    WriteStreamOffset,
)

T = 1_714_475_984_000_001
ISO = "2024-04-30T11:19:44.000001Z"
SMALL: dict[str, Any] = {
    "table": "t",
    "row_key": "k",
    "commit_timestamp": T,
    "entries": [{"kind": "DELETE_FAMILY", "family": "f"}],
}


def read(**fields: Any) -> Any:
    return from_json(json.dumps({"stream_partition": "p", "data_change": SMALL | fields})).record


def entry(**fields: Any) -> Any:
    return read(entries=[fields]).entries[0]


def problem(document: Any) -> JsonViewError:
    with pytest.raises(JsonViewError) as caught:
        from_json(document if isinstance(document, str) else json.dumps(document))
    return caught.value


def written(record: Any) -> Any:
    return json.loads(to_json(record, None))


def test_a_change_reads_as_its_avro_fields() -> None:
    """REC-22."""
    change = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"user#1",
        commit_timestamp=T,
        entries=(
            DeleteFamily("f"),
            SetCell("f", b"name", "Åsa".encode()),
            SetCell("f", b"\xff", b"\x00", 0),
            DeleteCells("f", b"q", 0, T),
        ),
        transaction=Transaction("tx", number_of_records_in_transaction=2),
        row_image=RowImage(ModType.INSERT, old_cells=(OldCell("f", b"q", b"v"),)),
    )
    assert json.loads(to_json(change, 4)) == {
        "stream_partition": "p",
        "kafka_partitions": 4,
        "data_change": {
            "table": "t",
            "row_key": "user#1",
            "commit_timestamp": ISO,
            "change_type": "USER",
            "source_cluster_id": "default",
            "entries": [
                {"kind": "DELETE_FAMILY", "family": "f"},
                {
                    "kind": "SET_CELL",
                    "family": "f",
                    "qualifier": "name",
                    "cell_timestamp": ISO,
                    "value": "Åsa",
                },
                {
                    "kind": "SET_CELL",
                    "family": "f",
                    "qualifier": {"base64": "/w=="},
                    "cell_timestamp": "1970-01-01T00:00:00.000000Z",
                    "value": {"base64": "AA=="},
                },
                {"kind": "DELETE_CELLS", "family": "f", "qualifier": "q", "range_end": ISO},
            ],
            "transaction": {"server_transaction_id": "tx", "number_of_records_in_transaction": 2},
            "row_image": {
                "mod_type": "INSERT",
                "old_cells": [{"family": "f", "qualifier": "q", "value": "v"}],
            },
        },
    }


def test_a_truncation_reads_as_its_avro_fields() -> None:
    """REC-22, EVO-13."""
    truncate = Truncate("p", "t", T, 3, Transaction("tx", 1), "A/B")
    assert written(truncate) == {
        "stream_partition": "p",
        "truncate": {
            "table": "t",
            "commit_timestamp": ISO,
            "tie_breaker": 3,
            "transaction": {"server_transaction_id": "tx", "record_sequence": 1},
            "change_sequence_number": "A/B",
        },
    }
    assert from_json(to_json(truncate, None)).record == truncate
    line = '{"stream_partition": "p", "truncate": {"table": "t", "commit_timestamp": 5}}'
    assert from_json(line).record == Truncate("p", "t", 5)
    with pytest.raises(JsonViewError, match=r"truncate\.commit_timestamp is missing"):
        from_json(line.replace(', "commit_timestamp": 5', ""))
    with pytest.raises(JsonViewError, match=r"truncate\.row_key is not a field"):
        from_json(line.replace('"table": "t"', '"table": "t", "row_key": "a"'))


def test_control_records_read_as_their_avro_fields() -> None:
    """REC-22."""
    assert written(Heartbeat("p", T)) == {"stream_partition": "p", "heartbeat": {"timestamp": ISO}}
    assert written(ChildPartitions("p", T, 0, (ChildPartition("c", ("p",), b"", None),)))[
        "child_partitions"
    ] == {
        "start_timestamp": ISO,
        "record_sequence": 0,
        "children": [{"token": "c", "parent_partition_tokens": ["p"], "start_key": ""}],
    }
    whole = ChildPartitions("p", T, 0, (ChildPartition("c", (), b"", b""),))
    assert written(whole)["child_partitions"]["children"] == [
        {"token": "c", "start_key": "", "end_key": ""}
    ]
    assert from_json(to_json(whole, None)).record == whole, (
        "ING-5: an empty end is the end of the key space"
    )


@pytest.mark.parametrize("parents", [None, [], [None]])
def test_parents_of_null_mean_none(parents: object) -> None:
    """WMK-6: the record is an announcement."""
    document = json.loads(to_json(ChildPartitions("p", T, 0, (ChildPartition("c", ("x",)),)), None))
    document["child_partitions"]["children"][0]["parent_partition_tokens"] = parents
    assert from_json(json.dumps(document)).record == ChildPartitions(
        "p", T, 0, (ChildPartition("c"),)
    )
    document["child_partitions"]["children"][0]["parent_partition_tokens"] = [None, 7]
    assert "parent_partition_tokens[1]" in str(problem(document))


def test_rows_of_write_streams_and_releases_read_as_their_avro_fields() -> None:
    """REC-22, WRS-16: a staged change has the commit timestamp 0, and no time of another form."""
    row = read(write_stream={"stream": "job/a", "offset": 7})
    assert row.write_stream == WriteStreamOffset("job/a", 7)
    assert written(row)["data_change"]["write_stream"] == {"stream": "job/a", "offset": 7}
    staged = read(commit_timestamp=0, write_stream={"stream": "job/a", "offset": 7})
    assert staged.is_staged
    assert written(staged)["data_change"]["commit_timestamp"] == 0
    release = Release("p", T, (OffsetRange("job/a", 0, 8), OffsetRange("w2/p", 3, 4)))
    assert written(release) == {
        "stream_partition": "p",
        "release": {
            "commit_timestamp": ISO,
            "ranges": [
                {"stream": "job/a", "first": 0, "upto": 8},
                {"stream": "w2/p", "first": 3, "upto": 4},
            ],
        },
    }


ROW = SMALL | {"write_stream": {"stream": "job/a", "offset": 7}}
RANGE = {"stream": "job/a", "first": 0, "upto": 8}


@pytest.mark.parametrize(
    ("branch", "field", "text"),
    [
        ({"data_change": SMALL | {"commit_timestamp": 0}}, "data_change.commit_timestamp", "is 0"),
        (
            {"data_change": ROW | {"commit_timestamp": 0, "resume_token": "r"}},
            "data_change.resume_token",
            "must be empty in a staged change",
        ),
        (
            {"data_change": SMALL | {"write_stream": {"stream": "job/a"}}},
            "data_change.write_stream.offset",
            "is missing",
        ),
        (
            {"data_change": SMALL | {"write_stream": {"stream": "job", "offset": 7}}},
            "data_change.write_stream.stream",
            "a write stream such as job/rows",
        ),
        (
            {"data_change": SMALL | {"write_stream": {"stream": "job/a", "offset": -1}}},
            "data_change.write_stream.offset",
            "from 0 to 2^63 - 1",
        ),
        ({"release": {"ranges": [RANGE]}}, "release.commit_timestamp", "is missing"),
        ({"release": {"commit_timestamp": 5, "ranges": []}}, "release.ranges", "1 to 1000 ranges"),
        (
            {"release": {"commit_timestamp": 5, "ranges": [RANGE, RANGE]}},
            "release.ranges",
            "different write streams",
        ),
        (
            {"release": {"commit_timestamp": 5, "ranges": [RANGE, {"stream": "a/b", "first": 0}]}},
            "release.ranges[1].upto",
            "is missing",
        ),
        (
            {"release": {"commit_timestamp": 5, "ranges": [RANGE | {"last": 7}]}},
            "release.ranges[0].last",
            "is not a field of OffsetRange",
        ),
    ],
)
def test_faults_of_rows_and_releases_name_their_field(
    branch: dict[str, Any], field: str, text: str
) -> None:
    """REC-22, WRS-16."""
    error = problem({"stream_partition": "p"} | branch)
    assert error.field == field
    assert text in error.problem


def test_text_is_not_escaped() -> None:
    """REC-22: people read it."""
    assert '"stream_partition": "Åsa/😀"' in to_json(Heartbeat("Åsa/😀", T), None)


@pytest.mark.parametrize("value", [b"", b"text", "grüße 😀".encode(), b'{"base64": "AA=="}', b" "])
def test_printable_text_is_written_as_text(value: bytes) -> None:
    """REC-22: text that looks like our object stays text."""
    view = written(Heartbeat("p", T, value))["heartbeat"]
    assert view.get("resume_token", "") == value.decode()


@pytest.mark.parametrize(
    "text",
    [
        "\x00",
        "a\nb",
        "\t",
        "\x1b[2J",
        "\x7f",
        "\x85",
        "\u200b",
        "\u202e",
        "\u2028",
        "\u2029",
        "\ufeff",
        "\ue000",
        "\u0378",
        "\xa0",
        "\xad",
    ],
)
def test_unprintable_text_is_written_as_base64(text: str) -> None:
    """REC-22, DLQ-9: control, format, private, unassigned characters, line ends and strange
    spaces.
    """
    assert list(written(Heartbeat("p", T, text.encode()))["heartbeat"]["resume_token"]) == [
        "base64"
    ]
    line = to_json(Heartbeat(text, T), None)
    assert line.isprintable()
    assert from_json(line).record == Heartbeat(text, T)


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [
        (5, 5),
        (ISO, T),
        ("2024-04-30T13:19:44.000001+02:00", T),
        ("2024-04-30T11:19:44.0000019Z", T),
        ("2024-04-30 11:19:44Z", T - 1),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("9999-12-31T23:59:59.999999Z", MAX_TIMESTAMP),
    ],
)
def test_times_are_read_as_integers_and_as_iso_8601_with_a_zone(
    value: object, microseconds: int
) -> None:
    """REC-22; digits beyond microseconds are cut off, not rounded."""
    assert read(commit_timestamp=value).commit_timestamp == microseconds


@pytest.mark.parametrize(
    "value",
    [
        "2024-04-30T11:19:44",
        "2024-04-30",
        "yesterday",
        "",
        1.5e15,
        True,
        {"base64": ""},
        "1714475984000000",
    ],
)
def test_other_times_are_refused_with_what_they_must_be(value: object) -> None:
    """REC-22: no zone, no time."""
    error = problem({"stream_partition": "p", "data_change": SMALL | {"commit_timestamp": value}})
    assert error.field == "data_change.commit_timestamp"
    assert "ISO 8601 with a zone" in str(error)


def test_cell_timestamps_beyond_the_year_9999_stay_integers() -> None:
    """REC-22."""
    change = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=T,
        entries=(
            SetCell("f", b"q", b"v", MAX_TIMESTAMP),
            SetCell("f", b"q", b"v", MAX_TIMESTAMP + 1),
            DeleteCells("f", b"q", 1, MAX_LONG),
        ),
        row_image=RowImage(ModType.UPDATE, old_cells=(OldCell("f", b"", b"", -1),)),
    )
    view = written(change)["data_change"]
    assert [result.get("cell_timestamp") for result in view["entries"]] == [
        "9999-12-31T23:59:59.999999Z",
        MAX_TIMESTAMP + 1,
        None,
    ]
    assert view["entries"][2]["range_end"] == MAX_LONG
    assert view["row_image"]["old_cells"][0]["cell_timestamp"] == -1
    assert from_json(to_json(change, None)).record == change


def test_a_missing_field_has_the_default_of_the_model() -> None:
    """REC-22: what `publish` takes from people."""
    assert read() == DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=T,
        entries=(DeleteFamily("f"),),
    )
    assert read(transaction=None, tie_breaker=None) == read()
    assert read(change_type="GARBAGE_COLLECTION").source_cluster_id == ""
    assert entry(kind="SET_CELL", family="f", qualifier="q", value="v") == SetCell(
        "f", b"q", b"v", T
    )
    assert entry(kind="DELETE_CELLS", family="f", qualifier="q") == DeleteCells("f", b"q")


def test_the_number_of_kafka_partitions_may_be_missing() -> None:
    """REC-22, REC-24: `publish` fills it in."""
    assert from_json('{"stream_partition": "p", "heartbeat": {"timestamp": 5}}') == JsonRecord(
        Heartbeat("p", 5), None
    )
    assert (
        problem(
            {"stream_partition": "p", "kafka_partitions": 0, "heartbeat": {"timestamp": 5}}
        ).field
        == "kafka_partitions"
    )


UNKNOWN = [
    ({"stream_partition": "p", "hartbeat": {}}, "hartbeat", "heartbeat"),
    ({"stream_partition": "p", "heartbeat": {"timestmp": 5}}, "heartbeat.timestmp", "timestamp"),
    (
        {"stream_partition": "p", "heartbeat": {"time stamp": 5}},
        'heartbeat."time stamp"',
        "timestamp",
    ),
    (
        {"stream_partition": "p", "heartbeat": {"timéstamp": 5}},
        r'heartbeat."tim\u00e9stamp"',
        "timestamp",
    ),
    (
        {"stream_partition": "p", "data_change": SMALL | {"rowkey": "k"}},
        "data_change.rowkey",
        "row_key",
    ),
    (
        {
            "stream_partition": "p",
            "data_change": SMALL | {"entries": [{"kind": "SET_CELL", "famly": "f"}]},
        },
        "data_change.entries[0].famly",
        "family",
    ),
    (
        {
            "stream_partition": "p",
            "data_change": SMALL | {"transaction": {"server_transaction": "x"}},
        },
        "data_change.transaction.server_transaction",
        "server_transaction_id",
    ),
]


@pytest.mark.parametrize(
    ("document", "field", "near"), UNKNOWN, ids=[field for _, field, _ in UNKNOWN]
)
def test_an_unknown_field_is_named_with_the_nearest_known_one(
    document: Any, field: str, near: str
) -> None:
    """REC-22."""
    error = problem(document)
    assert error.field == field
    assert str(error).startswith(f"{field} is not a field")
    assert error.remedy == f"did you mean {near}?"


def test_a_field_of_another_kind_of_entry_is_unknown_too() -> None:
    """REC-5: a wrong combination cannot be written down."""
    error = problem(
        {
            "stream_partition": "p",
            "data_change": (
                SMALL | {"entries": [{"kind": "DELETE_FAMILY", "family": "f", "value": ""}]}
            ),
        }
    )
    assert (
        str(error)
        == "data_change.entries[0].value is not a field of a DELETE_FAMILY. The fields are: kind,"
        " family"
    )


@pytest.mark.parametrize(
    ("document", "field", "text"),
    [
        ("not json", "", "This line is not JSON"),
        ("[" * 100_000, "", "This line is not JSON"),
        ("[]", "", "but must be an object"),
        ('{"a": 1, "a": 2}', "a", "occurs twice"),
        ({"stream_partition": "p"}, "data_change", "This one has none of them"),
        (
            {"stream_partition": "p", "heartbeat": {}, "data_change": {}},
            "heartbeat",
            "This one has data_change and heartbeat",
        ),
        ({"heartbeat": {"timestamp": 5}}, "stream_partition", "stream_partition is missing"),
        (
            {"stream_partition": "", "heartbeat": {"timestamp": 5}},
            "stream_partition",
            "1 to 1024 bytes",
        ),
        ({"stream_partition": "p", "heartbeat": {}}, "heartbeat.timestamp", "is missing"),
        (
            {"stream_partition": "p", "heartbeat": {"timestamp": 0}},
            "heartbeat.timestamp",
            "microseconds from 1",
        ),
        (
            {"stream_partition": "p", "data_change": SMALL | {"row_key": 5}},
            "data_change.row_key",
            "base64",
        ),
        (
            {"stream_partition": "p", "data_change": SMALL | {"row_key": {"base64": "!"}}},
            "data_change.row_key",
            "but must be bytes (",
        ),
        (
            {
                "stream_partition": "p",
                "data_change": SMALL | {"row_key": {"base64": "AA==", "x": 1}},
            },
            "data_change.row_key",
            "base64",
        ),
        (
            {"stream_partition": "p", "data_change": SMALL | {"row_key": "\ud800"}},
            "data_change.row_key",
            "but must be bytes (",
        ),
        (
            {"stream_partition": "p", "data_change": SMALL | {"row_key": ""}},
            "data_change.row_key",
            "1 to 4096 bytes",
        ),
        (
            {"stream_partition": "p", "data_change": SMALL | {"entries": {}}},
            "data_change.entries",
            "a list",
        ),
        (
            {"stream_partition": "p", "data_change": SMALL | {"entries": []}},
            "data_change.entries",
            "1 to 100000 entries",
        ),
        (
            {"stream_partition": "p", "data_change": SMALL | {"entries": [{"kind": "UNKNOWN"}]}},
            "data_change.entries[0].kind",
            "one of SET_CELL",
        ),
        (
            {"stream_partition": "p", "data_change": SMALL | {"tie_breaker": 2**63}},
            "data_change.tie_breaker",
            "2^63",
        ),
        (
            {"stream_partition": "p", "data_change": SMALL | {"change_type": "USR"}},
            "data_change.change_type",
            "one of USER",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_fault_names_its_field(document: Any, field: str, text: str) -> None:
    """REC-14, REC-22."""
    error = problem(document)
    assert error.field == field
    assert text in str(error)
    assert str(error).isprintable()


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("[]", ""),
        ('{"x": []}', "x"),
        ('{"stream_partition": [], "heartbeat": {"timestamp": 5}}', "stream_partition"),
        ('{"stream_partition": "p", "data_change": []}', "data_change"),
        (
            '{"stream_partition": "p", "data_change": {"table": "t", "row_key": []}}',
            "data_change.row_key",
        ),
        ('{"stream_partition": "p", "data_change": {"table": []}}', "data_change.table"),
        ('{"stream_partition": "p", "heartbeat": {"timestamp": []}}', "heartbeat.timestamp"),
    ],
)
def test_a_line_of_any_depth_is_refused_as_other_lines_are(line: str, field: str) -> None:
    """REC-22: by its field, as far as Python reads it."""
    errors = [
        problem(line.replace("[]", "[" * depth + "]" * depth)) for depth in range(800, 1000, 2)
    ]
    assert {error.field for error in errors} == {field, ""}
    assert max(len(str(error)) for error in errors) < 300
    assert all(
        problem(line.replace("[]", '{"x":' * depth + "1" + "}" * depth))
        for depth in range(800, 1000, 2)
    )


def test_a_long_wrong_value_is_shortened() -> None:
    """REC-22."""
    shown = [str(problem(json.dumps([1] * length))) for length in (26, 27)]
    assert shown == [
        f"The line is {json.dumps([1] * 26)}, but must be an object",
        f"The line is {json.dumps([1] * 27)[:77]}..., but must be an object",
    ]


def test_garbage_collection_is_written_without_a_cluster_that_matters() -> None:
    """REC-9."""
    change = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=T,
        entries=(DeleteFamily("f"),),
        change_type=ChangeType.GARBAGE_COLLECTION,
        source_cluster_id="",
    )
    assert from_json(to_json(change, 1)) == JsonRecord(change, 1)


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    value: bytes | None = None


def test_an_annotated_dataclass_is_read_by_name_and_null_is_missing() -> None:
    """REC-22."""
    read = read_value(tuple[Header, ...], [{"name": "a", "value": None}], "headers")
    assert read == (Header("a"),)
    with pytest.raises(JsonViewError, match=r"headers\[0\]\.name is missing"):
        read_value(tuple[Header, ...], [{"value": "b"}], "headers")
    with pytest.raises(JsonViewError, match=r"headers\[0\]\.nam is not a field.*Did you mean name"):
        read_value(tuple[Header, ...], [{"nam": "a"}], "headers")


@pytest.mark.parametrize("value", [1, {"base64": 1}, {"base64": "x"}, {"base": ""}, "\udcff", None])
def test_bytes_are_text_or_base64(value: object) -> None:
    """REC-22: an error names the path."""
    keys = read_value(tuple[bytes, ...], ["\u00e9", {"base64": "/w=="}], "key")
    assert keys == (b"\xc3\xa9", b"\xff")
    with pytest.raises(JsonViewError, match=r"key\[1\]"):
        read_value(tuple[bytes, ...], ["", value], "key")
