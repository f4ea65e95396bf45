"""OPR-7: a colleague who may read the files of a warehouse, and write none."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.errors import TableError
from connector.lake.jobs import History
from connector.services import status
from connector.services.tables import jobs
from connector.services.validate_config import validate_config
from connector.state.jobs import Job, JobKind
from tests.golden.make_warehouse import FOLDER
from tests.golden.test_damage import config, of_explain, of_read, of_snapshot

OTHER_USER = 65_534
_VERSION_3 = 0x2008_0522
_DAC_READ_SEARCH = 1 << 2


def become_other_user() -> None:
    """Root becomes a user who may write nothing, but may read all: code is also imported from a
    folder that is open to root only. `os.setresuid(0, 0, 0)` ends it.
    """
    os.setresuid(OTHER_USER, OTHER_USER, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    # First the capabilities in effect, which are none, then the permitted ones, which are root's.
    header, capabilities = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, capabilities) == 0, os.strerror(ctypes.get_errno())
    capabilities[0] = capabilities[1] & _DAC_READ_SEARCH
    assert libc.capset(header, capabilities) == 0, os.strerror(ctypes.get_errno())


@pytest.fixture
def warehouse() -> Iterator[Path]:
    """A warehouse that this process cannot write to. Root becomes another user meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        folder, is_root = Path(name), os.geteuid() == 0
        copy = folder / "warehouse"
        shutil.copytree(FOLDER, copy)
        folder.chmod(0o755)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            if is_root:
                become_other_user()
            yield copy
        finally:
            if is_root:
                os.setresuid(0, 0, 0)
            for path in (copy, *copy.rglob("*")):
                path.chmod(0o755)


def test_a_reader_of_files_writes_none(warehouse: Path) -> None:
    """OPR-7: status, read, explain, jobs and validate need no right to write."""
    with pytest.raises(TableError) as caught:
        History(str(warehouse)).add_job(Job(JobKind.AUDIT, "", 1, 2, stream="s"))
    assert caught.value.code == "WAREHOUSE_UNUSABLE"
    before = sorted(warehouse.rglob("*"))
    reader = config(warehouse)
    report = status(reader)
    assert report.errors == {}
    assert report.tables.keys() == {"accounts"}
    assert report.streams["s"].dead_letters.is_known is False, "there is no Kafka here"
    assert of_read(warehouse)
    assert of_snapshot(warehouse)
    assert of_explain(warehouse)
    assert jobs(reader, "accounts")
    assert {job.kind for job in jobs(reader)} >= {JobKind.APPLY}
    findings = [found for found in validate_config(reader) if "warehouse" in found.text]
    assert [found.level for found in findings] == ["warning", "ok"]
    assert "cannot write" in findings[0].text
    assert sorted(warehouse.rglob("*")) == before
