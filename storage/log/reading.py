"""What may be asked of a log at any time, on any thread: bytes, timestamps, aborted transactions.

Each takes the segments of one moment, and is done again where files were replaced meanwhile
(`LogState.replacing`): what it answers is of before or of after, never of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from odradek.protocol.errors import KafkaError
from odradek.seams.files import WouldBlock
from odradek.storage.errors import InRemoteTier, OffsetOutOfRange
from odradek.storage.log import timestamps
from odradek.storage.log.read import LogRead, read_segments
from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState
from odradek.storage.log.timestamps import TimestampAndOffset
from odradek.storage.log.transaction_index import AbortedTransaction

T = TypeVar("T")


class LogReads(LogState):
    """See the module."""

    @property
    def segments(self) -> Sequence[Segment]:
        """From the oldest to the active one, as of now."""
        return self.segment_list.all

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        limit: int,
        at_least_one: bool = True,
        nowait: bool = False,
    ) -> LogRead:
        """Batches from the one with `offset` on, none at or past offset `limit`; see read.py.

        The slice is pinned: the caller unpins `slice.file`. With `nowait` (on the loop) WouldBlock
        is raised if a header is not in memory: call again without it, through offload. Raises
        OffsetOutOfRange (InRemoteTier, where the log has it, but not here), CorruptRecords,
        NoDescriptors, LogFailed.
        """
        while True:
            if self.failure is not None:
                raise self.offline()
            generation = self.generation
            if generation & 1:
                if nowait:
                    raise WouldBlock
                generation = self.settled()
            try:
                if offset < self.local_log_start_offset:
                    raise self._not_here(offset)
                found = read_segments(
                    self.segment_list,
                    self.tip,
                    offset,
                    max_bytes,
                    limit=limit,
                    at_least_one=at_least_one,
                    nowait=nowait,
                )
            except WouldBlock:
                raise
            except (OSError, ValueError, KafkaError) as error:
                self._check_overtaken(generation, error)
                continue
            if generation == self.generation:
                return found
            _let_go(found)

    def read_committed(
        self,
        offset: int,
        max_bytes: int,
        *,
        limit: int,
        at_least_one: bool = True,
        nowait: bool = False,
    ) -> tuple[LogRead, Sequence[AbortedTransaction]]:
        """As `read`, and of the same moment `aborted_in` what was read: once compaction has taken aborted
        records away it forgets whose they were, and a slice of before has them still."""
        while True:
            generation = self.generation
            read = self.read(
                offset, max_bytes, limit=limit, at_least_one=at_least_one, nowait=nowait
            )
            try:
                aborted = self.aborted_in(read, nowait=nowait)
            except BaseException:
                _let_go(read)
                raise
            if generation == self.generation:
                return read, aborted
            _let_go(read)

    def _not_here(self, offset: int) -> OffsetOutOfRange:
        """For an `offset` below what is on the disk."""
        start = self.log_start_offset
        if start <= offset and self.is_tiered:
            return InRemoteTier(f"offset {offset} is in the remote tier")
        return OffsetOutOfRange(f"offset {offset} is below the log's start, {start}")

    def undisturbed(self, work: Callable[[], T]) -> T:
        """`work`, once more if a truncation or a deletion came in between, once that is done: off the loop,
        unless the caller knows that there is none. Raises what `work` does, LogFailed, NoDescriptors."""
        while True:
            self.check_online()
            generation = self.settled()
            try:
                return work()
            except (OSError, ValueError, KafkaError) as error:
                self._check_overtaken(generation, error)

    def _check_overtaken(self, generation: int, error: Exception) -> None:
        """Raise what a read failed with, unless files were replaced meanwhile; of a log that went offline,
        or was deleted, whose files are no more where they were, that alone."""
        if generation == self.generation:
            if self.failure is not None:
                raise self.offline() from error
            raise (self.io_failed(error) if isinstance(error, OSError) else error) from error

    def measure(self) -> int:
        """Bytes of all data files. Off the loop; `size_bytes` is for who has it to itself, or can do without."""
        return self.undisturbed(lambda: self.segment_list.size_bytes)

    def aborted_in(self, read: LogRead, *, nowait: bool = False) -> Sequence[AbortedTransaction]:
        """Those that a read_committed reader must know of, in what was read (KIP-98), unless files were
        replaced since.

        Raises what `read` would now, where that has left the disk since, and its list with it.
        """

        def collect() -> Sequence[AbortedTransaction]:
            if not self.may_have_aborted(read.offset):
                return ()  # and no offset index need be searched
            return self.aborted_transactions(read.offset, self.upper_bound(read, nowait=nowait))

        found = self.undisturbed(collect)
        if read.offset < self.local_log_start_offset:
            raise self._not_here(read.offset)
        return found

    def may_have_aborted(self, offset: int) -> bool:
        """Whether any segment on the disk from `offset` on has an index of aborted transactions."""
        segments = self.segment_list.from_offset(offset)
        return any(segment.transaction_index.exists for segment in segments)

    def upper_bound(self, read: LogRead, *, nowait: bool = False) -> int:
        """An offset that what was read ends below, without reading it."""
        part, end = read.slice, self.end_offset
        if part is None:
            return read.offset
        here, *after = self.segment_list.from_offset(read.base_offset)
        found = here.offset_index.upper_bound(part.position + part.size, mapped=nowait)
        if found is not None:
            return found
        return after[0].base_offset if after else end

    def aborted_transactions(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Those that overlap [start, end)."""

        def collect() -> list[AbortedTransaction]:
            found: list[AbortedTransaction] = []
            for segment in self.segment_list.from_offset(start):
                more, is_complete = segment.transaction_index.collect(start, end)
                found += more
                if is_complete:
                    break
            return found

        return self.undisturbed(collect)

    def find_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record whose timestamp is at or after `timestamp` (KIP-79)."""
        return self.undisturbed(
            lambda: timestamps.find_timestamp(self.segments, timestamp, self.log_start_offset)
        )

    def max_timestamp(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp (KIP-734)."""
        return self.undisturbed(lambda: timestamps.find_max_timestamp(self.segments))


def _let_go(read: LogRead) -> None:
    if read.slice is not None:
        read.slice.file.unpin()
