"""lowmark: change data capture over Kafka and Spark Structured Streaming into Delta tables.

This module has the values that a program passes in and gets back: changes, definitions of tables,
configuration, dead letters. `connector.errors` has the exceptions. `connector.kafka` publishes and
reads streams, `connector.spark` reads tables, and `connector.services` runs and operates the
pipeline. None of these is imported here, so you can leave out what you do not install.
"""

from connector.config.settings import ConnectorConfig, KafkaConfig, RegistryConfig, StreamConfig
from connector.dead_letters.envelope import DeadLetter
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Heartbeat,
    OldCell,
    RowImage,
    SetCell,
    Transaction,
    Truncate,
    WriteStreamOffset,
)
from connector.records.ordering import sequence_number
from connector.records.rejection import Reason, Rejection
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType
from connector.validation import Limits

__all__ = [
    "ChildPartition",
    "ChildPartitions",
    "Column",
    "ConnectorConfig",
    "DataChange",
    "DataType",
    "DeadLetter",
    "DeleteCells",
    "DeleteFamily",
    "Heartbeat",
    "KafkaConfig",
    "Key",
    "KeyForm",
    "KeyPart",
    "Limits",
    "OldCell",
    "Reason",
    "RegistryConfig",
    "Rejection",
    "RowImage",
    "SetCell",
    "StreamConfig",
    "TableDefinition",
    "Transaction",
    "Truncate",
    "WriteStreamOffset",
    "sequence_number",
]
