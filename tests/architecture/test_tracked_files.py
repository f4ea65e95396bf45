"""What must not stand in the repository: where packages are fetched from, and where this checkout
happens to lie.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Spelt apart, so that this file may be tracked.
REGISTRIES = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("repo1", "maven"),
        ("repo", "maven", "apache"),
        ("search", "maven"),
        ("npmjs", "org"),
    )
)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so nothing is tracked")
    texts = {}
    for name in filter(None, listed.stdout.split("\0")):
        try:
            texts[name] = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
    return texts


def test_no_file_names_a_package_registry(texts: dict[str, str]) -> None:
    assert [
        (name, host) for name, text in texts.items() for host in REGISTRIES if host in text.lower()
    ] == []


def test_no_file_names_a_path_of_this_machine(texts: dict[str, str]) -> None:
    here = f"{ROOT}/"
    if len(ROOT.parts) < 3:
        pytest.skip(f"{here} is too short a path to tell from others")
    assert [name for name, text in texts.items() if here in text] == []


def test_the_lock_has_names_versions_and_hashes_only(texts: dict[str, str]) -> None:
    """OPS-2: no index lines."""
    for line in texts["requirements.lock"].splitlines():
        stripped = line.strip()
        assert not stripped or stripped.startswith(("#", "--hash=sha256:")) or "==" in stripped, (
            line
        )
        assert not stripped.startswith(
            ("-i", "--index", "--extra-index", "--find-links", "--trusted-host")
        ), line
