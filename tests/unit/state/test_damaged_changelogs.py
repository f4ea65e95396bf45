"""Metadata of a changelog that cannot be read is an error with a remedy (TBL-14)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connector import warehouse as places
from connector.cli.remedies import command_for
from connector.errors import TableError
from connector.lake.audit import open_logged
from connector.lake.overrides import Overrides
from connector.lake.plain_table import open_table
from connector.lake.state_reader import batch_with, progress_of, table_state_of
from connector.spark.storage.logged_batch import LoggedBatch
from connector.state.damage import reading
from connector.state.overrides import Override
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from tests.unit.warehouses import commit, log_table

SAID: dict[str, Any] = {
    "stream": "s",
    "changelog_id": "c",
    "topic_id": "t",
    "ingest_batch": 1,
    "end_offsets": {"0": 7},
    "progress": Progress(ingest_batch=1).to_json(),
}
BATCH = {
    **SAID,
    "writer": "w",
    "kafka_partitions": 1,
    "start_offsets": {"0": 0},
    "topic_read_at": 7,
    "topic_end_offsets": {"0": 7},
}
READERS: list[Callable[[str], object]] = [
    lambda warehouse: batch_with(warehouse, "s", {0: 7}),
    lambda warehouse: open_logged(warehouse, "s"),
    lambda warehouse: progress_of(warehouse, "s"),
]


def logged(warehouse: Path, metadata: dict[str, Any]) -> str:
    path = places.changelog(str(warehouse), "s")
    commit(Path(path), [{"kind": "frontier"}], {"kind": "string"}, metadata)
    return str(warehouse)


def test_a_sound_changelog_is_read(tmp_path: Path) -> None:
    warehouse = logged(tmp_path, SAID)
    assert batch_with(warehouse, "s", {0: 7}) == 1
    assert batch_with(warehouse, "s", {0: 8}) is None
    result = open_logged(warehouse, "s")
    assert result is not None
    assert (result.end, result.to_batch) == ({0: 7}, 1)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("progress", ["x", None, {"ingest_batch": None}, {"ingest_batch": "1"}])
def test_a_damaged_progress_is_an_error(
    tmp_path: Path, read: Callable[[str], object], progress: object
) -> None:
    warehouse = logged(tmp_path, {**SAID, "progress": progress})
    with pytest.raises(TableError, match="cannot be read") as caught:
        read(warehouse)
    assert caught.value.code == "COMMIT_UNREADABLE"


@pytest.mark.parametrize("read", READERS[:2])
@pytest.mark.parametrize("name", ["ingest_batch", "end_offsets"])
@pytest.mark.parametrize("value", ["x", None, {"0": "x"}, {"x": 0}, 1.5])
def test_damaged_offsets_are_an_error(
    tmp_path: Path, read: Callable[[str], object], name: str, value: object
) -> None:
    warehouse = logged(tmp_path, {**SAID, name: value})
    with pytest.raises(TableError, match="cannot be read"):
        read(warehouse)


def test_a_damaged_frontier_is_an_error(tmp_path: Path) -> None:
    types = {"ingest_batch": "int64", "slot": "int64", "frontier": "string"}
    row = {"ingest_batch": 1, "slot": -3, "frontier": json.dumps({"low_watermark": "x"})}
    commit(Path(places.changelog(str(tmp_path), "s")), [row], types, SAID)
    with pytest.raises(TableError, match=r"The newest frontier of .* cannot be read"):
        progress_of(str(tmp_path), "s", with_frontier=True)


def test_a_folder_without_its_log_is_not_a_table_that_was_not_made_yet(tmp_path: Path) -> None:
    """TBL-14: the first error does not lead to the pipeline, which would refuse the folder."""
    log_table(tmp_path, "orders", TableState(apply_number=1))
    shutil.rmtree(f"{places.table(str(tmp_path), 'orders')}/_delta_log")
    shutil.rmtree(f"{places.changelog(logged(tmp_path, SAID), 's')}/_delta_log")
    for read in (
        lambda: open_table(places.table(str(tmp_path), "orders"), table="orders"),
        lambda: table_state_of(str(tmp_path), "s", "orders"),
        lambda: progress_of(str(tmp_path), "s"),
    ):
        with pytest.raises(TableError, match="is not a Delta table") as caught:
            read()
        assert caught.value.code == "TABLE_DAMAGED"
        assert command_for(caught.value) is None
    with pytest.raises(TableError) as caught:
        open_table(places.table(str(tmp_path), "other"))
    assert caught.value.code == "TABLE_MISSING"


def test_a_file_at_the_path_of_the_overrides_is_an_error(tmp_path: Path) -> None:
    """TBL-20."""
    (tmp_path / "_connector").write_text("")
    overrides = Overrides(str(tmp_path))
    for action in (
        overrides.bounds,
        lambda: overrides.set(Override("apply_every_s", "one", 7, 2, "ann")),
    ):
        with pytest.raises(TableError, match="is not a folder"):
            action()


@pytest.mark.parametrize(
    "ends",
    [
        [{"number": "x"}],
        "x",
        [{"number": 1, "stream": "s", "stream_partition": None, "made_at": 1, "made_by": "ann"}],
    ],
)
def test_ingest_names_the_changelog_whose_newest_batch_cannot_be_read(ends: object) -> None:
    """TBL-14: no raw error of a library ends `run`."""
    unreadable = pytest.raises(
        TableError, match="The metadata of the newest commit of /w/changelog"
    )
    with unreadable, reading("/w/changelog"):
        LoggedBatch.from_json({**BATCH, "closed_partitions": ends})
