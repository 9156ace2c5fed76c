"""Committed offsets of one partition of `__consumer_offsets`.

The state changes only by replaying records. A transactional commit is pending until the
transaction's marker is replayed; until then fetches with require_stable get UNSTABLE_OFFSET_COMMIT
(KIP-447).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias
from uuid import UUID

from odradek.broker.groups.messages import NO_ERROR, CommittedOffset, OffsetKey
from odradek.protocol.errors import ErrorCode
from odradek.seams.values import value_class

NO_PRODUCER = -1
NO_OFFSET = CommittedOffset(-1)

ByPartition: TypeAlias = dict[int, CommittedOffset]


@value_class
class FetchedOffset:
    partition: int
    offset: CommittedOffset
    error: ErrorCode = NO_ERROR


@value_class
class FetchedTopic:
    topic: str
    topic_id: UUID | None
    partitions: tuple[FetchedOffset, ...]


@value_class
class OffsetExpirationRule:
    """Start of the retention time of a group's offsets (ms since the epoch). None: the commit's timestamp."""

    since_ms: int | None


def is_expired(
    offset: CommittedOffset, rule: OffsetExpirationRule | None, *, now_ms: int, retention_ms: int
) -> bool:
    """Whether an offset has expired. Without a rule offsets do not expire.

    If the commit has an expire timestamp (OffsetCommit v2-4), only that counts.
    """
    if rule is None:
        return False
    if offset.expire_timestamp_ms is not None:
        return now_ms >= offset.expire_timestamp_ms
    since_ms = offset.commit_timestamp_ms if rule.since_ms is None else rule.since_ms
    return now_ms - since_ms >= retention_ms


class OffsetStore:
    """Committed and pending offsets of all groups of one partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, ByPartition]] = {}
        self._transactions: dict[int, dict[OffsetKey, CommittedOffset]] = {}
        """Producer id to the pending offsets of its open transaction."""
        self._unstable: dict[str, dict[tuple[str, int], dict[int, None]]] = {}
        """Group to partitions with pending offsets, and the producer ids that have them."""
        self.count = 0
        """Number of committed offsets, excluding pending ones."""

    # Replaying

    def put(self, key: OffsetKey, offset: CommittedOffset, producer_id: int = NO_PRODUCER) -> None:
        if producer_id == NO_PRODUCER:
            self._put_committed(key, offset)
            return
        self._transactions.setdefault(producer_id, {})[key] = offset
        partitions = self._unstable.setdefault(key.group_id, {})
        partitions.setdefault((key.topic, key.partition), {})[producer_id] = None

    def _put_committed(self, key: OffsetKey, offset: CommittedOffset) -> None:
        partitions = self._groups.setdefault(key.group_id, {}).setdefault(key.topic, {})
        self.count += key.partition not in partitions
        partitions[key.partition] = offset

    def remove(self, key: OffsetKey) -> None:
        """Replay a tombstone: remove the offset and pending offsets of its key."""
        topics = self._groups.get(key.group_id, {})
        partitions = topics.get(key.topic, {})
        if partitions.pop(key.partition, None) is not None:
            self.count -= 1
            if not partitions:
                del topics[key.topic]
            if not topics:
                del self._groups[key.group_id]
        producers = self._unstable.get(key.group_id, {}).get((key.topic, key.partition), {})
        for producer_id in list(producers):
            self._transactions[producer_id].pop(key, None)
            self._remove_pending(key, producer_id)

    def complete_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Replay a transaction marker: apply or discard the pending offsets of the producer.

        Of a pending and a non-transactional commit the later record is valid. The result therefore
        does not depend on which records compaction removed.
        """
        for key, offset in self._transactions.pop(producer_id, {}).items():
            self._remove_pending(key, producer_id)
            if not committed:
                continue
            held = self.get(key)
            if held is None or offset.record_offset > held.record_offset:
                self._put_committed(key, offset)

    def _remove_pending(self, key: OffsetKey, producer_id: int) -> None:
        partitions = self._unstable.get(key.group_id, {})
        producers = partitions.get((key.topic, key.partition), {})
        producers.pop(producer_id, None)
        if not producers:
            partitions.pop((key.topic, key.partition), None)
        if not partitions:
            self._unstable.pop(key.group_id, None)

    # Queries

    def get(self, key: OffsetKey) -> CommittedOffset | None:
        return self._groups.get(key.group_id, {}).get(key.topic, {}).get(key.partition)

    def groups(self) -> Iterator[str]:
        """Groups with committed or pending offsets."""
        yield from self._groups
        for group_id in self._unstable:
            if group_id not in self._groups:
                yield group_id

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._unstable.get(group_id, {})

    def has_pending_transactional_offsets(self, group_id: str) -> bool:
        return group_id in self._unstable

    def fetch(
        self,
        group_id: str,
        topic: str,
        topic_id: UUID | None,
        partitions: Iterable[int],
        *,
        require_stable: bool,
    ) -> FetchedTopic:
        """Offsets of these partitions; -1 for none, and for one of a deleted topic of the same name."""
        held = self._groups.get(group_id, {}).get(topic, {})
        fetched = []
        for partition in partitions:
            offset = held.get(partition)
            if require_stable and self.is_unstable(group_id, topic, partition):
                unstable = ErrorCode.unstable_offset_commit
                fetched.append(FetchedOffset(partition, NO_OFFSET, unstable))
            elif offset is None or _is_of_deleted_topic(offset, topic_id):
                fetched.append(FetchedOffset(partition, NO_OFFSET))
            else:
                fetched.append(FetchedOffset(partition, offset))
        return FetchedTopic(topic, topic_id, tuple(fetched))

    def fetch_all(self, group_id: str, *, require_stable: bool) -> list[FetchedTopic]:
        return [
            self.fetch(group_id, topic, None, partitions, require_stable=require_stable)
            for topic, partitions in self._groups.get(group_id, {}).items()
        ]

    def keys(self, group_id: str) -> list[OffsetKey]:
        """Keys of the committed and pending offsets of a group."""
        held = [
            OffsetKey(group_id, topic, partition)
            for topic, partitions in self._groups.get(group_id, {}).items()
            for partition in partitions
        ]
        pending = (OffsetKey(group_id, *each) for each in self._unstable.get(group_id, {}))
        return [*held, *(key for key in pending if self.get(key) is None)]

    def has(self, key: OffsetKey) -> bool:
        return self.get(key) is not None or self.is_unstable(*key)

    def expired(
        self, group_id: str, rule: OffsetExpirationRule | None, *, now_ms: int, retention_ms: int
    ) -> list[OffsetKey]:
        """Keys of the expired offsets. Offsets with a pending commit do not expire."""
        return [
            OffsetKey(group_id, topic, partition)
            for topic, partitions in self._groups.get(group_id, {}).items()
            for partition, offset in partitions.items()
            if is_expired(offset, rule, now_ms=now_ms, retention_ms=retention_ms)
            and not self.is_unstable(group_id, topic, partition)
        ]

    def keys_of_topic(self, topic: str, topic_id: UUID) -> list[OffsetKey]:
        """Keys of the offsets that any group committed for this topic id, or without a topic id."""
        keys = [
            OffsetKey(group_id, topic, partition)
            for group_id, topics in self._groups.items()
            for partition, offset in topics.get(topic, {}).items()
            if offset.topic_id in (None, topic_id)
        ]
        seen = set(keys)
        for pending in self._transactions.values():
            for key, offset in pending.items():
                if key.topic == topic and offset.topic_id in (None, topic_id) and key not in seen:
                    seen.add(key)
                    keys.append(key)
        return keys


def _is_of_deleted_topic(offset: CommittedOffset, topic_id: UUID | None) -> bool:
    """Whether it was committed for a deleted topic of the same name."""
    return topic_id is not None and offset.topic_id is not None and offset.topic_id != topic_id
