"""Checks a segment's log against its metadata, batch by batch.

| problem | consequence |
|---|---|
| a batch is invalid, cut short, or has a wrong CRC | its records cannot be read |
| offsets do not increase, or are outside the segment's | readers look for them elsewhere |
| a batch has another epoch than the metadata for its offset | its records are ignored |
| a record is later than the segment's max timestamp | queries for its time skip the segment |
| offsets without a record, though the metadata excludes them | queries for offsets alone do not read the log |
| an offset index entry is not a batch at or before its offset | readers start at the wrong position |

A log may end before its segment does, or be empty: if a topic was compacted before it was tiered, a segment extends
to the start of the next one, as in Kafka. Truncated objects are found by their size and CRC.

Records are not decoded. The checker does no I/O: it is fed consecutive pieces of the log.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from odradek.pipeline.decoding.batch_headers import find_batches
from odradek.protocol.records.batch import CRC_START
from odradek.protocol.records.crc32c import crc32c
from odradek.seams.files import Buffer
from odradek.storage.tiered.custom_metadata import is_dense
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata

HEADERS_AT_ONCE = 1 << 14
_CONTROL = 0x20
_INDEX = np.dtype([("relative", ">i4"), ("position", ">i4")])


class SegmentLogChecker:
    """Checks one log. Texts in `problems` begin with `name`. The check stops at the first invalid batch."""

    def __init__(self, segment: RemoteLogSegmentMetadata, name: str) -> None:
        self._segment = segment
        self._name = name
        self._epochs = np.array([each.epoch for each in segment.epochs], np.int64)
        self._epoch_starts = np.array([each.start_offset for each in segment.epochs], np.int64)
        self._rest = b""
        self._position = 0
        self._next_offset = segment.start_offset
        self._places: list[Any] = []
        """Positions and base offsets of the batches."""
        self._is_broken = False
        self.batches = self.records = 0
        self.problems: list[str] = []

    def feed(self, piece: Buffer) -> None:
        if self._is_broken:
            return
        view = memoryview(self._rest + bytes(piece))
        at = 0
        while not self._is_broken:
            found, after, wrong = find_batches(view, at, HEADERS_AT_ONCE)
            if len(found):
                self._check(view, found)
            if wrong:
                self._add_fatal_problem("no batch starts there", after)
            at = after
            if len(found) < HEADERS_AT_ONCE:
                break
        self._rest = bytes(view[at:])
        self._position += at

    def end(self) -> None:
        """Check the end of the log, after the last piece."""
        if self._is_broken:
            return
        if self._rest:
            self._add_fatal_problem("the last batch is incomplete", 0)
        elif self._next_offset > self._segment.end_offset + 1:
            self._add_problem(
                f"ends at offset {self._next_offset - 1}, not {self._segment.end_offset}"
            )
        offsets = self._segment.end_offset - self._segment.start_offset + 1
        if is_dense(self._segment.custom_metadata) and self.records != offsets:
            self._add_problem(
                f"has {self.records} records, but the metadata has one for each of {offsets}"
                " offsets"
            )

    def check_offset_index(self, index: Buffer) -> None:
        """Check the offset index, after `end`."""
        if self._is_broken or not self.batches:
            return
        entries = np.frombuffer(memoryview(index), _INDEX)
        positions = np.concatenate([each[0] for each in self._places])
        bases = np.concatenate([each[1] for each in self._places])
        slots = np.searchsorted(positions, entries["position"])
        slots = np.minimum(slots, len(positions) - 1)
        offsets = entries["relative"].astype(np.int64) + self._segment.start_offset
        wrong = (positions[slots] != entries["position"]) | (bases[slots] > offsets)
        if wrong.any():
            first = entries[int(np.argmax(wrong))]
            self._add_problem(
                f"the offset index has offset {self._segment.start_offset + first['relative']}"
                f" at byte {first['position']} or after it"
            )

    def _check(self, view: memoryview, found: Any) -> None:
        for position, size, crc in zip(
            found["position"].tolist(), found["size"].tolist(), found["crc"].tolist(), strict=True
        ):
            if crc32c(view[position + CRC_START : position + size]) != crc:
                self._add_fatal_problem("the batch's CRC does not match its bytes", position)
                return
        base, last = found["base_offset"].astype(np.int64), found["last_offset"].astype(np.int64)
        before = np.concatenate(([self._next_offset - 1], last[:-1]))
        self._report_first(found, (base <= before) | (last < base), lambda at: (
            f"offset {base[at]} comes after {before[at]}"
        ))  # fmt: skip
        slots = np.searchsorted(self._epoch_starts, base, side="right") - 1
        expected = self._epochs[np.maximum(slots, 0)]
        self._report_first(found, (slots < 0) | (expected != found["leader_epoch"]), lambda at: (
            f"offset {base[at]} has epoch {found['leader_epoch'][at]}, the metadata has"
            f" {expected[at]}"
        ))  # fmt: skip
        latest = self._segment.max_timestamp_ms
        control = found["attributes"] & _CONTROL != 0
        self._report_first(found, ~control & (found["max_timestamp"] > latest), lambda at: (
            f"a record has timestamp {found['max_timestamp'][at]}, the maximum in the metadata"
            f" is {latest}"
        ))  # fmt: skip
        self._places.append((self._position + found["position"].astype(np.int64), base))
        self._next_offset = int(last[-1]) + 1
        self.batches += len(found)
        self.records += int(found["count"][~control].sum(dtype=np.int64))

    def _report_first(self, found: Any, wrong: Any, text: Any) -> None:
        """Report the first of several batches with the same problem."""
        if wrong.any():
            at = int(np.argmax(wrong))
            others = int(wrong.sum()) - 1
            more = f" (and {others} more batches)" if others else ""
            self._add_problem(
                f"byte {self._position + int(found['position'][at])}: {text(at)}{more}"
            )

    def _add_fatal_problem(self, what: str, position: int) -> None:
        self._is_broken = True
        self._add_problem(f"byte {self._position + position}: {what}")

    def _add_problem(self, text: str) -> None:
        self.problems.append(f"{self._name}: {text}")
