"""A row has the fields of its record, as the encoded record has them (TBL-4)."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from connector.engine.record_rows import rows_of
from connector.engine.schema import RECORD
from connector.records.codec import ChangeRecord
from connector.records.model import BRANCHES, Record
from tests.fastavro_encoder import to_datum
from tests.property.strategies import KAFKA_PARTITIONS, RECORDS


def row_of(datum: dict[str, Any]) -> dict[str, Any]:
    """The row of an encoded record."""
    (branch,) = (name for name in BRANCHES if datum[name] is not None)
    row: dict[str, Any] = dict.fromkeys(RECORD.names)
    row |= {name: datum[name] for name in ("stream_partition", "kafka_partitions")}
    if branch not in ("data_change", "truncate"):
        return row | {"kind": "control", branch: datum[branch]}
    row |= datum[branch]
    if branch == "truncate":
        return row | {"kind": "truncate"}
    is_staged = datum[branch]["commit_timestamp"] == 0
    return row | ({"kind": "staged", "commit_timestamp": None} if is_staged else {"kind": "change"})


def values_of(rows: Any) -> list[dict[str, Any]]:
    """The rows of a table. Times are numbers: Python's end with the year 9999."""
    place = RECORD.get_field_index("commit_timestamp")
    times = rows.column(place).cast("int64")
    plain: list[dict[str, Any]] = rows.set_column(place, "commit_timestamp", times).to_pylist()
    return plain


@given(RECORDS, KAFKA_PARTITIONS)
def test_a_row_has_the_fields_of_its_record(record: Record, kafka_partitions: int) -> None:
    rows = rows_of([ChangeRecord(record, kafka_partitions)])
    rows.validate(full=True)
    assert values_of(rows) == [row_of(to_datum(record, kafka_partitions))]


def test_no_records_have_no_rows() -> None:
    rows = rows_of([])
    assert (rows.num_rows, rows.schema) == (0, RECORD)
