"""What is wrong with the master of a cluster is said before Spark starts (SCL-1, SCL-7)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.config.spark_settings import SparkConfig
from connector.config.storage import StorageConfig
from connector.errors import ConnectorError
from connector.kafka.local.folder import free_port
from connector.services import validate_config
from connector.services.local_spark import check_master


def test_a_master_that_does_not_answer_is_named() -> None:
    closed = f"127.0.0.1:{free_port()}"
    for master in (f"spark://{closed}", f"spark://nowhere.invalid:7077,{closed}", "spark://host"):
        with pytest.raises(ConnectorError) as caught:
            check_master(master)
        assert caught.value.code == "SPARK_MASTER_UNREACHABLE"
        assert master in caught.value.problem


def test_one_of_several_masters_suffices_and_other_managers_are_not_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://127.0.0.1:{free_port()},127.0.0.1:{server.getsockname()[1]}")
    for master in ("local[2]", "yarn", "k8s://https://host:6443"):
        check_master(master)


def test_validate_names_the_faults_of_the_cluster(tmp_path: Path) -> None:
    def findings(spark: SparkConfig, *, shared: bool) -> list[tuple[str, str | None]]:
        config = ConnectorConfig(
            str(tmp_path / "w"),
            KafkaConfig("127.0.0.1:1"),
            spark=spark,
            storage=StorageConfig(shared_folder=shared),
        )
        return [(one.level, one.error and one.error.code) for one in validate_config(config)]

    before = findings(SparkConfig(), shared=False)
    assert [level for level, _ in before] == ["ok"] * 3
    cluster = SparkConfig(master=f"spark://127.0.0.1:{free_port()}")
    (added,) = set(findings(cluster, shared=False)) - set(before)
    assert added == ("fault", "WAREHOUSE_UNUSABLE")
    (added,) = set(findings(cluster, shared=True)) - set(before)
    assert added == ("fault", "SPARK_MASTER_UNREACHABLE")
    assert findings(SparkConfig(master="yarn"), shared=True) == [("ok", None)] * 4
