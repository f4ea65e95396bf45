"""Warehouses without a JVM: changelogs and tables that say what they would say, and hold no
change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltalake import CommitProperties, write_deltalake

from connector.lake.small_tables import as_arrow
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState

FRONTIERS = {"kind": "string", "ingest_batch": "int64", "frontier": "string", "slot": "int64"}


def commit(
    path: Path,
    rows: list[dict[str, Any]],
    types: dict[str, str],
    said: dict[str, Any],
    **others: Any,
) -> None:
    """Append rows, and say something in the commit as ours do."""
    said_as = CommitProperties(custom_metadata={"userMetadata": json.dumps({"lowmark": said})})
    write_deltalake(
        str(path), as_arrow(rows, types), mode="append", commit_properties=said_as, **others
    )


def log_progress(
    warehouse: Path,
    stream: str,
    progress: Progress,
    ends: Mapping[int, int] | None = None,
    changelog_id: str | None = None,
) -> None:
    """The commit that follows a batch, read up to `ends`: the frontier as a row, the rest as
    metadata (TBL-5).
    """
    row = {
        "kind": "frontier",
        "ingest_batch": progress.ingest_batch,
        "frontier": json.dumps(progress.frontier.to_json()),
        "slot": -3,
    }
    end = {str(number): offset for number, offset in (ends or {}).items()}
    said = {
        "stream": stream,
        "progress": progress.to_json(),
        "ingest_batch": progress.ingest_batch,
        "end_offsets": end,
    } | ({} if changelog_id is None else {"changelog_id": changelog_id})
    commit(warehouse / f"streams/{stream}/changelog", [row], FRONTIERS, said, partition_by=["slot"])


def log_table(
    warehouse: Path,
    table: str,
    table_state: TableState,
    properties: Mapping[str, str] | None = None,
) -> None:
    """The commit of an apply (TBL-10). `properties` are those of a table that is made."""
    path = warehouse / f"tables/{table}/data"
    commit(path, [{"id": "a"}], {"id": "string"}, table_state.to_json(table))
    if properties is not None:  # deltalake refuses to write such properties
        log = path / "_delta_log/00000000000000000000.json"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if "metaData" in line:
                line["metaData"]["configuration"] = dict(properties)
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
