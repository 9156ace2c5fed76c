"""Tests of the registration of an inactive controller with the active one, once per start."""

from __future__ import annotations

from uuid import UUID

import trio

from odradek.broker.controller.controller_registration import ControllerRegistration
from odradek.replication.controller.features import DEFAULT_FEATURES, SUPPORTED_FEATURES
from odradek.replication.controller.image import ControllerImage, Endpoint
from tests.support.cluster_images import formatted
from tests.support.controller_node import Channel, ControllerNode, FakeMetadata


class Follower(FakeMetadata):
    """Controller 8, which replicates the log of controller 9."""

    def __init__(self, leader: FakeMetadata, incarnation: int = 1) -> None:
        super().__init__(leader.image, node_id=8)
        self.is_active = False
        self.controller_registration = ControllerImage(
            id=8,
            incarnation_id=UUID(int=incarnation),
            endpoints=(Endpoint("CONTROLLER", "h", 9093, 0),),
            features=SUPPORTED_FEATURES,
        )
        leader.subscribe(self._follow)

    def _follow(self, delta: object) -> None:
        self.image = delta.image  # type: ignore[attr-defined]
        for listener in self._listeners:
            listener(delta)  # type: ignore[arg-type]


async def test_controller_registers_once_per_start(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    node = ControllerNode(FakeMetadata(formatted()))
    channel = Channel(node)
    follower = Follower(node.metadata)
    async with trio.open_nursery() as run:
        await run.start(ControllerRegistration(follower, channel).run)
        await trio.sleep(60)
        run.cancel_scope.cancel()
    assert channel.requested_apis == ["ControllerRegistration"]
    assert node.metadata.image.controllers[8] == follower.controller_registration
    again = Follower(node.metadata, incarnation=2)
    await nursery.start(ControllerRegistration(again, channel).run)
    await trio.sleep(1)
    assert node.metadata.image.controllers[8].incarnation_id == UUID(int=2)


async def test_unreachable_controller_is_retried(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    node = ControllerNode(FakeMetadata(formatted()))
    channel = Channel(node)
    channel.is_cut = True
    await nursery.start(ControllerRegistration(Follower(node.metadata), channel).run)
    await trio.sleep(100)
    assert 3 < len(channel.requested_apis) < 11
    channel.is_cut = False
    await trio.sleep(21)
    assert 8 in node.metadata.image.controllers


async def test_registration_requires_metadata_version_and_inactive_controller(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    old = {**DEFAULT_FEATURES, "metadata.version": 10}
    node = ControllerNode(FakeMetadata(formatted(old)))
    channel = Channel(node)
    active = Follower(ControllerNode(FakeMetadata(formatted())).metadata)
    active.is_active = True
    await nursery.start(ControllerRegistration(Follower(node.metadata), channel).run)
    await nursery.start(ControllerRegistration(active, channel).run)
    await trio.sleep(60)
    assert channel.requested_apis == []
