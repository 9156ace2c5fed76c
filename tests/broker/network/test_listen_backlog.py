"""The backlog of a listener's socket."""

from __future__ import annotations

import socket

import pytest

from odradek.broker.config.listeners import ListenerEndpoint
from odradek.broker.config.server_config import ServerConfig
from odradek.broker.network.listeners import open_listeners
from odradek.seams.tcp import TcpNetwork

CONNECTIONS = 200


async def connected(configs: dict[str, str]) -> int:
    """Number of connections that are established before the first one is accepted."""
    config = ServerConfig.from_properties(configs, test_node=True)
    wanted = [ListenerEndpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)]
    ((_, (listener,)),) = await open_listeners(TcpNetwork(), config, wanted, [])
    sockets = []
    try:
        for _ in range(CONNECTIONS):
            client = socket.socket()
            sockets.append(client)
            client.settimeout(0.2)
            client.connect((listener.address.host, listener.address.port))
    except TimeoutError:
        pass
    finally:
        for client in sockets:
            client.close()
        await listener.aclose()
    return len(sockets)


@pytest.mark.parametrize(
    ("configs", "all_connect"), [({}, True), ({"socket.listen.backlog.size": "50"}, False)]
)
async def test_backlog_is_that_of_the_system_unless_it_is_set(
    configs: dict[str, str], all_connect: bool
) -> None:
    assert (await connected(configs) == CONNECTIONS) is all_connect
