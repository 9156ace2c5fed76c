"""Verification of transactions with their coordinator before the first append to a partition (KIP-890).

The first batch of a transaction in a partition is appended with a guard, which was created before the
request to the coordinator, which confirms that the partition is in the transaction. The start or end of a
transaction of that producer invalidates the guard, so that a late response starts no transaction. A producer has one
guard.

The lowest verified sequence is kept: no later batch may be appended before it. The state is not durable:
after a restart producers retry.
"""

from __future__ import annotations

from odradek.protocol.records.batch import Batch
from odradek.storage.errors import OutOfOrderSequence


class VerificationGuard:
    """Identifies one verification of a transaction."""

    __slots__ = ()


VERIFICATION_DISABLED = VerificationGuard()
"""Guard if `transaction.partition.verification.enable` is false."""


class VerificationState:
    """Verification state of one producer."""

    __slots__ = ("adds_partitions", "began_ms", "epoch", "guard", "lowest_sequence")

    def __init__(self, epoch: int, sequence: int, *, adds_partitions: bool, began_ms: int) -> None:
        self.guard = VerificationGuard()
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.adds_partitions = adds_partitions
        """Whether the producer's epoch rises with every transaction (transaction.version 2)."""
        self.began_ms = began_ms

    def lower(self, epoch: int, sequence: int) -> None:
        if epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)
        elif epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence

    def check_sequence(self, batch: Batch, *, is_known: bool) -> None:
        """Check the sequence of the first batch; `is_known` means that a batch of the producer is
        known. Raises OutOfOrderSequence."""
        sequence = batch.base_sequence
        if self.adds_partitions and sequence != 0 and not is_known:
            raise OutOfOrderSequence(
                f"out of order sequence number for producer {batch.producer_id}: {sequence} (incoming "
                f"seq. number), 0 (expected seq. number)",
                0,
            )
        if sequence > self.lowest_sequence:
            raise OutOfOrderSequence(
                f"out of order sequence number for producer {batch.producer_id}: {sequence} (incoming "
                f"seq. number), {self.lowest_sequence} (earliest seen sequence)",
                self.lowest_sequence,
            )


class TransactionVerifications:
    """Verification states of one log, by producer id."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: dict[int, VerificationState] = {}

    def get(self, producer_id: int) -> VerificationState | None:
        return self.pending.get(producer_id)

    def begin(
        self, producer_id: int, epoch: int, sequence: int, *, adds_partitions: bool, now_ms: int
    ) -> VerificationGuard:
        """Guard for the append after the coordinator has confirmed the transaction."""
        found = self.pending.get(producer_id)
        if found is None:
            found = VerificationState(
                epoch, sequence, adds_partitions=adds_partitions, began_ms=now_ms
            )
            self.pending[producer_id] = found
        else:
            found.lower(epoch, sequence)
        return found.guard

    def written(self, batch: Batch) -> None:
        """Register a transactional batch or a marker that was appended.

        A marker of the epoch under verification, or of the one before it, ended an earlier transaction
        if each transaction has its own epoch: its marker has the next epoch.
        """
        found = self.pending.get(batch.producer_id)
        if found is None:
            return
        if batch.is_control and found.adds_partitions and batch.producer_epoch <= found.epoch:
            return
        del self.pending[batch.producer_id]

    def ended(self, batch: Batch) -> None:
        """Register a marker that keeps the epoch: verifications in that epoch belonged to the
        completed transaction, for every version of its requests (a producer may mix them)."""
        found = self.pending.get(batch.producer_id)
        if found is not None and batch.producer_epoch >= found.epoch:
            del self.pending[batch.producer_id]

    def expire(self, now_ms: int, after_ms: int) -> None:
        """Remove verifications that were not completed."""
        for producer_id, found in list(self.pending.items()):
            if now_ms - found.began_ms >= after_ms:
                del self.pending[producer_id]
