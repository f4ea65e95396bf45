"""The proxy breaks the network as the faults need it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.proxy import HOST, Proxy


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """In front of a server that says everything again."""
    server = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(
                target=lambda client=client: [
                    client.sendall(said) for said in iter(lambda: client.recv(99), b"")
                ]
            ).start()

    threading.Thread(target=serve, daemon=True).start()
    with Proxy(server.getsockname()[1]) as between:
        yield between
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def ask(client: socket.socket) -> bytes:
    client.sendall(b"hello")
    return client.recv(99)


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=10)


def is_gone(client: socket.socket) -> bool:
    try:
        return ask(client) == b""
    except ConnectionError:
        return True


def is_refused(proxy: Proxy) -> bool:
    try:
        with connect(proxy) as client:
            return is_gone(client)
    except ConnectionError:
        return True


def test_a_network_delays_cuts_refuses_and_carries_again(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert ask(client) == b"hello"
        proxy.delay_s, began = 0.1, time.monotonic()
        assert ask(client) == b"hello"
        assert time.monotonic() - began >= 0.2
        proxy.delay_s = 0
        assert proxy.cut() == 2
        assert is_gone(client)
    proxy.refuses = True
    assert is_refused(proxy)
    proxy.refuses = False
    with connect(proxy) as client:
        assert ask(client) == b"hello"
