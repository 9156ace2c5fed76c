"""A producer and a consumer of a topic as in Kafka's system tests: acks=all, idempotent, and a consumer
group.
"""

from __future__ import annotations

from odradek.testing import Cluster
from tests.support.anomalies import assert_none
from tests.support.waiting import deadline
from tests.system.cluster_state import TIMEOUT_S
from tests.system.group_consumer import Watcher
from tests.system.load import IdempotentLoad, read_partitions


class Pair:
    """Producer and consumer of a topic with one or several partitions."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int = 1) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = partitions
        self.load = IdempotentLoad(cluster.bootstrap, topic, partitions)
        self.watcher = Watcher(cluster.bootstrap, topic)

    def __enter__(self) -> Pair:
        self.load.__enter__()
        self.watcher.__enter__()
        self.load.wait_for_progress()
        return self

    def __exit__(self, *exc: object) -> None:
        self.load.__exit__(*exc)
        self.watcher.__exit__(*exc)

    def goes_on(self) -> None:
        """Assert that further records are acknowledged and consumed."""
        self.load.wait_for_progress()
        read = len(self.watcher.seen)
        with deadline(TIMEOUT_S, f"more of {self.topic} to be read") as check:
            while len(self.watcher.seen) <= read:
                check()

    def check(self) -> None:
        """Stop producing, and assert that every record is in the log once, in order, and was consumed."""
        assert_none(self.anomalies())

    def anomalies(self) -> list[str]:
        """Stop producing, and return the records that are lost, duplicated, out of order or not consumed."""
        self.load.finish()
        rows = read_partitions(self.cluster.bootstrap, self.topic, self.partitions)
        found = self.load.ledger.anomalies(rows)
        if not found:
            self.watcher.wait_for(rows)
            found = self.watcher.anomalies(rows)
        return found
