"""Begins, commits and aborts the transactions of one producer (REC-17, REC-18)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from connector.errors import WriterConflictError
from connector.errors.producers import transaction_not_committed
from connector.kafka import transactions
from connector.kafka.produce.results import OpenTransaction, Results, Sent
from connector.kafka.unclosed import try_after
from connector.records.model import Mutation

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from connector.config.settings import KafkaConfig
    from connector.kafka.produce.control_records import ControlRecords
    from connector.kafka.sending import SendQueue


class Transactions:
    """The transactions of one producer, one at a time. The open one is `Results.transaction`."""

    def __init__(
        self,
        kafka: KafkaConfig,
        transactional_id: str,
        queue: SendQueue[Sent],
        results: Results,
        control: ControlRecords,
    ) -> None:
        """Fence other producers with the same transactional id. Raises as `transactions.start`
        does.
        """
        self._kafka, self._transactional_id = kafka, transactional_id
        self._topic = results.topic
        self._queue, self._results = queue, results
        self._control = control
        self._started: Producer | None = None
        self._start()

    @contextmanager
    def block(self) -> Iterator[None]:
        """Commit the records of the block together, or none of them.

        Raises as `ChangeProducer.transaction` does.
        """
        transaction = self._begin()
        lineage = self._control.announcements.copy()
        try:
            yield
            self._commit(transaction)
            for sent in transaction.settled:
                self._results.conclude(sent, "")
        except BaseException as error:
            if self._results.transaction is transaction:
                self._abort(transaction, error)
                self._control.announcements = lineage
            raise

    def _begin(self) -> OpenTransaction:
        self._queue.check_not_fenced()
        if self._started is not self._queue.client:
            self._start()
        try:
            self._queue.client.begin_transaction()
        except KafkaException as error:
            self._queue.recreate(error.args[0])
            raise transaction_not_committed(self._topic, 0, error.args[0].str()) from error
        self._results.transaction = OpenTransaction(self._queue.client)
        return self._results.transaction

    def _commit(self, transaction: OpenTransaction) -> None:
        """Commit. Raises if the transaction is not committed, or if its outcome is unknown."""
        while self._queue.items and not transaction.failure:
            self._queue.poll(0.5, push=True)
        if self._queue.client is not transaction.client:
            transaction.failure = transaction.failure or "the client failed"
        if missing := _left_out(transaction):
            transaction.failure = transaction.failure or (
                f"a change with commit timestamp {min(missing)}, which was not delivered before,"
                " is not in it"
            )
        if not transaction.failure:
            transaction.is_unknown = True
            if (error := transactions.commit(transaction.client)) is not None:
                transaction.failure = error.str()
                transaction.is_unknown = not error.txn_requires_abort()
                if transaction.is_unknown:
                    self._queue.recreate(error)
        if transaction.failure:
            undelivered = len(self._results.undelivered())
            raise transaction_not_committed(self._topic, undelivered, transaction.failure)
        self._results.transaction = None

    def _abort(self, transaction: OpenTransaction, error: BaseException) -> None:
        """Register all records as not delivered, because of an exception. Further errors become
        notes of it.
        """
        reason = transaction.failure or f"its transaction was aborted: {error!r}"
        if self._queue.client is transaction.client and not isinstance(error, WriterConflictError):
            of_abort = transactions.abort(transaction.client)
            self._queue.read_reports()
            # Failed messages may leave a gap in the sequence numbers of the client. The next
            # transaction would fail.
            if of_abort is not None or transaction.failure:
                try_after(error, lambda: self._queue.recreate(of_abort or transaction.failure))
        self._queue.purge(reason)
        self._results.transaction = None
        if not transaction.is_unknown:
            for delivery, heartbeat_at in reversed(transaction.heartbeats):
                delivery.heartbeat_at = heartbeat_at
        for sent in transaction.settled:
            if not sent.is_ours:  # announcements are sent again when they are due
                self._results.conclude(sent, reason)

    def _start(self) -> None:
        transactions.start(self._queue.client, self._kafka, self._transactional_id)
        self._started = self._queue.client


def _left_out(transaction: OpenTransaction) -> set[int]:
    """Return the times of failed changes whose stream partition has other changes in the
    transaction.
    """
    changed = (sent.delivery for sent in transaction.settled if isinstance(sent.record, Mutation))
    return {oldest for delivery in changed if (oldest := delivery.oldest_failed()) is not None}
