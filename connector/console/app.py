"""The paths of the console, its errors, and the headers that keep content from outside from acting
(WEB-1, WEB-2).
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from connector.cli.remedies import command_for
from connector.cli.terminal import escaped
from connector.console.pages import Page, Pages
from connector.console.server import is_loopback
from connector.errors import ConnectorError, InvalidChangeError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self';"
        " base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


NOT_THERE: Final = frozenset(
    {"ARGUMENT_INVALID", "DEAD_LETTER_AMBIGUOUS", "DEAD_LETTER_MISSING", "STREAM_UNKNOWN"}
    | {"TABLE_UNKNOWN"}
)
"""Codes of errors of a request. The others are of the configuration, Kafka or the warehouse."""


def console_app(pages: Pages, token: str = "", *, is_local: bool = True) -> ASGIApp:
    """Return the console as an ASGI application.

    Args:
        pages: The values of the pages.
        token: The password of every request. Empty: they need no password.
        is_local: It listens on a loopback address. Then it answers only requests for such a host:
            a page of another site cannot reach it under a name of its own.
    """
    templates = Environment(
        loader=PackageLoader("connector.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["escaped"] = escaped
    templates.filters["part"] = partial(quote, safe="")
    app = Starlette(
        routes=[
            *(
                Route(path, _endpoint(templates, act), methods=["GET"])
                for path, act in paths(pages).items()
            ),
            Route("/console.css", _file(templates, "console.css", "text/css")),
            Route("/icon.svg", _file(templates, "icon.svg", "image/svg+xml")),
        ],
        exception_handlers={
            ConnectorError: partial(_failed, templates),
            HTTPException: partial(_refused, templates),
            Exception: partial(_broken, templates),
        },
    )
    return _Guard(app, token, is_local=is_local)  # outside of the handler of `Exception`


def paths(pages: Pages) -> Mapping[str, Callable[[Mapping[str, str]], Page]]:
    """The pages by path. Each takes the parameters of the path and of the query."""
    return {
        "/": lambda _: pages.overview(),
        "/configuration": lambda _: pages.configuration(),
        "/streams/{stream}": lambda given: pages.stream(given["stream"]),
        "/streams/{stream}/letters": pages.letters,
        "/streams/{stream}/letters/{letter}": pages.letter,
        "/tables/{table}": lambda given: pages.table(given["table"]),
        "/tables/{table}/row": pages.row,
    }


def _endpoint(
    templates: Environment, act: Callable[[Mapping[str, str]], Page]
) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        page = act({**request.query_params, **request.path_params})
        return _rendered(templates, page.template, page.values)

    return endpoint


def _rendered(
    templates: Environment, name: str, values: Mapping[str, Any], status: int = 200
) -> Response:
    html = templates.get_template(f"{name}.html").render(values)
    return Response(html, status, media_type="text/html; charset=utf-8")


def _file(templates: Environment, name: str, media_type: str) -> Callable[[Request], Response]:
    text = templates.get_template(name).render()
    return lambda _: Response(text, media_type=f"{media_type}; charset=utf-8")


def _failed(templates: Environment, _: Request, error: Exception) -> Response:
    """The page of a problem, with cause, remedy and the command that helps."""
    assert isinstance(error, ConnectorError)
    is_of_request = error.code in NOT_THERE or isinstance(error, InvalidChangeError)
    values = {"error": error, "command": command_for(error), "title": error.problem}
    return _rendered(templates, "problem", values, 404 if is_of_request else 503)


def _refused(templates: Environment, _: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    values = {"error": None, "command": None, "title": error.detail}
    return _rendered(templates, "problem", values, error.status_code)


def _broken(templates: Environment, _: Request, error: Exception) -> Response:
    """The page of a fault of the console itself. uvicorn logs it."""
    title = f"The console failed: {type(error).__name__}"
    return _rendered(templates, "problem", {"error": None, "command": None, "title": title}, 500)


class _Guard:
    """Refuses requests for another host or without the token, and adds the headers."""

    def __init__(self, app: ASGIApp, token: str, *, is_local: bool) -> None:
        self._app, self._token, self._is_local = app, token.encode(), is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self._is_local and not is_loopback(name.removeprefix("[").removesuffix("]")):
            return PlainTextResponse("Use the address that the command printed.\n", 421)
        if self._token and not hmac.compare_digest(_password(headers), self._token):
            wanted = {"WWW-Authenticate": 'Basic realm="lowmark", charset="UTF-8"'}
            return PlainTextResponse("The password is the token.\n", 401, wanted)
        return None


def _password(headers: Headers) -> bytes:
    kind, _, text = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return text.strip().encode("latin-1")
    if kind.lower() != "basic":
        return b""
    try:
        return base64.b64decode(text, validate=True).partition(b":")[2]
    except ValueError:  # also of characters beyond ASCII
        return b""
