"""A broker is killed with SIGKILL while its replicas move between two log directories.

The load and the checks are those of test_sigkill: no acknowledged record is lost, duplicated or at another offset, at
whatever step of a move the process ends (J-08, J-09, J-13, J-14).
"""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek.protocol import apis
from tests.crash.index_check import index_differences
from tests.crash.killed_broker import (
    PARTITIONS,
    TOPIC,
    Place,
    one_round,
    read_everything,
    set_segment_size,
    start,
)
from tests.support.anomalies import assert_none, require
from tests.support.broker_process import free_port
from tests.support.raw_client import RawClient

ROUNDS = 4


class Moves:
    """Requests moves of each partition to its other log directory, repeatedly."""

    def __init__(self, bootstrap: str, log_dirs: Sequence[Path]) -> None:
        self.found: defaultdict[int, set[str]] = defaultdict(set)
        """The log directories in which each partition was found."""
        self._bootstrap = bootstrap
        self._paths = [str(path) for path in log_dirs]
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while not self._enough.is_set():
            try:
                with RawClient(self._bootstrap) as client:
                    while not self._enough.wait(0.02):
                        self._ask(client)
            except (OSError, EOFError, AssertionError):  # the broker is down
                self._enough.wait(0.02)

    def _ask(self, client: RawClient) -> None:
        response = client.ask(apis.DESCRIBE_LOG_DIRS, 4, {"topics": None})
        for directory in response.results:
            for topic in directory.topics:
                for partition in topic.partitions:
                    if topic.name == TOPIC and not partition.is_future_key:
                        self.found[partition.partition_index].add(directory.log_dir)
                        (other,) = {*self._paths} - {directory.log_dir}
                        wanted = {"name": TOPIC, "partitions": [partition.partition_index]}
                        dirs = [{"path": other, "topics": [wanted]}]
                        client.ask(apis.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": dirs})

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._enough.set()
            self._thread.join(60)
            assert not self._thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1001, 1002, 1003])
def test_replicas_moved_during_sigkill_lose_and_duplicate_no_records(
    tmp_path: Path, seed: int
) -> None:
    port = free_port()
    acknowledged: dict[bytes, Place] = {}
    broker = start(tmp_path, port)
    moves = Moves(broker.bootstrap, broker.log_dirs)
    try:
        set_segment_size(broker.bootstrap)
        with moves.going_on():
            for number in range(ROUNDS):
                broker, newly = one_round(broker, tmp_path, port, 10 * seed + number)
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
    assert all(len(moves.found[index]) == 2 for index in range(PARTITIONS)), "nothing was moved"
    with start(tmp_path, port):
        pass  # after the last kill it was opened again and closed cleanly, so its indexes are trimmed
    for log_dir in broker.log_dirs:
        for moved_away in log_dir.glob("*[-.]delete"):
            shutil.rmtree(moved_away)
        assert index_differences(log_dir) == []
