"""The address of the console: loopback, or another one with TLS and a token (WEB-1)."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from connector.errors import argument_invalid
from connector.errors.settings import secret_unreadable

if TYPE_CHECKING:
    from starlette.types import ASGIApp

PORT: Final = 8420
TOKEN_LENGTH: Final = 20
REQUEST_S: Final = 10.0


def is_loopback(host: str) -> bool:
    """Whether a host is an address that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the console listens. `certificate` and `key` are PEM files for TLS; `token` is the
    password. All three are needed for a host that is not a loopback address.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    certificate: Path | None = None
    key: Path | None = None
    token: str = ""

    def __post_init__(self) -> None:
        """Raise `ConfigError` if something is missing."""
        if (self.certificate is None) != (self.key is None):
            raise argument_invalid("tls", "one file", "a certificate and its key")
        if not self.is_loopback and (self.key is None or not self.token):
            allowed = "a loopback address such as 127.0.0.1, or TLS files and a token with it"
            raise argument_invalid("host", self.host, allowed)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    def url(self, port: int) -> str:
        """The address for a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.key else ''}://{host}:{port}/"


class _Patience(H11Protocol):
    """Closes a connection that keeps its place without a whole request: there are few places."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to look at it."""
        super().connection_made(transport)
        self.loop.call_later(REQUEST_S, self._look)

    def _look(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        if not self.transport.is_closing():
            self.loop.call_later(REQUEST_S, self._look)


def read_token(file: Path) -> str:
    """Return the first line of a file. Raises `ConfigError` if it is too short to be a token."""
    try:
        token = file.read_text("ascii").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise secret_unreadable("the token file", str(error)) from None
    if len(token) < TOKEN_LENGTH:
        allowed = f"a file with at least {TOKEN_LENGTH} random characters in its first line"
        raise argument_invalid("token-file", str(file), allowed)
    return token


@contextmanager
def serving(app: ASGIApp, address: Address) -> Iterator[int]:
    """Serve an application during the block, which receives the port.

    Raises `ConfigError` if the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address.host, address.port))
        config = uvicorn.Config(
            app,
            http=_Patience,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=64,
            timeout_graceful_shutdown=2,
        )
        config.load()
    except OSError as error:
        listener.close()
        why = error.strerror or error
        allowed = f"an address of this machine with a free port, and PEM files ({why})"
        raise argument_invalid("address", f"{address.host}:{address.port}", allowed) from error
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="console", daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
