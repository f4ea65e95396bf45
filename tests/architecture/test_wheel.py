"""The wheel has everything that an installed lowmark needs: types, schemas and locks of jars."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.systems

ROOT = Path(__file__).parents[2]

# The reader of the wheel is not the checkout: nothing of it is on the path.
USE = """
import sys
sys.path.insert(0, sys.argv[1])
import connector
from connector.records import codec
assert connector.__file__.startswith(sys.argv[1]), connector.__file__
beat = codec.encode(connector.Heartbeat("p0", 1), 4)
read = codec.decode(codec.frame(beat, None), codec.Schemas(), kafka_partitions=4)
assert read.record == connector.Heartbeat("p0", 1), read
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, made by the build backend itself: no network, no isolation."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    made = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert made.returncode == 0, made.stderr
    (wheel,) = folder.glob("lowmark-*.whl")
    return wheel


def test_the_wheel_has_the_package_with_its_types_schemas_and_locks(wheel: Path) -> None:
    """OPS-2."""
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "connector").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    schemas = {f"connector/schemas/{path.name}" for path in (ROOT / "schemas").glob("*.avsc")}
    assert {name for name in names if ".dist-info/" not in name} == tracked | schemas
    assert "connector/py.typed" in names
    assert "connector/schemas/change_record.v1.avsc" in names
    assert any(name.startswith("connector/jars/") and name.endswith(".lock") for name in names)


def test_the_wheel_names_its_command_and_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        facts = {name.partition(".dist-info/")[2]: name for name in opened.namelist()}
        assert "connector = connector.cli:main" in opened.read(facts["entry_points.txt"]).decode()
        assert "licenses/LICENSE" in facts


def test_an_installed_wheel_finds_its_schema(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    words = [sys.executable, "-I", "-c", USE, str(tmp_path)]
    used = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert used.returncode == 0, used.stderr
