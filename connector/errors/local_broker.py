"""The local broker."""

from __future__ import annotations

from pathlib import Path

from connector.errors import BrokerError


def broker_folder_in_use(folder: Path, cause: str) -> BrokerError:
    return BrokerError(
        "BROKER_FOLDER_IN_USE",
        f"A running broker uses the folder {folder}",
        cause,
        "Use this broker with its port, stop it first, or choose another folder",
        folder=folder,
    )


def broker_folder_unusable(folder: Path, cause: str) -> BrokerError:
    return BrokerError(
        "BROKER_FOLDER_UNUSABLE",
        f"The folder {folder} cannot be that of a broker",
        cause,
        "Choose a new or an empty folder that you can write to, without a comma in its name",
    )


def broker_folder_damaged(folder: Path, cause: str) -> BrokerError:
    return BrokerError(
        "BROKER_FOLDER_DAMAGED",
        f"The broker folder {folder} is damaged",
        cause,
        "Delete the folder, with all topics in it",
    )


def broker_not_started(folder: Path, problem: str, output: str) -> BrokerError:
    return BrokerError(
        "BROKER_NOT_STARTED",
        f"The broker of {folder} {problem}",
        output,
        "Read the log. If an interrupted start damaged the folder, delete it, with all topics in"
        " it",
        folder=folder,
    )


def broker_not_stopping(folder: Path, process: str) -> BrokerError:
    return BrokerError(
        "BROKER_NOT_STOPPING",
        f"The broker of {folder} does not stop",
        f"Process {process} still runs after SIGKILL",
        "Look at the state of the process, for example with ps",
        folder=folder,
    )


def port_in_use(port: str, host: str) -> BrokerError:
    return BrokerError(
        "PORT_IN_USE",
        f"Port {port} of {host} is in use",
        "Another process listens on it",
        "Stop that process, choose another port, or leave out the port",
        port=port,
    )
