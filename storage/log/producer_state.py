"""Producer state of a log (Kafka's ProducerStateManager): sequences, epochs, ongoing transactions
(KIP-98, KIP-360).

The last five batches of each producer are kept: a duplicate batch gets the offsets of the first append,
and a batch that leaves a gap is rejected. All state follows from the log: the state at `map_end_offset` is the
result of applying all batches below it, except that producers idle for `producer.id.expiration.ms` are
removed. Snapshots (producer_snapshots.py) only save reading the whole log.

`check` decides without changes; `apply` is called for every batch after it is written, and in recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from odradek.protocol.records.batch import (
    CONTROL_MASK,
    MAX_SEQUENCE,
    TRANSACTIONAL_MASK,
    Batch,
)
from odradek.protocol.records.control import read_end_marker
from odradek.seams.values import value_class
from odradek.storage.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
)
from odradek.storage.log.transaction_verification import (
    VERIFICATION_DISABLED,
    TransactionVerifications,
    VerificationGuard,
)

BATCHES_KEPT = 5
NO_EPOCH = -1
NO_OFFSET = -1
NO_SEQUENCE = -1
TRANSACTION_VERSION_2 = 2


class BatchMetadata(NamedTuple):
    """One of the last batches of a producer; offsets and sequences are inclusive."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE


class TransactionMarker(NamedTuple):
    """Content of a transaction marker."""

    is_commit: bool
    coordinator_epoch: int
    timestamp: int


@value_class
class CompletedTransaction:
    """A completed transaction; `last_offset` is that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerEntry:
    """State of one producer. Without batches, only markers or a new epoch are known."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "producer_id",
        "transaction_start",
    )

    def __init__(
        self,
        producer_id: int,
        epoch: int = NO_EPOCH,
        coordinator_epoch: int = -1,
        last_timestamp: int = -1,
        transaction_start: int = NO_OFFSET,
        batches: Iterable[BatchMetadata] = (),
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.transaction_start = transaction_start
        """First offset of its ongoing transaction; -1 if there is none."""
        self.batches = list(batches)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def duplicate_of(self, batch: Batch) -> BatchMetadata | None:
        """Earlier append of the same batch, if it is among the last ones."""
        if batch.producer_epoch == self.epoch:
            last_sequence, delta = batch.last_sequence, batch.last_offset_delta
            for kept in self.batches:
                if kept.last_sequence == last_sequence and kept.offset_delta == delta:
                    return kept
        return None

    def add(self, batch: Batch) -> None:
        if batch.producer_epoch != self.epoch:
            self.epoch = batch.producer_epoch
            self.batches.clear()
        elif len(self.batches) == BATCHES_KEPT:
            del self.batches[0]
        self.batches.append(
            BatchMetadata(
                batch.last_sequence, batch.last_offset, batch.last_offset_delta, batch.max_timestamp
            )
        )
        self.last_timestamp = batch.max_timestamp

    def end_transaction(self, epoch: int, marker: TransactionMarker) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()
        self.coordinator_epoch = marker.coordinator_epoch
        self.last_timestamp = marker.timestamp
        self.transaction_start = NO_OFFSET

    def is_idle(self, now_ms: int, limit_ms: int) -> bool:
        """Whether the producer has no open transaction and was idle for `limit_ms`."""
        return self.transaction_start < 0 and now_ms - self.last_timestamp >= limit_ms


class ProducerStates:
    """State of all producers of one log."""

    def __init__(self, name: str, *, expiration_ms: Callable[[], int]) -> None:
        """`expiration_ms` returns the current producer.id.expiration.ms."""
        self._name = name
        self._expiration_ms = expiration_ms
        self._entries: dict[int, ProducerEntry] = {}
        # Producer of each ongoing transaction by first offset, ascending.
        self._ongoing: dict[int, int] = {}
        # Marker offset by first offset, for markers at or past the high watermark.
        self._unreplicated: dict[int, int] = {}
        self._verifications = TransactionVerifications()
        self._unverified = self._verifications.pending  # usually empty
        self.map_end_offset = 0
        """Every batch below this offset has been applied."""

    @property
    def active(self) -> Mapping[int, ProducerEntry]:
        return self._entries

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def has_ongoing_transaction(self, producer_id: int, epoch: int) -> bool:
        entry = self._entries.get(producer_id)
        return entry is not None and entry.transaction_start >= 0 and entry.epoch == epoch

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of a transaction that is open, or whose marker is not replicated yet."""
        if not self._ongoing and not self._unreplicated:
            return None
        first = next(iter(self._ongoing), None)
        replicated_next = min(self._unreplicated, default=None)
        if first is None or (replicated_next is not None and replicated_next < first):
            return replicated_next
        return first

    # Checks before an append

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, adds_partitions: bool, now_ms: int
    ) -> VerificationGuard | None:
        """Guard to pass to `check` with the first batch of a transaction; None if the transaction is
        known here. Called before the request to the coordinator. Raises InvalidProducerEpoch.

        With `adds_partitions` the verification adds the partition (Produce v12, TxnOffsetCommit v5);
        `sequence` is that of the batch.
        """
        entry = self._entries.get(producer_id)
        if entry is not None:
            if epoch < entry.epoch:
                raise self._fenced(producer_id, epoch, entry)
            if entry.transaction_start >= 0 and entry.epoch == epoch:
                return None
        return self._verifications.begin(
            producer_id, epoch, sequence, adds_partitions=adds_partitions, now_ms=now_ms
        )

    def check(
        self,
        batch: Batch,
        *,
        from_client: bool,
        transaction_version: int = 0,
        guard: VerificationGuard | None = None,
    ) -> BatchMetadata | None:
        """Check whether `batch` may be appended; returns its earlier append if it is a duplicate.

        `from_client` is False for batches of coordinators, which have no sequences. `guard` is the
        verification guard of the first batch of a transaction. Raises InvalidProducerEpoch, OutOfOrderSequence, InvalidTransactionState, CoordinatorFenced.
        """
        entry = self._entries.get(batch.producer_id)
        attributes = batch.attributes
        if attributes & CONTROL_MASK:
            self._check_marker(batch, entry, transaction_version)
            return None
        if from_client and entry is not None:
            duplicate = entry.duplicate_of(batch)
            if duplicate is not None:
                return duplicate
        if attributes & TRANSACTIONAL_MASK and (
            entry is None or entry.transaction_start < 0 or entry.epoch != batch.producer_epoch
        ):
            self._check_begin(batch, entry, guard)
        if from_client and self._unverified:
            self._check_overtakes(batch, entry)
        if entry is None:
            return None
        if batch.producer_epoch < entry.epoch:
            raise self._fenced(batch.producer_id, batch.producer_epoch, entry)
        if from_client:
            self._check_sequence(batch, entry)
        if entry.transaction_start >= 0 and not attributes & TRANSACTIONAL_MASK:
            raise InvalidTransactionState(
                f"expected transactional write from producer {batch.producer_id} in partition {self._name}"
            )
        return None

    def _fenced(self, producer_id: int, epoch: int, entry: ProducerEntry) -> Exception:
        return InvalidProducerEpoch(
            f"epoch of producer {producer_id} in {self._name} is {epoch}, which is smaller than the "
            f"last seen epoch {entry.epoch}"
        )

    def _check_begin(
        self, batch: Batch, entry: ProducerEntry | None, guard: VerificationGuard | None
    ) -> None:
        """Check the first batch of a transaction: its coordinator must have confirmed the partition."""
        if entry is not None and batch.producer_epoch < entry.epoch:
            raise self._fenced(batch.producer_id, batch.producer_epoch, entry)
        if guard is VERIFICATION_DISABLED:
            return
        pending = self._verifications.get(batch.producer_id)
        if pending is None or pending.guard is not guard:
            raise InvalidTransactionState(
                f"record was not part of an ongoing transaction of producer {batch.producer_id} in "
                f"partition {self._name}"
            )

    def _check_overtakes(self, batch: Batch, entry: ProducerEntry | None) -> None:
        pending = self._verifications.get(batch.producer_id)
        if pending is not None:
            pending.check_sequence(batch, is_known=entry is not None and bool(entry.batches))

    def _check_sequence(self, batch: Batch, entry: ProducerEntry) -> None:
        """Check that the batch has the next sequence, or 0 in a new epoch.

        The first batch of an unknown producer may have any sequence, because its earlier batches may have
        been deleted (KIP-360).
        """
        if entry.epoch == NO_EPOCH:
            return
        if batch.producer_epoch == entry.epoch:
            last = entry.last_sequence
            expected = 0 if last == NO_SEQUENCE else (last + 1) & MAX_SEQUENCE
        else:
            expected = 0
        if batch.base_sequence != expected:
            raise OutOfOrderSequence(
                f"out of order sequence number for producer {batch.producer_id} with epoch "
                f"{batch.producer_epoch} in partition {self._name}: {batch.base_sequence} (incoming "
                f"seq. number), {expected} (expected seq. number)",
                expected,
            )

    def _check_marker(
        self, batch: Batch, entry: ProducerEntry | None, transaction_version: int
    ) -> None:
        marker = read_marker(batch)
        if entry is None or marker is None:
            return
        epoch = batch.producer_epoch
        if transaction_version >= TRANSACTION_VERSION_2:
            # Each marker has an epoch of its own; an equal one is a duplicate of that marker,
            # harmless if the transaction has ended. An epoch at its maximum cannot grow.
            is_old = epoch <= entry.epoch and not (
                epoch == entry.epoch and (entry.transaction_start < 0 or epoch == 32767)
            )
        else:
            is_old = epoch < entry.epoch
        if is_old:
            raise InvalidProducerEpoch(
                f"invalid epoch of the transaction marker for producer {batch.producer_id} in partition "
                f"{self._name}: {epoch}, the last seen epoch is {entry.epoch}"
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise CoordinatorFenced(
                f"invalid coordinator epoch for producerId {batch.producer_id} in partition {self._name}: "
                f"{marker.coordinator_epoch} (zombie), {entry.coordinator_epoch} (current)"
            )

    # Changes after an append

    def apply(self, batch: Batch) -> CompletedTransaction | None:
        """Apply `batch`, which has a producer id and was appended; returns the transaction that it completes.

        That transaction stays open until `complete` is called. Raises the errors of `read_marker` with
        nothing changed.
        """
        producer_id = batch.producer_id
        entry = self._entries.get(producer_id)
        if batch.is_control:
            marker = read_marker(batch)
            if marker is None:  # removed by compaction, with its whole transaction
                return None
            if self._unverified:
                self._verifications.written(batch)
            if entry is None:
                entry = self._entries[producer_id] = ProducerEntry(producer_id)
            start = entry.transaction_start
            entry.end_transaction(batch.producer_epoch, marker)
            if start < 0:
                return None
            return CompletedTransaction(producer_id, start, batch.base_offset, not marker.is_commit)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id)
        entry.add(batch)
        if batch.is_transactional:
            if entry.transaction_start < 0:
                entry.transaction_start = batch.base_offset
                self._ongoing[batch.base_offset] = producer_id
            if self._unverified:
                self._verifications.written(batch)
        return None

    def ended_in_epoch(self, batch: Batch) -> None:
        """Register a marker of transaction.version below 2, which keeps the epoch: it ends
        verifications in that epoch. Needed on the leader only."""
        if self._unverified:
            self._verifications.ended(batch)

    def stable_offset_after(self, completed: CompletedTransaction) -> int:
        """First unstable offset after `completed`, without regard to the high watermark."""
        for first_offset, producer_id in self._ongoing.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTransaction) -> None:
        """Close a transaction, after its abort is in the transaction index. It stays unstable until its marker
        is replicated."""
        self._ongoing.pop(completed.first_offset, None)
        self._unreplicated[completed.first_offset] = completed.last_offset

    def replicated_to(self, offset: int) -> None:
        """Remove completed transactions with markers below `offset`: the high watermark or the log start offset."""
        if self._unreplicated:
            self._unreplicated = {
                first: last for first, last in self._unreplicated.items() if last >= offset
            }

    def expire(self, now_ms: int) -> int:
        """Remove producers that are idle and have no open transaction; their number."""
        limit_ms = self._expiration_ms()
        expired = [
            entry.producer_id for entry in self._entries.values() if entry.is_idle(now_ms, limit_ms)
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        self._verifications.expire(now_ms, limit_ms)
        return len(expired)

    # Snapshots

    def reset(self, offset: int, entries: Iterable[ProducerEntry] = (), *, now_ms: int = 0) -> None:
        """Reset the state to a snapshot at `offset`, or to an empty one."""
        limit_ms = self._expiration_ms()
        self._entries = {
            entry.producer_id: entry for entry in entries if not entry.is_idle(now_ms, limit_ms)
        }
        self._ongoing = {
            entry.transaction_start: entry.producer_id
            for entry in sorted(self._entries.values(), key=lambda entry: entry.transaction_start)
            if entry.transaction_start >= 0
        }
        self._unreplicated = {}
        self.map_end_offset = offset

    def replace_with(self, other: ProducerStates) -> None:
        """Take over the state of `other`, so that readers in other threads never see a transaction
        closed in between. Verifications are kept."""
        self._entries = other._entries
        self._ongoing = other._ongoing
        self._unreplicated = other._unreplicated
        self.map_end_offset = other.map_end_offset


def read_marker(batch: Batch) -> TransactionMarker | None:
    """Marker in a control batch; None if compaction has removed its record.

    Raises CorruptBatch if it is not a transaction marker.
    """
    if not batch.record_count:
        return None
    is_commit, coordinator_epoch = read_end_marker(batch)
    return TransactionMarker(is_commit, coordinator_epoch, batch.max_timestamp)
