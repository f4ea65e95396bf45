"""Fetching locked jars, with a Java that is a shell script: it says a version, and does Ivy's part
from a folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from connector.errors import ConnectorError
from connector.jars import JarStore, find_java
from connector.jars.store import fetch_listed, lock_text, parse_lock

REPOSITORY = Path(__file__).parents[2]
COORDINATES = ("org.example:first:1.0", "org.example:second_2.13:2.0-rc1", "com.example:third:3")

# -retrieve is DIR/[organisation]…: what is before the bracket is where jars go. Each run leaves a
# line in `runs`.
FAKE_JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2024-01-01' >&2; exit 0; fi
echo run >> {repository}/runs
while [ $# -gt 0 ]; do
  case "$1" in
    -ivy) cp "$2" {repository}/asked.xml;;
    -retrieve) to=${{2%%\\[*}};;
    -settings) echo "$2" > {repository}/settings;;
  esac
  shift
done
{behaviour}
mkdir -p "$to" && cp {repository}/*.jar "$to"
"""


class Machine:
    """A repository of three small jars, a fake Java and an empty cache."""

    def __init__(self, root: Path) -> None:
        self.repository = root / "repository"
        self.repository.mkdir()
        self.bin = root / "bin"
        self.bin.mkdir()
        self.contents = {
            coordinate: f"content of {coordinate}".encode() * 50 for coordinate in COORDINATES
        }
        for coordinate, content in self.contents.items():
            (self.repository / file_name(coordinate)).write_bytes(content)
        self.store = JarStore(root / "cache", {"PATH": f"{self.bin}:/usr/bin:/bin"})
        self.java()

    def java(self, version: str = "17.0.15", behaviour: str = "") -> None:
        script = self.bin / "java"
        script.write_text(
            FAKE_JAVA.format(repository=self.repository, version=version, behaviour=behaviour)
        )
        script.chmod(0o755)

    @property
    def lock(self) -> str:
        return "".join(
            f"{c} {len(content)} {hashlib.sha256(content).hexdigest()}\n"
            for c, content in self.contents.items()
        )

    @property
    def runs(self) -> int:
        log = self.repository / "runs"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def fetch(self) -> list[Path]:
        return fetch_listed("test", self.lock, self.store)

    def kept(self) -> set[str]:
        return {path.name for path in self.store.folder.glob("*.jar")}


def file_name(coordinate: str) -> str:
    organisation, artifact, version = coordinate.split(":")
    return f"{organisation}__{artifact}-{version}.jar"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(("lock", "count"), [("broker", 46), ("spark", 10)])
def test_shipped_locks_pin_every_jar(lock: str, count: int) -> None:
    jars = parse_lock(lock_text(lock))
    assert len(jars) == count
    assert list(jars) == sorted(jars, key=lambda jar: (jar.organisation, jar.artifact))
    assert all(len(jar.sha256) == 64 and jar.size_bytes > 1000 for jar in jars)


def test_spark_jars_are_of_the_pinned_line() -> None:
    versions = {jar.artifact: jar.version for jar in parse_lock(lock_text("spark"))}
    assert versions["delta-spark_4.1_2.13"] == "4.4.0"
    assert versions["spark-sql-kafka-0-10_2.13"] == "4.1.1"


def test_jars_come_in_the_order_of_the_lock_and_as_locked(machine: Machine) -> None:
    paths = machine.fetch()
    assert [path.name for path in paths] == [file_name(coordinate) for coordinate in COORDINATES]
    assert [path.read_bytes() for path in paths] == list(machine.contents.values())


def test_exactly_the_locked_coordinates_are_asked_for_without_what_they_depend_on(
    machine: Machine,
) -> None:
    machine.fetch()
    asked = (machine.repository / "asked.xml").read_text()
    assert asked.count("<dependency ") == asked.count('transitive="false"') == len(COORDINATES)
    assert 'org="org.example" name="second_2.13" rev="2.0-rc1"' in asked


def test_a_second_call_starts_no_jvm(machine: Machine) -> None:
    machine.fetch()
    (machine.bin / "java").unlink()
    assert len(machine.fetch()) == len(COORDINATES)
    assert machine.runs == 1


def test_nothing_but_the_jars_is_left_behind(machine: Machine) -> None:
    machine.fetch()
    assert {
        path.name for path in machine.store.folder.iterdir() if path.suffix not in (".jar", ".ok")
    } == {".lock"}


def test_a_jar_that_was_cut_short_is_fetched_again(machine: Machine) -> None:
    first = machine.fetch()[0]
    first.write_bytes(b"short")
    assert machine.fetch()[0].read_bytes() == machine.contents[COORDINATES[0]]
    assert machine.runs == 2


def test_another_lock_checks_the_existing_jars(machine: Machine) -> None:
    first = machine.fetch()[0]
    first.write_bytes(b"X" * first.stat().st_size)
    fetch_listed("other", machine.lock, machine.store)
    assert first.read_bytes() == machine.contents[COORDINATES[0]]


def test_wrong_hash_is_refused_and_the_good_ones_are_kept(machine: Machine) -> None:
    lock = machine.lock
    good = machine.contents[COORDINATES[1]]
    (machine.repository / file_name(COORDINATES[1])).write_bytes(b"Y" * len(good))
    with pytest.raises(
        ConnectorError, match=r"org.example:second_2.13:2.0-rc1 differs from the lock file"
    ) as caught:
        fetch_listed("test", lock, machine.store)
    assert hashlib.sha256(good).hexdigest() in caught.value.cause
    assert machine.kept() == {file_name(COORDINATES[0]), file_name(COORDINATES[2])}


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        (
            (
                "echo 'Server access error at url https://somewhere (java.net.UnknownHostException:"
                " somewhere)'; exit 1"
            ),
            "cannot be reached",
        ),
        ("echo 'java.io.IOException: No space left on device'; exit 1", "The disk is full"),
        (
            "echo ':: org.example#first;1.0: not found'; exit 1",
            "could not be fetched: org.example:first:1.0",
        ),
        ("exit 0; #", "could not be fetched"),
    ],
    ids=["no network", "disk full", "unknown version", "fetches nothing"],
)
def test_each_failure_of_ivy_has_its_own_words(
    machine: Machine, behaviour: str, problem: str
) -> None:
    machine.java(behaviour=behaviour)
    with pytest.raises(ConnectorError, match=problem) as caught:
        machine.fetch()
    assert caught.value.remedy
    assert not machine.kept()


def test_missing_java_is_an_error_with_a_remedy(machine: Machine) -> None:
    store = JarStore(machine.store.folder, {"PATH": ""})
    with pytest.raises(ConnectorError, match="No Java was found") as caught:
        fetch_listed("test", machine.lock, store)
    assert "Install Java 17 or 21" in caught.value.remedy


def test_an_old_java_is_named(machine: Machine) -> None:
    machine.java(version="11.0.2")
    with pytest.raises(ConnectorError, match=r"Java 11 at .* is too old"):
        machine.fetch()


def test_java_home_outranks_the_path(machine: Machine, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (machine.bin / "java").rename(home / "bin" / "java")
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}) == home / "bin" / "java"


def test_a_program_that_is_not_java_is_an_error(machine: Machine) -> None:
    (machine.bin / "java").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(ConnectorError, match="does not report its version"):
        machine.fetch()


def test_a_mirror_is_handed_to_ivy(machine: Machine, tmp_path: Path) -> None:
    settings = tmp_path / "ivysettings.xml"
    settings.write_text("<ivysettings/>")
    machine.store = JarStore(machine.store.folder, machine.store.environment, settings)
    machine.fetch()
    assert (machine.repository / "settings").read_text().strip() == str(settings)


def test_a_missing_settings_file_is_an_error(machine: Machine, tmp_path: Path) -> None:
    machine.store = JarStore(machine.store.folder, machine.store.environment, tmp_path / "none.xml")
    with pytest.raises(ConnectorError, match=r"none.xml does not exist"):
        machine.fetch()


def test_an_unusable_folder_is_an_error(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    machine.store = JarStore(tmp_path / "file" / "jars", machine.store.environment)
    with pytest.raises(ConnectorError, match="cannot be used"):
        machine.fetch()


def test_of_two_processes_only_one_fetches(machine: Machine) -> None:
    machine.java(behaviour="sleep 0.5")
    code = (
        "import sys; from pathlib import Path; from connector.jars import JarStore; from"
        " connector.jars.store import fetch_listed\nprint(len(fetch_listed('test', sys.argv[1],"
        " JarStore(Path(sys.argv[2]), {'PATH': sys.argv[3]}))))"
    )
    command = [
        sys.executable,
        "-c",
        code,
        machine.lock,
        str(machine.store.folder),
        machine.store.environment["PATH"],
    ]
    both = [
        subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == ["3", "3"]
    assert machine.runs == 1


def test_without_pyspark_the_extra_is_named(machine: Machine) -> None:
    code = (
        # As `find_spec` answers for a package that is not there.
        "import sys; sys.modules['pyspark'] = None\nfrom pathlib import Path; from connector.jars"
        " import JarStore, fetch; from connector.errors import ConnectorError\ntry: fetch('spark',"
        f" JarStore(Path({str(machine.store.folder)!r}), {{}}))\nexcept ConnectorError as error:"
        " print(error)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert "pyspark, of which Ivy is a part, is not installed" in answer.stdout
    assert "pip install 'lowmark[spark]'" in answer.stdout


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HOME": "/home/a"}, "/home/a/.cache/lowmark/jars"),
        ({"HOME": "/home/a", "XDG_CACHE_HOME": "/big/cache"}, "/big/cache/lowmark/jars"),
        ({"HOME": "/home/a", "XDG_CACHE_HOME": "relative"}, "/home/a/.cache/lowmark/jars"),
    ],
)
def test_jars_live_in_the_users_cache(environment: dict[str, str], folder: str) -> None:
    assert JarStore.from_environment(environment).folder == Path(folder)


def test_secrets_of_the_environment_are_not_shown() -> None:
    assert "hunter2" not in repr(JarStore.from_environment({"HOME": "/", "PASSWORD": "hunter2"}))


@pytest.mark.systems
@pytest.mark.java
def test_the_real_ivy_fetches_from_a_mirror(machine: Machine, tmp_path: Path) -> None:
    """Ivy's own behaviour, without a network: a repository of files, named by an Ivy settings file
    (OPS-2).
    """
    for coordinate, content in machine.contents.items():
        organisation, artifact, version = coordinate.split(":")
        place = tmp_path / "m2" / organisation.replace(".", "/") / artifact / version
        place.mkdir(parents=True)
        (place / f"{artifact}-{version}.jar").write_bytes(content)
        pom = (
            "<project><modelVersion>4.0.0</modelVersion>"
            f"<groupId>{organisation}</groupId><artifactId>{artifact}</artifactId>"
        )
        absent = (
            "<dependency><groupId>org.absent</groupId><artifactId>absent</artifactId>"
            "<version>1</version></dependency>"
        )
        (place / f"{artifact}-{version}.pom").write_text(
            f"{pom}<version>{version}</version><dependencies>{absent}</dependencies></project>"
        )
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="mirror"/><resolvers><ibiblio name="mirror"'
        f' m2compatible="true" root="file://{tmp_path}/m2/"/></resolvers></ivysettings>'
    )
    machine.store = JarStore(machine.store.folder, dict(os.environ), settings)
    said: list[str] = []
    paths = fetch_listed("test", machine.lock, machine.store, said.append)
    assert [path.read_bytes() for path in paths] == list(machine.contents.values())
    assert "fetching 3 jars" in said[0]
