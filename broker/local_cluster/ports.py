"""Free ports for the listeners of a cluster, which are in the configs of all nodes before they start."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from odradek.seams.entropy import Entropy
from odradek.seams.network import Network

FIRST_PORT = 10_000
END_PORT = 32_768
"""Start of the ephemeral ports of Linux."""


async def is_free(network: Network, host: str, port: int) -> bool:
    """Whether the port is free now. Raises OSError if listening fails for another reason."""
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
    """Return `count` different ports that are free now. Raises OSError as `is_free` does."""
    found: dict[int, None] = {}
    while len(found) < count:
        port = FIRST_PORT + entropy.below(END_PORT - FIRST_PORT)
        if port not in found and await is_free(network, host, port):
            found[port] = None
    return list(found)
