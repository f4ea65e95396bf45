"""Client settings for Spark's Kafka source, translated from librdkafka's names to those of Kafka's
Java client (OPS-7, SEC-1).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connector.errors.settings import (
    client_certificate_missing,
    client_key_encrypted,
    client_key_missing,
    kafka_setting_untranslatable,
    secret_unreadable,
)

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig

Read = Callable[[Path], str]
"""Returns the text of a file, for example `Path.read_text`."""

_SAME_IN_JAVA: Final = frozenset(
    {
        "security.protocol",
        "request.timeout.ms",
        "metadata.max.age.ms",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "retry.backoff.ms",
        "sasl.kerberos.service.name",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.sub.claim.name",
    }
)
_TRANSLATED: Final = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.kerberos.principal",
        "sasl.kerberos.keytab",
        "sasl.kerberos.kinit.cmd",  # Java renews its ticket itself
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.grant.type",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.extensions",
        "https.ca.location",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
_OF_SECURITY: Final = ("ssl.", "sasl.", "https.", "enable.ssl.", "enable.sasl.")
_RECORDS_PER_POLL: Final = 5_000
"""Ten times Kafka's default. Each poll costs a wait, even if its records were fetched before."""
_FETCH_WAIT_MS: Final = 10
"""At the end of a batch, Spark asks for a position while a fetch waits at the broker for more
records. Kafka's default is 500 ms.
"""
_REQUEST: Final = "request.timeout.ms"
_REQUEST_MS: Final = 15_000
_ANSWER_MS: Final = 20_000
"""Spark cannot stop a query sooner, if Kafka does not answer. Kafka's default is a minute."""
_LOGIN: Final = "org.apache.kafka.common.security"
_LOGIN_MODULES: Final = {
    "PLAIN": f"{_LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_LOGIN}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}
_OAUTH_HANDLER: Final = f"{_LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"
_CERTIFICATES: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL
)
_KEY: Final = re.compile(
    r"-----BEGIN (ENCRYPTED )?PRIVATE KEY-----.+?-----END \1?PRIVATE KEY-----", re.DOTALL
)

_PBES2: Final = bytes.fromhex("06092a864886f70d01050d")
"""The object identifier 1.2.840.113549.1.5.13, in DER."""


def options(kafka: KafkaConfig, read: Read) -> dict[str, str]:
    """Options of Spark's source, with the prefix `kafka.`, for the client settings of the
    configuration.

    TLS and client certificates with PEM files, SASL PLAIN, SCRAM, OAUTHBEARER with client
    credentials, and Kerberos are translated (SEC-1). Settings that only tune a librdkafka client
    are left out. The certificate and the key of the client are read with `read`, and are part of
    the options: executors need no file of them. They do need the file of `ssl.ca.location`.

    Raises:
        ConfigError: A security setting has no translation, a file cannot be read, or it has no
            certificate or no key that Java can read.
    """
    settings = kafka.settings
    translated = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "isolation.level": "read_committed",
        "max.poll.records": str(_RECORDS_PER_POLL),
        "fetch.max.wait.ms": str(_FETCH_WAIT_MS),
        _REQUEST: str(_REQUEST_MS),
    }
    translated |= {name: value for name, value in settings.items() if name in _SAME_IN_JAVA}
    translated["default.api.timeout.ms"] = str(max(_ANSWER_MS, int(translated[_REQUEST])))
    translated |= _login(settings) | _trusted(settings) | _own_certificate(settings, read)
    for name in settings:
        if name.startswith(_OF_SECURITY) and name not in _TRANSLATED | _SAME_IN_JAVA:
            cause = "lowmark translates the settings that the reference names"
            raise kafka_setting_untranslatable(name, cause)
    return {f"kafka.{name}": value for name, value in translated.items()}


def _trusted(settings: Mapping[str, str]) -> dict[str, str]:
    trusted = {}
    if "ssl.ca.location" in settings:
        trusted = {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": settings["ssl.ca.location"],
        }
    elif "ssl.ca.pem" in settings:
        trusted = {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": settings["ssl.ca.pem"],
        }
    if (checked := settings.get("ssl.endpoint.identification.algorithm")) is not None:
        trusted["ssl.endpoint.identification.algorithm"] = "" if checked == "none" else checked
    return trusted


def _own_certificate(settings: Mapping[str, str], read: Read) -> dict[str, str]:
    """The certificate of the client and its key, as text: Java would need one file with both."""
    certificate = _pem(settings, "ssl.certificate", read)
    key = _pem(settings, "ssl.key", read)
    if certificate is None and key is None:
        return {}
    chain = _CERTIFICATES.findall(certificate or "")
    if not chain:
        raise client_certificate_missing(_origin(settings, "ssl.certificate"))
    private_key = _KEY.search(key or "")
    if private_key is None:
        raise client_key_missing(_origin(settings, "ssl.key"))
    if private_key[1] and _is_pbes2(private_key[0]):
        raise client_key_encrypted(_origin(settings, "ssl.key"))
    keystore = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "\n".join(chain),
        "ssl.keystore.key": private_key[0],
    }
    return keystore | {name: settings[name] for name in ("ssl.key.password",) if name in settings}


def _is_pbes2(key: str) -> bool:
    """Whether an encrypted key names the algorithm PBES2. A key that is no base 64 does not."""
    try:
        der = binascii.a2b_base64("".join(key.splitlines()[1:-1]))
    except ValueError:
        return False
    return _PBES2 in der


def _pem(settings: Mapping[str, str], name: str, read: Read) -> str | None:
    if (file := settings.get(f"{name}.location")) is None:
        return settings.get(f"{name}.pem")
    try:
        return read(Path(file))
    except (OSError, ValueError) as error:  # also a path that no file can have
        raise secret_unreadable(f"[kafka] {name}.location", str(error)) from None


def _origin(settings: Mapping[str, str], name: str) -> str:
    return settings.get(f"{name}.location") or f"[kafka] {name}.pem"


def _login(settings: Mapping[str, str]) -> dict[str, str]:
    mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms")
    if not mechanism:
        return {}
    if mechanism not in _LOGIN_MODULES:
        supported = ", ".join(sorted(_LOGIN_MODULES))
        raise kafka_setting_untranslatable(
            f"sasl.mechanism {mechanism!r}", f"lowmark supports {supported}"
        )
    further = {}
    if mechanism == "OAUTHBEARER":
        login = _client_credentials(settings)
        further = {"sasl.login.callback.handler.class": _OAUTH_HANDLER}
    elif mechanism == "GSSAPI":
        login = _kerberos(settings)
    else:
        login = {
            "username": settings.get("sasl.username", ""),
            "password": settings.get("sasl.password", ""),
        }
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": _jaas(_LOGIN_MODULES[mechanism], login),
        **further,
    }


def _client_credentials(settings: Mapping[str, str]) -> dict[str, str]:
    for name, value, default in (
        ("sasl.oauthbearer.method", "oidc", "default"),
        ("sasl.oauthbearer.grant.type", "client_credentials", "client_credentials"),
    ):
        if settings.get(name, default) != value:
            raise kafka_setting_untranslatable(
                name, f"For OAUTHBEARER, lowmark translates client credentials only: {name}={value}"
            )
    login = {}
    for option, name in (("clientId", "client.id"), ("clientSecret", "client.secret")):
        login[option] = settings.get(
            f"sasl.oauthbearer.client.credentials.{name}",
            settings.get(f"sasl.oauthbearer.{name}", ""),
        )
    if scope := settings.get("sasl.oauthbearer.scope"):
        login["scope"] = scope
    for pair in settings.get("sasl.oauthbearer.extensions", "").split(","):
        name, is_pair, value = pair.strip().partition("=")
        if is_pair:
            login[f"extension_{name}"] = value
    if ca := settings.get("https.ca.location"):
        login |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": ca}
    return login


def _kerberos(settings: Mapping[str, str]) -> dict[str, str]:
    if keytab := settings.get("sasl.kerberos.keytab"):
        ticket = {"useKeyTab": "true", "storeKey": "true", "keyTab": keytab}
    else:
        ticket = {"useTicketCache": "true"}
    principal = settings.get("sasl.kerberos.principal")
    return ticket | ({"principal": principal} if principal else {})


def _jaas(module: str, login: Mapping[str, str]) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in login.items()
    }
    return " ".join([module, "required", *(f'{k}="{v}"' for k, v in escaped.items())]) + ";"
