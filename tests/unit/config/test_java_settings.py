"""OPS-7: client settings reach Spark's Kafka client under its own names, or are refused."""

from __future__ import annotations

import pytest

from connector.config import java_settings
from connector.config.settings import KafkaConfig
from connector.errors import ConfigError


def options(**settings: str) -> dict[str, str]:
    return java_settings.options(
        KafkaConfig(
            "kafka:9092", {name.replace("_", "."): value for name, value in settings.items()}
        )
    )


def test_only_committed_records_are_read() -> None:
    found = options()
    assert found["kafka.bootstrap.servers"] == "kafka:9092"
    assert found["kafka.isolation.level"] == "read_committed"


def test_settings_that_both_clients_know_are_handed_on_and_tuning_is_left_out() -> None:
    found = options(client_id="me", socket_keepalive_enable="true")
    assert found["kafka.client.id"] == "me"
    assert not any("keepalive" in name for name in found)


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "scram.Scram"),
    ],
)
def test_a_login_is_translated(mechanism: str, module: str) -> None:
    found = options(
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        sasl_username="me",
        sasl_password="s",
    )
    assert found["kafka.security.protocol"] == "SASL_SSL"
    assert found["kafka.sasl.mechanism"] == mechanism
    assert module in found["kafka.sasl.jaas.config"]
    assert found["kafka.sasl.jaas.config"].endswith(' required username="me" password="s";')


def test_a_password_cannot_end_its_quotes() -> None:
    found = options(sasl_mechanism="PLAIN", sasl_username="me", sasl_password='x" serviceName="\\')
    assert found["kafka.sasl.jaas.config"].endswith(r' password="x\" serviceName=\"\\";')


def test_trusted_certificates_are_a_pem_file() -> None:
    found = options(security_protocol="SSL", ssl_ca_location="/etc/ca.pem")
    assert found["kafka.ssl.truststore.type"] == "PEM"
    assert found["kafka.ssl.truststore.location"] == "/etc/ca.pem"


@pytest.mark.parametrize(
    "setting", ["ssl_key_location", "sasl_oauthbearer_config", "sasl_kerberos_keytab"]
)
def test_security_that_has_no_translation_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="Kafka client has no setting") as caught:
        options(**{setting: "x"})
    assert setting.replace("_", ".") in str(caught.value)


def test_an_unknown_login_is_refused() -> None:
    with pytest.raises(ConfigError, match="GSSAPI"):
        options(sasl_mechanism="GSSAPI")
