"""A controller without a quorum, whose records are committed at once.

`Channel` sends requests to it through the codec and the handlers, and can be disconnected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.controller.quorum_controller import QuorumController
from odradek.protocol import messages
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import MetadataDelta, MetadataImage
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.raft.errors import NotController
from odradek.replication.raft.quorum_info import QuorumInfo
from odradek.replication.raft.voters import Voter
from odradek.seams.clock import RealClock

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


class TrioClock(RealClock):
    """Clock whose monotonic time is that of trio, which a test may control."""

    def monotonic(self) -> float:
        return trio.current_time()


class FakeMetadata:
    """Metadata manager that applies records to the image and writes no log."""

    def __init__(
        self, image: MetadataImage, node_id: int = 9, voters: tuple[int, ...] = (9,)
    ) -> None:
        self.image = image
        self.node_id = node_id
        self.cluster_id = CLUSTER_ID
        self.is_active = True
        self.quorum = QuorumInfo(
            9, 1, 0, 0, tuple(Voter(each, UUID(int=each)) for each in voters), 1
        )
        self.batches: list[list[Any]] = []
        self.refuses = False
        self._listeners: list[Callable[[MetadataDelta], None]] = []
        self._on_active: list[Callable[[bool], None]] = []

    def subscribe(self, listener: Callable[[MetadataDelta], None]) -> None:
        self._listeners.append(listener)

    def on_active(self, callback: Callable[[bool], None]) -> None:
        self._on_active.append(callback)
        if self.is_active:
            callback(True)

    def turn(self, is_active: bool) -> None:
        self.is_active = is_active
        for callback in self._on_active:
            callback(is_active)

    async def perform(self, operation: Callable[[MetadataImage], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        if not self.is_active:
            raise NotController("not the active controller")
        if self.refuses:
            raise KafkaError(ErrorCode.record_list_too_large)
        return self.decide(operation)

    def decide(self, operation: Callable[[MetadataImage], Any]) -> Any:
        plan = operation(self.image)
        if plan.records:
            offset = self.image.offset + len(plan.records)
            delta = apply_records(self.image, plan.records, offset=offset)
            self.image = delta.image
            self.batches.append(list(plan.records))
            for listener in self._listeners:
                listener(delta)
        return plan.result


class ControllerNode:
    """Services of a controller node that request handlers use."""

    cluster_id = CLUSTER_ID

    def __init__(self, metadata: FakeMetadata, configs: Mapping[str, str] | None = None) -> None:
        self.metadata = metadata
        self.config = ServerConfig.from_properties(dict(configs or {}), test_node=True)
        self.quorum_controller = QuorumController(metadata, TrioClock(), self.config)


class Channel:
    """Connection to the controller. `requested_apis` has the titles of the requested APIs."""

    def __init__(self, node: ControllerNode) -> None:
        self.node = node
        self.requested_apis: list[str] = []
        self.is_cut = False
        self.version: int | None = None

    async def request(self, api: Api, values: Mapping[str, Any], *, timeout_s: float = 30) -> Any:
        from odradek.broker.apis import node_to_controller as controller

        self.requested_apis.append(api.title)
        if self.is_cut:
            await trio.sleep(timeout_s)
            raise KafkaError(ErrorCode.request_timed_out)
        version = api.max_version if self.version is None else self.version
        frame = memoryview(messages.write_request(api.key, version, values))
        request = messages.read_request(api.key, version, frame)
        ctx: Any = SimpleNamespace(
            services=self.node, api=api, api_version=version, authorizer=None
        )
        response = await controller.HANDLERS[api](request, ctx)
        written = messages.write_response(api.key, version, response)
        return messages.read_response(api.key, version, memoryview(written))
