"""Tests of a node whose log directories cannot be opened or fail before it is ready: it stops with an error
message."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
import trio

from odradek.broker.lifecycle.broker_lifecycle import BrokerLifecycle
from odradek.broker.lifecycle.errors import CannotStart, NodeFailed
from odradek.broker.node import Node
from odradek.seams.files import Path
from odradek.storage.directories import clean_shutdown
from odradek.testing.simulation.cluster import config_of, host
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_world import VirtualWorld

LOGS, METADATA = Path("/logs"), Path("/metadata")


class SingleNode:
    """Single node with one log directory, and the metadata log in another directory."""

    def __init__(self) -> None:
        self.world = VirtualWorld()
        self.disk = VirtualDisk()
        for path in (LOGS, METADATA):
            self.disk.mount(path)

    def run(self, meanwhile: Callable[[Node], None] = Node.stop) -> None:
        """Run until the node ends or serves."""
        seams = self.world.node(host(1), self.disk)
        paths = {"log.dirs": str(LOGS), "metadata.log.dir": str(METADATA)}
        broker = Node(seams.seams, config_of(1, 1, more=paths))

        async def live() -> None:
            self.world.clock.jumping = True
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(broker.run)
                    await trio.sleep(1)
                    meanwhile(broker)

        try:
            self.world.run(live)
        finally:
            seams.power.cut()


@pytest.fixture
def node() -> SingleNode:
    """Node that has run before."""
    node = SingleNode()
    node.run()
    return node


def ending(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        (group,) = group.exceptions
    return group


def test_too_few_descriptors_stop_the_start(node: SingleNode) -> None:
    node.disk.fail(f"{LOGS}/{clean_shutdown.FILE_NAME}", errno.EMFILE)
    with pytest.raises(ExceptionGroup) as ended:
        node.run()
    assert isinstance(ending(ended.value), CannotStart)
    assert "ulimit -n" in str(ending(ended.value))


def test_last_directory_failing_during_log_loading_stops_start(node: SingleNode) -> None:
    node.disk.fail(f"{LOGS}/{clean_shutdown.FILE_NAME}", errno.EIO)
    with pytest.raises(ExceptionGroup) as ended:
        node.run()
    assert isinstance(ending(ended.value), NodeFailed)
    assert f"{LOGS}: [Errno 5]" in str(ending(ended.value))


def test_last_directory_failing_before_ready_stops_start(
    node: SingleNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example while the node waits for the controller."""

    async def register(*_: object) -> None:
        pass

    def fail(broker: Node) -> None:
        broker.logs.online_directories()[0].directory.fail(OSError(errno.EIO, "gone"))

    monkeypatch.setattr(BrokerLifecycle, "register", register)
    began = node.world.clock.monotonic()
    with pytest.raises(ExceptionGroup) as ended:
        node.run(fail)
    assert isinstance(ending(ended.value), NodeFailed)
    assert node.world.clock.monotonic() - began < 10
