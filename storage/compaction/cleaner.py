"""One compaction pass over one log, as a generator of steps; a worker process runs it.

1. The dirty part is read, and the last offset of every key is stored in the offset map. If the map is
   full, the dirty part ends there, and the next pass continues.
2. All segments below are read, group by group. The remaining records are written to `.cleaned` files,
   which are durable when the group's `SegmentReplacement` is returned; the broker swaps them in (segment_swap.py).

No file of the log is modified, so a worker that dies loses only its work; its `.cleaned` files are
removed later. Memory: the map, a page, and the decompressed records of a batch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress

from odradek.protocol.errors import KafkaError
from odradek.seams.files import File, Files, Path
from odradek.storage.compaction import segment_grouping
from odradek.storage.compaction.batch_pages import BatchPage, read_pages, records_of
from odradek.storage.compaction.cleaned_transactions import CleanedTransactions
from odradek.storage.compaction.compaction_plan import (
    CompactionFinished,
    CompactionPlan,
    CompactionProgress,
    CompactionStatistics,
    CompactionStep,
    SegmentReplacement,
)
from odradek.storage.compaction.offset_map import SLOT_BYTES, create_offset_map
from odradek.storage.compaction.page_rewriting import RewrittenPage
from odradek.storage.compaction.record_filter import (
    ActiveProducers,
    KnownKeys,
    PassInputs,
    filter_batch,
    invalid_records,
    loses_records,
)
from odradek.storage.compaction.segment_grouping import SegmentSizes
from odradek.storage.log import offset_index
from odradek.storage.log.batch_scan import locate
from odradek.storage.log.file_names import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    file_name,
)
from odradek.storage.log.index_builder import IndexBuilder
from odradek.storage.log.segment import Segment

SYNC_BYTES = 64 << 20
"""Output is synced at this interval, so that no single sync covers a GiB."""


def clean(files: Files, plan: CompactionPlan) -> Iterator[CompactionStep]:
    """Run the pass that `plan` describes. Raises OSError, and KafkaError for a corrupt log."""
    return _CleanerPass(files, plan).steps()


class _CleanerPass:
    def __init__(self, files: Files, plan: CompactionPlan) -> None:
        self._files = files
        self._plan = plan
        self._statistics = CompactionStatistics()
        self._inputs = PassInputs(plan.now_ms, plan.end_offset, ActiveProducers(plan.producers))
        # At most as many slots as the dirty range can have keys.
        slots = min(
            plan.map_bytes // SLOT_BYTES,
            int((plan.end_offset - plan.first_dirty_offset + 1) / plan.map_load) + 2,
        )
        self._map = create_offset_map(slots, plan.seed)
        self._keys_max = max(1, min(int(self._map.slots * plan.map_load), self._map.slots - 1))

    def steps(self) -> Iterator[CompactionStep]:
        known = yield from self._read_keys()
        end_offset = known.last_offset + 1
        transactions = CleanedTransactions(self._plan.aborted)
        for group in self._groups(end_offset):
            yield from self._rewrite(group, known, transactions)
        yield CompactionFinished(end_offset, self._statistics)

    # Offset map

    def _read_keys(self) -> Generator[CompactionStep, None, KnownKeys]:
        """Read the dirty part into the offset map, until its end or until the map is full."""
        plan, statistics = self._plan, self._statistics
        # Transactions that ended before the dirty range are omitted: their markers are not read.
        transactions = CleanedTransactions(
            each for each in plan.aborted if each.last_offset >= plan.first_dirty_offset
        )
        last_offset = plan.end_offset - 1
        for page in self._dirty_pages():
            full_at = self._put_keys(page, transactions)
            statistics.mapped_bytes += page.size
            yield CompactionProgress(page.size, is_mapping=True)
            if full_at is not None:
                last_offset = full_at
                break
        statistics.keys = self._map.size
        statistics.map_filled = self._map.size / self._map.slots
        return KnownKeys(self._map, last_offset)

    def _dirty_pages(self) -> Iterator[BatchPage]:
        plan = self._plan
        for number, (base_offset, size) in enumerate(plan.segments):
            is_last = number + 1 == len(plan.segments)
            if not is_last and plan.segments[number + 1][0] <= plan.first_dirty_offset:
                continue
            with closing(self._files.open(self._path(base_offset, LOG))) as file:
                position = self._first_position(file, base_offset, size)
                yield from self._pages(file, position, base_offset, size)

    def _first_position(self, file: File, base_offset: int, size: int) -> int:
        """Position of the first dirty batch in a segment; with a corrupt index, the start of the
        segment."""
        wanted = self._plan.first_dirty_offset
        if wanted <= base_offset:
            return 0
        try:
            entries = self._files.read(self._path(base_offset, OFFSET_INDEX))
            offset, position = base_offset, 0
            whole = len(entries) // offset_index.ENTRY.size * offset_index.ENTRY.size
            for relative, at in offset_index.ENTRY.iter_unpack(memoryview(entries)[:whole]):
                if base_offset + relative > wanted or at <= position:
                    break
                offset, position = base_offset + relative, at
            if position:
                locate(file, offset, position, size, nowait=False, ends_at=offset)
            return position
        except (FileNotFoundError, KafkaError):
            return 0

    def _put_keys(self, page: BatchPage, transactions: CleanedTransactions) -> int | None:
        """Store the keys of a page; if the map becomes full, returns the last offset that it covers."""
        first_dirty_offset = self._plan.first_dirty_offset
        for batch in page:
            if loses_records(batch, transactions) or batch.is_control or not batch.record_count:
                continue
            self._statistics.mapped_records += batch.record_count
            try:
                full_at = self._map.put(
                    records_of(batch),
                    batch.record_count,
                    batch.base_offset,
                    batch.last_offset,
                    first_dirty_offset,
                    self._keys_max,
                )
            except ValueError as error:
                raise invalid_records(batch, error) from None
            if full_at is not None:
                return full_at
        return None

    # Rewriting

    def _groups(self, end_offset: int) -> list[list[SegmentSizes]]:
        plan = self._plan
        sizes = [
            SegmentSizes(
                base_offset,
                size,
                self._size_of(base_offset, OFFSET_INDEX),
                self._size_of(base_offset, TIME_INDEX),
            )
            for base_offset, size in plan.segments
            if base_offset < end_offset
        ]
        return segment_grouping.group_segments(
            sizes,
            segment_bytes=plan.segment_bytes,
            index_bytes=plan.index_bytes,
            end=plan.end_offset,
        )

    def _rewrite(
        self, group: Sequence[SegmentSizes], known: KnownKeys, transactions: CleanedTransactions
    ) -> Iterator[CompactionStep]:
        """Write the remaining records of a group to `.cleaned` files with their indexes, sync them,
        and return the `SegmentReplacement`. Incomplete files are removed."""
        plan = self._plan
        target = CleanedSegmentWriter(self._files, plan, group[0].base_offset)
        try:
            for source in group:
                with closing(self._files.open(self._path(source.base_offset, LOG))) as file:
                    for page in self._pages(file, 0, source.base_offset, source.log):
                        yield self._rewrite_page(page, known, transactions, target)
            target.finish()
            replaced = [each.base_offset for each in group]
            yield SegmentReplacement(replaced, target.has_transaction_index)
        except BaseException:
            target.discard()
            raise

    def _rewrite_page(
        self,
        page: BatchPage,
        known: KnownKeys,
        transactions: CleanedTransactions,
        target: CleanedSegmentWriter,
    ) -> CompactionProgress:
        rewritten = RewrittenPage(page.data, self._plan.horizon_ms)
        statistics = self._statistics
        for batch in page:
            filtered = filter_batch(batch, known, self._inputs, transactions)
            rewritten.add(batch, filtered)
            statistics.records_read += batch.record_count
            statistics.records_written += filtered.kept_count
            statistics.records_without_key += filtered.without_key
        rewritten.finish()
        written = target.append(rewritten, transactions)
        statistics.bytes_read += page.size
        statistics.bytes_written += written
        return CompactionProgress(page.size, written)

    # Files

    def _path(self, base_offset: int, kind: str) -> Path:
        return self._plan.directory / file_name(base_offset, kind)

    def _size_of(self, base_offset: int, kind: str) -> int:
        try:
            return self._files.file_size(self._path(base_offset, kind))
        except FileNotFoundError:
            return 0

    def _pages(self, file: File, position: int, base_offset: int, size: int) -> Iterator[BatchPage]:
        return read_pages(file, position, size, self._plan.page_bytes, end_offset=base_offset)


class CleanedSegmentWriter:
    """A segment's `.cleaned` files while they are written."""

    def __init__(self, files: Files, plan: CompactionPlan, base_offset: int) -> None:
        self._files = files
        self._builder = IndexBuilder(base_offset, plan.index_interval_bytes)
        self._segment = Segment.create(
            files,
            plan.directory,
            base_offset,
            index_interval_bytes=plan.index_interval_bytes,
            created_ms=plan.now_ms,
            suffix=CLEANED,
        )
        self._unsynced_bytes = 0
        self.has_transaction_index = False

    def append(self, result: RewrittenPage, transactions: CleanedTransactions) -> int:
        """Append the result of a page, and the aborted transactions whose markers are kept; the
        number of bytes."""
        for each in transactions.retained:
            self._segment.transaction_index.append(each)
            self.has_transaction_index = True
        transactions.retained.clear()
        if not result.parts:
            return 0
        file = self._segment.file
        position = file.append_v(result.parts)
        for batch in result.batches:
            self._builder.add(batch.last_offset, batch.max_timestamp, position)
            position += batch.size
        self._unsynced_bytes += sum(map(len, result.parts))
        if self._unsynced_bytes >= SYNC_BYTES:
            file.sync()
            self._unsynced_bytes = 0
        return sum(map(len, result.parts))

    def finish(self) -> None:
        """Write the indexes and sync all files."""
        self._segment.restore_indexes(self._builder, sealed=True)
        self._segment.sync()
        self._segment.close()

    def discard(self) -> None:
        with suppress(OSError):
            self._segment.remove()
