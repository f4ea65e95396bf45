"""The public names: a change here is a change that users notice."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "connector": {
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
    },
    "connector.kafka": {
        "Batching",
        "ChangeConsumer",
        "ChangeProducer",
        "CommitRange",
        "ConsumerRecord",
        "DeadLetterPublisher",
        "Group",
        "Late",
        "LetterFilter",
        "LocalBroker",
        "Outbox",
        "Rejected",
        "Released",
        "Staged",
        "StreamSettings",
        "TableWriter",
        "TransactionConsumer",
        "Watermark",
        "WatermarkConsumer",
        "WholeTransaction",
        "WriteSession",
        "WriteStream",
        "create_group_topics",
        "create_topic",
        "published_tables",
        "read_letters",
    },
    "connector.values": {
        "ArrayType",
        "DataType",
        "Encoding",
        "RangeType",
        "RecordType",
        "ValueType",
        "cell_bytes",
        "type_of",
    },
    "connector.spark": {
        "check_session",
        "configure_session",
        "read_changes",
        "read_snapshot",
        "read_table",
        "register_functions",
        "register_status_view",
        "stream_changes",
    },
}


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_public_names_are_these(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == PUBLIC[module]


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for module in PUBLIC:
        for name in importlib.import_module(module).__all__:
            assert getattr(importlib.import_module(module), name).__doc__, name
