"""The folder with the results of the demo. It never contains files of the user."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connector import warehouse as places
from connector.errors import ConnectorError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MARK: Final = ".lowmark-demo"
_KEPT_NAME: Final = "demo-"


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """The configuration, the warehouse, the broker's data and the logs of one demo.

    `uri` is that of a warehouse in an object store. Empty: the warehouse is in the folder.
    """

    root: Path
    uri: str = ""

    @property
    def config(self) -> Path:
        return self.root / "connector.toml"

    @property
    def warehouse(self) -> str:
        return self.uri or str(self.root / "warehouse")

    @property
    def broker(self) -> Path:
        return self.root / "broker"

    @property
    def query(self) -> Path:
        """A script that runs SQL on the tables."""
        return self.root / "query.py"

    def log(self, number: int) -> Path:
        """The log of the pipeline's run with this number."""
        return self.root / f"run-{number}.log"

    def table(self, name: str) -> str:
        return places.table(self.warehouse, name)

    def changelog(self, stream: str) -> str:
        return places.changelog(self.warehouse, stream)

    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())


@contextmanager
def demo_folder(
    asked: Path | None, environment: Mapping[str, str], uri: str = ""
) -> Iterator[DemoFolder]:
    """The folder `asked`, which must be new or empty. Without it, a folder in the user's cache,
    which replaces that of the last demo.

    The folder stays after the block. Raises `ConnectorError` if it cannot be used.
    """
    root = _given(asked.absolute()) if asked is not None else _in_cache(environment)
    with (root / _MARK).open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield DemoFolder(root, uri)


def _given(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / _MARK).touch()
        (root / _MARK).unlink()
    except OSError as error:
        raise ConnectorError(
            ErrorCode.DEMO_FOLDER_UNUSABLE,
            f"The folder {root} cannot be used",
            str(error),
            "Name another folder with --output",
        ) from error
    if there := sorted(path.name for path in root.iterdir()):
        raise ConnectorError(
            ErrorCode.DEMO_FOLDER_NOT_EMPTY,
            f"The folder {root} is not empty",
            f"It contains {there[0]!r}. Nothing in it was changed",
            "Name a new folder, or delete this one",
        )
    return root


def _in_cache(environment: Mapping[str, str]) -> Path:
    cache = Path(environment.get("XDG_CACHE_HOME", ""))
    home = Path(environment.get("HOME") or Path.home())
    parent = (cache if cache.is_absolute() else home / ".cache") / "lowmark"
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob(f"{_KEPT_NAME}*"):
        if (old / _MARK).exists() and not _in_use(old):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_KEPT_NAME, dir=parent))


def _in_use(folder: Path) -> bool:
    """Whether another demo uses the folder. A broker that was started there later counts too."""
    with (folder / _MARK).open("r") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return _broker_lives(folder / "broker")


def _broker_lives(folder: Path) -> bool:
    import os

    from connector.jars import JarStore
    from connector.kafka.local.broker import LocalBroker

    return (
        folder.is_dir()
        and LocalBroker.find(folder, JarStore.from_environment(os.environ)) is not None
    )
