"""A client for the necessary requests to a schema registry: schema by id, schema by subject and
version, register, look up (REC-11).

An unknown id makes a record a dead letter. Therefore it is accepted only from a real registry: an
answer 404 with an error code of a registry. Any other invalid answer, for example the page of a
proxy or a wrong path, is a `BrokerError`. It fails the batch, and makes no dead letters (DLQ-4).
"""

from __future__ import annotations

import json
import ssl
import time
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from connector.errors.kafka import (
    registry_access_denied,
    registry_answer_invalid,
    registry_schema_different,
    registry_unreachable,
)
from connector.errors.settings import extra_missing, setting_invalid
from connector.records.codec import with_references

if TYPE_CHECKING:
    import httpx

    from connector.config.settings import RegistryConfig
    from connector.errors import BrokerError

MAX_SCHEMA_ID: Final = 2**31 - 1
"""Registries use Java's int. The framing has space for larger ids, but no registry assigns them."""

_AVRO: Final = "AVRO"
_NOT_FOUND: Final = frozenset({40401, 40402, 40403})
_PAUSES_S: Final = (0.2, 0.5)
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class RegistryClient:
    """Reads schemas by id, and caches them. The schema of an id never changes. Not thread-safe."""

    def __init__(self, config: RegistryConfig) -> None:
        """Create the client without a connection. Raises `ConnectorError` if httpx is missing, and
        `ConfigError` if the certificates cannot be read.
        """
        self._config = config
        self._by_id: dict[int, str] = {}
        self._http = _connect(config)

    def schema(self, schema_id: int) -> str | None:
        """Return the text of a schema, with the types of the schemas that it refers to. None: the
        registry has no such schema. The next call asks again.

        For a schema of another kind than Avro, it is that kind, for example `{"schemaType":
        "PROTOBUF"}`. Raises `BrokerError` if the registry does not answer, or its answer is not
        valid.
        """
        if schema_id in self._by_id:
            return self._by_id[schema_id]
        if not 0 <= schema_id <= MAX_SCHEMA_ID:
            return None
        answer = self._ask("GET", f"/schemas/ids/{schema_id}", None)
        if answer is None:
            return None
        self._by_id[schema_id] = self._schema(answer)
        return self._by_id[schema_id]

    def schema_id(self, topic: str, schema: str) -> int:
        """Return the id with which a producer writes `schema` to `topic`. With `auto_register`, the
        schema is registered. Otherwise, it is looked up.

        Raises `BrokerError` if the registry does not answer, the subject does not have the schema,
        or it is incompatible.
        """
        subject = quote(self._config.subject(topic), safe="")
        path = (
            f"/subjects/{subject}/versions"
            if self._config.auto_register
            else f"/subjects/{subject}"
        )
        answer = self._ask("POST", path, {"schema": schema})
        if answer is None:
            raise registry_schema_different(self._config.url, self._config.subject(topic))
        schema_id = answer.get("id")
        if not isinstance(schema_id, int) or not 0 <= schema_id <= MAX_SCHEMA_ID:
            raise self._invalid(f"no schema id in {str(answer)[:200]}")
        self._by_id[schema_id] = schema
        return schema_id

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: dict[str, str] | None) -> dict[str, Any] | None:
        """Return the JSON object of a valid answer, or None for "not found". Temporary errors are
        tried three times.
        """
        import httpx

        for pause_s in (*_PAUSES_S, None):
            try:
                response = self._http.request(method, path, json=body)
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if response.status_code < 500 and response.status_code != 429:
                    return self._read(response)
                problem = f"HTTP {response.status_code}: {response.text[:300]}"
            if pause_s is not None:
                time.sleep(pause_s)
        raise registry_unreachable(self._config.url, problem)

    def _read(self, response: httpx.Response) -> dict[str, Any] | None:
        try:
            answer = response.json()
        except (json.JSONDecodeError, UnicodeDecodeError):
            answer = None
        if response.status_code in (401, 403):
            cause = f"HTTP {response.status_code}: {response.text[:300]}"
            raise registry_access_denied(self._config.url, cause)
        if not isinstance(answer, dict):
            raise self._invalid(f"HTTP {response.status_code}: {response.text[:300]}")
        if response.status_code == 404 and answer.get("error_code") in _NOT_FOUND:
            return None
        if response.status_code != 200:
            raise self._invalid(
                f"HTTP {response.status_code}, error {answer.get('error_code')}:"
                f" {answer.get('message', '')}"
            )
        return answer

    def _schema(self, answer: dict[str, Any]) -> str:
        text, kind = self._text(answer, "schema"), answer.get("schemaType", _AVRO)
        if kind != _AVRO:
            return json.dumps({"schemaType": str(kind)})
        schemas: dict[tuple[str, object], str] = {}
        self._read_references(answer, schemas)
        return with_references(text, schemas.values()) if schemas else text

    def _read_references(
        self, answer: dict[str, Any], schemas: dict[tuple[str, object], str]
    ) -> None:
        """Add the schemas that a schema refers to, also through others. Missing ones are left
        out.
        """
        references = answer.get("references") or []
        if not isinstance(references, list):
            raise self._invalid(f"no references in {str(answer)[:200]}")
        for reference in references:
            fields = reference if isinstance(reference, dict) else {}
            subject, version = fields.get("subject"), fields.get("version")
            if not isinstance(subject, str) or not isinstance(version, int):
                raise self._invalid(f"no references in {str(answer)[:200]}")
            if (subject, version) in schemas:
                continue
            # A schema can refer to one that was deleted since.
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true"
            if (other := self._ask("GET", path, None)) is not None:
                schemas[subject, version] = self._text(other, "schema")
                self._read_references(other, schemas)

    def _text(self, answer: dict[str, Any], name: str) -> str:
        text = answer.get(name)
        if not isinstance(text, str):
            raise self._invalid(f"no {name} in {str(answer)[:200]}")
        return text

    def _invalid(self, cause: str) -> BrokerError:
        return registry_answer_invalid(self._config.url, cause)


def _connect(config: RegistryConfig) -> httpx.Client:
    try:
        import httpx
    except ImportError as error:
        raise extra_missing("httpx", "registry") from error
    headers = {"Accept": f"{_MEDIA_TYPE}, application/json", "Content-Type": _MEDIA_TYPE}
    if config.bearer_token:
        headers["Authorization"] = f"Bearer {config.bearer_token}"
    try:
        verify = (
            ssl.create_default_context(cafile=config.ca_location) if config.ca_location else True
        )
    except OSError as error:
        path, allowed = str(config.ca_location), f"a file with PEM certificates. {error}"
        raise setting_invalid("registry.ca_location", path, allowed, "Correct the path") from error
    auth = (config.user, config.password) if config.user else None
    return httpx.Client(
        base_url=config.url, headers=headers, auth=auth, verify=verify, timeout=config.timeout_s
    )
