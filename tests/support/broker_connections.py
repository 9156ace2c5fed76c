"""Brokers of a virtual cluster, for tests of connections between brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

import trio

from odradek.broker.network.broker_connections import BrokerConnections
from odradek.replication.controller.image import (
    BrokerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.seams.network import Address
from odradek.seams.tcp import TcpNetwork

LISTENER = "INTERNAL"


def a_broker(number: int, address: Address, *, fenced: bool = False) -> BrokerImage:
    return BrokerImage(
        id=number,
        epoch=1,
        incarnation_id=UUID(int=number),
        endpoints=(
            Endpoint("CLIENTS", "nowhere.invalid", 1, 0),
            Endpoint(LISTENER, address.host, address.port, 0),
        ),
        features={},
        rack=None,
        fenced=fenced,
        in_controlled_shutdown=False,
        directories=(),
    )


def a_topic(name: str, leaders: Mapping[int, int]) -> TopicImage:
    """Return a topic with these leaders by partition; -1 is no leader."""
    partitions = {
        index: PartitionImage((1, 2), (UUID(int=1), UUID(int=2)), (1, 2), leader, 0, 0)
        for index, leader in leaders.items()
    }
    return TopicImage(name, UUID(int=len(name)), partitions)


class ConnectedBroker:
    """Metadata image of node 1, and its connections to other brokers (`peers`)."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.image = MetadataImage()
        self.nursery = nursery
        self.peers = BrokerConnections(
            TcpNetwork(), lambda: self.image, lambda: LISTENER, client_id="test"
        )
        self.peers.start(nursery)

    def knows(self, *brokers: BrokerImage) -> None:
        known = {**self.image.brokers, **{each.id: each for each in brokers}}
        self.image = replace(self.image, brokers=MappingProxyType(known))
        self.peers.brokers_changed()

    def forgets(self, broker_id: int) -> None:
        known = {number: each for number, each in self.image.brokers.items() if number != broker_id}
        self.image = replace(self.image, brokers=MappingProxyType(known))
        self.peers.brokers_changed()

    def has(self, *topics: TopicImage) -> None:
        by_name = {each.name: each for each in topics}
        self.image = replace(self.image, topics_by_name=MappingProxyType(by_name))


@asynccontextmanager
async def asking() -> AsyncIterator[ConnectedBroker]:
    async with trio.open_nursery() as nursery:
        yield ConnectedBroker(nursery)
        nursery.cancel_scope.cancel()
