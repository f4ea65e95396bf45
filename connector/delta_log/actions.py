"""The state of a Delta table: what the actions of its commits leave (protocol of Delta Lake).

A file is identified by its path and its deletion vector. A commit that marks rows of a file removes
the file with the old vector and adds it with the new one. The actions of one commit have no order.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

Action = Mapping[str, Any]

_FEATURES: Final = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
        *("deletionVectors", "timestampNtz", "vacuumProtocolCheck"),
    }
)
"""Features that need nothing in a commit, unless a property or a column uses them."""
_READER_VERSIONS: Final = range(1, 4)
_WRITER_VERSIONS: Final = range(1, 8)
_PROPERTIES: Final = frozenset(
    {
        *("delta.checkpointInterval", "delta.dataSkippingStatsColumns"),
        *("delta.dataSkippingNumIndexedCols", "delta.deletedFileRetentionDuration"),
        *("delta.logRetentionDuration", "delta.enableExpiredLogCleanup"),
        "delta.enableDeletionVectors",
    }
)
"""Properties of Delta that do not change the form of a commit or of a checkpoint."""
_OFF: Final = frozenset(
    {
        *("delta.appendOnly", "delta.enableChangeDataFeed", "delta.enableInCommitTimestamps"),
        *("delta.enableRowTracking", "delta.enableTypeWidening"),
        *("delta.enableIcebergCompatV1", "delta.enableIcebergCompatV2"),
    }
)
"""Properties of Delta that are known if they are false."""
_OF_FILE: Final = frozenset(
    {
        *("path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags"),
        "deletionVector",
    }
)
_RFC_1924: Final = (
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
)
_Z85: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_ID_LENGTH: Final = 20
_IN_COLUMNS: Final = ('"delta.', '"CURRENT_DEFAULT"')
"""How the metadata of a column uses a feature of Delta."""


class FileId(NamedTuple):
    """A file of a table with its deletion vector. The empty text: it has none."""

    path: str
    vector: str

    @classmethod
    def from_action(cls, action: Action) -> FileId:
        vector = action.get("deletionVector") or {}
        offset = vector.get("offset")
        return cls(
            unquote(action["path"]),
            f"{vector['storageType']}{vector['pathOrInlineDv']}@{offset or 0}" if vector else "",
        )


def files_of(id_: FileId, action: Action) -> Iterator[str]:
    """The file of an action that adds or removes it, and the file of its deletion vector, if it has
    one below the folder of the table.
    """
    yield id_.path
    vector = action.get("deletionVector")
    if vector and vector["storageType"] == "u":
        yield vector_file(vector["pathOrInlineDv"])


@lru_cache(maxsize=20_000)
def vector_file(text: str) -> str:
    """The file of a deletion vector with this `pathOrInlineDv`, below the folder of the table.
    Raises `ValueError`.
    """
    prefix, id_ = text[:-_ID_LENGTH], uuid.UUID(bytes=decoded(text[-_ID_LENGTH:]))
    name = f"deletion_vector_{id_}.bin"
    return f"{prefix}/{name}" if prefix else name


def encoded(data: bytes) -> str:
    """Bytes as text, as in the action of a deletion vector."""
    return base64.b85encode(data).decode().translate(str.maketrans(_RFC_1924, _Z85))


def decoded(text: str) -> bytes:
    """The bytes of `encoded`. Raises `ValueError`."""
    return base64.b85decode(text.translate(str.maketrans(_Z85, _RFC_1924)))


@dataclass(frozen=True, slots=True)
class Added:
    """A file of a version. `text` is the line of the log that adds it."""

    action: Action
    text: str


@dataclass(slots=True)
class State:
    """The state of a table at `version`, -1 before the first commit. `unknown` names an action of
    another kind. Removed files are not kept: only a checkpoint has them.
    """

    version: int = -1
    protocol: Action | None = None
    metadata: Action | None = None
    transactions: dict[str, Action] = field(default_factory=dict)
    added: dict[FileId, Added] = field(default_factory=dict)
    unknown: str = ""

    def commit(self, version: int, lines: Iterable[str]) -> None:
        """Apply the actions of the next commit."""
        texts = [(text, json.loads(text)) for text in lines]
        for text, kinds in sorted(texts, key=lambda pair: "add" in pair[1]):
            for kind, action in kinds.items():
                self.take(kind, action, text)
        self.version = version

    def take(self, kind: str, action: Action, text: str = "") -> None:
        """Apply one action. `text` is its line. A checkpoint has no lines."""
        match kind:
            case "add":
                others = {name for name, value in action.items() if value is not None} - _OF_FILE
                if others:
                    self.unknown = f"a file with {min(others)}"
                text = text or json.dumps({"add": action})
                self.added[FileId.from_action(action)] = Added(action, text)
            case "remove":
                self.added.pop(FileId.from_action(action), None)
            case "txn":
                self.transactions[action["appId"]] = action
            case "protocol":
                self.protocol = action
            case "metaData":
                self.metadata = action
            case "commitInfo" | "cdc":
                pass
            case _:
                self.unknown = f"the action {kind}"

    def files(self) -> set[str]:
        """The files of the version, also those of deletion vectors."""
        named = (files_of(id_, added.action) for id_, added in self.added.items())
        return {name for names in named for name in names}

    def newest_of(self, app_id: str) -> int:
        """The greatest number that was committed under a name. -1: there is no such commit."""
        return int(self.transactions.get(app_id, {}).get("version", -1))

    def not_known(self) -> str:
        """A part of the table that this writer does not know. Empty: it knows all of it."""
        if self.unknown:
            return self.unknown
        if self.protocol is None or self.metadata is None:
            return "a log without its beginning"
        return _of_protocol(self.protocol) or _of_metadata(self.metadata)


def _of_protocol(protocol: Action) -> str:
    versions = protocol.get("minReaderVersion"), protocol.get("minWriterVersion")
    if versions[0] not in _READER_VERSIONS or versions[1] not in _WRITER_VERSIONS:
        return f"the protocol {versions[0]}, {versions[1]}"
    named = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    others = sorted(named - _FEATURES)
    return f"the feature {others[0]}" if others else ""


def _of_metadata(metadata: Action) -> str:
    for name, value in sorted((metadata.get("configuration") or {}).items()):
        is_off = name in _OFF and str(value).lower() == "false"
        if name.startswith("delta.") and name not in _PROPERTIES and not is_off:
            return f"the property {name} = {value}"
    if any(sign in metadata["schemaString"] for sign in _IN_COLUMNS):
        return "a column with a rule of Delta"
    provider = (metadata.get("format") or {}).get("provider", "parquet")
    return "" if provider == "parquet" else f"files of {provider}"


def lines_of(content: bytes) -> list[str]:
    """The actions of a commit, one a line. Other line separators, as U+2028, are part of a line.

    Raises `ValueError` without any: commits are written in one step, so the file was damaged later.
    """
    lines = [line for line in content.decode().split("\n") if line.strip()]
    if not lines:
        raise ValueError("a commit has no action")
    return lines
