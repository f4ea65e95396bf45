"""How many dead letters are open, from commits and the totals of the ledger: no topic is scanned
(DLQ-7, OPS-5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from connector.dead_letters.ledger import NONE_SENT
from connector.errors import BrokerError, TopicError
from connector.reports.open_dead_letters import NONE_OPEN, OpenLetters, open_letters
from connector.services.warehouses import warehouse_of
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig

ASK_TIMEOUT_S: Final = 1.0


def open_letters_of(
    config: ConnectorConfig,
    stream: StreamConfig,
    progress: Progress,
    tables: Mapping[str, TableState],
) -> tuple[OpenLetters, dict[str, OpenLetters]]:
    """Those of a stream, and those that are, or may be, of each of its tables, with the withheld
    releases (WRS-18). Kafka is asked only where there ever was a dead letter.

    Raises `TableError` if the warehouse cannot be read.
    """
    letters, of_tables = _letters_of(config, stream, progress, tables)
    withheld = len(progress.releases.withheld)
    return replace(letters, withheld=withheld), {
        name: replace(one, withheld=withheld) for name, one in of_tables.items()
    }


def _letters_of(
    config: ConnectorConfig,
    stream: StreamConfig,
    progress: Progress,
    tables: Mapping[str, TableState],
) -> tuple[OpenLetters, dict[str, OpenLetters]]:
    rejected = sum(progress.rejected.values())
    letters = {name: book.letters for name, book in tables.items()}
    outside = progress.external_dead_letters
    if not rejected + sum(letters.values()) + outside.count:
        return NONE_OPEN, dict.fromkeys(tables, NONE_OPEN)
    from connector.kafka import client, topics
    from connector.kafka.dead_letters.ledger_topic import read_totals
    from connector.lake.state_reader import batch_with

    first = min(
        filter(
            None,
            (
                progress.rejected_since,
                outside.since,
                *(book.dead_letters_since for book in tables.values()),
            ),
        ),
        default=None,
    )
    try:
        facts = topics.describe(
            config.kafka, stream.topic, client.admin(config.kafka, timeout_s=ASK_TIMEOUT_S)
        )
        totals = read_totals(config.kafka, stream.topic)
    except (BrokerError, TopicError):
        return open_letters(rejected, letters, outside, "", None, first, is_known=False)
    sent = NONE_SENT if totals is None else totals.sent
    under_way = (
        sent.topic_id == facts.topic_id
        and batch_with(warehouse_of(config), stream.name, sent.ends) is None
    )
    return open_letters(
        rejected, letters, outside, facts.topic_id, totals, first, under_way=under_way
    )
