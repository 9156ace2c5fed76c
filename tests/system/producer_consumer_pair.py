"""A producer and a consumer of a topic, as Kafka's system tests start them: acks=all, idempotent, in a group."""

from __future__ import annotations

from odradek.testing import Cluster
from tests.support.anomalies import assert_none
from tests.support.broker_process import deadline
from tests.system.cluster_state import PATIENCE_S
from tests.system.group_consumer import Watcher
from tests.system.load import IdempotentLoad, read_partitions


class Pair:
    """Of a topic of one or several partitions."""

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
        """Records are acknowledged, and read."""
        self.load.wait_for_progress()
        read = len(self.watcher.seen)
        with deadline(PATIENCE_S, f"more of {self.topic} to be read") as check:
            while len(self.watcher.seen) <= read:
                check()

    def check(self) -> None:
        """No more is sent; all is there, once, in order, and was read."""
        assert_none(self.anomalies())

    def anomalies(self) -> list[str]:
        """No more is sent; what is not there, once, in order, or was not read."""
        self.load.finish()
        rows = read_partitions(self.cluster.bootstrap, self.topic, self.partitions)
        found = self.load.ledger.anomalies(rows)
        if not found:
            self.watcher.wait_for(rows)
            found = self.watcher.anomalies(rows)
        return found
