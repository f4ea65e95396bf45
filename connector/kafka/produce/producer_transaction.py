"""Begins, commits and aborts the transactions of one producer (REC-17, REC-18)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from connector.errors import DeliveryError, ErrorCode, WriterConflictError
from connector.kafka import transactions
from connector.kafka.produce.results import OpenTransaction, Results, Sent
from connector.records.model import DataChange

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
        """Shut out other producers with the same transactional id. Raises as `transactions.start`
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
            self._queue.renew(error.args[0])
            raise DeliveryError(
                ErrorCode.TRANSACTION_NOT_STARTED,
                f"A transaction on {self._topic} could not start",
                error.args[0].str(),
                "Try again",
            ) from error
        self._results.transaction = OpenTransaction(self._queue.client)
        return self._results.transaction

    def _commit(self, transaction: OpenTransaction) -> None:
        """Commit. Raises if the transaction is not committed, or if its outcome is unknown."""
        while self._queue.items and not transaction.trouble:
            self._queue.serve(0.5, push=True)
        if self._queue.client is not transaction.client:
            transaction.trouble = transaction.trouble or "the client failed"
        if left_out := _left_out(transaction):
            transaction.trouble = transaction.trouble or (
                f"a change with commit timestamp {min(left_out)}, which was not delivered before,"
                " is not in it"
            )
        if not transaction.trouble:
            transaction.is_unknown = True
            if (error := transactions.commit(transaction.client)) is not None:
                transaction.trouble = error.str()
                transaction.is_unknown = not error.txn_requires_abort()
                if transaction.is_unknown:
                    self._queue.renew(error)
        if transaction.trouble:
            raise DeliveryError(
                ErrorCode.TRANSACTION_NOT_COMMITTED,
                f"A transaction on {self._topic} was not committed",
                transaction.trouble,
                "Send the records of undelivered() again, in another transaction. Sending a"
                " record twice does no harm",
                undelivered=len(self._results.undelivered()),
            )
        self._results.transaction = None

    def _abort(self, transaction: OpenTransaction, reason: BaseException) -> None:
        """Register all records as not delivered, because of the exception `reason`. Further errors
        become notes of it.
        """
        why = transaction.trouble or f"its transaction was aborted: {reason!r}"
        if self._queue.client is transaction.client and not isinstance(reason, WriterConflictError):
            error = transactions.abort(transaction.client)
            self._queue.read_reports()
            try:
                # Failed messages may leave a gap in the sequence numbers of the client. The next
                # transaction would fail.
                if error is not None or transaction.trouble:
                    self._queue.renew(error or transaction.trouble)
            except WriterConflictError as further:
                reason.add_note(f"in addition: {further}")
        self._queue.give_up(why)
        self._results.transaction = None
        if not transaction.is_unknown:
            for delivery, promised in reversed(transaction.promised):
                delivery.promised = promised
        for sent in transaction.settled:
            if not sent.is_ours:  # announcements are sent again when they are due
                self._results.conclude(sent, why)

    def _start(self) -> None:
        transactions.start(self._queue.client, self._kafka, self._transactional_id)
        self._started = self._queue.client


def _left_out(transaction: OpenTransaction) -> set[int]:
    """Return the times of failed changes whose stream partition has other changes in the
    transaction.
    """
    changed = (sent.delivery for sent in transaction.settled if isinstance(sent.record, DataChange))
    return {oldest for delivery in changed if (oldest := delivery.oldest_failed()) is not None}
