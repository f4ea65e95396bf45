"""List the transactions of a stream that lack records, and release one, so that no table waits for
it (ING-2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.config.settings import find_stream
from connector.errors import ConfigError, ErrorCode, argument_invalid, check_note
from connector.records.views import view_of_time
from connector.services.load_config import who
from connector.services.warehouses import warehouse_of
from connector.state.incomplete_transactions import IncompleteTransaction, ReleaseTransaction
from connector.text import nearest, one_of

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig


def incomplete_transactions(
    config: ConnectorConfig, stream: str | None = None
) -> list[IncompleteTransaction]:
    """The transactions that lack records, the oldest first, as the last check of ingest found them.

    For example: `[one.server_transaction_id for one in incomplete_transactions(config, "orders")]`.

    Args:
        config: It has the stream.
        stream: The name or topic of the stream. None: the only one of the configuration.

    Returns:
        At most 100 transactions. Times are microseconds.

    Raises:
        ConfigError: There is no such stream.
        TableError: The warehouse cannot be read.
    """
    from connector.lake.state_reader import progress_of

    of = find_stream(config, stream)
    return list(progress_of(warehouse_of(config), of.name).transactions.incomplete)


def release_transaction(
    config: ConnectorConfig,
    stream: str,
    server_transaction_id: str,
    *,
    commit_timestamp: int | None = None,
    why: str,
    by: str | None = None,
) -> ReleaseTransaction:
    """Have no table wait for an incomplete transaction any more. The tables then show the records
    that are there.

    Ingest takes the request within ten seconds (90 in an object store), or when it runs again. For
    example:
    `release_transaction(config, "orders", "tx-7", why="the record is lost at the source")`.

    Args:
        config: It has the stream.
        stream: The name or topic of the stream.
        server_transaction_id: The id of an incomplete transaction.
        commit_timestamp: Its commit timestamp, in microseconds. None: only one incomplete
            transaction has this id.
        why: The reason. It is kept with the request.
        by: The person or program that asks. None: the user and the host of this process.

    Returns:
        The request.

    Raises:
        ConfigError: There is no such stream, or no such incomplete transaction, or several
            (`TRANSACTION_AMBIGUOUS`), or `why` or `by` is not a text, or an empty one.
        TableError: The warehouse cannot be read or written.
    """
    from connector.lake.overrides import Overrides
    from connector.lake.state_reader import progress_of

    by = who() if by is None else by
    if not isinstance(server_transaction_id, str):
        raise argument_invalid(
            "server_transaction_id", server_transaction_id, "the id of a transaction"
        )
    check_note("why", why)
    check_note("by", by)
    of = find_stream(config, stream)
    known = progress_of(warehouse_of(config), of.name).transactions
    ids = {one.server_transaction_id for one in known.incomplete}
    found = [
        one
        for one in known.incomplete
        if one.server_transaction_id == server_transaction_id
        and commit_timestamp in (None, one.commit_timestamp)
    ]
    if len(found) > 1:
        times = {str(view_of_time(one.commit_timestamp)) for one in found}
        raise ConfigError(
            ErrorCode.TRANSACTION_AMBIGUOUS,
            f'Stream {of.name} has {len(found)} incomplete transactions "{server_transaction_id}"',
            f"They are of these times: {one_of(times)}",
            "Name the commit timestamp of one of them, too",
            stream=of.name,
        )
    if not found:
        raise ConfigError(
            ErrorCode.TRANSACTION_UNKNOWN,
            f'Stream {of.name} has no incomplete transaction "{server_transaction_id}"',
            "It is complete, or its id or its commit timestamp is another one",
            nearest(server_transaction_id, ids) or "List the incomplete transactions",
            stream=of.name,
        )
    request = ReleaseTransaction(
        *(known.released_to + 1, of.name, server_transaction_id, why, now_us(), by),
        commit_timestamp=found[0].commit_timestamp,
    )
    Overrides(warehouse_of(config)).add_release(request)
    return request
