"""What becomes of a log that was found at start: served, or known and withheld.

A log in a directory that failed meanwhile is offline with it, and does not count where the partition is in
another one: as if it had failed before the start. One that makes no sense is offline by itself. A partition
that is found in several directories is served from none until one alone is left: which of the copies is right
cannot be known here. But for a copy that holds nothing: a directory that fails while a log is made in it has
one, and the log is in another. It is removed. And but for one that the cluster does not have here, as of
another topic: a directory that was away while the topic was deleted and made anew has it. It is a stray, and
so may the other one be.
What is withheld keeps its entries in the checkpoints, and its directory gets no mark of a clean
shutdown where it could not be closed.
"""

from __future__ import annotations

import logging

from odradek.seams.offload import Offload
from odradek.storage import log_closing
from odradek.storage.directories.names import TopicPartition
from odradek.storage.directory_logs import DirectoryLogs
from odradek.storage.errors import LogFailed
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_loading import Damaged
from odradek.storage.log_registry import IsStray, LogRegistry, Offline, offline_reason

log = logging.getLogger(__name__)


async def adopt(
    registry: LogRegistry,
    offload: Offload,
    is_stray: IsStray,
    strays: list[tuple[DirectoryLogs, PartitionLog]],
    home: DirectoryLogs,
    name: TopicPartition,
    found: PartitionLog | Damaged,
) -> None:
    """A log was found: it is served if it is whole, and in no other directory, but for one without a record
    or a stray. Where it is in several, what is a stray is put into `strays`."""
    opened = found if isinstance(found, PartitionLog) else None
    if home.directory.failed:
        reason = offline_reason(home.directory)
        if opened is not None:
            opened.fail(LogFailed(reason))
        if name not in registry.logs:
            registry.offline[name] = Offline(reason, None if opened is None else opened.topic_id)
    elif isinstance(found, Damaged):
        home.is_whole = False
        await _withhold(registry, offload, home, name, None, found.reason)
    elif (other := registry.logs.get(name)) is not None and _holds_nothing(found, beside=other):
        await _remove(offload, home, found)
    elif other is not None and _holds_nothing(other, beside=found):
        its_home, _ = registry.remove(name)
        registry.add(home, name, found)
        await _remove(offload, its_home, other)
    elif other is not None and is_stray(name, found.topic_id):
        strays.append((home, found))
    elif other is not None and is_stray(name, other.topic_id):
        strays.append(registry.remove(name))
        registry.add(home, name, found)
    elif other is not None or _is_withheld(registry, name):
        reason = f"{name} is in {found.directory}"
        await _withhold(registry, offload, home, name, found, reason)
    else:
        registry.offline.pop(name, None)  # it is in a directory that failed meanwhile, too
        registry.add(home, name, found)


def _is_withheld(registry: LogRegistry, name: TopicPartition) -> bool:
    """Whether there is a log of that name in a directory that is online."""
    return any(str(name) in home.unserved.get(name, ()) for home in registry.homes())


def _holds_nothing(found: PartitionLog, *, beside: PartitionLog) -> bool:
    """Whether no record is in it, nor was before it, and it is of the topic whose log `beside` is, or does not say."""
    return found.end_offset == 0 and found.topic_id in (None, beside.topic_id)


async def _remove(offload: Offload, home: DirectoryLogs, copy: PartitionLog) -> None:
    """A crash in the midst: it is found again, and as empty."""
    log.warning("%s is empty, and in another log directory, too: it is removed", copy.directory)
    try:
        await offload.run(copy.delete, lane=home.directory.lane)
    except OSError as error:
        home.directory.report(error)


async def _withhold(
    registry: LogRegistry,
    offload: Offload,
    home: DirectoryLogs,
    name: TopicPartition,
    found: PartitionLog | None,
    reason: str,
) -> None:
    """It is not served; nor are its copies."""
    copies = [] if found is None else [(home, found)]
    home.withhold(name, str(name))
    topic_id = None if found is None else found.topic_id
    if name in registry.logs:
        its_home, other = registry.remove(name)
        its_home.withhold(name, str(name))
        copies.append((its_home, other))
        topic_id = topic_id or other.topic_id
        reason += (
            f" and in {other.directory}: stop the broker and remove the older one "
            f"(a move between directories was cut short)"
        )
    lost = registry.offline.get(name)
    if lost is not None:
        topic_id = topic_id or lost.topic_id
        reason += f"; {lost.reason}"
    if copies:
        log.error("%s", reason)
    registry.offline[name] = Offline(reason, topic_id)
    for its_home, copy in copies:
        lane = its_home.directory.lane
        if not await offload.run(log_closing.close_logs, (copy,), lane=lane):
            its_home.is_whole = False
