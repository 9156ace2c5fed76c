"""Which errors take a log directory offline.

The decision: **any I/O error does, at the first one, for good** (until the process is restarted),
with three exceptions that say nothing about the disk:

- `OutOfDescriptors` (EMFILE, ENFILE): the process is at its limit; back-pressure, tried again. (A log
  that it leaves with something done by half is offline by itself: `state.offline_on_failure`.)
- A full disk (ENOSPC, EDQUOT) where whoever hit it *undid* what it had begun: nothing is lost, the
  request is refused with KAFKA_STORAGE_ERROR, what is there can still be read, and retention or a
  deleted topic may make room. Kafka takes the directory offline here, and itself down with its last
  one; `broker/replicas/replica_manager.py` does that where other replicas can take over. A full disk at a `sync` is
  like any other failed sync (bytes that were accepted may be lost): offline.
- `ODD`, in a log's directory: a name there is not what it should be, say a directory in a file's place.
  The disk has answered, and is well; the one log is offline by itself, whenever that file is first needed.

A missing file is an error of the disk like any other: nobody but us removes files. A failed sync is
never tried again (the kernel may have dropped the pages and would report success).
"""

from __future__ import annotations

import errno

from odradek.seams.files import OutOfDescriptors

DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
WRONG_FILE_TYPE_ERRNOS = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ELOOP})
"""What a disk says of a name that is not what it should be."""


def takes_offline(error: OSError, *, undone: bool = False) -> bool:
    """Whether a directory goes offline after `error`.

    `undone`: what the failing operation had begun was taken back, the files are as before it.
    """
    if isinstance(error, OutOfDescriptors):
        return False
    return not (undone and error.errno in DISK_FULL_ERRNOS)
