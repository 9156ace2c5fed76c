"""Ports that nobody has at this moment, and that the kernel gives nobody who does not ask for them."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

FIRST_PORT = 10_000
KERNELS_FIRST = 32_768
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_any = random.SystemRandom()  # other processes look for ports too


def free_port() -> int:
    """A port below those from which the kernel takes for whoever does not care which."""
    kernels = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else KERNELS_FIRST
    highest = kernels - 1
    while True:
        port = _any.randint(min(FIRST_PORT, highest), highest)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
