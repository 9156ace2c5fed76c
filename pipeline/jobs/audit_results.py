"""Results of an audit so far, in a file with one line for each segment, with which an interrupted audit continues.

    {"audit": 1, "store": "s3://history/kafka", "brokers": true}
    4f0c…e2 {"id": …, "batches": …, "records": …, "bytes": …, "problems": […], "manifest": …}

The line of a segment is appended after the segment was read, and has a digest of the listing of its objects. If
the objects have changed, the segment is read again. An incomplete last line is truncated, and invalid lines are ignored. The driver keeps 20 bytes for
each line, with its position, and reads the line when the listing reaches the segment: a store of 1 PB may have ten
million segments.

The file is removed at the end of the audit, because the next audit must check the objects again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import PurePosixPath

import numpy as np

from odradek.pipeline.errors import BadOption, FilesUnavailable
from odradek.pipeline.jobs.audit_tasks import SegmentReport
from odradek.protocol.uuids import uuid_to_text
from odradek.seams.files import File
from odradek.seams.real_files import RealFiles
from odradek.storage.tiered.audit import StoredSegment
from odradek.storage.tiered.partition_summary import PartitionSummaryBuilder, decode
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition

VERSION = 1
PIECE_BYTES = 4 << 20
DIGEST_BYTES = 8
_LINE_POSITION = np.dtype([("digest", ">u8"), ("at", "<i8"), ("size", "<i4")])


class AuditResultsFile:
    """Results file of one audit; not thread-safe."""

    def __init__(self, files: RealFiles, file: File) -> None:
        self._files = files
        self._file = file
        self._lines_by_digest = np.zeros(0, _LINE_POSITION)
        """Positions of the lines of earlier runs, by digest."""

    def find(self, stored: StoredSegment) -> SegmentReport | None:
        """Return the result of an earlier run for the segment; None if it must be read."""
        digest = _digest(stored)
        wanted = int.from_bytes(digest, "big")
        row = int(np.searchsorted(self._lines_by_digest["digest"], wanted))
        if row == len(self._lines_by_digest) or int(self._lines_by_digest["digest"][row]) != wanted:
            return None
        at, size = int(self._lines_by_digest["at"][row]), int(self._lines_by_digest["size"][row])
        with _translate_errors(self._file):
            line = self._file.read_at(at, size)
        return _parse_line(line, stored)

    def append(self, read: Iterable[tuple[StoredSegment, SegmentReport]]) -> None:
        """Append the results of segments that were read. Raises FilesUnavailable."""
        lines = [_line(stored, report) for stored, report in read]
        with _translate_errors(self._file):
            self._file.append_v([b"".join(lines)])
            self._file.sync()

    def remove(self) -> None:
        """Remove the file at the end of the audit."""
        with _translate_errors(self._file):
            self._files.remove(self._file.path)

    def begin(self, head: bytes) -> None:
        """Read the existing lines; `head` is the expected first line. Raises BadOption if the file is of another
        audit.
        """
        if not self._file.size:
            self._file.append_v([head])
            return
        found: list[tuple[int, int, int]] = []
        at = 0
        for line in self._lines():
            if at == 0 and line != head:
                raise BadOption(
                    f"{self._file.path} belongs to another audit: it begins with"
                    f" {_line_start(line)}, not {_line_start(head)}; give another file, or remove it"
                )
            digest = _hex(line)
            if at and digest is not None:
                found.append((digest, at, len(line)))
            at += len(line)
        if at == 0 and not head.startswith(self._file.read_at(0, self._file.size)):
            raise BadOption(f"{self._file.path} is not a file of an audit: give another file")
        self._file.truncate(at)
        if at == 0:
            self._file.append_v([head])
        self._lines_by_digest = np.sort(np.array(found, _LINE_POSITION), order=["digest", "at"])

    def _lines(self) -> Iterator[bytes]:
        """Yield the complete lines."""
        rest = b""
        for at in range(0, self._file.size, PIECE_BYTES):
            rest += self._file.read_at(at, min(PIECE_BYTES, self._file.size - at))
            *whole, rest = rest.split(b"\n")
            yield from (line + b"\n" for line in whole)


@contextmanager
def open_audit_results(path: str, store: str, *, has_brokers: bool) -> Iterator[AuditResultsFile]:
    """Open or create the results file of an audit of `store`. Raises BadOption if the file is another audit's or in
    use by another run, and FilesUnavailable.
    """
    files, at = RealFiles(), PurePosixPath(path)
    try:
        lock = files.lock(at)
    except BlockingIOError:
        raise BadOption(f"{path} is in use by another audit: wait until it has ended") from None
    except OSError as error:
        raise BadOption(f"{path} cannot be written: {error}") from None
    file = files.open(at, write=True)
    try:
        results_file = AuditResultsFile(files, file)
        head = {"audit": VERSION, "store": store, "brokers": has_brokers}
        with _translate_errors(file):
            results_file.begin(json.dumps(head).encode() + b"\n")
        yield results_file
    finally:
        file.close()
        lock.release()


@contextmanager
def _translate_errors(file: File) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FilesUnavailable(f"{file.path} could not be read or written: {error}") from error


def _digest(stored: StoredSegment) -> bytes:
    text = [uuid_to_text(stored.id.partition.topic_id), uuid_to_text(stored.id.id)]
    for suffix, info in sorted(stored.objects.items()):
        text.append(f"{suffix} {info.size} {info.modified_ms}")
    return blake2b("\n".join(text).encode(), digest_size=DIGEST_BYTES).digest()


def _line(stored: StoredSegment, report: SegmentReport) -> bytes:
    manifest = report.manifest
    fields = {
        "id": uuid_to_text(stored.id.id),
        "batches": report.batches,
        "records": report.records,
        "bytes": report.size_bytes,
        "problems": list(report.problems),
        "manifest": None if manifest is None else _packed(manifest),
    }
    return f"{_digest(stored).hex()} {json.dumps(fields)}\n".encode()


def _parse_line(line: bytes, stored: StoredSegment) -> SegmentReport | None:
    """Parse a line; None if it is invalid."""
    try:
        fields = json.loads(line[2 * DIGEST_BYTES :])
        if fields["id"] != uuid_to_text(stored.id.id):
            return None
        packed = fields["manifest"]
        return SegmentReport(
            stored.id,
            int(fields["batches"]),
            int(fields["records"]),
            int(fields["bytes"]),
            [str(each) for each in fields["problems"]],
            None if packed is None else _unpacked(packed, stored.id.partition),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _packed(manifest: RemoteLogSegmentMetadata) -> str:
    """Encode a manifest as a summary with one segment."""
    return base64.b64encode(PartitionSummaryBuilder([manifest]).encode()).decode()


def _unpacked(text: str, partition: TopicIdPartition) -> RemoteLogSegmentMetadata:
    (found,) = decode(base64.b64decode(text)).segments(partition)
    return found


def _hex(line: bytes) -> int | None:
    try:
        return int(line[: 2 * DIGEST_BYTES], 16)
    except ValueError:
        return None


def _line_start(line: bytes) -> str:
    return line[:200].decode(errors="replace").strip()
