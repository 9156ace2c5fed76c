"""Decisions without I/O about which metadata partitions a node reads, for which subjects, and from which offset (T-49).

A *subject* is a partition that this node leads, follows or removes, or the inventory of a metadata partition that this node
leads. Each subject is in a lane. A lane has at most one cursor per metadata partition: the next offset for all its subjects.

    LIVE          subjects that have caught up, or that start together
    CATCHING_UP   new subjects, if re-reading for them would delay subjects in LIVE
    INVENTORY     inventories, which have the lowest priority

A lane that reaches the cursor of LIVE is merged into it. A subject may join a cursor below its own start, because it has a
snapshot or has read that part; records below its `applied` offset are not passed to it. A subject is ready when it has
read to the end offset of the metadata partition at the time of its subscription, and it stays ready.

Offsets belong to one topic id. If the topic is recreated, everything is read again.

A cursor may be moved back while a read from it is in progress. The reader passes the offset where its read began, and a
read that no longer begins at the cursor is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from odradek.seams.values import value_class
from odradek.storage.tiered.segment_metadata import TopicIdPartition


class Lane(Enum):
    LIVE = "live"
    CATCHING_UP = "catching up"
    INVENTORY = "inventory"


@value_class
class InventoryOf:
    """Subject: the inventory of a metadata partition."""

    metadata_partition: int


Subject: TypeAlias = TopicIdPartition | InventoryOf


@dataclass(slots=True)
class _Subscription:
    """Progress of a subject (`MetadataSubscriptions.position`)."""

    metadata_partition: int
    lane: Lane
    applied: int
    target: int | None = None
    is_requested: bool = False
    """Whether the end offset of its metadata partition is being requested."""
    ready: bool = False


class MetadataSubscriptions:
    """Subjects and cursors of a node. Offsets are those of the metadata topic's partitions."""

    def __init__(self) -> None:
        self._subjects: dict[Subject, _Subscription] = {}
        self._in_partition: dict[int, dict[Subject, _Subscription]] = {}
        self._cursors: dict[Lane, dict[int, int]] = {lane: {} for lane in Lane}
        self._newly_ready: list[Subject] = []
        self.topic_id: UUID | None = None
        """Id of the topic to which all offsets belong; None while it is unknown."""

    # Which topic it is

    def start_in(self, topic_id: UUID | None, offset: int) -> int:
        """Return `offset` if it belongs to the current topic id, otherwise 0."""
        self.topic_id = self.topic_id or topic_id
        return offset if topic_id is not None and topic_id == self.topic_id else 0

    def topic_is(self, topic_id: UUID) -> bool:
        """Set the topic id. Returns whether the topic was recreated; then everything is read again."""
        before, self.topic_id = self.topic_id, topic_id
        if before in (None, topic_id):
            return False
        for cursors in self._cursors.values():
            for partition in cursors:
                cursors[partition] = 0
        for reading in self._subjects.values():
            reading.applied = 0
            if not reading.ready:
                reading.target = None
                reading.is_requested = False
        return True

    # Subjects

    def __contains__(self, subject: Subject) -> bool:
        return subject in self._subjects

    def __iter__(self) -> Iterator[Subject]:
        return iter(self._subjects)

    def follow(self, subject: Subject, metadata_partition: int, start: int = 0) -> None:
        """Add a subject that has all records below `start`. Does nothing if it is already a subject."""
        if subject in self._subjects:
            return
        lane = self._lane_for(subject, metadata_partition, start)
        self._begin(lane, metadata_partition, start)
        reading = _Subscription(metadata_partition, lane, start)
        self._subjects[subject] = reading
        self._in_partition.setdefault(metadata_partition, {})[subject] = reading

    def forget(self, subject: Subject) -> None:
        """Remove a subject and its cursors."""
        reading = self._subjects.pop(subject, None)
        if reading is None:
            return
        partition = reading.metadata_partition
        rest = self._in_partition[partition]
        del rest[subject]
        if not rest:
            del self._in_partition[partition]
        if not any(each.lane is reading.lane for each in rest.values()):
            del self._cursors[reading.lane][partition]
        self._merge(partition)

    def _lane_for(self, subject: Subject, partition: int, start: int) -> Lane:
        live = self._cursors[Lane.LIVE].get(partition)
        if live is not None and start >= live:
            return Lane.LIVE
        if isinstance(subject, InventoryOf):
            return Lane.INVENTORY
        if live is None or not self._is_anyone_ready(partition):
            return Lane.LIVE
        return Lane.CATCHING_UP

    def _is_anyone_ready(self, partition: int) -> bool:
        """Whether moving the cursor of LIVE back would delay a ready subject."""
        here = self._in_partition.get(partition, {}).values()
        return any(each.ready and each.lane is Lane.LIVE for each in here)

    def _begin(self, lane: Lane, partition: int, start: int) -> None:
        """Move a lane's cursor back to `start` unless it is lower."""
        cursor = self._cursors[lane].get(partition)
        if cursor is None:
            self._cursors[lane][partition] = start
        elif start < cursor:
            for each in self._in(lane, partition):
                each.applied = max(each.applied, cursor)
            self._cursors[lane][partition] = start

    def _in(self, lane: Lane, partition: int) -> list[_Subscription]:
        here = self._in_partition.get(partition, {}).values()
        return [each for each in here if each.lane is lane]

    # End offsets of metadata partitions

    def ends_wanted(self) -> dict[int, list[Subject]]:
        """Return the metadata partitions whose end offset is needed, with the subjects that need it.

        Request the end offsets after this call, because a subject needs all records published before it was added.
        """
        wanted: dict[int, list[Subject]] = {}
        for subject, reading in self._subjects.items():
            if reading.target is None:
                reading.is_requested = True
                wanted.setdefault(reading.metadata_partition, []).append(subject)
        return wanted

    def ends_found(self, metadata_partition: int, subjects: Iterable[Subject], end: int) -> bool:
        """Set the end offset for subjects; return whether LIVE has a new subject.

        A subject that was removed and added in the meantime needs a new end offset.
        """
        for subject in subjects:
            reading = self._subjects.get(subject)
            if reading is not None and reading.is_requested and reading.target is None:
                reading.target = end
        return self._settle(metadata_partition)

    # Reading

    def cursors(self, lane: Lane) -> Mapping[int, int]:
        """Return the next offset of each metadata partition of a lane."""
        return self._cursors[lane]

    def is_for(self, subject: Subject, lane: Lane, metadata_partition: int, offset: int) -> bool:
        """Whether the record at `offset`, just read in this lane, is new to the subject."""
        reading = self._subjects.get(subject)
        return (
            reading is not None
            and reading.lane is lane
            and reading.metadata_partition == metadata_partition
            and offset >= reading.applied
        )

    def advanced(self, lane: Lane, metadata_partition: int, begun_at: int, to: int) -> bool:
        """Advance a lane that read from `begun_at` to `to`. Returns whether LIVE has a new subject."""
        cursors = self._cursors[lane]
        assert cursors.get(metadata_partition) == begun_at, "the cursor was moved back"
        cursors[metadata_partition] = to
        return self._settle(metadata_partition)

    def reset(
        self, lane: Lane, metadata_partition: int, begun_at: int, start: int, end: int
    ) -> bool:
        """Handle OFFSET_OUT_OF_RANGE at `begun_at`; the metadata partition has offsets [start, end).

        Records below `start` are lost for subjects that have not read them. A cursor above the end means that the
        partition was truncated: it is read again from the start. Other lanes are not affected. Returns whether LIVE
        has a new subject.
        """
        is_another = begun_at > end
        if self._cursors[lane].get(metadata_partition) != begun_at:
            return False
        if is_another:
            for cursors in self._cursors.values():
                if metadata_partition in cursors:
                    cursors[metadata_partition] = start
            for reading in self._in_partition.get(metadata_partition, {}).values():
                reading.applied = start
                if reading.target is not None:
                    reading.target = min(reading.target, end)
        elif begun_at < start:
            self._cursors[lane][metadata_partition] = start
        return self._settle(metadata_partition)

    # Progress

    def position(self, subject: Subject) -> int:
        """Offset below which all records were read for a subject. Raises KeyError if it is not a subject."""
        reading = self._subjects[subject]
        return max(reading.applied, self._cursors[reading.lane][reading.metadata_partition])

    def is_ready(self, subject: Subject) -> bool:
        reading = self._subjects.get(subject)
        return reading is not None and reading.ready

    def pop_newly_ready(self) -> list[Subject]:
        """Return the subjects that became ready since the last call."""
        ready, self._newly_ready = self._newly_ready, []
        return ready

    def _settle(self, partition: int) -> bool:
        """Update which subjects are ready, and merge lanes; return whether a lane was merged."""
        for subject, reading in self._in_partition.get(partition, {}).items():
            if reading.ready or reading.target is None:
                continue
            if self.position(subject) >= reading.target:
                reading.ready = True
                self._newly_ready.append(subject)
        return self._merge(partition)

    def _merge(self, partition: int) -> bool:
        merged = False
        live = self._cursors[Lane.LIVE]
        for lane in (Lane.CATCHING_UP, Lane.INVENTORY):
            cursor = self._cursors[lane].get(partition)
            if cursor is None:
                continue
            members = self._in(lane, partition)
            alone = partition not in live and all(each.ready for each in members)
            if alone:
                live[partition] = cursor
            if alone or cursor >= live.get(partition, cursor + 1):
                for each in members:
                    each.applied = max(each.applied, cursor)
                    each.lane = Lane.LIVE
                del self._cursors[lane][partition]
                merged = True
        return merged
