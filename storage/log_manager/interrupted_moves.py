"""Moves that the last run did not complete: a start continues, completes or discards them (J-13 to J-16).

There are three phases, because each needs information that the previous one does not have:

1. `find`, before any log is opened: the checkpoints must keep the entries of a future replica that may become
   the current replica.
2. `resume`, after all logs are open: a move continues only if its current replica is served.
3. `promote`, after the cluster metadata is known and the stray logs are renamed.

The topic of a future replica is the one in its `partition.metadata`. A log of another topic with the same name is
not its current replica, for example in a directory that was offline, or after the topic was recreated. A move that
continued from such a log would overwrite the future replica, which may be the only copy of its records.

A promotion renames the future replica, syncs the log directory, and then opens the log. A crash in between leaves
`.move`, for which the next start decides again, or `T-p`. The log is recovered from the recovery point that the
swap wrote, even if the directory has a clean shutdown file.

`decide_startup` decides by this table. Kafka's `topic-partition.<uuid>-future` is treated as `.move`. Directories that end in `.delete` or `-delete` are
removed later in any case (J-16), so they are not in the table. A `T-p` counts only if its topic id is not different
from that of the `.move`. One decision covers all log directories that could be read:

| `T-p` in   | `.move` in           | a log directory | directory in the      | action                               |
|            |                      | is offline      | cluster metadata      |                                      |
|------------|----------------------|-----------------|-----------------------|--------------------------------------|
| 1          | 1, another           | either          | -                     | RESUME (J-13)                        |
| 1          | several, others      | either          | -                     | RESUME the first, DISCARD the others |
| 1          | the same             | either          | -                     | DISCARD                              |
| 2 or more  | any                  | either          | -                     | LEAVE: the current replica is        |
|            |                      |                 |                       | ambiguous                            |
| 0          | 1                    | no              | of this node, unknown | PROMOTE (J-14)                       |
| 0          | 1                    | no              | not of this node      | OFFLINE, files unchanged             |
| 0          | 1                    | yes             | -                     | OFFLINE, files unchanged (J-15)      |
| 0          | several              | either          | -                     | OFFLINE, files unchanged             |

PROMOTE completes a swap that a crash interrupted: the swap renames the current replica to `.delete` durably before
it renames `.move`, and at that point `.move` contains the complete log. However, an unmounted disk looks like an
empty log directory with a new id. Therefore a single `.move` is not promoted if the cluster metadata assigns the
replica to a directory that this node does not have.

An empty `T-p` is a current replica like any other, because it may have been truncated. No swap, of this broker or
of Kafka, leaves an empty `T-p` next to a future replica with more records, and an empty log of a failed creation is
removed durably before a move can start.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from odradek.protocol.topics import TopicPartition
from odradek.seams.files import OutOfDescriptors, Path
from odradek.seams.values import value_class
from odradek.storage.directories import names
from odradek.storage.directories.io_errors import WRONG_FILE_TYPE_ERRNOS
from odradek.storage.directories.names import PartitionDirectoryState
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.partition_metadata import CorruptMetadata, read_topic_id
from odradek.storage.log_manager.loaded_logs import LoadedLogs
from odradek.storage.log_manager.loading import Adopt, DirectoryLoader
from odradek.storage.log_registry.deletion import LogRemoval
from odradek.storage.log_registry.directory_logs import DirectoryLogs
from odradek.storage.log_registry.registry import IsStray, OfflineLog
from odradek.storage.log_registry.services import LogServices
from odradek.storage.moving.mover import Mover

_logger = logging.getLogger("odradek.replica_moves")


class MoveLeftover(NamedTuple):
    """A `.move` or `-future` directory that a start found."""

    directory: Path
    """The log directory that contains it."""
    name: str


class StartupAction(Enum):
    """Action of a start for one future replica; see the table."""

    RESUME = "resume"
    DISCARD = "discard"
    LEAVE = "leave"
    PROMOTE = "promote"
    OFFLINE = "offline"


class StartupDecision(NamedTuple):
    """A future replica that was found, and the action for it."""

    leftover: MoveLeftover
    action: StartupAction


def decide_startup(
    live: Sequence[Path],
    leftovers: Sequence[MoveLeftover],
    *,
    is_any_offline: bool,
    is_elsewhere: bool = False,
) -> list[StartupDecision]:
    """Return one decision for each future replica of a partition, in the order of `leftovers`.

    `live`: the log directories with a current replica. `is_any_offline`: a log directory is offline.
    `is_elsewhere`: the cluster metadata assigns the replica to a directory that this node does not have.
    """
    if len(live) > 1:
        return [StartupDecision(leftover, StartupAction.LEAVE) for leftover in leftovers]
    if not live:
        is_whole = len(leftovers) == 1 and not is_any_offline and not is_elsewhere
        action = StartupAction.PROMOTE if is_whole else StartupAction.OFFLINE
        return [StartupDecision(leftover, action) for leftover in leftovers]
    decisions = []
    is_resumed = False
    for leftover in leftovers:
        resumes = leftover.directory != live[0] and not is_resumed
        is_resumed = is_resumed or resumes
        action = StartupAction.RESUME if resumes else StartupAction.DISCARD
        decisions.append(StartupDecision(leftover, action))
    return decisions


@value_class
class _Copy:
    """A future replica that was found, with its topic."""

    leftover: MoveLeftover
    topic_id: UUID | None
    """Topic id in `partition.metadata`; None: unknown."""
    has_log: bool
    """A current replica of this topic, or of an unknown topic, was found."""


class InterruptedMoves:
    """The future replicas that one start found."""

    def __init__(self, services: LogServices, mover: Mover, log_removal: LogRemoval) -> None:
        self._services = services
        self._mover = mover
        self._log_removal = log_removal
        self._loadings: dict[Path, DirectoryLoader] = {}
        self._copies: dict[TopicPartition, list[_Copy]] = {}
        """Future replicas for which no action was taken yet."""
        self._withheld: dict[TopicPartition, OfflineLog] = {}

    async def find(self, loadings: Sequence[DirectoryLoader]) -> None:
        """Find the future replicas in the directories that could be read, before any log is opened."""
        self._loadings = {each.directory_logs.directory.path: each for each in loadings}
        live: defaultdict[TopicPartition, list[Path]] = defaultdict(list)
        leftovers: defaultdict[TopicPartition, list[MoveLeftover]] = defaultdict(list)
        for path in self._services.registry.logs_by_directory:  # in the order of log.dirs
            if path not in self._loadings:
                continue
            found = self._loadings[path].found
            for name in found.live:
                live[name].append(path)
            for moving in sorted(found.moving, key=_is_kafka_future):
                leftovers[names.parse(moving).topic_partition].append(MoveLeftover(path, moving))
        for name, copies in leftovers.items():
            self._copies[name] = await self._read_topic_ids(name, copies, live[name])
            for copy in self._copies[name]:
                # If the directory has `T-p` too, the checkpoint entries are those of `T-p`.
                if not copy.has_log and copy.leftover.directory not in live[name]:
                    self._directory_logs_of(copy.leftover).keep_offline(name, copy.leftover.name)

    async def _read_topic_ids(
        self, name: TopicPartition, leftovers: Sequence[MoveLeftover], live: Sequence[Path]
    ) -> list[_Copy]:
        logs = [await self._topic_id(path / str(name)) for path in live]
        copies = []
        for leftover in leftovers:
            topic_id = await self._topic_id(leftover.directory / leftover.name)
            has_log = any(None in (id, topic_id) or id == topic_id for id in logs)
            copies.append(_Copy(leftover, topic_id, has_log))
        return copies

    async def _topic_id(self, path: Path) -> UUID | None:
        """Read the topic id in the directory `path`; None: unknown. Reports I/O errors to the log directory."""
        loading = self._loadings[path.parent]
        directory = loading.directory_logs.directory
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

    def _directory_logs_of(self, leftover: MoveLeftover) -> DirectoryLogs:
        return self._services.registry.logs_by_directory[leftover.directory]

    async def resume(self) -> None:
        """Continue or discard the moves of served logs; register the other partitions as offline.

        Called after all logs were opened.
        """
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
                    _logger.warning(
                        "keeping future replica %s: the current replica of %s is offline",
                        path,
                        name,
                    )
            self._register_offline(name, [copy for copy in copies if not copy.has_log])

    async def _resume_or_discard(
        self, name: TopicPartition, served: PartitionLog, leftovers: list[MoveLeftover]
    ) -> None:
        live = [served.directory.parent]
        for leftover, action in decide_startup(live, leftovers, is_any_offline=False):
            directory_logs, path = (
                self._directory_logs_of(leftover),
                leftover.directory / leftover.name,
            )
            if directory_logs.directory.failed:
                continue
            if action is StartupAction.RESUME:
                _logger.info("resuming the move to %s", path)
                self._mover.resume(name, directory_logs, path)
            else:
                _logger.warning("deleting future replica %s: its move cannot be resumed", path)
                await self._mover.discard(name, directory_logs, path)

    def _decide(
        self, lone: Sequence[MoveLeftover], *, is_elsewhere: bool = False
    ) -> list[StartupDecision]:
        is_any_offline = not self._services.registry.are_all_online
        return decide_startup((), lone, is_any_offline=is_any_offline, is_elsewhere=is_elsewhere)

    def _register_offline(self, name: TopicPartition, lone: Sequence[_Copy]) -> None:
        topics = {copy.topic_id for copy in lone}
        topic_id = topics.pop() if len(topics) == 1 else None
        for leftover, action in self._decide([copy.leftover for copy in lone]):
            if self._directory_logs_of(leftover).directory.failed:
                continue
            reason = f"{name} has only the future replica {leftover.directory / leftover.name}"
            reason += (
                ", which is not promoted yet"
                if action is StartupAction.PROMOTE
                else ", which may be incomplete"
            )
            if name not in self._services.registry.offline:
                offline = self._withheld[name] = OfflineLog(reason, topic_id)
                self._services.registry.offline[name] = offline
            _logger.warning("log %s is offline: %s", name, reason)

    # Promotion (J-14)

    async def promote(
        self,
        is_elsewhere: Callable[[TopicPartition, UUID | None], bool],
        is_stray: IsStray,
    ) -> None:
        """Make each future replica without a current replica the current replica.

        It stays offline if `is_elsewhere(replica, topic id)`: the cluster metadata assigns the replica to a
        directory that this node does not have. Future replicas of partitions that the cluster does not assign to
        this node are renamed to `-stray`.
        """
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
            if name not in self._services.registry.offline:  # the name was that of a stray log
                self._register_offline(name, lone)
            for leftover, action in self._decide(
                [copy.leftover for copy in lone], is_elsewhere=elsewhere
            ):
                directory_logs = self._directory_logs_of(leftover)
                if action is StartupAction.PROMOTE and not directory_logs.directory.failed:
                    await self._promote_copy(directory_logs, name, leftover, adoption.adopt)
                elif elsewhere:
                    _logger.error(
                        "log of %s is offline: the cluster metadata assigns it to a log directory that this node does not have",
                        name,
                    )

    def _forget_withheld(self, name: TopicPartition) -> None:
        """Remove the offline entry of a partition that has no future replica."""
        offline = self._services.registry.offline
        if name in offline and offline[name] is self._withheld.get(name):
            del offline[name]

    async def _rename_to_stray(self, name: TopicPartition, leftover: MoveLeftover) -> None:
        directory_logs = self._directory_logs_of(leftover)
        if not directory_logs.directory.failed:
            await self._log_removal.rename_found_to_stray(directory_logs, name, [leftover.name])

    async def _promote_copy(
        self,
        directory_logs: DirectoryLogs,
        name: TopicPartition,
        leftover: MoveLeftover,
        adopt: Adopt,
    ) -> None:
        is_checkpointed = leftover.name in directory_logs.offline_directories.get(name, ())
        for each in self._services.registry.online_directories():
            # `T-p` has another topic: otherwise it would be the current replica of this future replica.
            if str(name) in each.offline_directories.get(name, ()):
                await self._log_removal.rename_found_to_stray(each, name, [str(name)])
        if directory_logs.directory.failed:
            return
        loading = self._loadings[leftover.directory]
        await loading.promote(name, leftover.name, adopt, is_checkpointed=is_checkpointed)
        if name in self._services.registry.logs:
            directory_logs.release(name, leftover.name)
            _logger.info("completed the interrupted move of %s to %s", name, leftover.directory)


def _is_of(served: PartitionLog, copy: _Copy) -> bool:
    return None in (served.topic_id, copy.topic_id) or served.topic_id == copy.topic_id


def _is_kafka_future(name: str) -> bool:
    return names.parse(name).state is not PartitionDirectoryState.MOVING
