"""requirements.lock is whole: whatever an allowed platform needs of what is locked is locked, too
(OPS-2).
"""

from __future__ import annotations

import itertools
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+) \\$", re.MULTILINE)
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = (
    ("linux", "Linux", "x86_64"),
    ("linux", "Linux", "aarch64"),
    ("darwin", "Darwin", "x86_64"),
    ("darwin", "Darwin", "arm64"),
)


@pytest.fixture(scope="module")
def locked() -> dict[str, Version]:
    return {
        canonicalize_name(name): Version(version)
        for name, version in PINNED.findall((ROOT / "requirements.lock").read_text())
    }


def environments() -> list[dict[str, str]]:
    fixed = {
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    return [
        {
            **fixed,
            "python_version": python,
            "python_full_version": f"{python}.0",
            "sys_platform": name,
            "platform_system": system,
        }
        | {"platform_machine": machine}
        for python, (name, system, machine) in itertools.product(PYTHONS, PLATFORMS)
    ]


def test_locked_packages_need_only_locked_packages(locked: dict[str, Version]) -> None:
    missing = set()
    for name in locked:
        try:
            requirements = [Requirement(text) for text in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:
            continue  # of another platform
        for requirement, environment in itertools.product(requirements, environments()):
            applies = requirement.marker is None or requirement.marker.evaluate(environment)
            if applies and canonicalize_name(requirement.name) not in locked:
                missing.add(
                    f"{requirement.name} (for {name}, {environment['sys_platform']}, Python"
                    f" {environment['python_version']})"
                )
    assert not missing


def test_the_dependencies_of_this_project_are_locked(locked: dict[str, Version]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), (
            requirement
        )
