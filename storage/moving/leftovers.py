"""What moves left in the log directories is found, judged by startup.py's table, and seen to.

In three parts, for each needs what the other has not got yet: `judge` before any log is opened (the
checkpoints are to keep what they say of a copy that may become the log), `see_to` once all logs are
(a move goes on only from one that is served), `promote` once the cluster's metadata is known.

Order of a promotion: the rename, the log directory synced, and only then is the log opened; a crash
in between leaves `.move`, to be judged again, or `tp`. It is opened as after a crash, from the
recovery point that the swap wrote down, whatever mark the directory has.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.protocol.errors import KafkaError
from odradek.seams.entropy import Entropy
from odradek.seams.files import Path
from odradek.storage.directories import names
from odradek.storage.directories.names import State, TopicPartition
from odradek.storage.directory_logs import DirectoryLogs
from odradek.storage.errors import LogFailed
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log.partition_metadata import CorruptMetadata, read_topic_id
from odradek.storage.log_loading import Loading
from odradek.storage.log_registry import Offline, offline_reason
from odradek.storage.moving.startup import Left, Verdict, decide

if TYPE_CHECKING:
    from odradek.storage.log_manager import LogManager

log = logging.getLogger(__name__)


class Leftovers:
    """Of one start."""

    def __init__(self, manager: LogManager, entropy: Entropy) -> None:
        self._manager = manager
        self._entropy = entropy
        self._loadings: dict[Path, Loading] = {}
        self._verdicts: dict[TopicPartition, list[tuple[Left, Verdict]]] = {}

    def judge(self, loadings: Sequence[Loading]) -> None:
        """All directories that could be read were surveyed."""
        self._loadings = {each.home.directory.path: each for each in loadings}
        homes = self._manager.registry.every_home
        live: defaultdict[TopicPartition, list[Path]] = defaultdict(list)
        left: defaultdict[TopicPartition, list[Left]] = defaultdict(list)
        for path in homes:  # in the order of log.dirs
            if path not in self._loadings:
                continue
            found = self._loadings[path].found
            for name in found.live:
                live[name].append(path)
            for moving in sorted(found.moving, key=_ours_first):
                left[names.parse(moving).topic_partition].append(Left(path, moving))
        any_bad = not self._manager.registry.are_all_online
        for name, copies in left.items():
            decisions = decide(live[name], copies, any_bad=any_bad)
            self._verdicts[name] = [(each.left, each.verdict) for each in decisions]
            for each in decisions:
                if each.verdict in (Verdict.PROMOTE, Verdict.OFFLINE):
                    homes[each.left.directory].unserved.add(name)

    async def see_to(self) -> None:
        """All logs are open that can be."""
        for name, verdicts in self._verdicts.items():
            for left, verdict in verdicts:
                home = self._manager.registry.every_home[left.directory]
                path = left.directory / left.name
                if home.directory.failed:
                    continue
                match verdict:
                    case Verdict.RESUME if name in self._manager.registry.logs:
                        log.info("%s: the move goes on", path)
                        self._manager.mover.resume(name, home, path)
                    case Verdict.DISCARD:
                        log.warning("%s is of no move that could go on, and is removed", path)
                        await self._discard(home, name, path)
                    case Verdict.PROMOTE:
                        self._withhold(name, f"of {name} there is only {path} as yet")
                    case Verdict.OFFLINE:
                        self._withhold(
                            name, f"of {name} there is only {path}, and it may not be all of it"
                        )
                    case _:
                        log.warning("%s is left alone: %s cannot be served", path, name)

    def _withhold(self, name: TopicPartition, reason: str) -> None:
        if name not in self._manager.registry.offline:
            self._manager.registry.offline[name] = Offline(reason, None)
        log.warning("%s", reason)

    async def _discard(self, home: DirectoryLogs, name: TopicPartition, path: Path) -> None:
        aside = home.directory.path / names.deleted_name(*name, self._entropy.uuid())
        try:
            await self._manager.offload.run(self._rename, path, aside, lane=home.directory.lane)
        except OSError as error:
            home.directory.report(error)
        else:
            self._manager.removals.schedule(home.directory, aside, 0)

    def _rename(self, old: Path, new: Path) -> None:
        self._manager.files.rename(old, new)
        self._manager.files.sync_directory(new.parent)

    # J-14

    async def promote(self, is_elsewhere: Callable[[TopicPartition, UUID | None], bool]) -> None:
        """Make the lone copies the logs that they are, unless `is_elsewhere(name, topic id)`: by the
        cluster's metadata the replica is in a directory that is none of this node's."""
        any_bad = not self._manager.registry.are_all_online
        for name, verdicts in self._verdicts.items():
            lone = [left for left, verdict in verdicts if verdict is Verdict.PROMOTE]
            if not lone:
                continue
            home = self._manager.registry.every_home[lone[0].directory]
            topic_id = await self._topic_id(home, lone[0])
            (decision,) = decide(
                (), lone, any_bad=any_bad, is_elsewhere=is_elsewhere(name, topic_id)
            )
            if decision.verdict is Verdict.PROMOTE and not home.directory.failed:
                await self._promote(home, name, decision.left)
            else:
                log.error("%s is offline: its directory is not here", name)

    async def _topic_id(self, home: DirectoryLogs, left: Left) -> UUID | None:
        path = left.directory / left.name
        try:
            return await self._manager.offload.run(
                read_topic_id, self._manager.files, path, lane=home.directory.lane
            )
        except CorruptMetadata:
            return None
        except OSError as error:
            home.directory.report(error)
            return None

    async def _promote(self, home: DirectoryLogs, name: TopicPartition, left: Left) -> None:
        loading, config = self._loadings[left.directory], self._manager.config_of(name.topic)

        def take() -> PartitionLog:
            self._rename(left.directory / left.name, home.directory.path_of(*name))
            assert loading.surveyed is not None
            return loading.opener.load(home, replace(loading.surveyed, mark=None), name, config)

        try:
            opened = await self._manager.offload.run(take, lane=home.directory.lane)
        except OSError as error:
            home.directory.report(error)
        except (KafkaError, CorruptMetadata) as error:
            log.error("%s is offline: %s", name, error)
        else:
            if home.directory.failed:  # meanwhile; what withholds it stays
                opened.fail(LogFailed(offline_reason(home.directory)))
                return
            self._manager.registry.offline.pop(name, None)
            self._manager.registry.add(home, name, opened)
            home.unserved.discard(name)
            log.info("%s was moved here when the last run ended: served from %s", name, left)


def _ours_first(name: str) -> bool:
    return names.parse(name).state is not State.MOVING
