"""A broker killed with SIGKILL at random moments under load, fifty rounds over fixed seeds.

Each round: idempotent producers with acks=all write to several partitions with small segments, the
process is killed at a moment that the seed chooses and started again on the same directories, the
producers go on until everything is acknowledged. Then: every acknowledged record is at the offset
that it was acknowledged with, none is there twice, and every index is equal to one rebuilt from its
segment. The page cache outlives a killed process, so nothing at all may be missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.index_check import index_differences
from tests.crash.killed_broker import Place, one_round, read_everything, set_segment_size, start
from tests.support.anomalies import assert_none, require
from tests.support.broker_process import free_port

ROUNDS = 50
ROUNDS_A_TEST = 5


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(0, ROUNDS, ROUNDS_A_TEST))
def test_sigkill_loses_and_duplicates_no_acknowledged_records(
    tmp_path: Path, first_seed: int
) -> None:
    port = free_port()
    acknowledged: dict[bytes, Place] = {}
    broker = start(tmp_path, port)
    try:
        set_segment_size(broker.bootstrap)
        for seed in range(first_seed, first_seed + ROUNDS_A_TEST):
            broker, newly = one_round(broker, tmp_path, port, seed)
            acknowledged |= newly
        found = read_everything(broker.bootstrap)
    finally:
        broker.kill()
    assert_none(
        f"{value!r} was acknowledged at {place}, where {found.get(place)!r} is"
        for value, place in acknowledged.items()
        if found.get(place) != value
    )
    require(len(set(found.values())) == len(found), "a record is there twice")
    with start(tmp_path, port):
        pass  # opened once more after the last kill, and closed cleanly: its indexes are trimmed
    for log_dir in broker.log_dirs:
        assert index_differences(log_dir) == []
