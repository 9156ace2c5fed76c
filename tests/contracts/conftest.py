"""Fixtures of the contract tests: each seam's real implementation and its virtual one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path as OsPath

import pytest

from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import Files, Path
from odradek.seams.real_files import RealFiles
from odradek.seams.tcp import TcpNetwork
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles
from odradek.testing.virtual_network import VirtualWires
from tests.contracts.two_hosts import TwoHosts, has_ipv6


@pytest.fixture(params=["real", "virtual"])
def files(request: pytest.FixtureRequest) -> Iterator[Files]:
    if request.param == "real":
        yield RealFiles(max_open=64)
    else:
        yield VirtualFiles(VirtualDisk())


@pytest.fixture
def directory(files: Files, tmp_path: OsPath) -> Path:
    """An empty directory on the real or the virtual disk of the test."""
    made = Path(tmp_path) / "here"
    files.make_directory(made)
    return made


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
