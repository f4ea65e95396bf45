"""The errors of an object store, from the texts of deltalake and of Spark's S3 client (STO-4).

A text of an error can have the id of a key, or parts of a signed request. So only known words of it
are shown.
"""

from __future__ import annotations

import re
from typing import Final

from connector.errors import TableError
from connector.errors.tables import (
    bucket_missing,
    store_access_denied,
    store_clock_different,
    store_credentials_refused,
    store_not_conditional,
    store_unreachable,
    store_untrusted,
)

_FROM_STORE: Final = re.compile(
    r"software\.amazon\.awssdk|hadoop\.fs\.s3a|Generic \w+ error|necessary privileges"
    r"|returned non-2xx"
)
_CLOCK: Final = re.compile("RequestTimeTooSkewed|RequestExpired")
_NO_CREDENTIALS: Final = re.compile(
    r"NoAuthWithAWSException|No AWS Credentials|Unable to load credentials|169\.254\.169\.254"
    r"|CredentialInitializationException"
)
_CREDENTIALS: Final = re.compile(
    "InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|TokenRefreshRequired"
    "|AuthorizationHeaderMalformed|InvalidClientTokenId"
)
_MEANS: Final = {
    "InvalidAccessKeyId": ", it does not know the access key",
    "SignatureDoesNotMatch": ", the secret key is not that of the access key",
    "ExpiredToken": ", they were valid for a time that is over",
}
_NO_BUCKET: Final = re.compile(
    "NoSuchBucket|UnknownStoreException|bucket does not exist|PermanentRedirect"
    "|AWSRedirectException|IllegalLocationConstraint"
)
_DENIED: Final = re.compile(
    r"AccessDenied(?!Exception)|AllAccessDisabled|403 Forbidden|Status Code: 403"
    r"|necessary privileges"
)
_UNCONDITIONAL: Final = re.compile(r"NotImplemented|Status Code: 501|501 Not Implemented")
_BUSY: Final = re.compile(
    r"SlowDown|\bInternalError\b|ServiceUnavailable|Status Code: 5\d\d|AWSStatus500Exception"
    r"|AWSServiceThrottledException|\b50[0234] [A-Z][a-z]+"
)
_UNTRUSTED: Final = "the certificate of the server is not valid"
_UNREACHABLE: Final = {
    "no host has this name": re.compile("dns error|UnknownHostException"),
    "no server listens there": re.compile("Connection refused"),
    _UNTRUSTED: re.compile("PKIX path|CertificateE|invalid peer certificate"),
    "the server does not speak TLS": re.compile("InvalidContentType|not an SSL/TLS record"),
    "the server does not speak TLS as this machine expects": re.compile(r"SSL\w*Exception"),
    "the server did not answer in time": re.compile("timed out"),
    "the connection was cut": re.compile(
        "Connection reset|connection closed|Broken pipe|NoHttpResponse|error sending request"
        "|AWSNoResponseException|error decoding response body|IncompleteMessage"
    ),
    "there was no answer in time": re.compile(
        "Timeout|Unable to execute HTTP request|AWSClientIOException"
    ),
}
_CERTAIN: Final = tuple(_UNREACHABLE)[:4]
"""Nothing else can have such a text. A stack of Java can have the words of other errors."""
_AT: Final = re.compile(
    r"(?:GET|PUT|HEAD|POST|DELETE) (https?://[\w.:\[\]-]+)/|Connect to (?:\S+ \[)?([\w.-]+:\d+)"
)
"""The host that was asked. The rest of a URL can be signed."""
_OTHER_SERVER: Final = re.compile(
    r"Header missing from response|invalid list response"
    r"|list request.*\b40[045] [A-Z](?!.*<Code>)",
    re.DOTALL,
)


def store_error(text: str, problem: str, **fields: object) -> TableError | None:
    """The error for a `problem` with an object store. `text` is that of the error of a library.
    None: it does not come from an object store, or it is not a known one.
    """
    if _FROM_STORE.search(text) is None:
        return None
    return _refusal(text, problem, fields) or _failure(text, problem, fields)


def _refusal(text: str, problem: str, fields: dict[str, object]) -> TableError | None:
    """The error for a store that answers, and will answer the same again."""
    if _CLOCK.search(text):
        return store_clock_different(problem, **fields)
    if _NO_BUCKET.search(text):
        return bucket_missing(problem, **fields)
    if _NO_CREDENTIALS.search(text):
        cause = "No credentials of the object store were found"
        return store_credentials_refused(problem, cause, **fields)
    if (refused := _CREDENTIALS.search(text)) is not None:
        reason = f"{refused[0]}{_MEANS.get(refused[0], '')}"
        cause = f"The object store refuses the credentials: {reason}"
        return store_credentials_refused(problem, cause, **fields)
    return store_access_denied(problem, **fields) if _DENIED.search(text) else None


def _failure(text: str, problem: str, fields: dict[str, object]) -> TableError | None:
    """The error for a store that may answer later."""
    if _UNCONDITIONAL.search(text):
        return store_not_conditional(problem, **fields)
    reason = next((reason for reason, sign in _UNREACHABLE.items() if sign.search(text)), "")
    if (busy := _BUSY.search(text)) is not None and reason not in _CERTAIN:
        cause = f"The object store answers with an error, also when asked again: {busy[0]}"
        return store_unreachable(problem, cause, **fields)
    host = f" at {asked[1] or asked[2]}" if (asked := _AT.search(text)) else ""
    if reason == _UNTRUSTED:
        return store_untrusted(problem, host, **fields)
    if reason:
        cause = f"The object store{host} cannot be reached: {reason}"
        return store_unreachable(problem, cause, **fields)
    if _OTHER_SERVER.search(text) is None:
        return None
    cause = f"The server{host} does not answer as an object store does"
    return store_unreachable(problem, cause, **fields)
