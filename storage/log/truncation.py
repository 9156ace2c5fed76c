"""Cutting the active segment at an offset, without changing a byte that a slice still covers.

`File.truncate` zeroes the rest of the last page in place, and what is appended then takes the
places of what was cut: a slice that was handed out before would send neither what it meant nor
anything whole. So if the data file is pinned, its first part is **copied** to a new file that takes
the old one's name; the pinned slices keep the old one until they are sent. Otherwise the file is cut
in place. (Truncation follows a change of leader; a slice past the cut is then rare, and the copy,
which may take a second for a large segment, rarer. It is made off the loop: so call `truncate_to`.)
"""

from __future__ import annotations

from odradek.seams.files import File, Files
from odradek.storage.errors import CorruptRecords
from odradek.storage.log.names import CLEANED, LOG
from odradek.storage.log.segment import Segment

_CHUNK_BYTES = 1 << 20


def cut(files: Files, segment: Segment, offset: int, position: int, now_ms: int) -> Segment:
    """What remains of `segment` below `offset`, which is at `position`. Raises OSError.

    The indexes first, so that they never point past the data. `segment` must not be used any more.
    """
    file = segment.file
    if file.pins:
        part = _copy(files, segment, position)
        fresh = segment.truncated(offset, position, part, now_ms)
        files.rename(part.path, segment.path(LOG))
        part.moved(segment.path(LOG))
    else:
        fresh = segment.truncated(offset, position, file, now_ms)
        file.truncate(position)
        segment.disown_file()
    segment.close()
    return fresh


def _copy(files: Files, segment: Segment, size: int) -> File:
    path = segment.path(LOG)
    part_path = path.with_name(path.name + CLEANED)
    files.remove(part_path, missing_ok=True)
    part = files.open(part_path, create=True)
    copied = 0
    while copied < size:
        chunk = segment.file.read_at(copied, min(_CHUNK_BYTES, size - copied))
        if not chunk:
            raise CorruptRecords(f"{path} ends at {copied}, before {size}")
        part.append_v((chunk,))
        copied += len(chunk)
    part.sync()
    return part
