"""Broker without disks and sockets, with the real metadata image and controller operations."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.quotas.client_quotas import ClientQuotas
from odradek.broker.security.authorizer import Authorizer
from odradek.replication.controller import image as images
from odradek.replication.controller.broker_fencing import start_broker
from odradek.replication.controller.broker_registration import BrokerRegistration
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.image_builder import apply_records
from odradek.seams.entropy import SeededEntropy
from odradek.testing.virtual_clock import VirtualClock


class FakeMetadata:
    """Metadata manager that applies controller operations at once and stores nothing."""

    def __init__(self, broker: FakeBroker) -> None:
        self.image = MetadataImage(offset=0, epoch=1, features=dict(images.DEFAULT_FEATURES))
        self._broker = broker
        self.performed = 0

    is_active = True

    def subscribe(self, callback: Callable[[Any], None]) -> Callable[[], None]:
        """There are no notifications: a change is applied when it is awaited."""
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
    tiered_storage: Any = None
    topic_disablements: Any = None

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
