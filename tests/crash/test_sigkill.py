"""A broker is killed with SIGKILL at random times under load, in fifty rounds with fixed seeds.

In each round, idempotent producers with acks=all write to several partitions with small segments. The process is
killed at a time that the seed decides and restarted on the same directories, and the producers continue until
everything is acknowledged. Then every acknowledged record is at its acknowledged offset, none is duplicated, and every
index is equal to one that is rebuilt from its segment. Writes remain in the page cache after SIGKILL, so no record may
be missing.
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
        pass  # after the last kill it was opened again and closed cleanly, so its indexes are trimmed
    for log_dir in broker.log_dirs:
        assert index_differences(log_dir) == []
