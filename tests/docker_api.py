"""The endpoints of a Docker engine that start and remove one container, over real HTTP. A program
of this machine does the work of the container (INS-3).

The answers have the forms of Docker's API 1.50, as far as its Python client reads them.
"""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VERSION = {"Version": "28.2.2", "ApiVersion": "1.50", "MinAPIVersion": "1.24"}
ID = "c0ffee" * 10


@dataclass
class DockerApi:
    """An engine without any image.

    - `run` starts the work of the container, with the request that created it.
    - `log` returns what the container has written, and `is_running` whether it still runs.
    - `requests` has the methods and paths, `created` what was asked for, and `url` is the address.
    """

    run: Callable[[dict[str, Any]], None]
    log: Callable[[], bytes]
    is_running: Callable[[], bool] = lambda: True
    requests: list[str] = field(default_factory=list)
    created: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    _has_image: bool = False

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        path = re.sub(r"^/v[0-9.]+", "", path)
        self.requests.append(f"{method} {path.partition('?')[0]}")
        status, content = self._answer(method, *path.partition("?")[::2], body)
        return status, content if isinstance(content, bytes) else json.dumps(content).encode()

    def _answer(self, method: str, path: str, query: str, body: bytes) -> tuple[int, Any]:
        match method, path.split("/")[1:]:
            case "GET", ["version"]:
                return 200, VERSION
            case "GET", ["images", *name, "json"]:
                missing = {"message": f"No such image: {'/'.join(name)}"}
                return (200, {"Id": "sha256:1"}) if self._has_image else (404, missing)
            case "POST", ["images", "create"]:
                self._has_image = True
                return 200, {"status": "Download complete"}
            case "POST", ["containers", "create"]:
                self.created = json.loads(body)
                return 201, {"Id": ID, "Warnings": []}
            case "POST", ["containers", _, "start"]:
                self.run(self.created)
                return 204, b""
            case "GET", ["containers", _, "json"]:
                state = {"Status": "running" if self.is_running() else "exited", "ExitCode": 1}
                return 200, {"Id": ID, "State": state, "Config": {"Tty": False}}
            case "GET", ["containers", _, "logs"]:
                log = self.log() if "stdout=1" in query else b""
                return 200, struct.pack(">BxxxL", 1, len(log)) + log if log else b""
            case "DELETE", ["containers", _]:
                return 204, b""
        return 404, {"message": "page not found"}


@contextmanager
def docker_api(
    run: Callable[[dict[str, Any]], None],
    log: Callable[[], bytes],
    is_running: Callable[[], bool] = lambda: True,
) -> Iterator[DockerApi]:
    """Serve an engine until the end of the block."""
    api = DockerApi(run, log, is_running)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            status, content = api.answer(self.command, self.path, self.rfile.read(length))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_DELETE = do_GET  # noqa: N815 - the names of http.server

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    api.url = f"tcp://127.0.0.1:{server.server_port}"
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
