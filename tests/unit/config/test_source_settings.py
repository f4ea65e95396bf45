"""Settings of a source, and tables whose definitions follow from it (SRC-1, SRC-5)."""

from __future__ import annotations

from typing import Any

import pytest

from connector.config.parse import parse
from connector.config.settings import ConnectorConfig, SourceTables, find_table
from connector.config.source_tables import FollowedTable, with_source_tables
from connector.errors import ConfigError
from connector.sources.columns import FAMILY
from connector.sources.model import OnMissingValue, OnTruncate, SourceFormat
from connector.tables.values import DataType

SOURCE = {"format": "debezium-json", "topics": ["dbz.public.*"]}
CUSTOMERS = {
    "source": "public.customers",
    "key": {"form": "ordered", "columns": [{"name": "id", "type": "INT64"}]},
    "columns": [
        {"name": "name", "family": "f", "type": "STRING"},
        {"name": "credit", "family": "f", "type": "NUMERIC"},
    ],
}


def document(*, tables: dict[str, Any] | None = None, **source: object) -> dict[str, object]:
    return {
        "warehouse": "w",
        "kafka": {"bootstrap_servers": "h:1"},
        "streams": {"shop": {"source": {**SOURCE, **source}}},
        "tables": tables or {},
    }


def followed(tables: dict[str, Any]) -> ConnectorConfig:
    config = parse(document(tables=tables), {})
    return with_source_tables(config, {"shop": [FollowedTable("customers", CUSTOMERS)]})


def columns(config: ConnectorConfig, table: str) -> list[tuple[str, bytes, str]]:
    return [(c.name, c.qualifier, str(c.type)) for c in config.tables[table].columns]


def test_a_source_has_its_settings_and_defaults() -> None:
    """SRC-1."""
    source = parse(document(transactions="dbz.transaction"), {}).streams["shop"].source
    assert source is not None
    assert source.format is SourceFormat.DEBEZIUM_JSON
    assert source.tables is SourceTables.FROM_SOURCE
    assert source.on_truncate is OnTruncate.DELETE
    assert source.on_missing_value is OnMissingValue.LETTER
    assert source.has_topic("dbz.public.a")
    assert source.has_topic("dbz.transaction")
    assert not source.has_topic("dbz.crm.a")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"format": "csv"}, "streams.shop.source.format"),
        ({"format": "debezium-avro"}, "streams.shop.source.format"),
        ({"topics": []}, "streams.shop.source.topics"),
        ({"topics": ["a b"]}, "streams.shop.source.topics"),
        ({"topics": ["sho*"]}, "streams.shop.source.topics"),
        ({"topics": ["shop.dead-letters"]}, "streams.shop.source.topics"),
        ({"topic": ["a"]}, "streams.shop.source.topic"),
        ({"format": "upsert-json", "transactions": "t"}, "streams.shop.source.transactions"),
        ({"on_truncate": "ignore"}, "streams.shop.source.on_truncate"),
    ],
)
def test_a_wrong_setting_of_a_source_is_named(source: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(document(**source), {})
    assert problem in raised.value.problem


def test_format_and_topics_are_required() -> None:
    with pytest.raises(ConfigError) as raised:
        parse({**document(), "streams": {"shop": {"source": {}}}}, {})
    assert "streams.shop.source.format is not set" in str(raised.value)
    assert "streams.shop.source.topics is not set" in str(raised.value)


def test_a_table_of_the_source_needs_no_section() -> None:
    """SRC-5."""
    config = followed({})
    assert config.tables["customers"].source == "public.customers"
    assert config.tables["customers"].stream == "shop"
    assert columns(config, "customers") == [
        ("name", b"name", "STRING"),
        ("credit", b"credit", "NUMERIC"),
    ]


def test_an_unknown_table_of_a_source_is_explained() -> None:
    """SRC-5: a section of the configuration would not help."""
    with pytest.raises(ConfigError) as raised:
        find_table(followed({}), "visits")
    assert "needs a primary key" in raised.value.remedy
    with pytest.raises(ConfigError) as raised:
        find_table(followed({}), "customer")
    assert raised.value.remedy == "did you mean customers?"


def test_a_section_overrides_single_settings_and_columns_by_their_cells() -> None:
    """SRC-5."""
    config = followed(
        {
            "customers": {
                "stream": "shop",
                "max_staleness": "1m",
                "columns": [
                    {"name": "credit", "type": "BIGNUMERIC"},
                    {"name": "client", "qualifier": "name"},
                    {"name": "extra", "family": "f", "type": "INT64"},
                ],
            }
        }
    )
    assert config.tables["customers"].max_staleness_s == 60
    assert columns(config, "customers") == [
        ("client", b"name", "STRING"),
        ("credit", b"credit", "BIGNUMERIC"),
        ("extra", b"extra", "INT64"),
    ]


def test_a_section_can_rename_a_table_and_one_source_can_feed_two() -> None:
    section = {"stream": "shop", "source": "public.customers"}
    config = followed({"clients": section, "people": {**section, "buckets": 4}})
    assert set(config.tables) == {"clients", "people"}
    assert config.tables["people"].buckets == 4


def test_a_section_without_a_key_waits_for_its_source() -> None:
    """SRC-5: it has no table of a wrong key meanwhile."""
    waiting = {"stream": "shop", "max_staleness": "1m"}
    complete = {**waiting, "key": {"columns": [{"name": "id", "type": "INT64"}]}}
    config = parse(document(tables={"customers": waiting, "orders": complete}), {})
    assert set(config.tables) == {"orders"}
    assert config.tables["orders"].key.parts[0].type is DataType.INT64


def test_declared_tables_do_not_follow_the_source() -> None:
    table = {**CUSTOMERS, "stream": "shop"}
    declared = {"shop": {"source": {**SOURCE, "tables": "declared"}}}
    config = parse({**document(tables={"customers": table}), "streams": declared}, {})
    more = {**CUSTOMERS, "columns": []}
    assert (
        with_source_tables(
            config, {"shop": [FollowedTable("customers", more), FollowedTable("other", more)]}
        )
        == config
    )


def test_a_wrong_section_is_named_when_its_source_is_known() -> None:
    with pytest.raises(ConfigError, match=r"tables\.customers\.columns\[1\]\.type"):
        followed(
            {"customers": {"stream": "shop", "columns": [{"name": "credit", "type": "MONEY"}]}}
        )


def test_a_column_that_the_source_has_not_shown_yet_has_its_family() -> None:
    """SRC-5: without a schema, a column follows from the first value that is not NULL."""
    own = {"stream": "shop", "columns": [{"name": "photo", "type": "BYTES"}]}
    (*_, column) = followed({"customers": own}).tables["customers"].columns
    assert (column.name, column.family) == ("photo", FAMILY)
    del own["columns"][0]["type"]
    with pytest.raises(ConfigError, match="type is not set"):
        followed({"customers": own})  # the source has a schema, so the name is wrong
    guess = {"name": "n", "family": FAMILY, "type": "INT64", "on_unreadable": "null"}
    for shown in ([], [guess]):
        table = FollowedTable("customers", {**CUSTOMERS, "columns": shown})
        config = with_source_tables(
            parse(document(tables={"customers": own}), {}), {"shop": [table]}
        )
        assert len(config.tables["customers"].columns) == len(shown)


def test_two_tables_of_one_name_are_an_error_with_a_remedy() -> None:
    other = {"stream": "other", **CUSTOMERS}
    config = parse(
        {
            **document(tables={"customers": other}),
            "streams": {"other": {}, "shop": {"source": SOURCE}},
        },
        {},
    )
    with pytest.raises(ConfigError) as raised:
        with_source_tables(config, {"shop": [FollowedTable("customers", CUSTOMERS)]})
    assert 'source = "public.customers"' in raised.value.remedy


@pytest.mark.parametrize("own", [{}, {"key": CUSTOMERS["key"]}])
def test_a_section_for_another_table_does_not_take_a_name(own: dict[str, Any]) -> None:
    """SRC-5, never in silence: the table with this name would be another one. The remedy is for
    the table without a section.
    """
    section = {"stream": "shop", "source": "crm.customers", **own}
    with pytest.raises(ConfigError, match=r"tables\.customers is .* public\.customers") as raised:
        followed({"Customers": section})
    assert raised.value.remedy.startswith("Add a section [tables.OTHER]")
    other = {"stream": "shop", "source": "public.customers"}
    assert "OTHER" in followed({"Customers": section, "OTHER": other}).tables


@pytest.mark.parametrize("own", [{}, {"key": CUSTOMERS["key"]}])
def test_a_section_in_another_case_is_that_of_the_table(own: dict[str, Any]) -> None:
    """SRC-5: names are compared without case, and a table keeps its name."""
    config = followed({"CUSTOMERS": {"stream": "shop", "max_staleness": "1m", **own}})
    (table,) = config.tables.values()
    assert (table.name, table.source) == ("customers", "public.customers")
    assert table.max_staleness_s == 60


def test_a_followed_table_is_its_record_again() -> None:
    """SRC-5."""
    table = FollowedTable("customers", CUSTOMERS, ("note",))
    assert FollowedTable.from_value(table.to_value()) == table
    for wrong in (
        b"",
        b"[]",
        b"{}",
        b'{"name": 1, "section": {}, "with_default": []}',
        b"[" * 9999,
    ):
        with pytest.raises(ValueError):
            FollowedTable.from_value(wrong)
