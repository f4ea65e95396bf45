"""Settings, names and arguments."""

from __future__ import annotations

from connector.errors import ConfigError, ConnectorError


def setting_invalid(setting: str, value: str, allowed: str, remedy: str) -> ConfigError:
    return ConfigError("SETTING_INVALID", f"{setting} is {value}", f"allowed: {allowed}", remedy)


def setting_missing(setting: str, allowed: str, remedy: str) -> ConfigError:
    return ConfigError(
        "SETTING_MISSING", f"{setting} is not set", f"It is required: {allowed}", remedy
    )


def source_missing(stream: str) -> ConfigError:
    section = f"streams.{stream}.source"
    return setting_missing(
        f"The section [{section}]",
        "the topics of another program that a bridge publishes",
        f"Add [{section}] with format and topics",
    )


def setting_unknown(setting: str, remedy: str) -> ConfigError:
    return ConfigError("SETTING_UNKNOWN", f"{setting} is not known", "", remedy)


def settings_invalid(count: int, errors: str) -> ConfigError:
    return ConfigError(
        "SETTINGS_INVALID",
        f"{count} settings are wrong:\n{errors}",
        "",
        "Correct all of them. Nothing was started",
    )


def kafka_setting_untranslatable(setting: str, cause: str) -> ConfigError:
    return ConfigError(
        "KAFKA_SETTING_INVALID",
        f"Spark's Kafka client has no setting for [kafka] {setting}",
        cause,
        f"Remove {setting}, or secure the connection in another way",
    )


def client_certificate_missing(origin: str) -> ConfigError:
    return ConfigError(
        "CLIENT_CERTIFICATE_UNUSABLE",
        f"{origin} has no certificate of the client",
        "Spark's Kafka client needs a certificate and its key, as PEM text",
        "Set ssl.certificate.location to a file with BEGIN CERTIFICATE, and ssl.key.location to one"
        " with its key",
    )


def client_key_missing(origin: str) -> ConfigError:
    return ConfigError(
        "CLIENT_CERTIFICATE_UNUSABLE",
        f"{origin} has no key that Java can read",
        "Spark's Kafka client needs a PEM key in the form PKCS #8. It begins with BEGIN PRIVATE KEY"
        " or BEGIN ENCRYPTED PRIVATE KEY",
        "Convert it, for example with openssl pkcs8 -topk8, and name the result",
    )


def client_key_encrypted(origin: str) -> ConfigError:
    return ConfigError(
        "CLIENT_CERTIFICATE_UNUSABLE",
        f"{origin} has a key that Java cannot decrypt",
        "It is encrypted with PBES2, which Kafka's Java client does not know",
        "Store the key without a password, readable by this user only, or encrypt it with openssl"
        " pkcs8 -topk8 -v1 PBE-SHA1-3DES",
    )


def secret_unreadable(setting: str, cause: str) -> ConfigError:
    return ConfigError(
        "SECRET_UNREADABLE",
        f"The file that {setting} names cannot be read",
        cause,
        "Name a text file that this user can read",
    )


def name_invalid(what: str, name: str, allowed: str) -> ConfigError:
    return ConfigError(
        "NAME_INVALID",
        f"{what} has the name {name!r}",
        f"allowed: {allowed}",
        "Choose another name",
    )


def stream_unknown(stream: str | None, streams: str, remedy: str) -> ConfigError:
    return ConfigError(
        "STREAM_UNKNOWN",
        "No stream is named" if stream is None else f'There is no stream "{stream}"',
        f"The configuration has {streams}",
        remedy,
        stream=stream,
    )


def table_configured(table: str) -> ConfigError:
    return ConfigError(
        "TABLE_CONFIGURED",
        f"Table {table} cannot be dropped",
        "The configuration has it, so a pipeline would make it again",
        f"Remove the section [tables.{table}], and restart the pipeline. Then drop the table",
        table=table,
    )


def table_unknown(table: str, tables: str, remedy: str) -> ConfigError:
    return ConfigError(
        "TABLE_UNKNOWN",
        f'There is no table "{table}"',
        f"The configuration has {tables}",
        remedy,
        table=table,
    )


def warehouse_unusable(warehouse: str, cause: str) -> ConfigError:
    return ConfigError(
        "WAREHOUSE_UNUSABLE",
        f"The warehouse {warehouse} cannot be used",
        cause,
        "Set warehouse to a folder to which this user can write or that can be created, or to a URI"
        " such as s3a://bucket/prefix. A relative path begins in the folder of the configuration"
        " file",
        path=warehouse,
    )


def warehouse_not_shared(warehouse: str, master: str) -> ConfigError:
    return ConfigError(
        "WAREHOUSE_UNUSABLE",
        f"The warehouse {warehouse} is a local folder, but the executors of {master} may be on"
        " other hosts",
        "Each host would write its part of the files to its own folder",
        "Use a warehouse that all hosts reach by the same URI. If all hosts see the same folder at"
        " this path, set shared_folder = true in [storage]",
    )


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
        f"{file} cannot be read as a TOML document of settings",
        cause,
        "Check that this user can read the file, and that it is UTF-8 text. Text needs quotes, the"
        " name of a section needs brackets, a number has at most 19 digits, no setting has more"
        " than four levels, and none is given twice. Tables of two streams need two names, and can"
        " have one source",
        file=file,
    )


def reload_refused(setting: str, what: str = "was changed") -> ConfigError:
    return ConfigError(
        "RELOAD_REFUSED",
        f"The setting {setting} {what}, and the pipeline runs with the old configuration",
        "A running pipeline takes new tables of its streams, new columns, bounds and paces",
        "Undo this change, or restart the pipeline",
        setting=setting,
    )


def stream_partition_unknown(stream: str, name: str, cause: str, remedy: str) -> ConfigError:
    return ConfigError(
        "STREAM_PARTITION_UNKNOWN",
        f'Stream {stream} has no active stream partition "{name}"',
        cause,
        remedy,
        stream=stream,
    )


def transaction_unknown(stream: str, transaction: str, cause: str, remedy: str) -> ConfigError:
    return ConfigError(
        "TRANSACTION_UNKNOWN",
        f'Stream {stream} has no such incomplete transaction "{transaction}"',
        cause,
        remedy,
        stream=stream,
    )


def nothing_lost(stream: str) -> ConfigError:
    return ConfigError(
        "NOTHING_LOST",
        f"No record of stream {stream} is lost: Kafka has all that ingest has not read",
        "",
        "Start ingest",
        stream=stream,
    )


def nothing_to_confirm(table: str) -> ConfigError:
    return ConfigError(
        "NOTHING_LOST",
        f"Table {table} has no unconfirmed loss",
        "Ingest has passed no lost records of its stream since it was last confirmed",
        "Accept the loss first, and start ingest, if records are lost",
        table=table,
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


def functions_not_distinct(stream: str, other: str) -> ConfigError:
    return ConfigError(
        "NAME_INVALID",
        f"Streams {other} and {stream} would have the same SQL function",
        "SQL does not distinguish upper and lower case",
        "Keep the streams in two warehouses, or read them with read_changes",
    )
