"""Which commits of other programs change no row (RUN-3).

Theory. A lake's maintenance replaces files (OPTIMIZE), removes old ones (VACUUM), or sets a
property of a table. Delta marks each added and removed file of such a commit with `dataChange`
false. Then the rows and their internal columns are those before it, and so is the state of the
table. Every other commit adds, changes or removes rows, or changes how rows are stored.

The form of a table is its columns, its partition columns, its features, and the properties of
lowmark. A commit may write all of it again. It changes nothing if each of these is as before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

_FILES: Final = frozenset({"add", "remove"})
_HARMLESS: Final = frozenset({"commitInfo", "txn", "metaData", "protocol", "domainMetadata"})
_OURS: Final = re.compile(
    r"lowmark\.|delta\.(columnMapping\.|(appendOnly|deletedFileRetentionDuration"
    r"|enableDeletionVectors|enableExpiredLogCleanup|logRetentionDuration)$)"
)
"""The properties of a table that lowmark needs as they are."""
_OLD_FEATURES: Final = frozenset({"appendOnly", "invariants"})
"""The features of a table of an old version, which does not list its features."""
_FREE_FEATURES: Final = frozenset(
    {
        *("changeDataFeed", "timestampNtz", "vacuumProtocolCheck"),
        *("variantType", "variantType-preview"),
    }
)
"""Features that do not change how the rows of the same columns are stored. deltalake adds one to
each table whose properties it sets.
"""


def changes_no_row(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these actions of a commit change no row, apart from the form of the table.

    Files that are added again, or without a removed one, are not known to have the rows of before.
    """
    kinds = {kind for action in actions for kind in action}
    files = [action[kind] for action in actions for kind in _FILES if kind in action]
    is_replacement = kinds.isdisjoint(_FILES) or "remove" in kinds
    return (
        kinds <= _FILES | _HARMLESS
        and is_replacement
        and all(file.get("dataChange") is False for file in files)
        and not any(_is_ours(action) for action in actions)
    )


def _is_ours(action: Mapping[str, Any]) -> bool:
    """Whether an action has the number of an apply or a batch of lowmark."""
    return str(action.get("txn", {}).get("appId", "")).startswith("lowmark/")


@dataclass(frozen=True, slots=True)
class TableForm:
    """The form of a table as a commit has it. None: the commit does not have this part."""

    table: str | None = None
    features: frozenset[str] | None = None

    @classmethod
    def from_actions(cls, actions: Sequence[Mapping[str, Any]]) -> Self:
        given = {kind: action[kind] for action in actions for kind in action}
        return cls._from_parts(given.get("metaData"), given.get("protocol"))

    @classmethod
    def from_checksum(cls, content: str | bytes | None) -> Self:
        """The form in the file beside a commit. A file that cannot be read has none."""
        try:
            checksum = json.loads(content or "{}")
            return cls._from_parts(checksum.get("metadata"), checksum.get("protocol"))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return cls()

    @classmethod
    def _from_parts(
        cls, metadata: Mapping[str, Any] | None, protocol: Mapping[str, Any] | None
    ) -> Self:
        return cls(
            None if metadata is None else _table_of(metadata),
            None if protocol is None else _features_of(protocol),
        )

    @property
    def is_given(self) -> bool:
        """Whether a part is there."""
        return self.table is not None or self.features is not None

    @property
    def is_whole(self) -> bool:
        """Whether each part is there."""
        return self.table is not None and self.features is not None

    def or_else(self, before: TableForm) -> TableForm:
        """This form, with the missing parts from one before."""
        table = before.table if self.table is None else self.table
        features = before.features if self.features is None else self.features
        return TableForm(table, features)

    def is_that_of(self, before: TableForm) -> bool:
        """Whether each part is that of a form before. A missing part has not changed."""
        is_table = self.table is None or self.table == before.table
        return is_table and (
            self.features is None
            or (before.features is not None and self.features <= before.features)
        )


def _table_of(metadata: Mapping[str, Any]) -> str:
    """The parts of Delta's metadata that rows depend on."""
    properties = metadata.get("configuration") or {}
    parts = {
        "id": metadata.get("id"),
        "columns": json.loads(metadata["schemaString"]),
        "partition": metadata.get("partitionColumns") or [],
        "properties": {name: text for name, text in properties.items() if _OURS.match(name)},
    }
    return json.dumps(parts, sort_keys=True)


def _features_of(protocol: Mapping[str, Any]) -> frozenset[str]:
    named = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    return (_OLD_FEATURES | named) - _FREE_FEATURES
