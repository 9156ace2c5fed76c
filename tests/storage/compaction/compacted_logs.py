"""Checks of a log after its compaction."""

from __future__ import annotations

from odradek.storage.log.partition_log import PartitionLog
from tests.storage.compaction.random_log_content import content
from tests.support.log_managers import LogManagerWorld
from tests.support.partition_logs import expected_indexes


def check_files(world: LogManagerWorld, log: PartitionLog) -> None:
    """Check that indexes match the data, sizes and end offsets are consistent, and no other file
    exists."""
    names = set(world.names(log.directory))
    for segment in log.segments[:-1]:
        data = world.files.read(segment.path(".log"))
        found = tuple(world.files.read(segment.path(kind)) for kind in (".index", ".timeindex"))
        want = expected_indexes(
            data, segment.base_offset, segment.index_interval_bytes, sealed=True
        )
        assert found == want
        assert segment.size == len(data)
    expected = {
        segment.path(kind).name
        for segment in log.segments
        for kind in (".log", ".index", ".timeindex", ".txnindex")
    }
    others = {name for name in names - expected if not name.endswith(".deleted")}
    snapshots = {name for name in others if name.endswith(".snapshot")}
    bases = {segment.base_offset for segment in log.segments}
    assert {int(name[:20]) for name in snapshots} <= bases
    assert others - snapshots <= {"leader-epoch-checkpoint", "partition.metadata"}


def latest_values(log: PartitionLog) -> dict[bytes, tuple[int, bytes | None]]:
    """Latest value of each key for a read_committed reader."""
    found: dict[bytes, tuple[int, bytes | None]] = {}
    batches = content(log)
    ends = log.aborted_transactions(0, log.end_offset)
    for batch in batches:
        is_aborted = any(
            each.producer_id == batch.producer[0]
            and each.first_offset <= batch.base_offset < each.last_offset
            for each in ends
        )
        if not batch.is_control and not is_aborted:
            for record in batch.records:
                assert record.key is not None
                found[record.key] = (record.offset, record.value)
    return found
