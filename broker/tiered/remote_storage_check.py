"""Whether the remote store is there that this node's partitions were copied to, found out at its start.

A store that is away, or does not let us, is one thing: all goes on that can, and it is said at once, for the
first copy may be hours away. One that answers, and has nothing of a partition of
which segments were copied, is another: a disk that is not mounted, a bucket that was emptied, a wrong
name. What is on the disks may then be all that there is: of such a partition nothing more leaves them,
nothing is copied and nothing expires, until there is something of it. Nothing that is known of segments
is given up either way. Once anything of any partition was found, nobody asks again.

| the store was found | a partition of which segments were copied |
|---|---|
| there | goes on |
| away | goes on; one after the other is asked for until the store answers |
| to have nothing of it, and was not away before | is held, and asked for |
| to have nothing of it, and was away before | is begun anew (`restart_partition`), and held then |
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
from odradek.storage.tiered.metadata import SegmentState, TopicIdPartition
from odradek.storage.tiered.remote_log_metadata_manager import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager

log = logging.getLogger("odradek.tiered")


class _Store(Enum):
    """As far as is known."""

    UNKNOWN = "nobody has found anything there yet"
    AWAY = "it does not answer, or does not let us"
    THERE = "it has something of what was copied: for good"


class _Missed(Enum):
    """A partition of which segments were copied, and nothing was found."""

    HELD = "it waits for a store that has something of it"
    GOES_ON = "the store is away; it is asked for by `run`"


class RemoteStorageCheck:
    """See the module. On the loop."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        seams: Seams,
        settings: RemoteLogSettings,
        *,
        restart_partition: Callable[[TopicIdPartition], None] = lambda partition: None,
    ) -> None:
        """`restart_partition`: what is done for a partition is to end, and to begin with `look_for` again."""
        self._restart_partition = restart_partition
        self._storage = storage
        self._metadata = metadata
        self._seams = seams
        self._settings = settings
        self._turn = trio.Lock()
        self._store = _Store.UNKNOWN
        self._missed: dict[TopicIdPartition, _Missed] = {}
        self._went_away = trio.Event()
        self._since: float | None = None
        self._told: tuple[str, float] | None = None

    @property
    def is_missed(self) -> bool:
        """Whether it is away, or has nothing of what was copied."""
        return self._store is _Store.AWAY or bool(self._missed)

    async def look_for(self, partition: TopicIdPartition) -> None:
        """Return when the store has something of it, or need not have, or is away. The partition's metadata
        is read to the end; raises what that does."""
        back_off = BackOff(self._settings, self._seams.entropy)
        is_sure = False  # what is just being deleted may be gone before this node has heard of it
        try:
            while not self._may_go_on(partition):
                async with self._turn:
                    if self._may_go_on(partition):  # somebody else has found out meanwhile
                        return
                    has_some = await self._ask(partition)
                if has_some is False and is_sure and self._is_still_copied(partition):
                    self._missed[partition] = _Missed.HELD
                    self._tell_missing(partition)
                if has_some is False or partition in self._missed:
                    is_sure = True
                    await self._seams.clock.sleep(back_off.next())
        finally:
            if self._missed.get(partition) is _Missed.HELD:
                del self._missed[partition]
            self._end_if_over()

    def _may_go_on(self, partition: TopicIdPartition) -> bool:
        """By what is known. Who goes on though the store is away is asked for by `run`."""
        if self._store is _Store.THERE or not self._is_copied(partition):
            return True
        if self._store is not _Store.AWAY or self._missed.get(partition) is _Missed.HELD:
            return False
        self._missed[partition] = _Missed.GOES_ON
        return True

    async def run(self) -> None:
        """Until cancelled: see whether it lets us in, and while it was away ask again, for those that went
        on."""
        async with self._turn:
            await self._knock()
        while True:
            await self._went_away.wait()
            back_off = BackOff(self._settings, self._seams.entropy)
            while self._store is _Store.AWAY or self._going_on():
                await self._seams.clock.sleep(back_off.next())
                async with self._turn:
                    await self._ask_again()
            self._went_away = trio.Event()
            self._end_if_over()

    def _going_on(self) -> list[TopicIdPartition]:
        """The one first that has waited longest to be asked for."""
        return [each for each, how in self._missed.items() if how is _Missed.GOES_ON]

    async def _ask_again(self) -> None:
        for partition in self._going_on():
            del self._missed[partition]
            if not self._is_still_copied(partition):
                continue
            self._missed[partition] = _Missed.GOES_ON
            if await self._ask(partition) is False:
                del self._missed[partition]
                self._restart_partition(partition)
            return
        await self._knock()

    async def _knock(self) -> None:
        """Ask for next to nothing, where nobody had to ask for anything."""
        if self._store is _Store.THERE or self._going_on():
            return
        try:
            await self._seams.offload.run(self._storage.check_access, lane=OBJECTS_LANE)
        except RemoteStorageError as error:
            self._note_away(error)
            return
        self._store = _Store.UNKNOWN
        if not self._missed:
            self._tell_of_return()

    def _is_copied(self, partition: TopicIdPartition) -> bool:
        finished = SegmentState.COPY_SEGMENT_FINISHED
        return any(each.state is finished for each in self._metadata.segments(partition))

    def _is_still_copied(self, partition: TopicIdPartition) -> bool:
        try:
            return self._is_copied(partition)
        except KafkaError:  # this node is no replica of it any more
            return False

    async def _ask(self, partition: TopicIdPartition) -> bool | None:
        """Whether it has anything of the partition; None if it does not answer."""
        try:
            has_some = await self._seams.offload.run(
                self._storage.has_any_of, partition, lane=OBJECTS_LANE
            )
        except RemoteStorageError as error:
            self._note_away(error)
            return None
        self._store = _Store.THERE if has_some else _Store.UNKNOWN
        if has_some:
            for each in self._going_on():
                del self._missed[each]
            self._tell_of_return()
        return has_some

    def _note_away(self, error: RemoteStorageError) -> None:
        self._store = _Store.AWAY
        self._went_away.set()
        reason = error.message or error
        if isinstance(error, RemoteAccessDenied):
            what = "denied"
            line = (
                f"the remote store denies access ({reason}): see to its credentials and what they"
                " may do."
            )
        else:
            what, line = "away", f"the remote store is away ({reason})."
        self._tell(what, f"{line} Nothing can be copied, and what is nowhere else cannot be read")

    def _tell_missing(self, partition: TopicIdPartition) -> None:
        self._tell(
            "nothing of it",
            f"the remote store has nothing of {partition}, of which segments were copied: is it not"
            " mounted, was it emptied, or is it another one? Until it has something of it, none"
            " of its segments is copied, leaves the disk or expires. If all is lost for good:"
            " `odradek remote give-up`",
        )

    def _tell(self, what: str, line: str) -> None:
        """At once, and once a minute while it lasts."""
        now = self._seams.clock.monotonic()
        if self._since is None:
            self._since = now
        if self._told is None or self._told[0] != what or now - self._told[1] >= REMIND_SECONDS:
            self._told = what, now
            log.error("%s", line)

    def _tell_of_return(self) -> None:
        if self._since is not None:
            seconds = self._seams.clock.monotonic() - self._since
            log.warning("the remote store is there again, after %.0f s", seconds)
            self._since = self._told = None

    def _end_if_over(self) -> None:
        if not self.is_missed:
            self._since = self._told = None
