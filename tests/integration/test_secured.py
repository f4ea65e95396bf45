"""Producers, readers, dead letters and write streams on a broker that asks who they are, and what a
refused login says (SEC-1, SEC-2).
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.dead_letters.filter import LetterFilter
from connector.dead_letters.replay import Verdict
from connector.errors import BrokerError, ConfigError, ConnectorError, DeliveryError
from connector.kafka import (
    ChangeConsumer,
    ChangeProducer,
    DeadLetterPublisher,
    Group,
    WriteSession,
    client,
    create_topic,
    topics,
)
from connector.kafka.write_streams.commit import commit_streams
from connector.records.model import DataChange
from connector.services import DeadLetters
from tests.integration.changes import change
from tests.integration.test_dead_letter_queue import letter
from tests.integration.test_write_streams import rows
from tests.secured import (
    CLIENT_SECRET,
    HOST,
    KEY_PASSWORD,
    PASSWORD,
    Authority,
    SecuredBroker,
    secured,
)

__all__ = ["secured"]

pytestmark = pytest.mark.systems

WRONG = "a-wrong-secret"
LOGINS: dict[str, Callable[[SecuredBroker], tuple[str, KafkaConfig]]] = {
    "TLS": lambda of: ("", of.tls()),
    "a client certificate": lambda of: ("User:CN=me", of.mtls("me", password=KEY_PASSWORD)),
    "SCRAM": lambda of: ("User:me", of.scram("me")),
    "OAUTHBEARER": lambda of: ("User:token-of-me", of.oauth("token-of-me")),
}


def new_topic(of: SecuredBroker) -> str:
    topic = f"t.{uuid.uuid4().hex[:8]}"
    create_topic(of.open, topic, kafka_partitions=2)
    return topic


def changed(kafka: KafkaConfig, *without: str, **settings: str) -> KafkaConfig:
    """Other settings. `_` in their names stands for `.`."""
    left = {name: value for name, value in kafka.settings.items() if name not in without}
    new = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaConfig(kafka.bootstrap_servers, left | new)


@pytest.mark.parametrize("login", LOGINS)
def test_every_part_works_with_every_login(secured: SecuredBroker, login: str) -> None:
    """SEC-1: transactions, groups, replay and write streams included."""
    principal, kafka = LOGINS[login](secured)
    topic = new_topic(secured)
    if principal:
        with pytest.raises(BrokerError) as refused:
            topics.describe(kafka, topic)
        assert refused.value.code == "KAFKA_ACCESS_DENIED", "the broker knows who it is"
        secured.allow_all(principal)
    with ChangeProducer(kafka, topic) as producer:
        producer.send(change(1))
    with (
        ChangeProducer(kafka, topic, transactional_id=f"{topic}.id") as producer,
        producer.transaction(),
    ):
        producer.send(change(2))
    with WriteSession(kafka, topic, "w") as session:
        stream = session.stream("rows", kind="pending")
        assert stream.append(rows(stream, 0, 3), 0).result(30).rows == 3
        stream.finalize()
    assert commit_streams(kafka, topic, ["w/rows"])
    facts = topics.describe(kafka, topic)
    with DeadLetterPublisher(kafka, topic) as publisher:
        publisher.publish([letter(facts, 0)])
    config = ConnectorConfig("w", kafka, streams={"s": StreamConfig(name="s", topic=topic)})
    tally = DeadLetters(config, by="me").replay(LetterFilter(), why="a test")
    assert tally.verdicts == {Verdict.REPLAY: 1}
    with ChangeConsumer(kafka, topic, start=Group(f"{topic}.g"), bounded=True) as consumer:
        found = [one.record for one in consumer if hasattr(one, "record")]
        consumer.commit()
    times = [one.commit_timestamp for one in found if isinstance(one, DataChange)]
    assert sorted(times) == [1_000_000, 1_000_001, 1_000_002]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that the broker does not know."""
    return Authority.create(tmp_path_factory.mktemp("other") / "authority")


def test_a_refused_connection_says_why_and_names_no_secret(
    secured: SecuredBroker, other: Authority
) -> None:
    """SEC-1: problem, cause, remedy."""
    foreign = [str(path) for path in other.issue("mallory")]
    tls, scram, oauth = secured.tls(), secured.scram("ann"), secured.oauth("ann")
    certificate = secured.mtls("ann")
    of_mtls = changed(tls)
    at = {name: f"{HOST}:{port}" for name, port in secured.ports.items()}
    login, secure = "KAFKA_LOGIN_FAILED", "KAFKA_TLS_FAILED"
    invalid = "SETTING_INVALID"
    cases: dict[str, tuple[KafkaConfig, str, str]] = {
        "no TLS": (KafkaConfig(at["TLS"]), secure, "requires TLS or a login"),
        "TLS, and no login": (KafkaConfig(at["SCRAM"], tls.settings), secure, "or a login"),
        "a login without TLS": (
            changed(scram, security_protocol="SASL_PLAINTEXT"),
            secure,
            "requires TLS",
        ),
        "TLS at an open port": (KafkaConfig(at["PLAINTEXT"], tls.settings), secure, "handshake"),
        "another authority": (
            changed(tls, ssl_ca_location=str(other.certificate)),
            secure,
            "verify failed",
        ),
        "no client certificate": (
            KafkaConfig(at["MTLS"], of_mtls.settings),
            secure,
            "bad certificate",
        ),
        "a foreign client certificate": (
            changed(certificate, ssl_certificate_location=foreign[0], ssl_key_location=foreign[1]),
            secure,
            "certificate unknown",
        ),
        "an expired client certificate": (
            secured.mtls("late", days=-1),
            secure,
            "certificate unknown",
        ),
        "a key of another certificate": (
            changed(certificate, ssl_key_location=foreign[1]),
            invalid,
            "ssl.key.location",
        ),
        "a missing file": (changed(tls, ssl_ca_location="/no/ca.pem"), invalid, "ssl.ca.location"),
        "a wrong password": (secured.scram("ann", WRONG), login, "invalid credentials"),
        "an unknown user": (secured.scram("eve", WRONG, known=False), login, "invalid credentials"),
        "a mechanism that the broker lacks": (
            changed(scram, sasl_mechanism="PLAIN"),
            login,
            "supported mechanisms: SCRAM-SHA-512",
        ),
        "a wrong client secret": (secured.oauth("ann", WRONG), login, "invalid_client"),
        "no token endpoint": (
            changed(oauth, sasl_oauthbearer_token_endpoint_url=f"https://{HOST}:1/token"),
            login,
            "token",
        ),
    }

    def refused(kafka: KafkaConfig) -> ConnectorError:
        with pytest.raises((BrokerError, ConfigError)) as caught:
            client.admin(kafka, timeout_s=5)
        return caught.value

    with ThreadPoolExecutor(len(cases)) as pool:
        found = dict(
            zip(cases, pool.map(refused, [one for one, _, _ in cases.values()]), strict=True)
        )
    for name, error in found.items():
        kafka, code, cause = cases[name]
        assert (error.code, cause in error.cause) == (code, True), (name, str(error))
        assert error.remedy
        text = f"{error} {error.fields} {kafka!r}"
        for secret in (PASSWORD, WRONG, CLIENT_SECRET, KEY_PASSWORD):
            assert secret not in text, name


@pytest.mark.long
def test_a_client_keeps_the_certificate_and_the_password_that_it_began_with(
    secured: SecuredBroker, tmp_path: Path
) -> None:
    """SEC-2: also on new connections. A new client has the new ones. Nothing is lost meanwhile."""
    topic = new_topic(secured)
    for principal in ("User:CN=old", "User:CN=new", "User:bob"):
        secured.allow_all(principal)
    certificate, scram = secured.mtls("old"), secured.scram("bob")
    mine = {name: tmp_path / name for name in ("certificate", "key")}
    for name, path in mine.items():
        shutil.copy(certificate.settings[f"ssl.{name}.location"], path)
    kafka = changed(
        certificate,
        ssl_certificate_location=str(mine["certificate"]),
        ssl_key_location=str(mine["key"]),
    )
    with ChangeProducer(kafka, topic) as old, ChangeProducer(scram, topic) as bob:
        old.send(change(1))
        bob.send(change(2))
        old.flush()
        bob.flush()
        expired = secured.mtls("new", days=-1)
        for name, path in mine.items():
            shutil.copy(expired.settings[f"ssl.{name}.location"], path)
        secured.set_password("bob", WRONG)
        bob.send(change(3))
        bob.flush()  # the connection stays
        secured.restart()
        old.send(change(4))
        old.flush()
        with pytest.raises(BrokerError) as new:
            topics.describe(kafka, topic)
        assert new.value.code == "KAFKA_TLS_FAILED", "a new client reads the new files"
        bob.send(change(5))
        with pytest.raises(DeliveryError, match="Authentication failed") as refused:
            bob.flush(5)
        assert WRONG not in str(refused.value)
        assert PASSWORD not in str(refused.value)
        secured.set_password("bob", PASSWORD)
        bob.flush()
        assert bob.undelivered() == {}
    with ChangeConsumer(secured.open, topic, bounded=True) as consumer:
        found = [one.record for one in consumer if hasattr(one, "record")]
    times = [one.commit_timestamp for one in found if isinstance(one, DataChange)]
    assert sorted(times) == [1_000_000 + number for number in range(1, 6)]


def test_a_client_fetches_a_new_token_before_the_old_one_expires(secured: SecuredBroker) -> None:
    """SEC-2."""
    topic = new_topic(secured)
    secured.allow_all("User:brief")
    secured.tokens.lifetime_s, before_s = 5, secured.tokens.lifetime_s
    try:
        with ChangeProducer(secured.oauth("brief"), topic) as producer:
            deadline = time.monotonic() + 30
            while secured.tokens.asked["brief"] < 4:
                producer.send(change(1))
                producer.flush()
                assert time.monotonic() < deadline, secured.tokens.asked
    finally:
        secured.tokens.lifetime_s = before_s
