"""From files and environment to a `ConnectorConfig` (OPS-1)."""

from __future__ import annotations

import getpass
import os
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connector.config.settings import ConnectorConfig, StreamConfig, parse
from connector.config.settings_reader import ENVIRONMENT_PREFIX
from connector.errors import ConfigError
from connector.tables.definition import TableDefinition
from connector.text import nearest, one_of

if TYPE_CHECKING:
    import click

DEFAULT_FILE: Final = "connector.toml"
FILE_SUFFIX: Final = "_FILE"
"""`CONNECTOR__KAFKA__SASL_PASSWORD_FILE` names a file that holds the value of `CONNECTOR__KAFKA__SASL_PASSWORD`: a secret (OPS-7)."""


def load(ctx: click.Context) -> ConnectorConfig:
    """The configuration that this call is for: `--config FILE`, else connector.toml here, environment variables over it."""
    assert ctx.find_root().obj is None or isinstance(ctx.find_root().obj, Path)
    return load_file(ctx.find_root().obj, os.environ)


def load_file(config_file: Path | None, environment: Mapping[str, str]) -> ConnectorConfig:
    """The configuration of a file, or of connector.toml in this folder. A relative warehouse lies beside the file.

    The environment alone will do where nobody names a file and there is none here. Raises `ConfigError`.
    """
    given = _with_files(environment)
    file = config_file or Path(DEFAULT_FILE)
    if config_file is None and not file.exists() and any(name.startswith(ENVIRONMENT_PREFIX) for name in given):
        document: dict[str, object] = {}
    else:
        document = _document(file)
    config = parse(document, given)
    return replace(config, warehouse=_absolute(config.warehouse, file.parent))


def stream(config: ConnectorConfig, name: str | None) -> StreamConfig:
    """The stream of that name, or whose topic has it; without a name the only one there is. Raises `ConfigError`."""
    if name is None:
        if len(config.streams) == 1:
            return next(iter(config.streams.values()))
        raise ConfigError(
            "no stream was named", f"the configuration has {len(config.streams)}: {one_of(config.streams)}", "name one with --stream"
        )
    if (found := config.streams.get(name) or next((of for of in config.streams.values() if of.topic == name), None)) is not None:
        return found
    remedy = nearest(name, config.streams) or f"add a section [streams.{name}] to the configuration"
    raise ConfigError(f'there is no stream "{name}"', f"the configuration has {one_of(config.streams)}", remedy)


def table(config: ConnectorConfig, name: str) -> TableDefinition:
    """The table of that name. Raises `ConfigError`."""
    if (found := config.tables.get(name)) is not None:
        return found
    remedy = nearest(name, config.tables) or f"add a section [tables.{name}] to the configuration"
    raise ConfigError(f'there is no table "{name}"', f"the configuration has {one_of(config.tables)}", remedy)


def who() -> str:
    """Who calls, as far as the system knows: user and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _document(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {file}", "", "name the configuration with --config FILE, before the command") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{file} is not a TOML document", str(error), "mend that place; text needs quotes, a section [brackets]"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read", str(error), "check its permissions, and that it is UTF-8 text") from None


def _with_files(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with each of our variables that names a file replaced by what stands in it, without the last line end."""
    given = dict(environment)
    for variable, name in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable.endswith(FILE_SUFFIX):
            try:
                given[variable.removesuffix(FILE_SUFFIX)] = Path(name).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"the file that {variable} names cannot be read", str(error), "name a text file that this user may read"
                ) from None
            del given[variable]
    return given


def _absolute(warehouse: str, folder: Path) -> str:
    return warehouse if "://" in warehouse else str((folder / Path(warehouse).expanduser()).resolve())
