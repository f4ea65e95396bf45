"""TBL-22: where everything is in a warehouse."""

from __future__ import annotations

from connector import warehouse


def test_paths_of_a_warehouse_are_these() -> None:
    folder = warehouse.table_folder("w", "t")
    assert (warehouse.changelog("w", "s"), warehouse.table("w", "t")) == (
        "w/streams/s/changelog",
        "w/tables/t/data",
    )
    assert (warehouse.data(folder), warehouse.tombstones(folder)) == (
        "w/tables/t/data",
        "w/tables/t/tombstones",
    )
    assert warehouse.tombstones(folder, "r1") == "w/tables/t/tombstones-r1"
    assert (warehouse.jobs("w"), warehouse.cuts("w")) == ("w/_connector/jobs", "w/_connector/cuts")
    assert (warehouse.overrides("w"), warehouse.audit_log("w")) == (
        "w/_connector/overrides",
        "w/_connector/audit_log",
    )
    assert warehouse.closed_partitions("w") == "w/_connector/closed_partitions"
