"""Finds the whole batches that a fetch returns from a remote log segment, as bytes arrive.

Records and checksums are not checked; consumers do that. Each batch must start where the previous
one ends, be within the segment, have ascending offsets, and have the leader epoch that the log's
lineage has at its offset. A segment that an unclean leader copied may end with records of another
lineage (T-60); the scan stops before them. Bytes that are no batch raise an error that names the
segment.

An index may be wrong and still lead to a batch. So the scan that starts by an index entry checks that a
batch ends at the entry's offset, which is at or below the wanted one: then no batch was skipped. Until
it has found that batch, each error is one of the index (CorruptRemoteIndex).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from struct import Struct

from odradek.protocol.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC
from odradek.seams.files import Buffer
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered.errors import CorruptRemoteData, CorruptRemoteIndex
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata

_HEAD = Struct(">qiib6xi")
"""Base offset, length, leader epoch, magic, last offset delta."""
HEADERS_A_TURN = 400
"""Batches per step, about half a millisecond."""

BytesAt = Callable[[int, int], Buffer]
"""Called with a position and a size; returns that many bytes of the segment."""
_start_offset = attrgetter("start_offset")


class BatchScanner:
    """Scans forward with `advance`; `position` is where the next batch starts.

    The result is the batches in the byte range [`begin`, `end`), with offsets from `base_offset` to
    before `next_offset`. `begin` is None until the first batch is found.
    """

    def __init__(
        self,
        segment: RemoteLogSegmentMetadata,
        position: int,
        offset: int,
        *,
        max_bytes: int,
        at_least_one: bool,
        limit: int,
        epochs: Sequence[EpochStart],
        ends_at: int | None = None,
    ) -> None:
        """Start at the batch at `position` and find the first batch that ends at or after `offset`.

        By the offset index, a batch from `position` on ends at offset `ends_at`: the one there, or
        in an older Kafka's index the last of those that were appended with it. The result has at
        most `max_bytes` bytes (or the first batch, with `at_least_one`) and no batch at or past
        offset `limit`. `epochs` is the log's epoch cache. Raises CorruptRemoteIndex for a position
        outside the segment.
        """
        self._segment = segment
        self._size_bytes = segment.size_bytes
        self._offset = offset
        self._max_bytes = max_bytes
        self._at_least_one = at_least_one
        self._limit = limit
        self._epochs = epochs
        self._ends_at = ends_at
        self._epoch: int | None = None
        self._epoch_end = -1
        """End offset of the current epoch by the log's lineage."""
        self._least_base = segment.start_offset if position == 0 else -1
        self.position = position
        self.needed = position + HEADER_SIZE
        """Position up to which bytes are needed to continue."""
        self.begin: int | None = None
        self.end = position
        self.base_offset = -1
        self.next_offset = offset
        if not 0 <= position < max(segment.size_bytes, 1):
            raise self._corrupt("has no batch")
        self.is_done = position >= segment.size_bytes
        self.has_diverged = False
        """Whether the next batch belongs to another lineage."""

    def advance(self, bytes_at: BytesAt, available: int, headers: int = HEADERS_A_TURN) -> bool:
        """Scan the bytes up to position `available`, at most `headers` batches. True if the scan is
        done or needs more bytes (`needed`). Raises CorruptRemoteData."""
        for _ in range(headers):
            if self.is_done:
                return True
            position = self.position
            if position + HEADER_SIZE > available:
                self.needed = position + HEADER_SIZE
                if self.needed > self._size_bytes:
                    raise self._corrupt("ends in the middle of a batch")
                return True
            if not self._take(bytes_at(position, HEADER_SIZE), available):
                return True
        return self.is_done

    def _take(self, header: Buffer, available: int) -> bool:
        """Skip or take the next batch; False if its bytes are incomplete."""
        base_offset, length, epoch, magic, delta = _HEAD.unpack_from(header)
        end = self.position + length + LOG_OVERHEAD
        last_offset = base_offset + delta
        self._check(base_offset, last_offset, length, magic, end)
        if self.begin is None:
            if last_offset < self._offset:
                self._go_to(end, last_offset)
                return True
            return self._begin(base_offset, last_offset, epoch, end, available)
        self.has_diverged = epoch != self._epoch_at(base_offset)
        if self.has_diverged or base_offset >= self._limit or end - self.begin > self._max_bytes:
            self.is_done = True
            return True
        if end > available:
            self.needed = end
            return False
        self._grow_to(end, last_offset)
        return True

    def _begin(
        self, base_offset: int, last_offset: int, epoch: int, end: int, available: int
    ) -> bool:
        """Take the first batch; False if its bytes are incomplete."""
        if epoch != self._epoch_at(max(base_offset, self._offset)):
            raise self._corrupt(
                f"has offset {self._offset} in leader epoch {epoch}, which the log does not have there"
            )
        size_bytes = end - self.position
        if base_offset >= self._limit or (size_bytes > self._max_bytes and not self._at_least_one):
            self.is_done = True
            return True
        if end > available:
            self.needed = end
            return False
        self._max_bytes = max(self._max_bytes, size_bytes)
        self.begin, self.base_offset = self.position, base_offset
        self._grow_to(end, last_offset)
        return True

    def _grow_to(self, end: int, last_offset: int) -> None:
        self.end = end
        self.next_offset = last_offset + 1
        self._go_to(end, last_offset)

    def _go_to(self, end: int, last_offset: int) -> None:
        self.position = end
        self.is_done = end >= self._size_bytes
        self._least_base = last_offset + 1

    def _check(self, base_offset: int, last_offset: int, length: int, magic: int, end: int) -> None:
        if magic != MAGIC or length < HEADER_SIZE - LOG_OVERHEAD or end > self._size_bytes:
            raise self._corrupt("has no record batch")
        if not self._least_base <= base_offset <= last_offset <= self._segment.end_offset:
            raise self._corrupt(f"has offsets {base_offset} to {last_offset}")
        if self._ends_at is not None and last_offset >= self._ends_at:
            if self._ends_at != last_offset:
                raise self._corrupt(f"has no batch that ends at offset {self._ends_at}")
            self._ends_at = None

    def _epoch_at(self, offset: int) -> int | None:
        """Epoch of the log's lineage at an offset; offsets ascend from call to call."""
        if offset >= self._epoch_end:
            epochs = self._epochs
            slot = bisect_right(epochs, offset, key=_start_offset)
            self._epoch = epochs[slot - 1].epoch if slot else None
            self._epoch_end = epochs[slot].start_offset if slot < len(epochs) else 1 << 63
        return self._epoch

    def _corrupt(self, text: str) -> CorruptRemoteData:
        segment = self._segment
        kind = CorruptRemoteData if self._ends_at is None else CorruptRemoteIndex
        return kind(
            f"remote segment {segment.id} ({segment.start_offset} to {segment.end_offset}) {text} "
            f"at position {self.position}"
        )
