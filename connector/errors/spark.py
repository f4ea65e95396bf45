"""Java, jars and Spark."""

from __future__ import annotations

from connector.errors import ConnectorError, TableError


def session_ended(
    problem: str,
    cause: str = "The session was stopped, or its Java process has ended, for example because its"
    " heap was too small, or the machine had no memory left",
) -> ConnectorError:
    return ConnectorError(
        "SPARK_SESSION_ENDED",
        problem,
        cause,
        "Start a new session and call again, with a larger heap (driver_memory in [spark]) if it"
        " was too small. Nothing is lost: lowmark continues where it stopped",
    )


def spark_without_executors(what: str) -> ConnectorError:
    return ConnectorError(
        "SPARK_WITHOUT_EXECUTORS",
        f"Spark has no executor for {what}",
        "All workers are down, other applications use all cores, or the master of the cluster was"
        " started again without its state",
        "Look at the page of the master, then start again. Nothing is lost: lowmark continues where"
        " it stopped",
    )


def spark_without_jars(names: str, paths: str) -> ConnectorError:
    return ConnectorError(
        "SPARK_JARS_MISSING",
        f"Spark runs without the jars of {names}",
        "Spark loads jars only when it starts, and it was started before lowmark, for example by"
        " spark-submit",
        f"Start Spark with these jars, beside those that it has (`spark.jars`): {paths}",
    )


def executors_without_jars(names: str) -> ConnectorError:
    return ConnectorError(
        "SPARK_JARS_MISSING",
        f"Executors lack the jars of {names}",
        "Spark was not told to send them to the executors. The driver may have them on its class"
        " path",
        "Name the jars in `spark.jars`, or put them on the class path of the executors",
    )


def executors_without_package(cause: str) -> ConnectorError:
    return ConnectorError(
        "EXECUTORS_WITHOUT_PACKAGE",
        "The executors cannot run the tasks of lowmark",
        cause,
        "Install lowmark on the hosts of the executors, in the same version and for the same minor"
        " version of Python as here, and name that Python in `spark.pyspark.python`. Or pack this"
        " environment, and send it with `spark.archives`",
    )


def spark_setting_missing(problem: str, cause: str, setting: str) -> ConnectorError:
    return ConnectorError(
        "SPARK_SETTING_MISSING",
        problem,
        cause,
        f"Start Spark with {setting}, or build the session with connector.spark.configure_session",
    )


def ingest_failed(stream: str, cause: str) -> ConnectorError:
    return ConnectorError(
        "SPARK_FAILED",
        f"Ingest of stream {stream} stopped",
        cause,
        "Remove the cause and start ingest again. Nothing is lost: ingest continues where it"
        " stopped",
        stream=stream,
    )


def apply_failed(table: str, cause: str) -> TableError:
    return TableError(
        "SPARK_FAILED",
        f"Changes could not be applied to table {table}",
        cause,
        "Nothing is lost: the table is at its last apply. If the definition of the table does not"
        " explain the cause, report the error",
        table=table,
    )


def deltalake_missing(cause: str) -> TableError:
    return TableError(
        "EXTRA_MISSING",
        "lowmark cannot read tables without the package deltalake",
        cause,
        "Install the package: pip install 'lowmark[lake]'",
    )


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


def java_unusable(problem: str, cause: str) -> ConnectorError:
    return ConnectorError(
        "JAVA_UNUSABLE", problem, cause, "Install Java 17 or 21, or set JAVA_HOME to its folder"
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
        "Make it writable and free 100 MB there, or set XDG_CACHE_HOME to another folder",
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
