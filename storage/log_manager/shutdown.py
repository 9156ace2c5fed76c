"""Clean shutdown of one directory's logs, in an order that makes the next start fast:

1. Every log is flushed and closed: segments synced, indexes trimmed and synced, a producer snapshot
   written at the log end.
2. The checkpoints are written: recovery points (now the log ends), log start offsets, high watermarks.
3. The clean shutdown file is written.

A crash before step 3 leaves no such file, so the next start scans past the checkpointed recovery points.
The file is not written either if a log could not be opened or closed, or if the directory was not completely
loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from odradek.seams.offload import Offload
from odradek.storage.errors import StorageError
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.directory_logs import DirectoryLogs

_logger = logging.getLogger(__name__)

CHUNK = 32


async def close(
    directory_logs: DirectoryLogs, offload: Offload, workers: int, *, broker_epoch: int
) -> None:
    """Close the logs, write the checkpoints and the clean shutdown file. A failure takes the directory offline and
    ends the shutdown of the directory."""
    directory = directory_logs.directory
    if not await _close_all(directory_logs, offload, workers) or directory.failed:
        _logger.warning("log directory %s was not shut down cleanly", directory.path)
        return

    def finish() -> None:
        directory_logs.write_checkpoints()
        if directory_logs.loaded and directory_logs.is_whole:
            directory.write_clean_shutdown_file(broker_epoch)

    try:
        await offload.run(finish, lane=directory.lane)
    except OSError as error:
        directory.report(error)
    directory_logs.logs.clear()


async def _close_all(directory_logs: DirectoryLogs, offload: Offload, workers: int) -> bool:
    logs = list(directory_logs.logs.values())
    chunks = iter([logs[start : start + CHUNK] for start in range(0, len(logs), CHUNK)])
    good = True

    async def work() -> None:
        nonlocal good
        for chunk in chunks:
            if not await offload.run(close_logs, chunk, lane=directory_logs.directory.lane):
                good = False

    async with trio.open_nursery() as nursery:
        for _ in range(workers):
            nursery.start_soon(work)
    return good


def close_logs(logs: Sequence[PartitionLog]) -> bool:
    """Close logs cleanly, in a worker thread; True if all succeeded. Failures are logged."""
    good = True
    for each in logs:
        if each.failure is not None:  # it is offline: its last write may be incomplete
            good = False
            _logger.error("log %s was not closed cleanly: %s", each.directory, each.failure)
        try:
            each.close(clean=True)
        except StorageError as error:
            good = False
            _logger.error("log %s was not closed cleanly: %s", each.directory, error)
        except Exception as error:
            good = False
            _logger.error("failed to close log %s", each.directory, exc_info=error)
    return good
