"""A controller makes itself known to the cluster: where it listens, and what it supports (KIP-919).

The active controller writes its own registration when it takes over; the others ask it to write
theirs, as long as the metadata log has none of them or another one, of an earlier run.
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
"""After a refusal; doubled with each, up to `PAUSE_SECONDS_MAX`."""
PAUSE_SECONDS_MAX = 10.0
SETTLE_SECONDS = 1.0
"""For the log to bring what was registered; and where two say that they are the same controller, this
keeps them from doing nothing else."""


class ControllerMetadata(Protocol):
    @property
    def image(self) -> MetadataImage: ...

    @property
    def is_active(self) -> bool: ...

    @property
    def controller_registration(self) -> ControllerImage:
        """What the cluster is to know of this controller."""
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
        """Register whenever that is due, until cancelled."""
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
            respond = await self._controller.request(
                apis.CONTROLLER_REGISTRATION, _values(wanted), timeout_s=TIMEOUT_SECONDS
            )
            if respond.error_code is not ErrorCode.none:
                raise KafkaError(respond.error_code, respond.error_message or "")
        except KafkaError as error:
            log.warning("the active controller does not register this one: %s", error)
            return False
        return True


def _values(controller: ControllerImage) -> Mapping[str, Any]:
    return {
        "controller_id": controller.id,
        "incarnation_id": controller.incarnation_id,
        "zk_migration_ready": False,
        **registration_fields(controller.endpoints, controller.features),
    }
