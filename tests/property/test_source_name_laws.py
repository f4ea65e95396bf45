"""Laws of the names that are chosen for the tables and columns of a source (SRC-5).

Names differ in more than case, are names that a section of the configuration may have, stay as they
were published, and are none that the user gives to another table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connector.config import source_tables as naming
from connector.config.parse import parse
from connector.config.settings import ConnectorConfig
from connector.config.source_tables import (
    FollowedTable,
    with_own_names,
    with_published,
    with_source_tables,
)
from connector.kafka.bridge import tables as bridge_tables
from connector.sources import columns as naming_of_columns
from connector.sources.columns import FAMILY, Shown, SourceTable, column_name, merged, table_name
from connector.tables.column_names import is_column_name, is_name
from connector.tables.values import DataType
from tests.foreign_records import definition_of

ID, TEXT = Shown("id", DataType.INT64), DataType.STRING
SOURCES = [
    *(
        "a.t",
        "b.t",
        "A.t",
        "a.T",
        "t",
        "T",
        "a_t",
        "b-t",
        "c.a_t",
        "a.t_2",
        "_.t",
        "-_-",
        ".",
        "-.",
    ),
    *("public.Orders", "PUBLIC.orders", "crm.orders", "orders_2"),
    *("x" * 128, "X" * 128, "a." + "y" * 126, "b." + "y" * 126, "-" * 112 + "z" * 16),
]
NAMES = ["t", "T", "a_t", "A_T", "b_t", "orders", "Orders", "crm_orders", "x" * 128, "a_t_3"]
KEY = {"columns": [{"name": "id", "type": "INT64"}]}

sources = st.sampled_from(SOURCES) | st.text("abAB._-", min_size=1, max_size=5)
sections = st.dictionaries(
    st.sampled_from(NAMES),
    st.fixed_dictionaries(
        {"stream": st.sampled_from(["shop", "crm"])},
        optional={"source": sources, "key": st.just(KEY)},
    )
    | st.just({"stream": "hand", "key": KEY}),
    max_size=4,
).filter(lambda made: len({name.lower() for name in made}) == len(made))


def config_of(sections: Mapping[str, Any]) -> ConnectorConfig:
    source = {"format": "debezium-json", "topics": ["dbz.*"]}
    streams = {"shop": {"source": source}, "crm": {"source": source}, "hand": {}}
    kafka = {"bootstrap_servers": "h:1"}
    document = {"warehouse": "w", "kafka": kafka, "streams": streams, "tables": sections}
    return parse(document, {})


def names_of_others(sections: Mapping[str, Any], stream: str, source: str) -> set[str]:
    """The model: the names of sections that are not for this table, in lower case."""
    return {
        name.lower()
        for name, own in sections.items()
        if own["stream"] != stream or own.get("source", source) != source
    }


def check_names(tables: Iterable[FollowedTable]) -> None:
    names = [table.name for table in tables]
    assert all(is_name(name) for name in names), names
    assert len({name.lower() for name in names}) == len(names), names


class KilledError(Exception):
    pass


@dataclass
class TablesTopic:
    """A topic `<topic>.tables`, whose writer is killed after `left` records."""

    values: dict[str, FollowedTable] = field(default_factory=dict)
    left: int = 0

    def read(self, *_: object) -> dict[str, FollowedTable]:
        return dict(self.values)

    def publish(self, kafka: object, topic: str, values: Mapping[str, bytes]) -> None:
        for source, value in values.items():
            self.left -= 1
            if self.left < 0:
                raise KilledError
            self.values[source] = FollowedTable.from_value(value)


Step = tuple[list[str], int]
"""The tables that one poll shows for the first time, in their order, and the number of records
after which the bridge is killed.
"""


def names_of_a_bridge(sections: Mapping[str, Any], steps: Iterable[Step]) -> dict[str, str]:
    """Run a bridge that meets these tables, and check each record that it publishes."""
    config, topic, bridge = config_of(sections), TablesTopic(), None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bridge_tables, "source_tables", topic.read)
        patch.setattr(bridge_tables, "publish_source_tables", topic.publish)
        for met, topic.left in steps:
            before = dict(topic.values)
            try:
                bridge = bridge or bridge_tables.BridgeTables(
                    config, config.streams["shop"], lambda code, text: None
                )
                for source in met:
                    bridge.of_decoder.meet(source, [ID], [Shown("n", TEXT)])
                bridge.publish_news()
                assert bridge.definitions.keys() >= set(met)
            except KilledError:
                bridge = None
            check_names(topic.values.values())
            assert topic.values | before == topic.values, "a name is chosen once"
            for source, table in topic.values.items():
                assert table.name.lower() not in names_of_others(sections, "shop", source)
    return {source: table.name for source, table in topic.values.items()}


TWO = [(["b.t", "a.t"], 9)]


@given(sections, st.lists(st.tuples(st.lists(sources, max_size=4), st.integers(0, 9)), max_size=6))
@example({}, TWO)
@example({}, [(["a.T", "a.t"], 9)])
@example({}, [(["a.t", "b.t"], 1), (["b.t"], 9), (["a.t"], 9)])
@example({}, [(["x" * 128, "X" * 128], 9)])
@example({"t": {"stream": "crm"}}, [(["a.t"], 9)])
@example({"T": {"stream": "shop"}}, TWO)
def test_names_of_one_bridge(sections: dict[str, Any], steps: list[Step]) -> None:
    """SRC-5, nothing_lost: in any order, in one poll or in several, and with kills between two
    records of one publication. No order stops the bridge.
    """
    names_of_a_bridge(sections, steps)


def test_a_bridge_begins_where_two_tables_were_published_with_one_name() -> None:
    """SRC-5: as an older version did, or a bridge that had lost its stream and did not know it."""
    config, topic = config_of({}), TablesTopic(left=1)
    for source, name in (("a.t", "T"), ("b.t", "t")):
        section = merged(None, source, [ID], []).table.section()
        topic.values[source] = FollowedTable(name, section)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bridge_tables, "source_tables", topic.read)
        patch.setattr(bridge_tables, "publish_source_tables", topic.publish)
        bridge = bridge_tables.BridgeTables(config, config.streams["shop"], lambda *_: None)
        bridge.of_decoder.meet("c.t", [ID], [])
        bridge.publish_news()
    names = {source: definition.name for source, definition in bridge.definitions.items()}
    assert names == {"a.t": "T", "b.t": "b_t", "c.t": "c_t"}


Published = tuple[str, str, str]
"""A table of a source as a bridge publishes it: the stream, the source, and the name."""


def names_of_a_warehouse(
    sections: Mapping[str, Any], steps: Iterable[list[Published]]
) -> dict[tuple[str, str], str]:
    """Store what bridges publish, and check the names in the warehouse."""
    config, known = config_of(sections), dict[str, dict[str, FollowedTable]]()
    names = dict[tuple[str, str], str]()
    for step in steps:
        published = dict[str, dict[str, FollowedTable]]()
        for stream, source, name in step:
            section = merged(None, source, [ID], []).table.section()
            published.setdefault(stream, {})[source] = FollowedTable(name, section)
        known = with_published(config, known, published)
        before = names
        names = {(s, source): t.name for s, of_s in known.items() for source, t in of_s.items()}
        assert names | before == names, "a table keeps its name"
        check_names(table for tables in known.values() for table in tables.values())
        for (stream, source), name in names.items():
            assert name.lower() not in names_of_others(sections, stream, source)
        tables = with_source_tables(config, {s: of_s.values() for s, of_s in known.items()}).tables
        assert len({name.lower() for name in tables}) == len(tables)
        assert {(table.stream, table.source) for table in tables.values()} >= names.keys()
    return names


published = st.tuples(st.sampled_from(["shop", "crm"]), sources, st.sampled_from(NAMES))
OF_TWO_BRIDGES = [[("shop", "a.t", "t")], [("crm", "a.t", "t"), ("crm", "b.t", "T")]]


@given(sections, st.lists(st.lists(published, max_size=4), max_size=5))
@example({}, OF_TWO_BRIDGES)
@example({"T": {"stream": "hand", "key": KEY}}, OF_TWO_BRIDGES)
@example({"T": {"stream": "shop"}}, OF_TWO_BRIDGES)
def test_names_of_bridges_in_a_warehouse(
    sections: dict[str, Any], steps: list[list[Published]]
) -> None:
    """SRC-5: bridges choose alone, and an older one may publish after a newer one. Each table has
    a name in the warehouse, and keeps it.
    """
    names_of_a_warehouse(sections, steps)


def test_one_name_of_two_tables_moves_no_third_table() -> None:
    """SRC-5: as an older version has stored them."""
    section = merged(None, "s", [ID], []).table.section()
    names = {"a.t": "t", "b.t": "T", "c.x": "b_t"}
    stored = {source: FollowedTable(name, section) for source, name in names.items()}
    made = with_own_names({"shop": stored})["shop"]
    assert {source: table.name for source, table in made.items()} == {**names, "b.t": "b_t_3"}


def test_a_name_depends_on_no_order_within_one_publication() -> None:
    """SRC-5."""
    for tables in (OF_TWO_BRIDGES[1], OF_TWO_BRIDGES[1][::-1]):
        assert names_of_a_warehouse({}, [tables]) == {("crm", "a.t"): "t", ("crm", "b.t"): "b_t"}


def fields_of(name: str, shown: Iterable[str]) -> list[tuple[str, str]]:
    """The columns and cells of a table of the user, after each of these fields was added."""
    config = config_of({"t": {"stream": "shop", "source": "a.t", **OWN[name]}})
    table, cells = None, list[tuple[str, str]]()
    for new in shown:
        table = merged(table, "a.t", [ID], [Shown(new, TEXT)]).table
        followed = FollowedTable("t", table.section())
        definition = with_source_tables(config, {"shop": [followed]}).tables["t"]
        columns = [c for c in definition.columns if c.family == FAMILY]
        of_source = [(column.name, column.qualifier.decode()) for column in columns]
        assert {cell for _, cell in of_source} == {column.cell for column in table.columns}
        assert of_source[: len(cells)] == cells, "a column keeps its name"
        cells = of_source
    return cells


OWN: dict[str, dict[str, Any]] = {
    "renamed": {"columns": [{"name": "total", "qualifier": "amount"}]},
    "added": {"columns": [{"name": "n", "family": "g", "type": "STRING"}]},
    "other key": {"key": {"columns": [{"name": "Total", "type": "INT64"}]}},
    "nothing": {},
}
FIELDS = ["total", "Total", "amount", "total_2", "n", "N", "n_2", "e-mail", "e_mail", "id_2"]


@given(st.sampled_from([*OWN]), st.lists(st.sampled_from(FIELDS), unique=True, max_size=6))
@example("renamed", ["amount", "total", "total_2"])
@example("other key", ["total"])
def test_columns_that_a_source_adds_beside_those_of_the_user(name: str, shown: list[str]) -> None:
    """SRC-5: a later column of the source whose name the user has given to another one."""
    cells = fields_of(name, ["amount", *(field for field in shown if field != "amount")])
    assert ("total", "amount") in cells or name != "renamed"


LONG = "n" * 300


@given(st.lists(st.sampled_from([*FIELDS, LONG, LONG.upper(), "é" * 150, "è" * 150]) | st.text()))
@example([LONG, LONG.upper()])
def test_columns_are_names_that_a_section_may_have(fields: list[str]) -> None:
    """SRC-5: also those that differ in case only, and the longest ones."""
    made = merged(None, "a.t", [Shown("ID", TEXT)], [Shown(name, TEXT) for name in fields]).table
    names = [column.name for column in made.columns]
    assert all(map(is_column_name, names))
    assert len({name.lower() for name in [*names, "id"]}) == len(names) + 1
    assert definition_of(made).source == "a.t"
    assert SourceTable.from_section(made.section()).section() == made.section()


@given(st.lists(sources), st.lists(st.sampled_from(NAMES)))
@example(["x" * 128, "X" * 128], [])
def test_table_names_are_names_that_a_section_may_have(met: list[str], taken: list[str]) -> None:
    """SRC-5: for every name of a source, and any others."""
    names = [name.lower() for name in taken]
    for source in met:
        name = table_name(source, names)
        assert is_name(name)
        assert name.lower() not in names
        names.append(name.lower())


def without_lower_case(source: str, taken: Iterable[str] = ()) -> str:
    """A wrong name: chosen by another comparison than the one of the configuration."""
    return next(n for n in (source.rpartition(".")[2], source) if n not in taken)


WRONG: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "compared with case": lambda patch: patch.setattr(naming, "table_name", without_lower_case),
    "without the others": lambda patch: patch.setattr(
        bridge_tables, "new_name", lambda config, stream, source, taken: table_name(source)
    ),
    "without the user": lambda patch: patch.setattr(naming, "_names_of_others", lambda *_: set()),
    "cut behind the number": lambda patch: patch.setattr(
        naming, "table_name", lambda source, taken=(): table_name(source, taken)[:4]
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_law_notices_a_wrong_name(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law can fail."""
    worlds = [
        ({}, [(["a.T", "a.t"], 9)]),
        ({"t": {"stream": "crm"}}, TWO),
        ({}, [(["a.table1", "a.table2"], 9)]),
    ]
    for world in worlds:
        names_of_a_bridge(*world)
    WRONG[wrong](monkeypatch)
    with pytest.raises((AssertionError, ValueError, naming.ConfigError)):
        for world in worlds:
            names_of_a_bridge(*world)


def test_the_law_of_columns_notices_a_wrong_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law can fail."""
    monkeypatch.setattr(naming, "column_name", lambda name, taken: name)
    with pytest.raises(naming.ConfigError, match="total"):
        fields_of("renamed", ["amount", "total"])
    monkeypatch.setattr(naming_of_columns, "_MAX_NAME", 999)
    with pytest.raises(AssertionError):
        assert is_column_name(column_name(LONG, [LONG]))
