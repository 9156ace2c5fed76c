"""Finds the process that opened a loopback connection on this machine.

To treat two nodes differently, a proxy between them must know which of them sends, and nothing in
Kafka's protocol identifies the sender reliably. The kernel does. On Linux, `/proc/net/tcp` contains
the inode of the socket at the other end, and the process that holds it has a descriptor with that
inode. Elsewhere (macOS), the program `lsof` finds the process, which takes about 0.1 s.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""The sockets of a JVM are IPv6 sockets with IPv4-mapped addresses."""
HAS_TABLES = os.path.exists(TABLES[0])
LSOF_TIMEOUT_S = 5.0


def find_connection_owner(port: int, peer_port: int, pids: Mapping[int, int]) -> int | None:
    """Return the key in `pids` (id → process id) whose process has the socket `port` → `peer_port`.

    None if none of them has it: another process has it, or it is closed. Raises RuntimeError if
    neither `/proc` nor `lsof` can be used.
    """
    if not HAS_TABLES:
        return find_owner_with_lsof(port, peer_port, pids)
    for inode in _inodes(port, peer_port):
        for node, pid in pids.items():
            if _holds(pid, inode):
                return node
    return None


def find_owner_with_lsof(port: int, peer_port: int, pids: Mapping[int, int]) -> int | None:
    """Find the process as `find_connection_owner` does, on platforms without `/proc`."""
    if not pids:
        return None
    wanted = ",".join(map(str, pids.values()))
    command = ["lsof", "-w", "-n", "-P", "-a", "-p", wanted, f"-iTCP:{port}", "-F", "pn"]
    try:
        output = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=False, timeout=LSOF_TIMEOUT_S
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(
            f"lsof, which finds the sender of a connection, fails: {error}"
        ) from error
    owner = 0
    for line in output.splitlines():
        field, value = line[:1], line[1:]
        if field == "p":
            owner = int(value)
        elif field == "n":  # 127.0.0.1:53412->127.0.0.1:9092
            local, _, peer = value.partition("->")
            if local.endswith(f":{port}") and peer.endswith(f":{peer_port}"):
                return next(node for node, pid in pids.items() if pid == owner)
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
