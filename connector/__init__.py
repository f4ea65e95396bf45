"""lowmark: change data capture over Kafka and Spark Structured Streaming into Delta tables.

This module has the values that a program passes in and gets back: changes, definitions of tables,
configuration, dead letters. `connector.kafka` publishes and reads streams, `connector.spark` reads
tables, `connector.services` runs and operates the pipeline. None of these is imported here, so you
can leave out what you do not install.
"""

from connector.config.settings import ConnectorConfig, KafkaConfig, RegistryConfig, StreamConfig
from connector.dead_letters.envelope import DeadLetter
from connector.errors import ConnectorError, ErrorCode
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Heartbeat,
    OffsetRange,
    OldCell,
    Release,
    RowImage,
    SetCell,
    Transaction,
    WriteStreamOffset,
)
from connector.records.ordering import ChangeOrder, sequence_number
from connector.records.rejection import Reason, Rejection
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType
from connector.validation import Limits

__all__ = [
    "ChangeOrder",
    "ChildPartition",
    "ChildPartitions",
    "Column",
    "ConnectorConfig",
    "ConnectorError",
    "DataChange",
    "DataType",
    "DeadLetter",
    "DeleteCells",
    "DeleteFamily",
    "ErrorCode",
    "Heartbeat",
    "KafkaConfig",
    "Key",
    "KeyForm",
    "KeyPart",
    "Limits",
    "OffsetRange",
    "OldCell",
    "Reason",
    "RegistryConfig",
    "Rejection",
    "Release",
    "RowImage",
    "SetCell",
    "StreamConfig",
    "TableDefinition",
    "Transaction",
    "WriteStreamOffset",
    "sequence_number",
]
