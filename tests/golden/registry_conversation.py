"""The requests of our client and the answers of a real schema registry, kept in
`registry_conversation.json` (SEC-4).

`python -m tests.golden.registry_conversation` starts Apicurio Registry and writes the file again.
"""

from __future__ import annotations

import json
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError

from connector.config.settings import RegistryConfig
from connector.errors import BrokerError
from connector.kafka.schema_registry import RegistryClient
from connector.records.codec import SCHEMA
from tests.apicurio import running_apicurio

FILE = Path(__file__).with_suffix(".json")
TOPIC = "recorded"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer."""

    request: str
    body: str
    status: int
    answer: str


def talk(config: RegistryConfig) -> list[object]:
    """What the client makes of a new registry: a schema that it lacks, one that is registered twice
    and looked up, and ids that it has and has not.
    """
    said = list[object]()
    with RegistryClient(replace(config, auto_register=False)) as client:
        try:
            client.schema_id(TOPIC, SCHEMA)
        except BrokerError as error:
            said.append(str(error.code))
    with RegistryClient(replace(config, auto_register=True)) as client:
        ids = [client.schema_id(TOPIC, SCHEMA) for _ in range(2)]
    with RegistryClient(replace(config, auto_register=False)) as client:
        assert client.schema_id(TOPIC, SCHEMA) == ids[0]
        found = client.schema(ids[0])
        said.append(found is not None and json.loads(found) == json.loads(SCHEMA))
        said.append(client.schema(999_999))
    return [*said, ids[0] == ids[1]]


Answer = Callable[[str, str], tuple[int, str]]
"""Of a request, such as `GET /schemas/ids/1`, and its body."""


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """The address of a server that answers so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            status, text = answer(f"{self.command} {self.path}", body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def recorder(url: str, exchanges: list[Exchange]) -> Answer:
    """Passes each request on to the registry, and keeps it with its answer."""

    def answer(request: str, body: str) -> tuple[int, str]:
        method, path = request.split(" ", 1)
        sent = urllib.request.Request(
            url + path,
            data=body.encode() or None,
            headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(sent, timeout=30) as found:
                status, text = found.status, found.read().decode()
        except HTTPError as error:
            status, text = error.code, error.read().decode()
        exchanges.append(Exchange(request, body, status, text))
        return status, text

    return answer


def recorded() -> list[Exchange]:
    """The conversation of the file."""
    return [Exchange(**one) for one in json.loads(FILE.read_text("utf-8"))]


if __name__ == "__main__":
    kept = list[Exchange]()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_apicurio(Path(folder)) as registry,
        serving(recorder(registry, kept)) as address,
    ):
        print(talk(RegistryConfig(address, timeout_s=30)))
    FILE.write_text(json.dumps([asdict(one) for one in kept], indent=1) + "\n", "utf-8")
