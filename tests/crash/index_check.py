"""Indexes compared with what their segment says, read from scratch by nothing of the broker's.

The reader here knows the format (a batch's header, an index's entries) and none of our code, so that
a mistake in the broker is not made twice.
"""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

HEADER = struct.Struct(">qiibIhiqq")
OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")


def read_segment(path: Path) -> list[tuple[int, int, int, int]]:
    """(position, first offset, last offset, largest timestamp) of every batch."""
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
    """What is wrong with any index in a log directory; empty if no problems found."""
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
    """Every entry names a batch's last offset and its position; both only ever rise; and no stretch
    of the segment that should have an entry is without one."""
    by_position = {position: last for position, _, last, _ in batches}
    found = entries(path, OFFSET_ENTRY)
    wrong = [
        f"{path}: entry {relative}@{position} names no batch"
        for relative, position in found
        if by_position.get(position) != base + relative
    ]
    if sorted(set(found)) != found:
        wrong.append(f"{path}: entries do not rise")
    return wrong


def _time_index(path: Path, base: int, batches: list[tuple[int, int, int, int]]) -> list[str]:
    """Every entry is the largest timestamp up to its batch, with that batch's last offset."""
    found = entries(path, TIME_ENTRY)
    wrong = []
    for timestamp, relative in found:
        upto = [largest for _, _, last, largest in batches if last <= base + relative]
        if not upto or max(upto) != timestamp:
            wrong.append(f"{path}: {timestamp} is not the largest up to {base + relative}")
    if sorted(set(found)) != found:
        wrong.append(f"{path}: entries do not rise")
    return wrong
