"""TBL-22: where everything is in a warehouse."""

from __future__ import annotations

from connector import warehouse
from connector.warehouse import TABLE_SLOTS, bucket_of, table_slot


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


def test_the_hash_is_that_of_spark() -> None:
    """TBL-4: `SELECT crc32('Spark')`, from the documents of Spark; and a slot that Spark wrote."""
    assert bucket_of(b"Spark", 2**32) == 1557323817
    assert table_slot("t") == 8, "the golden warehouse"


def test_names_use_every_slot() -> None:
    """TBL-4."""
    assert {table_slot(f"table_{n}") for n in range(400)} == set(range(TABLE_SLOTS))


def test_a_source_table_has_one_of_sixteen_slots() -> None:
    """TBL-4: a changelog that is there would have the changes elsewhere."""
    assert TABLE_SLOTS == 16
    assert {table_slot(f"t{n}") for n in range(500)} == set(range(16))


def test_similar_keys_are_spread_evenly() -> None:
    """TBL-13: numbers with and without steps, as text and as bytes."""
    for step in (1, 1000, 4096):
        for keys in (
            [b"%d" % (n * step) for n in range(64_000)],
            [(n * step).to_bytes(8, "big") for n in range(64_000)],
        ):
            counts = [0] * 64
            for key in keys:
                counts[bucket_of(key, 64)] += 1
            assert min(counts) > 800
            assert max(counts) < 1200
