"""Compares every replica with the committed batches of its log, by fingerprints, during the run.

The committed prefix ends at the highest high watermark that was seen on any replica; it never gets
shorter, and never changes. Every replica has it, byte for byte, up to its own high watermark, and
the leader of the newest epoch has all of it. (Above it, a follower or a former leader may have
uncommitted records until it truncates them.)

Only new batches are compared, and those that were truncated and appended again. They are read from
the virtual disk directly, which warms no page and meets no fault. If the log start offset increases
(retention, DeleteRecords, the remote tier), less is compared. After an unclean election the prefix
is forgotten: such an election may lose committed records.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from odradek.seams.files import Path
from odradek.testing.virtual_disk import DirectoryNode, FileNode, VirtualDisk

_SUFFIX = ".log"
_PREFIX = Struct(">qi")
_LAST_DELTA = Struct(">i")
_LAST_DELTA_AT = 23
_OVERHEAD = 12
_HEADER_BYTES = 61


class BatchFingerprint(NamedTuple):
    """Offsets and checksum of one batch."""

    base: int
    next: int
    crc: int
    """The CRC of all bytes of the batch."""


@dataclass
class _CommittedPrefix:
    high: int = 0
    epoch: int = -1
    """The newest leader epoch that was seen on a replica."""
    stretches: dict[int, BatchFingerprint] = field(default_factory=dict)
    low: int = -1
    """The start of the known part of the prefix."""


class ReplicaSnapshot(NamedTuple):
    """The log of a node at one time."""

    who: Hashable
    """Identifies the log while it is open."""
    name: str
    disk: VirtualDisk
    directory: Path
    start: int
    high_watermark: int
    end: int
    epoch: int
    is_leader: bool


class CommittedRecords:
    def __init__(self) -> None:
        self._prefixes: dict[Hashable, _CommittedPrefix] = {}
        self._compared: dict[Hashable, int] = {}

    def forget(self, log: Hashable) -> None:
        """Forget the prefix after an unclean election."""
        self._prefixes.pop(log, None)

    def high(self, log: Hashable) -> int:
        """The offset up to which the log is known to be committed."""
        return self._prefixes[log].high if log in self._prefixes else 0

    def compare(self, log: Hashable, replica: ReplicaSnapshot) -> str | None:
        """Return a violation by the replica, or None; add its committed records to the prefix."""
        prefix = self._prefixes.setdefault(log, _CommittedPrefix())
        prefix.epoch = max(prefix.epoch, replica.epoch)
        leads = replica.is_leader and replica.epoch == prefix.epoch
        if leads and replica.end < prefix.high:
            return f"{replica.name} is the leader, but its log ends at {replica.end} before {prefix.high}"
        until = max(replica.high_watermark, prefix.high if leads else 0)
        compared = min(self._compared.get(replica.who, 0), replica.end)
        if until <= compared:
            self._compared[replica.who] = compared
            return None
        wrong = self._compare(prefix, replica, max(compared, replica.start), until)
        self._compared[replica.who] = until
        prefix.high = max(prefix.high, replica.high_watermark)
        return wrong

    def _compare(
        self, prefix: _CommittedPrefix, replica: ReplicaSnapshot, start: int, until: int
    ) -> str | None:
        at = start
        # No replica was seen with the offsets in between, and none needs to have them
        if start > prefix.high:
            prefix.low = start
        for stretch in _batch_fingerprints(replica.disk, replica.directory, start, until):
            at = stretch.next
            known = prefix.stretches.get(stretch.base)
            if prefix.low < 0:
                prefix.low = stretch.base
            if stretch.base >= prefix.high:
                prefix.stretches[stretch.base] = stretch
            elif known != stretch and stretch.base >= prefix.low:
                return f"{replica.name} has {stretch}, but {known} was committed"
        if at < until and replica.disk.find(replica.directory) is not None:
            return (
                f"the high watermark of {replica.name} is {until}, but its log on disk ends at {at}"
            )
        return None


def first_offset(disk: VirtualDisk, directory: Path) -> int:
    """The first offset of a log according to its file names; 0 without files."""
    folder = disk.find(directory)
    names = folder.names if isinstance(folder, DirectoryNode) else ()
    return min((_base(name) for name in names if name.endswith(_SUFFIX)), default=0)


def _base(name: str) -> int:
    return int(name.removesuffix(_SUFFIX))


def _batch_fingerprints(
    disk: VirtualDisk, directory: Path, start: int, until: int
) -> Iterator[BatchFingerprint]:
    """The batches with offsets from `start` to `until`, as they are in the files now."""
    folder = disk.find(directory)
    if not isinstance(folder, DirectoryNode):
        return
    names = sorted(name for name in folder.names if name.endswith(_SUFFIX))
    bases = [*map(_base, names)]
    for number, name in enumerate(names):
        if bases[number] >= until:
            return
        if number + 1 < len(bases) and bases[number + 1] <= start:
            continue
        file = folder.names[name]
        if isinstance(file, FileNode):
            with memoryview(file.content) as content:
                yield from _batches_of(content, start, until)


def _batches_of(content: memoryview, start: int, until: int) -> Iterator[BatchFingerprint]:
    position = 0
    while position + _HEADER_BYTES <= len(content):
        base, length = _PREFIX.unpack_from(content, position)
        end = position + _OVERHEAD + length
        if length <= 0 or end > len(content) or base >= until:
            return
        following = base + _LAST_DELTA.unpack_from(content, position + _LAST_DELTA_AT)[0] + 1
        if following > start:
            yield BatchFingerprint(base, following, zlib.crc32(content[position:end]))
        position = end
