"""Creates and deletes topics with the admin APIs and Odradek's client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from odradek.bench.model import PeerFailed
from odradek.client.admin import NewTopic, create_topics, delete_topics
from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster, open_cluster
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.tcp import TcpNetwork

T = TypeVar("T")

TIMEOUT_S = 30.0


class AdminTopics:
    """`model.Topics` with CreateTopics and DeleteTopics; each call opens its own connection."""

    def __init__(self, bootstrap: str, *, replicas: int = 1) -> None:
        self._bootstrap = bootstrap
        self._replicas = replicas

    def create(self, name: str, partitions: int) -> None:
        async def create(cluster: Cluster) -> None:
            await create_topics(cluster, [NewTopic(name, partitions, self._replicas)])
            for partition in range(partitions):
                await cluster.retrying(partial(cluster.leader, name, partition), also=not_yet)

        with_cluster(self._bootstrap, create)

    def delete(self, name: str) -> None:
        with_cluster(self._bootstrap, lambda cluster: delete_topics(cluster, [name]))


def with_cluster(bootstrap: str, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` with new connections and return its result. Raises PeerFailed for an error of the broker."""

    async def main() -> T:
        async with open_cluster(
            TcpNetwork(), bootstrap, client_id="odradek-bench", timeout_s=TIMEOUT_S
        ) as cluster:
            return await work(cluster)

    try:
        return trio.run(main, restrict_keyboard_interrupt_to_checkpoints=True)
    except (ClientError, KafkaError) as error:
        raise PeerFailed(f"{bootstrap}: {error}") from error


def not_yet(error: Exception) -> bool:
    """Return whether the error is UNKNOWN_TOPIC_OR_PARTITION: the brokers do not have the topic yet."""
    return isinstance(error, KafkaError) and error.code is ErrorCode.unknown_topic_or_partition
