"""The checksum beside a commit. It spares Delta's readers the state of the log for the metadata,
the protocol, the numbers of applications and the size of a table. The list of files grows with the
table, so it is only there if Spark is about to need it.
"""

from __future__ import annotations

import json
from typing import Any

from connector.delta_log.actions import State


def checksum_file(version: int) -> str:
    return f"{version:020}.crc"


def checksum_of(state: State, transaction: str, *, lists_files: bool = False) -> bytes:
    """The checksum of a version, whose commit has the id `transaction`."""
    files = [added.action for added in state.added.values()]
    vectors = [vector for action in files if (vector := action.get("deletionVector"))]
    checksum: dict[str, Any] = {
        "txnId": transaction,
        "tableSizeBytes": sum(int(action["size"]) for action in files),
        "numFiles": len(files),
        "numDeletedRecordsOpt": sum(int(vector["cardinality"]) for vector in vectors),
        "numDeletionVectorsOpt": len(vectors),
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": list(state.transactions.values()),
        "domainMetadata": [],
        "metadata": state.metadata,
        "protocol": state.protocol,
    }
    if lists_files:
        checksum["allFiles"] = [{**action, "dataChange": False} for action in files]
    return json.dumps(checksum, separators=(",", ":")).encode()
