"""Admin functions for consumer groups, their members and committed offsets.

Requests are sent to the coordinator of the group, which is looked up again while it moves. Each function raises
KafkaError for an error code, and ClientError if there is no response.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from odradek.client.assignors import write_assignment
from odradek.client.connection import BrokerConnection
from odradek.client.errors import check
from odradek.client.metadata import GROUP, Cluster
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.network import Address
from odradek.seams.values import value_class

NAMED_TOPICS = 9
"""Last version of OffsetCommit and OffsetFetch with topic names; later versions have topic ids."""


@value_class
class GroupListing:
    group: str
    protocol_type: str
    state: str
    type: str


@value_class
class GroupMember:
    """Group member; `assignment` is encoded, for consumers as `client.assignors` decodes it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: bytes


@value_class
class GroupDescription:
    group: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]


@value_class
class CommittedOffset:
    """Committed offset; -1 if there is none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


async def _request(
    connection: BrokerConnection, cluster: Cluster, api: apis.Api, **values: Any
) -> Any:
    at_most = NAMED_TOPICS if api in (apis.OFFSET_COMMIT, apis.OFFSET_FETCH) else None
    return await connection.request(api, values, timeout_s=cluster.timeout_s, at_most=at_most)


async def list_groups(cluster: Cluster, *, states: Sequence[str] = ()) -> list[GroupListing]:
    """List the groups of all brokers, or those in one of the `states`."""

    async def attempt() -> list[GroupListing]:
        await cluster.refresh()
        found = {}
        for node_id in sorted(cluster.nodes):
            response = await _request(
                await cluster.node(node_id),
                cluster,
                apis.LIST_GROUPS,
                states_filter=list(states),
                types_filter=[],
            )
            check(response.error_code, about=f"the groups of broker {node_id}")
            for row in response.groups:
                found[row.group_id] = GroupListing(
                    row.group_id,
                    row.protocol_type,
                    getattr(row, "group_state", ""),
                    getattr(row, "group_type", ""),
                )
        return [found[group] for group in sorted(found)]

    return await cluster.retrying(attempt)


async def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    """Describe a classic or consumer group.

    A missing group raises GROUP_ID_NOT_FOUND or has the state Dead, depending on the broker.
    """
    try:
        return await _describe_classic_group(cluster, group)
    except KafkaError as error:
        if error.code != ErrorCode.group_id_not_found:
            raise
    return await _describe_consumer_group(cluster, group)


async def _describe_consumer_group(cluster: Cluster, group: str) -> GroupDescription:
    async def attempt() -> Any:
        coordinator = await cluster.coordinator(group)
        response = await _request(
            coordinator,
            cluster,
            apis.CONSUMER_GROUP_DESCRIBE,
            group_ids=[group],
            include_authorized_operations=False,
        )
        row = response.groups[0]
        check(row.error_code, row.error_message, about=f"group {group}")
        return row

    row = await cluster.retrying(attempt)
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            write_assignment(
                TopicPartition(topic.topic_name, partition)
                for topic in member.assignment.topic_partitions
                for partition in topic.partitions
            ),
        )
        for member in row.members
    )
    return GroupDescription(group, row.group_state, "consumer", row.assignor_name, members)


async def _describe_classic_group(cluster: Cluster, group: str) -> GroupDescription:
    async def attempt() -> Any:
        coordinator = await cluster.coordinator(group)
        response = await _request(
            coordinator,
            cluster,
            apis.DESCRIBE_GROUPS,
            groups=[group],
            include_authorized_operations=False,
        )
        row = response.groups[0]
        check(row.error_code, getattr(row, "error_message", None), about=f"group {group}")
        return row

    row = await cluster.retrying(attempt)
    members = tuple(
        GroupMember(
            member.member_id,
            getattr(member, "group_instance_id", None),
            member.client_id,
            member.client_host,
            bytes(member.member_assignment),
        )
        for member in row.members
    )
    return GroupDescription(group, row.group_state, row.protocol_type, row.protocol_data, members)


async def delete_groups(cluster: Cluster, groups: Iterable[str]) -> None:
    """Delete groups without members, and their offsets."""
    for group in groups:

        async def attempt(group: str = group) -> None:
            coordinator = await cluster.coordinator(group)
            response = await _request(
                coordinator, cluster, apis.DELETE_GROUPS, groups_names=[group]
            )
            for row in response.results:
                check(row.error_code, about=f"group {row.group_id}")

        await cluster.retrying(attempt)


async def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    stable: bool = True,
) -> dict[TopicPartition, CommittedOffset]:
    """Fetch the committed offsets of a group, for these partitions or for all.

    `stable` waits for the end of transactions with pending offset commits.
    """
    topics = None if partitions is None else _by_topic(partitions)

    async def attempt() -> dict[TopicPartition, CommittedOffset]:
        coordinator = await cluster.coordinator(group)
        response = await _request(
            coordinator,
            cluster,
            apis.OFFSET_FETCH,
            group_id=group,
            topics=topics,
            groups=[_fetched(group, topics)],
            require_stable=stable,
        )
        return _committed(response.groups[0] if hasattr(response, "groups") else response, group)

    return await cluster.retrying(attempt, also=_is_unstable)


async def committed_by_group(
    cluster: Cluster, groups: Mapping[str, Iterable[TopicPartition]], *, stable: bool = True
) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    """Fetch the committed offsets of many groups, by group id.

    One request finds all coordinators, and one is sent to each of them (KIP-699, KIP-709). Brokers
    before Kafka 3.0 get one request per group.
    """
    lookup = _CommittedOffsetsLookup(cluster, groups, stable=stable)
    if groups:
        await cluster.retrying(lookup.attempt, also=_is_unstable)
    return lookup.found


class _CommittedOffsetsLookup:
    """Fetches the committed offsets of many groups. `found` are the offsets by group id."""

    def __init__(
        self, cluster: Cluster, groups: Mapping[str, Iterable[TopicPartition]], *, stable: bool
    ) -> None:
        self.found: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._cluster = cluster
        self._groups = groups
        self._stable = stable
        self._wanted = {group: _by_topic(partitions) for group, partitions in groups.items()}

    async def attempt(self) -> None:
        """Fetch the offsets of the remaining groups. Raises the first error of a group."""
        left = [group for group in self._wanted if group not in self.found]
        response = await (await self._cluster.any_node()).request(
            apis.FIND_COORDINATOR,
            {"key": left[0], "key_type": GROUP, "coordinator_keys": left},
            timeout_s=self._cluster.timeout_s,
        )
        if not hasattr(response, "coordinators"):
            await self._fetch_one_by_one(left)
            return
        failures: list[KafkaError] = []
        by_coordinator: dict[Address, list[str]] = {}
        for each in response.coordinators:
            with _kept(failures):
                check(
                    each.error_code,
                    each.error_message,
                    about=f"the coordinator of group {each.key}",
                )
                by_coordinator.setdefault(Address(each.host, each.port), []).append(each.key)
        for address, names in by_coordinator.items():
            await self._fetch(address, names, failures)
        if failures:
            raise failures[0]

    async def _fetch(
        self, coordinator: Address, groups: Sequence[str], failures: list[KafkaError]
    ) -> None:
        response = await _request(
            await self._cluster.connect(coordinator),
            self._cluster,
            apis.OFFSET_FETCH,
            group_id=groups[0],
            topics=self._wanted[groups[0]],
            groups=[_fetched(group, self._wanted[group]) for group in groups],
            require_stable=self._stable,
        )
        if not hasattr(response, "groups"):
            await self._fetch_one_by_one(groups)
            return
        for row in response.groups:
            with _kept(failures):
                self.found[row.group_id] = _committed(row, row.group_id)

    async def _fetch_one_by_one(self, groups: Iterable[str]) -> None:
        for group in groups:
            self.found[group] = await committed_offsets(
                self._cluster, group, self._groups[group], stable=self._stable
            )


@contextmanager
def _kept(failures: list[KafkaError]) -> Iterator[None]:
    """Collect an error of one group, so that the other groups are still fetched."""
    try:
        yield
    except KafkaError as error:
        failures.append(error)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    indexes: dict[str, list[int]] = {}
    for topic, partition in partitions:
        indexes.setdefault(topic, []).append(partition)
    return [{"name": name, "partition_indexes": rows} for name, rows in indexes.items()]


def _fetched(group: str, topics: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}


def _is_unstable(error: Exception) -> bool:
    """Whether a transaction has pending offset commits."""
    return isinstance(error, KafkaError) and error.code == ErrorCode.unstable_offset_commit


def _committed(response: Any, group: str) -> dict[TopicPartition, CommittedOffset]:
    check(getattr(response, "error_code", 0), about=f"the offsets of group {group}")
    found = {}
    for topic in response.topics:
        for row in topic.partitions:
            where = TopicPartition(topic.name, row.partition_index)
            check(row.error_code, about=f"the offset of {where} in group {group}")
            epoch = getattr(row, "committed_leader_epoch", -1)
            found[where] = CommittedOffset(row.committed_offset, epoch, row.metadata or "")
    return found


def offset_topics(
    offsets: Mapping[TopicPartition, int | CommittedOffset],
) -> list[dict[str, Any]]:
    """The `topics` field of OffsetCommit and TxnOffsetCommit requests."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for where, each in offsets.items():
        committed = CommittedOffset(each) if isinstance(each, int) else each
        row = {
            "partition_index": where.partition,
            "committed_offset": committed.offset,
            "committed_leader_epoch": committed.leader_epoch,
            "committed_metadata": committed.metadata,
        }
        topics.setdefault(where.topic, []).append(row)
    return [{"name": name, "partitions": rows} for name, rows in topics.items()]


async def reset_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
) -> None:
    """Commit offsets of a group without members; UNKNOWN_MEMBER_ID if it has members."""

    async def attempt() -> None:
        coordinator = await cluster.coordinator(group)
        response = await _request(
            coordinator,
            cluster,
            apis.OFFSET_COMMIT,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=offset_topics(offsets),
        )
        for topic in response.topics:
            for row in topic.partitions:
                about = f"the offset of {topic.name}-{row.partition_index} in group {group}"
                check(row.error_code, about=about)

    await cluster.retrying(attempt)


async def delete_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition]
) -> None:
    """Delete committed offsets of topics to which the group is not subscribed."""
    indexes: dict[str, list[dict[str, int]]] = {}
    for topic, partition in partitions:
        indexes.setdefault(topic, []).append({"partition_index": partition})
    topics = [{"name": name, "partitions": rows} for name, rows in indexes.items()]

    async def attempt() -> Any:
        coordinator = await cluster.coordinator(group)
        response = await _request(
            coordinator, cluster, apis.OFFSET_DELETE, group_id=group, topics=topics
        )
        check(response.error_code, about=f"group {group}")
        return response

    response = await cluster.retrying(attempt)
    for row in response.topics:
        for found in row.partitions:
            about = f"the offset of {row.name}-{found.partition_index} in group {group}"
            check(found.error_code, about=about)
