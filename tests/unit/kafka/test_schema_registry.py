"""The registry client against a stub of the endpoints it uses (REC-11, DLQ-4, OPS-7), and against
the recorded answers of a real one (SEC-4).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.config.settings import RegistryConfig
from connector.errors import BrokerError, ConfigError
from connector.kafka.schema_registry import RegistryClient
from connector.records.codec import SCHEMA as RECORD_SCHEMA
from connector.records.codec import ChangeRecord, Schemas, decode, frame, framed
from connector.records.model import Heartbeat
from connector.records.rejection import Rejection
from tests.golden.registry_conversation import Exchange, recorded, serving, talk
from tests.unit.registry_stub import RegistryStub, running_registry

SCHEMA = '{"type": "string"}'


@pytest.fixture
def stub() -> Iterator[RegistryStub]:
    with running_registry() as registry:
        yield registry


def test_the_schema_of_an_id_is_requested_once(stub: RegistryStub) -> None:
    stub.add(SCHEMA, 7)
    with RegistryClient(RegistryConfig(stub.url)) as client:
        assert [client.schema(7), client.schema(7)] == [SCHEMA, SCHEMA]
    assert stub.requests == ["GET /schemas/ids/7"]


def reference(subject: str) -> dict[str, object]:
    return {"name": subject, "subject": subject, "version": 1}


def test_referenced_schemas_are_read_with(stub: RegistryStub) -> None:
    """REC-11: a registry serves the schema and names the others, also through each other."""
    schema = json.loads(RECORD_SCHEMA)
    heartbeat = next(one for one in schema["fields"] if one["name"] == "heartbeat")
    moved, heartbeat["type"][1] = dict(heartbeat["type"][1], namespace="lowmark"), "Heartbeat"
    moved["fields"].append({"name": "extra", "type": "acme.Extra", "doc": "unknown"})
    stub.add(json.dumps({"type": "fixed", "name": "acme.Extra", "size": 0}), 1)
    stub.add(json.dumps(moved), 2, references=[reference("acme/extra")])
    stub.add(json.dumps(schema), 3, references=[reference("beat")])
    stub.add(json.dumps(schema), 4, references=[reference("gone")])
    stub.subjects = {"acme/extra": [1], "beat": [2]}
    beat = Heartbeat("p", 7)
    with RegistryClient(RegistryConfig(stub.url)) as client:
        schemas = Schemas({number: client.schema(number) for number in (3, 4)})
    assert "GET /subjects/acme%2Fextra/versions/1?deleted=true" in stub.requests
    assert decode(framed(beat, 4, 3), schemas) == ChangeRecord(beat, 4)
    schema_text = decode(framed(beat, 4, 4), schemas)
    assert isinstance(schema_text, Rejection)
    assert "uses the type lowmark.Heartbeat without its definition" in schema_text.detail


@pytest.mark.parametrize("kind", ["PROTOBUF", "JSON"])
def test_a_schema_that_is_not_avro_is_returned_as_its_kind(stub: RegistryStub, kind: str) -> None:
    """REC-11."""
    stub.add('syntax = "proto3";', 7, schemaType=kind)
    with RegistryClient(RegistryConfig(stub.url)) as client:
        schema_text = decode(frame(b"body", 7), Schemas({7: client.schema(7)}))
    assert isinstance(schema_text, Rejection)
    assert f"the schema 7 is of the kind {kind}, and is not an Avro schema" in schema_text.detail


def test_a_missing_id_is_requested_again(stub: RegistryStub) -> None:
    with RegistryClient(RegistryConfig(stub.url)) as client:
        assert client.schema(8) is None
        stub.add(SCHEMA, 8)
        assert client.schema(8) == SCHEMA


def test_an_id_above_the_range_of_registries_is_not_requested(stub: RegistryStub) -> None:
    """Registries answer it with an error of their web server: a rubbish record must not halt the
    stream.
    """
    with RegistryClient(RegistryConfig(stub.url)) as client:
        assert client.schema(2**31) is None
    assert stub.requests == []


def test_a_page_that_is_no_registry_makes_no_dead_letters(stub: RegistryStub) -> None:
    """DLQ-4: only a registry's own "not found" is one."""
    stub.failures = [(404, "<html>nginx</html>")]
    with (
        RegistryClient(RegistryConfig(stub.url)) as client,
        pytest.raises(BrokerError, match="an answer that is not valid"),
    ):
        client.schema(1)


@pytest.mark.parametrize("answer", ["[]", '"text"', "{}", '{"schema": 5}', "\u00ff"])
def test_an_answer_of_another_form_is_an_error(stub: RegistryStub, answer: str) -> None:
    stub.failures = [(200, answer)]
    with (
        RegistryClient(RegistryConfig(stub.url)) as client,
        pytest.raises(BrokerError, match="an answer that is not valid"),
    ):
        client.schema(1)


def test_a_passing_failure_is_tried_again(stub: RegistryStub) -> None:
    stub.add(SCHEMA, 7)
    stub.failures = [(503, "starting"), (429, "slow down")]
    with RegistryClient(RegistryConfig(stub.url)) as client:
        assert client.schema(7) == SCHEMA


def test_a_lasting_failure_is_an_error(stub: RegistryStub) -> None:
    stub.failures = [(500, "broken")] * 3
    with (
        RegistryClient(RegistryConfig(stub.url)) as client,
        pytest.raises(BrokerError, match="cannot be reached") as caught,
    ):
        client.schema(7)
    assert "HTTP 500: broken" in caught.value.cause


def test_a_registry_that_does_not_answer_is_an_error() -> None:
    with (
        RegistryClient(RegistryConfig("http://127.0.0.1:1")) as client,
        pytest.raises(BrokerError, match="cannot be reached"),
    ):
        client.schema(7)


def test_the_schema_of_a_topic_is_looked_up_under_its_subject(stub: RegistryStub) -> None:
    stub.add(SCHEMA, 9)
    stub.subjects["my topic-value"] = [9]
    with RegistryClient(RegistryConfig(stub.url)) as client:
        assert client.schema_id("my topic", SCHEMA) == 9
    assert stub.requests == ["POST /subjects/my%20topic-value"]


def test_a_schema_that_is_not_registered_is_an_error_without_auto_register(
    stub: RegistryStub,
) -> None:
    with (
        RegistryClient(RegistryConfig(stub.url)) as client,
        pytest.raises(BrokerError, match="does not have the schema of lowmark") as caught,
    ):
        client.schema_id("t", SCHEMA)
    assert "auto_register" in caught.value.remedy
    with RegistryClient(RegistryConfig(stub.url, auto_register=True)) as client:
        assert client.schema_id("t", SCHEMA) == 1
    assert stub.subjects == {"t-value": [1]}


def test_the_remedy_names_the_file_of_the_schema(stub: RegistryStub) -> None:
    """REC-11"""
    with (
        RegistryClient(RegistryConfig(stub.url)) as client,
        pytest.raises(BrokerError) as caught,
    ):
        client.schema_id("t", RECORD_SCHEMA)
    assert "Register schemas/change_record.v1.avsc under" in caught.value.remedy


def test_an_incompatible_schema_has_the_text_of_the_registry(stub: RegistryStub) -> None:
    stub.failures = [(409, '{"error_code": 409, "message": "reader is missing field x"}')]
    with (
        RegistryClient(RegistryConfig(stub.url, auto_register=True)) as client,
        pytest.raises(BrokerError) as caught,
    ):
        client.schema_id("t", SCHEMA)
    assert "reader is missing field x" in caught.value.cause


def test_basic_credentials_are_sent(stub: RegistryStub) -> None:
    stub.require("me", "hunter2")
    stub.add(SCHEMA, 1)
    with RegistryClient(RegistryConfig(stub.url, user="me", password="hunter2")) as client:
        assert client.schema(1) == SCHEMA


def test_wrong_credentials_are_named_but_not_shown(stub: RegistryStub) -> None:
    stub.require("me", "right")
    with (
        RegistryClient(RegistryConfig(stub.url, user="me", password="hunter2")) as client,
        pytest.raises(BrokerError) as caught,
    ):
        client.schema(1)
    assert "refused the request" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_certificates_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ca_location"):
        RegistryClient(
            RegistryConfig("https://127.0.0.1:1", ca_location=str(tmp_path / "none.pem"))
        )
    (tmp_path / "none.pem").write_text("rubbish")
    with pytest.raises(ConfigError, match="ca_location"):
        RegistryClient(
            RegistryConfig("https://127.0.0.1:1", ca_location=str(tmp_path / "none.pem"))
        )


def test_the_client_understands_what_a_real_registry_answered() -> None:
    """SEC-4: Apicurio Registry, as recorded. The client asks what it asked then, so the answers are
    those of the registry.
    """
    expected = recorded()
    left = list(expected)
    asked = list[tuple[str, str]]()

    def answer(request: str, body: str) -> tuple[int, str]:
        asked.append((request, body))
        schema_text: Exchange = left.pop(0)
        return schema_text.status, schema_text.answer

    with serving(answer) as url:
        error_text = talk(RegistryConfig(url))
    assert asked == [(one.request, one.body) for one in expected]
    assert error_text == ["REGISTRY_SCHEMA_DIFFERENT", True, None, True]
