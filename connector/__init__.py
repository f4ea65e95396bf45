"""A change data connector: Avro change records over Kafka and Spark Structured Streaming into Delta tables.

These are the words of the core: values in, values out. `connector.kafka` sends and reads them, `connector.spark` carries them
into tables; neither is imported from here, so that each of them can be left out of an installation.
"""

from connector.config.settings import ConnectorConfig
from connector.dead_letters.envelope import DeadLetter
from connector.errors import ConnectorError
from connector.records.model import ChildPartition, ChildPartitions, DataChange, DeleteCells, DeleteFamily, Heartbeat, SetCell
from connector.records.ordering import ChangeOrder
from connector.records.rejection import Reason, Rejection

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
