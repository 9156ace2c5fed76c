"""Finds the process that opened a loopback connection on this machine (Linux: /proc).

To treat two nodes differently, a proxy between them must know which of them sends, and nothing in
Kafka's protocol identifies the sender reliably. The kernel does: `/proc/net/tcp` contains the inode
of the socket at the other end, and the process that holds it has a descriptor with that inode.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""The sockets of a JVM are IPv6 sockets with IPv4-mapped addresses."""


def find_connection_owner(port: int, peer_port: int, pids: Mapping[int, int]) -> int | None:
    """Return the key in `pids` (id → process id) whose process has the socket `port` → `peer_port`.

    None if none of them has it: another process has it, or it is closed.
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
    with suppress(OSError):  # the process may end during the search
        for name in os.listdir(directory):
            with suppress(OSError):
                if os.readlink(f"{directory}/{name}") == wanted:
                    return True
    return False
