"""An HTTP proxy between clients and an object store: it counts requests (STO-5), and delays,
refuses and cuts them (STO-6).

It passes requests on unchanged, so their signatures stay valid. It is a process of its own, because
deltalake lets no other thread of Python run while it waits for an answer.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, BinaryIO, Self

HOST = "127.0.0.1"
_RESET = struct.pack("ii", 1, 0)
_SUCCESS = b'HTTP/1.1 200 OK\r\nETag: "0"\r\nContent-Length: 0\r\n\r\n'
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Fault(StrEnum):
    """What happens to a request.

    - CUT: its connection is reset before the store has it.
    - CUT_ANSWER: the store has done it, and its connection is reset before the answer.
    - SLOW_DOWN, FAILED, SKEWED: it is refused with the error 503, 500, or that of a wrong clock.
    """

    NONE = "NONE"
    DELAY = "DELAY"
    CUT = "CUT"
    CUT_ANSWER = "CUT_ANSWER"
    SLOW_DOWN = "SLOW_DOWN"
    FAILED = "FAILED"
    SKEWED = "SKEWED"


_ANSWERS = {
    Fault.SLOW_DOWN: (503, "Slow Down", "SlowDown", "Please reduce your request rate."),
    Fault.FAILED: (500, "Internal Server Error", "InternalError", "An internal error occurred."),
    Fault.SKEWED: (
        403,
        "Forbidden",
        "RequestTimeTooSkewed",
        "The difference between the request time and the current time is too large.",
    ),
}


@dataclass(frozen=True)
class Weather:
    """What a proxy does to requests.

    - `rates`: the share of requests that have a fault, by fault.
    - `of_commits`: the same for requests that write a commit. None: as all.
    - `delay_s`: how long a delayed request takes.
    - `is_unconditional`: the store does not know conditional puts.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    of_commits: Mapping[str, float] | None = None
    delay_s: float = 0.2
    is_unconditional: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Traffic:
    """The requests since the last look: by kind (PUT, GET, HEAD, DELETE, POST, LIST), by fault, and
    each with its target.
    """

    kinds: Counter[str]
    faults: Counter[str]
    requests: list[tuple[str, str]]


class StoreProxy:
    """Passes requests between clients at `port` and the store at `target`. A context manager."""

    def __init__(self, target: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.store_proxy", str(target)],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()
        self.port = int(self._ask(None))

    def change(self, weather: Weather) -> None:
        """From now on, this happens to requests."""
        self._ask(asdict(weather))

    def look(self) -> Traffic:
        """The traffic since the last look."""
        found = self._ask("look")
        requests = [(kind, target) for kind, target in found["requests"]]
        return Traffic(Counter(kind for kind, _ in requests), Counter(found["faults"]), requests)

    def _ask(self, question: Any) -> Any:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            if question is not None:
                self._process.stdin.write(json.dumps(question) + "\n")
                self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


class _Server:
    """The proxy in its own process."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._weather, self._rng = Weather(), Random(0)
        self._faults: list[str] = []
        self._requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def answer(self, question: Any) -> Any:
        with self._lock:
            if question == "look":
                said = {"requests": self._requests, "faults": self._faults}
                self._requests, self._faults = [], []
                return said
            self._weather = Weather(**question)
            self._rng = Random(self._weather.seed)
            return "changed"

    def _fault(self, kind: str, target: str) -> Fault:
        """Counts a request, and draws its fault."""
        is_commit = kind == "PUT" and "/_delta_log/" in target and ".json" in target
        with self._lock:
            weather, drawn = self._weather, self._rng.random()
            rates = (
                weather.rates
                if weather.of_commits is None or not is_commit
                else (weather.of_commits)
            )
            fault = Fault.NONE
            for name, rate in rates.items():
                if 0 <= drawn < rate:
                    fault = Fault(name)
                    break
                drawn -= rate
            self._requests.append((kind, target))
            self._faults.append(fault)
        return fault

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        connection = _Connection(client, self._target)
        try:
            while self._answer_one(connection):
                pass
        except (OSError, ValueError):
            pass
        finally:
            connection.close()

    def _answer_one(self, connection: _Connection) -> bool:
        """Answer the next request of a connection. Returns whether another one may follow."""
        head = _head(connection.reader)
        if not head:
            return False
        method, target, _ = head[0].split(" ", 2)
        headers, weather = _headers(head), self._weather
        fault = self._fault(_kind(method, target), target)
        if fault is Fault.CUT:
            return connection.cut()
        if headers.get("expect", "").lower() == "100-continue":
            connection.client.sendall(_CONTINUE)
        head = [line for line in head if not line.lower().startswith("expect:")]
        body = _body(connection.reader, headers)
        if fault is Fault.DELAY:
            time.sleep(weather.delay_s)
        if fault in _ANSWERS:
            connection.client.sendall(_refusal(method, fault))
            return False
        answer, goes_on = connection.forwarded(method, head, body)
        if weather.is_unconditional and answer.startswith(b"HTTP/1.1 412"):
            answer = _SUCCESS
        if fault is Fault.CUT_ANSWER:
            return connection.cut()
        connection.client.sendall(answer)
        return goes_on


@dataclass
class _Connection:
    client: socket.socket
    target: int
    _server: socket.socket | None = None
    _answers: BinaryIO | None = None
    reader: BinaryIO = field(init=False)

    def __post_init__(self) -> None:
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.client.makefile("rb")

    def forwarded(self, method: str, head: list[str], body: bytes) -> tuple[bytes, bool]:
        """The answer of the store, and whether the connection stays open."""
        if self._server is None:
            self._server = socket.create_connection((HOST, self.target), timeout=60)
            self._server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._answers = self._server.makefile("rb")
        assert self._answers is not None
        self._server.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        while True:
            lines = _head(self._answers)
            if not lines:
                raise ConnectionError("the store closed the connection")
            status = int(lines[0].split(" ", 2)[1])
            if status >= 200:
                break
        headers = _headers(lines)
        has_body = method != "HEAD" and status not in {204, 304}
        content = _body(self._answers, headers) if has_body else b""
        goes_on = headers.get("connection", "").lower() != "close"
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + content, goes_on

    def cut(self) -> bool:
        """Close the connection with a reset, as if the network had failed."""
        with suppress(OSError):
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return False

    def close(self) -> None:
        for end in (self.reader, self.client, self._answers, self._server):
            if end is not None:
                with suppress(OSError):
                    end.close()


def _head(stream: BinaryIO) -> list[str]:
    """The lines before the empty one. Empty: the other side has closed the connection."""
    lines: list[str] = []
    while line := stream.readline():
        text = line.decode("latin-1").rstrip("\r\n")
        if not text and lines:
            return lines
        if text:
            lines.append(text)
    return []


def _headers(lines: list[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines[1:])
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _body(stream: BinaryIO, headers: Mapping[str, str]) -> bytes:
    """The body as it was sent, with the frames of its chunks."""
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        return stream.read(int(headers.get("content-length", "0")))
    parts = []
    while True:
        size = stream.readline()
        parts.append(size)
        length = int(size.split(b";")[0], 16)
        parts.append(stream.read(length))
        parts.append(stream.readline())
        if not length:
            return b"".join(parts)


def _kind(method: str, target: str) -> str:
    path, _, query = target.partition("?")
    is_bucket = path.strip("/").count("/") == 0
    return "LIST" if method == "GET" and (is_bucket or "list-type" in query) else method


def _refusal(method: str, fault: Fault) -> bytes:
    status, reason, code, message = _ANSWERS[fault]
    text = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    ).encode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    ).encode()
    return head + (b"" if method == "HEAD" else text)


def _main() -> None:
    server = _Server(int(sys.argv[1]))
    print(server.port, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    _main()
