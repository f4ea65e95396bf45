"""The benchmark of the bridge measures whole changes, and no work is repeated for each record
(SRC-9).
"""

from __future__ import annotations

import gc
import time

import pytest

from benchmarks.bridge import FORMATS, changes, rate, reading, records
from connector.records.model import SetCell
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


def test_a_schema_in_each_record_is_read_once() -> None:
    """SRC-9: the ratio of the benchmark is about 1.3. Reading each schema again makes it 10."""
    rates = {}
    gc.collect()
    for format_ in ("json", "json with schema"):
        registry = Registry()
        sources = records(300, format_, registry)
        made = reading(format_, registry, sources[0])
        rates[format_] = max(rate(sources, made) for _ in range(5))
    assert rates["json"] / rates["json with schema"] < 4


def test_the_ratio_notices_a_schema_that_is_read_for_each_record() -> None:
    """SRC-9: a decoder of its own for each record."""
    registry = Registry()
    sources = records(50, "json with schema", registry)
    once = rate(sources, reading("json with schema", registry, sources[0]))
    began = time.process_time()
    for source in sources:
        reading("json with schema", registry, source)
    assert once / (len(sources) / (time.process_time() - began)) > 4
