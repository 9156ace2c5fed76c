"""Disables tiered storage of topics during faults, and enables it again (KIP-950).

A disablement has a policy, or the form of Apache Kafka (`remote.log.delete.on.disable`). What it accompanies is drawn
with it: a failover of the controller, the deletion of the topic, and whether the client waits for the state DISABLED
before it enables tiered storage again.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

import trio

from odradek.client.admin import ConfigChange, ConfigOperation, ResourceType, alter_configs
from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster
from odradek.protocol.errors import KafkaError
from odradek.replication.controller.image import MetadataImage, TieredState
from odradek.replication.controller.topic_tiering import DELETE_ON_DISABLE, DISABLE_POLICY, ENABLE
from odradek.seams.values import value_class
from odradek.testing.simulation.cluster import SimulatedCluster
from odradek.testing.simulation.plan import ADMIN_REQUEST_S, Fault
from odradek.testing.simulation.trace import Trace

WAIT_S = 3.0
"""How long a client waits for the state DISABLED."""
POLL_S = 0.05
FAILOVER_S_MAX = 0.1
"""Longest time from the disablement to the end of the active controller."""


class DisableForm(enum.Enum):
    RETAIN = "retain"
    DELETE = "delete"
    KAFKA = "Kafka's delete.on.disable"

    @property
    def deletes(self) -> bool:
        return self is not DisableForm.RETAIN


FORM_CONFIGS: Mapping[DisableForm, Mapping[str, str]] = {
    DisableForm.RETAIN: {DISABLE_POLICY: "retain"},
    DisableForm.DELETE: {DISABLE_POLICY: "delete"},
    DisableForm.KAFKA: {DELETE_ON_DISABLE: "true"},
}


@value_class
class DrawnDisablement:
    form: DisableForm
    deletes_topic: bool
    """The topic is one that is deleted while its state is DISABLING."""
    failover_s: float | None
    """When the active controller is killed after the disablement, in seconds; None: it is not killed."""
    waits: bool
    """Whether to wait for the state DISABLED."""
    enables: bool


def draw_disablement(fault: Fault) -> DrawnDisablement:
    chance = random.Random(f"disablement {fault.variant} {fault.amount}")
    return DrawnDisablement(
        form=chance.choices(list(DisableForm), [3, 5, 2])[0],
        deletes_topic=chance.random() < 0.2,
        failover_s=chance.random() * FAILOVER_S_MAX if chance.random() < 0.3 else None,
        waits=chance.random() < 0.6,
        enables=chance.random() < 0.5,
    )


class TieringDisablement:
    """Sends the requests, and knows for which topics records may be deleted."""

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Cluster]],
        cluster: SimulatedCluster,
        trace: Trace,
    ) -> None:
        self.has_deleted: set[str] = set()
        """Topics with a request to disable tiered storage that deletes remote data."""
        self._connect = connect
        self._cluster = cluster
        self._trace = trace
        self._admin_lock = trio.Lock()

    async def disable(self, topic: str, form: DisableForm) -> bool:
        """Disable tiered storage; return whether that was acknowledged."""
        async with self._admin_lock:
            if form.deletes:
                self.has_deleted.add(topic)
            configs = {ENABLE: "false", **FORM_CONFIGS[form]}
            return await self._alter(topic, configs, f"disabled ({form.value})")

    async def enable(self, topic: str) -> bool:
        """Enable tiered storage again; return whether that was acknowledged."""
        async with self._admin_lock:
            configs = {ENABLE: "true", **dict.fromkeys((DISABLE_POLICY, DELETE_ON_DISABLE))}
            return await self._alter(topic, configs, "enabled")

    async def wait_until_disabled(self, topic: str) -> None:
        """Wait until the state is not DISABLING, at most `WAIT_S`."""
        with trio.move_on_after(WAIT_S):
            while self.state(topic) is TieredState.DISABLING:
                await self._cluster.world.clock.sleep(POLL_S)

    def state(self, topic: str) -> TieredState | None:
        """The state of a topic in the newest image of all running nodes; None without a topic or node."""
        image = self.newest_image()
        found = image and image.topics_by_name.get(topic)
        return image.tiering_of(found.id).state if image and found else None

    def newest_image(self) -> MetadataImage | None:
        images = [broker.metadata.image for _, broker in self._cluster.running()]
        return max(images, key=lambda image: image.offset, default=None)

    async def _alter(self, topic: str, configs: Mapping[str, str | None], what: str) -> bool:
        changes = [
            ConfigChange(
                ConfigOperation.DELETE if value is None else ConfigOperation.SET, name, value
            )
            for name, value in configs.items()
        ]
        error: Exception | None = None
        with trio.move_on_after(ADMIN_REQUEST_S):
            try:
                async with self._connect() as cluster:
                    await cluster.retrying(
                        partial(alter_configs, cluster, ResourceType.TOPIC, topic, changes)
                    )
                    self._trace.add(f"tiered storage of {topic} is {what}")
                    return True
            except (KafkaError, ClientError) as refusal:
                error = refusal
        self._trace.add(f"tiered storage of {topic} is not {what}: {error or 'no response'}")
        return False


async def enable_at_end(tiering: TieringDisablement, topic: str, *, attempts: int = 5) -> bool:
    """Enable tiered storage of a topic after recovery; return whether that was acknowledged."""
    for _ in range(attempts):
        if await tiering.enable(topic):
            return True
        await trio.sleep(POLL_S)
    return False
