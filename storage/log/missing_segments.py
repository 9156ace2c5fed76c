"""Search for missing segments: offsets between the end of a segment and the base offset of the next one.

In a log that was never compacted, each segment begins where the one before it ends (`roll.py`). If the file
of a segment in the middle was lost, reads continue with the next segment, so consumers skip its offsets
without an error. As in Kafka, a start does not check this, because it would have to open every segment.

The files are opened separately from those of the log, and closed at once: a node has more segments than file
descriptors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import pairwise

from odradek.protocol.errors import KafkaError
from odradek.seams.files import Files
from odradek.storage.log.batch_scan import headers, locate
from odradek.storage.log.file_names import LOG, OFFSET_INDEX
from odradek.storage.log.index_file import CorruptIndex
from odradek.storage.log.offset_index import ENTRY
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.segment import Segment


def may_have_gaps(log: PartitionLog) -> bool:
    """Whether compaction may have removed offsets of the log, now or under an earlier configuration."""
    return log.config.compact or log.cleaned_to is not None


def find_missing_offsets(log: PartitionLog) -> Sequence[tuple[int, int]]:
    """Ranges (first, last offset) that should be in segments between others; in a worker thread.

    Empty if the log may have gaps. A segment whose end cannot be read is ignored. Raises LogFailed, and
    OSError if a file cannot be read.
    """
    if may_have_gaps(log):
        return ()
    while True:
        log.check_online()
        generation = log.wait_until_settled()
        try:
            found = _compare(log.files, log.segments)
        except (OSError, ValueError):
            if generation == log.generation:
                raise
            continue
        if generation == log.generation:
            return found


def _compare(files: Files, segments: Sequence[Segment]) -> Sequence[tuple[int, int]]:
    found = []
    for segment, following in pairwise(segments):
        try:
            end = _end_offset(files, segment)
        except KafkaError:  # corrupt records: reads report them
            continue
        if end < following.base_offset:
            found.append((end, following.base_offset - 1))
    return found


def _end_offset(files: Files, segment: Segment) -> int:
    """Offset after the last batch of an inactive segment. Raises OSError, KafkaError."""
    base, end = segment.base_offset, segment.base_offset
    with closing(files.open(segment.path(LOG))) as file:
        size = file.size
        start, ends_at = 0, base
        with suppress(FileNotFoundError):  # reads build it
            index = files.read(segment.path(OFFSET_INDEX))[-ENTRY.size :]
            if len(index) == ENTRY.size:
                relative, start = ENTRY.unpack(index)
                ends_at = base + relative
        if start:
            try:
                locate(file, ends_at, start, size, nowait=False, ends_at=ends_at)
            except CorruptIndex:
                start = 0
        for batch in headers(file, start, size):
            end = batch.last_offset + 1
    return end
