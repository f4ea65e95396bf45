"""The rules by which records are validated, apart from their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connector.records.codec import ChangeRecord, Schemas
from connector.records.ordering import Rank
from connector.records.rejection import Rejection
from connector.state.erased_keys import ErasedKeys
from connector.validation import KafkaRecord, Limits, validate_record


@dataclass(frozen=True, slots=True)
class RecordRules:
    """`tables` are the allowed source tables; None: any. `known_tables` and `known_families` match
    the patterns of the model and are not checked again. `horizon` is the one that the batch before
    committed (MRG-11), and `truncated` has the newest truncations that were accepted by then, by
    source table (EVO-13). `erased` are the erased rows (OPR-2).
    """

    limits: Limits
    kafka_partitions: int
    tables: frozenset[str] | None = None
    known_tables: frozenset[str] = frozenset()
    known_families: frozenset[str] = frozenset()
    horizon: int | None = None
    truncated: Mapping[str, Rank] = field(default_factory=dict)
    erased: ErasedKeys = field(default_factory=ErasedKeys)

    def judge(self, record: KafkaRecord, schemas: Schemas) -> ChangeRecord | Rejection:
        """Judge a record by `validate_record`, which knows nothing of erased rows."""
        return validate_record(
            record,
            schemas=schemas,
            limits=self.limits,
            kafka_partitions=self.kafka_partitions,
            tables=self.tables,
            horizon=self.horizon,
            truncated=self.truncated,
        )
