"""Java, jars and Spark."""

from __future__ import annotations

from connector.errors import ConnectorError


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
