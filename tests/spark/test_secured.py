"""`connector run` against a broker that asks who it is: TLS, client certificates, SCRAM and OAuth
(SEC-1).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.kafka import ChangeProducer, topics
from connector.services import RunReport, audit, run
from tests.integration.changes import change
from tests.secured import KEY_PASSWORD, SecuredBroker, secured

__all__ = ["secured"]

LOGINS: dict[str, Callable[[SecuredBroker], tuple[str, KafkaConfig]]] = {
    "TLS": lambda of: ("", of.tls()),
    "a client certificate": lambda of: ("User:CN=run", of.mtls("run", password=KEY_PASSWORD)),
    "SCRAM": lambda of: ("User:run", of.scram("run")),
    "OAUTHBEARER": lambda of: ("User:run", of.oauth("run")),
}


@pytest.mark.parametrize("login", LOGINS)
def test_run_logs_every_record_of_a_secured_broker(
    spark: SparkSession, secured: SecuredBroker, tmp_path: Path, login: str
) -> None:
    """SEC-1: with the settings that the producer has. nothing_lost."""
    principal, kafka = LOGINS[login](secured)
    topic = f"t.{uuid.uuid4().hex[:8]}"
    topics.create_topic(secured.open, topic, kafka_partitions=2)
    if principal:
        secured.allow_all(principal)
    with ChangeProducer(kafka, topic, announce=False) as producer:
        for number in range(20):
            producer.send(change(number))
    config = ConnectorConfig(
        str(tmp_path), kafka, streams={"s": StreamConfig(name="s", topic=topic)}
    )
    assert run(config, spark=spark, once=True) == RunReport(1, 0, 0)
    report = audit(config)
    print(report)
