"""Names of the tables of a source, on a real broker (SRC-5)."""

from __future__ import annotations

import base64
import json
from contextlib import closing
from pathlib import Path

import pytest

from connector.config.settings import ConnectorConfig
from connector.events import Event
from connector.kafka.bridge.reader import SourceReader
from connector.kafka.tables import source_tables
from connector.records.model import SetCell
from connector.services import load_config, run_bridge
from connector.services.source_tables import SourceTables
from connector.sources.model import ForeignRecord
from tests.broker import NewTopic
from tests.integration.foreign_topics import START_US, ForeignTopics, until
from tests.integration.test_bridge import changes, config, source

__all__ = ["config", "source"]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_tables_of_one_poll_that_want_one_name_have_names_of_their_own(
    is_reversed: bool,
    source: ForeignTopics,
    config: ConnectorConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SRC-5, nothing_invented: they depend on no order of arrival. A section of the user counts for
    the table with its name, from its first row on. The pipeline has the same tables.
    """
    photo = base64.b64encode(b"\xff").decode()
    for schema, table in (("audit", "t"), ("public", "T"), ("public", "t")):
        topic = source.create(f"public.{schema}.{table}")
        of_source = {**source._source(table, START_US, 1, 1), "schema": schema, "snapshot": "true"}
        row = {"op": "r", "after": {"id": 1, "photo": photo}, "source": of_source}
        source.send(topic, json.dumps(row), key='{"id": 1}')
    file = tmp_path / "connector.toml"
    section = '[tables.t]\nstream = "shop"\ncolumns = [{name = "photo", type = "BYTES"}]\n'
    file.write_text(file.read_text() + section)
    real, polled = SourceReader.poll, list[int]()

    def poll(self: SourceReader, timeout_s: float) -> list[ForeignRecord]:
        records = list(real(self, timeout_s))
        while len(records) < 3 and not polled:
            records += real(self, timeout_s)
        polled.append(len(records))
        return records[::-1] if is_reversed else records

    monkeypatch.setattr(SourceReader, "poll", poll)
    config = load_config(file, {}, source_tables=False)
    assert run_bridge(config, once=True).changes == polled[0] == 3
    expected = {"audit.t": "t", "public.T": "public_T", "public.t": "public_t_3"}
    published = source_tables(config.kafka, config.streams["shop"].topic)
    assert {name: table.name for name, table in published.items()} == expected
    values = {
        change.table: entry.value
        for change in changes(config)
        for entry in change.entries
        if isinstance(entry, SetCell) and entry.qualifier == b"photo"
    }
    assert values == {
        "audit.t": b"\xff",
        "public.T": photo.encode(),
        "public.t": photo.encode(),
    }
    with closing(SourceTables(config, lambda event: None)) as tables:
        assert tables.store_new()
    in_force = load_config(file, {}).tables.values()
    assert {table.source: table.name for table in in_force} == expected


def test_tables_of_two_sources_with_one_name_have_names_of_their_own(
    source: ForeignTopics, config: ConnectorConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """SRC-5: the bridges choose alone. A table that the pipeline knows keeps its name, and another
    one gets another name, with a warning.
    """
    file = tmp_path / "connector.toml"
    text = file.read_text()
    other = text[text.index("[streams.shop]") :].replace("streams.shop", "streams.crm")
    shop_topic = config.streams["shop"].topic
    file.write_text(text + other.replace(shop_topic, new_topic(kafka_partitions=2).topic))
    bare = load_config(file, {}, source_tables=False)
    source.commit(("a", 1, {"n": "1"}))
    events: list[Event] = []
    with closing(SourceTables(bare, events.append)) as tables:
        for stream in ("shop", "crm"):
            run_bridge(bare, stream, once=True)
            until(tables.store_new)
    in_force = load_config(file, {}).tables.values()
    names = {(table.stream, table.source): table.name for table in in_force}
    assert names == {("shop", "public.a"): "a", ("crm", "public.a"): "public_a"}
    (warning,) = [event for event in events if event.code == "SOURCE_TABLE_NAME"]
    assert warning.text == "another table is a: the table of public.a is public_a"
