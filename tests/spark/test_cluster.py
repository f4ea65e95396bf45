"""The pipeline on a Spark standalone cluster: a master and two workers (SCL-2 to SCL-4, SCL-7,
SCL-8).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest
from deltalake.exceptions import TableNotFoundError

from benchmarks.apply import Sizes
from benchmarks.cluster import in_process
from connector import warehouse as places
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import ConfigError, ConnectorError
from connector.jars import JarStore, fetch
from connector.kafka import LetterFilter
from connector.lake.checks import opened
from connector.lake.plain_table import batches, rows_in
from connector.records.codec import encode, frame
from connector.records.model import ChildPartition, ChildPartitions, Heartbeat, Record, kafka_key
from connector.services import DeadLetters, audit, load_config, read, rebuild, run
from connector.services.run import RunReport
from connector.services.warehouses import warehouse_of
from connector.spark import (
    apply_loop,
    check_session,
    read_snapshot,
    register_functions,
    register_status_view,
)
from connector.spark import cluster as cluster_module
from connector.spark.session import JVM_OPTIONS as SPARK_OPTIONS
from connector.spark.storage.table import Table
from tests.broker import NewTopic
from tests.object_store import KEY, SECRET, ObjectStore
from tests.spark.cluster import (
    HOME,
    HOST,
    JVM_OPTIONS,
    TIMEOUT_S,
    Cluster,
    Driver,
    executors_of,
    session,
    wait_until,
)
from tests.spark.conftest import INTERPRETED
from tests.spark.live import Live
from tests.spark.streams import account, change

# Several JVMs share two cores.
pytestmark = [pytest.mark.systems, pytest.mark.timeout(1800)]

ENTRY = "from connector.cli import main; main()"
S = 1_000_000
CONFIG = """
warehouse = "warehouse"
[storage]
shared_folder = true
[kafka]
bootstrap_servers = "{servers}"
[streams.s]
topic = "{topic}"
trigger = "200ms"
{tables}
"""
TABLE = """
[tables.{name}]
stream = "s"
source = "{source}"
block_rows = {block_rows}
max_staleness = "2s"
key = {{ columns = [{{ name = "id", type = "STRING" }}] }}
columns = [
  {{ name = "name", family = "f", type = "STRING" }},
  {{ name = "amount", family = "f", type = "INT64" }},
]
"""
TABLES = {"accounts": "t", "blocked": "b", "empty": "e"}
EVERYTHING = LetterFilter()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster.running(tmp_path_factory.mktemp("cluster"), recovers=True) as running:
        yield running


@pytest.fixture(scope="module")
def driver(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    # The core of a third worker is left for another driver.
    settings = {**INTERPRETED, "spark.cores.max": "2"}
    with Driver(cluster.url, tmp_path_factory.mktemp("driver"), settings) as started:
        yield started


class Site:
    """A topic, and a configuration file of a pipeline that reads it."""

    def __init__(self, kafka: KafkaConfig, topic: str, folder: Path, stack: ExitStack) -> None:
        self.file = folder / "connector.toml"
        tables = "".join(
            TABLE.format(name=name, source=source, block_rows=str(name == "blocked").lower())
            for name, source in TABLES.items()
        )
        self.file.write_text(
            CONFIG.format(servers=kafka.bootstrap_servers, topic=topic, tables=tables)
        )
        self.live = Live(None, kafka, topic, folder / "warehouse", stack)  # type: ignore[arg-type]

    @property
    def config(self) -> ConnectorConfig:
        return load_config(self.file, {})

    def control(self, record: Record) -> None:
        """To every Kafka partition."""
        value = frame(encode(record, 2), None)
        self.live.send((number, kafka_key(record), value) for number in range(2))

    def rows(self, table: str = "accounts") -> dict[object, tuple[object, object]]:
        """As the last apply left them. It needs no Spark."""
        path = places.table(warehouse_of(self.config), table)
        return {
            id_: (name, amount)
            for batch in batches(opened(path), "SELECT id, name, amount FROM t")
            for id_, name, amount in rows_in(batch)
        }

    def check(self) -> None:
        """Nothing is lost, and the table equals the truth."""
        assert [stream.is_proved for stream in audit(self.config)] == [True]
        assert self.rows() == keyed(self.live.truth().values())


def keyed(rows: object) -> dict[object, tuple[object, object]]:
    return {row["id"]: (row["name"], row["amount"]) for row in rows}  # type: ignore[attr-defined]


@pytest.fixture
def site(kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(kafka, new_topic(kafka_partitions=2).topic, tmp_path, stack)


def run_once(file: Path) -> RunReport:
    return run(load_config(file, {}), spark=session(), once=True)


def merged(file: Path) -> dict[object, tuple[object, object]]:
    with read(load_config(file, {}), "accounts", spark=session(), max_staleness_s=0) as found:
        return keyed(dict(zip(found.columns, row, strict=True)) for row in found.rows)


def registered(file: Path) -> tuple[int, int, int]:
    """Rows of the status view, of the table function, and of a snapshot."""
    spark, warehouse = session(), load_config(file, {}).warehouse
    register_status_view(spark, warehouse)
    (function,) = register_functions(spark, warehouse)
    roots = spark.sql(f"SELECT * FROM {function}(timestamp_micros(1L), NULL, NULL, 1000)")
    status = spark.sql("SELECT * FROM lowmark_tables")
    return (
        status.count(),
        roots.count(),
        read_snapshot(spark, warehouse, "accounts").rows["accounts"].count(),
    )


def rebuilt(file: Path, table: str) -> int:
    return rebuild(load_config(file, {}), table, spark=session()).changes


def test_everything_runs_on_executors(site: Site, driver: Driver, cluster: Cluster) -> None:
    """SCL-2, SCL-3: in a session of the user, with rejected records, blocked rows, discarded
    letters, table letters and a rebuild of an empty table.
    """
    site.control(ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
    many = [account(f"a{n}", n * S, name=f"Ada {n}", amount=str(n)) for n in range(1, 300)]
    site.live.publish(*many)
    blocked = [change(at=n * S, row_key=b"x", table="b") for n in (1, 2)]
    damaged = frame(encode(blocked[0], 2), None)[:-1]
    site.live.send([(0, b"x", damaged), (0, b"x", frame(encode(blocked[1], 2), None))])
    site.live.send([(1, b"y", frame(encode(account("y", 3 * S, amount="many"), 2), None))])
    site.control(Heartbeat("p", 400 * S))

    report = driver.call(run_once, site.file)
    assert (report.batches, report.dead_letters) == (1, 2)
    (application,) = cluster.state()["activeapps"]
    assert application["cores"] == 2
    site.check()
    assert site.rows("blocked") == {}

    letters = DeadLetters(site.config, "s")
    assert letters.discard(EVERYTHING, why="not ours")[0] == 2
    site.live.publish(account("a1", 401 * S, amount="7"))
    site.control(Heartbeat("p", 500 * S))
    assert driver.call(run_once, site.file).applies >= 2
    assert site.rows("blocked").keys() == {"x"}
    site.check()

    assert driver.call(merged, site.file) == site.rows()
    assert driver.call(registered, site.file)[0] == len(TABLES)
    assert driver.call(rebuilt, site.file, "accounts") == len(site.live.published)
    assert driver.call(rebuilt, site.file, "empty") == 0
    site.check()


def without_python(python: str) -> list[str]:
    """What `check_session` says of executors with another Python."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConnectorError) as error:
        patch.setattr(session().sparkContext, "pythonExec", python)
        check_session(session(), for_writing=True)
    return [error.value.code, error.value.cause]


def test_executors_without_the_package_are_named_before_the_first_batch(
    driver: Driver, tmp_path: Path
) -> None:
    """SCL-3: without Python, and with one that has no pyarrow or no lowmark."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    python = str(bare / "bin/python")
    cases = {"/nonexistent/python": "Cannot run program", python: "No module named"}
    for python, said in cases.items():
        code, cause = driver.call(without_python, python)
        assert code == "EXECUTORS_WITHOUT_PACKAGE"
        assert said in cause


def refused(file: Path) -> tuple[str, list[str]]:
    """The code of the error, and the codes of `check_session` if executors lack a class."""
    with pytest.raises(ConfigError) as error:
        run(load_config(file, {}), spark=session(), once=True)
    check_session(session(), for_writing=True)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConnectorError) as lacking:
        patch.setitem(cluster_module._CLASSES, "org.example.Absent", "Absent")
        check_session(session(), for_writing=True)
    return error.value.code, [lacking.value.code, lacking.value.problem]


def test_a_folder_that_hosts_may_not_share_is_refused(site: Site, driver: Driver) -> None:
    """SCL-2, SCL-7: nothing is written. `check_session` asks the executors, too."""
    site.file.write_text(site.file.read_text().replace("shared_folder = true", ""))
    code, lacking = driver.call(refused, site.file)
    assert code == "WAREHOUSE_UNUSABLE"
    assert lacking == ["SPARK_JARS_MISSING", "Executors lack the jars of Absent"]
    assert not (site.file.parent / "warehouse").exists()


def run_with_a_loss(file: Path, workers: list[int]) -> list[str]:
    """All executors are killed within the first apply of each table, which Spark does. Returns the
    events.
    """
    said, killed, real = list[str](), set[str](), apply_loop.apply

    def apply(table: Table, *args: Any, on_step: Callable[[str], None], **named: Any) -> Any:
        def step(reached: str) -> None:
            if reached == "letters published" and table.path not in killed:
                killed.add(table.path)
                for executor in executors_of(workers):
                    os.kill(executor, signal.SIGKILL)
            on_step(reached)

        return real(table, *args, on_step=step, **named | {"merge_few": None})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply_loop, "apply", apply)
        run(
            load_config(file, {}),
            spark=session(),
            once=True,
            on_event=lambda event: said.append(event.text),
        )
    return said


@pytest.mark.long
def test_an_apply_whose_kept_changes_are_lost_is_repeated(
    site: Site, driver: Driver, cluster: Cluster
) -> None:
    """SCL-4: the blocks of a local checkpoint die with their executor. By default,
    `test_pipeline.py` in a session of its own, shows it.
    """
    site.live.publish(*(account(f"a{n}", n * S, amount=str(n)) for n in range(1, 50)))
    said = driver.call(run_with_a_loss, site.file, cluster.worker_ids())
    repeats = [line for line in said if "executors were lost" in line]
    assert any("CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in line for line in repeats), said
    site.check()


def run_until(file: Path, stopped: Path, patience_s: float = 300) -> list[str]:
    """Run until there is a file `stopped`. Returns the events."""
    stop, said = threading.Event(), list[str]()

    def wait() -> None:
        wait_until(stopped.exists, "nobody stopped the run", seconds=2 * TIMEOUT_S)
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_module, "NO_EXECUTOR_S", patience_s)
        run(
            load_config(file, {}),
            spark=session(),
            stop=stop,
            on_event=lambda event: said.append(event.text),
        )
    return said


def publish_some(site: Site, rng: Random, batch: int) -> None:
    first = batch * 100
    site.live.publish(
        *(
            account(f"a{rng.randrange(60)}", (first + n) * S, name=f"n{n}", amount=str(n))
            for n in range(1, 60)
        )
    )


def is_applied(site: Site) -> bool:
    try:
        return site.rows() == keyed(site.live.truth().values())
    except TableNotFoundError:  # it comes with the first apply
        return False


def live_on(site: Site, driver: Driver, cluster: Cluster, rng: Random, faults: list[str]) -> None:
    """A `run` under these faults, at random moments between batches. It must end by itself."""
    site.control(ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
    stopped = site.file.parent / "stopped"
    running = driver.begin(run_until, site.file, stopped)
    for batch, fault in enumerate(faults, 1):
        publish_some(site, rng, batch)
        sleep(rng.uniform(0, 3))
        if fault == "executor":
            cluster.kill_executor(rng.randrange(2))
        elif fault == "worker":
            cluster.kill_worker(rng.randrange(2))
            cluster.start_worker()
        else:
            cluster.kill_master()
            cluster.start_master()
            cluster.wait_for(len(cluster.workers))
    site.control(Heartbeat("p", 10**6 * S))
    wait_until(
        lambda: running.done() or is_applied(site), "not everything was applied", seconds=TIMEOUT_S
    )
    stopped.touch()
    running.result(TIMEOUT_S)
    site.check()


@pytest.mark.long
def test_run_lives_on_when_executors_workers_and_the_master_are_killed(
    site: Site, driver: Driver, cluster: Cluster, seed: int
) -> None:
    """SCL-4: the master has FILESYSTEM recovery. Nothing is lost, and the table equals the
    truth.
    """
    faults = ["executor", "worker", "master", "executor"]
    live_on(site, driver, cluster, Random(seed), faults)


@pytest.mark.long
def test_spark_submit_shows_our_lines_and_few_of_spark(
    site: Site, cluster: Cluster, tmp_path: Path
) -> None:
    """SCL-8: the recipe of the how-to page. Spark's INFO lines are left out, and ours have the
    format of `connector run`. Its standard output has only our lines.
    """
    site.live.publish(*(account(f"a{n}", n * S, amount=str(n)) for n in range(1, 50)))
    cluster.start_worker()
    cluster.wait_for(3)
    program = tmp_path / "run_connector.py"
    program.write_text("from connector.cli import main\n\nmain()\n")
    jars = ",".join(map(str, fetch("spark", JarStore.from_environment(os.environ))))
    settings = {
        "spark.driver.extraJavaOptions": SPARK_OPTIONS,
        "spark.executor.extraJavaOptions": SPARK_OPTIONS,
        "spark.scheduler.mode": "FAIR",
        "spark.cores.max": "1",
        **INTERPRETED,
    }
    done = subprocess.run(
        [
            *(HOME / "bin" / "spark-submit", "--master", cluster.url, "--deploy-mode", "client"),
            *("--driver-memory", "1g", "--executor-memory", "1g", "--jars", jars),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            *(program, "--config", site.file, "run", "--once"),
        ],
        env=os.environ
        | {
            "PYTHONPATH": os.getcwd(),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
            "JDK_JAVA_OPTIONS": JVM_OPTIONS,
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Spark passes both outputs of Python on to its standard output.
    ours = done.stdout.splitlines()
    assert "BATCH_LOGGED stream s: batch 1 with 49 offsets logged; 49 changes so far" in ours[0]
    assert {line.partition(" APPLIED ")[2].partition(":")[0] for line in ours[1:]} == {
        f"table {name}" for name in TABLES
    }
    assert " INFO " not in done.stderr
    assert done.stderr.count(" WARN ") < 10, done.stderr
    site.check()


@pytest.mark.long
def test_a_cluster_and_an_object_store_together(
    site: Site, cluster: Cluster, object_store: ObjectStore
) -> None:
    """SCL-1, SCL-7, STO-2: the recipe of the how-to page, without spark-submit. Executors get the
    jars, the JVM options and the keys of the store from the driver. A folder of which nothing is
    said is refused.
    """
    cluster.start_worker()
    cluster.wait_for(3)
    spark = f"""
[spark]
master = "{cluster.url}"
driver_memory = "1g"
executor_memory = "1g"
[spark.conf]
"spark.cores.max" = "1"
"spark.driver.host" = "{HOST}"
"""
    spark += "".join(f'"{name}" = "{value}"\n' for name, value in INTERPRETED.items())
    text = site.file.read_text() + spark
    site.file.write_text(text.replace("shared_folder = true", ""))
    refused = connector(site.file, "run", "--once")
    assert refused.returncode == 1
    assert "WAREHOUSE_UNUSABLE" in refused.stderr
    in_store = text.replace('"warehouse"', f'"{object_store.warehouse()}"').replace(
        "shared_folder = true",
        f'endpoint = "{object_store.endpoint}"\naccess_key = "{KEY}"\nsecret_key = "{SECRET}"',
    )
    site.file.write_text(in_store)
    site.live.publish(*(account(f"a{n}", n * S, amount=str(n)) for n in range(1, 50)))
    done = connector(site.file, "run", "--once")
    assert done.returncode == 0, done.stderr
    assert "49 offsets logged" in done.stderr
    assert SECRET not in done.stderr
    assert connector(site.file, "run", "--once", "--cores", "2").returncode == 1
    site.check()


def connector(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ENTRY, "--config", str(file), *arguments],
        env=os.environ
        | {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
            "JDK_JAVA_OPTIONS": JVM_OPTIONS,
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.mark.long
def test_run_lives_on_under_many_losses(
    site: Site, driver: Driver, cluster: Cluster, seed: int
) -> None:
    """SCL-4."""
    rng = Random(seed)
    faults = [rng.choice(["executor", "executor", "worker", "master"]) for _ in range(12)]
    live_on(site, driver, cluster, rng, faults)


@pytest.mark.long
def test_a_master_without_recovery_ends_the_run_with_its_cause(
    site: Site, tmp_path: Path, seed: int
) -> None:
    """SCL-4: a new master does not know the application, and its workers end the executors."""
    with (
        Cluster.running(tmp_path / "cluster") as cluster,
        Driver(cluster.url, tmp_path / "driver", INTERPRETED) as driver,
    ):
        running = driver.begin(run_until, site.file, tmp_path / "never", 5)
        publish_some(site, Random(seed), 1)
        wait_until(lambda: bool(cluster.executors()), "there is no executor")
        before = cluster.executors()
        cluster.kill_master()
        cluster.start_master()
        cluster.wait_for(2)
        wait_until(lambda: not set(before) & set(cluster.executors()), "executors live on")
        publish_some(site, Random(seed), 2)
        with pytest.raises(ConnectorError) as error:
            running.result(TIMEOUT_S)
    assert error.value.code in ("SPARK_WITHOUT_EXECUTORS", "SPARK_SESSION_ENDED")
    assert "master" in error.value.cause


@pytest.mark.long
def test_the_benchmark_measures_a_cluster() -> None:
    """SCL-10: with few changes. Its figures are not judged."""
    rates = in_process(1, Sizes(rows=2_000, changes=2_000, batch=0), 1)
    assert len(rates.ingest) == len(rates.apply) == 1
    assert min(*rates.ingest, *rates.apply) > 0
