"""A change data connector: Avro change records over Kafka and Spark Structured Streaming into Delta tables.

These are the words of the core: values in, values out. `connector.kafka` sends and reads them, `connector.spark` carries them
into tables; neither is imported from here, so that each of them can be left out of an installation.
"""

from connector.config import ConnectorConfig
from connector.deadletter import DeadLetter, Reason, Rejection
from connector.errors import ConnectorError
from connector.model import ChildPartition, ChildPartitions, DataChange, DeleteCells, DeleteFamily, Heartbeat, SetCell
from connector.ordering import ChangeOrder

__all__ = [
    "ChangeOrder",
    "ChildPartition",
    "ChildPartitions",
    "ConnectorConfig",
    "ConnectorError",
    "DataChange",
    "DeadLetter",
    "DeleteCells",
    "DeleteFamily",
    "Heartbeat",
    "Reason",
    "Rejection",
    "SetCell",
]
