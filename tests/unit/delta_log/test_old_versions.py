"""Old versions of a table without Delta: which stay readable, and which files go (ENG-8, TBL-23).
`tests/spark/test_own_log.py` reads them with other programs.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from random import Random
from typing import Any

from connector.delta_log.actions import encoded
from connector.delta_log.log import Log
from connector.delta_log.old_versions import OldVersions
from connector.delta_log.put import LocalFolder
from connector.state.log_damage import commit_file
from connector.state.maintenance_schedule import removable_log_files
from tests.examples import tries
from tests.unit.delta_log.test_log import APP, add, gone, made

RETENTION_MS = 50


class Table:
    """A table whose files exist, and whose clock a test moves. `shown` are the files of each
    version, also those of vectors.
    """

    def __init__(self, folder: Path, rng: Random) -> None:
        folder.mkdir()
        self.rng, self.root = rng, folder
        kept = {"delta.deletedFileRetentionDuration": "interval 10000 weeks"}
        made(folder / "_delta_log", configuration=kept)
        self.folder = LocalFolder(str(folder / "_delta_log"))
        self.now, self.number = 1_000, 0
        self.live = dict[str, str]()
        self.shown = {0: frozenset[str]()}
        self.at = {0: self.now}
        self.kept = set[int]()
        self.begins()

    def begins(self) -> None:
        """Begin as a new process."""
        self.log = Log(self.folder)
        self.old = OldVersions(self.folder, self.log)

    def written(self, name: str) -> str:
        (self.root / name).parent.mkdir(exist_ok=True)
        (self.root / name).write_bytes(b"x")
        return name

    def vector(self) -> dict[str, Any]:
        id_ = uuid.UUID(int=self.rng.getrandbits(128))
        descriptor = {"storageType": "u", "pathOrInlineDv": encoded(id_.bytes), "offset": 1}
        self.written(f"deletion_vector_{id_}.bin")
        return {"deletionVector": {**descriptor, "sizeInBytes": 3, "cardinality": 1}}

    def apply(self) -> None:
        """Add a file, mark rows in some, and fold others."""
        self.now += self.rng.randrange(1, 30)
        actions = list[dict[str, Any]]()
        chosen = self.rng.sample(sorted(self.live), min(len(self.live), self.rng.randrange(3)))
        for path in chosen:
            old = json.loads(self.live.pop(path))
            actions.append(gone(path, self.now, **old))
            if self.rng.random() < 0.7:
                described = self.vector()
                actions.append(add(path, **described))
                self.live[path] = json.dumps(described)
        new = self.written(f"_b={self.rng.randrange(2)}/{self.number}.parquet")
        actions.append(add(new))
        self.live[new] = "{}"
        self.number += 1
        version = self.log.state().version
        self.log.commit(version, [*map(json.dumps, actions)], "{}", app_id=APP, number=self.number)
        self.shown[version + 1] = frozenset(self.log.state().files())
        self.at[version + 1] = self.now

    def first(self) -> int:
        """The oldest version of the retention."""
        return max(number for number, at in self.at.items() if at <= self.now - RETENTION_MS)

    def clean(self) -> None:
        newest = self.log.state().version
        if min(self.at.values()) > self.now - RETENTION_MS:
            return
        first = self.first()
        self.old.settle([version for version in self.kept if version < first])
        for name in removable_log_files(self.folder.names(), first, newest, self.kept):
            self.folder.delete(name)
        before = (self.now - RETENTION_MS) * 1_000
        self.old.delete_unneeded(self.kept, before)
        needed = {name for version in self.readable() for name in self.shown[version]}
        left = self.folder.table_files()
        assert needed <= left
        assert left <= needed | self.removed_since()

    def removed_since(self) -> set[str]:
        """The files that were in a version of the retention."""
        young = (files for version, files in self.shown.items() if self.is_young(version))
        return {name for files in young for name in files}

    def is_young(self, version: int) -> bool:
        ended = self.at.get(version + 1, self.now)
        return ended >= self.now - RETENTION_MS

    def readable(self) -> list[int]:
        first = self.first() if min(self.at.values()) <= self.now - RETENTION_MS else 0
        return sorted({*self.kept, *range(first, max(self.shown) + 1)})

    def check(self) -> None:
        versions = self.readable()
        old = OldVersions(self.folder, Log(self.folder))
        for version in versions:
            assert old.files([version]) == self.shown[version]
            # A snapshot looks at its commit, and at when the next one was made.
            assert self.folder.has(commit_file(version))
            assert version == versions[-1] or self.folder.has(commit_file(version + 1))
        assert self.old.files(versions) == {n for v in versions for n in self.shown[v]}


def test_kept_versions_stay_and_other_files_go(tmp_path: Path, seed: int) -> None:
    """ENG-8, TBL-23: over drawn commits, checkpoints, cuts that are recorded and forgotten, and
    clean-ups, also of a process that begins.
    """
    for number in tries(40, quick=5):
        rng = Random(f"{seed}/{number}")
        table = Table(tmp_path / str(number), rng)
        for _ in range(60):
            table.apply()
            step = rng.random()
            if step < 0.2:
                table.kept.add(table.log.state().version)
            elif step < 0.3:
                table.log.checkpoint(every=rng.randrange(1, 9))
            elif step < 0.4:
                table.begins()
            elif step < 0.5 and table.kept:
                table.kept.remove(rng.choice(sorted(table.kept)))
            elif step < 0.7:
                table.clean()
                table.check()
