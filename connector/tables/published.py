"""The definition of a table as programs without access to the warehouse read it (EVO-1).

The topic `<topic>.tables` is compacted. The key of a record is the name of a table, and the value a
JSON object. A key that begins with `source:` names a table of the source of a bridge (SRC-5). The
claim of the bridge has the key `bridge:` (SRC-8).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from connector.errors import ConfigError
from connector.tables.definition import TableDefinition
from connector.tables.stored_definition import definition_from, stored_definition

_TABLES: Final = ".tables"
SOURCE_PREFIX: Final = "source:"
BRIDGE_KEY: Final = "bridge:"
DAMAGES: Final = (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The errors of decoding a value of another form, besides `ValueError`."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published definition. A rebuild keeps `table_id`. `version` counts up with each change of
    the columns.
    """

    table_id: str
    version: int
    definition: TableDefinition

    def to_value(self) -> bytes:
        """Return the value of the record."""
        stored = {
            "table_id": self.table_id,
            "version": self.version,
            "definition": stored_definition(self.definition),
        }
        return json.dumps(stored, separators=(",", ":")).encode()

    @staticmethod
    def from_value(value: bytes) -> PublishedTable:
        """The inverse of `to_value`. Raises `ValueError` if it is not such a value."""
        try:
            stored = json.loads(value)
            definition = definition_from(stored["definition"])
            return PublishedTable(str(stored["table_id"]), int(stored["version"]), definition)
        except (*DAMAGES, ConfigError) as error:
            raise ValueError(str(error)) from error


def tables_topic(topic: str) -> str:
    """Return the name of the topic with the definitions of the tables of a change topic."""
    return f"{topic}{_TABLES}"


def topic_of_tables(topic: str) -> str:
    """Return the change topic of a topic with definitions. Others are returned unchanged."""
    return topic.removesuffix(_TABLES)
