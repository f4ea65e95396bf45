"""Load a configuration from a file and the environment (OPS-1)."""

from __future__ import annotations

import getpass
import os
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from connector.config.parse import parse
from connector.config.settings import ConnectorConfig
from connector.config.settings_reader import ENVIRONMENT_PREFIX
from connector.errors.settings import (
    config_missing,
    config_unreadable,
    secret_unreadable,
    warehouse_unusable,
)
from connector.services.source_tables import followed
from connector.text import truncate_utf8

DEFAULT_FILE: Final = "connector.toml"
FILE_SUFFIX: Final = "_FILE"
"""`CONNECTOR__KAFKA__SASL_PASSWORD_FILE` names a file that holds the value of
`CONNECTOR__KAFKA__SASL_PASSWORD`: a secret (OPS-7).
"""
_TOO_DEEP: Final = "Its lists or sections are nested too deeply"


def load_config(
    path: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    source_tables: bool = True,
) -> ConnectorConfig:
    """Load the configuration of a file, with environment variables over it.

    For example: `config = load_config("connector.toml")`.

    Args:
        path: The file. None: `connector.toml` in the current folder, or the environment alone where
            that file does not exist.
        environment: Variables such as `CONNECTOR__KAFKA__BOOTSTRAP_SERVERS`. None: those of this
            process.
        source_tables: With the tables that follow from a source, which are read from the warehouse
            (SRC-5).

    Returns:
        The configuration. A relative `warehouse` is taken from the folder of the file.

    Raises:
        ConfigError: The file cannot be read, or a setting is wrong. It names every fault, not only
            the first.
        TableError: The tables that follow from a source cannot be read.
    """
    config_file = None if path is None else Path(path)
    environment = os.environ if environment is None else environment
    given = _with_files(environment)
    file = config_file or Path(DEFAULT_FILE)
    if (
        config_file is None
        and not file.exists()
        and any(name.startswith(ENVIRONMENT_PREFIX) for name in given)
    ):
        document: dict[str, object] = {}
    else:
        document = _document(file)
    try:
        config = parse(document, given)
    except RecursionError:
        raise config_unreadable(str(file), _TOO_DEEP) from None
    config = replace(config, warehouse=_absolute(config.warehouse, file.parent))
    return followed(config) if source_tables else config


def who() -> str:
    """Who calls, as far as the system knows: user and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return truncate_utf8(f"{user}@{socket.gethostname()}")


def _document(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise config_missing(str(file)) from None
    except RecursionError:
        raise config_unreadable(str(file), _TOO_DEEP) from None
    # Also a path that no file can have, and a number with thousands of digits.
    except (OSError, ValueError) as error:
        raise config_unreadable(str(file), str(error)) from None


def _with_files(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, with the contents of the files that variables name."""
    given = dict(environment)
    for variable, name in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable.endswith(FILE_SUFFIX):
            try:
                given[variable.removesuffix(FILE_SUFFIX)] = (
                    Path(name).read_text(encoding="utf-8-sig").rstrip("\r\n")
                )
            except (OSError, ValueError) as error:  # also a path that no file can have
                raise secret_unreadable(variable, str(error)) from None
            del given[variable]
    return given


def _absolute(warehouse: str, folder: Path) -> str:
    if "://" in warehouse:
        return warehouse
    try:
        return str((folder / Path(warehouse).expanduser()).resolve())
    # A home folder of a user who does not exist, or links that lead to each other.
    except (OSError, RuntimeError, ValueError) as error:
        raise warehouse_unusable(warehouse, str(error)) from None
