"""What a node reads of the metadata topic, for whom, and how far: decisions without I/O (T-49).

Who is read for is a *subject*: a partition that this node leads, follows or removes, or the census of a
whole metadata partition that it leads. Each has a lane; a lane has at most one cursor in a metadata
partition, the offset that is read next for all of its subjects there.

    LIVE          those that have read to the end, or begin together
    CATCHING_UP   newcomers, while somebody in LIVE would be held up if all were read again for them
    CENSUS        censuses, which can wait

A lane that reaches the LIVE cursor of its metadata partition is merged into it. A subject may join a
cursor that is behind where it begins itself (it has a snapshot, or has read that already): what is below
its `applied` is not for it. It is ready once it has read to where the metadata partition ended when
that was asked on its behalf; it stays ready after that.

Offsets are those of one topic, by its id: of another one of the same name all is read.

A cursor may be set back while something read from it is under way: whoever reads says where that
began, and what does not begin at the cursor any more is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from odradek.seams.values import value_class
from odradek.storage.tiered.metadata import TopicIdPartition


class Lane(Enum):
    LIVE = "live"
    CATCHING_UP = "catching up"
    INVENTORY = "census"


@value_class
class InventoryOf:
    """The census of a metadata partition, as a subject."""

    metadata_partition: int


Subject: TypeAlias = TopicIdPartition | InventoryOf


@dataclass(slots=True)
class _Subscription:
    """How far a subject is; see `MetadataSubscriptions.position`."""

    metadata_partition: int
    lane: Lane
    applied: int
    target: int | None = None
    is_asked: bool = False
    """Whether it is being asked where its metadata partition ends."""
    ready: bool = False


class MetadataSubscriptions:
    """See the module. Offsets are those of the metadata topic's partitions."""

    def __init__(self) -> None:
        self._subjects: dict[Subject, _Subscription] = {}
        self._in_partition: dict[int, dict[Subject, _Subscription]] = {}
        self._cursors: dict[Lane, dict[int, int]] = {lane: {} for lane in Lane}
        self._newly_ready: list[Subject] = []
        self.topic_id: UUID | None = None
        """Of the topic that all offsets are of; None before anything is known of it."""

    # Which topic it is

    def start_in(self, topic_id: UUID | None, offset: int) -> int:
        """Where to go on with what was read of the topic with this id up to `offset`: there, if it is this
        one."""
        self.topic_id = self.topic_id or topic_id
        return offset if topic_id is not None and topic_id == self.topic_id else 0

    def topic_is(self, topic_id: UUID) -> bool:
        """The cluster has the topic under this id; whether it is another one than it was: then all of it is
        read."""
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
                reading.is_asked = False
        return True

    # Who is read for

    def __contains__(self, subject: Subject) -> bool:
        return subject in self._subjects

    def __iter__(self) -> Iterator[Subject]:
        return iter(self._subjects)

    def follow(self, subject: Subject, metadata_partition: int, start: int = 0) -> None:
        """Read for it from `start` on; all below it has, or there is none. No effect if it is read
        for already."""
        if subject in self._subjects:
            return
        lane = self._lane_for(subject, metadata_partition, start)
        self._begin(lane, metadata_partition, start)
        reading = _Subscription(metadata_partition, lane, start)
        self._subjects[subject] = reading
        self._in_partition.setdefault(metadata_partition, {})[subject] = reading

    def forget(self, subject: Subject) -> None:
        """It is read for no more."""
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
        """Whether setting LIVE back would hold somebody up."""
        here = self._in_partition.get(partition, {}).values()
        return any(each.ready and each.lane is Lane.LIVE for each in here)

    def _begin(self, lane: Lane, partition: int, start: int) -> None:
        """A lane's cursor goes back to `start`, unless it is there or before."""
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

    # Where metadata partitions end

    def ends_wanted(self) -> dict[int, list[Subject]]:
        """Metadata partitions whose end has to be asked for, with those on whose behalf.

        It must be asked after this call: what is published before a subject is followed is its.
        """
        wanted: dict[int, list[Subject]] = {}
        for subject, reading in self._subjects.items():
            if reading.target is None:
                reading.is_asked = True
                wanted.setdefault(reading.metadata_partition, []).append(subject)
        return wanted

    def ends_found(self, metadata_partition: int, subjects: Iterable[Subject], end: int) -> bool:
        """It ended at `end` when that was asked for these; whether LIVE has somebody new. Who left meanwhile
        and came again has to be asked for again: more may have been published in between."""
        for subject in subjects:
            reading = self._subjects.get(subject)
            if reading is not None and reading.is_asked and reading.target is None:
                reading.target = end
        return self._settle(metadata_partition)

    # Reading

    def cursors(self, lane: Lane) -> Mapping[int, int]:
        """What a lane reads next: an offset of each metadata partition."""
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
        """What a lane read from `begun_at` on was told to whom it is for; it goes on at `to`. Whether
        LIVE has somebody new by that."""
        cursors = self._cursors[lane]
        assert cursors.get(metadata_partition) == begun_at, "it was set back meanwhile"
        cursors[metadata_partition] = to
        return self._settle(metadata_partition)

    def reset(
        self, lane: Lane, metadata_partition: int, begun_at: int, start: int, end: int
    ) -> bool:
        """A lane that read at `begun_at` was told that this is out of range, and the metadata partition holds
        `start` to `end`, exclusive, as asked after that; whether LIVE has somebody new by that.

        Records below `start` are lost to whoever has not read them. A cursor beyond the end means
        that it is not the partition it was (cut): all of it is read again. Of other lanes, which have gone
        on while that was asked, it tells nothing.
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

    # How far

    def position(self, subject: Subject) -> int:
        """All below this offset was read for the subject. KeyError if it is not followed."""
        reading = self._subjects[subject]
        return max(reading.applied, self._cursors[reading.lane][reading.metadata_partition])

    def is_ready(self, subject: Subject) -> bool:
        reading = self._subjects.get(subject)
        return reading is not None and reading.ready

    def take_newly_ready(self) -> list[Subject]:
        """Who became ready since this was last asked."""
        ready, self._newly_ready = self._newly_ready, []
        return ready

    def _settle(self, partition: int) -> bool:
        """See who is ready now, and whose lane ends; whether one does."""
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
