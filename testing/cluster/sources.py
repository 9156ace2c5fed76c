"""Which process opened a connection to this machine's own loopback (Linux: /proc).

A proxy between the nodes of a cluster must know who speaks to treat two nodes differently, and nothing
in Kafka's protocol says so reliably. The kernel does: `/proc/net/tcp` has the inode of the socket at
the other end, and the process that holds it has a descriptor of that name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""A JVM's sockets are IPv6 ones, with IPv4 addresses mapped into them."""


def owner_of(port: int, peer_port: int, pids: Mapping[int, int]) -> int | None:
    """The key in `pids` (id → process id) of who holds the socket from `port` to `peer_port`.

    None if none of them does: somebody else's, or gone already.
    """
    for inode in _inodes(port, peer_port):
        for node, pid in pids.items():
            if _holds(pid, inode):
                return node
    return None


def _inodes(port: int, peer_port: int) -> Iterable[str]:
    local_end, peer_end = f":{port:04X}", f":{peer_port:04X}"
    for table in TABLES:
        with suppress(FileNotFoundError), open(table) as lines:
            for line in lines:
                words = line.split(None, 10)
                if words[1].endswith(local_end) and words[2].endswith(peer_end):
                    yield words[9]


def _holds(pid: int, inode: str) -> bool:
    wanted, directory = f"socket:[{inode}]", f"/proc/{pid}/fd"
    with suppress(OSError):  # it ends while we look
        for name in os.listdir(directory):
            with suppress(OSError):
                if os.readlink(f"{directory}/{name}") == wanted:
                    return True
    return False
