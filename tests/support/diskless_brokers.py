"""Brokers with coordinators of diskless topics, whose requests to each other are encoded, decoded and handled in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import trio

from odradek.broker.apis import diskless as handlers
from odradek.broker.coordination.internal_topics import DISKLESS_METADATA_TOPIC
from odradek.broker.diskless.coordinator import DisklessCoordinator
from odradek.broker.diskless.coordinator_requests import CoordinatorRequests
from odradek.broker.diskless.coordinator_service import CoordinatorService
from odradek.broker.diskless.coordinators import DisklessCoordinators
from odradek.broker.requests.context import RequestContext
from odradek.client.errors import Unreachable
from odradek.protocol import messages
from odradek.protocol.apis import Api
from odradek.replication.controller.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from odradek.testing.virtual_clock import VirtualClock
from tests.support.diskless_coordinators import (
    METADATA_ID,
    KeptStates,
    MemoryReplicaLog,
    Replica,
    image_of,
    new_replica,
    settle,
)


class FixedCoordinators(DisklessCoordinators):
    """Coordinators that a test gives to a broker."""

    def __init__(self) -> None:
        self.replicas: dict[int, DisklessCoordinator] = {}
        self.notified: list[tuple[UUID, int]] = []

    def __iter__(self) -> Iterator[DisklessCoordinator]:
        return iter([self.replicas[index] for index in sorted(self.replicas)])

    def find(self, coordinator_id: int) -> DisklessCoordinator | None:
        return self.replicas.get(coordinator_id)

    def notify(self, topic_id: UUID, index: int) -> None:
        self.notified.append((topic_id, index))


@dataclass
class DisklessBroker:
    """One broker with its image, its coordinators and its requests."""

    id: int
    image: MetadataImage
    coordinators: FixedCoordinators
    service: CoordinatorService
    requests: CoordinatorRequests
    authorizer: Any = None


@dataclass
class DisklessBrokers:
    """Brokers 1 to 3. `leaders` has the broker of each coordinator."""

    nursery: trio.Nursery
    leaders: dict[int, int]
    topics: dict[UUID, tuple[str, list[int]]]
    clock: VirtualClock = field(default_factory=VirtualClock)
    brokers: dict[int, DisklessBroker] = field(default_factory=dict)
    logs: dict[int, MemoryReplicaLog] = field(default_factory=dict)
    replicas: dict[tuple[int, int], Replica] = field(default_factory=dict)
    """By partition of `__diskless_metadata` and broker."""
    sent: list[tuple[int, str]] = field(default_factory=list)
    """Broker and API of every request between brokers."""
    unreachable: set[int] = field(default_factory=set)
    loses_responses: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Responses to lose by API; the broker handles these requests."""

    def image(self, topics: Mapping[UUID, tuple[str, list[int]]] | None = None) -> MetadataImage:
        """Image with `topics`, and the leaders of `__diskless_metadata`."""
        image = image_of(dict(self.topics if topics is None else topics))
        metadata = TopicImage(
            DISKLESS_METADATA_TOPIC,
            METADATA_ID,
            {
                index: PartitionImage((leader,), (UUID(int=9),), (leader,), leader, 0, 0)
                for index, leader in self.leaders.items()
            },
        )
        brokers = {
            number: BrokerImage(number, 0, UUID(int=number), (), {}, None, False, False, ())
            for number in (1, 2, 3)
        }
        return replace(
            image,
            topics_by_id={**image.topics_by_id, METADATA_ID: metadata},
            topics_by_name={**image.topics_by_name, metadata.name: metadata},
            brokers=brokers,
        )

    async def start(self) -> None:
        """Start the brokers, and each coordinator on the broker that leads it."""
        image = self.image()
        for number in (1, 2, 3):
            self._add_broker(number, image)
        for index, leader in self.leaders.items():
            self.logs[index] = MemoryReplicaLog()
            self.logs[index].commits_at_once = True
            self.add_replica(index, leader).coordinator.lead_since(0)
        await settle()

    def _add_broker(self, number: int, image: MetadataImage) -> None:
        coordinators = FixedCoordinators()
        broker: DisklessBroker
        service = CoordinatorService(coordinators, lambda: broker.image)
        requests = CoordinatorRequests(
            number,
            lambda: broker.image,
            self.clock,
            service,
            coordinators.notify,
            lambda purpose: Wires(self),
        )
        broker = self.brokers[number] = DisklessBroker(
            number, image, coordinators, service, requests
        )

    def add_replica(self, index: int, number: int) -> Replica:
        """Run a replica of a partition of `__diskless_metadata` on a broker."""
        replica = new_replica(
            self.logs[index], KeptStates(), coordinator_id=index, clock=self.clock
        )
        broker = self.brokers[number]
        replica.image = broker.image
        self.replicas[index, number] = replica
        broker.coordinators.replicas[index] = replica.coordinator
        self.nursery.start_soon(replica.coordinator.run)
        return replica

    async def elect(self, index: int, number: int) -> None:
        """Make a broker without a replica the leader of a coordinator. Only its own image has that yet."""
        for broker in self.brokers.values():
            if index in broker.coordinators.replicas:
                broker.coordinators.replicas[index].lead_since(-1)
        self.leaders[index] = number
        self.logs[index].leader_epoch += 1
        self.add_replica(index, number).coordinator.lead_since(self.logs[index].leader_epoch)
        self.brokers[number].image = self.image()
        await settle()

    async def handle(self, number: int, api: Api, request: Any) -> Any:
        """Handle a request at a broker, as if it came over the network."""
        broker = self.brokers[number]

        async def flush() -> None:
            pass

        services = SimpleNamespace(diskless=SimpleNamespace(service=broker.service))
        context = SimpleNamespace(
            services=services,
            api=api,
            authorizer=broker.authorizer,
            principal="User:someone",
            peer=SimpleNamespace(host="h"),
            flush=flush,
        )
        body = memoryview(messages.write_request(api.key, 0, request))
        decoded = messages.read_request(api.key, 0, body, 0)
        handler: Any = handlers.HANDLERS[api]
        response = await handler(decoded, cast(RequestContext, context))
        return messages.read_response(
            api.key, 0, memoryview(messages.write_response(api.key, 0, response))
        )


class Wires:
    """Connections of one broker to the others."""

    def __init__(self, brokers: DisklessBrokers) -> None:
        self._brokers = brokers

    def start(self, nursery: trio.Nursery) -> None:
        """Nothing has to run."""

    def brokers_changed(self) -> None:
        """There is nothing to close."""

    async def request(self, broker_id: int, api: Api, values: Any, *, timeout_s: float) -> Any:
        brokers = self._brokers
        brokers.sent.append((broker_id, api.name))
        await trio.lowlevel.checkpoint()
        if broker_id in brokers.unreachable:
            raise Unreachable(f"broker {broker_id}")
        response = await brokers.handle(broker_id, api, values)
        if brokers.loses_responses[api.name] > 0:
            brokers.loses_responses[api.name] -= 1
            raise Unreachable(f"lost the connection to broker {broker_id}")
        return response
