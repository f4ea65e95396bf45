"""What operators set while the pipeline runs (TBL-20)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from connector import warehouse as places
from connector.errors import ConfigError, TableError
from connector.lake.overrides import Overrides
from connector.lake.plain_table import newest_stored
from connector.lake.small_tables import as_arrow, select
from connector.state.accepted_losses import AcceptLoss
from connector.state.commits import stored_in
from connector.state.erased_keys import EraseKey
from connector.state.incomplete_transactions import ReleaseTransaction
from connector.state.overrides import (
    ClosePartition,
    Override,
    bounds_in_force,
    columns_at,
    metadata_with,
    pace_in_force,
    seconds_at,
    stored_override,
)
from connector.tables.alterations import ColumnOverride
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.stored_definition import stored_column
from connector.tables.values import DataType
from connector.write_streams.releases import ReleaseRows
from tests.unit.warehouses import commit

Request = ClosePartition | ReleaseTransaction | ReleaseRows | AcceptLoss | EraseKey

NOTE = Column("note", "f", b"note", DataType.STRING)


def defined(name: str, bound: int | None) -> TableDefinition:
    key = Key((KeyPart("id", DataType.STRING),), KeyForm.ROW_KEY)
    return TableDefinition(
        name=name, stream="s", source="t", key=key, columns=(), max_staleness_s=bound
    )


def test_an_operators_bound_outranks_the_configured_one_until_it_is_unset() -> None:
    """TBL-20"""
    tables = [defined("one", 600), defined("other", None), defined("third", 60)]
    assert bounds_in_force(tables, {}) == {"one": 600, "third": 60}
    metadata: dict[str, Any] | None = None
    for name, seconds in (("one", 7), ("other", 5), ("third", 0)):
        metadata = metadata_with(
            "path", Override("max_staleness_s", name, seconds, 1, "me"), metadata
        )
    bounds = seconds_at("path", metadata, "max_staleness_s")
    assert bounds_in_force(tables, bounds) == {"one": 7, "other": 5}, "0 is no bound"
    metadata = metadata_with("path", Override("max_staleness_s", "one", None, 4, "me"), metadata)
    assert seconds_at("path", metadata, "max_staleness_s") == {"other": 5, "third": 0}


def test_overrides_are_read_as_they_were_written_with_their_author(tmp_path: Path) -> None:
    """TBL-20, TBL-22"""
    overrides = Overrides(str(tmp_path))
    assert overrides.bounds() == {}
    overrides.set(Override("max_staleness_s", "one", 600, 1, "ann"))
    overrides.set(Override("max_staleness_s", "other", 0, 2, "bob"))
    overrides.set(Override("max_staleness_s", "one", None, 3, "bob"))
    assert overrides.bounds() == {"other": 0}
    rows = select(
        f"{tmp_path}/_connector/overrides", "true ORDER BY made_at", "made_by, max_staleness_s"
    )
    assert rows == [
        {"made_by": who, "max_staleness_s": bound}
        for who, bound in (("ann", 600), ("bob", 0), ("bob", None))
    ]


def test_a_pace_is_set_beside_a_bound_and_unset_without_it(tmp_path: Path) -> None:
    """JOB-2, TBL-20: what is set outranks the configuration; a quarter of a bound that is set is
    the pace where none is.
    """
    overrides, table = Overrides(str(tmp_path)), replace(defined("one", 600), apply_every_s=50)
    overrides.set(Override("max_staleness_s", "one", 60, 1, "ann"))
    overrides.set(Override("apply_every_s", "one", 7, 2, "ann"))
    overrides.set(Override("max_staleness_s", "other", 20, 3, "ann"))
    assert (overrides.bounds(), overrides.paces()) == ({"one": 60, "other": 20}, {"one": 7})
    assert pace_in_force(table, overrides.bounds(), overrides.paces()) == 7
    assert pace_in_force(defined("other", 600), overrides.bounds(), overrides.paces()) == 5
    overrides.set(Override("apply_every_s", "one", None, 4, "bob"))
    assert (overrides.bounds(), overrides.paces()) == ({"one": 60, "other": 20}, {})
    assert pace_in_force(table, overrides.bounds(), overrides.paces()) == 50
    assert pace_in_force(defined("third", 600), {}, {}) == 150


def test_a_setting_that_no_table_has_is_not_stored_but_the_oldest_always_is(tmp_path: Path) -> None:
    """JOB-2, TBL-20: a commit without bounds would not be one of lowmark."""
    overrides, path = Overrides(str(tmp_path)), places.overrides(str(tmp_path))
    overrides.set(Override("apply_every_s", "one", 7, 1, "ann"))
    assert newest_stored(path) == {"max_staleness_s": {}, "apply_every_s": {"one": 7}}
    assert (overrides.bounds(), overrides.paces()) == ({}, {"one": 7})
    overrides.set(Override("apply_every_s", "one", None, 2, "ann"))
    assert newest_stored(path) == {"max_staleness_s": {}}


def test_two_operators_at_once_do_not_undo_each_other(tmp_path: Path) -> None:
    def set_some(first: int) -> None:
        for number in (first, first + 1):
            Overrides(str(tmp_path)).set(Override("max_staleness_s", f"t{number}", number, 1, "me"))

    threads = [Thread(target=set_some, args=(first,)) for first in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Overrides(str(tmp_path)).bounds() == {f"t{number}": number for number in range(4)}


@pytest.mark.parametrize("seconds", [-1, "x", 1.5, True, 2**31, 10**30])
def test_a_number_of_seconds_that_is_not_allowed_is_refused(seconds: int) -> None:
    """TBL-20, JOB-2."""
    for setting in ("max_staleness_s", "apply_every_s"):
        with pytest.raises(ConfigError, match="table t is"):
            Override(setting, "t", seconds, 1, "a person")
    assert Override("max_staleness_s", "t", 0, 1, "a person").seconds == 0
    with pytest.raises(ConfigError, match="apply_every of table t is 0"):
        Override("apply_every_s", "t", 0, 1, "a person")


def foreign_commit(path: str, metadata: str | None) -> None:
    """Add no row, as another program does, with this metadata."""
    custom = {} if metadata is None else {"userMetadata": metadata}
    types = {"made_by": "string"}
    write_deltalake(
        path,
        as_arrow([{"made_by": "another program"}], types),
        mode="append",
        schema_mode="merge",
        commit_properties=CommitProperties(custom_metadata=custom),
    )


DAMAGED = (None, "{", '{"lowmark": {}}', '{"lowmark": 5}', "[" * 200_000)


@pytest.mark.parametrize("metadata", DAMAGED)
def test_a_newest_commit_of_another_program_is_not_no_overrides(
    tmp_path: Path, metadata: str | None
) -> None:
    """TBL-20, TBL-14: an override that is set then would have removed the others for good."""
    overrides, path = Overrides(str(tmp_path)), places.overrides(str(tmp_path))
    overrides.set(Override("max_staleness_s", "one", 600, 1, "ann"))
    version = DeltaTable(path).version()
    foreign_commit(path, metadata)
    for action in (
        overrides.bounds,
        overrides.paces,
        lambda: overrides.set(Override("apply_every_s", "one", 7, 2, "ann")),
        lambda: overrides.set(Override("max_staleness_s", "one", None, 2, "ann")),
    ):
        with pytest.raises(TableError, match="Restore") as caught:
            action()
        assert caught.value.code == "COMMIT_FOREIGN"
        assert DeltaTable(path).version() == version + 1, "nothing was written"
    DeltaTable(path).restore(version)
    assert overrides.bounds() == {"one": 600}, "the remedy helps"
    overrides.set(Override("apply_every_s", "one", 7, 3, "ann"))
    assert (overrides.bounds(), overrides.paces()) == ({"one": 600}, {"one": 7})


@pytest.mark.parametrize("metadata", DAMAGED)
def test_a_newest_commit_of_another_program_is_not_no_closed_partitions(
    tmp_path: Path, metadata: str | None
) -> None:
    """WMK-8, TBL-14: the numbers would begin again, and ingest would take no request any more."""
    overrides, path = Overrides(str(tmp_path)), places.closed_partitions(str(tmp_path))
    request = ClosePartition(1, "s", "p", "gone", 1, "ann")
    overrides.add(request)
    foreign_commit(path, metadata)
    with pytest.raises(TableError, match="Restore"):
        overrides.requests(ClosePartition, "s", above=0)
    with pytest.raises(TableError, match="Restore"):
        overrides.add(replace(request, stream_partition="q"))
    DeltaTable(path).restore(1)
    overrides.add(replace(request, stream_partition="q"))
    assert [one.number for one in overrides.requests(ClosePartition, "s", above=0)] == [1, 2]


@pytest.mark.parametrize(
    "request_",
    [
        ClosePartition(0, "s", "p", "gone", 1, "ann"),
        ReleaseTransaction(0, "s", "t", "gone", 1, "ann", 9),
        ReleaseRows(0, "s", 9, "gone", 1, "ann"),
        AcceptLoss(0, "s", "t", "{}", "gone", 1, "ann"),
        EraseKey(0, "s", "t", "ff", 5, "gone", 1, "ann"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_the_number_of_a_request_is_above_all_numbers_before_it(
    tmp_path: Path, request_: Request
) -> None:
    """WMK-8, ING-2, WRS-18, RUN-7, OPR-2: ingest takes each request once, by its number. The other
    requests of a process, and those of other streams, count too.
    """
    overrides, other = Overrides(str(tmp_path)), Overrides(str(tmp_path))
    for of in (overrides, other, overrides):
        of.add(request_)
    other.add(replace(request_, number=7))
    other.add(replace(request_, stream="it's another"))
    overrides.add(replace(request_, number=3))

    def numbers(stream: str, above: int) -> list[int]:
        made = overrides.requests(type(request_), stream, above=above)
        assert made == [replace(request_, number=one.number, stream=stream) for one in made]
        return [one.number for one in made]

    assert numbers("s", 0) == [1, 2, 3, 7, 9]
    assert numbers("it's another", 0) == [8]
    assert (numbers("s", 7), numbers("s", 8), numbers("s", 9)) == ([9], [9], [])


@pytest.mark.parametrize("stored", [{"one": "x"}, {"one": 1.5}, {"one": None}, [], "x", 5])
def test_overrides_that_are_no_numbers_are_an_error_also_for_what_is_set_next(
    tmp_path: Path, stored: object
) -> None:
    """TBL-20, TBL-14."""
    path = places.overrides(str(tmp_path))
    row = {"made_by": "ann"}
    commit(Path(path), [row], {"made_by": "string"}, {"max_staleness_s": stored})
    overrides = Overrides(str(tmp_path))
    for action in (
        overrides.bounds,
        lambda: overrides.set(Override("max_staleness_s", "two", 5, 1, "ann")),
    ):
        with pytest.raises(TableError, match="cannot be read") as caught:
            action()
        assert caught.value.code == "COMMIT_UNREADABLE"
    assert DeltaTable(path).version() == 0


def test_a_number_of_closed_partitions_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    """WMK-8, TBL-14."""
    path = places.closed_partitions(str(tmp_path))
    commit(Path(path), [{"stream": "s"}], {"stream": "string"}, {"number": "x"})
    overrides = Overrides(str(tmp_path))
    with pytest.raises(TableError, match="cannot be read"):
        overrides.requests(ClosePartition, "s", above=0)
    with pytest.raises(TableError, match="cannot be read"):
        overrides.add(ClosePartition(1, "s", "p", "gone", 1, "ann"))


ROW = {
    "number": 1,
    "stream": "s",
    "stream_partition": "p",
    "reason": "gone",
    "made_at": 1,
    "made_by": "ann",
}


def with_row(warehouse: Path, row: dict[str, Any]) -> None:
    types = {name: "int64" if name in ("number", "made_at") else "string" for name in ROW}
    path = places.closed_partitions(str(warehouse))
    commit(Path(path), [row], types, {"number": 1})


def test_a_request_that_names_no_partition_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """WMK-8, TBL-14."""
    with_row(tmp_path, {**ROW, "stream_partition": None})
    with pytest.raises(TableError, match=r"A row of .* cannot be read.*stream_partition.*restore"):
        Overrides(str(tmp_path)).requests(ClosePartition, "s", above=0)


@pytest.mark.parametrize("note", [None, "", " ", 5, "a\0b", "a\ud800"])
@pytest.mark.parametrize("field", ["reason", "made_by"])
def test_an_unreadable_request_is_not_stored(tmp_path: Path, field: str, note: Any) -> None:
    """WMK-8: every later run would have failed."""
    request = replace(ClosePartition(1, "s", "p", "gone", 1, "ann"), **{field: note})
    with pytest.raises(ConfigError, match="It must be a text"):
        Overrides(str(tmp_path)).add(request)
    assert newest_stored(places.closed_partitions(str(tmp_path))) is None


def test_metadata_of_great_depth_is_not_of_lowmark() -> None:
    """TBL-14."""
    assert stored_in({"userMetadata": '{"lowmark":' + "[" * 100_000}) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"name": 7},
        {"made_at": "yesterday"},
        {"made_by": None},
        {"only_default": "yes"},
        {"column": "STRING"},
        {"column": {"name": "c"}},
        {"column": {**stored_column(NOTE), "required": "no"}},
        {"column": {**stored_column(NOTE), "name": "_bookkeeping"}},
        {"column": {**stored_column(NOTE), "type": "TEXT"}},
    ],
)
def test_a_damaged_column_override_is_an_error(damage: dict[str, Any]) -> None:
    """EVO-2, TBL-20: each type is checked, and the error names the folder."""
    stored = stored_override(ColumnOverride("t", "note", NOTE, 1, "ada@host"))
    metadata = {"max_staleness_s": {}, "columns": {"t": [stored]}}
    assert columns_at("/w/overrides", metadata)["t"][0].column == NOTE
    with pytest.raises(TableError) as caught:
        columns_at("/w/overrides", {**metadata, "columns": {"t": [{**stored, **damage}]}})
    assert caught.value.code == "COMMIT_UNREADABLE"
    assert "/w/overrides" in caught.value.problem
