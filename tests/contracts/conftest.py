"""One suite a seam, run over the real implementation and the virtual one."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path as OsPath

import pytest

from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import Files, Path
from odradek.seams.network import Connection, Network
from odradek.seams.real_files import RealFiles
from odradek.seams.tcp import TcpNetwork
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from odradek.testing.virtual_network import VirtualWires


@pytest.fixture(params=["real", "virtual"])
def files(request: pytest.FixtureRequest) -> Iterator[Files]:
    if request.param == "real":
        yield RealFiles(max_open=64)
    else:
        yield VirtualFiles(VirtualDisk())


@pytest.fixture
def directory(files: Files, tmp_path: OsPath) -> Path:
    """An empty directory, on whichever disk the test runs."""
    made = Path(tmp_path) / "here"
    files.make_directory(made)
    return made


@dataclass
class TwoHosts:
    """A network as a server has it and as a client has it, and what the client calls the server."""

    server: Network
    client: Network
    name: str
    whole_frame_bytes: int
    """A frame so small that a full network takes it whole or not at all."""

    async def connected(self) -> tuple[Connection, Connection]:
        """(the client's end, the server's end)"""
        [listener] = await self.server.listen(self.name, 0)
        client = await self.client.connect(self.name, listener.address.port)
        server = await listener.accept()
        await listener.aclose()
        return client, server


@pytest.fixture(params=["tcp", "tcp6", "virtual", "virtual in pieces"])
def hosts(request: pytest.FixtureRequest) -> TwoHosts:
    if request.param == "tcp":
        return TwoHosts(TcpNetwork(), TcpNetwork(), "127.0.0.1", 1)
    if request.param == "tcp6":
        if not has_ipv6():
            pytest.skip("no IPv6 on this machine")
        return TwoHosts(TcpNetwork(), TcpNetwork(), "::1", 1)
    entropy = SeededEntropy(random.Random(7))
    wires = VirtualWires(entropy, fragment=request.param == "virtual in pieces")
    return TwoHosts(wires.host("server"), wires.host("client"), "server", 16_384)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
