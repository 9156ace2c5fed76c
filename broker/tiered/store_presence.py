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
| to have nothing of it, and was away before | is begun anew (`begin_anew`), and held then |
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

import trio

from odradek.broker.tiered.rounds import BackOff
from odradek.broker.tiered.settings import RemoteLogSettings
from odradek.broker.tiered.store_health import REMIND_SECONDS
from odradek.protocol.errors import KafkaError
from odradek.seams import Seams
from odradek.seams.offload import OBJECTS_LANE
from odradek.storage.tiered.errors import RemoteAccessDenied, RemoteStorageError
from odradek.storage.tiered.metadata import SegmentState, TopicIdPartition
from odradek.storage.tiered.remote_metadata import RemoteLogMetadataManager
from odradek.storage.tiered.remote_storage import RemoteStorageManager

log = logging.getLogger("odradek.tiered")


class _Answer(Enum):
    HAS_SOME = "there"
    HAS_NONE = "nothing of it"
    NONE = "no answer"
    DENIED = "no access"


class StorePresence:
    """See the module. On the loop."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        seams: Seams,
        settings: RemoteLogSettings,
        *,
        begin_anew: Callable[[TopicIdPartition], None] = lambda partition: None,
    ) -> None:
        """`begin_anew`: what is done for a partition is to end, and to begin with `look_for` again."""
        self._begin_anew = begin_anew
        self._storage = storage
        self._metadata = metadata
        self._seams = seams
        self._settings = settings
        self._turn = trio.Lock()
        self._is_there = False
        self._is_away = False
        self._is_closed = False
        """It was asked for next to nothing, and did not answer that."""
        self._held: dict[TopicIdPartition, None] = {}
        """Those that wait for a store that has something of them."""
        self._let_pass: dict[TopicIdPartition, None] = {}
        """Those that went on while it was away; they are asked for by `run`."""
        self._went_away = trio.Event()
        self._since: float | None = None
        self._told: tuple[_Answer, float] | None = None

    @property
    def is_missed(self) -> bool:
        """Whether it is away, or has nothing of what was copied."""
        return bool(self._held or self._let_pass or self._is_closed)

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
                    answer = await self._ask(partition, is_sure=is_sure)
                if answer is _Answer.HAS_NONE and is_sure:
                    self._held[partition] = None
                if answer is _Answer.HAS_NONE or partition in self._held:
                    is_sure = True
                    await self._seams.clock.sleep(back_off.next())
        finally:
            self._held.pop(partition, None)
            self._end_if_over()

    def _may_go_on(self, partition: TopicIdPartition) -> bool:
        """By what is known. Who goes on though the store is away is asked for by `run`."""
        if self._is_there or not self._is_copied(partition):
            return True
        if not self._is_away or partition in self._held:
            return False
        self._let_pass[partition] = None
        self._went_away.set()
        return True

    async def run(self) -> None:
        """Until cancelled: see whether it lets us in, and while it was away ask again, for those that went
        on."""
        async with self._turn:
            await self._knock()
        while True:
            if not self._is_closed:
                await self._went_away.wait()
            back_off = BackOff(self._settings, self._seams.entropy)
            while self._let_pass or self._is_closed:
                await self._seams.clock.sleep(back_off.next())
                async with self._turn:
                    await self._ask_again()
                if self._is_there:
                    self._let_pass.clear()
            self._went_away, self._is_away = trio.Event(), False
            self._end_if_over()

    async def _ask_again(self) -> None:
        """For the one that has waited longest for that, if any has."""
        partition = next(iter(self._let_pass), None)
        if partition is None:
            await self._knock()
            return
        del self._let_pass[partition]
        if not self._is_still_copied(partition):
            return
        self._let_pass[partition] = None
        if await self._ask(partition, is_sure=False) is _Answer.HAS_NONE:
            del self._let_pass[partition]
            self._begin_anew(partition)

    async def _knock(self) -> None:
        """Ask for next to nothing, where nobody had to ask for anything."""
        if self._is_there or self._let_pass:
            self._is_closed = False
            return
        try:
            await self._seams.offload.run(self._storage.check_access, lane=OBJECTS_LANE)
        except RemoteStorageError as error:
            self._is_closed = True
            self._tell_failed(error)
            return
        self._is_away = self._is_closed = False
        if not self._held:
            self._tell_of_return()

    def _is_copied(self, partition: TopicIdPartition) -> bool:
        finished = SegmentState.COPY_SEGMENT_FINISHED
        return any(each.state is finished for each in self._metadata.segments(partition))

    def _is_still_copied(self, partition: TopicIdPartition) -> bool:
        try:
            return self._is_copied(partition)
        except KafkaError:  # this node is no replica of it any more
            return False

    async def _ask(self, partition: TopicIdPartition, *, is_sure: bool) -> _Answer:
        """And say what is to be said of the answer."""
        try:
            has_some = await self._seams.offload.run(
                self._storage.has_any_of, partition, lane=OBJECTS_LANE
            )
        except RemoteStorageError as error:
            self._tell_failed(error)
            return _Answer.NONE
        self._is_away = self._is_closed = False
        if has_some:
            self._is_there = True
            self._tell_of_return()
            return _Answer.HAS_SOME
        if is_sure and self._is_still_copied(partition):
            self._tell(
                _Answer.HAS_NONE,
                f"the remote store has nothing of {partition}, of which segments were copied: is it not"
                " mounted, was it emptied, or is it another one? Until it has something of it, none"
                " of its segments is copied, leaves the disk or expires. If all is lost for good:"
                " `odradek remote give-up`",
            )
        return _Answer.HAS_NONE

    def _tell_failed(self, error: RemoteStorageError) -> None:
        self._is_away = True
        reason = error.message or error
        if isinstance(error, RemoteAccessDenied):
            answer = _Answer.DENIED
            line = (
                f"the remote store denies access ({reason}): see to its credentials and what they"
                " may do."
            )
        else:
            answer = _Answer.NONE
            line = f"the remote store is away ({reason})."
        self._tell(answer, f"{line} Nothing can be copied, and what is nowhere else cannot be read")

    def _tell(self, answer: _Answer, line: str) -> None:
        """At once, and once a minute while it lasts."""
        now = self._seams.clock.monotonic()
        if self._since is None:
            self._since = now
        if (
            self._told is None
            or self._told[0] is not answer
            or now - self._told[1] >= REMIND_SECONDS
        ):
            self._told = answer, now
            log.error("%s", line)

    def _tell_of_return(self) -> None:
        if self._since is not None:
            seconds = self._seams.clock.monotonic() - self._since
            log.warning("the remote store is there again, after %.0f s", seconds)
            self._since = self._told = None

    def _end_if_over(self) -> None:
        if not self.is_missed:
            self._since = self._told = None
