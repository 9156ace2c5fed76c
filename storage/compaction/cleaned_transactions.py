"""Aborted transactions and removable markers during compaction (KIP-98).

The reader passes every batch in order, across all segments of a pass. The aborted transactions are known
from the transaction index: nothing is compacted past the last stable offset, so all transactions are
completed. A marker may be removed once no batch of its transaction remains; an abort marker that is kept
is written to the new segment's transaction index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from odradek.storage.log.transaction_index import AbortedTransaction


@dataclass(slots=True)
class _AbortedInProgress:
    transaction: AbortedTransaction
    has_batches: bool = False


class CleanedTransactions:
    """Transaction state of one pass over the log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._aborted: dict[int, _AbortedInProgress] = {}
        self._committed: set[int] = set()
        self.retained: list[AbortedTransaction] = []
        """Aborted transactions whose marker was just read and is kept."""

    def batch(self, producer_id: int, last_offset: int) -> bool:
        """Register a transactional batch; True if it was aborted, so that its records are removed."""
        self._begin(last_offset)
        ongoing = self._aborted.get(producer_id)
        if ongoing is None:
            self._committed.add(producer_id)
            return False
        ongoing.has_batches = True
        return True

    def marker(self, producer_id: int, last_offset: int, commits: bool | None) -> bool:
        """Register a control batch; True if no batch of its transaction remains. `commits` is None if
        its record was removed before."""
        self._begin(last_offset)
        if commits is None:
            return True
        if commits:
            has_batches = producer_id in self._committed
            self._committed.discard(producer_id)
            return not has_batches
        ongoing = self._aborted.pop(producer_id, None)
        if ongoing is None or not ongoing.has_batches:
            return True
        self.retained.append(ongoing.transaction)
        return False

    def _begin(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            transaction = self._coming.popleft()
            self._aborted.setdefault(transaction.producer_id, _AbortedInProgress(transaction))
