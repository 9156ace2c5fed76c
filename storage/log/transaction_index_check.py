"""Check of transaction indexes against the log, and their repair.

No checksum protects a transaction index. A wrong first or last offset would hide committed records or return
aborted ones, and so would a lost entry. So before the first use of an index that an earlier run wrote, the
batch headers of its segment are read, with the transactions that are open at its base offset (producer
snapshot, and the batches after it), and each entry is compared:

- Its last offset is that of an abort marker of its producer.
- Its first offset is that of the first batch of the transaction. If compaction has removed offsets before
  that batch, it may be any offset after the producer's previous marker.
- Its last stable offset is the first offset of the first transaction that was open then; a larger one would
  end a search too early.
- Each abort marker that completes a transaction has an entry. Compaction may have removed all batches of the
  transaction; then an entry is added without a warning, because it hides nothing.

The first search of an index compares only the batches from its start offset on, which is short for a
consumer at the end of the log. The first search below compares the whole segment. A wrong index is
rebuilt; meanwhile other readers of the segment wait. An index that this process wrote is not compared, and
a segment without the file is not searched.

Batches that cannot be read do not count against an entry: reads report them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.batch import Batch
from odradek.storage.log.batch_scan import headers, read_batch
from odradek.storage.log.producer_state import read_marker
from odradek.storage.log.segment import Segment
from odradek.storage.log.state import LogState
from odradek.storage.log.transaction_index import UNVERIFIED, AbortedTransaction, describe


def verify_transaction_index(log: LogState, segment: Segment, start: int = 0) -> None:
    """Compare the transaction index of `segment` with its batches from offset `start` on, and rebuild it if
    it is wrong; in a worker thread. Raises OSError, ValueError."""
    index, start = segment.transaction_index, max(start, segment.base_offset)
    with index.checking:
        if index.verified_from <= start:
            return
        # The log end before the entries: the entries of all batches below it are in the index.
        end = log.log_end
        size = end.position if segment is end.segment else segment.size
        problem = index.problem
        later = {each for each in index.appended if each.last_offset >= end.end_offset}
        entries = [each for each in index.entries if each not in later]
        if problem is None and index.verified_from == UNVERIFIED and start > segment.base_offset:
            comparison = TransactionComparison(entries, start)
            comparison.read_segment(segment, _position_of(segment, start, size), size)
            comparison.finish()
            if not comparison.is_changed:
                index.set_verified(start)
                return
        comparison = _from_base_offset(log, segment, entries)
        comparison.read_segment(segment, 0, size)
        comparison.finish()
        problem = problem or comparison.problem
        if problem is None and not comparison.is_changed:
            index.set_verified(segment.base_offset)
        else:
            segment.repair_transaction_index(comparison.right, comparison.end, problem)


def _position_of(segment: Segment, offset: int, size: int) -> int:
    try:
        found = segment.locate(offset)
    except KafkaError:  # compare the batches before the corrupt one, too
        return 0
    return size if found is None else min(found.position, size)


def _from_base_offset(
    log: LogState, segment: Segment, entries: Sequence[AbortedTransaction]
) -> TransactionComparison:
    """Comparison of the whole segment: with the open transactions of the latest producer snapshot at or
    below its base offset, and of the batches between the two.

    Without a snapshot they are only known if the log begins at offset 0.
    """
    segments = log.segment_list.all
    snapshots = [offset for offset in log.snapshots.offsets if offset <= segment.base_offset]
    for offset in reversed(snapshots):
        found = log.snapshots.read(offset)
        if found is not None and offset >= segments[0].base_offset:
            is_open = {
                entry.transaction_start: entry.producer_id
                for entry in found[1]
                if entry.transaction_start >= 0
            }
            ongoing = {is_open[first]: first for first in sorted(is_open)}
            comparison = TransactionComparison((), offset, ongoing, True, segments)
            break
    else:
        start = segments[0].base_offset
        comparison = TransactionComparison((), start, knows_all=start == 0, segments=segments)
    for earlier, following in pairwise(segments):
        if earlier.base_offset >= segment.base_offset:
            break
        if following.base_offset > comparison.end:
            size = earlier.size
            comparison.read_segment(earlier, _position_of(earlier, comparison.end, size), size)
    return comparison.continued(entries, segment.base_offset)


@dataclass(slots=True)
class TransactionComparison:
    """Comparison of transaction index entries with batches, which are read in order."""

    entries: Iterable[AbortedTransaction]
    start: int
    """Offset at which the batches begin. Entries with markers below it are not compared."""
    ongoing: dict[int, int] = field(default_factory=dict)
    """First offset of each open transaction by producer id, ascending. Of a transaction that began below
    `start` it is the first known one."""
    knows_all: bool = False
    """Whether `ongoing` at `start` had all open transactions."""
    segments: Sequence[Segment] = ()
    """Segments of the log."""
    right: list[AbortedTransaction] = field(default_factory=list)
    """Entries that the index should have, except those below `start`."""
    end: int = 0
    """Offset after the last batch that was read."""
    problem: str | None = None
    """The first wrong or missing entry."""
    is_changed: bool = False
    """Whether `right` differs from the index. Without a problem, compaction may be the reason."""
    _has_gaps: bool = False
    """Whether compaction has removed offsets."""
    _is_corrupt: bool = False
    _markers: dict[int, int] = field(default_factory=dict)
    """Offset of the last marker of each producer."""
    _first_read: dict[int, int] = field(default_factory=dict)
    """First offset of each open transaction by producer id, of the batches from `start` on."""
    _unmatched: dict[int, AbortedTransaction] = field(default_factory=dict)
    """Entries by the offset of their marker."""

    def __post_init__(self) -> None:
        self.end = self.start
        self._unmatched = {
            each.last_offset: each for each in self.entries if each.last_offset >= self.start
        }

    def continued(self, entries: Sequence[AbortedTransaction], start: int) -> TransactionComparison:
        """Comparison of the entries of the next segment, which begins at `start`."""
        return TransactionComparison(entries, start, self.ongoing, self.knows_all, self.segments)

    def read_segment(self, segment: Segment, position: int, size: int) -> None:
        """Read the batches in the bytes [position, size) of the segment, up to the first corrupt one."""
        try:
            for batch in headers(segment.file, position, size):
                if batch.base_offset > self.end:
                    self._has_gaps = True
                self.end = batch.last_offset + 1
                producer_id = batch.producer_id
                if producer_id < 0:
                    continue
                if batch.is_control:
                    self._read_control_batch(segment, batch)
                elif batch.is_transactional and batch.last_offset >= self.start:
                    self.ongoing.setdefault(producer_id, batch.base_offset)
                    self._first_read.setdefault(producer_id, batch.base_offset)
        except KafkaError:
            self.knows_all, self._is_corrupt = False, True

    def finish(self) -> None:
        """Refuse the entries without a marker, except those past a corrupt batch."""
        for each in self._unmatched.values():
            if each.last_offset >= self.end and self._is_corrupt:
                self.right.append(each)
            else:
                self._refuse(each, "there is no abort marker at its last offset")

    def _read_control_batch(self, segment: Segment, header: Batch) -> None:
        offset, producer_id = header.base_offset, header.producer_id
        if offset < self.start:
            return
        entry = self._unmatched.pop(offset, None)
        try:
            marker = read_marker(read_batch(segment.file, header.position, header.size))
        except KafkaError:
            # Corrupt, or not a transaction marker, which recovery ignores
            if entry is not None:
                self.right.append(entry)
                self.ongoing.pop(producer_id, None)
            return
        first, first_read = (
            self.ongoing.pop(producer_id, None),
            self._first_read.pop(producer_id, None),
        )
        previous, self._markers[producer_id] = self._markers.get(producer_id), offset
        if marker is None:  # compaction has removed the record, and all batches of the transaction
            if entry is not None:
                self._refuse(entry, "its abort marker was removed")
        elif marker.is_commit:
            if entry is not None:
                self._refuse(entry, "the marker at its last offset commits")
        elif entry is None:
            if first is not None:
                self._add(producer_id, first, offset)
                if first_read is not None or self._has_first_batch(producer_id, first):
                    self._report(
                        f"its transaction index has no entry of producer {producer_id}, offsets {first} to "
                        f"{offset}"
                    )
        elif entry.producer_id != producer_id or not self._may_begin_at(
            entry.first_offset, first, first_read, previous
        ):
            self._refuse(entry, f"the transaction of producer {producer_id} begins at {first}")
            if first is not None:
                self._add(producer_id, first, offset)
        elif not self._may_be_stable(entry.last_stable_offset, offset):
            self._add(producer_id, entry.first_offset, offset)
            if not self._has_gaps:
                self._refuse(entry, f"the last stable offset was {self._stable_after(offset)}")
        else:
            self.right.append(entry)

    def _may_begin_at(
        self, offset: int, first: int | None, first_read: int | None, previous: int | None
    ) -> bool:
        """Whether a transaction may begin at `offset`: `first` is its first known offset, `first_read` that
        of its batches from `start` on, and `previous` that of the producer's marker before."""
        if offset == first:
            return True
        if previous is None and not self.knows_all:
            # It may have begun below `start`; its batches from there on are covered.
            return offset < (self.start if first is None else first)
        if not self._has_gaps:
            return False
        after = self.start - 1 if previous is None else previous
        return after < offset and (first_read is None or offset <= first_read)

    def _may_be_stable(self, offset: int, marker: int) -> bool:
        """Whether `offset` may be the last stable offset after the transaction with this marker. A smaller one
        than that of the known transactions is harmless."""
        stable = self._stable_after(marker)
        return offset == stable or (offset < stable and (self._has_gaps or not self.knows_all))

    def _stable_after(self, marker: int) -> int:
        return next(iter(self.ongoing.values()), marker + 1)

    def _has_first_batch(self, producer_id: int, first: int) -> bool:
        """Whether compaction has left the first batch of a transaction in an earlier segment. A transaction
        without batches needs no entry."""
        here = [each for each in self.segments if each.base_offset <= first]
        if not here:
            return False
        found = here[-1].locate(first)
        if found is None or found.base_offset != first:
            return False
        return next(headers(here[-1].file, found.position, found.end)).producer_id == producer_id

    def _add(self, producer_id: int, first: int, marker: int) -> None:
        stable = self._stable_after(marker)
        self.right.append(AbortedTransaction(producer_id, first, marker, stable))
        self.is_changed = True

    def _refuse(self, entry: AbortedTransaction, why: str) -> None:
        self.is_changed = True
        self._report(f"its transaction index has a wrong entry ({describe(entry)}): {why}")

    def _report(self, problem: str) -> None:
        if self.problem is None:
            self.problem = problem
