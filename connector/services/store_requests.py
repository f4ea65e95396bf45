"""Requests to an object store that no client of tables makes: they ask for its time, and whether it
knows conditional PUTs (STO-4).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, urlsplit

from connector.clock import now_us
from connector.config.storage import DEFAULT_REGION

if TYPE_CHECKING:
    from connector.config.storage import StorageConfig

TIMEOUT_S: Final = 5.0
LARGEST_DIFFERENCE_S: Final = 15 * 60
"""Amazon S3 refuses a request whose time differs more."""
WARN_ABOVE_S: Final = 3 * 60
_EXISTS: Final = (409, 412)
_UNKNOWN: Final = 501
_EMPTY: Final = hashlib.sha256(b"").hexdigest()


class _Keys(NamedTuple):
    access_key: str
    secret_key: str
    session_token: str


def clock_difference_s(storage: StorageConfig) -> float | None:
    """How many seconds the clock of this machine is ahead of that of the store. None: not known.

    It sends one request without credentials. The answer can be an error: it has a Date as well.
    """
    before = now_us()
    answer = _answer(_endpoint(storage), "HEAD", "/", {})
    after = now_us()
    if answer is None or answer[1] is None:
        return None
    try:
        at = parsedate_to_datetime(answer[1])
    except ValueError:
        return None
    # A Date has whole seconds: what is left out is half a second on average.
    return (before + after) / 2e6 - at.replace(tzinfo=at.tzinfo or UTC).timestamp() - 0.5


def refuses_second_put(storage: StorageConfig, uri: str) -> bool | None:
    """Whether the store refuses a PUT with `If-None-Match: *` of an object that exists (STO-3). The
    object at `uri` is made, and stays. None: not known.

    deltalake cannot tell: it looks for newer versions first. So the requests are signed here, with
    the keys of the settings or of the environment.
    """
    keys = _keys(storage)
    if keys is None:
        return None
    for _ in range(2):
        status = _put_if_absent(storage, keys, uri)
        if status in _EXISTS:
            return True
        if status == _UNKNOWN:
            return False
        if status is None or status >= 300:
            return None
    return False


def _keys(storage: StorageConfig) -> _Keys | None:
    if storage.access_key:
        return _Keys(storage.access_key, storage.secret_key, storage.session_token)
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    found = _Keys(*(os.environ.get(name, "") for name in names))
    return found if found.access_key and found.secret_key else None


def _region(storage: StorageConfig) -> str:
    of_environment = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return storage.known_region or of_environment or DEFAULT_REGION


def _endpoint(storage: StorageConfig) -> str:
    if storage.endpoint:
        return storage.endpoint
    return f"https://s3.{_region(storage)}.amazonaws.com"


def _put_if_absent(storage: StorageConfig, keys: _Keys, uri: str) -> int | None:
    """The status of the answer. None: there was none."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    url = urlsplit(_endpoint(storage))
    host, path = url.netloc, f"/{quote(key)}"
    if storage.is_path_style:
        path = f"/{bucket}{path}"
    else:
        host = f"{bucket}.{host}"
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_us() // 1_000_000))
    headers = {
        "host": host,
        "if-none-match": "*",
        "x-amz-content-sha256": _EMPTY,
        "x-amz-date": at,
        **({"x-amz-security-token": keys.session_token} if keys.session_token else {}),
    }
    headers["authorization"] = _signed(keys, _region(storage), at, path, headers)
    answer = _answer(f"{url.scheme}://{host}", "PUT", path, headers)
    return None if answer is None else answer[0]


def _signed(keys: _Keys, region: str, at: str, path: str, headers: Mapping[str, str]) -> str:
    """The header that signs a PUT without content: AWS's Signature Version 4."""
    names = ";".join(sorted(headers))
    lines = [f"{name}:{headers[name]}" for name in sorted(headers)]
    request = "\n".join(["PUT", path, "", *lines, "", names, _EMPTY])
    scope = f"{at[:8]}/{region}/s3/aws4_request"
    to_sign = "\n".join(
        ["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(request.encode()).hexdigest()]
    )
    key = f"AWS4{keys.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    who = f"Credential={keys.access_key}/{scope}"
    return f"AWS4-HMAC-SHA256 {who}, SignedHeaders={names}, Signature={signature}"


def _answer(
    endpoint: str, method: str, path: str, headers: Mapping[str, str]
) -> tuple[int, str | None] | None:
    """The status and the Date of an answer. None: there was none."""
    url = urlsplit(endpoint)
    kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = kind(url.hostname or "", url.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, b"", dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Date")
    except (HTTPException, OSError):
        return None
    finally:
        connection.close()
