"""`odradek remote give-up`: recover topics whose remote log segments are permanently lost.

It applies to topics without any segment left in the store. If the store is a directory, it is marked first, so that
brokers that used another directory at this path accept it. The brokers then raise the log start offset to the local
log start offset and delete the remote log segment metadata, after a change of the topic's configs:

| tiered storage of the topic | change | afterwards |
|---|---|---|
| enabled | `remote.storage.enable=false` with `remote.log.delete.on.disable=true` | enabled again: the brokers copy the local segments |
| disabled, data is retained (KIP-950) | `remote.log.disable.policy=delete`, once the state is not DISABLING | disabled |
| disabled, data is deleted, in either form | none: the deletion only needs the store | disabled |

If the command fails, it enables tiered storage again where it was enabled; it can be repeated.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
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
from odradek.client.topic_tiering_admin import (
    DISABLE_POLICY,
    ENABLE,
)
from odradek.protocol.errors import TIERED_STORAGE_DISABLEMENT_IN_PROGRESS, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.replication.tiered.whole_metadata_topic import WholeMetadataTopicReader
from odradek.seams.clock import Clock
from odradek.seams.store_directory import declare_replacement, has_marker
from odradek.storage.tiered.audit import KnownSegments, RemoteStorageAudit, SegmentStatus
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.storage.tiered.store_location import directory_of_store

DELETE_ON_DISABLE = "remote.log.delete.on.disable"
POLL_S = 0.5
DELETION_TIMEOUT_S = 60.0
"""Timeout for the deletion of the next segment's metadata."""
RESTORE_S = 30.0


class TieringForm(enum.Enum):
    """Tiered storage of a lost topic, according to its configs."""

    ENABLED = "enabled"
    RETAINED = "disabled, data is retained"
    DELETED = "disabled, data is deleted"
    NONE = "not tiered"


@dataclass
class LostTopic:
    """Topic that lost all remote log segments; `lost` has their number and bytes by partition."""

    name: str
    topic_id: UUID
    form: TieringForm = TieringForm.ENABLED
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


async def find_losses(
    audit: RemoteStorageAudit, known: KnownSegments, url: str, cluster: Cluster
) -> LostTopics:
    """Find the lost topics of the store at `url`; `known` is the metadata. Raises KafkaError and ClientError."""
    lost = _by_topic(
        each.metadata
        for each in audit.findings
        if each.status is SegmentStatus.MISSING and each.metadata is not None
    )
    in_any_state = _by_topic(
        segment
        for partition in known.partitions()
        if audit.is_wanted(partition)
        for segment in known.segments(partition)
    )
    still_there = {each.topic_id for each, tally in audit.usages.items() if tally.segments}
    await cluster.refresh(None)
    losses = LostTopics()
    for topic in sorted((in_any_state | lost).values(), key=lambda each: each.name):
        found = cluster.topics.get(topic.name)
        if found is None or found.topic_id != topic.topic_id:
            continue  # the topic was deleted: the brokers delete its metadata
        if topic.topic_id in still_there:
            if topic.topic_id in lost:
                losses.left.append(
                    f"{topic.name} has other segments in the store: `odradek remote verify` lists the lost ones,"
                    f" `odradek topics trim {topic.name}` deletes the records up to them"
                )
            continue
        form = await _form_of(cluster, topic.name)
        if form is TieringForm.DELETED:
            losses.topics.append(replace(in_any_state.get(topic.topic_id, topic), form=form))
        elif topic.topic_id in lost and form is TieringForm.NONE:
            losses.left.append(f"{topic.name} is not tiered ({ENABLE}=false)")
        elif topic.topic_id in lost:
            losses.topics.append(replace(topic, form=form))
    root = directory_of_store(url)
    if root is not None:
        losses.directory = root if losses.topics or not has_marker(root) else None
    return losses


def _by_topic(segments: Iterable[RemoteLogSegmentMetadata]) -> dict[UUID, LostTopic]:
    found: dict[UUID, LostTopic] = {}
    for each in segments:
        of = each.partition
        topic = found.setdefault(of.topic_id, LostTopic(of.topic, of.topic_id))
        count, size_bytes = topic.lost.get(of, (0, 0))
        topic.lost[of] = count + 1, size_bytes + each.size_bytes
    return found


async def _form_of(cluster: Cluster, topic: str) -> TieringForm:
    keys = [ENABLE, DELETE_ON_DISABLE, DISABLE_POLICY]
    entries = await admin.describe_configs(cluster, ResourceType.TOPIC, topic, keys=keys)
    values = {each.name: each.value for each in entries}
    if values.get(ENABLE) == "true":
        return TieringForm.ENABLED
    if values.get(DISABLE_POLICY) == "retain":
        return TieringForm.RETAINED
    is_deleted = values.get(DISABLE_POLICY) == "delete" or values.get(DELETE_ON_DISABLE) == "true"
    return TieringForm.DELETED if is_deleted else TieringForm.NONE


async def give_up(
    losses: LostTopics,
    cluster: Cluster,
    metadata: WholeMetadataTopicReader,
    clock: Clock,
    progress: ProgressLine,
) -> None:
    """Let the brokers delete the metadata of the lost topics.

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
    for topic in topics:
        if topic.form is TieringForm.RETAINED:
            await _delete_retained(topic.name, cluster)
    enabled = [topic for topic in topics if topic.form is TieringForm.ENABLED]
    async with _tiering_disabled(enabled, cluster):
        await _wait_until_deleted(topics, metadata, clock, progress)
    for topic in topics:
        where = [TopicPartition(topic.name, each.partition) for each in topic.lost]
        offsets = await list_offsets(cluster, dict.fromkeys(where, EARLIEST))
        topic.begins_at = {each.partition: found.offset for each, found in offsets.items()}


async def _delete_retained(topic: str, cluster: Cluster) -> None:
    """Change the policy to delete. Until the disablement with retain is complete, the change is refused."""
    await cluster.retrying(
        partial(_alter, cluster, topic, _set(DISABLE_POLICY, "delete")),
        timeout_s=DELETION_TIMEOUT_S,
        also=lambda error: (
            isinstance(error, KafkaError) and error.code is TIERED_STORAGE_DISABLEMENT_IN_PROGRESS
        ),
    )


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
        waiting = {topic.name: sum(_copied_segments(topic, metadata)) for topic in topics}
        now, before, left = clock.monotonic(), left, sum(waiting.values())
        if not left:
            return
        if left != before:
            since = now
        if now - since > DELETION_TIMEOUT_S:
            names = ", ".join(name for name, count in waiting.items() if count)
            raise CommandFailed(
                f"timed out after {DELETION_TIMEOUT_S:.0f} s without a deletion for {names}: see the logs of their"
                " leaders. Tiered storage is enabled again where it was enabled; repeat the command"
            )
        progress.show(f"{left} segments left")
        await clock.sleep(POLL_S)


def _copied_segments(topic: LostTopic, metadata: WholeMetadataTopicReader) -> Iterator[int]:
    for partition in topic.lost:
        yield sum(
            each.state is not SegmentState.COPY_SEGMENT_STARTED
            for each in metadata.known.segments(partition)
        )
