"""`connector run` against a broker that asks who it is: TLS, client certificates, SCRAM and OAuth
(SEC-1, SEC-2), and the rights that it needs (SEC-5).
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.errors import BrokerError
from connector.kafka import topics
from connector.kafka.produce.producer import CopyingProducer
from connector.services import audit, run, status
from connector.services.run import RunReport
from connector.spark.failures import ingesting
from connector.spark.ingest.source import read_stream
from tests.integration.changes import change, send_raw
from tests.rights import Right, listed
from tests.secured import KEY_PASSWORD, PASSWORD, SecuredBroker, secured

__all__ = ["secured"]

pytestmark = pytest.mark.systems

WRONG = "a-wrong-secret"
LOGINS: dict[str, Callable[[SecuredBroker], tuple[str, KafkaConfig]]] = {
    "TLS": lambda of: ("", of.tls()),
    "a client certificate": lambda of: ("User:CN=run", of.mtls("run", password=KEY_PASSWORD)),
    "SCRAM": lambda of: ("User:run", of.scram("run")),
    "OAUTHBEARER": lambda of: ("User:run-by-token", of.oauth("run-by-token")),
}


def new_topic(of: SecuredBroker) -> str:
    """A topic with four changes, a record that cannot be read, and the end of a transaction, which
    takes an offset.
    """
    topic = f"t{uuid.uuid4().hex[:8]}"
    topics.create_topic(of.open, topic, kafka_partitions=2)
    with CopyingProducer(of.open, topic) as producer:
        for number in range(3):
            producer.send(change(number))
    with (
        CopyingProducer(of.open, topic, transactional_id=topic) as producer,
        producer.transaction(),
    ):
        producer.send(change(3))
    send_raw(of.open, topic, [(b"row-1", b"bad")])
    return topic


def config_of(kafka: KafkaConfig, topic: str, folder: Path) -> ConnectorConfig:
    streams = {"s": StreamConfig(name="s", topic=topic)}
    return ConnectorConfig(str(folder), kafka, streams=streams)


@pytest.mark.parametrize(
    "login",
    [
        "TLS",
        *(pytest.param(name, marks=pytest.mark.long) for name in LOGINS if name != "TLS"),
    ],
)
def test_run_logs_every_record_of_a_secured_broker(
    spark: SparkSession, secured: SecuredBroker, tmp_path: Path, login: str
) -> None:
    """SEC-1, nothing_lost: with the settings that producers have."""
    principal, kafka = LOGINS[login](secured)
    topic = new_topic(secured)
    if principal:
        secured.allow_all(principal)
    config = config_of(kafka, topic, tmp_path)
    assert run(config, spark=spark, once=True) == RunReport(1, 0, 1)
    (proof,) = audit(config)
    assert proof.is_proved


def allow(secured: SecuredBroker, user: str, topic: str, rights: Sequence[Right]) -> KafkaConfig:
    for right in rights:
        secured.allow(f"User:{user}", right.kind, right.named(TOPIC=topic), right.operation)
    return secured.scram(user)


def test_run_audit_and_status_need_the_rights_of_the_page(
    spark: SparkSession, secured: SecuredBroker, tmp_path: Path
) -> None:
    """SEC-5: and `audit` needs each of them."""
    topic, rights = new_topic(secured), listed()
    kafka = allow(secured, "runs", topic, rights["`connector run`"])
    config = config_of(kafka, topic, tmp_path)
    assert run(config, spark=spark, once=True) == RunReport(1, 0, 1)
    assert run(config, spark=spark, once=True) == RunReport(0, 0, 0)
    of_audit = rights["`audit`"]
    for place in range(len(of_audit)):
        left = [right for number, right in enumerate(of_audit) if number != place]
        lacking = replace(config, kafka=allow(secured, f"lacks{place}", topic, left))
        with pytest.raises(BrokerError):
            list(audit(lacking))
            pytest.fail(f"it works without {of_audit[place]}", pytrace=False)
    (proof,) = audit(replace(config, kafka=allow(secured, "audits", topic, of_audit)))
    assert proof.is_proved
    asks = allow(secured, "asks", topic, rights["`status`"])
    for kafka, is_known in ((asks, True), (secured.scram("asks-without-rights"), False)):
        report = status(replace(config, kafka=kafka))
        assert report.streams["s"].dead_letters.is_known is is_known


@pytest.mark.long
@pytest.mark.parametrize("missing", range(len(listed()["`connector run`"])))
def test_run_needs_each_right_of_the_page(
    spark: SparkSession, secured: SecuredBroker, tmp_path: Path, missing: int
) -> None:
    """SEC-5."""
    topic, rights = new_topic(secured), listed()["`connector run`"]
    left = [right for number, right in enumerate(rights) if number != missing]
    kafka = allow(secured, f"run-lacks{missing}", topic, left)
    with pytest.raises(BrokerError):
        run(config_of(kafka, topic, tmp_path), spark=spark, once=True)
        pytest.fail(f"it works without {rights[missing]}", pytrace=False)


@pytest.mark.long
def test_a_login_that_is_refused_later_names_the_cause_and_loses_nothing(
    spark: SparkSession, secured: SecuredBroker, tmp_path: Path
) -> None:
    """SEC-1: what Spark's client reports, without secrets. SEC-2: the next run reads the files
    again.
    """
    topic = new_topic(secured)
    secured.allow_all("User:CN=rotates")
    good, expired = secured.mtls("rotates"), secured.mtls("late", days=-1)
    files = {name: tmp_path / name for name in ("certificate", "key")}
    settings = {f"ssl.{name}.location": str(path) for name, path in files.items()}
    kafka = KafkaConfig(good.bootstrap_servers, {**good.settings, **settings})

    def put(other: KafkaConfig) -> None:
        for name, path in files.items():
            shutil.copy(other.settings[f"ssl.{name}.location"], path)

    cases = (
        ("KAFKA_TLS_FAILED", kafka),
        ("KAFKA_LOGIN_FAILED", secured.scram("run", WRONG)),
        ("KAFKA_LOGIN_FAILED", secured.oauth("run", WRONG)),
        ("KAFKA_ACCESS_DENIED", secured.scram("has-no-rights")),
    )
    put(expired)
    for number, (code, refused) in enumerate(cases):
        with pytest.raises(BrokerError) as caught, ingesting("s"):
            query = read_stream(
                spark, refused, StreamConfig(name="s", topic=topic), {0: 0, 1: 0}
            ).writeStream
            query.format("noop").trigger(availableNow=True).option(
                "checkpointLocation", str(tmp_path / f"checkpoint-{number}")
            ).start().awaitTermination(60)
        assert (caught.value.code, bool(caught.value.cause)) == (code, True)
        for secret in (PASSWORD, WRONG, "PRIVATE KEY"):
            assert secret not in f"{caught.value} {caught.value.fields}"
            assert secret not in str(caught.value.__cause__)
    put(good)
    config = config_of(kafka, topic, tmp_path / "w")
    assert run(config, spark=spark, once=True).batches == 1
    (proof,) = audit(config)
    assert proof.is_proved
