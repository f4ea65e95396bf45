"""The slot of a source table, as Spark computes it."""

from __future__ import annotations

import pytest

from connector.state.changelog_slots import TABLE_SLOTS, table_slot, xxh64


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0xEF46DB3751D8E999),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"xxhash", 20141025, 0xB559B98D844E0635),
        (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_is_xxh64(data: bytes, seed: int, expected: int) -> None:
    """TBL-4: published values of XXH64, of less and more than 32 bytes."""
    assert xxh64(data, seed) == expected


def test_the_hash_is_that_of_spark() -> None:
    """TBL-4: `SELECT xxhash64('ABC')`, from the documents of PySpark; and a slot that Spark
    wrote.
    """
    assert xxh64(b"ABC", 42) == 4105715581806190027
    assert table_slot("t") == 13, "the golden warehouse"


def test_names_use_every_slot() -> None:
    """TBL-4."""
    assert {table_slot(f"table_{n}") for n in range(400)} == set(range(TABLE_SLOTS))


def test_a_source_table_has_one_of_sixteen_slots() -> None:
    """TBL-4: a changelog that is there would have the changes elsewhere."""
    assert TABLE_SLOTS == 16
    assert {table_slot(f"t{n}") for n in range(500)} == set(range(16))
