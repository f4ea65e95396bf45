"""Rows are found by their keys as a look at each row finds them (TBL-13)."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from connector.engine.keys import FileKeys
from connector.engine.values import arrow_type
from connector.lake.kept import SHARE, Kept
from connector.lake.small_files import KEYS, LeftToSpark, WantedKeys, rows_with_keys
from connector.state import apply_level as limits
from connector.tables.definition import TableDefinition
from connector.tables.keys import KEY_TYPES, Key, KeyPart
from connector.tables.values import DataType
from tests.examples import tries
from tests.property.histories import COLUMNS
from tests.property.spellings import value_of


def table_with(types: list[DataType]) -> TableDefinition:
    key = Key(tuple(KeyPart(f"k{n}", type_) for n, type_ in enumerate(types)))
    return TableDefinition(name="t", stream="s", source="t", key=key, columns=COLUMNS)


def drawn(rng: Random, types: list[DataType]) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Different keys, many of which differ in one part only, and the numbers of those in rows."""
    choices = [[value_of(rng, type_) for _ in range(3)] for type_ in types]
    keys = dict.fromkeys(tuple(rng.choice(some) for some in choices) for _ in range(9))
    rows = rng.choices(range(len(keys)), k=rng.randint(0, 12))
    return list(keys), rows


def test_keys_in_files_are_those_of_their_rows(tmp_path: Path, seed: int) -> None:
    """nothing_invented: read from a file, kept in memory, and sorted there. A key with a
    null does not count, and a key may occur twice.
    """
    rng = Random(seed)
    for number in tries(400, quick=60):
        types = rng.sample(KEY_TYPES, rng.choice((1, 1, rng.randint(2, len(KEY_TYPES)))))
        definition, (keys, in_rows) = table_with(types), drawn(rng, types)
        rows: list[tuple[Any, ...]] = [keys[n] for n in in_rows]
        nulls = {n for n in range(len(rows)) if rng.random() < 0.1}
        rows = [(*row[:-1], None) if n in nulls else row for n, row in enumerate(rows)]
        wanted = WantedKeys(definition, keys[: rng.randint(0, len(keys))])
        expected = [
            (row, key)
            for row, key in enumerate(in_rows)
            if row not in nulls and key < len(wanted.joined)
        ]
        columns = {
            part.name: pa.array([row[n] for row in rows], arrow_type(part.type))
            for n, part in enumerate(definition.key.parts)
        }
        table = pa.table({**columns, "n": pa.array(range(len(rows)), pa.int64())})
        folder = tmp_path / str(number)
        folder.mkdir()
        parquet.write_table(table, folder / "a.parquet", row_group_size=4)
        for _ in range(4):
            found = list(rows_with_keys(str(folder), [{"path": "a.parquet"}], wanted, ["n"]))
            assert len(found) == bool(expected)
            for them in found:
                assert list(zip(them.rows.tolist(), them.keys.tolist(), strict=True)) == expected
                assert them.columns["n"].to_pylist() == them.rows.tolist()
        sliced = wanted.of_table(pa.concat_tables([table, table]).slice(len(table)))
        for _ in range(3):
            found_rows, found_keys = sliced.rows_of(wanted.joined)
            assert list(zip(found_rows.tolist(), found_keys.tolist(), strict=True)) == expected
        shutil.rmtree(folder)


def test_threads_find_the_same_rows() -> None:
    """nothing_invented: while one of them sorts the keys."""
    numbers = list(range(3_000))
    Random(1).shuffle(numbers)
    wanted, wrong = pa.array(numbers[::100]), list[object]()

    def search(keys: FileKeys) -> None:
        for _ in range(4):
            rows, _ = keys.rows_of(wanted)
            if rows.tolist() != list(range(0, 3_000, 100)):
                wrong.append(rows)

    for _ in range(20):
        keys = FileKeys(pa.array(numbers))
        threads = [Thread(target=search, args=(keys,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_the_values_that_were_used_last_are_kept() -> None:
    kept = Kept[str](10 * SHARE)
    for number in range(2 * SHARE):
        kept.keep(number, str(number), 5)
    assert kept.get(0) == "0"
    kept.keep("new", "new", 5)
    assert (kept.get(0), kept.get(1), kept.get("new")) == ("0", None, "new")
    kept.keep("new", "newer", 10)
    assert (kept.get("new"), kept.get(2), kept.get(3)) == ("newer", None, "3")
    kept.keep("new", "too large", 11)
    assert kept.get("new") is None
    assert kept.get(3) == "3"
    kept.clear()
    assert kept.get(3) is None


def test_a_file_is_read_once(tmp_path: Path) -> None:
    """ENG-8: its keys are kept in memory."""
    definition = table_with([DataType.INT64])
    file = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"k0": [3, 1, 2]}), file)
    wanted, adds = WantedKeys(definition, [(1,)]), [{"path": "a.parquet"}]
    for _ in range(3):
        ((found,),) = [list(rows_with_keys(str(tmp_path), adds, wanted, ()))]
        assert found.rows.tolist() == [1]
        file.unlink(missing_ok=True)
    KEYS.clear()
    with pytest.raises(FileNotFoundError):
        list(rows_with_keys(str(tmp_path), adds, wanted, ()))


def test_files_and_rows_that_are_large_in_memory_are_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCL-1: all row groups of a file count together, and the rows of all files."""
    wanted, adds = WantedKeys(table_with([DataType.INT64]), [(1,)]), list[dict[str, Any]]()
    for name, text in (("a", "x" * 10_000), ("b", "y" * 10_000)):  # small in the file
        table = pa.table({"k0": [1] * 8, "n": [text] * 8})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=4)
        adds.append({"path": f"{name}.parquet"})
    content = parquet.read_metadata(tmp_path / "a.parquet")
    of_file = sum(content.row_group(number).total_byte_size for number in range(2))
    of_rows = sum(
        found.columns.nbytes for found in rows_with_keys(str(tmp_path), adds, wanted, ["n"])
    )
    assert of_rows > 2 * of_file

    def is_read(columns: list[str], most: int) -> bool:
        KEYS.clear()
        monkeypatch.setattr(limits, "MAX_IN_MEMORY", most)
        try:
            return bool(list(rows_with_keys(str(tmp_path), adds, wanted, columns)))
        except LeftToSpark:
            return False

    assert (is_read([], of_file), is_read([], of_file - 1)) == (True, False)
    assert (is_read(["n"], of_rows), is_read(["n"], of_rows - 1)) == (True, False)
