"""Decodes the records of a stream, with the schemas of a registry if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.kafka.schema_registry import RegistryClient
from connector.records.codec import ChangeRecord, Schemas, confluent_id
from connector.records.rejection import Rejection
from connector.validation import KafkaRecord, Limits, validate_record

if TYPE_CHECKING:
    from connector.config.settings import RegistryConfig


class Decoder:
    """Validates records, and keeps the schemas that it has asked for."""

    def __init__(
        self,
        registry: RegistryConfig | None = None,
        limits: Limits | None = None,
        tables: frozenset[str] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._tables = tables
        self._registry = RegistryClient(registry) if registry is not None else None
        self._by_id: dict[int, str | None] = {}
        self._schemas = Schemas(self._by_id)

    def decode(self, source: KafkaRecord, kafka_partitions: int) -> ChangeRecord | Rejection:
        """Decode a record of a topic with so many Kafka partitions. Raises `RegistryError` if a
        schema is needed and the registry does not answer.
        """
        schema_id = confluent_id(source.value)
        if (
            schema_id is not None
            and self._registry is not None
            and self._by_id.get(schema_id) is None
        ):
            self._by_id[schema_id] = self._registry.schema(schema_id)
        return validate_record(
            source,
            schemas=self._schemas,
            limits=self.limits,
            kafka_partitions=kafka_partitions,
            tables=self._tables,
        )

    def close(self) -> None:
        if self._registry is not None:
            self._registry.close()
