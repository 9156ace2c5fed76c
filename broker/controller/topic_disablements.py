"""Sends DisableRemoteTopic to the brokers until tiered storage of a topic is disabled (KIP-950).

The active controller runs a task for each topic in the state DISABLING, from the metadata image, so that a new active
controller continues (X-09). `replication/controller/topic_tiering.py` decides which brokers have to respond.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol
from uuid import UUID

import trio

from odradek.broker.controller.quorum_controller import ControllerMetadataManager
from odradek.client.errors import ClientError
from odradek.protocol.apis import DISABLE_REMOTE_TOPIC, Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import MetadataDelta, MetadataImage, TieredState
from odradek.replication.controller.topic_tiering import (
    DisablementProgress,
    complete,
    tiering_record,
)
from odradek.seams.containment import STARTED_AGAIN, Containment
from odradek.seams.values import value_class

log = logging.getLogger("odradek.controller")

REQUEST_TIMEOUT_SECONDS = 5.0
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 5.0
"""Shortest and longest pause between two requests to a broker that has not finished."""


@value_class
class BrokerDisablement:
    """Whether a broker has finished its part of a disablement, and if not, why. A reason of None: it has not
    responded yet."""

    broker_id: int
    is_done: bool
    reason: str | None


REMIND_SECONDS = 60.0
"""Interval of the log messages about a broker that has not finished."""


class BrokerRequests(Protocol):
    """The part of BrokerConnections that is used."""

    async def request(
        self, broker_id: int, api: Api, values: Mapping[str, Any], *, timeout_s: float
    ) -> Any: ...


class TopicDisablements:
    """Tasks of the active controller that complete the disablement of topics. Brokers are reached by `requests`."""

    def __init__(self, metadata: ControllerMetadataManager, requests: BrokerRequests) -> None:
        self._metadata = metadata
        self._requests = requests
        self._changed = trio.Event()
        self._copies_ended = trio.Event()
        """Set when the copies of a broker have ended: leaders may delete its incomplete copies."""
        self._running: set[tuple[UUID, int]] = set()
        self._progress: dict[UUID, DisablementProgress] = {}
        self._tasks: Containment[str] = Containment(
            "the disablement of tiered storage", consequence=STARTED_AGAIN
        )
        metadata.subscribe(self._metadata_changed)
        metadata.on_active(self._active)

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        if delta.image.tiering:
            self._wake()

    def _active(self, is_active: bool) -> None:
        self._wake()

    def brokers(self, topic_id: UUID) -> list[BrokerDisablement]:
        """Last response of each registered broker; empty if the topic is not in the state DISABLING."""
        image = self._metadata.image
        tiering = image.tiering.get(topic_id)
        if tiering is None or tiering.state is not TieredState.DISABLING:
            return []
        progress = self._progress.get(topic_id)
        if progress is None or not progress.is_current(image):  # the task has not started
            progress = DisablementProgress(topic_id, tiering.epoch)
        missing = progress.missing(image)
        return [
            BrokerDisablement(broker_id, broker_id not in missing, progress.reason(broker_id))
            for broker_id in sorted(image.brokers)
        ]

    @property
    def missing_brokers(self) -> int:
        """Brokers that have not finished their part of any of the disablements; 0 if this is not the active
        controller."""
        if not self._metadata.is_active:
            return 0
        missing = {
            each.broker_id
            for topic_id in self._metadata.image.tiering
            for each in self.brokers(topic_id)
            if not each.is_done
        }
        return len(missing)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def run(self) -> None:
        """Request the disablement from brokers while this node is the active controller, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                changed = self._changed
                if self._metadata.is_active:
                    for topic_id, tiering in self._metadata.image.tiering.items():
                        key = topic_id, tiering.epoch
                        if tiering.state is TieredState.DISABLING and key not in self._running:
                            self._running.add(key)
                            nursery.start_soon(self._disable, *key)
                await changed.wait()

    async def _disable(self, topic_id: UUID, epoch: int) -> None:
        try:
            await self._tasks.keep_running(str(topic_id), self._disable_once, topic_id, epoch)
        finally:
            self._running.discard((topic_id, epoch))
            self._wake()  # this node may be the active controller again

    async def _disable_once(self, topic_id: UUID, epoch: int) -> None:
        """Send the requests until every broker has responded, then commit the state DISABLED (X-08)."""
        progress = self._progress[topic_id] = DisablementProgress(topic_id, epoch)
        try:
            await self._send_until_complete(progress)
        finally:
            if self._progress.get(topic_id) is progress:
                del self._progress[topic_id]

    async def _send_until_complete(self, progress: DisablementProgress) -> None:
        async with trio.open_nursery() as nursery:
            sending: set[int] = set()
            while self._metadata.is_active and progress.is_current(self._metadata.image):
                changed = self._changed
                if progress.is_complete(self._metadata.image):
                    await self._complete(progress)
                    continue
                for broker_id in progress.missing(self._metadata.image):
                    if broker_id not in sending:
                        sending.add(broker_id)
                        nursery.start_soon(self._send, broker_id, progress, sending)
                await changed.wait()
            nursery.cancel_scope.cancel()

    async def _send(self, broker_id: int, progress: DisablementProgress, sending: set[int]) -> None:
        """Send the request to one broker until it has responded."""
        pause = PAUSE_SECONDS
        remind_at = trio.current_time() + REMIND_SECONDS
        while broker_id in progress.missing(self._metadata.image):
            image, copies_ended = self._metadata.image, self._copies_ended
            unfinished = await self._request(broker_id, progress, image)
            if unfinished is None:
                progress.responded(broker_id, image)
            else:
                progress.not_finished(broker_id, unfinished)
                if trio.current_time() >= remind_at:
                    remind_at += REMIND_SECONDS
                    self._remind(broker_id, progress, unfinished)
                with trio.move_on_after(pause):
                    await copies_ended.wait()
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
        sending.discard(broker_id)
        self._wake()

    def _remind(self, broker_id: int, progress: DisablementProgress, unfinished: str) -> None:
        topic = self._metadata.image.topics_by_id.get(progress.topic_id)
        if topic is not None:
            log.warning(
                "Broker %d has not disabled tiered storage of topic %s yet: %s",
                broker_id,
                topic.name,
                unfinished,
            )

    async def _request(
        self, broker_id: int, progress: DisablementProgress, image: MetadataImage
    ) -> str | None:
        """Why the broker has not finished, or None."""
        values = {
            "topic_id": progress.topic_id,
            "metadata_offset": image.offset,
            "tiered_epoch": progress.epoch,
            "copying_brokers": progress.copying(image),
        }
        try:
            response = await self._requests.request(
                broker_id, DISABLE_REMOTE_TOPIC, values, timeout_s=REQUEST_TIMEOUT_SECONDS
            )
        except ClientError as error:
            return str(error)
        is_done = response.error_code is ErrorCode.none
        if (is_done or response.has_ended_copies) and progress.ended_copies(broker_id, image):
            self._copies_ended.set()
            self._copies_ended = trio.Event()
        if is_done:
            return None
        return str(response.error_message or response.error_code.name)

    async def _complete(self, progress: DisablementProgress) -> None:
        """Commit the state DISABLED; after a failure, pause."""

        def operation(image: MetadataImage) -> ControllerResult[None]:
            if not progress.is_current(image) or not progress.is_complete(image):
                return ControllerResult([], None)
            tiering = complete(image.tiering[progress.topic_id], progress.epoch)
            return ControllerResult([tiering_record(progress.topic_id, tiering)], None)

        try:
            await self._metadata.perform(operation)
        except KafkaError as error:  # another node may be the active controller
            log.debug("cannot commit that %s is disabled: %s", progress.topic_id, error)
            await trio.sleep(PAUSE_SECONDS)
            return
        topic = self._metadata.image.topics_by_id.get(progress.topic_id)
        if topic is not None and not progress.is_current(self._metadata.image):
            log.info("Tiered storage of topic %s is disabled", topic.name)
