"""`odradek remote give-up`: recover topics whose remote log segments are permanently lost.

It applies to topics without any segment left in the store. Each one is altered to
`remote.storage.enable=false` with `remote.log.delete.on.disable=true` (KIP-950): the brokers raise the log start
offset to the local log start offset and delete the remote log segment metadata. Then tiered storage is enabled
again, and the brokers copy the local segments. If the store is a directory, it is marked first, so that brokers
that used another directory at this path accept it. If the command fails, it enables tiered storage again; it can
be repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path as LocalPath
from uuid import UUID

import trio

from odradek.cli.errors import CommandFailed
from odradek.cli.output import ProgressLine
from odradek.cli.remote_inputs import read_metadata
from odradek.client import admin
from odradek.client.admin import ConfigChange, ConfigOperation, ConfigSource, ResourceType
from odradek.client.consumer import EARLIEST, list_offsets
from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster
from odradek.protocol.errors import KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.replication.tiered.whole_metadata_topic import WholeMetadataTopicReader
from odradek.seams.clock import Clock
from odradek.seams.store_directory import declare_replacement, has_marker
from odradek.storage.tiered.audit import RemoteStorageAudit, SegmentStatus
from odradek.storage.tiered.segment_metadata import SegmentState, TopicIdPartition
from odradek.storage.tiered.store_location import directory_of_store

ENABLE = "remote.storage.enable"
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
POLL_S = 0.5
DELETION_TIMEOUT_S = 60.0
"""Timeout for the deletion of the next segment's metadata."""
RESTORE_S = 30.0


@dataclass
class LostTopic:
    """Topic that lost all remote log segments; `lost` has their number and bytes by partition."""

    name: str
    topic_id: UUID
    lost: dict[TopicIdPartition, tuple[int, int]] = field(default_factory=dict)
    begins_at: dict[int, int] = field(default_factory=dict)
    """New log start offsets by partition, after the topic was given up."""

    @property
    def segments(self) -> int:
        return sum(count for count, _ in self.lost.values())

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.lost.values())


@dataclass
class LostTopics:
    """Topics to give up, and lost topics that are not changed, with the reason."""

    topics: list[LostTopic] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    directory: LocalPath | None = None
    """Directory of the store that is marked for the brokers; None for object storage."""


async def find_losses(audit: RemoteStorageAudit, url: str, cluster: Cluster) -> LostTopics:
    """Find the lost topics of the store at `url`. Raises KafkaError and ClientError."""
    found: dict[UUID, LostTopic] = {}
    for each in audit.findings:
        if each.status is not SegmentStatus.MISSING or each.metadata is None:
            continue
        of = each.metadata.partition
        topic = found.setdefault(of.topic_id, LostTopic(of.topic, of.topic_id))
        segments, size_bytes = topic.lost.get(of, (0, 0))
        topic.lost[of] = segments + 1, size_bytes + each.metadata.size_bytes
    await cluster.refresh(None)
    still_there = {each.topic_id for each, tally in audit.usages.items() if tally.segments}
    losses = LostTopics()
    for topic in sorted(found.values(), key=lambda each: each.name):
        known = cluster.topics.get(topic.name)
        if known is None or known.topic_id != topic.topic_id:
            continue  # the topic was deleted: the brokers delete its metadata
        if topic.topic_id in still_there:
            losses.left.append(
                f"{topic.name} has other segments in the store: `odradek remote verify` lists the lost ones,"
                f" `odradek topics trim {topic.name}` deletes the records up to them"
            )
        elif not await _is_tiered(cluster, topic.name):
            losses.left.append(f"{topic.name} is not tiered ({ENABLE}=false)")
        else:
            losses.topics.append(topic)
    root = directory_of_store(url)
    if root is not None:
        losses.directory = root if losses.topics or not has_marker(root) else None
    return losses


async def _is_tiered(cluster: Cluster, topic: str) -> bool:
    found = await admin.describe_configs(cluster, ResourceType.TOPIC, topic, keys=[ENABLE])
    return any(each.value == "true" for each in found)


async def give_up(
    losses: LostTopics,
    cluster: Cluster,
    metadata: WholeMetadataTopicReader,
    clock: Clock,
    progress: ProgressLine,
) -> None:
    """Disable and enable tiered storage of the lost topics.

    Raises CommandFailed if the brokers do not delete the metadata in time, KafkaError and ClientError.
    """
    topics = losses.topics
    if losses.directory is not None:
        try:
            declare_replacement(losses.directory)
        except OSError as error:
            raise CommandFailed(
                f"{losses.directory} cannot be used as the store: {error}"
            ) from None
    async with _tiering_disabled(topics, cluster):
        await _wait_until_deleted(topics, metadata, clock, progress)
    for topic in topics:
        where = [TopicPartition(topic.name, each.partition) for each in topic.lost]
        offsets = await list_offsets(cluster, dict.fromkeys(where, EARLIEST))
        topic.begins_at = {each.partition: found.offset for each, found in offsets.items()}


@asynccontextmanager
async def _tiering_disabled(topics: Iterable[LostTopic], cluster: Cluster) -> AsyncIterator[None]:
    """Disable tiered storage of the topics with deletion of their remote data, and enable it at the end."""
    altered: dict[str, ConfigChange] = {}
    try:
        for topic in topics:
            (before,) = await admin.describe_configs(
                cluster, ResourceType.TOPIC, topic.name, keys=[DELETE_ON_DISABLE]
            )
            is_own = before.source is ConfigSource.TOPIC
            altered[topic.name] = (
                _set(DELETE_ON_DISABLE, before.value or "false")
                if is_own
                else ConfigChange(ConfigOperation.DELETE, DELETE_ON_DISABLE)
            )
            await _alter(
                cluster, topic.name, _set(ENABLE, "false"), _set(DELETE_ON_DISABLE, "true")
            )
        yield
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + RESTORE_S):
            for name, change in list(altered.items()):
                with suppress(KafkaError, ClientError):
                    await _alter(cluster, name, _set(ENABLE, "true"), change)
                    del altered[name]
        if altered:
            raise CommandFailed(
                f"tiered storage is still disabled for {', '.join(altered)}. Enable it for each: odradek configs alter"
                f" topic NAME --set {ENABLE}=true --unset {DELETE_ON_DISABLE}"
            )


async def _alter(cluster: Cluster, topic: str, *changes: ConfigChange) -> None:
    await admin.alter_configs(cluster, ResourceType.TOPIC, topic, changes)


def _set(name: str, value: str) -> ConfigChange:
    return ConfigChange(ConfigOperation.SET, name, value)


async def _wait_until_deleted(
    topics: Sequence[LostTopic],
    metadata: WholeMetadataTopicReader,
    clock: Clock,
    progress: ProgressLine,
) -> None:
    left, since = -1, clock.monotonic()
    while True:
        await read_metadata(metadata)
        waiting = {topic.name: sum(_finished_segments(topic, metadata)) for topic in topics}
        now, before, left = clock.monotonic(), left, sum(waiting.values())
        if not left:
            return
        if left != before:
            since = now
        if now - since > DELETION_TIMEOUT_S:
            names = ", ".join(name for name, count in waiting.items() if count)
            raise CommandFailed(
                f"timed out after {DELETION_TIMEOUT_S:.0f} s without a deletion for {names}: see the logs of their"
                " leaders. Tiered storage is enabled again; repeat the command"
            )
        progress.show(f"{left} segments left")
        await clock.sleep(POLL_S)


def _finished_segments(topic: LostTopic, metadata: WholeMetadataTopicReader) -> Iterator[int]:
    for partition in topic.lost:
        yield sum(
            each.state is SegmentState.COPY_SEGMENT_FINISHED
            for each in metadata.known.segments(partition)
        )
