"""A reader that only knows version 1 of the schema, and the records of version 2 (WRS-16)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fastavro.schema import parse_schema
from hypothesis import given

from connector.records import codec
from connector.records.avro_plan import compile_plan
from connector.records.checks import to_record
from connector.records.codec import (
    CONFLUENT_BYTES,
    VERSIONS,
    Schemas,
    framed,
    schema_fingerprint,
)
from connector.records.model import (
    DataChange,
    DeleteFamily,
    OffsetRange,
    Record,
    Release,
    Rule,
    WriteStreamOffset,
)
from connector.records.rejection import Reason, Rejection
from tests.property.strategies import RELEASES, STAGED_ROWS, committed_rows

VERSION_1 = parse_schema(json.loads(VERSIONS[1]))
READ = compile_plan(parse_schema(json.loads(VERSIONS[2])), VERSION_1).read
NEW_FIELDS = ("release", "write_stream")


def as_version_1(record: Record) -> Any:
    """The verdict of a reader of version 1 on a record with the Confluent framing. The rules of
    version 1 are those of today without the new fields.
    """
    value = framed(record, 4, 7)
    datum, end = READ(value, CONFLUENT_BYTES)
    assert end == len(value)
    change = datum["data_change"]
    assert not any(field in part for part in (datum, change or {}) for field in NEW_FIELDS)
    if change is not None:
        datum["data_change"] = change | {"write_stream": None}
    return to_record(datum | {"release": None}, 4)


@given(committed_rows())
def test_a_row_of_a_committed_write_stream_is_applied(row: DataChange) -> None:
    """WRS-16: it is the same change without its write stream."""
    assert as_version_1(row) == replace(row, write_stream=None)


@given(STAGED_ROWS)
def test_a_staged_change_is_a_dead_letter(row: DataChange) -> None:
    """WRS-16: no reader of version 1 applies it."""
    verdict = as_version_1(row)
    assert isinstance(verdict, Rejection)
    assert (verdict.reason, verdict.rule) == (Reason.INVALID, Rule.COMMIT_TIMESTAMP)


@given(RELEASES)
def test_a_release_is_a_dead_letter(release: Release) -> None:
    """WRS-16: it has none of the branches of version 1."""
    verdict = as_version_1(release)
    assert isinstance(verdict, Rejection)
    assert (verdict.reason, verdict.rule) == (Reason.INVALID, Rule.BRANCHES)


@pytest.fixture
def knows_version_1_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = {schema_fingerprint(VERSIONS[1]): VERSIONS[1]}
    monkeypatch.setattr(codec, "SHIPPED", shipped)


@pytest.mark.usefixtures("knows_version_1_only")
def test_with_single_object_framing_the_schema_is_unknown() -> None:
    """WRS-16: the reader has no file of version 2. It reads the ordinary changes beside it."""
    ordinary = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=1,
        entries=(DeleteFamily("f"),),
    )
    row = replace(ordinary, write_stream=WriteStreamOffset("job/a", 0))
    staged = replace(row, commit_timestamp=0)
    for record in (row, staged, Release("p", 1, (OffsetRange("job/a", 0, 1),))):
        verdict = codec.decode(framed(record, 4), Schemas())
        assert isinstance(verdict, Rejection)
        assert verdict.reason is Reason.UNKNOWN_SCHEMA
    assert codec.decode(framed(ordinary, 4), Schemas()) == codec.ChangeRecord(ordinary, 4)
