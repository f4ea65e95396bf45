"""Downloads the jars of a lock into a folder, once."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn
from xml.sax.saxutils import quoteattr

from connector.errors import ErrorCode, JarError
from connector.jars.java import find_java
from connector.jars.lock import Lock, LockedJar, lock_text, parse_lock

Say = Callable[[str], None]

OWN_JAR: Final = "lowmark.jar"
"""What the Java files beside this one compile to. It is part of the package, because a machine that
runs Spark may have no Java compiler.
"""
IVY_SETTINGS_VARIABLE: Final = "CONNECTOR_IVY_SETTINGS"

_NETWORK_SIGNS: Final = (
    "Server access error",
    "UnknownHostException",
    "ConnectException",
    "SocketException",
    "SocketTimeoutException",
    "SSLHandshakeException",
    "Connection refused",
    "timed out",
    "host not found",
)
_SPACE_SIGNS: Final = ("No space left on device", "Disk quota exceeded")
_LINES_KEPT: Final = 4000


@dataclass(frozen=True, slots=True)
class JarStore:
    """The folder with the jars, and how they are downloaded. `environment` is used to find Java,
    and is that of Ivy's process.
    """

    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    ivy_settings: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> JarStore:
        """The user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`), and the mirror that
        `CONNECTOR_IVY_SETTINGS` names, if any.
        """
        home = Path(environment.get("HOME") or Path.home())
        cache = environment.get("XDG_CACHE_HOME", "")
        settings = environment.get(IVY_SETTINGS_VARIABLE, "")
        # The XDG rules say that a relative path is not valid and must be ignored.
        folder = (
            (Path(cache) if Path(cache).is_absolute() else home / ".cache") / "lowmark" / "jars"
        )
        return cls(folder, environment, Path(settings) if settings else None)


def fetch(lock: Lock, store: JarStore, say: Say = lambda _: None) -> list[Path]:
    """The jars of a lock as files, in the order of the lock. Missing jars are downloaded and
    checked.

    After all jars were checked once, a call compares only file sizes and starts no JVM. Several
    processes may call it at once: the second waits for the first. `say` gets a line of progress
    during a download. Raises `JarError`: no pyspark (Ivy is part of it), no Java, no network, a jar
    that differs from the lock, a full disk, a folder that cannot be written. A failed call leaves
    no incomplete jar, and keeps the complete ones. The jars of "spark" have lowmark's own one at
    their end.
    """
    own = [Path(__file__).with_name(OWN_JAR)] if lock == "spark" else []
    return [*fetch_listed(lock, lock_text(lock), store, say), *own]


def fetch_listed(name: str, listed: str, store: JarStore, say: Say = lambda _: None) -> list[Path]:
    """`fetch` for the text of a lock. The file that marks the lock as checked contains `name`."""
    jars = parse_lock(listed)
    digest = hashlib.sha256(listed.encode()).hexdigest()
    paths = [store.folder / jar.file_name for jar in jars]
    stamp = store.folder / f"{name}-{digest[:16]}.ok"
    if stamp.exists() and all(_has_size(path, jar) for path, jar in zip(paths, jars, strict=True)):
        return paths
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
        with _only_one(store.folder, say):
            missing = [jar for jar in jars if not _is_right(store.folder / jar.file_name, jar)]
            if missing:
                _fetch_missing(missing, store, say)
            stamp.touch()
    except OSError as error:
        _explain(error, store.folder)
    return paths


def _fetch_missing(jars: Sequence[LockedJar], store: JarStore, say: Say) -> None:
    ivy = _find_ivy()
    java = find_java(store.environment)
    megabytes = sum(jar.size_bytes for jar in jars) / 1e6
    say(
        f"fetching {len(jars)} jars, {megabytes:.0f} MB, into {store.folder} (once for this"
        " machine)"
    )
    # In the same folder, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=store.folder) as temporary:
        work = Path(temporary)
        code, lines = _run_ivy(java, ivy, jars, work, store, say)
        wrong = None
        for jar in jars:
            fetched = work / "jars" / jar.file_name
            if not fetched.is_file():
                continue
            if _is_right(fetched, jar):
                os.replace(fetched, store.folder / jar.file_name)
            elif wrong is None:
                wrong = (jar, fetched.stat().st_size, _sha256(fetched))
    if wrong is not None:
        _refuse(*wrong)
    absent = [jar.coordinate for jar in jars if not (store.folder / jar.file_name).is_file()]
    if code != 0 or absent:
        _explain_ivy(absent, lines, store)


def _find_ivy() -> Path:
    """Ivy's jar inside pyspark, found without an import of pyspark."""
    remedy = "Install it: pip install 'lowmark[spark]'"
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise JarError(
            ErrorCode.PYSPARK_MISSING,
            "Jars cannot be fetched: pyspark is not installed",
            "Ivy, which fetches the jars, is a part of pyspark",
            remedy,
        )
    found = sorted(
        path
        for place in spec.submodule_search_locations
        for path in Path(place).glob("jars/ivy-*.jar")
    )
    if not found:
        raise JarError(
            ErrorCode.IVY_MISSING,
            "Jars cannot be fetched: this pyspark has no Ivy",
            f"There is no jars/ivy-*.jar in {spec.submodule_search_locations[0]}",
            remedy,
        )
    return found[-1]


def _run_ivy(
    java: Path, ivy: Path, jars: Sequence[LockedJar], work: Path, store: JarStore, say: Say
) -> tuple[int, list[str]]:
    module = work / "ivy.xml"
    module.write_text(_ivy_module(jars), "utf-8")
    command = [
        str(java),
        "-jar",
        str(ivy),
        "-ivy",
        str(module),
        "-cache",
        str(work / "cache"),
        "-confs",
        "default",
    ]
    # Without -types: with it, Ivy would leave out artifacts with the packaging "bundle", and report
    # nothing.
    command += ["-retrieve", f"{work}/jars/[organisation]__[artifact]-[revision].[ext]"]
    if store.ivy_settings is not None:
        if not store.ivy_settings.is_file():
            raise JarError(
                ErrorCode.IVY_SETTINGS_MISSING,
                f"The Ivy settings file {store.ivy_settings} does not exist",
                "",
                f"Correct or unset {IVY_SETTINGS_VARIABLE}",
            )
        command += ["-settings", str(store.ivy_settings)]
    lines: deque[str] = deque(maxlen=_LINES_KEPT)
    done = 0
    environment = dict(store.environment)
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as ivy_process:
        assert ivy_process.stdout is not None
        try:
            for line in ivy_process.stdout:
                lines.append(line.rstrip())
                if "[SUCCESSFUL ]" in line:
                    done += 1
                    if done % 10 == 0 or done == len(jars):
                        say(f"fetched {done} of {len(jars)} jars")
        except BaseException:
            ivy_process.kill()
            raise
    return ivy_process.returncode, list(lines)


def _ivy_module(jars: Sequence[LockedJar]) -> str:
    dependencies = "\n".join(
        f"    <dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.artifact)}"
        f' rev={quoteattr(jar.version)} conf="default->default" transitive="false"/>'
        for jar in jars
    )
    return f"""<ivy-module version="2.0">
  <info organisation="local" module="locked-jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


@contextmanager
def _only_one(folder: Path, say: Say) -> Iterator[None]:
    """Hold the lock of the folder. The system releases it when the process ends, also after a
    crash.
    """
    with (folder / ".lock").open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting: another process is fetching jars")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _has_size(path: Path, jar: LockedJar) -> bool:
    try:
        return path.stat().st_size == jar.size_bytes
    except OSError:
        return False


def _is_right(path: Path, jar: LockedJar) -> bool:
    return _has_size(path, jar) and _sha256(path) == jar.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse(jar: LockedJar, size_bytes: int, sha256: str) -> NoReturn:
    raise JarError(
        ErrorCode.JAR_DIFFERENT,
        f"The fetched jar {jar.coordinate} differs from the lock file and was deleted",
        f"It has {size_bytes} bytes and SHA-256 {sha256}. The lock file has {jar.size_bytes}"
        f" bytes and {jar.sha256}",
        "Try again. If the error stays, a mirror or proxy replaces files: ask its operator",
    )


def _explain(error: OSError, folder: Path) -> NoReturn:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        _explain_full_disk(folder, error)
    raise JarError(
        ErrorCode.JAR_FOLDER_UNUSABLE,
        f"The jar folder {folder} cannot be used",
        str(error),
        "Make it writable, or set XDG_CACHE_HOME to another folder",
        folder=folder,
    ) from error


def _explain_full_disk(folder: Path, error: OSError | None = None) -> NoReturn:
    raise JarError(
        ErrorCode.JAR_DISK_FULL,
        "The disk is full: jars cannot be stored",
        f"There is no space left at {folder}",
        "Free 100 MB, or set XDG_CACHE_HOME to a folder on another disk",
        folder=folder,
    ) from error


def _explain_ivy(absent: Sequence[str], lines: Sequence[str], store: JarStore) -> NoReturn:
    said = "\n".join(lines)
    some = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
    if any(sign in said for sign in _SPACE_SIGNS):
        _explain_full_disk(store.folder)
    telling = [line.strip() for line in lines if any(sign in line for sign in _NETWORK_SIGNS)]
    if telling:
        raise JarError(
            ErrorCode.JAR_REPOSITORY_UNREACHABLE,
            f"The jar repository cannot be reached, so these jars were not fetched: {some}",
            telling[0][:300],
            f"Check the network, or set {IVY_SETTINGS_VARIABLE} to an Ivy settings file with a"
            " mirror",
        )
    raise JarError(
        ErrorCode.JAR_MISSING,
        f"Jars could not be fetched: {some}" if absent else "Jars could not be fetched",
        "Ivy reported: " + " | ".join(line.strip() for line in lines[-15:] if line.strip())[-800:],
        f"Check that the repository has these versions, or set {IVY_SETTINGS_VARIABLE} to an"
        " Ivy settings file with another repository",
    )
