"""The object store of a warehouse: one set of settings for Spark and for deltalake (STO-1).

Where the settings leave a credential out, both clients look where AWS's own tools look: in the
environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`), and then in the
machine's role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from connector.config.settings_reader import Form

DEFAULT_REGION: Final = "us-east-1"
"""Stores other than Amazon's have no regions, but their clients want the name of one."""
S3_SCHEME: Final = "s3a://"
"""Spark knows S3 by this name only. deltalake knows it by `s3://`, too."""

SPARK_DEFAULTS: Final = {
    "spark.hadoop.fs.s3a.attempts.maximum": "3",
    "spark.hadoop.fs.s3a.retry.limit": "3",
    "spark.hadoop.fs.s3a.retry.interval": "500ms",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "5s",
    "spark.hadoop.fs.s3a.connection.timeout": "60s",
}
"""How long Spark's S3 client tries again. With its defaults, a wrong endpoint takes minutes. Your
settings in [spark.conf] have priority.
"""
LAKE_DEFAULTS: Final = {
    "max_retries": "6",
    "retry_timeout": "30s",
    "connect_timeout": "5s",
}
"""The same for deltalake. Your settings in [storage.options] have priority."""

_UNUSABLE: Final = re.compile(r"[\x00-\x1f\x7f\[\]\\^|\ud800-\udfff]|%[0-9a-fA-F]{2}")
"""What deltalake does not take as a part of a path: it forms URLs of paths, and reads `a%20b` as `a
b`. Spark uses the path as it is. Both were tried with each character.
"""
_UNUSABLE_IN_URI: Final = re.compile(r"[%?#]")
_UNUSABLE_IN_S3: Final = re.compile(r"[*{}]|//|/\.\.?(?=/|$)")
"""Patterns of Spark, and the parts of a path that the clients of S3 leave out or keep."""

_ENDPOINT: Final = Form(
    r"https?://[^\s/@?#]+/*",
    "http:// or https:// with a host, without credentials and without a path",
    "http://127.0.0.1:8333",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """How the store of a warehouse is reached.

    - `endpoint`: the URL of a store that is not Amazon's, for example `http://127.0.0.1:8333`.
    - `region`: the region of the bucket. Empty: Amazon's default, or `us-east-1` at an endpoint.
    - `path_style`: the bucket is in the path of a URL, not in its host. None: at an endpoint.
    - `access_key`, `secret_key`, `session_token`: both keys or none. Empty: as AWS's tools find
      them.
    - `shared_folder`: the warehouse is a local folder that all hosts of the cluster have mounted
      (SCL-7).
    - `options`: options of deltalake, passed on unchanged, for stores other than S3 (STO-7).
    """

    endpoint: Annotated[str, _ENDPOINT] = ""
    region: str = ""
    path_style: bool | None = None
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    shared_folder: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "endpoint", self.endpoint.rstrip("/"))

    @property
    def is_path_style(self) -> bool:
        return bool(self.endpoint) if self.path_style is None else self.path_style

    @property
    def known_region(self) -> str:
        """The region of the settings. Empty: the clients look for it."""
        return self.region or (DEFAULT_REGION if self.endpoint else "")

    def spark_settings(self) -> dict[str, str]:
        """The settings of Spark's S3 client. Those that are not given are left out."""
        given = {
            "endpoint": self.endpoint,
            "endpoint.region": self.known_region,
            "path.style.access": "true" if self.is_path_style else "",
            "access.key": self.access_key,
            "secret.key": self.secret_key,
            "session.token": self.session_token,
        }
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in given.items() if value}

    def lake_options(self) -> dict[str, str]:
        """The options of deltalake. Those that are not given are left out."""
        given = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true" if self.endpoint.startswith("http://") else "",
            "AWS_REGION": self.known_region,
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false" if self.is_path_style else "",
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_SESSION_TOKEN": self.session_token,
        }
        return {**{name: value for name, value in given.items() if value}, **self.options}


def is_s3(warehouse: str) -> bool:
    """Whether the warehouse is in an S3 store, however it is spelled."""
    return spelled(warehouse).startswith(S3_SCHEME)


def is_local(warehouse: str) -> bool:
    """Whether the warehouse is a folder of this machine."""
    return "://" not in warehouse or warehouse.startswith("file://")


def look_every_s(warehouse: str) -> float:
    """How often a running pipeline looks for requests of operators and for changes of others.

    Each look at an object store costs requests (STO-5).
    """
    return 10.0 if is_local(warehouse) else 60.0


def spelled(warehouse: str) -> str:
    """The warehouse as Spark spells it: `s3a://` in place of `s3://`, and no slash at the end."""
    if "://" not in warehouse:
        return warehouse
    return re.sub(r"^s3n?://", S3_SCHEME, warehouse).rstrip("/")


def warehouse_fault(warehouse: str) -> str:
    """The form that a wrong path or URI of a warehouse should have. Empty: it is right."""
    scheme, is_uri, rest = warehouse.partition("://")
    if not is_uri:
        return _without(_UNUSABLE.search(warehouse))
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        return "a path, or a URI such as s3a://bucket/prefix"
    if "@" in rest.partition("/")[0] and not scheme.startswith(("abfs", "wasb")):
        return "a URI without credentials"
    of_s3 = scheme in {"s3", "s3a", "s3n"}
    if of_s3 and not re.fullmatch(r"[a-z0-9][-.a-z0-9]{1,61}[a-z0-9](/[^?#]*)?", rest):
        return "s3a:// and the name of a bucket, then a path without ? and #"
    return _without(
        _UNUSABLE.search(rest)
        or _UNUSABLE_IN_URI.search(rest)
        or (_UNUSABLE_IN_S3.search(rest.rstrip("/")) if of_s3 else None)
    )


def _without(match: re.Match[str] | None) -> str:
    if match is None:
        return ""
    text = match[0] if match[0].isprintable() else f"the character U+{ord(match[0]):04X}"
    return f"a path without {text}, because Spark and deltalake would use different folders"
