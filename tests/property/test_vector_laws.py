"""Deletion vectors of Delta tables, written and read without a JVM (TBL-22)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyroaring import BitMap64

from connector.lake.small_files import read_vector, write_vectors

VECTORS = st.dictionaries(
    st.text("abc", min_size=1), st.sets(st.integers(0, 2**40), max_size=30), min_size=1, max_size=3
)


def files_in(folder: str) -> SubTreeFileSystem:
    return SubTreeFileSystem(folder, LocalFileSystem())


@given(VECTORS)
@example({"a": set(), "b": {0, 2**40}})
def test_a_vector_is_read_as_it_was_written(vectors: dict[str, set[int]]) -> None:
    """deletes_stay_deleted: several are in one file, which may lie in a folder of the table."""
    with tempfile.TemporaryDirectory() as folder:
        written = write_vectors(files_in(folder), {n: BitMap64(v) for n, v in vectors.items()})
        below = Path(folder, "ab")
        below.mkdir()
        for name, descriptor in written.items():
            assert descriptor["cardinality"] == len(vectors[name])
            assert set(read_vector(files_in(folder), descriptor)) == vectors[name]
        (file,) = Path(folder).glob("*.bin")
        file.rename(below / file.name)
        for name, descriptor in written.items():
            of_folder = descriptor | {"pathOrInlineDv": "ab" + descriptor["pathOrInlineDv"]}
            assert set(read_vector(files_in(folder), of_folder)) == vectors[name]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"cardinality": 2}, "is damaged"),
        ({"sizeInBytes": 7}, "is damaged"),
        ({"offset": 2}, "is damaged"),
        ({"storageType": "p"}, "has an unknown form"),
        ({"storageType": "i", "pathOrInlineDv": "00000"}, "has an unknown form"),
    ],
)
def test_a_damaged_vector_is_an_error(tmp_path: Path, wrong: dict[str, Any], what: str) -> None:
    """deletes_stay_deleted: never a row less that is deleted."""
    files = files_in(str(tmp_path))
    descriptor = write_vectors(files, {"a": BitMap64([1, 5, 9])})["a"]
    with pytest.raises(ValueError, match=what):
        read_vector(files, descriptor | wrong)


def test_each_byte_of_a_vector_is_checked(tmp_path: Path) -> None:
    files = files_in(str(tmp_path))
    descriptor = write_vectors(files, {"a": BitMap64([1, 5, 2**33])})["a"]
    (file,) = tmp_path.glob("*.bin")
    whole = file.read_bytes()
    for at in range(descriptor["offset"], len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match="is damaged"):
            read_vector(files, descriptor)
