"""The errors of an object store, from the texts of deltalake and of Spark's S3 client (STO-4).

A text of an error can have the id of a key, or parts of a signed request. So only known words of it
are shown.
"""

from __future__ import annotations

import re
from typing import Final

from connector.errors import ErrorCode, TableError

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
_NO_BUCKET: Final = re.compile("NoSuchBucket|UnknownStoreException|bucket does not exist")
_REGION: Final = re.compile("PermanentRedirect|AWSRedirectException|IllegalLocationConstraint")
_DENIED: Final = re.compile(
    r"AccessDenied(?!Exception)|AllAccessDisabled|403 Forbidden|Status Code: 403"
    r"|necessary privileges"
)
_UNCONDITIONAL: Final = re.compile(r"NotImplemented|Status Code: 501|501 Not Implemented")
_BUSY: Final = re.compile(
    r"SlowDown|\bInternalError\b|ServiceUnavailable|Status Code: 5\d\d|AWSStatus500Exception"
    r"|AWSServiceThrottledException|\b50[0234] [A-Z][a-z]+"
)
_UNTRUSTED: Final = (
    "the certificate of the server has expired, is for another host, or is of an authority that"
    " this machine does not know"
)
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
_SETTINGS: Final = "Correct the section [storage]"


def store_error(text: str, problem: str, **fields: object) -> TableError | None:
    """The error for a `problem` with an object store. `text` is that of the error of a library.
    None: it does not come from an object store, or it is not a known one.
    """
    if _FROM_STORE.search(text) is None:
        return None
    return _refusal(text, problem, fields) or _trouble(text, problem, fields)


def _refusal(text: str, problem: str, fields: dict[str, object]) -> TableError | None:
    """The error for a store that answers, and will answer the same again."""
    if _CLOCK.search(text):
        return TableError(
            ErrorCode.STORE_CLOCK_DIFFERENT,
            problem,
            "The clock of this machine and that of the object store differ by more than 15 minutes",
            "Set the clock of this machine, for example with NTP",
            **fields,
        )
    if _NO_BUCKET.search(text):
        return TableError(
            ErrorCode.BUCKET_MISSING,
            problem,
            "The object store has no bucket of this name, or it is in another region",
            "Create the bucket, or correct warehouse or storage.region",
            **fields,
        )
    if _REGION.search(text):
        return TableError(
            ErrorCode.BUCKET_MISSING,
            problem,
            "The bucket is in another region",
            "Set storage.region to the region of the bucket",
            **fields,
        )
    if _NO_CREDENTIALS.search(text):
        return TableError(
            ErrorCode.STORE_CREDENTIALS_REFUSED,
            problem,
            "No credentials of the object store were found",
            "Set access_key and secret_key in [storage], or AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY in the environment, or give the machine a role",
            **fields,
        )
    if (refused := _CREDENTIALS.search(text)) is not None:
        return TableError(
            ErrorCode.STORE_CREDENTIALS_REFUSED,
            problem,
            f"The object store refuses the credentials: {refused[0]}{_MEANS.get(refused[0], '')}",
            f"{_SETTINGS}, or the variables CONNECTOR__STORAGE__*: access_key, secret_key,"
            " session_token, region. Without any, those of AWS's tools are used, such as"
            " AWS_ACCESS_KEY_ID",
            **fields,
        )
    if _DENIED.search(text):
        return TableError(
            ErrorCode.STORE_ACCESS_DENIED,
            problem,
            "The credentials are valid, but do not allow it",
            "Allow this user to list the bucket, and to get, put and delete objects below the"
            " warehouse. A command that only reads needs to list and to get",
            **fields,
        )
    return None


def _trouble(text: str, problem: str, fields: dict[str, object]) -> TableError | None:
    """The error for a store that may answer later."""
    if _UNCONDITIONAL.search(text):
        return unconditional(problem, **fields)
    cause = next((cause for cause, sign in _UNREACHABLE.items() if sign.search(text)), "")
    if (busy := _BUSY.search(text)) is not None and cause not in _CERTAIN:
        return TableError(
            ErrorCode.STORE_UNREACHABLE,
            problem,
            f"The object store answers with an error, also when asked again: {busy[0]}",
            "Try again later. Nothing is lost: lowmark continues where it stopped",
            **fields,
        )
    at = f" at {asked[1] or asked[2]}" if (asked := _AT.search(text)) else ""
    if not cause and _OTHER_SERVER.search(text):
        return TableError(
            ErrorCode.STORE_UNREACHABLE,
            problem,
            f"The server{at} does not answer as an object store does",
            "Correct storage.endpoint. It may be the port of another server",
            **fields,
        )
    if not cause:
        return None
    return TableError(
        ErrorCode.STORE_UNREACHABLE,
        problem,
        f"The object store{at} cannot be reached: {cause}",
        "Name the file of the authority's certificate in SSL_CERT_FILE, and in the trust store of"
        " Spark's JVM"
        if cause == _UNTRUSTED
        else f"Check the network and the store. {_SETTINGS} if its endpoint is wrong. Nothing is"
        " lost: lowmark continues where it stopped",
        **fields,
    )


def unconditional(problem: str, **fields: object) -> TableError:
    """The error for a store in which a second writer could replace a commit (STO-3)."""
    return TableError(
        ErrorCode.STORE_NOT_CONDITIONAL,
        problem,
        "The object store does not know conditional PUTs (If-None-Match), so a second writer could"
        " replace a commit",
        "Use a store that knows them, for example Amazon S3, or a newer release of yours",
        **fields,
    )
