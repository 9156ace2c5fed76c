"""Looking at the records of a batch for a timestamp or a missing key, and at nothing else.

For the topics whose configs ask for it (compaction, timestamp limits): a pass over the records that
makes no objects, several times faster than decoding them. How long that takes nobody knows before a batch
is decompressed; so it is begun with a budget for the loop, and what goes beyond that is begun again in a
thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from odradek.protocol.errors import CorruptBatch, DecompressesToMore
from odradek.protocol.records.batch import HEADER_SIZE, Batch
from odradek.protocol.records.compression import NONE, decompress
from odradek.protocol.records.records import read_varint, read_varlong
from odradek.seams.values import value_class
from odradek.storage.errors import RecordTooLarge


class TakesLong(Exception):
    """To look at these records would hold up the loop: that is for a thread."""


@value_class
class Budget:
    """How much is looked at in a batch: records, their bytes as they came, and as they are
    decompressed. A few KiB of them may hold hundreds of MiB, and claim millions of records."""

    records: int
    bytes: int
    decompressed_bytes: int
    is_final: bool = False
    """Whether what goes beyond it is refused; else it takes long."""

    def check(self, batch: Batch) -> None:
        """Raises TakesLong or RecordTooLarge, at which producers split a batch and try again."""
        if batch.record_count > self.records:
            raise self.exceeded(
                f"a batch of {batch.record_count} records; where each is looked at, "
                f"it can be {self.records}"
            )
        if batch.size - HEADER_SIZE > self.bytes:
            raise self.exceeded(f"a batch of {batch.size} bytes whose records are looked at")

    def exceeded(self, why: str) -> TakesLong | RecordTooLarge:
        return RecordTooLarge(why) if self.is_final else TakesLong(why)


ALL = Budget(200_000, 1 << 31, 64 << 20, is_final=True)
SKIMMED_AT_ONCE = Budget(2_000, 256 << 10, 1 << 20)
"""About 2 ms."""


def skim(batch: Batch, budget: Budget = ALL) -> Iterator[tuple[int, bool]]:
    """Of each record its timestamp (as the producer set it) and whether it has a key.

    Raises CorruptBatch if the records are not `record_count` that end with the batch, and what
    `Budget.check` does.
    """
    budget.check(batch)
    body = batch.view[HEADER_SIZE:]
    if batch.compression != NONE:
        try:
            data = bytes(decompress(batch.compression, body, budget.decompressed_bytes))
        except DecompressesToMore as error:
            raise budget.exceeded(error.message) from error
    else:
        data = bytes(body)
    position, base = 0, batch.base_timestamp
    try:
        for _ in range(batch.record_count):
            size, start = read_varint(data, position)
            delta, at = read_varlong(data, start + 1)
            _, at = read_varint(data, at)
            yield base + delta, data[at] != 1  # a key of length -1
            position = start + size
            if size < 0 or position > len(data):
                raise CorruptBatch(f"a record of {size} bytes, {len(data) - start} are left")
    except IndexError:
        raise CorruptBatch("a record is cut short") from None
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes after the last record")
