"""Remote log segment metadata of one partition: KIP-405's RemoteLogMetadataCache (T-23 to T-27).

The tables in `segment_metadata.py` define the valid transitions. A repeated state changes nothing. An
invalid event is refused and changes nothing, so a reader of the metadata topic continues with the
next event. Lookups by offset and sizes take logarithmic time in the number of segments; a segment
takes less than 100 bytes (`segment_table.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered import segment_row
from odradek.storage.tiered.epoch_segments import EpochSegments
from odradek.storage.tiered.errors import InvalidRemoteState, RemoteResourceNotFound
from odradek.storage.tiered.leader_epoch_lineage import Lineage, is_within, with_records
from odradek.storage.tiered.segment_metadata import (
    RemoteEvent,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    SegmentEvent,
    SegmentState,
    TopicIdPartition,
    is_valid_delete_transition,
    is_valid_transition,
)
from odradek.storage.tiered.segment_table import Handle, SegmentTable, discard, insert, iterate

_FINISHED = SegmentState.COPY_SEGMENT_FINISHED


class RemoteLogMetadataCache:
    """Segments of one partition. `deletion` is the state of the partition's deletion, or None if it
    is not marked."""

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self.deletion: RemotePartitionDeleteMetadata | None = None
        self.first_tiered_epoch = 0
        """Copies of earlier tiered epochs cannot be finished any more (KIP-950, X-10)."""
        self._table = SegmentTable()
        self._epochs: dict[int, EpochSegments] = {}
        self._highest: dict[int, int] = {}
        self._unfinished = array("I")
        self._spanning = array("I")

    def __len__(self) -> int:
        """Number of segments in any state."""
        return len(self._table)

    # Events

    def apply(self, event: RemoteEvent) -> RemoteLogSegmentMetadata | None:
        """Apply an event. Returns the segment after the event, or None if the event is about the
        whole partition.

        Raises InvalidRemoteState and RemoteResourceNotFound like `check`.
        """
        if isinstance(event, RemotePartitionDeleteMetadata):
            self._check_deletion(event)
            if self.deletion is None or self.deletion.state is not event.state:
                self.deletion = event
            return None
        if isinstance(event, RemoteLogSegmentMetadata):
            return self._add(event)
        return self._update(event)

    def check(self, event: RemoteEvent) -> None:
        """Raise what `apply` would raise: InvalidRemoteState for an invalid transition (T-23, T-25,
        T-27), RemoteResourceNotFound for an update of an unknown segment (T-24)."""
        if isinstance(event, RemotePartitionDeleteMetadata):
            self._check_deletion(event)
        elif isinstance(event, RemoteLogSegmentMetadata):
            self._check_addition(event)
        else:
            self._check_update(event)

    def _add(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        known = self._check_addition(metadata)
        if known is not None:
            self._take_out(known)
        self.restore(segment_row.pack(metadata))
        return metadata

    def _update(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        handle = self._check_update(update)
        before = segment_row.unpack(*self._table.at(handle), self.partition)
        if before.state is update.state:
            return before
        after = before.updated(update)
        row = segment_row.pack(after)
        if update.state is SegmentState.DELETE_SEGMENT_FINISHED:
            self._take_out(handle)
        elif self._table.fits(handle, row):
            self._leave_state(handle)
            self._table.overwrite(handle, row)
            self._enter_state(handle)
        else:
            self._take_out(handle)
            self.restore(row)
        return after

    def _check_addition(self, metadata: RemoteLogSegmentMetadata) -> Handle | None:
        if metadata.state is not SegmentState.COPY_SEGMENT_STARTED:
            raise InvalidRemoteState(
                f"{metadata.id} should have the state COPY_SEGMENT_STARTED, but it has {metadata.state.name}"
            )
        known = self._table.find(metadata.id.id.bytes)
        if known is not None:
            self._check_step(metadata, segment_row.state_of(*self._table.at(known)))
        return known

    def _check_update(self, update: RemoteLogSegmentMetadataUpdate) -> Handle:
        if update.state is SegmentState.COPY_SEGMENT_STARTED:
            raise InvalidRemoteState(
                f"{update.id}: COPY_SEGMENT_STARTED needs the segment's full metadata"
            )
        handle = self._table.find(update.id.id.bytes)
        if handle is None:
            raise RemoteResourceNotFound(f"no remote log segment metadata found for {update.id}")
        row = self._table.at(handle)
        before = segment_row.state_of(*row)
        self._check_step(update, before)
        if update.state is _FINISHED is not before:
            tiered_epoch = segment_row.tiered_epoch_of(*row)
            if tiered_epoch < self.first_tiered_epoch:
                raise InvalidRemoteState(
                    f"{update.id} was copied in tiered epoch {tiered_epoch}, but the remote data before"
                    f" tiered epoch {self.first_tiered_epoch} is deleted"
                )
        if update.unless_finished and before is _FINISHED:
            raise InvalidRemoteState(
                f"{update.id} is COPY_SEGMENT_FINISHED, so the deletion of an incomplete copy is refused"
            )
        return handle

    def _check_step(self, event: SegmentEvent, before: SegmentState) -> None:
        if not is_valid_transition(before, event.state):
            raise InvalidRemoteState(
                f"{event.id}: state {before.name} cannot be transitioned to {event.state.name}"
            )

    def _check_deletion(self, event: RemotePartitionDeleteMetadata) -> None:
        before = None if self.deletion is None else self.deletion.state
        if not is_valid_delete_transition(before, event.state):
            known = "not marked" if before is None else before.name
            raise InvalidRemoteState(
                f"{self.partition}: state {known} cannot be transitioned to {event.state.name}"
            )

    # Queries

    def find(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Finished copy that has this offset of this epoch."""
        epoch = self._epochs.get(leader_epoch)
        handle = None if epoch is None else epoch.find(offset)
        return None if handle is None else self._metadata(handle)

    def find_with_transactions(
        self, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """First finished copy of the epoch that ends at or after `offset` and has a transaction
        index."""
        epoch = self._epochs.get(leader_epoch)
        handle = None if epoch is None else epoch.find_with_transactions(offset)
        return None if handle is None else self._metadata(handle)

    def highest_offset(self, leader_epoch: int) -> int | None:
        """Highest offset of that epoch that was ever copied."""
        return self._highest.get(leader_epoch)

    @property
    def highest_offsets(self) -> Mapping[int, int]:
        return self._highest

    def segments(self, leader_epoch: int | None = None) -> Iterator[RemoteLogSegmentMetadata]:
        """All segments, or those of one epoch, by start offset. Concurrent changes do not disturb
        the iteration."""
        handles = (
            self._table.in_order()
            if leader_epoch is None
            else iterate(self._table, lambda: self._members(leader_epoch))
        )
        return map(self._metadata, handles)

    def segments_reaching(self, timestamp: int) -> Iterator[RemoteLogSegmentMetadata]:
        """Like `segments`, but only segments that may have a record with this timestamp (ms) or a
        later one."""
        return map(self._metadata, self._table.reaching(timestamp))

    def segment(self, id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """Segment with that id, in any state."""
        handle = self._table.find(id.id.bytes)
        return None if handle is None else self._metadata(handle)

    def unfinished(self) -> list[RemoteLogSegmentMetadata]:
        """Segments whose copy or deletion is incomplete."""
        return list(map(self._metadata, self._unfinished))

    def epochs(self) -> list[int]:
        """Epochs that have segments, ascending."""
        return sorted(self._epochs)

    def size_bytes(self, leader_epoch: int) -> int:
        """Bytes of the finished copies with records of that epoch (S-01). A copy that is within
        another is not counted, since a new leader may copy the same records again."""
        epoch = self._epochs.get(leader_epoch)
        return 0 if epoch is None else epoch.readable_bytes

    def lineage_bytes(self, epochs: Sequence[EpochStart], log_end_offset: int) -> int:
        """Bytes of the readable copies within the lineage of a log, each counted once (S-02).

        Segments with one epoch are summed by epoch, except those outside the lineage, which are at
        the epoch's ends. Segments with several epochs are checked one by one.
        """
        lineage = with_records(epochs)
        total = 0
        for each in lineage:
            epoch = self._epochs.get(each.epoch)
            if epoch is not None:
                total += epoch.single_bytes
                total -= sum(map(self._size, self._outside_lineage(epoch, lineage, log_end_offset)))
        return total + sum(
            self._size(handle)
            for handle in self._spanning
            if is_within(self._metadata(handle), lineage, log_end_offset)
            and self._is_readable(handle)
        )

    def rows(self) -> Iterator[bytes]:
        """All segments as rows (`segment_row.py`), by start offset, for a snapshot."""
        return (segment_row.row_at(*self._table.at(each)) for each in self._table.in_order())

    def restore(self, row: bytes) -> None:
        """Add a segment in any state from a valid row. Raises ValueError if its id exists."""
        handle = self._table.add(row)
        for each in segment_row.epochs_of(row, 0):
            epoch = self._epochs.get(each.epoch)
            if epoch is None:
                epoch = self._epochs[each.epoch] = EpochSegments(self._table, each.epoch)
            epoch.add(handle)
        self._enter_state(handle)

    def restore_highest(self, leader_epoch: int, offset: int) -> None:
        """Restore the highest copied offset of an epoch, whose segments may be deleted."""
        self._highest[leader_epoch] = max(self._highest.get(leader_epoch, -1), offset)

    def _metadata(self, handle: Handle) -> RemoteLogSegmentMetadata:
        return segment_row.unpack(*self._table.at(handle), self.partition)

    def _size(self, handle: Handle) -> int:
        return segment_row.size_of(*self._table.at(handle))

    def _is_readable(self, handle: Handle) -> bool:
        """Whether the segment is readable in at least one of its epochs."""
        epochs = segment_row.epochs_of(*self._table.at(handle))
        return any(self._epochs[each.epoch].is_readable(handle) for each in epochs)

    def _members(self, leader_epoch: int) -> array[int]:
        epoch = self._epochs.get(leader_epoch)
        return array("I") if epoch is None else epoch.members

    def _enter_state(self, handle: Handle) -> None:
        row = self._table.at(handle)
        if segment_row.state_of(*row) is not _FINISHED:
            insert(self._unfinished, handle, self._table.order_of)
            return
        for each in segment_row.epochs_of(*row):
            epoch = self._epochs[each.epoch]
            epoch.finish(handle)
            if epoch.end_of(handle) >= each.start_offset:  # it has records of that epoch
                self.restore_highest(each.epoch, epoch.end_of(handle))
        if segment_row.spans_epochs(*row):
            insert(self._spanning, handle, self._table.order_of)

    def _leave_state(self, handle: Handle) -> None:
        row = self._table.at(handle)
        if segment_row.state_of(*row) is not _FINISHED:
            discard(self._unfinished, handle, self._table.order_of)
            return
        for each in segment_row.epochs_of(*row):
            self._epochs[each.epoch].remove_finished(handle)
        if segment_row.spans_epochs(*row):
            discard(self._spanning, handle, self._table.order_of)

    def _take_out(self, handle: Handle) -> None:
        self._leave_state(handle)
        for each in segment_row.epochs_of(*self._table.at(handle)):
            epoch = self._epochs[each.epoch]
            epoch.remove(handle)
            if not epoch.members:
                del self._epochs[each.epoch]
        self._table.remove(handle)

    def _outside_lineage(
        self, epoch: EpochSegments, lineage: Lineage, log_end_offset: int
    ) -> Iterator[Handle]:
        """Readable segments of this epoch alone that are outside the lineage. They are sorted by
        start and by end, so those in the middle are inside if their neighbours are."""

        def spans(handle: Handle) -> bool:
            return segment_row.spans_epochs(*self._table.at(handle))

        def is_outside(handle: Handle) -> bool:
            return not is_within(self._metadata(handle), lineage, log_end_offset)

        low, high = 0, len(epoch.readable)
        while low < high and (spans(epoch.readable[low]) or is_outside(epoch.readable[low])):
            if not spans(epoch.readable[low]):
                yield epoch.readable[low]
            low += 1
        while low < high and (
            spans(epoch.readable[high - 1]) or is_outside(epoch.readable[high - 1])
        ):
            high -= 1
            if not spans(epoch.readable[high]):
                yield epoch.readable[high]
