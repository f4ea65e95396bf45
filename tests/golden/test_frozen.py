"""The golden files do not change (REC-12, OPS-5).

A later version reads them as they are. A new form gets new lines or files beside them, and a new
digest.

    python -m tests.golden.test_frozen    # prints the digests of what is there
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

HERE = Path(__file__).parent
DIGESTS = HERE / "frozen.json"


def digest(path: Path, root: Path = HERE) -> str:
    """The SHA-256 of a file, or of the names and files of a folder."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    total = hashlib.sha256()
    for file in files:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.relative_to(root).as_posix()} {content}\n".encode())
    return total.hexdigest()


def test_frozen_files_are_as_they_were() -> None:
    frozen: dict[str, str] = json.loads(DIGESTS.read_text())
    assert {name: digest(HERE / name) for name in frozen} == frozen


def test_a_changed_file_of_a_folder_is_noticed(tmp_path: Path) -> None:
    """A canary."""
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(b"1")
    before = digest(tmp_path, tmp_path)
    (tmp_path / "below" / "file").write_bytes(b"2")
    assert digest(tmp_path, tmp_path) != before
    (tmp_path / "below" / "file").write_bytes(b"1")
    (tmp_path / "other").touch()
    assert digest(tmp_path, tmp_path) != before


if __name__ == "__main__":
    names = ["change_record.v1.jsonl", "stored_forms.v1.tsv", "typed_table", "warehouse"]
    print(json.dumps({name: digest(HERE / name) for name in names}, indent=2))
