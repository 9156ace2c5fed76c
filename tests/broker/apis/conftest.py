"""A broker without disks and sockets: the image and the controller's operations are the real ones.

`ask` goes through the codec in both directions, so that what a handler answers is known to fit the
version it answers in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.network.listeners import Endpoint
from odradek.broker.quotas.client_quotas import ClientQuotas
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.dispatch import find_route
from odradek.broker.security.authorizer import Authorizer
from odradek.protocol import apis, messages
from odradek.replication.controller import image as images
from odradek.replication.controller.broker_fencing import start_broker
from odradek.replication.controller.broker_registration import BrokerRegistration
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.image_builder import apply_records
from odradek.seams.entropy import SeededEntropy
from odradek.seams.network import Address
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.apis.side_by_side import Both
from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka

DIRECTORY = UUID(int=1000)


class FakeMetadata:
    """Decides and applies like the real one, and keeps nothing."""

    def __init__(self, broker: FakeBroker) -> None:
        self.image = MetadataImage(offset=0, epoch=1, features=dict(images.DEFAULT_FEATURES))
        self._broker = broker
        self.performed = 0

    is_active = True

    def subscribe(self, callback: Callable[[Any], None]) -> Callable[[], None]:
        """Nobody has to be told: what changes has changed when it is awaited."""
        return lambda: None

    @property
    def finalized_features(self) -> Mapping[str, int]:
        return self.image.features

    async def perform(self, operation: Any) -> Any:
        return self.decide(operation)

    def decide(self, operation: Any) -> Any:
        plan = operation(self.image)
        if plan.records:
            offset = self.image.offset + len(plan.records)
            self.image = apply_records(self.image, plan.records, offset=offset, epoch=1).image
            self._broker.config.apply_dynamic(
                self.image.config(images.BROKER, ""),
                self.image.config(images.BROKER, str(self._broker.node_id)),
            )
        self.performed += 1
        return plan.result


class FakeBroker:
    cluster_id = "AAAAAAAAAAAAAAAAAAAAAQ"
    client_quotas: ClientQuotas | None = None
    authorizer: Authorizer | None = None

    def __init__(self, configs: Mapping[str, str]) -> None:
        self.config = ServerConfig.from_properties(configs, test_node=True)
        self.node_id = self.config.node_id
        self.seams = SimpleNamespace(entropy=SeededEntropy(random.Random(1)), clock=VirtualClock())
        self.logs = SimpleNamespace(offline=())
        self.acls_loaded = trio.Event()
        self.acls_loaded.set()
        self.metadata = FakeMetadata(self)
        self.register(self.node_id)

    def register(self, node_id: int, *listeners: str) -> None:
        registration = BrokerRegistration(
            id=node_id,
            incarnation_id=UUID(int=node_id),
            endpoints=[
                images.Endpoint(name, f"host-{node_id}", 9092, 0)
                for name in listeners or ("PLAINTEXT",)
            ],
            directories=[UUID(int=1000 + node_id)],
            features=images.SUPPORTED_FEATURES,
            rack=f"rack-{node_id}",
        )
        self.metadata.decide(
            lambda image: start_broker(image, registration, next_offset=image.offset + 1)
        )


class Client:
    def __init__(
        self, broker: Any, listener: str = "PLAINTEXT", authorizer: Authorizer | None = None
    ) -> None:
        self.broker = broker
        self.authorizer = authorizer
        self._endpoint = Endpoint(
            listener, "PLAINTEXT", Address("127.0.0.1", 9092), Address("localhost", 9092)
        )

    async def ask(self, api: apis.Api, version: int, **values: Any) -> Any:
        """The response as kio's entity."""
        frame = memoryview(messages.write_request(api.key, version, values))
        ctx = RequestContext(
            self.broker,
            api,
            version,
            1,
            "tests",
            self._endpoint,
            Address("127.0.0.1", 1),
            self._flush,
            self.authorizer,
        )
        route = find_route(api.key)
        assert route is not None
        request = route.read(api.key, version, frame, 0)
        response = route.write(api.key, version, await route.handler(request, ctx))
        assert isinstance(response, bytes)
        return messages.read_response(api.key, version, memoryview(response))

    async def _flush(self) -> None:
        pass

    async def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """A topic; configs with `_` for dots."""
        response = await self.ask(
            apis.CREATE_TOPICS,
            7,
            topics=[
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": -1,
                    "assignments": [],
                    "configs": [
                        {"name": key.replace("_", "."), "value": value}
                        for key, value in configs.items()
                    ],
                }
            ],
            timeout=30_000,
        )
        (topic,) = response.topics
        assert topic.error_code.name == "none", topic
        return topic


@pytest.fixture
def configs() -> dict[str, str]:
    """Configs of the broker; tests override it."""
    return {}


@pytest.fixture
def broker(configs: dict[str, str]) -> FakeBroker:
    return FakeBroker(configs)


@pytest.fixture
def client(broker: FakeBroker) -> Client:
    return Client(broker)


@pytest.fixture
def client_of() -> Callable[..., Client]:
    """A client of a running node: its handlers are called without a socket."""
    return Client


CONFIG = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "log.retention.check.interval.ms": "1000",
    # Given to both: without, Odradek has others for one machine.
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
}


@pytest.fixture(scope="package")
def brokers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Apache Kafka and Odradek, for the tests that ask both."""
    directory = tmp_path_factory.mktemp("side-by-side")
    with (
        start_kafka(directory / "kafka", config=CONFIG, log_dir_count=2) as kafka,
        start_odradek(directory / "odradek", config=CONFIG, log_dir_count=2) as odradek,
    ):
        yield kafka, odradek


@pytest.fixture
def both(brokers: tuple[BrokerProcess, BrokerProcess]) -> Iterator[Both]:
    both = Both(*brokers)
    yield both
    assert not both.differences, "\n".join(both.differences)
