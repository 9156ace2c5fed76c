"""Measures the rates of copies to and reads from an object store, and the limits of the store.

    python -m odradek.bench.store_rates [DIRECTORY] [--s3] [--mb SIZE] [--passes N]

The limit of the store is obstore alone: a file in parts of the same size and concurrency as Odradek's, and the same
ranged reads. The measurements are complete copies (with indexes, size checks and a manifest) and ranged reads of a
segment, in each storage format. Copies to a directory are synced, and so are the files of the limit. Each number is
the best of several passes.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import UUID

from odradek.bench.remote_stores import arguments_of, open_stores
from odradek.seams.entropy import RealEntropy
from odradek.seams.files import FileSlice
from odradek.seams.files import Path as FilePath
from odradek.seams.object_store import (
    MULTIPART_BYTES,
    PARTS_AT_ONCE,
    ObjectStoreObjects,
    open_objects,
)
from odradek.seams.real_files import RealFiles
from odradek.storage.tiered.chunks import Compression
from odradek.storage.tiered.encryption import KeyRing
from odradek.storage.tiered.object_store import ObjectStoreStorage, StorageFormat
from odradek.storage.tiered.remote_storage_manager import LogSegmentData
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)

RANGES_BYTES = (1 << 20, 8 << 20)

_KEYS = KeyRing({"bench": bytes(32)})
FORMS: Mapping[str, StorageFormat] = {
    "as it is": StorageFormat(),
    "zstd": StorageFormat(Compression.ZSTD),
    "lz4": StorageFormat(Compression.LZ4),
    "encrypted": StorageFormat(keys=_KEYS, encrypts=True),
    "zstd, encrypted": StorageFormat(Compression.ZSTD, keys=_KEYS, encrypts=True),
}


@dataclass(frozen=True)
class Rate:
    """The rate of an operation on a storage form, in MB (1e6 bytes) of the segment per second."""

    form: str
    what: str
    mb_per_s: float


def measure(objects: ObjectStoreObjects, segment_file: Path, passes: int) -> Iterator[Rate]:
    """Measure the store alone first (`form` "the store alone"), then copies and reads."""
    size = segment_file.stat().st_size
    yield from _alone(objects, segment_file, size, passes)
    log = RealFiles(max_open=4).open(FilePath(segment_file))
    data = LogSegmentData(FileSlice(log, 0, size), b"o" * 8, b"t" * 12, None, b"p", b"e")
    segment = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(TopicIdPartition(UUID(int=1), "bench", 0), UUID(int=2)),
        0, 1, 1, 0, 0, (EpochStart(0, 0),), size,
    )  # fmt: skip
    for name, form in FORMS.items():
        storage = ObjectStoreStorage(objects, RealEntropy(), form=form)
        yield Rate(name, "copy", _best(partial(storage.copy_segment, segment, data), size, passes))
        copied = replace(segment, custom_metadata=storage.copy_segment(segment, data))
        for step in RANGES_BYTES:
            read = partial(_read, partial(storage.fetch_segment, copied), size, step)
            yield Rate(name, f"read {step >> 20} MiB", _best(read, size, passes))
        storage.delete_segment(copied)
    log.close()


def _alone(
    objects: ObjectStoreObjects, segment_file: Path, size: int, passes: int
) -> Iterator[Rate]:
    import obstore

    store, key = objects.store, "alone"

    def put() -> None:
        with segment_file.open("rb") as file:
            obstore.put(store, key, file, chunk_size=MULTIPART_BYTES, max_concurrency=PARTS_AT_ONCE)
        objects.make_durable(key)

    yield Rate("the store alone", "copy", _best(put, size, passes))
    for step in RANGES_BYTES:
        read = partial(
            _read,
            lambda start, end: obstore.get_range(store, key, start=start, end=end + 1),
            size,
            step,
        )
        yield Rate("the store alone", f"read {step >> 20} MiB", _best(read, size, passes))
    obstore.delete(store, key)


def _read(fetch: Callable[[int, int], object], size: int, step: int) -> None:
    """Read the whole object by ranges with inclusive ends."""
    for start in range(0, size, step):
        fetch(start, min(start + step, size) - 1)


def _best(do: Callable[[], object], size: int, passes: int) -> float:
    seconds = []
    for _ in range(passes):
        began = time.perf_counter()
        do()
        seconds.append(time.perf_counter() - began)
    return size / 1e6 / min(seconds)


def table(rates: Sequence[Rate]) -> str:
    """Format rates as a table of forms and operations, with fractions of the store's limit."""
    alone = {rate.what: rate.mb_per_s for rate in rates if rate.form == "the store alone"}
    found = {(rate.form, rate.what): rate.mb_per_s for rate in rates}
    lines = [f"| MB/s | {' | '.join(alone)} |", "|---|" + "---|" * len(alone)]
    for form in dict.fromkeys(rate.form for rate in rates):
        cells = [
            f"{found[form, what]:.0f} ({found[form, what] / alone[what]:.0%})" for what in alone
        ]
        lines.append(f"| {form} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = arguments_of(__doc__, mb=256, size_of="segment", passes="of which the best counts")
    chosen = parser.parse_args(arguments)
    with open_stores(chosen) as (directory, stores):
        segment_file = directory / "segment"
        piece = random.Random(1).randbytes(1 << 19) + bytes(1 << 19)  # half of it can be compressed
        segment_file.write_bytes(piece * chosen.mb)
        for store in stores:
            objects = open_objects(store.url, store.options)
            assert isinstance(objects, ObjectStoreObjects)
            print(f"\n{store.title}, a segment of {chosen.mb} MiB\n")
            print(table(list(measure(objects, segment_file, chosen.passes))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
