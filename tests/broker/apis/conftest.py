"""Fixtures of the handler tests: a broker without disks and sockets, and a client that encodes requests and
decodes responses, so that each response is valid in its version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from odradek.broker.network.listeners import BoundListener
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.dispatch import find_route
from odradek.broker.security.authorizer import Authorizer
from odradek.protocol import apis, messages
from odradek.seams.network import Address
from tests.broker.apis.fake_broker import FakeBroker
from tests.broker.apis.side_by_side import Both
from tests.support.broker_process import BrokerProcess
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka

DIRECTORY = UUID(int=1000)


class Client:
    def __init__(
        self, broker: Any, listener: str = "PLAINTEXT", authorizer: Authorizer | None = None
    ) -> None:
        self.broker = broker
        self.authorizer = authorizer
        self.client_id = "tests"
        self._endpoint = BoundListener(
            listener, "PLAINTEXT", Address("127.0.0.1", 9092), Address("localhost", 9092)
        )

    async def ask(self, api: apis.Api, version: int, **values: Any) -> Any:
        """Send a request and return the response as kio's entity."""
        response = await self.ask_raw(api, version, **values)
        return messages.read_response(api.key, version, memoryview(response))

    async def ask_raw(
        self, api: apis.Api, version: int, *, tags: bytes = b"", **values: Any
    ) -> bytes:
        """Send a request and return the bytes of the response. `tags` are the request's tagged fields."""
        request = messages.write_request(api.key, version, values)
        frame = memoryview(request[:-1] + tags if tags else request)
        ctx = RequestContext(
            self.broker,
            api,
            version,
            1,
            self.client_id,
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
        return response

    async def _flush(self) -> None:
        pass

    async def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """Create a topic; `_` in config names stands for a dot."""
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
    """Configs of the broker; tests override them."""
    return {}


@pytest.fixture
def broker(configs: dict[str, str]) -> FakeBroker:
    return FakeBroker(configs)


@pytest.fixture
def client(broker: FakeBroker) -> Client:
    return Client(broker)


@pytest.fixture
def client_of() -> Callable[..., Client]:
    """Client of a running node that calls its handlers without a socket."""
    return Client


CONFIG = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "log.retention.check.interval.ms": "1000",
    # Set for both: Odradek's defaults for a single node differ.
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
}


@pytest.fixture(scope="package")
def brokers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Apache Kafka and Odradek, for tests that compare them."""
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
