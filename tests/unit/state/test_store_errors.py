"""Errors of an object store in plain words (STO-4)."""

from __future__ import annotations

import pytest

from connector.state.damage import explained
from connector.state.store_errors import store_error

SECRETS = ("AKIAEXAMPLE", "hunter2", "20261125T120000Z", "\x1b", "\n")
ANSWER = (
    "Kernel error -> The operation lacked the necessary privileges to complete for path t\n"
    "  \x1b[31m↳\x1b[0m Error performing GET http://store/lake/t in 1ms - Server returned non-2xx"
    " status code\n \x1b[31m↳\x1b[0m 403 Forbidden\n <Error><Code>{code}</Code><AWSAccessKeyId>"
    "AKIAEXAMPLE</AWSAccessKeyId><StringToSign>AWS4-HMAC-SHA256 20261125T120000Z hunter2"
    "</StringToSign></Error>"
)
REFUSED = (
    "Kernel error -> Generic S3 error\n \x1b[31m↳\x1b[0m Error performing GET http://h:1/lake in"
    " 367ms, after 3 retries - HTTP error\n error sending request\n {cause}"
)
JAVA = (
    "An error occurred while calling o1.save.\n: java.nio.file.AccessDeniedException:"
    " s3a://lake/t: getFileStatus on s3a://lake/t: software.amazon.awssdk.services.s3.model."
    "S3Exception: {message} (Service: S3, Status Code: {status}, Request ID: null)"
)


@pytest.mark.parametrize(
    ("text", "code", "cause"),
    [
        (ANSWER.format(code="InvalidAccessKeyId"), "STORE_ACCESS_DENIED", "InvalidAccess"),
        (ANSWER.format(code="SignatureDoesNotMatch"), "STORE_ACCESS_DENIED", "Signature"),
        (ANSWER.format(code="ExpiredToken"), "STORE_ACCESS_DENIED", "ExpiredToken"),
        (ANSWER.format(code="AccessDenied"), "STORE_ACCESS_DENIED", "do not allow"),
        (ANSWER.format(code="RequestTimeTooSkewed"), "STORE_ACCESS_DENIED", "15 minutes"),
        (ANSWER.format(code="NoSuchBucket"), "BUCKET_MISSING", "no bucket"),
        (ANSWER.format(code="PermanentRedirect"), "BUCKET_MISSING", "another region"),
        (REFUSED.format(cause="Connection refused (os error 111)"), "STORE_UNREACHABLE", "listens"),
        (REFUSED.format(cause="dns error"), "STORE_UNREACHABLE", "this name"),
        (REFUSED.format(cause="operation timed out"), "STORE_UNREACHABLE", "answer in time"),
        (
            REFUSED.format(cause="invalid peer certificate\nUnknownIssuer"),
            "STORE_UNREACHABLE",
            "of an authority that this machine does not know",
        ),
        (
            JAVA.format(message="PKIX path building failed\n at withInternalError(", status=0),
            "STORE_UNREACHABLE",
            "of an authority that this machine does not know",
        ),
        (
            JAVA.format(message="Connect to h:1 [h/1.1.1.1] failed: timed out", status=0),
            "STORE_UNREACHABLE",
            "at h:1 cannot",
        ),
        (
            "Kernel error -> Generic S3 error\nContent-Length Header missing from response",
            "STORE_UNREACHABLE",
            "does not answer as an object store",
        ),
        (
            (
                "Kernel error -> Generic S3 error\nError performing list request\nError performing"
                " GET http://h:1/lake - Server returned non-2xx status code\n404 Not Found\n404"
            ),
            "STORE_UNREACHABLE",
            "The server at http://h:1 does not answer",
        ),
        (REFUSED.format(cause="<Code>SlowDown</Code>"), "STORE_UNREACHABLE", "SlowDown"),
        (REFUSED.format(cause="501 Not Implemented"), "STORE_NOT_CONDITIONAL", "If-None-Match"),
        (
            "Kernel error -> Generic S3 error: PUT http://169.254.169.254/latest/api/token",
            "STORE_ACCESS_DENIED",
            "No credentials",
        ),
        (JAVA.format(message="null", status=403), "STORE_ACCESS_DENIED", "do not allow"),
        (JAVA.format(message="internal", status=500), "STORE_UNREACHABLE", "Status Code: 500"),
        (JAVA.format(message="NoAuthWithAWSException", status=0), "STORE_ACCESS_DENIED", ""),
        (
            "org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://lake/': Bucket does not exist",
            "BUCKET_MISSING",
            "no bucket",
        ),
    ],
)
def test_the_cause_is_named_and_nothing_of_a_signed_request(
    text: str, code: str, cause: str
) -> None:
    error = store_error(text, "It cannot be read", path="s3a://lake/t")
    assert error is not None
    assert (error.code, cause in error.cause) == (code, True), str(error)
    assert error.remedy
    assert error.fields["path"] == "s3a://lake/t"
    assert not [secret for secret in SECRETS if secret in str(error)]


@pytest.mark.parametrize(
    "text",
    [
        "Connection refused by broker",
        "Generic S3 error: Object at location t/part-1.parquet not found",
        "java.io.FileNotFoundException at org.apache.hadoop.fs.s3a.S3AFileSystem.open",
    ],
)
def test_another_error_is_not_explained_by_the_store(text: str) -> None:
    assert store_error(text, "It cannot be read") is None


def test_a_local_table_is_never_in_a_store() -> None:
    text = ANSWER.format(code="AccessDenied")
    assert explained("/w/t", "read", text) is None
    result = explained("s3a://lake/t", "read", text)
    assert result is not None
    assert result.problem == "The table at s3a://lake/t cannot be read"
