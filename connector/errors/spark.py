"""Java, jars and Spark."""

from __future__ import annotations

from typing import Final

from connector.errors import ConnectorError

_JAVA: Final = "Install Java 17 or 21, or set JAVA_HOME to its folder"


def spark_master_unreachable(master: str, cause: str) -> ConnectorError:
    return ConnectorError(
        "SPARK_MASTER_UNREACHABLE",
        f"No Spark master answers at {master}",
        cause,
        "Start the master, or correct master in [spark]",
    )


def spark_session_exists() -> ConnectorError:
    return ConnectorError(
        "SPARK_SESSION_EXISTS",
        "A local Spark session cannot start",
        "This process already has a Spark session. It is yours, or that of another call of lowmark"
        " that has not ended",
        "Give your session to each call as `spark`, or stop it. Build a session that several calls"
        " can use with connector.spark.configure_session",
    )


def java_missing() -> ConnectorError:
    return ConnectorError(
        "JAVA_UNUSABLE",
        "No Java was found",
        "Neither JAVA_HOME nor PATH has a Java program",
        _JAVA,
    )


def java_unusable(java: str, cause: str) -> ConnectorError:
    return ConnectorError("JAVA_UNUSABLE", f"{java} does not report its version", cause, _JAVA)


def java_too_old(java: str, version: str, oldest: int) -> ConnectorError:
    return ConnectorError(
        "JAVA_UNUSABLE",
        f"Java {version} at {java} is too old",
        f"Kafka and Spark need Java {oldest} or newer",
        _JAVA,
    )


def ivy_missing(cause: str) -> ConnectorError:
    return ConnectorError(
        "EXTRA_MISSING",
        "Jars cannot be fetched: there is no pyspark with Ivy",
        cause,
        "Install it: pip install 'lowmark[spark]'",
    )


def jar_different(jar: str, received: str, locked: str) -> ConnectorError:
    return ConnectorError(
        "JAR_DIFFERENT",
        f"The fetched jar {jar} differs from the lock file and was deleted",
        f"It has {received}. The lock file has {locked}",
        "Try again. If the error stays, a mirror or proxy replaces files: ask its operator",
    )


def jar_folder_unusable(folder: str, cause: str) -> ConnectorError:
    return ConnectorError(
        "JAR_FOLDER_UNUSABLE",
        f"The jar folder {folder} cannot be used",
        cause,
        "Make it writable, or set XDG_CACHE_HOME to another folder",
        folder=folder,
    )


def jar_folder_full(folder: str) -> ConnectorError:
    return ConnectorError(
        "JAR_FOLDER_UNUSABLE",
        "The disk is full: jars cannot be stored",
        f"There is no space left at {folder}",
        "Free 100 MB, or set XDG_CACHE_HOME to a folder on another disk",
        folder=folder,
    )


def jars_missing(jars: str, cause: str) -> ConnectorError:
    return ConnectorError(
        "JAR_MISSING",
        f"Jars could not be fetched: {jars}",
        cause,
        "Check the network, and that the repository has these versions, or set"
        " CONNECTOR_IVY_SETTINGS to an Ivy settings file with a mirror",
    )


def ivy_settings_missing(file: str) -> ConnectorError:
    return ConnectorError(
        "JAR_MISSING",
        f"The Ivy settings file {file} does not exist",
        "",
        "Correct or unset CONNECTOR_IVY_SETTINGS",
    )
