"""`connector serve`: the web console (WEB-1)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from connector.cli.parameters import config_of, stop_on_signals
from connector.cli.terminal import err
from connector.console.app import console_app
from connector.console.latest import Latest
from connector.console.pages import Pages
from connector.console.server import PORT, Address, read_token, serving
from connector.services.status import status

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="An address of this machine.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535))
@click.option("--tls-certificate", type=_FILE, help="A PEM file. Needed beyond this machine.")
@click.option("--tls-key", type=_FILE, help="A PEM file.")
@click.option(
    "--token-file",
    type=_FILE,
    help="A file with the password in its first line. Needed beyond this machine.",
)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    host: str,
    port: int,
    tls_certificate: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
) -> None:
    """Show streams, tables, dead letters and rows in a browser. The console changes nothing: it
    shows the command to copy.

    Beyond this machine it needs TLS files and a token. The browser asks for a user, which may be
    any, and a password, which is the token. SIGTERM or Ctrl-C stops the command.
    """
    token = "" if token_file is None else read_token(token_file)
    address = Address(host, port, tls_certificate, tls_key, token)
    read_config = partial(config_of, ctx)
    read_config()  # an error in it ends the command
    stop = stop_on_signals()
    latest = Latest(lambda: status(read_config()))
    app = console_app(Pages(read_config, latest.report), token, is_local=address.is_loopback)
    with latest.reading(), serving(app, address) as bound:
        err(f"the console is at {address.url(bound)}; stop with Ctrl-C")
        stop.wait()
