"""Who reaches the console, and what a page may do in a browser (WEB-1, WEB-2)."""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from markupsafe import escape

from connector.cli.remedies import REASONS
from connector.console import server
from connector.console.app import HEADERS, console_app
from connector.console.pages import Pages
from connector.console.server import Address, read_token, serving
from connector.errors import ConfigError
from connector.reports.reasons import CODES
from connector.services import load_config, status
from tests.unit.cli.test_remedies import parses
from tests.unit.cli.test_status import HOSTILE, warehouse
from tests.unit.reports.test_reasons import CASES

__all__ = ["warehouse"]

TOKEN = "a-token-of-more-than-twenty-characters"
SETTINGS = """
[registry]
url = "http://127.0.0.1:1"
password = "of-registry"
[storage]
access_key = "name-of-key"
secret_key = "of-store"
[spark.conf]
"spark.driver.extraJavaOptions" = "-Djavax.net.ssl.trustStorePassword=of-java -Dx=1"
"spark.hadoop.fs.s3a.session.token" = "of-session"
[tables.tokens]
stream = "s"
key = { form = "row_key", columns = [{ name = "secret_id", type = "STRING" }] }
columns = [{ name = "password", family = "f", type = "STRING" }]
"""


def served(token: str, *, is_local: bool) -> Iterator[httpx.Client]:
    """A client of a console, which reads the configuration in the folder of each test."""
    pages = Pages(load_config, lambda: status(load_config()))
    app = console_app(pages, token, is_local=is_local)
    with (
        serving(app, Address(port=0)) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    yield from served("", is_local=True)


@pytest.fixture(scope="module")
def guarded() -> Iterator[httpx.Client]:
    yield from served(TOKEN, is_local=False)


def test_the_overview_has_what_needs_a_person_first(warehouse: Path, client: httpx.Client) -> None:
    """WEB-1: streams, tables and their problems, with what came from outside escaped."""
    page = client.get("/")
    assert page.status_code == 200
    text = page.text
    assert text.index("Needs a person") < text.index("<h2>Streams") < text.index("<h2>Tables")
    assert 'href="/tables/never"' in text
    assert "PIPELINE_DOWN" in text
    assert '<a href="/streams/s">stream s</a>' in text
    assert "connector run" in text
    assert "nothing was applied yet" in client.get("/tables/never").text
    assert HOSTILE not in text
    assert "p\\x1b[2J\\u202e" in text


@pytest.mark.parametrize("code", CODES)
def test_the_first_page_leads_from_each_reason_to_its_page_and_its_command(
    warehouse: Path, client: httpx.Client, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WEB-1, RUN-1: so each incident is found from the first page, whatever its reason is."""
    act, subject, text = CASES[code]
    listed = act()
    monkeypatch.setattr(import_module("connector.services.status"), "reasons_of", lambda *_: listed)
    page = client.get("/").text
    (line,) = re.findall(r"<li>(.*?)</li>", page[: page.index("<h2>Streams")], re.DOTALL)
    assert f">{code}<" in line
    assert str(escape(text)) in line
    kind, _, name = re.split(", ", subject)[0].replace(".", " ").partition(" ")
    path = f"/{kind.removesuffix('s')}s/{name}" if name else "/configuration"
    assert f'<a href="{path}">{subject}</a>' in line
    (command,) = re.findall(r"<pre class=\"command\"><code>(.*?)</code></pre>", line)
    assert parses(command)


def test_reasons_with_one_command_show_it_once(
    warehouse: Path, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WEB-1: for example, if 200 tables are older than their bounds."""
    listed = CASES["TABLE_STALE"][0]() * 3 + CASES["DEAD_LETTERS"][0]()
    monkeypatch.setattr(import_module("connector.services.status"), "reasons_of", lambda *_: listed)
    page = client.get("/").text
    assert page.count(">TABLE_STALE<") == 3
    assert re.findall(r'command"><code>(.*?)</code>', page) == [
        "connector jobs --by hour",
        "connector dead-letters list --stream s",
    ]


def test_each_reason_has_a_command() -> None:
    """WEB-1: a new code needs one, too."""
    assert tuple(REASONS) == CODES
    assert CASES.keys() == set(CODES)


@pytest.mark.parametrize("path", ["/", "/streams/s", "/tables/one", "/configuration", "/nothing"])
def test_each_answer_has_the_headers_that_keep_content_from_acting(
    warehouse: Path, client: httpx.Client, path: str
) -> None:
    """WEB-2: no script, no frame, no form elsewhere; nothing is kept by a browser."""
    page = client.get(path)
    assert page.headers.items() >= {name.lower(): text for name, text in HEADERS.items()}.items()
    assert "script" not in page.headers["content-security-policy"]
    assert "<script" not in page.text
    assert " style=" not in page.text


def test_a_fault_of_the_console_is_a_page_with_the_headers(
    warehouse: Path, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WEB-2: also a page that nothing foresaw, which shows nothing of the record that caused it."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"<b>{HOSTILE}")

    monkeypatch.setattr("connector.console.pages.jobs", fail)
    page = client.get("/tables/one")
    assert page.status_code == 500
    assert page.headers.items() >= {name.lower(): text for name, text in HEADERS.items()}.items()
    assert "RuntimeError" in page.text
    assert "<b>" not in page.text


def test_an_unreadable_configuration_is_no_missing_page(
    warehouse: Path, client: httpx.Client
) -> None:
    """WEB-1: a program that asks sees that the console needs a person."""
    Path("connector.toml").write_text("nonsense = =")
    for path in ("/", "/streams/s", "/tables/one", "/configuration"):
        page = client.get(path)
        assert page.status_code == 503
        assert "CONFIG_UNREADABLE" in page.text


@pytest.mark.parametrize("path", ["/streams/none", "/tables/none", "/tables/none/row?key=a"])
def test_an_unknown_name_is_a_page_with_a_remedy(
    warehouse: Path, client: httpx.Client, path: str
) -> None:
    """WEB-1, OPS-10"""
    page = client.get(path)
    assert page.status_code == 404
    assert "remedy" in page.text


def test_a_damaged_table_is_a_problem_of_its_page_only(
    warehouse: Path, client: httpx.Client
) -> None:
    """WEB-1, RUN-3: the overview names it."""
    for commit in (warehouse / "tables/one/data/_delta_log").glob("*.json"):
        commit.write_text("rubbish")
    assert '<a href="/tables/one">tables.one</a>' in client.get("/").text
    assert client.get("/tables/one").status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_no_method_changes_anything(warehouse: Path, client: httpx.Client, method: str) -> None:
    """WEB-1: the console is read-only."""
    for path in ("/", "/streams/s", "/streams/s/letters", "/tables/one", "/configuration"):
        assert client.request(method, path).status_code == 405


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8420",
        "127.0.0.1.evil.example",
        "[::2]:8420",
        "",
        "localhost.evil",
    ],
)
def test_a_page_of_another_site_cannot_reach_it_by_a_name(
    warehouse: Path, client: httpx.Client, host: str
) -> None:
    """WEB-1: a name that another site points at this machine is refused."""
    assert client.get("/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "127.0.0.1", "127.0.0.2:8420", "[::1]:8420", "[::1]"]
)
def test_this_machine_reaches_it(warehouse: Path, client: httpx.Client, host: str) -> None:
    """WEB-1"""
    assert client.get("/console.css", headers={"Host": host}).status_code == 200


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"any:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("given", "status_code"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        (f"Bearer {TOKEN}", 200),
        (basic(TOKEN), 200),
        (basic(TOKEN[:-1]), 401),
        (basic(""), 401),
        ("Basic ???", 401),
        ("Basic \u00e9\u00ff".encode("latin-1"), 401),
        ("Bearer \u00e9\u00ff".encode("latin-1"), 401),
        ("Basic " + base64.b64encode(b"no colon").decode(), 401),
        (f"Digest {TOKEN}", 401),
    ],
)
def test_only_the_token_lets_in(
    warehouse: Path, guarded: httpx.Client, given: str | bytes | None, status_code: int
) -> None:
    """WEB-1: as the password of a browser, or as a bearer token; each path is guarded."""
    headers: Any = {} if given is None else {"Authorization": given}
    for path in ("/", "/configuration", "/console.css", "/nothing"):
        expected = 404 if path == "/nothing" and status_code == 200 else status_code
        assert guarded.get(path, headers=headers).status_code == expected
    assert TOKEN not in guarded.get("/", headers=headers).text


def test_the_configuration_shows_no_secret(warehouse: Path, client: httpx.Client) -> None:
    """WEB-1: neither passwords nor keys."""
    Path("connector.toml").write_text(
        Path("connector.toml")
        .read_text()
        .replace(
            'bootstrap_servers = "127.0.0.1:1"',
            'bootstrap_servers = "127.0.0.1:1"\n"sasl.password" = "of-kafka"\n"client.id" = "mine"',
        )
        + SETTINGS
    )
    text = client.get("/configuration").text
    for secret in ("of-kafka", "of-registry", "of-store", "of-java", "of-session"):
        assert secret not in text
    assert "mine" in text
    assert "***" in text
    for name in ("tables.tokens.name", "<td>password</td>", "<td>secret_id</td>"):
        assert name in text, "a name is no secret"


def test_connections_without_a_request_do_not_lock_others_out(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WEB-1: there are few places, and one that sends nothing more loses its own."""
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    whole, part = b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nHost: "
    for client in served("", is_local=True):
        for begun in (b"", part, whole + part):
            address = (client.base_url.host, client.base_url.port or 0)
            slow = [socket.create_connection(address, 10) for _ in range(80)]
            for opened in slow:
                opened.sendall(begun)
            for opened in slow:
                with opened:
                    while opened.recv(1 << 20):
                        pass
            assert client.get("/console.css").status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "console.example"])
def test_beyond_this_machine_it_needs_tls_and_a_token(host: str, tmp_path: Path) -> None:
    """WEB-1"""
    pem = tmp_path / "file.pem"
    for incomplete in (
        {},
        {"token": TOKEN},
        {"certificate": pem, "key": pem},
        {"certificate": pem, "token": TOKEN},
    ):
        with pytest.raises(ConfigError):
            Address(host, **incomplete)  # type: ignore[arg-type]
    assert Address(host, certificate=pem, key=pem, token=TOKEN).url(1).startswith("https://")


@pytest.mark.parametrize("content", ["", "short\n", "\n" + TOKEN, "é" * 30])
def test_a_weak_token_file_is_refused(content: str, tmp_path: Path) -> None:
    """WEB-1"""
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(ConfigError):
        read_token(file)
    file.write_text(TOKEN + "\n")
    assert read_token(file) == TOKEN
