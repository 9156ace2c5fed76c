"""Registers this controller with the active controller: endpoints and features (KIP-919).

The active controller writes its own registration at failover. Other controllers send
ControllerRegistration while the metadata log has none of them, or one of an earlier incarnation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import trio

from odradek.broker.lifecycle.broker_registration import registration_fields
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.features import CONTROLLER_REGISTRATION, metadata_version
from odradek.replication.controller.image import ControllerImage, MetadataDelta, MetadataImage

if TYPE_CHECKING:
    from odradek.broker.controller.controller_channel import ActiveController

log = logging.getLogger("odradek.controller")

TIMEOUT_SECONDS = 10.0
PAUSE_SECONDS = 0.1
"""Retry backoff; doubles up to `PAUSE_SECONDS_MAX`."""
PAUSE_SECONDS_MAX = 10.0
SETTLE_SECONDS = 1.0
"""Wait for the registration to be replayed; also limits two controllers with the same id."""


class ControllerMetadata(Protocol):
    @property
    def image(self) -> MetadataImage: ...

    @property
    def is_active(self) -> bool: ...

    @property
    def controller_registration(self) -> ControllerImage:
        """Registration of this controller."""
        ...

    def subscribe(self, listener: Callable[[MetadataDelta], None]) -> object: ...


class ControllerRegistration:
    def __init__(self, metadata: ControllerMetadata, controller: ActiveController) -> None:
        self._metadata = metadata
        self._controller = controller
        self._changed = trio.Event()
        metadata.subscribe(self._metadata_changed)

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        if delta.changed_features or delta.image.controllers is not delta.before.controllers:
            self._changed.set()

    @property
    def is_due(self) -> bool:
        image, wanted = self._metadata.image, self._metadata.controller_registration
        if self._metadata.is_active or image.controllers.get(wanted.id) == wanted:
            return False
        return metadata_version(image.features) >= CONTROLLER_REGISTRATION

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Register whenever it is due, until cancelled."""
        task_status.started()
        pause_seconds = PAUSE_SECONDS
        while True:
            self._changed = trio.Event()
            if not self.is_due:
                await self._changed.wait()
            elif await self._register():
                pause_seconds = PAUSE_SECONDS
                await trio.sleep(SETTLE_SECONDS)
            else:
                await trio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)

    async def _register(self) -> bool:
        wanted = self._metadata.controller_registration
        try:
            response = await self._controller.request(
                apis.CONTROLLER_REGISTRATION, _values(wanted), timeout_s=TIMEOUT_SECONDS
            )
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code, response.error_message or "")
        except KafkaError as error:
            log.warning("registration with the active controller failed: %s", error)
            return False
        return True


def _values(controller: ControllerImage) -> Mapping[str, Any]:
    return {
        "controller_id": controller.id,
        "incarnation_id": controller.incarnation_id,
        "zk_migration_ready": False,
        **registration_fields(controller.endpoints, controller.features),
    }
