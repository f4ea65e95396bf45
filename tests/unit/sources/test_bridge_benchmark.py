"""The benchmark of the bridge measures whole changes, and no work is repeated for each record
(SRC-9).
"""

from __future__ import annotations

from unittest import mock

import pytest

from benchmarks.bridge import FORMATS, changes, rate, reading, records
from connector.records.model import SetCell
from connector.sources.schemas import avro_type, connect_field
from connector.sources.values import kind_of
from tests.foreign_records import Registry


@pytest.mark.parametrize("format_", FORMATS)
def test_each_record_is_a_change_with_its_cells(format_: str) -> None:
    """SRC-9: nine columns beside the key, of which one is NULL, and the presence mark."""
    registry = Registry()
    sources = records(20, format_, registry)
    made = [change for change, _ in changes(sources, reading(format_, registry, sources[0]))]
    cells = [[entry for entry in change.entries if isinstance(entry, SetCell)] for change in made]
    assert [len(each) for each in cells] == [9] * 20
    assert len({change.commit_timestamp for change in made}) == 20


@pytest.mark.parametrize("format_", FORMATS[1:])
def test_a_schema_of_many_records_is_read_once(format_: str) -> None:
    """SRC-9: work that a table can have prepared is not done for each record."""
    registry = Registry()
    sources = records(50, format_, registry)
    made = reading(format_, registry, sources[0])
    with (
        mock.patch("connector.sources.records.connect_field", wraps=connect_field) as of_connect,
        mock.patch("connector.sources.records.avro_type", wraps=avro_type) as of_avro,
        mock.patch("connector.sources.rows.kind_of", wraps=kind_of) as kinds,
    ):
        assert rate(sources, made) > 0
        calls = (of_connect.called, of_avro.called, kinds.called)
        assert not any(calls)
        reading(format_, registry, sources[0])  # another decoder reads it again
        assert of_connect.called or of_avro.called
        assert kinds.called
