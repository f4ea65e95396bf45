"""What a warehouse in an object store changes in services, without a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from connector.clock import now_us
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.config.storage import LAKE_DEFAULTS, StorageConfig, look_every_s
from connector.lake.overrides import Overrides
from connector.lake.stores import options_of, warehouse_with
from connector.services import store_requests
from connector.services.store_requests import clock_difference_s, refuses_second_put
from connector.services.warehouses import warehouse_of
from connector.state.overrides import StalenessOverride

URI = "s3a://lake/w/_connector/probe/condition"


class _Store(BaseHTTPRequestHandler):
    """Answers each PUT with the next of `answers`, and keeps what was asked."""

    answers: list[int]
    asked: list[tuple[str, dict[str, str]]]
    date: str | None = "Wed, 25 Nov 2026 12:00:00 GMT"

    def do_PUT(self) -> None:
        self.asked.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
        self.send_response(self.answers.pop(0))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.send_response_only(403)
        if self.date is not None:
            self.send_header("Date", self.date)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[type[_Store]]:
    handler = type("Store", (_Store,), {"answers": [], "asked": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        handler.endpoint = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
        yield handler
        server.shutdown()


def storage(server: type[_Store], **others: object) -> StorageConfig:
    known = {"endpoint": server.endpoint, "access_key": "key", "secret_key": "hunter2"}  # type: ignore[attr-defined]
    return StorageConfig(**{**known, **others})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "is_conditional"),
    [
        ([412], True),
        ([200, 412], True),
        ([200, 409], True),
        ([200, 200], False),
        ([501], False),
        ([403], None),
    ],
)
def test_a_second_put_must_be_refused(
    server: type[_Store], answers: list[int], is_conditional: bool | None
) -> None:
    """STO-3, STO-4"""
    server.answers[:] = answers
    assert refuses_second_put(storage(server, session_token="t"), URI) is is_conditional
    path, headers = server.asked[0]
    assert path == "/lake/w/_connector/probe/condition"
    assert headers["if-none-match"] == "*"
    assert headers["x-amz-security-token"] == "t"
    assert "hunter2" not in str(server.asked)


def test_without_keys_nothing_is_known(
    server: type[_Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert refuses_second_put(storage(server, access_key="", secret_key=""), URI) is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    server.answers[:] = [412]
    assert refuses_second_put(storage(server, access_key="", secret_key=""), URI)


def test_the_clock_of_the_store_is_compared(
    server: type[_Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """STO-4"""
    at = 1_795_608_000 * 1_000_000  # 2026-11-25T12:00:00Z
    monkeypatch.setattr(store_requests, "now_us", lambda: at + 3600 * 1_000_000)
    assert clock_difference_s(storage(server)) == pytest.approx(3600, abs=1)
    for date in (None, "yesterday"):
        server.date = date
        assert clock_difference_s(storage(server)) is None
    assert clock_difference_s(StorageConfig(endpoint="http://127.0.0.1:1")) is None


def test_settings_of_a_store_are_read_once_for_a_while(tmp_path: Path) -> None:
    """STO-5"""
    patient, prompt = Overrides(str(tmp_path), kept_for_s=60), Overrides(str(tmp_path))
    assert patient.bounds() == prompt.bounds() == {}
    prompt.set(StalenessOverride("t", 5, now_us(), "a test"))
    assert (patient.bounds(), prompt.bounds()) == ({}, {"t": 5})


def test_options_belong_to_a_warehouse() -> None:
    """STO-1, STO-7: the limits of repeated requests are defaults."""
    config = ConnectorConfig(
        "s3a://lake/a", KafkaConfig("h:1"), storage=StorageConfig(options={"max_retries": "9"})
    )
    path = f"{warehouse_of(config)}/tables/t/data"
    assert options_of(path) == {**LAKE_DEFAULTS, "max_retries": "9"}
    assert warehouse_with(path) == "s3a://lake/a"
    assert warehouse_with("s3a://lake/ab/tables") is None
    assert options_of("/a/tables") is None
    assert look_every_s("s3a://lake/a") > look_every_s("/a")
