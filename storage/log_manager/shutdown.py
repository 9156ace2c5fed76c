"""The end of one directory's logs. The order is what makes the next start fast:

1. every log is flushed and closed: segments synced, indexes trimmed and synced, a producer snapshot
   at the end of the log;
2. the checkpoints: recovery points (now all at the ends), log starts, high watermarks;
3. the mark of the clean shutdown.

A crash before 3 leaves no mark: the next start scans past the recovery points of the last
checkpoint, which never promise more than was synced. A log that cannot be opened or closed, or a
directory that was not loaded to its end, costs the mark: then step 2 is all there is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from odradek.seams.offload import Offload
from odradek.storage.errors import StorageError
from odradek.storage.log.partition_log import PartitionLog
from odradek.storage.log_manager.directory_logs import DirectoryLogs

log = logging.getLogger(__name__)

CHUNK = 32


async def close(home: DirectoryLogs, offload: Offload, workers: int, *, broker_epoch: int) -> None:
    """Close them, checkpoint, mark. A failure takes the directory offline and ends it there."""
    directory = home.directory
    if not await _close_all(home, offload, workers) or directory.failed:
        log.warning("log directory %s was not shut down cleanly", directory.path)
        return

    def finish() -> None:
        home.write_checkpoints()
        if home.loaded and home.is_whole:
            directory.write_clean_mark(broker_epoch)

    try:
        await offload.run(finish, lane=directory.lane)
    except OSError as error:
        directory.report(error)
    home.logs.clear()


async def _close_all(home: DirectoryLogs, offload: Offload, workers: int) -> bool:
    logs = list(home.logs.values())
    chunks = iter([logs[start : start + CHUNK] for start in range(0, len(logs), CHUNK)])
    good = True

    async def work() -> None:
        nonlocal good
        for chunk in chunks:
            if not await offload.run(close_logs, chunk, lane=home.directory.lane):
                good = False

    async with trio.open_nursery() as nursery:
        for _ in range(workers):
            nursery.start_soon(work)
    return good


def close_logs(logs: Sequence[PartitionLog]) -> bool:
    """In a thread: close them cleanly, tell of those that cannot be; whether all could."""
    good = True
    for each in logs:
        if each.failure is not None:  # it was fenced: what it last wrote may not be whole
            good = False
            log.error("%s is not closed cleanly: %s", each.directory, each.failure)
        try:
            each.close(clean=True)
        except StorageError as error:
            good = False
            log.error("%s is not closed cleanly: %s", each.directory, error)
        except Exception as error:
            good = False
            log.error("%s could not be closed", each.directory, exc_info=error)
    return good
