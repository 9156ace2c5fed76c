"""Checks at the start whether the object store is the one that the segments were copied to.

If the store is unavailable or denies access, everything that does not need it continues, and the
problem is logged at once. If it responds and has no object of a partition with copied segments,
then a disk is not mounted, the bucket was emptied, or the URL is wrong. The local segments may then
be the only copies, so that partition neither copies nor expires nor deletes local segments until
the store has an object of it. The metadata is kept in any case. Once an object of any partition was
found, no more checks are made.

| the store | a partition with copied segments |
|---|---|
| has objects | continues |
| is unavailable | continues; one partition after another is checked until the store responds |
| has none of its objects, and was not unavailable before | is held and checked again |
| has none of its objects, and was unavailable before | is restarted (`restart_partition`) and then held |
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

import trio

from odradek.broker.tiered.copy_failures import REMIND_SECONDS
from odradek.broker.tiered.periodic_task import BackOff
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.protocol.errors import KafkaError
from odradek.seams import Seams
from odradek.seams.offload import OBJECTS_LANE
from odradek.storage.tiered.errors import RemoteAccessDenied, RemoteStorageError
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager
from odradek.storage.tiered.segment_metadata import SegmentState, TopicIdPartition

log = logging.getLogger("odradek.tiered")


class _StorageState(Enum):
    """Known state of the store."""

    UNKNOWN = "no object was found yet"
    AWAY = "it does not respond or denies access"
    THERE = "it has objects; this state is final"


class _MissingState(Enum):
    """State of a partition whose copied segments were not found."""

    HELD = "its tasks wait until the store has an object of it"
    CONTINUES = "the store is unavailable; `run` checks it"


class RemoteStorageCheck:
    """Checks the store for the partitions of this node. Runs on the event loop."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        seams: Seams,
        settings: RemoteLogSettings,
        *,
        restart_partition: Callable[[TopicIdPartition], None] = lambda partition: None,
    ) -> None:
        """`restart_partition` ends the tasks of a partition and starts again with `check_partition`."""
        self._restart_partition = restart_partition
        self._storage = storage
        self._metadata = metadata
        self._seams = seams
        self._settings = settings
        self._lock = trio.Lock()
        self._store = _StorageState.UNKNOWN
        self._missed: dict[TopicIdPartition, _MissingState] = {}
        self._went_away = trio.Event()
        self._since: float | None = None
        self._logged: tuple[str, float] | None = None

    @property
    def is_missed(self) -> bool:
        """Whether the store is unavailable or lacks the objects of a partition."""
        return self._store is _StorageState.AWAY or bool(self._missed)

    async def check_partition(self, partition: TopicIdPartition) -> None:
        """Return when the store has an object of the partition, has none to have, or is
        unavailable. The metadata of the partition must be ready; raises its errors."""
        back_off = BackOff(self._settings, self._seams.entropy)
        is_sure = False  # objects may be deleted before this node has read the event
        try:
            while not self._may_continue(partition):
                async with self._lock:
                    # Another partition has updated the state meanwhile
                    if self._may_continue(partition):
                        return
                    has_some = await self._check_objects(partition)
                if has_some is False and is_sure and self._is_still_copied(partition):
                    self._missed[partition] = _MissingState.HELD
                    self._log_missing(partition)
                if has_some is False or partition in self._missed:
                    is_sure = True
                    await self._seams.clock.sleep(back_off.next())
        finally:
            if self._missed.get(partition) is _MissingState.HELD:
                del self._missed[partition]
            self._end_if_over()

    def _may_continue(self, partition: TopicIdPartition) -> bool:
        """Whether the partition may continue by the known state. `run` checks those that continue
        while the store is unavailable."""
        if self._store is _StorageState.THERE or not self._is_copied(partition):
            return True
        if (
            self._store is not _StorageState.AWAY
            or self._missed.get(partition) is _MissingState.HELD
        ):
            return False
        self._missed[partition] = _MissingState.CONTINUES
        return True

    async def run(self) -> None:
        """Check the access, and check again after the store was unavailable; until cancelled."""
        async with self._lock:
            await self._check_access()
        while True:
            await self._went_away.wait()
            back_off = BackOff(self._settings, self._seams.entropy)
            while self._store is _StorageState.AWAY or self._continuing():
                await self._seams.clock.sleep(back_off.next())
                async with self._lock:
                    await self._check_again()
            self._went_away = trio.Event()
            self._end_if_over()

    def _continuing(self) -> list[TopicIdPartition]:
        """Partitions that continue, longest waiting first."""
        return [each for each, how in self._missed.items() if how is _MissingState.CONTINUES]

    async def _check_again(self) -> None:
        for partition in self._continuing():
            del self._missed[partition]
            if not self._is_still_copied(partition):
                continue
            self._missed[partition] = _MissingState.CONTINUES
            if await self._check_objects(partition) is False:
                del self._missed[partition]
                self._restart_partition(partition)
            return
        await self._check_access()

    async def _check_access(self) -> None:
        """Check the access if no partition needs a check."""
        if self._store is _StorageState.THERE or self._continuing():
            return
        try:
            await self._seams.offload.run(self._storage.check_access, lane=OBJECTS_LANE)
        except RemoteStorageError as error:
            self._note_away(error)
            return
        self._store = _StorageState.UNKNOWN
        if not self._missed:
            self._log_recovery()

    def _is_copied(self, partition: TopicIdPartition) -> bool:
        finished = SegmentState.COPY_SEGMENT_FINISHED
        return any(each.state is finished for each in self._metadata.segments(partition))

    def _is_still_copied(self, partition: TopicIdPartition) -> bool:
        try:
            return self._is_copied(partition)
        except KafkaError:  # this node has no replica of it any more
            return False

    async def _check_objects(self, partition: TopicIdPartition) -> bool | None:
        """Whether the store has an object of the partition; None if it is unavailable."""
        try:
            has_some = await self._seams.offload.run(
                self._storage.has_any_of, partition, lane=OBJECTS_LANE
            )
        except RemoteStorageError as error:
            self._note_away(error)
            return None
        self._store = _StorageState.THERE if has_some else _StorageState.UNKNOWN
        if has_some:
            for each in self._continuing():
                del self._missed[each]
            self._log_recovery()
        return has_some

    def _note_away(self, error: RemoteStorageError) -> None:
        self._store = _StorageState.AWAY
        self._went_away.set()
        reason = error.message or error
        if isinstance(error, RemoteAccessDenied):
            what = "denied"
            line = (
                f"the object store denies access ({reason}): check its credentials and permissions."
            )
        else:
            what, line = "away", f"the object store is unavailable ({reason})."
        self._log(
            what,
            f"{line} Segments cannot be copied, and records that are only there cannot be read",
        )

    def _log_missing(self, partition: TopicIdPartition) -> None:
        self._log(
            "nothing of it",
            f"the object store has no object of {partition}, though segments were copied: check"
            " that it is mounted, was not emptied and has the right URL. Until it has one, no"
            " segment of it is copied or deleted. If the objects are lost for good:"
            " `odradek remote give-up`",
        )

    def _log(self, what: str, line: str) -> None:
        """Log a problem at once and then every minute."""
        now = self._seams.clock.monotonic()
        if self._since is None:
            self._since = now
        if (
            self._logged is None
            or self._logged[0] != what
            or now - self._logged[1] >= REMIND_SECONDS
        ):
            self._logged = what, now
            log.error("%s", line)

    def _log_recovery(self) -> None:
        if self._since is not None:
            seconds = self._seams.clock.monotonic() - self._since
            log.warning("the object store is available again after %.0f s", seconds)
            self._since = self._logged = None

    def _end_if_over(self) -> None:
        if not self.is_missed:
            self._since = self._logged = None
