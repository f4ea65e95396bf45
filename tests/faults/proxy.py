"""A proxy between clients and a broker, with which a test simulates the network: it delays, cuts
and refuses connections.

The broker advertises the proxy's address, so every client connects through it.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
_CHUNK_BYTES = 65_536
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Passes bytes between clients at `port` and the server at `target`. A context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.delay_s = 0.0
        """The delay of every chunk of bytes."""
        self.refuses = False
        """Whether a new connection is closed at once."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> int:
        """Reset every connection, with the bytes in flight. Returns how many ends there were."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            _reset(end)
        return len(ends)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuses = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self._target), timeout=5)
            except OSError:
                _reset(client)
                continue
            if self.refuses:
                _reset(client)
                _reset(server)
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                if self.delay_s:
                    time.sleep(self.delay_s)
                sink.sendall(chunk)
        # One direction has ended, or was cut. Kafka cannot use the other direction alone.
        with self._lock:
            self._open -= {source, sink}
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _reset(end: socket.socket) -> None:
    """Close the connection with a reset, as if the network had failed."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
