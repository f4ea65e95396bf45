"""Reading a line of the JSON view that was written gives the same record, byte for byte once
encoded.
"""

from __future__ import annotations

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from connector.errors import JsonViewError
from connector.records.codec import encode
from connector.records.json_view import JsonRecord, from_json, to_json
from connector.records.model import Record
from tests.property.strategies import KAFKA_PARTITIONS, RECORDS


@given(RECORDS, KAFKA_PARTITIONS)
def test_reading_what_was_written_gives_the_same_bytes(
    record: Record, kafka_partitions: int
) -> None:
    """REC-22."""
    read = from_json(to_json(record, kafka_partitions))
    assert read == JsonRecord(record, kafka_partitions)
    assert encode(read.record, kafka_partitions) == encode(record, kafka_partitions)


@given(RECORDS)
def test_a_line_is_one_line_of_printable_characters(record: Record) -> None:
    """REC-22, DLQ-9: it may go to a terminal."""
    line = to_json(record, None)
    assert line.isprintable()
    assert from_json(line) == JsonRecord(record, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "stream_partition",
                    "data_change",
                    "heartbeat",
                    "entries",
                    "kind",
                    "timestamp",
                    "release",
                    "truncate",
                    "transaction",
                    "ranges",
                    "write_stream",
                    "x",
                ]
            ),
            inner,
        )
    ),
)


@given(st.text() | JSON.map(lambda document: json.dumps(document)))
def test_any_text_is_a_record_or_a_json_view_error(line: str) -> None:
    """REC-22."""
    with contextlib.suppress(JsonViewError):
        assert isinstance(from_json(line), JsonRecord)
