"""Verification of the objects of diskless topics against the files and batches of the coordinators (KIP-1164).

`FileAudit` collects what coordinators know: files, and the live batches of partitions. `verify_object` compares one
object with it. A file is verified only if a live batch needs its object, because an object without live batches may be
deleted at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Final

from odradek.protocol.schemas.diskless_apis import DisklessFindBatchesBatchInfo, DisklessListedFile
from odradek.seams.objects import ObjectMissing, Objects
from odradek.seams.values import state_class, value_class
from odradek.storage.diskless.batch_reader import batch_fault, plan_gets
from odradek.storage.diskless.object_key import parse_object_key

PROBLEMS_PER_OBJECT_MAX: Final = 10
"""Damaged batches of one object that are reported; all of them are counted."""


class ObjectStatus(Enum):
    """An object that no coordinator tracks."""

    ORPHAN = "orphan"
    """Old enough that it cannot be committed any more."""
    RECENT = "recent"
    """Its commit may be in progress."""
    STRAY = "stray"
    """Its key is not one of an object of diskless topics."""


@value_class
class UnknownObject:
    key: str
    size: int
    status: ObjectStatus


@value_class
class BatchOfPartition:
    """A live batch with the topic and partition that it belongs to."""

    topic: str
    index: int
    batch: DisklessFindBatchesBatchInfo

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}, offsets {self.batch.base_offset} to {self.batch.last_offset}"


@state_class
class TrackedFile:
    """A file with the coordinators that track it, and its live batches that were found in partitions."""

    key: str
    by_coordinator: dict[int, DisklessListedFile] = field(default_factory=dict)
    batches: list[BatchOfPartition] = field(default_factory=list)

    @property
    def live_batches(self) -> int:
        """Live batches according to the coordinators."""
        return sum(listed.live_batches for listed in self.by_coordinator.values())

    @property
    def size(self) -> int:
        return max((listed.file_size for listed in self.by_coordinator.values()), default=-1)

    @property
    def needed_by(self) -> str:
        """The first live batch, and the number of the others."""
        more = len(self.batches) - 1
        return f"{self.batches[0]}" + (f" and {more} more live batches" if more else "")

    @property
    def miscount(self) -> str:
        """Problem of a file that is `FileAudit.miscounted`."""
        return (
            f"{self.key}: its coordinators count {self.live_batches} live batches, but partitions have "
            f"{len(self.batches)}"
        )

    def metadata_problems(self) -> list[str]:
        """Contradictions between the coordinators."""
        problems = []
        sizes = {listed.file_size for listed in self.by_coordinator.values()}
        if len(sizes) > 1:
            problems.append(f"{self.key}: coordinators have different sizes: {sorted(sizes)} bytes")
        owners = {listed.owner_ids for listed in self.by_coordinator.values()}
        if len(owners) > 1:
            problems.append(f"{self.key}: coordinators have different owners: {sorted(owners)}")
        return problems


class FileAudit:
    """Files of all coordinators, and the live batches of all partitions."""

    def __init__(self) -> None:
        self.files: dict[str, TrackedFile] = {}
        self.batches = 0
        self.live_bytes = 0
        self.partitions = 0

    def add_files(self, coordinator_id: int, files: Iterable[DisklessListedFile]) -> None:
        for listed in files:
            self._file(listed.object_key).by_coordinator[coordinator_id] = listed

    def add_batches(
        self, topic: str, index: int, batches: Iterable[DisklessFindBatchesBatchInfo]
    ) -> None:
        for batch in batches:
            self._file(batch.object_key).batches.append(BatchOfPartition(topic, index, batch))
            self.batches += 1
            self.live_bytes += batch.byte_size

    def files_with_batches(self) -> Iterator[TrackedFile]:
        """Files with live batches, in the order of their keys."""
        for key in sorted(self.files):
            if self.files[key].batches:
                yield self.files[key]

    def miscounted(self, relisted: FileAudit) -> list[TrackedFile]:
        """Files whose number of live batches is not what was found in partitions.

        `relisted` has the files of a later listing. Files whose number has changed meanwhile, or that were committed after
        the first listing, are left out: their batches are being committed or deleted.
        """
        found = []
        for key, file in sorted(self.files.items()):
            later = relisted.files.get(key)
            if later is None or not file.by_coordinator:
                continue
            if later.live_batches == file.live_batches != len(file.batches):
                found.append(file)
        return found

    def _file(self, key: str) -> TrackedFile:
        return self.files.setdefault(key, TrackedFile(key))


def order_problems(
    topic: str, index: int, offset: int, batches: Sequence[DisklessFindBatchesBatchInfo]
) -> list[str]:
    """Gaps and overlaps in the offsets of batches of a partition, of which the first contains `offset`."""
    problems = []
    for batch in batches:
        contains = batch is batches[0] and batch.base_offset <= offset <= batch.last_offset
        if batch.base_offset != offset and not contains:
            problems.append(
                f"{topic}-{index}: offset {batch.base_offset} of {batch.object_key} instead of {offset}"
            )
        offset = batch.last_offset + 1
    return problems


def verify_object(objects: Objects, file: TrackedFile, *, quick: bool) -> tuple[int, list[str]]:
    """Compare the object of a file with its live batches; return (bytes read, problems).

    The size of the object is compared with the committed one. Unless `quick`, each live batch is read, and its header and
    CRC are checked. It blocks. Raises ObjectsUnavailable.
    """
    try:
        size = objects.head(file.key).size
    except ObjectMissing:
        return 0, [f"{file.key}: the object is missing, with {file.needed_by}"]
    problems = []
    if file.by_coordinator and size != file.size:
        problems.append(f"{file.key}: the object has {size} bytes instead of {file.size}")
    by_place = {each.batch.byte_offset: each for each in file.batches}
    beyond = [each for each in file.batches if each.batch.byte_offset + each.batch.byte_size > size]
    if beyond:
        problems.append(f"{file.key}: {beyond[0]} ends after the object of {size} bytes")
    if quick:
        return 0, problems
    faults, read_bytes = _faults(objects, file)
    for place, fault in list(faults.items())[:PROBLEMS_PER_OBJECT_MAX]:
        problems.append(f"{file.key}: {by_place[place]}: {fault}")
    if len(faults) > PROBLEMS_PER_OBJECT_MAX:
        problems.append(f"{file.key}: {len(faults)} damaged batches")
    return read_bytes, problems


def _faults(objects: Objects, file: TrackedFile) -> tuple[Mapping[int, str], int]:
    """Faults of damaged batches by their positions, and the number of bytes that were read."""
    faults: dict[int, str] = {}
    read_bytes = 0
    for get in plan_gets((each.batch for each in file.batches), gap_bytes_max=0):
        try:
            data = memoryview(objects.get_range(file.key, get.start, get.end - get.start))
        except ObjectMissing:
            data = memoryview(b"")
        read_bytes += len(data)
        for batch in get.batches:
            start = batch.byte_offset - get.start
            fault = batch_fault(data[start : start + batch.byte_size], batch)
            if fault is not None:
                faults[batch.byte_offset] = fault
    return faults, read_bytes


def status_of_unknown(key: str, *, now_ms: int, old_ms: int) -> ObjectStatus:
    """Classify an object that no coordinator tracks by the time in its key."""
    try:
        uploaded_ms, _ = parse_object_key(key)
    except ValueError:
        return ObjectStatus.STRAY
    return ObjectStatus.ORPHAN if uploaded_ms < now_ms - old_ms else ObjectStatus.RECENT
