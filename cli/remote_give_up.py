"""`odradek remote give-up`: go on without what a store had that is lost for good.

Of topics that have nothing left in the store, in none of their partitions. For each, its leaders are told
what `remote.storage.enable=false` with `remote.log.delete.on.disable=true` tells them (KIP-950): the log
begins where the disk does, and what the metadata says of the remote tier is deleted. Then the topic is tiered
as before, and what is on the disk is copied anew. A directory is marked first, so that brokers which
remember another one in its place take it. Whatever ends this early turns tiering on again; it may be
repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path as LocalPath
from urllib.parse import unquote, urlsplit
from uuid import UUID

import trio

from odradek.cli.errors import CommandFailed
from odradek.cli.remote_output import Progress
from odradek.cli.remote_store import MetadataTopicConsumer
from odradek.client import admin
from odradek.client.admin import ConfigChange, ConfigOperation, ConfigSource, ResourceType
from odradek.client.consumer import EARLIEST, TopicPartition, list_offsets
from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster
from odradek.protocol.errors import KafkaError
from odradek.seams.clock import Clock
from odradek.seams.store_directory import begin_instead, has_mark
from odradek.storage.tiered.audit import RemoteStorageAudit, SegmentStatus
from odradek.storage.tiered.metadata import SegmentState, TopicIdPartition

ENABLE = "remote.storage.enable"
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
LOOK_S = 0.5
PATIENCE_S = 60.0
"""How long nothing may be deleted before it is given up to wait for that."""
RESTORE_S = 30.0


@dataclass
class LostTopic:
    """One whose copies are all lost; `lost` are segments and bytes by partition."""

    name: str
    topic_id: UUID
    lost: dict[TopicIdPartition, tuple[int, int]] = field(default_factory=dict)
    begins_at: dict[int, int] = field(default_factory=dict)
    """By partition, once it is given up."""

    @property
    def segments(self) -> int:
        return sum(count for count, _ in self.lost.values())

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.lost.values())


@dataclass
class Losses:
    """What is to be given up, and what is lost and is left, with why."""

    topics: list[LostTopic] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    directory: LocalPath | None = None
    """Where the store is, if it is one that brokers are to be told to take."""


async def find_losses(audit: RemoteStorageAudit, url: str, cluster: Cluster) -> Losses:
    """Of the store at `url`. Raises KafkaError and ClientError."""
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
    losses = Losses()
    for topic in sorted(found.values(), key=lambda each: each.name):
        known = cluster.topics.get(topic.name)
        if known is None or known.topic_id != topic.topic_id:
            continue  # it was deleted: the brokers see to that
        if topic.topic_id in still_there:
            losses.left.append(
                f"{topic.name} has other segments in the store: `odradek remote verify` names those that are"
                f" lost, `odradek topics trim {topic.name}` has its log begin behind them"
            )
        elif not await _is_tiered(cluster, topic.name):
            losses.left.append(f"{topic.name} is not tiered ({ENABLE}=false)")
        else:
            losses.topics.append(topic)
    if url.startswith("file://"):
        root = LocalPath(unquote(urlsplit(url).path))
        losses.directory = root if losses.topics or not has_mark(root) else None
    return losses


async def _is_tiered(cluster: Cluster, topic: str) -> bool:
    found = await admin.describe_configs(cluster, ResourceType.TOPIC, topic, keys=[ENABLE])
    return any(each.value == "true" for each in found)


async def give_up(
    losses: Losses,
    cluster: Cluster,
    metadata: MetadataTopicConsumer,
    clock: Clock,
    progress: Progress,
) -> None:
    """See the module. Raises CommandFailed where the brokers do not come to an end, KafkaError and
    ClientError."""
    topics = losses.topics
    if losses.directory is not None:
        try:
            begin_instead(losses.directory)
        except OSError as error:
            raise CommandFailed(f"{losses.directory} cannot be made the store: {error}") from None
    async with _not_tiered(topics, cluster):
        await _until_deleted(topics, metadata, clock, progress)
    for topic in topics:
        where = [TopicPartition(topic.name, each.partition) for each in topic.lost]
        offsets = await list_offsets(cluster, dict.fromkeys(where, EARLIEST))
        topic.begins_at = {each.partition: found.offset for each, found in offsets.items()}


@asynccontextmanager
async def _not_tiered(topics: Iterable[LostTopic], cluster: Cluster) -> AsyncIterator[None]:
    """Meanwhile; what of it belongs to the remote tier is deleted."""
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
                f"not tiered any more: {', '.join(altered)}. Turn it on again, for each: odradek configs alter"
                f" topic NAME --set {ENABLE}=true --unset {DELETE_ON_DISABLE}"
            )


async def _alter(cluster: Cluster, topic: str, *changes: ConfigChange) -> None:
    await admin.alter_configs(cluster, ResourceType.TOPIC, topic, changes)


def _set(name: str, value: str) -> ConfigChange:
    return ConfigChange(ConfigOperation.SET, name, value)


async def _until_deleted(
    topics: Sequence[LostTopic], metadata: MetadataTopicConsumer, clock: Clock, progress: Progress
) -> None:
    left, since = -1, clock.monotonic()
    while True:
        await metadata.read_on()
        waiting = {topic.name: sum(_finished(topic, metadata)) for topic in topics}
        now, before, left = clock.monotonic(), left, sum(waiting.values())
        if not left:
            return
        if left != before:
            since = now
        if now - since > PATIENCE_S:
            names = ", ".join(name for name, count in waiting.items() if count)
            raise CommandFailed(
                f"nothing was deleted for {PATIENCE_S:.0f} s of {names}: see the log of their leaders. They are"
                " tiered again, with what is left; repeat this"
            )
        progress.say(f"{left} segments are left to be given up")
        await clock.sleep(LOOK_S)


def _finished(topic: LostTopic, metadata: MetadataTopicConsumer) -> Iterator[int]:
    for partition in topic.lost:
        yield sum(
            each.state is SegmentState.COPY_SEGMENT_FINISHED
            for each in metadata.known.segments(partition)
        )
