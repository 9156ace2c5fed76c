"""A member of a consumer group with the KIP-848 protocol.

The group coordinator assigns the partitions; a partition is assigned to a member only once its
previous owner has revoked it. As in `odradek.client.group.GroupConsumer` (the classic protocol),
everything happens in the caller's task, inside `poll`, and both classes have the same interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import trio

from odradek.client.connection import BrokerConnection
from odradek.client.consumer import ConsumedRecord, OutOfRange, Reader, ReaderOptions
from odradek.client.errors import ClientError, check
from odradek.client.group_admin import NAMED_TOPICS, committed_offsets, offset_topics
from odradek.client.metadata import Cluster
from odradek.protocol.apis import CONSUMER_GROUP_HEARTBEAT, OFFSET_COMMIT, Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.testing.simulation.readers import seek_to_log_start

JOINS, LEAVES, LEAVES_FOR_NOW = 0, -1, -2
"""Member epochs with a special meaning in a heartbeat."""
FENCED = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})
"""Errors after which the member has lost its assignment and rejoins."""


class ConsumerMember:
    """A consumer group member; it chooses its own `member_id`. Call `leave` at the end."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topic: str,
        member_id: str,
        *,
        instance_id: str | None,
        rebalance_timeout_s: float,
        reader: ReaderOptions,
    ) -> None:
        self.generation = JOINS
        """The member epoch."""
        self._cluster = cluster
        self._group = group
        self._topic = topic
        self._member_id = member_id
        self._instance_id = instance_id
        self._rebalance_timeout_s = rebalance_timeout_s
        self._reader = Reader(cluster, reader)
        self._coordinator: BrokerConnection | None = None
        self._target: set[TopicPartition] = set()
        self._due = 0.0
        self._is_known = False
        """Whether the coordinator has responded to a full heartbeat.

        It repeats the assignment in its response to every full heartbeat.
        """

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset after the last record that `poll` returned, for each owned partition."""
        return self._reader.positions

    async def poll(self, max_wait_s: float) -> list[ConsumedRecord]:
        """Return the next records of the owned partitions; raises retriable KafkaError or
        ClientError."""
        if trio.current_time() >= self._due:
            await self._heartbeat()
        if self._target != self.positions.keys():
            await self._reconcile()
        try:
            return await self._reader.poll(
                min(max_wait_s, max(0.0, self._due - trio.current_time()))
            )
        except OutOfRange:
            return []
        finally:
            if self._reader.out_of_range:
                await seek_to_log_start(self._cluster, self._reader)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets; raises KafkaError (STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID, …)."""
        response = await self._request(
            OFFSET_COMMIT,
            {
                "group_id": self._group,
                "generation_id_or_member_epoch": self.generation,
                "member_id": self._member_id,
                "group_instance_id": self._instance_id,
                "topics": offset_topics(offsets),
            },
        )
        for topic in response.topics:
            for row in topic.partitions:
                self._check(row.error_code, f"the commit of {topic.name}-{row.partition_index}")

    async def leave(self) -> None:
        """Leave the group; a static member keeps its assignment for its return (KIP-345)."""
        if self.generation > JOINS:
            self.generation = LEAVES if self._instance_id is None else LEAVES_FOR_NOW
            response = await self._request(CONSUMER_GROUP_HEARTBEAT, self._named())
            self._check(response.error_code, "leaving")

    async def _heartbeat(self) -> None:
        subscription = {} if self._is_known else {"subscribed_topic_names": [self._topic]}
        self._is_known = False
        topic_id = (await self._cluster.topic(self._topic)).topic_id
        owned = [each.partition for each in self.positions]
        response = await self._request(
            CONSUMER_GROUP_HEARTBEAT,
            self._named()
            | {
                "rebalance_timeout": int(1000 * self._rebalance_timeout_s),
                "topic_partitions": [{"topic_id": topic_id, "partitions": owned}] if owned else [],
                **subscription,
            },
        )
        if response.error_code in FENCED:
            self._target, self.generation = set(), JOINS
            self._reader.assign({})
        self._check(response.error_code, f"a heartbeat of {self._member_id}")
        self.generation = response.member_epoch
        self._due = trio.current_time() + response.heartbeat_interval.total_seconds()
        self._is_known = True
        if response.assignment is not None:
            self._target = {
                TopicPartition(self._topic, index)
                for each in response.assignment.topic_partitions
                if each.topic_id == topic_id
                for index in each.partitions
            }

    async def _reconcile(self) -> None:
        """Revoke the partitions that are not in the target, and then start with the new ones.

        After a revocation, the next heartbeat is due at once.
        """
        kept = {where: at for where, at in self.positions.items() if where in self._target}
        revoked = {where: at for where, at in self.positions.items() if where not in self._target}
        if revoked:
            # Without the commit, records are read twice but not lost
            with suppress(KafkaError, ClientError):
                await self.commit(revoked)
            self._due = 0.0
        new = sorted(self._target - kept.keys())
        self._reader.assign(kept)
        if new:
            committed = await committed_offsets(self._cluster, self._group, new)
            starts = {where: max(0, committed[where].offset) for where in new}
            self._reader.assign(kept | starts)

    def _named(self) -> dict[str, Any]:
        return {
            "group_id": self._group,
            "member_id": self._member_id,
            "member_epoch": self.generation,
            "instance_id": self._instance_id,
        }

    async def _request(self, api: Api, values: Mapping[str, Any]) -> Any:
        if self._coordinator is None or self._coordinator.broken:
            self._coordinator = await self._cluster.coordinator(self._group, owner=self)
        at_most = NAMED_TOPICS if api is OFFSET_COMMIT else None
        return await self._coordinator.request(
            api, values, timeout_s=self._cluster.timeout_s, at_most=at_most
        )

    def _check(self, code: int, about: str) -> None:
        if code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available):
            self._coordinator = None
        check(code, about=f"{about} in group {self._group}")
