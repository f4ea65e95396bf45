"""A schema registry of the endpoints that are used, in memory, over real HTTP."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class RegistryStub:
    """`failures` are answers (status, body) given before anything else is looked at, one for each
    request.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, str] = {}
        self.more: dict[int, dict[str, object]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.failures: list[tuple[int, str]] = []
        self.authorization: str | None = None
        self.url = ""

    def add(self, schema: str, schema_id: int, **more: object) -> None:
        """Add a schema. `more` is in the answers with it, for example its references."""
        self.schemas[schema_id], self.more[schema_id] = schema, more

    def require(self, user: str, password: str) -> None:
        self.authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def answer(
        self, method: str, path: str, body: dict[str, str], authorization: str | None
    ) -> tuple[int, str]:
        self.requests.append(f"{method} {path}")
        if self.failures:
            return self.failures.pop(0)
        if self.authorization is not None and authorization != self.authorization:
            return 401, json.dumps({"error_code": 401, "message": "Unauthorized"})
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match (method, *parts):
            case ("GET", "schemas", "ids", number):
                if int(number) in self.schemas:
                    number = int(number)
                    return 200, json.dumps(
                        {"schema": self.schemas[number]} | self.more.get(number, {})
                    )
                return 404, json.dumps(
                    {"error_code": 40403, "message": f"Schema {number} not found"}
                )
            case ("GET", "subjects", subject, "versions", version):
                ids = dict(enumerate(self.subjects.get(subject, []), start=1))
                found = ids.get(int(version.partition("?")[0]))
                if found is None:
                    return 404, json.dumps({"error_code": 40402, "message": "not found"})
                more = self.more.get(found, {})
                return 200, json.dumps({"id": found, "schema": self.schemas[found]} | more)
            case ("POST", "subjects", subject):
                for schema_id in self.subjects.get(subject, []):
                    if self.schemas[schema_id] == body["schema"]:
                        return 200, json.dumps(
                            {
                                "subject": subject,
                                "version": 1,
                                "id": schema_id,
                                "schema": body["schema"],
                            }
                        )
                code = 40403 if subject in self.subjects else 40401
                return 404, json.dumps({"error_code": code, "message": "not found"})
            case ("POST", "subjects", subject, "versions"):
                known = {schema: schema_id for schema_id, schema in self.schemas.items()}
                schema_id = known.get(body["schema"], max(self.schemas, default=0) + 1)
                self.schemas[schema_id] = body["schema"]
                self.subjects.setdefault(subject, []).append(schema_id)
                return 200, json.dumps({"id": schema_id})
        return 404, "<html>no such page</html>"


@contextmanager
def running_registry(stub: RegistryStub | None = None, port: int = 0) -> Iterator[RegistryStub]:
    """A registry at this port or at a free one: the given one, or a new and empty one."""
    stub = stub or RegistryStub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            status, text = stub.answer(
                self.command, self.path, body, self.headers.get("Authorization")
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        stub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield stub
        finally:
            server.shutdown()
            thread.join()
