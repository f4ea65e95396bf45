"""The lock files: the jars with their sizes and sha256."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Literal

Lock = Literal["broker", "s3", "spark"]


@dataclass(frozen=True, slots=True)
class LockedJar:
    """One line of a lock file."""

    organisation: str
    artifact: str
    version: str
    size_bytes: int
    sha256: str

    @property
    def coordinate(self) -> str:
        return f"{self.organisation}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.organisation}__{self.artifact}-{self.version}.jar"


def lock_text(lock: Lock) -> str:
    """The lock file in the package."""
    return resources.files("connector.jars").joinpath(f"{lock}.lock").read_text("ascii")


def read_lock(lock: Lock) -> tuple[LockedJar, ...]:
    """The jars of a lock, in the order of its lines."""
    return parse_lock(lock_text(lock))


def parse_lock(text: str) -> tuple[LockedJar, ...]:
    """Read lines of the form `organisation:artifact:version size sha256`.

    Raises `ValueError` or `AssertionError` if a line has another form or a lock pins two versions
    of one artifact. Then lowmark has a bug.
    """
    jars = []
    for line in text.splitlines():
        coordinate, size, sha256 = line.split(" ")
        organisation, artifact, version = coordinate.split(":")
        jars.append(LockedJar(organisation, artifact, version, int(size), sha256))
    artifacts = [(jar.organisation, jar.artifact) for jar in jars]
    assert len(set(artifacts)) == len(artifacts), (
        "a lock pins two versions of one artifact; Ivy would drop one of them"
    )
    return tuple(jars)
