"""What operators set while the pipeline runs (TBL-20)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from connector.errors import ConfigError
from connector.lake.overrides import Overrides
from connector.lake.small_tables import append_next, select
from connector.state.overrides import (
    PaceOverride,
    StalenessOverride,
    bounds_in,
    bounds_in_force,
    metadata_with,
    pace_in_force,
)
from connector.tables.definition import TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.values import DataType


def defined(name: str, bound: int | None) -> TableDefinition:
    key = Key((KeyPart("id", DataType.STRING),))
    return TableDefinition(
        name=name, stream="s", source="t", key=key, columns=(), max_staleness_s=bound
    )


def test_an_operators_bound_outranks_the_configured_one_until_it_is_unset() -> None:
    """TBL-20"""
    tables = [defined("one", 600), defined("other", None), defined("third", 60)]
    assert bounds_in_force(tables, {}) == {"one": 600, "third": 60}
    said = metadata_with(
        StalenessOverride("third", 0, 3, "me"),
        metadata_with(
            StalenessOverride("other", 5, 2, "me"),
            metadata_with(StalenessOverride("one", 7, 1, "me"), None),
        ),
    )
    assert bounds_in_force(tables, bounds_in(said)) == {"one": 7, "other": 5}, "0 is no bound"
    assert bounds_in(metadata_with(StalenessOverride("one", None, 4, "me"), said)) == {
        "other": 5,
        "third": 0,
    }


def test_what_is_set_is_read_back_and_who_set_it_is_kept(tmp_path: Path) -> None:
    """TBL-20, TBL-22"""
    overrides = Overrides(str(tmp_path))
    assert overrides.bounds() == {}
    overrides.set(StalenessOverride("one", 600, 1, "ann"))
    overrides.set(StalenessOverride("other", 0, 2, "bob"))
    overrides.set(StalenessOverride("one", None, 3, "bob"))
    assert overrides.bounds() == {"other": 0}
    kept = select(
        f"{tmp_path}/_connector/overrides", "true ORDER BY made_at", "made_by, max_staleness_s"
    )
    assert kept == [
        {"made_by": who, "max_staleness_s": bound}
        for who, bound in (("ann", 600), ("bob", 0), ("bob", None))
    ]


def test_a_pace_is_set_beside_a_bound_and_unset_without_it(tmp_path: Path) -> None:
    """JOB-2, TBL-20: what is set outranks the configuration; half of a bound that is set is the
    pace where none is.
    """
    overrides, table = Overrides(str(tmp_path)), replace(defined("one", 600), apply_every_s=50)
    overrides.set(StalenessOverride("one", 60, 1, "ann"))
    overrides.set(PaceOverride("one", 7, 2, "ann"))
    overrides.set(StalenessOverride("other", 20, 3, "ann"))
    assert (overrides.bounds(), overrides.paces()) == ({"one": 60, "other": 20}, {"one": 7})
    assert pace_in_force(table, overrides.bounds(), overrides.paces()) == 7
    assert pace_in_force(defined("other", 600), overrides.bounds(), overrides.paces()) == 10
    overrides.set(PaceOverride("one", None, 4, "bob"))
    assert (overrides.bounds(), overrides.paces()) == ({"one": 60, "other": 20}, {})
    assert pace_in_force(table, overrides.bounds(), overrides.paces()) == 50
    assert pace_in_force(defined("third", 600), {}, {}) == 300


def test_settings_of_an_earlier_release_are_gone_on_with(tmp_path: Path) -> None:
    """JOB-2: its table has no column for paces."""
    path, of_old = (
        f"{tmp_path}/_connector/overrides",
        {"table": "string", "max_staleness_s": "int64", "made_at": "int64", "made_by": "string"},
    )
    row = {"table": "one", "max_staleness_s": 60, "made_at": 1, "made_by": "ann"}
    append_next(path, of_old, lambda said: (row, {"max_staleness_s": {"one": 60}}))
    overrides = Overrides(str(tmp_path))
    overrides.set(PaceOverride("one", 7, 2, "ann"))
    assert (overrides.bounds(), overrides.paces()) == ({"one": 60}, {"one": 7})
    kept = select(path, "true ORDER BY made_at", "max_staleness_s, apply_every_s")
    assert kept == [
        {"max_staleness_s": 60, "apply_every_s": None},
        {"max_staleness_s": None, "apply_every_s": 7},
    ]


def test_two_operators_at_once_do_not_undo_each_other(tmp_path: Path) -> None:
    def set_some(first: int) -> None:
        for number in (first, first + 1):
            Overrides(str(tmp_path)).set(StalenessOverride(f"t{number}", number, 1, "me"))

    threads = [Thread(target=set_some, args=(first,)) for first in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Overrides(str(tmp_path)).bounds() == {f"t{number}": number for number in range(4)}


@pytest.mark.parametrize("seconds", [-1, "x", 1.5, True, 2**31, 10**30])
def test_a_number_of_seconds_that_is_not_allowed_is_refused(seconds: int) -> None:
    """TBL-20, JOB-2."""
    for override in (StalenessOverride, PaceOverride):
        with pytest.raises(ConfigError, match="table t is"):
            override("t", seconds, 1, "a person")
    assert StalenessOverride("t", 0, 1, "a person").max_staleness_s == 0
    with pytest.raises(ConfigError, match="apply_every of table t is 0"):
        PaceOverride("t", 0, 1, "a person")
