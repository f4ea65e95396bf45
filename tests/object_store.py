"""The object store of a test run: SeaweedFS, a real server with the S3 API and conditional puts
(STO-6). It is started by the first test that needs it.

A suite uses it with `from tests.object_store import object_store` in its conftest.py. The store is
shared: a test puts its warehouse below a prefix of its own (`ObjectStore.warehouse`).
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from connector.config.storage import StorageConfig

HOST = "127.0.0.1"
BUCKET, FAULTY = "lake", "faulty"
"""Tests reach the second one through a proxy that makes faults."""
KEY, SECRET = "test-key", "test-secret"
READER_KEY, READER_SECRET = "reader-key", "reader-secret"
PAGE = Path(__file__).parents[1] / "docs/howto/let-a-colleague-read.md"
POLICY = json.loads(PAGE.read_text("utf-8").split("```text\n")[1].split("```")[0])
"""The policy of a colleague, as the page has it."""
POLICIES = {"colleague": POLICY} | {
    f"no-{right['Action'].removeprefix('s3:')}": {
        **POLICY,
        "Statement": [other for other in POLICY["Statement"] if other != right],
    }
    for right in POLICY["Statement"]
}
"""That policy, and the policy without each of its rights. The access key is the name."""


def _identity(name: str, key: str, secret: str, **rights: list[str]) -> dict[str, object]:
    return {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], **rights}


_IDENTITIES = {
    "identities": [
        _identity("owner", KEY, SECRET, actions=["Admin", "Read", "Write", "List", "Tagging"]),
        _identity("reader", READER_KEY, READER_SECRET, actions=["Read", "List"]),
        *(_identity(name, name, READER_SECRET, policyNames=[name]) for name in POLICIES),
    ],
    "policies": [
        {"name": name, "content": json.dumps(policy)} for name, policy in POLICIES.items()
    ],
}
_START_WITHIN_S = 60.0

_running: dict[str, ObjectStore] = {}


@dataclass(frozen=True)
class ObjectStore:
    """A store with the buckets `BUCKET` and `FAULTY`."""

    port: int
    process: subprocess.Popen[bytes]
    addresses: tuple[str, ...] = ()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def storage(self, *, port: int | None = None, read_only: bool = False) -> StorageConfig:
        """The settings of a client. `port` is that of a proxy before the store."""
        return StorageConfig(
            endpoint=f"http://{HOST}:{port or self.port}",
            access_key=READER_KEY if read_only else KEY,
            secret_key=READER_SECRET if read_only else SECRET,
        )

    def warehouse(self, bucket: str = BUCKET) -> str:
        """The URI of a new warehouse."""
        return f"s3a://{bucket}/{uuid.uuid4().hex[:12]}"

    def shell(self, *commands: str) -> None:
        """Run commands in the store's own shell."""
        subprocess.run(
            [str(binary()), "shell", *self.addresses],
            input="\n".join([*commands, ""]).encode(),
            capture_output=True,
            check=False,
            timeout=_START_WITHIN_S,
        )


def binary() -> Path:
    """The server, beside the Python of this environment."""
    return Path(sys.executable).with_name("weed")


@pytest.fixture(scope="session")
def object_store(request: pytest.FixtureRequest) -> ObjectStore:
    # One for the run, not one for each conftest that imports this fixture.
    if "store" not in _running:
        stack = ExitStack()
        request.config.add_cleanup(stack.close)
        _running["store"] = stack.enter_context(started())
    return _running["store"]


@contextmanager
def started() -> Iterator[ObjectStore]:
    """A store of its own, for a test that kills or stops it."""
    with tempfile.TemporaryDirectory(prefix="lowmark-test-store-") as folder:
        store = _start(Path(folder))
        try:
            yield store
        finally:
            store.process.kill()
            store.process.wait()


def _start(folder: Path) -> ObjectStore:
    (folder / "s3.json").write_text(json.dumps(_IDENTITIES))
    names = [
        f"{part}.port{grpc}" for part in ("master", "volume", "filer") for grpc in ("", ".grpc")
    ]
    ports = dict(zip([*names, "s3.port", "s3.port.grpc"], _free_ports(8), strict=True))
    command = [
        *(str(binary()), "server", f"-ip={HOST}", f"-ip.bind={HOST}", f"-dir={folder}"),
        *("-master.volumeSizeLimitMB=64", "-volume.max=0", "-s3", f"-s3.config={folder}/s3.json"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.localSocket={folder}/s3.sock"),
        f"-filer.localSocket={folder}/filer.sock",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    addresses = (
        f"-{part}={HOST}:{ports[f'{part}.port']}.{ports[f'{part}.port.grpc']}"
        for part in ("master", "filer")
    )
    store = ObjectStore(ports["s3.port"], process, tuple(addresses))
    try:
        _make_buckets(store, time.monotonic() + _START_WITHIN_S)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return store


def _make_buckets(store: ObjectStore, deadline: float) -> None:
    """Wait until the store answers, make the buckets, and write to both: the first write takes
    long, because the store makes its volumes then.
    """
    while not (_has_bucket(store, BUCKET) and _has_bucket(store, FAULTY)):
        assert store.process.poll() is None, "the object store has ended"
        assert time.monotonic() < deadline, "the object store does not start"
        time.sleep(0.2)


def _has_bucket(store: ObjectStore, bucket: str) -> bool:
    from deltalake import write_deltalake

    from connector.lake.small_tables import as_arrow

    with suppress(OSError):
        socket.create_connection((HOST, store.port), timeout=1).close()
        store.shell(f"s3.bucket.create -name {bucket}")
        write_deltalake(
            f"s3://{bucket}/first-write",
            as_arrow([{"a": 1}], {"a": "int64"}),
            mode="overwrite",
            storage_options=store.storage().lake_options(),
        )
        return True
    return False


def _free_ports(count: int) -> Iterator[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        yield from [one.getsockname()[1] for one in found]


__all__ = ["BUCKET", "FAULTY", "HOST", "ObjectStore", "object_store", "started"]
