"""A node whose log directories cannot be opened: it ends, and says why."""

from __future__ import annotations

import errno

import pytest
import trio

from odradek.broker.endings import CannotStart
from odradek.broker.node import Broker
from odradek.seams.files import Path
from odradek.storage.directories import clean_shutdown
from odradek.testing.simulation.cluster import config_of, host
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_world import VirtualWorld

LOGS, METADATA = Path("/logs"), Path("/metadata")


class Node:
    """All of its cluster, with one log directory, and the metadata log in another."""

    def __init__(self) -> None:
        self.world = VirtualWorld()
        self.disk = VirtualDisk()
        for path in (LOGS, METADATA):
            self.disk.mount(path)

    def lives(self) -> None:
        """Until it ends by itself, or serves."""
        doors = self.world.node(host(1), self.disk)
        paths = {"log.dirs": str(LOGS), "metadata.log.dir": str(METADATA)}
        broker = Broker(doors.seams, config_of(1, 1, more=paths))

        async def live() -> None:
            self.world.clock.jumping = True
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(broker.run)
                    await trio.sleep(1)
                    broker.stop()

        try:
            self.world.run(live)
        finally:
            doors.power.cut()


@pytest.fixture
def node() -> Node:
    """Which has run before."""
    node = Node()
    node.lives()
    return node


def ending(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        (group,) = group.exceptions
    return group


def test_there_are_too_few_descriptors_to_load_logs(node: Node) -> None:
    node.disk.fail(f"{LOGS}/{clean_shutdown.FILE_NAME}", errno.EMFILE)
    with pytest.raises(ExceptionGroup) as ended:
        node.lives()
    assert isinstance(ending(ended.value), CannotStart)
    assert "ulimit -n" in str(ending(ended.value))
