"""Decision which I/O errors take a log directory offline.

**The first I/O error takes a directory offline** until the process is restarted, with three exceptions that are no
evidence of a broken disk:

- `OutOfDescriptors` (EMFILE, ENFILE): the process has reached its limit; the operation is retried. (A log in which it
  leaves an operation half done goes offline alone: `state.offline_on_failure`.)
- A full disk (ENOSPC, EDQUOT), if the failed operation was *undone*: nothing is lost, the request fails with
  KAFKA_STORAGE_ERROR, reads continue, and retention or a deleted topic may free space. Kafka takes the directory
  offline, and stops after the last one; `broker/replicas/replica_manager.py` does this if other replicas can take
  over. A full disk at a `File.sync` is like any other failed sync: acknowledged bytes may be lost, so the directory goes
  offline.
- `WRONG_FILE_TYPE_ERRNOS` in the directory of a log: for example, a directory in the place of a file. The disk works;
  the log goes offline alone when the file is first needed.

A missing file is an I/O error like any other, because only the broker removes files. A failed sync is never retried:
the kernel may have dropped the pages and would report success.
"""

from __future__ import annotations

import errno

from odradek.seams.files import OutOfDescriptors

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
WRONG_FILE_TYPE_ERRNOS = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ELOOP})
"""Errors for a name whose file type is wrong."""


def takes_offline(error: OSError, *, files_unchanged: bool = False) -> bool:
    """Return whether `error` takes the directory offline.

    `files_unchanged`: the failed operation was undone, so the files are as before it.
    """
    if isinstance(error, OutOfDescriptors):
        return False
    return not (files_unchanged and error.errno in DISK_FULL_ERRNOS)
