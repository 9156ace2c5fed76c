"""What is known of one partition's remote segments: events in, answers out (T-23 to T-27).

KIP-405's RemoteLogMetadataCache. The tables in `metadata.py` say what follows what; a state that is
said again changes nothing. What does not follow is refused and changes nothing either, so whoever
replays the metadata topic goes on with the next event. Finding an offset and sizes take the logarithm
of the number of segments; a segment takes less than 100 bytes (`segment_table.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

from odradek.storage.log.epochs import EpochStart
from odradek.storage.tiered import segment_row
from odradek.storage.tiered.epoch_segments import EpochSegments
from odradek.storage.tiered.errors import InvalidRemoteState, RemoteResourceNotFound
from odradek.storage.tiered.leader_epoch_lineage import Lineage, is_within, with_records
from odradek.storage.tiered.metadata import (
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
from odradek.storage.tiered.segment_table import Handle, SegmentTable, discard, insert, walk

_FINISHED = SegmentState.COPY_SEGMENT_FINISHED


class RemoteLogMetadataCache:
    """See the module. `deletion` is how far the partition's deletion is, None if it is not marked."""

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self.deletion: RemotePartitionDeleteMetadata | None = None
        self._table = SegmentTable()
        self._epochs: dict[int, EpochSegments] = {}
        self._highest: dict[int, int] = {}
        self._unfinished = array("I")
        self._spanning = array("I")

    def __len__(self) -> int:
        """How many segments there are, in whichever state."""
        return len(self._table)

    # What happens

    def apply(self, event: RemoteEvent) -> RemoteLogSegmentMetadata | None:
        """The segment as it is after the event; None if the event was of the whole partition.

        Raises InvalidRemoteState and RemoteResourceNotFound, as `check` does.
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
        """Raises what `apply` would: InvalidRemoteState if it does not follow (T-23, T-25, T-27),
        RemoteResourceNotFound for an update of a segment that is not there (T-24)."""
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
            raise InvalidRemoteState(f"{metadata.id} cannot begin as {metadata.state.name}")
        known = self._table.find(metadata.id.id.bytes)
        if known is not None:
            self._check_step(metadata, segment_row.state_of(*self._table.at(known)))
        return known

    def _check_update(self, update: RemoteLogSegmentMetadataUpdate) -> Handle:
        if update.state is SegmentState.COPY_SEGMENT_STARTED:
            raise InvalidRemoteState(f"{update.id}: a copy is started by adding its segment")
        handle = self._table.find(update.id.id.bytes)
        if handle is None:
            raise RemoteResourceNotFound(f"no remote segment {update.id} is known")
        before = segment_row.state_of(*self._table.at(handle))
        self._check_step(update, before)
        if update.unless_finished and before is _FINISHED:
            raise InvalidRemoteState(f"{update.id} is finished, so it cannot be given up")
        return handle

    def _check_step(self, event: SegmentEvent, before: SegmentState) -> None:
        if not is_valid_transition(before, event.state):
            raise InvalidRemoteState(f"{event.id} is {before.name}, so not {event.state.name} next")

    def _check_deletion(self, event: RemotePartitionDeleteMetadata) -> None:
        before = None if self.deletion is None else self.deletion.state
        if not is_valid_delete_transition(before, event.state):
            known = "not marked" if before is None else before.name
            raise InvalidRemoteState(f"{self.partition} is {known}, so not {event.state.name} next")

    # What is known

    def find(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The finished copy with that offset of that epoch."""
        epoch = self._epochs.get(leader_epoch)
        handle = None if epoch is None else epoch.find(offset)
        return None if handle is None else self._metadata(handle)

    def find_with_transactions(
        self, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first finished copy of that epoch, from `offset` on, with a transaction index."""
        epoch = self._epochs.get(leader_epoch)
        handle = None if epoch is None else epoch.find_with_transactions(offset)
        return None if handle is None else self._metadata(handle)

    def highest_offset(self, leader_epoch: int) -> int | None:
        """The last offset of that epoch that was ever copied."""
        return self._highest.get(leader_epoch)

    @property
    def highest_offsets(self) -> Mapping[int, int]:
        return self._highest

    def segments(self, leader_epoch: int | None = None) -> Iterator[RemoteLogSegmentMetadata]:
        """All, or those of one epoch, by ascending start offset; changes meanwhile do not disturb."""
        handles = (
            self._table.in_order()
            if leader_epoch is None
            else walk(self._table, lambda: self._members(leader_epoch))
        )
        return map(self._metadata, handles)

    def segments_reaching(self, timestamp: int) -> Iterator[RemoteLogSegmentMetadata]:
        """As `segments`, those that may have a record of that timestamp (ms) or a later one."""
        return map(self._metadata, self._table.reaching(timestamp))

    def segment(self, id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """The one with that id, in whichever state."""
        handle = self._table.find(id.id.bytes)
        return None if handle is None else self._metadata(handle)

    def unfinished(self) -> list[RemoteLogSegmentMetadata]:
        """Those whose copy or deletion is under way, or was given up."""
        return list(map(self._metadata, self._unfinished))

    def epochs(self) -> list[int]:
        """The epochs of which there are segments, ascending."""
        return sorted(self._epochs)

    def size_bytes(self, leader_epoch: int) -> int:
        """S-01: of the finished copies with records of that epoch, without those that lie within
        another: after a change of leader the same records may be there twice."""
        epoch = self._epochs.get(leader_epoch)
        return 0 if epoch is None else epoch.readable_bytes

    def lineage_bytes(self, epochs: Sequence[EpochStart], log_end_offset: int) -> int:
        """S-02: of the same, those within a log's lineage, each counted once.

        Segments of one epoch count by epoch, but for those that reach out of it, which lie at its
        ends; those of several are looked at.
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
        """All segments as rows (`segment_row.py`), by ascending start offset, for a snapshot."""
        return (segment_row.row_at(*self._table.at(each)) for each in self._table.in_order())

    def restore(self, row: bytes) -> None:
        """Add a segment in whichever state it is; the row must be valid. ValueError if it is known."""
        handle = self._table.add(row)
        for each in segment_row.epochs_of(row, 0):
            epoch = self._epochs.get(each.epoch)
            if epoch is None:
                epoch = self._epochs[each.epoch] = EpochSegments(self._table, each.epoch)
            epoch.add(handle)
        self._enter_state(handle)

    def restore_highest(self, leader_epoch: int, offset: int) -> None:
        """Of an epoch whose last copy may be deleted by now."""
        self._highest[leader_epoch] = max(self._highest.get(leader_epoch, -1), offset)

    def _metadata(self, handle: Handle) -> RemoteLogSegmentMetadata:
        return segment_row.unpack(*self._table.at(handle), self.partition)

    def _size(self, handle: Handle) -> int:
        return segment_row.size_of(*self._table.at(handle))

    def _is_readable(self, handle: Handle) -> bool:
        """In one of its epochs at least."""
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
            self._epochs[each.epoch].withdraw(handle)
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
        """Readable segments of this epoch alone that are not within the lineage. They lie in the order
        of both their ends: those in the middle are within it if those around them are."""

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
