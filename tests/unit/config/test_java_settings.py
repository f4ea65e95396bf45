"""OPS-7, SEC-1: client settings reach Spark's Kafka client under its own names, or are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connector.config import java_settings
from connector.config.settings import KafkaConfig
from connector.errors import ConfigError


def options(**settings: str) -> dict[str, str]:
    return java_settings.options(
        KafkaConfig(
            "kafka:9092", {name.replace("_", "."): value for name, value in settings.items()}
        ),
        read,
    )


def read(file: Path) -> str:
    if str(file) not in FILES:
        raise FileNotFoundError(file)
    return FILES[str(file)]


def test_only_committed_records_are_read() -> None:
    result = options()
    assert result["kafka.bootstrap.servers"] == "kafka:9092"
    assert result["kafka.isolation.level"] == "read_committed"


def test_settings_that_both_clients_know_are_handed_on_and_tuning_is_left_out() -> None:
    result = options(client_id="me", socket_keepalive_enable="true")
    assert result["kafka.client.id"] == "me"
    assert not any("keepalive" in name for name in result)


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "scram.Scram"),
    ],
)
def test_a_login_is_translated(mechanism: str, module: str) -> None:
    result = options(
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        sasl_username="me",
        sasl_password="s",
    )
    assert result["kafka.security.protocol"] == "SASL_SSL"
    assert result["kafka.sasl.mechanism"] == mechanism
    assert module in result["kafka.sasl.jaas.config"]
    assert result["kafka.sasl.jaas.config"].endswith(' required username="me" password="s";')


def test_a_password_cannot_end_its_quotes() -> None:
    result = options(sasl_mechanism="PLAIN", sasl_username="me", sasl_password='x" serviceName="\\')
    assert result["kafka.sasl.jaas.config"].endswith(r' password="x\" serviceName=\"\\";')


def test_trusted_certificates_are_a_pem_file() -> None:
    result = options(security_protocol="SSL", ssl_ca_location="/etc/ca.pem")
    assert result["kafka.ssl.truststore.type"] == "PEM"
    assert result["kafka.ssl.truststore.location"] == "/etc/ca.pem"


PBES2 = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAg=
-----END ENCRYPTED PRIVATE KEY-----
"""
PBES1 = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGrMCUGCiqGSIb3DQEMAQMwFwQRAgIIAA==
-----END ENCRYPTED PRIVATE KEY-----
"""
KEY = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----"
FILES = {
    "cert.pem": f"subject=CN = me\n{CERTIFICATE}\n{CERTIFICATE}\n",
    "key.pem": f"a comment\n{KEY}\n",
    "both.pem": f"{KEY}\n{CERTIFICATE}\n",
    "pbes1.pem": PBES1,
    "pbes2.pem": PBES2,
    "pkcs1.pem": "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n",
}


@pytest.mark.parametrize(
    ("certificate", "key", "chain"),
    [("cert.pem", "key.pem", [CERTIFICATE, CERTIFICATE]), ("both.pem", "both.pem", [CERTIFICATE])],
)
def test_a_client_certificate_and_its_key_are_passed_as_text(
    certificate: str, key: str, chain: list[str]
) -> None:
    """SEC-1: only their PEM blocks, from one file or from two."""
    result = options(ssl_certificate_location=certificate, ssl_key_location=key)
    assert result["kafka.ssl.keystore.type"] == "PEM"
    assert result["kafka.ssl.keystore.certificate.chain"] == "\n".join(chain)
    assert result["kafka.ssl.keystore.key"] == KEY
    assert "kafka.ssl.key.password" not in result


def test_a_client_certificate_may_be_a_text_and_its_key_have_a_password() -> None:
    result = options(ssl_certificate_pem=CERTIFICATE, ssl_key_pem=PBES1, ssl_key_password="secret")
    assert result["kafka.ssl.keystore.key"] == PBES1.strip()
    assert result["kafka.ssl.key.password"] == "secret"


def test_a_key_in_an_unknown_form_is_left_to_java() -> None:
    key = re.sub(r"\nM.*\n", "\nAAAAA\n", PBES1)
    result = options(ssl_certificate_pem=CERTIFICATE, ssl_key_pem=key, ssl_key_password="secret")
    assert result["kafka.ssl.keystore.key"] == key.strip()


def test_trusted_certificates_may_be_a_text() -> None:
    result = options(security_protocol="SSL", ssl_ca_pem=CERTIFICATE)
    assert result["kafka.ssl.truststore.type"] == "PEM"
    assert result["kafka.ssl.truststore.certificates"] == CERTIFICATE


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ssl_certificate_location": "cert.pem"}, "has no key"),
        ({"ssl_key_location": "key.pem"}, "has no certificate"),
        ({"ssl_certificate_location": "key.pem", "ssl_key_location": "key.pem"}, "no certificate"),
        ({"ssl_certificate_pem": CERTIFICATE, "ssl_key_location": "pkcs1.pem"}, "no key that Java"),
        ({"ssl_certificate_pem": CERTIFICATE, "ssl_key_location": "pbes2.pem"}, "cannot decrypt"),
        ({"ssl_certificate_pem": CERTIFICATE, "ssl_key_pem": "AAAA"}, r"ssl\.key\.pem has no key"),
    ],
)
def test_a_client_certificate_that_java_cannot_use_is_an_error(
    given: dict[str, str], says: str
) -> None:
    """SEC-1: before Spark starts, and without the key."""
    with pytest.raises(ConfigError, match=says) as caught:
        options(**given)
    assert caught.value.code == "CLIENT_CERTIFICATE_UNUSABLE"
    assert "AAAA" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.key\.location names cannot be read") as caught:
        options(ssl_certificate_pem=CERTIFICATE, ssl_key_location="missing.pem")
    assert caught.value.code == "SECRET_UNREADABLE"


def test_client_credentials_are_translated() -> None:
    """SEC-1: OAUTHBEARER, with the certificates that the token endpoint is trusted by."""
    result = options(
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_method="oidc",
        sasl_oauthbearer_client_id="me",
        sasl_oauthbearer_client_secret='s"',
        sasl_oauthbearer_scope="kafka",
        sasl_oauthbearer_extensions="logicalCluster=lkc-1,pool=p",
        sasl_oauthbearer_token_endpoint_url="https://tokens/",
        https_ca_location="/ca.pem",
    )
    assert result["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://tokens/"
    assert result["kafka.sasl.login.callback.handler.class"].endswith(
        ".OAuthBearerLoginCallbackHandler"
    )
    assert result["kafka.sasl.jaas.config"].endswith(
        r'.OAuthBearerLoginModule required clientId="me" clientSecret="s\"" scope="kafka"'
        ' extension_logicalCluster="lkc-1" extension_pool="p" ssl.truststore.type="PEM"'
        ' ssl.truststore.location="/ca.pem";'
    )


@pytest.mark.parametrize(
    "given", [{}, {"method": "default"}, {"method": "oidc", "grant_type": "jwt-bearer"}]
)
def test_other_tokens_than_those_of_client_credentials_are_refused(given: dict[str, str]) -> None:
    settings = {f"sasl_oauthbearer_{name}": value for name, value in given.items()}
    with pytest.raises(ConfigError, match="client credentials only"):
        options(sasl_mechanism="OAUTHBEARER", **settings)


def test_kerberos_is_passed_on() -> None:
    """SEC-1: it was not tried."""
    result = options(
        sasl_mechanism="GSSAPI",
        sasl_kerberos_service_name="kafka",
        sasl_kerberos_keytab="/me.keytab",
        sasl_kerberos_principal="me@REALM",
    )
    assert result["kafka.sasl.kerberos.service.name"] == "kafka"
    assert result["kafka.sasl.jaas.config"] == (
        'com.sun.security.auth.module.Krb5LoginModule required useKeyTab="true"'
        ' storeKey="true" keyTab="/me.keytab" principal="me@REALM";'
    )
    assert 'useTicketCache="true"' in options(sasl_mechanism="GSSAPI")["kafka.sasl.jaas.config"]


def test_a_host_name_is_checked_unless_the_other_clients_do_not() -> None:
    name = "kafka.ssl.endpoint.identification.algorithm"
    assert name not in options(security_protocol="SSL")
    assert options(ssl_endpoint_identification_algorithm="none")[name] == ""
    assert options(ssl_endpoint_identification_algorithm="https")[name] == "https"


@pytest.mark.parametrize(
    "setting",
    [
        "ssl_cipher_suites",
        "ssl_crl_location",
        "ssl_keystore_location",
        "sasl_oauthbearer_config",
        "enable_ssl_certificate_verification",
        "https_ca_pem",
    ],
)
def test_security_that_has_no_translation_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="Kafka client has no setting") as caught:
        options(**{setting: "x"})
    assert setting.replace("_", ".") in str(caught.value)


def test_an_unknown_login_is_refused() -> None:
    with pytest.raises(ConfigError, match="AWS_MSK_IAM"):
        options(sasl_mechanism="AWS_MSK_IAM")
