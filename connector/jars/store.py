"""Finds Java, reads the lock files, and downloads the jars of a lock into a folder, once."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Final, Literal, NoReturn
from xml.sax.saxutils import quoteattr

from connector.errors.spark import (
    ivy_missing,
    ivy_settings_missing,
    jar_different,
    jar_folder_unusable,
    jars_missing,
    java_unusable,
)

OnProgress = Callable[[str], None]
"""Gets a line of progress."""

OWN_JAR: Final = "lowmark.jar"
"""What the Java files beside this one compile to. A machine with Spark may have no compiler."""
OLDEST_JAVA: Final = 17
"""The oldest version that Kafka 4 and Spark 4 support."""

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
    return resources.files("connector.jars").joinpath(f"{lock}.lock").read_text("ascii")


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


@dataclass(frozen=True, slots=True)
class JarStore:
    """The folder with the jars. `environment` finds Java, and is that of Ivy's process."""

    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    ivy_settings: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> JarStore:
        """The user's cache folder, and the mirror of `CONNECTOR_IVY_SETTINGS`, if any."""
        home = Path(environment.get("HOME") or Path.home())
        cache = environment.get("XDG_CACHE_HOME", "")
        settings = environment.get(IVY_SETTINGS_VARIABLE, "")
        # The XDG rules say that a relative path is not valid and must be ignored.
        folder = (
            (Path(cache) if Path(cache).is_absolute() else home / ".cache") / "lowmark" / "jars"
        )
        return cls(folder, environment, Path(settings) if settings else None)


def fetch(lock: Lock, store: JarStore, on_progress: OnProgress = lambda _: None) -> list[Path]:
    """The jars of a lock as files, in the order of the lock. Missing jars are downloaded and
    checked.

    After all jars were checked once, a call compares only file sizes and starts no JVM. Several
    processes may call it at once: the second waits for the first. A failed call leaves no
    incomplete jar, and keeps the complete ones. The jars of "spark" have lowmark's own one at their
    end.

    Raises:
        ConnectorError: There is no pyspark (Ivy is part of it), no Java or no network, a jar
            differs from the lock, or the folder cannot be written.
    """
    own = [Path(__file__).with_name(OWN_JAR)] if lock == "spark" else []
    return [*fetch_listed(lock, lock_text(lock), store, on_progress), *own]


def fetch_listed(
    name: str, listed: str, store: JarStore, on_progress: OnProgress = lambda _: None
) -> list[Path]:
    """`fetch` for the text of a lock. The file that marks the lock as checked contains `name`."""
    jars = parse_lock(listed)
    digest = hashlib.sha256(listed.encode()).hexdigest()
    paths = [store.folder / jar.file_name for jar in jars]
    stamp = store.folder / f"{name}-{digest[:16]}.ok"
    if stamp.exists() and all(_has_size(path, jar) for path, jar in zip(paths, jars, strict=True)):
        return paths
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
        with _only_one(store.folder, on_progress):
            missing = [jar for jar in jars if not _is_right(store.folder / jar.file_name, jar)]
            if missing:
                _fetch_missing(missing, store, on_progress)
            stamp.touch()
    except OSError as error:
        raise jar_folder_unusable(str(store.folder), str(error)) from error
    return paths


def _fetch_missing(jars: Sequence[LockedJar], store: JarStore, on_progress: OnProgress) -> None:
    ivy = _find_ivy()
    java = find_java(store.environment)
    megabytes = sum(jar.size_bytes for jar in jars) / 1e6
    on_progress(
        f"fetching {len(jars)} jars, {megabytes:.0f} MB, into {store.folder} (once for this"
        " machine)"
    )
    # In the same folder, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=store.folder) as temporary:
        work = Path(temporary)
        code, lines = _run_ivy(java, ivy, jars, work, store, on_progress)
        wrong = None
        for jar in jars:
            fetched = work / "jars" / jar.file_name
            if not fetched.is_file():
                continue
            if _is_right(fetched, jar):
                os.replace(fetched, store.folder / jar.file_name)
            elif wrong is None:
                wrong = jar_different(
                    jar.coordinate,
                    f"{fetched.stat().st_size} bytes and SHA-256 {_sha256(fetched)}",
                    f"{jar.size_bytes} bytes and {jar.sha256}",
                )
    if wrong is not None:
        raise wrong
    absent = [jar.coordinate for jar in jars if not (store.folder / jar.file_name).is_file()]
    if code != 0 or absent:
        _explain_ivy(absent, lines, store)


def _find_ivy() -> Path:
    """Ivy's jar inside pyspark, found without an import of pyspark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ivy_missing("pyspark, of which Ivy is a part, is not installed")
    folders = spec.submodule_search_locations
    jars = sorted(jar for folder in folders for jar in Path(folder).glob("jars/ivy-*.jar"))
    if not jars:
        raise ivy_missing(f"There is no jars/ivy-*.jar in {folders[0]}")
    return jars[-1]


def _run_ivy(
    java: Path,
    ivy: Path,
    jars: Sequence[LockedJar],
    work: Path,
    store: JarStore,
    on_progress: OnProgress,
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
            raise ivy_settings_missing(str(store.ivy_settings))
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
                        on_progress(f"fetched {done} of {len(jars)} jars")
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
def _only_one(folder: Path, on_progress: OnProgress) -> Iterator[None]:
    """Hold the lock of the folder, which a crash releases, too."""
    with (folder / ".lock").open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress("waiting: another process is fetching jars")
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


def _explain_ivy(absent: Sequence[str], lines: Sequence[str], store: JarStore) -> NoReturn:
    output = "\n".join(lines)
    some = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
    if any(sign in output for sign in _SPACE_SIGNS):
        raise jar_folder_unusable(str(store.folder), "The disk is full")
    network = [line.strip() for line in lines if any(sign in line for sign in _NETWORK_SIGNS)]
    if network:
        raise jars_missing(some, f"The repository cannot be reached: {network[0][:300]}")
    last = " | ".join(line.strip() for line in lines[-15:] if line.strip())
    raise jars_missing(some, f"Ivy reported: {last[-800:]}")


def find_java(environment: Mapping[str, str]) -> Path:
    """The `java` that `JAVA_HOME` names, else the first one on `PATH`.

    Raises `ConnectorError` if there is no Java, if it does not start, or if it is older than 17. It
    starts a JVM for a short time.
    """
    java = _look_up(environment)
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise java_unusable(f"{java} does not report its version", str(error)) from error
    output = answer.stderr + answer.stdout
    version = re.search(r'version "(\d+)', output)
    if answer.returncode != 0 or version is None:
        raise java_unusable(f"{java} does not report its version", output.strip()[-300:])
    if int(version[1]) < OLDEST_JAVA:
        raise java_unusable(
            f"Java {version[1]} at {java} is too old",
            f"Kafka and Spark need Java {OLDEST_JAVA} or newer",
        )
    return java


def _look_up(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        return Path(home) / "bin" / "java"
    # An empty PATH has no folder. Without the "or", the PATH of this process would be searched.
    java = shutil.which("java", path=environment.get("PATH") or "/nonexistent")
    if java is None:
        raise java_unusable("No Java was found", "Neither JAVA_HOME nor PATH has a Java program")
    return Path(java)
