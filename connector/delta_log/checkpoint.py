"""Checkpoints of a log: all actions that are in force at a version, as a Parquet file.

It also has the files that were removed a short time ago, so that VACUUM knows when.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from connector.delta_log.actions import Action, FileId, State, files_of

CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
"""A checkpoint of one file, or a part of one of several. Delta's second form has other names."""
_MAPS: Final = frozenset({"partitionValues", "tags", "configuration", "options"})
_TEXTS: Final = pa.map_(pa.string(), pa.string())
_VECTOR: Final = pa.struct(
    [
        *(("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int32())),
        *(("sizeInBytes", pa.int32()), ("cardinality", pa.int64()), ("maxRowIndex", pa.int64())),
    ]
)
_FILE: Final = [
    *(("path", pa.string()), ("partitionValues", _TEXTS), ("size", pa.int64())),
    *(("tags", _TEXTS), ("deletionVector", _VECTOR), ("dataChange", pa.bool_())),
    ("stats", pa.string()),
]
_SCHEMA: Final = pa.schema(
    [
        (
            "txn",
            pa.struct(
                [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]
            ),
        ),
        ("add", pa.struct([*_FILE, ("modificationTime", pa.int64())])),
        (
            "remove",
            pa.struct(
                [
                    *_FILE,
                    ("deletionTimestamp", pa.int64()),
                    ("extendedFileMetadata", pa.bool_()),
                ]
            ),
        ),
        (
            "metaData",
            pa.struct(
                [
                    *((name, pa.string()) for name in ("id", "name", "description")),
                    ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                    *(("schemaString", pa.string()), ("partitionColumns", pa.list_(pa.string()))),
                    *(("configuration", _TEXTS), ("createdTime", pa.int64())),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    *(("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())),
                    *(("readerFeatures", pa.list_(pa.string())),),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
    ]
)
_INTERVAL: Final = re.compile(r"interval (\d+) (second|minute|hour|day|week)s?")
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_RETENTION: Final = "interval 1 week"
_COMPUTED: Final = frozenset({"stats_parsed", "partitionValues_parsed"})


def checkpoints_in(names: Iterable[str]) -> dict[int, list[str]]:
    """The files of the checkpoints in a log, by version."""
    parts = dict[int, list[str]]()
    for name in names:
        if (match := CHECKPOINT.fullmatch(name)) is not None:
            parts.setdefault(int(match[1]), []).append(name)
    return parts


def read_checkpoint(
    version: int, parts: Sequence[str], read: Callable[[str], bytes | None]
) -> State | None:
    """The state of the checkpoint with these files. None: files are missing or damaged."""
    counts = {match[3] for name in parts if (match := CHECKPOINT.fullmatch(name))}
    if len(counts) != 1 or len(parts) != int(counts.pop() or 1):
        return None
    state = State()
    for name in sorted(parts):
        content = read(name)
        if content is None:
            return None
        try:
            rows = _in_force(content)
        except (OSError, ValueError):  # the parts of pyarrow's errors for a damaged file
            return None
        for row in rows:
            for kind, action in row.items():
                if action is not None:
                    _take(state, kind, action)
    state.version = version
    return state


def _in_force(content: bytes) -> list[dict[str, Any]]:
    """The actions in a file of a checkpoint, without the files that were removed. There can be far
    more of these.
    """
    file = parquet.ParquetFile(BytesIO(content))
    kinds = [name for name in file.schema_arrow.names if name != "remove"]
    rows = file.read(columns=kinds, use_threads=False)
    mask: Any = None
    for kind in kinds:
        is_there = pc.is_valid(rows[kind])
        mask = is_there if mask is None else pc.or_(mask, is_there)
    return list(rows.filter(mask).to_pylist()) if kinds else []


def protecting(
    removed: Mapping[FileId, Action], live: Collection[str], existing: Collection[str]
) -> list[Action]:
    """Those of the removed files that protect a file from VACUUM: it exists, and is not one of the
    files `live` of the newest version. Of a file that was removed often, each time with another
    deletion vector, the last removal is enough.
    """
    last = dict[str, tuple[int, FileId]]()
    for id_, action in removed.items():
        at = int(action.get("deletionTimestamp") or 0)
        for name in files_of(id_, action):
            if at >= last.get(name, (0, id_))[0]:
                last[name] = at, id_
    protect = {id_ for name, (_, id_) in last.items() if name in existing and name not in live}
    return [action for id_, action in removed.items() if id_ in protect]


def _take(state: State, kind: str, action: dict[str, Any]) -> None:
    if kind == "add" and action.get("stats") is None and action.get("stats_parsed") is not None:
        state.unknown = "a checkpoint whose statistics have another form"
    if kind == "checkpointMetadata" or kind == "sidecar":
        state.unknown = "a checkpoint of the second form"
    if kind != "domainMetadata" or not action.get("removed"):
        state.take(kind, _plain(action))


def _plain(action: dict[str, Any]) -> dict[str, Any]:
    """An action without absent values, as a line of a commit has it."""
    return {
        name: dict(value) if name in _MAPS else _plain(value) if isinstance(value, dict) else value
        for name, value in action.items()
        if value is not None and name not in _COMPUTED
    }


def checkpoint_file(version: int) -> str:
    return f"{version:020}.checkpoint.parquet"


def removed_after(
    removed: Mapping[FileId, Action], commits: Iterable[Iterable[str]]
) -> dict[FileId, Action]:
    """The removed files after the lines of commits, from those before."""
    after = dict(removed)
    for lines in commits:
        actions = [json.loads(line) for line in lines]
        gone = (kinds["remove"] for kinds in actions if "remove" in kinds)
        after |= {FileId.from_action(action): action for action in gone}
        for kinds in actions:
            if "add" in kinds:
                after.pop(FileId.from_action(kinds["add"]), None)
    return after


def removed_in(content: bytes) -> dict[FileId, Action]:
    """The removed files in a file of a checkpoint."""
    rows = parquet.read_table(BytesIO(content), columns=["remove"], use_threads=False)
    removed = (_plain(row["remove"]) for row in rows.to_pylist() if row["remove"] is not None)
    return {FileId.from_action(action): action for action in removed}


def checkpoint_of(state: State, removed: Iterable[Action], now_ms: int) -> tuple[bytes, int]:
    """The checkpoint of a state, and the number of its actions. `removed` are the removed files. Of
    these, it has those that VACUUM keeps at `now_ms`.
    """
    assert state.metadata is not None
    oldest = now_ms - _retention_ms(state.metadata)
    rows: list[dict[str, Action]] = [{"protocol": state.protocol}, {"metaData": state.metadata}]  # type: ignore[dict-item]
    rows += ({"txn": action} for action in state.transactions.values())
    rows += ({"add": {**added.action, "dataChange": False}} for added in state.added.values())
    rows += (
        {"remove": {**action, "dataChange": False}}
        for action in removed
        if (action.get("deletionTimestamp") or 0) > oldest
    )
    columns = [
        pa.array([row.get(kind) for row in rows], _SCHEMA.field(kind).type)
        for kind in _SCHEMA.names
    ]
    sink = BytesIO()
    table = pa.Table.from_arrays(columns, schema=_SCHEMA)
    parquet.write_table(table, sink, compression="snappy")
    return sink.getvalue(), len(rows)


def _retention_ms(metadata: Action) -> int:
    """How long VACUUM keeps removed files. Without end, if that has an unusual form."""
    text = (metadata.get("configuration") or {}).get("delta.deletedFileRetentionDuration")
    match = _INTERVAL.fullmatch(text or _RETENTION)
    return int(match[1]) * _SECONDS[match[2]] * 1_000 if match else 2**62
