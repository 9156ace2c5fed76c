"""Compares index files with the batches of their segments.

The reader parses the formats itself and uses no code of the broker, so that it cannot repeat a mistake of the
broker.
"""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

HEADER = struct.Struct(">qiibIhiqq")
OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")


def read_segment(path: Path) -> list[tuple[int, int, int, int]]:
    """Return (position, first offset, last offset, largest timestamp) of every batch."""
    data = path.read_bytes()
    batches = []
    position = 0
    while position < len(data):
        first, length, _, magic, _, _, delta, _, largest = HEADER.unpack_from(data, position)
        assert magic == 2, f"{path} at {position}: magic {magic}"
        batches.append((position, first, first + delta, largest))
        position += 12 + length
    assert position == len(data), f"{path} ends within a batch"
    return batches


def entries(path: Path, layout: struct.Struct) -> list[tuple[int, int]]:
    data = path.read_bytes()
    assert len(data) % layout.size == 0, f"{path} is not trimmed to whole entries"
    return list(layout.iter_unpack(data))


def index_differences(log_dir: Path) -> list[str]:
    """Return the errors of all indexes in a log directory; empty if there are none."""
    wrong: list[str] = []
    for segment in sorted(log_dir.glob("*/*.log")):
        if segment.parent.name == "__cluster_metadata-0":
            continue
        base = int(segment.stem)
        batches = read_segment(segment)
        wrong += _offset_index(segment.with_suffix(".index"), base, batches)
        wrong += _time_index(segment.with_suffix(".timeindex"), base, batches)
        for before, after in itertools.pairwise(batches):
            if after[1] != before[2] + 1:
                wrong.append(f"{segment}: {after[1]} follows {before[2]}")
    return wrong


def _offset_index(path: Path, base: int, batches: list[tuple[int, int, int, int]]) -> list[str]:
    """Check that entries have the last offset and the position of a batch, in increasing order."""
    by_position = {position: last for position, _, last, _ in batches}
    found = entries(path, OFFSET_ENTRY)
    wrong = [
        f"{path}: entry {relative}@{position} matches no batch"
        for relative, position in found
        if by_position.get(position) != base + relative
    ]
    if sorted(set(found)) != found:
        wrong.append(f"{path}: entries do not rise")
    return wrong


def _time_index(path: Path, base: int, batches: list[tuple[int, int, int, int]]) -> list[str]:
    """Check that each entry has the largest timestamp up to its batch, and the batch's last offset."""
    found = entries(path, TIME_ENTRY)
    wrong = []
    for timestamp, relative in found:
        upto = [largest for _, _, last, largest in batches if last <= base + relative]
        if not upto or max(upto) != timestamp:
            wrong.append(f"{path}: {timestamp} is not the largest up to {base + relative}")
    if sorted(set(found)) != found:
        wrong.append(f"{path}: entries do not rise")
    return wrong
