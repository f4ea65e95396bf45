"""Settings, names and arguments."""

from __future__ import annotations

from connector.errors import ConfigError, ConnectorError


def config_missing(file: str) -> ConfigError:
    return ConfigError(
        "CONFIG_MISSING",
        f"There is no file {file}",
        "",
        "Create this file, or give the path of your configuration",
        file=file,
    )


def config_unreadable(file: str, cause: str) -> ConfigError:
    return ConfigError(
        "CONFIG_UNREADABLE",
        f"{file} cannot be read",
        cause,
        "Check that this user can read the file, and that it is UTF-8 text",
        file=file,
    )


def secret_unreadable(variable: str, cause: str) -> ConfigError:
    return ConfigError(
        "SECRET_UNREADABLE",
        f"The file that {variable} names cannot be read",
        cause,
        "Name a text file that this user can read",
    )


def config_not_toml(file: str, cause: str) -> ConfigError:
    return ConfigError(
        "CONFIG_NOT_TOML",
        f"{file} is not a TOML document of settings",
        cause,
        "Correct the file: text needs quotes, the name of a section needs brackets, a number has at"
        " most 19 digits, and no setting has more than four levels",
        file=file,
    )


def warehouse_unusable(warehouse: str, cause: str) -> ConfigError:
    return ConfigError(
        "WAREHOUSE_UNUSABLE",
        f"The warehouse {warehouse} is not a folder that can be used",
        cause,
        "Set warehouse to a folder to which this user can write, or to a path where one can be"
        " created",
        path=warehouse,
    )


def extra_jar_missing(jar: str) -> ConfigError:
    return ConfigError(
        "SETTING_INVALID",
        f"spark.extra_jars has {jar}",
        "There is no such file",
        "Correct the path, or remove it",
    )


def record_limit_above_topic(setting: str, limit: int, topic: str, allowed: int) -> ConfigError:
    return ConfigError(
        "SETTING_INVALID",
        f"{setting} is {limit}",
        f"It must not be above the limit of the topic: max.message.bytes of {topic} is {allowed}",
        f"Write max_record_bytes = {allowed}, or raise max.message.bytes of the topic",
    )


def no_streams() -> ConfigError:
    return ConfigError(
        "SETTING_MISSING",
        "No stream is configured",
        "",
        'Add a section such as [streams.orders] with topic = "orders"',
    )


def stream_partition_unknown(stream: str, name: str, cause: str, remedy: str) -> ConfigError:
    return ConfigError(
        "STREAM_PARTITION_UNKNOWN",
        f'Stream {stream} has no active stream partition "{name}"',
        cause,
        remedy,
        stream=stream,
    )


def transaction_unknown(stream: str, transaction: str, remedy: str) -> ConfigError:
    return ConfigError(
        "TRANSACTION_UNKNOWN",
        f'Stream {stream} has no incomplete transaction "{transaction}"',
        "It is complete, or its id or its commit timestamp is another one",
        remedy,
        stream=stream,
    )


def transaction_ambiguous(stream: str, transaction: str, times: str) -> ConfigError:
    return ConfigError(
        "TRANSACTION_UNKNOWN",
        f'Stream {stream} has several incomplete transactions "{transaction}"',
        f"They are of these times: {times}",
        "Name the commit timestamp of one of them, too",
        stream=stream,
    )


def extra_missing(package: str, extra: str) -> ConnectorError:
    return ConnectorError(
        "EXTRA_MISSING",
        f"The package {package} is not installed",
        "",
        f"Install it: pip install 'lowmark[{extra}]'",
    )


def system_error(cause: str) -> ConnectorError:
    return ConnectorError(
        "SYSTEM_ERROR",
        f"The operating system refused an operation: {cause}",
        "",
        "Check the free space on the disk and the rights of this user",
    )
