"""What was ever written stays readable, and means what it meant.

`change_record.v<version>.jsonl` has one record a line: its bytes in hex as they lie on Kafka, and
the record as its JSON view. Once a version is released, its lines are never changed. A new version
of the schema gets a file of its own, a new corner of an old one a further line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connector.records.codec import (
    SCHEMA,
    SHIPPED,
    ChangeRecord,
    Schemas,
    decode,
    framed,
)
from connector.records.json_view import from_json
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteFamily,
    Heartbeat,
    OffsetRange,
    Release,
    SetCell,
    WriteStreamOffset,
)

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1] / "schemas"
FINGERPRINTS = {1: "6e4c913845047f4e"}
LINES: dict[int, list[dict[str, Any]]] = {
    version: [
        json.loads(line)
        for line in (HERE / f"change_record.v{version}.jsonl").read_text().splitlines()
    ]
    for version in FINGERPRINTS
}
NEWEST = max(FINGERPRINTS)
CASES = [
    pytest.param(version, line, id=f"v{version} {line['name']}")
    for version, lines in LINES.items()
    for line in lines
]


def test_every_released_schema_is_shipped_and_has_golden_bytes() -> None:
    """REC-12: a released schema is neither changed nor dropped, and each has golden bytes."""
    assert {path.name for path in CHECKOUT.glob("*.avsc")} == {
        f"change_record.v{version}.avsc" for version in FINGERPRINTS
    }
    assert [fingerprint.hex() for fingerprint in SHIPPED] == list(FINGERPRINTS.values())
    assert (
        SHIPPED[bytes.fromhex(FINGERPRINTS[NEWEST])]
        == SCHEMA
        == (CHECKOUT / f"change_record.v{NEWEST}.avsc").read_text()
    )


@pytest.mark.parametrize(("version", "line"), CASES)
def test_golden_bytes_decode_to_what_they_meant(version: int, line: dict[str, Any]) -> None:
    """REC-12, WRS-16: and what we wrote, we write still, byte for byte."""
    expected = from_json(json.dumps(line["record"]))
    value = bytes.fromhex(line["value"])
    assert value[2:10].hex() == FINGERPRINTS[version]
    assert expected.kafka_partitions is not None
    assert decode(value, Schemas()) == ChangeRecord(expected.record, expected.kafka_partitions)
    if line["written_by_us"]:
        assert framed(expected.record, expected.kafka_partitions) == value


@pytest.mark.parametrize(("version", "line"), CASES)
def test_golden_bytes_behind_a_registry_id_mean_the_same(
    version: int, line: dict[str, Any]
) -> None:
    """REC-11, REC-12."""
    value = bytes.fromhex(line["value"])
    schemas = Schemas({300: SHIPPED[value[2:10]]})
    assert decode(b"\x00\x00\x00\x01\x2c" + value[10:], schemas) == decode(value, Schemas())


def test_three_records_written_out_by_hand() -> None:
    """REC-3, REC-5: the bytes and their meaning, without a line of our encoder or of the JSON
    view.
    """
    head = bytes.fromhex("c301" + FINGERPRINTS[1])
    change = (
        b"\x02p\x08\x02"
        b"\x02t\x02k\x00\x02c\x0e\x00\x00\x00"
        b"\x04\x06\x02f\x00\x00\x00\x00\x00\x02\x02f\x02q\x0e\x00\x00\x04hi\x00" + b"\x00" * 8
    )
    entries = (DeleteFamily("f"), SetCell("f", b"q", b"hi", 7))
    expected = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        source_cluster_id="c",
        commit_timestamp=7,
        entries=entries,
    )
    assert decode(head + change, Schemas()) == ChangeRecord(expected, 4)
    assert decode(head + b"\x02p\x08\x00\x02\x0e\x02r\x00\x00\x00", Schemas()) == ChangeRecord(
        Heartbeat("p", 7, b"r"), 4
    )
    children = b"\x02p\x08\x00\x00\x02\x0e\x02\x02\x02a\x02\x02p\x00\x02\x00\x02\x02m\x00\x00\x00"
    assert decode(head + children, Schemas()) == ChangeRecord(
        ChildPartitions("p", 7, 1, (ChildPartition("a", ("p",), b"", b"m"),)), 4
    )


def test_two_records_of_write_streams_written_out_by_hand() -> None:
    """WRS-16."""
    head = bytes.fromhex("c301" + FINGERPRINTS[1])
    staged = (
        b"\x02p\x08\x02"
        b"\x02t\x02k\x00\x02c\x00\x00\x00\x00"
        b"\x02\x06\x02f\x00\x00\x00\x00\x00\x00\x00\x00\x00"
        b"\x02\x0ajob/a\x06" + b"\x00" * 4
    )
    expected = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        source_cluster_id="c",
        commit_timestamp=0,
        entries=(DeleteFamily("f"),),
        write_stream=WriteStreamOffset("job/a", 3),
    )
    assert decode(head + staged, Schemas()) == ChangeRecord(expected, 4)
    release = b"\x02p\x08\x00\x00\x00\x02\x0e\x02\x0ajob/a\x00\x08\x00\x00"
    assert decode(head + release, Schemas()) == ChangeRecord(
        Release("p", 7, (OffsetRange("job/a", 0, 4),)), 4
    )
