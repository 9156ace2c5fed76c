"""Ports for a cluster's listeners, known before anything listens: each node must know the others'."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from odradek.seams.entropy import Entropy
from odradek.seams.network import Network

FIRST_PORT = 10_000
END_PORT = 32_768
"""From here on kernels give ports to whoever does not care which (Linux's default)."""


async def is_free(network: Network, host: str, port: int) -> bool:
    """Whether nobody listens there at this moment. OSError where one can't listen for another reason."""
    try:
        listeners = await network.listen(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    for listener in listeners:
        await listener.aclose()
    return True


async def free_ports(network: Network, entropy: Entropy, host: str, count: int) -> Sequence[int]:
    """So many different ports that nobody has at this moment. OSError as `is_free`."""
    found: dict[int, None] = {}
    while len(found) < count:
        port = FIRST_PORT + entropy.below(END_PORT - FIRST_PORT)
        if port not in found and await is_free(network, host, port):
            found[port] = None
    return list(found)
