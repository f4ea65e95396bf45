"""Client settings for Spark's Kafka source, translated from librdkafka's names to those of Kafka's
Java client (OPS-7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from connector.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig

_SAME_IN_JAVA: Final = frozenset(
    {
        "security.protocol",
        "request.timeout.ms",
        "metadata.max.age.ms",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "retry.backoff.ms",
    }
)
_TRANSLATED: Final = frozenset(
    {"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "ssl.ca.location"}
)
_RECORDS_PER_POLL: Final = 5_000
"""Ten times Kafka's default. Each poll costs a wait, even if its records were fetched before."""
_FETCH_WAIT_MS: Final = 10
"""At the end of a batch, Spark asks for a position while a fetch waits at the broker for more
records. Kafka's default is 500 ms.
"""
_PLAIN_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


def options(kafka: KafkaConfig) -> dict[str, str]:
    """Options of Spark's source, with the prefix `kafka.`, for the client settings of the
    configuration.

    TLS with PEM files, SASL PLAIN and SCRAM are translated (OPS-7). Settings that only tune a
    librdkafka client are left out. Raises `ConfigError` for a security setting without a
    translation.
    """
    settings = kafka.settings
    translated = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "isolation.level": "read_committed",
        "max.poll.records": str(_RECORDS_PER_POLL),
        "fetch.max.wait.ms": str(_FETCH_WAIT_MS),
    }
    translated |= {name: value for name, value in settings.items() if name in _SAME_IN_JAVA}
    mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms")
    if mechanism:
        translated["sasl.mechanism"] = mechanism
        translated["sasl.jaas.config"] = _jaas(
            mechanism, settings.get("sasl.username", ""), settings.get("sasl.password", "")
        )
    if "ssl.ca.location" in settings:
        translated |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": settings["ssl.ca.location"],
        }
    for name in settings:
        if name.startswith(("ssl.", "sasl.")) and name not in _TRANSLATED:
            raise ConfigError(
                ErrorCode.SETTING_WITHOUT_JAVA_FORM,
                f"Spark's Kafka client has no setting for [kafka] {name}",
                "lowmark translates only SASL PLAIN, SASL SCRAM and ssl.ca.location for Java"
                " clients",
                f"Remove {name}, or secure the connection with one of these",
            )
    return {f"kafka.{name}": value for name, value in translated.items()}


def _jaas(mechanism: str, user: str, password: str) -> str:
    login = {
        "PLAIN": _PLAIN_LOGIN,
        "SCRAM-SHA-256": _SCRAM_LOGIN,
        "SCRAM-SHA-512": _SCRAM_LOGIN,
    }.get(mechanism)
    if login is None:
        raise ConfigError(
            ErrorCode.SASL_MECHANISM_UNSUPPORTED,
            f"[kafka] sasl.mechanism is {mechanism!r}",
            "lowmark supports PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512",
            "Use one of these mechanisms",
        )
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in (user, password)]
    return f'{login} required username="{quoted[0]}" password="{quoted[1]}";'
