"""The leader of a diskless partition for a client: a produce gateway of its coordinator (KIP-1164, D-24).

Any broker serves a diskless partition. A client that has `diskless_az=RACK` in its client id gets a gateway in that
rack, and other clients get any gateway. The partitions of a coordinator are spread over its gateways. All brokers
respond the same. A broker in controlled shutdown is a gateway only if there is no other broker.

The assignment is computed once for each change of brokers or coordinators.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from odradek.broker.requests.steps import in_steps
from odradek.protocol.messages import Encoded
from odradek.protocol.topics import DISKLESS_METADATA
from odradek.replication.controller.image import BrokerImage, MetadataImage, TopicImage
from odradek.replication.diskless.produce_gateways import (
    NO_LEADER,
    ProduceGateways,
    assign_gateways,
)

if TYPE_CHECKING:
    from odradek.broker.requests.context import RequestContext

_RACK: Final = re.compile(r"diskless_az=([^,\s]*)")


def rack_of_client(client_id: str | None) -> str | None:
    """Rack in a client id; None if it has none."""
    found = None if client_id is None else _RACK.search(client_id)
    return (found[1] or None) if found is not None else None


class GatewayCache:
    """The gateways of the current brokers and coordinators."""

    def __init__(self) -> None:
        self._brokers: Mapping[int, BrokerImage] | None = None
        self._coordinators: TopicImage | None = None
        self._gateways = assign_gateways({}, {})

    def of(self, image: MetadataImage) -> ProduceGateways:
        coordinators = image.topics_by_name.get(DISKLESS_METADATA)
        if image.brokers is not self._brokers or coordinators is not self._coordinators:
            self._brokers, self._coordinators = image.brokers, coordinators
            leaders = {} if coordinators is None else coordinators.partitions
            self._gateways = assign_gateways(
                _racks(image), {index: each.leader for index, each in leaders.items()}
            )
        return self._gateways


def _racks(image: MetadataImage) -> Mapping[int, str | None]:
    """Racks of the active brokers, else of those in controlled shutdown."""
    alive = [broker for broker in image.brokers.values() if not broker.fenced]
    active = [broker for broker in alive if broker.active]
    return {broker.id: broker.rack for broker in active or alive}


def leaders_of_topic(
    topic: TopicImage, ctx: RequestContext, image: MetadataImage, reachable: Collection[int]
) -> Mapping[int, int]:
    """Leader of each partition of a topic for a client; NO_LEADER if there is no broker.

    `reachable` are the live brokers with the client's listener.
    """
    rack = rack_of_client(ctx.client_id)
    return choose_leaders(topic, _gateways(ctx, image), rack, reachable)


def _gateways(ctx: RequestContext, image: MetadataImage) -> ProduceGateways:
    derived = ctx.services.config.derived
    cache = derived.get(GatewayCache)
    if cache is None:
        cache = derived[GatewayCache] = GatewayCache()
    return cast(GatewayCache, cache).of(image)


async def encode_with_preferred_brokers(
    topics: Sequence[dict[str, Any]], rack: str, ctx: RequestContext
) -> Encoded:
    """Encode the topics of a Metadata response with all gateways of each diskless partition in the client's rack.

    Without a rack, or in a rack without brokers, they are those of all racks.
    """
    from odradek.protocol.preferred_brokers import metadata_topic_writer

    image = ctx.services.metadata.image
    gateways, write = _gateways(ctx, image), metadata_topic_writer(ctx.api_version)
    encoded = Encoded()
    async for values in in_steps(topics, ctx):
        topic = image.topics_by_name.get(values["name"])
        if topic is not None and topic.is_diskless:
            for each in values["partitions"]:
                partition = topic.partitions.get(each["partition_index"])
                if partition is not None:
                    each["preferred_produce_brokers"] = [
                        broker
                        for broker in gateways.of(partition.diskless_coordinator, rack or None)
                        if image.brokers[broker].endpoint(ctx.endpoint.name) is not None
                    ]
        encoded.append(write(values))
    return encoded


def choose_leaders(
    topic: TopicImage, gateways: ProduceGateways, rack: str | None, reachable: Collection[int]
) -> Mapping[int, int]:
    """Gateway of each partition of a topic that is among the `reachable` brokers, else any of these brokers."""
    coordinators = max(len(gateways.of_all_racks), 1)
    chosen = {}
    for index, partition in topic.partitions.items():
        candidates = gateways.of(partition.diskless_coordinator, rack)
        usable = [each for each in candidates if each in reachable] or sorted(reachable)
        # Partitions of one coordinator have indexes at a distance of `coordinators`
        number = topic.id.int + index // coordinators
        chosen[index] = usable[number % len(usable)] if usable else NO_LEADER
    return chosen
