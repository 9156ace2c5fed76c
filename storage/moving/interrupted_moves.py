"""What moves left in the log directories is found, judged by startup.py's table, and seen to.

In three parts, for each needs what the other has not got yet: `judge` before any log is opened (the
checkpoints are to keep what they say of a copy that may become the log), `see_to` once all logs are
(a move goes on only from one that is served), `promote` once the cluster's metadata is known, and what
it does not have here was set aside.

Copies are of the topic that their `partition.metadata` names. A log of another topic of that name (a
directory that was away has it, or the topic was made anew) is none that they are a copy of: a move that
went on from it would overwrite what may be all there is of theirs.

Order of a promotion: the rename, the log directory synced, and only then is the log opened; a crash
in between leaves `.move`, to be judged again, or `tp`. It is opened as after a crash, from the
recovery point that the swap wrote down, whatever mark the directory has.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from uuid import UUID

from odradek.seams.files import OutOfDescriptors, Path
from odradek.seams.values import value_class
from odradek.storage.directories import names
from odradek.storage.directories.failure import WRONG_FILE_TYPE_ERRNOS
from odradek.storage.directories.names import PartitionDirectoryState, TopicPartition
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.partition_metadata import CorruptMetadata, read_topic_id
from odradek.storage.log_manager.deletion import LogRemoval
from odradek.storage.log_manager.directory_logs import DirectoryLogs
from odradek.storage.log_manager.loaded_logs import LoadedLogs
from odradek.storage.log_manager.loading import Adopt, DirectoryLoader
from odradek.storage.log_manager.registry import IsStray, OfflineLog
from odradek.storage.log_manager.services import LogServices
from odradek.storage.moving.mover import Mover
from odradek.storage.moving.startup_decisions import (
    MoveLeftover,
    StartupAction,
    StartupDecision,
    decide_startup,
)

log = logging.getLogger(__name__)


@value_class
class _Copy:
    leftover: MoveLeftover
    topic_id: UUID | None
    """As far as it says."""
    has_log: bool
    """Whether a log of its topic was found."""


class InterruptedMoves:
    """Of one start."""

    def __init__(self, services: LogServices, mover: Mover, log_removal: LogRemoval) -> None:
        self._services = services
        self._mover = mover
        self._log_removal = log_removal
        self._loadings: dict[Path, DirectoryLoader] = {}
        self._copies: dict[TopicPartition, list[_Copy]] = {}
        """Those that nothing was done about yet."""
        self._withheld: dict[TopicPartition, OfflineLog] = {}

    async def find(self, loadings: Sequence[DirectoryLoader]) -> None:
        """All directories that could be read were scan_result."""
        self._loadings = {each.home.directory.path: each for each in loadings}
        live: defaultdict[TopicPartition, list[Path]] = defaultdict(list)
        leftover: defaultdict[TopicPartition, list[MoveLeftover]] = defaultdict(list)
        for path in self._services.registry.logs_by_directory:  # in the order of log.dirs
            if path not in self._loadings:
                continue
            found = self._loadings[path].found
            for name in found.live:
                live[name].append(path)
            for moving in sorted(found.moving, key=_moving_last):
                leftover[names.parse(moving).topic_partition].append(MoveLeftover(path, moving))
        for name, copies in leftover.items():
            self._copies[name] = await self._read_topic_ids(name, copies, live[name])
            for copy in self._copies[name]:
                # With a log beside it the checkpoints are that one's.
                if not copy.has_log and copy.leftover.directory not in live[name]:
                    self._home_of(copy.leftover).keep_offline(name, copy.leftover.name)

    async def _read_topic_ids(
        self, name: TopicPartition, leftover: Sequence[MoveLeftover], live: Sequence[Path]
    ) -> list[_Copy]:
        logs = [await self._topic_id(path / str(name)) for path in live]
        copies = []
        for each in leftover:
            topic_id = await self._topic_id(each.directory / each.name)
            has_log = any(None in (id, topic_id) or id == topic_id for id in logs)
            copies.append(_Copy(each, topic_id, has_log))
        return copies

    async def _topic_id(self, path: Path) -> UUID | None:
        """None: it does not say. What fails is told to the directory."""
        loading = self._loadings[path.parent]
        directory = loading.home.directory
        try:
            return await self._services.offload.run(
                read_topic_id, self._services.files, path, lane=directory.lane
            )
        except CorruptMetadata:
            return None
        except OutOfDescriptors as error:
            loading.exhausted = error
            return None
        except OSError as error:
            if error.errno not in WRONG_FILE_TYPE_ERRNOS:
                directory.report(error)
            return None

    def _home_of(self, leftover: MoveLeftover) -> DirectoryLogs:
        return self._services.registry.logs_by_directory[leftover.directory]

    async def resume(self) -> None:
        """All logs are open that can be."""
        for name, copies in self._copies.items():
            served = self._services.registry.logs.get(name)
            if served is not None:
                its = [copy for copy in copies if _is_of(served, copy)]
                await self._resume_or_discard(name, served, [copy.leftover for copy in its])
                self._copies[name] = [copy for copy in copies if copy not in its]
                continue
            for copy in copies:
                if copy.has_log:
                    path = copy.leftover.directory / copy.leftover.name
                    log.warning("%s is left alone: %s cannot be served", path, name)
            self._register_offline(name, [copy for copy in copies if not copy.has_log])

    async def _resume_or_discard(
        self, name: TopicPartition, served: PartitionLog, leftover: list[MoveLeftover]
    ) -> None:
        for each, action in decide_startup(
            [served.directory.parent], leftover, is_any_offline=False
        ):
            home, path = self._home_of(each), each.directory / each.name
            if home.directory.failed:
                continue
            if action is StartupAction.RESUME:
                log.info("%s: the move goes on", path)
                self._mover.resume(name, home, path)
            else:
                log.warning("%s is of no move that could go on, and is removed", path)
                await self._mover.discard(name, home, path)

    def _decide(
        self, lone: Sequence[MoveLeftover], *, is_elsewhere: bool = False
    ) -> list[StartupDecision]:
        is_any_offline = not self._services.registry.are_all_online
        return decide_startup((), lone, is_any_offline=is_any_offline, is_elsewhere=is_elsewhere)

    def _register_offline(self, name: TopicPartition, lone: Sequence[_Copy]) -> None:
        topics = {copy.topic_id for copy in lone}
        topic_id = topics.pop() if len(topics) == 1 else None
        for leftover, action in self._decide([copy.leftover for copy in lone]):
            if self._home_of(leftover).directory.failed:
                continue
            reason = f"of {name} there is only {leftover.directory / leftover.name}"
            reason += (
                " as yet" if action is StartupAction.PROMOTE else ", and it may not be all of it"
            )
            if name not in self._services.registry.offline:
                offline = self._withheld[name] = OfflineLog(reason, topic_id)
                self._services.registry.offline[name] = offline
            log.warning("%s", reason)

    # J-14

    async def promote(
        self,
        is_elsewhere: Callable[[TopicPartition, UUID | None], bool],
        is_stray: IsStray,
    ) -> None:
        """Make the lone copies the logs that they are, unless `is_elsewhere(name, topic id)`: by the
        cluster's metadata the replica is in a directory that is none of this node's. Those that the cluster
        does not have here are set aside."""
        adoption = LoadedLogs(self._services.registry, self._services.offload, is_stray)
        for name, copies in self._copies.items():
            is_served = name in self._services.registry.logs
            strays = [copy for copy in copies if is_served or is_stray(name, copy.topic_id)]
            lone = [copy for copy in copies if copy not in strays and not copy.has_log]
            for copy in strays:
                await self._rename_to_stray(name, copy.leftover)
            if not lone:
                self._forget_withheld(name)
                continue
            elsewhere = any(is_elsewhere(name, copy.topic_id) for copy in lone)
            if name not in self._services.registry.offline:  # a stray had its name until now
                self._register_offline(name, lone)
            for leftover, action in self._decide(
                [copy.leftover for copy in lone], is_elsewhere=elsewhere
            ):
                home = self._home_of(leftover)
                if action is StartupAction.PROMOTE and not home.directory.failed:
                    await self._promote_copy(home, name, leftover, adoption.adopt)
                elif elsewhere:
                    log.error("%s is offline: its directory is not here", name)

    def _forget_withheld(self, name: TopicPartition) -> None:
        """What withheld it was no copy of it."""
        offline = self._services.registry.offline
        if name in offline and offline[name] is self._withheld.get(name):
            del offline[name]

    async def _rename_to_stray(self, name: TopicPartition, leftover: MoveLeftover) -> None:
        home = self._home_of(leftover)
        if not home.directory.failed:
            await self._log_removal.rename_found_to_stray(home, name, [leftover.name])

    async def _promote_copy(
        self, home: DirectoryLogs, name: TopicPartition, leftover: MoveLeftover, adopt: Adopt
    ) -> None:
        is_checkpointed = leftover.name in home.offline_directories.get(name, ())
        for each in self._services.registry.homes():
            # Of another topic, or it would be the copy's log
            if str(name) in each.offline_directories.get(name, ()):
                await self._log_removal.rename_found_to_stray(each, name, [str(name)])
        if home.directory.failed:
            return
        loading = self._loadings[leftover.directory]
        await loading.promote(name, leftover.name, adopt, is_checkpointed=is_checkpointed)
        if name in self._services.registry.logs:
            home.release(name, leftover.name)
            log.info("%s was moved here when the last run ended: served from %s", name, leftover)


def _is_of(served: PartitionLog, copy: _Copy) -> bool:
    return None in (served.topic_id, copy.topic_id) or served.topic_id == copy.topic_id


def _moving_last(name: str) -> bool:
    return names.parse(name).state is not PartitionDirectoryState.MOVING
